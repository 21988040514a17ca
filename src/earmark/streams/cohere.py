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

from earmark.streams.counts import Counts, length_of, mapping_of, says_output
from earmark.streams.reader import Reader, text_of
from earmark.usage import Usage


class Cohere(Reader):
    """The reader of one chat, streamed or whole."""

    name: ClassVar[str] = "cohere"
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(
        rb'"(?:message-end"|stream-end"|error"|finish_reason"\s*:\s*"|(?:usage|meta)"\s*:\s*\{)'
    )

    __slots__ = ("_report",)

    def __init__(self, expected_choices: int = 1) -> None:
        super().__init__(expected_choices)
        self._report: Usage | None = None

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
        self._note_error(event, payload)

    @property
    def usage(self) -> Usage | None:
        """The one report."""
        return self._report

    @property
    def authoritative(self) -> bool:
        """True once the report is there: it comes with the end."""
        return self.finished and self._report is not None and says_output(self._report)

    def text_length(self, event: str | None, payload: Mapping[str, Any]) -> int:
        """The characters of text, thinking, plan and tool arguments."""
        message = mapping_of(mapping_of(payload.get("delta")).get("message"))
        content = mapping_of(message.get("content"))
        call = mapping_of(mapping_of(message.get("tool_calls")).get("function"))
        texts = (
            content.get("text"),
            content.get("thinking"),
            message.get("tool_plan"),
            call.get("arguments"),
            payload.get("text") if payload.get("event_type") == "text-generation" else None,
        )
        return sum(length_of(text) for text in texts)


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
