"""Gemini's generateContent, from AI Studio and Vertex, as SSE or as a JSON array; and its Interactions.

Chunks carry running totals that may fall and, with server tools, begin anew in every internal round: an
earlier count is neither a floor nor something to add (C39), and a field of an earlier round does not belong
beside those of the last one.

**Combining.** The last snapshot that has any count is taken whole, with what it leaves out unknown. A
`usageMetadata` without counts (Vertex: `trafficType` alone) is no report.

**Final** is a report that says something about the output and comes with, or after, the finish reason of every
expected candidate. The source may stop after a finish reason, or after a `blockReason`. Nothing marks the end, and
Gemini 1.0 gives a finish reason with every chunk: a reason is the last one if the source stops, or if an earlier
chunk came without one. Of a stream that was left before either, the report is not final, so that leaving is
never cheaper than staying. Interactions end with `interaction.completed`.

The input is the prompt, which includes what was cached, and the prompts of tool use; the output is the
candidates and the thoughts. Both second parts are counted apart, and the total has them all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from earmark.streams.counts import Counts, items_of, mapping_of, whole
from earmark.streams.reader import Generated, Reader, index_of, text_of
from earmark.usage import Usage

_ENDS: Final = frozenset({"completed", "failed", "cancelled", "incomplete"})


class Gemini(Reader):
    """The reader of generateContent. Names are in camelCase, as on the wire, or in the SDK's snake_case."""

    name: ClassVar[str] = "gemini"
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(
        rb'"(?:candidates"|usage_?[mM]etadata"|finish_?[rR]eason"|block_?[rR]eason"|error")'
    )

    __slots__ = ("_blocked", "_saw_unfinished")

    def __init__(self, expected_choices: int = 1) -> None:
        super().__init__(expected_choices)
        self._blocked = False
        self._saw_unfinished = False

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Take in one chunk, or a whole response."""
        body = _unwrap(payload)
        candidates = items_of(body.get("candidates"))
        reason = None
        for position, candidate in enumerate(candidates):
            fields = mapping_of(candidate)
            given = _either(fields, "finishReason")
            reason = reason or text_of(given)
            self._finish(index_of(fields, position), given)
        if text_of(_either(mapping_of(_either(body, "promptFeedback")), "blockReason")):
            self._blocked = True
        report = mapping_of(_either(body, "usageMetadata"))
        if candidates and reason is None:
            self._saw_unfinished = True
        usage = _snapshot(self.counts, report)
        if usage is not None:
            self._report = usage
            self._final = self._all_finished()
        self._note_error(event, payload)

    def final(self, *, complete: bool) -> bool:
        """Whether the last snapshot came when every expected candidate had finished, and that means something."""
        return super().final(complete=complete) and (complete or self._saw_unfinished)

    @property
    def finished(self) -> bool:
        """Whether the source may stop here: every expected candidate finished, or the prompt was blocked."""
        return self.ended or self._blocked or self._all_finished()

    def _generated(self, event: str | None, payload: Mapping[str, Any]) -> Generated:
        candidates = items_of(_unwrap(payload).get("candidates"))
        return [mapping_of(candidate).get("content") for candidate in candidates]


class Interactions(Reader):
    """The reader of one interaction: running counts in `metadata`, the final ones in the interaction itself."""

    name: ClassVar[str] = "gemini-interactions"
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(
        rb'"(?:usage"\s*:\s*\{|interaction\.complete|error"(?!\s*:\s*null)'
        rb'|status"\s*:\s*"(?:completed|failed|cancelled|incomplete)")'
    )

    __slots__ = ()

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Take in one event, or a whole interaction."""
        body = payload.get("object") == "interaction"
        interaction = payload if body else mapping_of(payload.get("interaction"))
        kind = text_of(payload.get("event_type")) or ""
        status = text_of(interaction.get("status"))
        # A report that comes with the end of the interaction is the last word, whatever follows it.
        terminal = status in _ENDS or kind in ("interaction.completed", "interaction.complete")
        running = mapping_of(payload.get("metadata")).get("usage")
        report = interaction.get("usage") or running or payload.get("usage")
        usage = _interaction_usage(self.counts, mapping_of(report))
        if usage is not None and not self._final:
            self._report = usage
            self._final = terminal
        if terminal:
            self._finish(0, status or "completed")
            self.ended = True
        if interaction.get("error"):
            self._fail(interaction["error"])
        self._note_error(event, payload)

    def _generated(self, event: str | None, payload: Mapping[str, Any]) -> Generated:
        return (payload.get("delta"),)


def _snapshot(counts: Counts, report: Mapping[str, Any]) -> Usage | None:
    """Normalise a `usageMetadata`; None where it has no count."""
    prompt = counts.read(report, "promptTokenCount", "prompt_token_count")
    candidates = counts.read(
        report,
        "candidatesTokenCount",
        "candidates_token_count",
        "responseTokenCount",
        "response_token_count",
    )
    thoughts = counts.read(report, "thoughtsTokenCount", "thoughts_token_count")
    tools = counts.read(report, "toolUsePromptTokenCount", "tool_use_prompt_token_count")
    cached = counts.read(report, "cachedContentTokenCount", "cached_content_token_count")
    total = counts.read(report, "totalTokenCount", "total_token_count")
    return _usage_of(
        prompt=prompt,
        tools=tools,
        output=candidates,
        thoughts=thoughts,
        cached=cached,
        total=total,
    )


def _interaction_usage(counts: Counts, report: Mapping[str, Any]) -> Usage | None:
    """Normalise the usage of an interaction; None where it has no count."""
    prompt = counts.read(report, "total_input_tokens")
    output = counts.read(report, "total_output_tokens")
    thoughts = counts.read(report, "total_thought_tokens", "total_reasoning_tokens")
    tools = counts.read(report, "total_tool_use_tokens")
    cached = counts.read(report, "total_cached_tokens")
    total = counts.read(report, "total_tokens")
    return _usage_of(
        prompt=prompt, tools=tools, output=output, thoughts=thoughts, cached=cached, total=total
    )


def _usage_of(
    *,
    prompt: int | None,
    tools: int | None,
    output: int | None,
    thoughts: int | None,
    cached: int | None,
    total: int | None,
) -> Usage | None:
    counts = (prompt, tools, output, thoughts, cached, total)
    if counts.count(None) == len(counts):
        return None
    return Usage(whole(prompt, tools), whole(output, thoughts), cached, None, thoughts, total)


def _either(fields: Mapping[str, Any], camel: str) -> Any:  # noqa: ANN401 - whatever the provider sent
    """The value under a name of the wire, else under the same in snake_case."""
    value = fields.get(camel)
    return fields.get(_SNAKE[camel]) if value is None else value


_SNAKE: Final = {
    "blockReason": "block_reason",
    "finishReason": "finish_reason",
    "promptFeedback": "prompt_feedback",
    "usageMetadata": "usage_metadata",
}


def _unwrap(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The chunk within Code Assist's envelope, or the payload itself."""
    if "candidates" not in payload and "usageMetadata" not in payload:
        return mapping_of(payload.get("response")) or payload
    return payload
