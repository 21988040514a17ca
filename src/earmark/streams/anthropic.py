"""Anthropic's Messages, as they come from Anthropic, Vertex, Bedrock and proxies; also legacy `/v1/complete`.

`message_start` has the input and a preliminary output; `message_delta` has counts that are cumulative, and
since 2025 the input and caches as well, which server tools may have raised (C38).

**Combining.** Each field that is not null overwrites the earlier one; nothing is ever added to what a former
event said. Where a report has `iterations`, the usage is their sum, until a later report without any comes to
more: the top level leaves out the passes of compaction and of an advisor. A second `message_start` begins a new
message and forgets the old one.

**Final** is a `message_delta` with an output count, once a stop reason (or `message_stop`) was seen. The output
of `message_start` never is. `message_stop` ends the stream; an `error` event may come in its place.

Input excludes cache reads and writes, so the whole input is the sum of the three (C46); thinking is inside
the output; there is no total. `/v1/complete` has no usage at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from earmark.streams.counts import Counts, items_of, mapping_of, total_of, whole
from earmark.streams.reader import Generated, Reader
from earmark.usage import Usage

_FIELDS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)


class Anthropic(Reader):
    """The reader of one message, streamed or whole."""

    name: ClassVar[str] = "anthropic"
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(
        rb'"(?:message(?:_start|_delta|_stop)?"|error"|stop_reason"\s*:\s*")'
    )

    __slots__ = ("_iterations", "_latest", "_thinking")

    def __init__(self, expected_choices: int = 1) -> None:
        super().__init__(expected_choices)
        self._forget()

    def _forget(self) -> None:
        self.reasons.clear()
        self._latest: dict[str, int] = {}
        self._thinking: int | None = None
        self._iterations: Usage | None = None
        self._final = False

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Take in one event, or a whole message; the type within the event decides, and not the event's name."""
        kind = payload.get("type")
        if kind == "message_start":
            self._forget()
            self._take(mapping_of(mapping_of(payload.get("message")).get("usage")), final=False)
        elif kind == "message_delta":
            self._finish(0, mapping_of(payload.get("delta")).get("stop_reason"))
            self._take(mapping_of(payload.get("usage")), final=True)
        elif kind == "message_stop":
            self.ended = True
        elif kind == "message":
            self._finish(0, payload.get("stop_reason"))
            self._take(mapping_of(payload.get("usage")), final=True)
        elif kind == "completion":
            self._finish(0, payload.get("stop_reason"))
        self._note_error(event, payload)

    def _take(self, report: Mapping[str, Any], *, final: bool) -> None:
        for field in _FIELDS:
            count = self.counts.read(report, field)
            if count is not None:
                self._latest[field] = count
                self._final = self._final or (final and field == "output_tokens")
        thinking = self.counts.read(
            mapping_of(report.get("output_tokens_details")), "thinking_tokens"
        )
        if thinking is not None:
            self._thinking = thinking
        iterations = _sum_of(self.counts, report.get("iterations"))
        latest = _usage_of(self._latest)
        if iterations is not None:
            self._iterations = iterations
        elif self._iterations and latest and total_of(latest) > total_of(self._iterations):
            self._iterations = (
                None  # they are those of an earlier report, which this one has passed
            )

    @property
    def usage(self) -> Usage | None:
        """The sum of the iterations, else the latest of each field."""
        usage = self._iterations or _usage_of(self._latest)
        if usage is None or self._thinking is None:
            return usage
        return Usage(
            usage.input_tokens,
            usage.output_tokens,
            usage.cached_input_tokens,
            usage.cache_write_tokens,
            self._thinking,
        )

    def final(self, *, complete: bool) -> bool:
        """Whether the cumulative output and the reason to stop are there."""
        return self._final and bool(self.reasons or self.ended)

    @property
    def finished(self) -> bool:
        """Whether the source may stop here: a stop reason is the end, `message_stop` only says so again."""
        return self.ended or bool(self.reasons)

    def _generated(self, event: str | None, payload: Mapping[str, Any]) -> Generated:
        return payload.get("delta"), payload.get("content"), payload.get("completion")


def _usage_of(fields: Mapping[str, int]) -> Usage | None:
    if not fields:
        return None
    cached = fields.get("cache_read_input_tokens")
    written = fields.get("cache_creation_input_tokens")
    return Usage(
        input_tokens=whole(fields.get("input_tokens"), cached, written),
        output_tokens=fields.get("output_tokens"),
        cached_input_tokens=cached,
        cache_write_tokens=written,
    )


def _sum_of(counts: Counts, iterations: object) -> Usage | None:
    """What the iterations come to; None where there are none, or where one of them does not tell."""
    sums: dict[str, int] = {}
    passes = items_of(iterations)
    for one in passes:
        fields = mapping_of(one)
        found = {
            name: count for name in _FIELDS if (count := counts.read(fields, name)) is not None
        }
        if "input_tokens" not in found or "output_tokens" not in found:
            return None
        for name, count in found.items():
            sums[name] = whole(sums.get(name, 0), count) or 0
    return _usage_of(sums)
