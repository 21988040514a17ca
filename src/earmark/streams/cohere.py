"""Cohere's v2 chat, and v1, which differs in the names of its events.

One report, on the `message-end` event (v1: `stream-end`), which ends the stream. It has two units: `tokens` is
what was processed, `billed_units` what is billed, and they are never added up. Limits are about what was
processed, so `tokens` is the usage, and `billed_units` only where it is all there is. `cached_tokens` stands
beside both and is a part of the processed input; reasoning is a part of the processed output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from earmark.streams.counts import Counts, mapping_of
from earmark.streams.reader import Generated, Reader, text_of
from earmark.usage import Usage


class Cohere(Reader):
    """The reader of one chat, streamed or whole."""

    name: ClassVar[str] = "cohere"
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(
        rb'"(?:message-end"|stream-end"|error"|finish_reason"\s*:\s*"|(?:usage|meta)"\s*:\s*\{)'
    )

    __slots__ = ()

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Take in one event, or a whole response."""
        kind = text_of(payload.get("type")) or text_of(payload.get("event_type"))
        delta = mapping_of(payload.get("delta"))
        end = delta if kind == "message-end" else payload
        reason = text_of(end.get("finish_reason"))
        self._finish(0, reason)
        if reason is not None and reason.upper().startswith("ERROR"):
            self._fail(end.get("error") or reason)
        if kind in ("message-end", "stream-end"):
            self.ended = True
        response = mapping_of(payload.get("response")) or payload
        report = mapping_of(end.get("usage")) or mapping_of(response.get("meta"))
        usage = _usage_of(self.counts, report)
        if usage is not None:
            self._report = usage
        self._final = self.finished
        self._note_error(event, payload)

    def _generated(self, event: str | None, payload: Mapping[str, Any]) -> Generated:
        kind = payload.get("event_type")
        if kind is None:
            return (mapping_of(payload.get("delta")).get("message"),)
        # v1 repeats everything in other events.
        said = kind in ("text-generation", "tool-calls-chunk")
        return (payload.get("text"), payload.get("tool_call_delta")) if said else ()


def _usage_of(counts: Counts, report: Mapping[str, Any]) -> Usage | None:
    """Normalise a report: what was processed, else what is billed; None where neither has a count."""
    cached = counts.read(report, "cached_tokens")
    for unit in ("tokens", "billed_units"):
        fields = mapping_of(report.get(unit))
        read = counts.read(fields, "input_tokens")
        made = counts.read(fields, "output_tokens")
        if read is not None or made is not None:
            return Usage(read, made, cached, None, counts.read(fields, "reasoning_tokens"))
    return None
