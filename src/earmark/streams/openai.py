"""OpenAI's Chat Completions and legacy Completions, and the many providers that follow their shape.

Where the usage is differs: null on every chunk and then on one with `choices: []` (OpenAI, Azure, vLLM,
xAI), on the chunk with the finish reason (Mistral, DeepSeek, Together, Z.ai, GPUStack, Cerebras), on a
second finish chunk (OpenRouter), on every chunk as a running count (Perplexity, vLLM's continuous usage),
in `x_groq.usage` up to three times over (Groq), within `choices[]` (Moonshot). It is looked for in every
chunk, also in those without choices (C40), and its place says whether it is final.

**Combining.** `OpenAI` takes the last report that has a count. `OpenAICompatible`, for a stream that only has
the shape, takes the one with the largest total (B33). Never are reports of one choice added up. In one chunk
the top-level report comes before `x_groq`, and that before `choices[]`. A report of zeros or nulls never
replaces one with counts. With n > 1 a report on a chunk of one choice is that choice's: input and cached
tokens are the largest of the choices, output and reasoning the sum (B37); a report on a chunk of no choice,
or of several, covers all of them.

**Final** is a report that says something about the output and comes when every expected choice has finished
(B38), or with `choices: []`, where the provider never gives a finish reason (Snowflake). But a running count may
come like that as well: with `choices: []` each time, or from a provider that gives a finish reason with every
chunk. So where nothing but an empty chunk makes a report final, or where none came apart from a finish reason, it
is final only if the stream was read to `[DONE]` or to its end: leaving is never cheaper than staying.

`[DONE]` ends the stream. Without it (GPUStack, Perplexity, the SDKs, which swallow it) a source may stop once every
expected choice has finished, unless a `"usage": null` beside a finish reason has announced a report that did not
come: on other chunks it says no more, and is not looked for. In legacy completions that null announces nothing:
vLLM always sends it.

**Reasoning** is inside the completion, unless the total says that it is not (xAI), or it is larger than the
completion and no total contradicts, or the provider is known to leave it out: Vercel's gateway with Gemini, where
neither the completion nor the total has it, and Perplexity, whose reasoning count stands beside the completion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, cast

from earmark.amounts import MAX_AMOUNT
from earmark.streams.counts import (
    Counts,
    items_of,
    mapping_of,
    says_output,
    total_of,
    whole,
)
from earmark.streams.reader import MAX_CHOICES, Generated, Reader, index_of
from earmark.streams.salvage import CUT
from earmark.streams.texts import length_of
from earmark.usage import Usage

_INPUT_DETAILS: Final = (
    "prompt_tokens_details",
    "input_tokens_details",
    "prompt_token_details",
    "input_token_details",
)
_REASONING: Final = ("reasoning_content", "reasoning", "reasoning_details")
_ABSENT: Final = object()
_OUTPUT_DETAILS: Final = ("completion_tokens_details", "output_tokens_details")
_NO_COUNT: Final = (None,) * 6


class OpenAI(Reader):
    """OpenAI and who does exactly as OpenAI does: the last report counts."""

    name: ClassVar[str] = "openai"
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(
        rb'"(?:usage"\s*:\s*\{|finish_reason"\s*:\s*"|error"\s*(?::\s*[^\sn]|[,}]))'
    )

    __slots__ = (
        "_after_finish",
        "_announced",
        "_by_choice",
        "_on_empty",
        "_reported_apart",
        "_whole",
    )

    def __init__(self, expected_choices: int = 1) -> None:
        super().__init__(expected_choices)
        self._whole: Usage | None = None
        self._by_choice: dict[int, Usage] = {}
        self._announced = False
        self._after_finish = False
        self._on_empty = False
        self._reported_apart = False

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Take in one chunk, or a whole response: they differ in `delta` and `message` alone."""
        if event is None and _only_speaks(payload):
            return
        choices = items_of(payload.get("choices"))
        finishes = False
        for position, choice in enumerate(choices):
            fields = mapping_of(choice)
            if fields.get("error"):
                self._fail(fields["error"])
            index = index_of(fields, position)
            finishes = self._finish(index, fields.get("finish_reason")) or finishes
        self._note_error(event, payload)
        # These say something only beside what the trigger finds: it does not find them, and they are not worth it.
        usage = payload.get("usage", _ABSENT)
        shape = payload.get("object")
        if shape == "chat.completion.done" and (finishes or isinstance(usage, Mapping)):
            self.ended = True
        if usage is None and finishes and shape != "text_completion":
            self._announced = True
        if self._see_reports(payload, choices) and not finishes:
            # On a chunk that goes on, or once all have finished: a finish reason is not what every report comes with.
            self._reported_apart = self._reported_apart or bool(choices) or self._all_finished()

    def _see_reports(self, payload: Mapping[str, Any], choices: Sequence[Any]) -> bool:
        """Take in the reports of a chunk; True where it has one."""
        report = self._read(payload.get("usage"), payload)
        if report is None and "x_groq" in payload:
            report = self._read(mapping_of(payload["x_groq"]).get("usage"), payload)
        if report is not None:
            if len(choices) == 1:
                self._take(report, index_of(mapping_of(choices[0]), 0))
            else:
                self._take(report, None)
                self._on_empty = self._on_empty or not choices
            return True
        found = False
        for position, choice in enumerate(choices):
            fields = mapping_of(choice)
            report = self._read(fields.get("usage"), payload)
            if report is not None:
                self._take(report, index_of(fields, position))
                found = True
        return found

    def _read(self, value: object, payload: Mapping[str, Any]) -> Usage | None:
        report = mapping_of(value) if value else None
        return usage_of(self.counts, report, payload) if report else None

    def _take(self, report: Usage, index: int | None) -> None:
        """Let a report in, for one choice or (index None) for all of them."""
        self._after_finish = self._after_finish or (self._all_finished() and says_output(report))
        if index is None:
            if self._counts_more(report, self._whole):
                self._whole = report
        elif 0 <= index < MAX_CHOICES and self._counts_more(report, self._by_choice.get(index)):
            self._by_choice[index] = report
            if self._whole is not None and self._counts_more(report, self._whole):
                self._whole = None

    def _counts_more(self, new: Usage, old: Usage | None) -> bool:
        """Whether a report takes the place of an earlier one."""
        return old is None or total_of(new) > 0 or total_of(old) == 0

    @property
    def usage(self) -> Usage | None:
        """The report that covers all choices, else what those of the single choices come to."""
        return self._reported()

    def _reported(self) -> Usage | None:
        if self._whole is None:
            return combine(list(self._by_choice.values())) if self._by_choice else None
        alone = next(iter(self._by_choice.values())) if len(self._by_choice) == 1 else None
        if alone is not None and not self._counts_more(self._whole, alone):
            return alone
        return self._whole

    def final(self, *, complete: bool) -> bool:
        """Whether the final report arrived, see the head of this module."""
        usage = self._reported()
        if usage is None or not says_output(usage):
            return False
        if self._whole is None and len(self._by_choice) < self._expected:
            return False  # some choice has not said what it came to
        if self._after_finish:
            return complete or self._reported_apart
        # Before the finish, or where there is none, only a count above zero can be the last word.
        settled = self._all_finished() or self._expected == 1
        return complete and self._on_empty and settled and bool(usage.output_tokens)

    @property
    def finished(self) -> bool:
        """Whether the source may stop here, see the head of this module."""
        if self.ended or self.final(complete=True):
            return True
        return self._all_finished() and not self._announced

    def text_length(self, event: str | None, data: Mapping[str, Any] | str) -> int | None:
        """The characters of what was generated; of a piece of one text, as most chunks are, without further calls."""
        try:
            (choice,) = cast("Mapping[str, Any]", data)["choices"]
            said = choice["delta"]
            text = said["content"]
            if type(text) is str and len(said) == 1 and "text" not in choice:
                return len(text)
        except (KeyError, TypeError, ValueError):
            pass  # it is another
        return super().text_length(event, data)

    def _generated(self, event: str | None, payload: Mapping[str, Any]) -> Generated:
        found: list[object] = []
        for choice in items_of(payload.get("choices")):
            fields = mapping_of(choice)
            # Perplexity repeats the whole message beside each delta.
            said = fields.get("delta") or fields.get("message")
            parts = mapping_of(said)
            # What is no object is no less measured: it may be what was cut.
            found += (_said_once(parts) if parts else said, fields.get("text"))
        return found

    def only_usage(self, event: str | None, payload: Mapping[str, Any]) -> bool:
        """A chunk without choices that has a report, and nothing else to say: Azure's filter has no report."""
        choices = payload.get("choices")
        return (
            isinstance(choices, list)
            and not choices
            and bool(mapping_of(payload.get("usage")))
            and not payload.get("error")
        )


class OpenAICompatible(OpenAI):
    """A stream that has OpenAI's shape, from whomever: the report with the largest total counts (B33)."""

    name: ClassVar[str] = "openai-compatible"

    __slots__ = ()

    def _counts_more(self, new: Usage, old: Usage | None) -> bool:
        """Whether a report comes to more, or to as much while it knows as many of the fields."""
        if old is None:
            return True
        ours, theirs = total_of(new), total_of(old)
        return ours > theirs or (ours == theirs and _known(new) >= _known(old))


class Unknown(OpenAICompatible):
    """A stream that never said whose it is: of what has no choices nobody can tell whether it is text."""

    __slots__ = ()

    def _generated(self, event: str | None, payload: Mapping[str, Any]) -> Generated:
        known = "choices" in payload or mapping_of(payload.get("usage"))
        if known or self._is_error(event, payload):
            return super()._generated(event, payload)
        return None


def usage_of(counts: Counts, report: Mapping[str, Any], payload: Mapping[str, Any]) -> Usage | None:
    """Normalise a report of OpenAI's shape; None where it has no count at all.

    `payload` is the event that the report came with, which may tell whose it is.
    """
    read = counts.read
    inputs = _details(report, _INPUT_DETAILS)
    outputs = _details(report, _OUTPUT_DETAILS)
    prompt = read(report, "prompt_tokens", "input_tokens")
    completion = read(report, "completion_tokens", "output_tokens")
    if completion is None and payload.get("object") == "list":
        completion = 0  # embeddings: nothing is generated, so nothing is said about it
    total = read(report, "total_tokens")
    cached = read(inputs, "cached_tokens") if inputs else None
    if cached is None:
        cached = read(
            report,
            "prompt_cache_hit_tokens",
            "cached_tokens",
            "num_cached_tokens",
            "cache_read_input_tokens",
        )
    written = read(inputs, "cache_write_tokens", "cache_creation_tokens") if inputs else None
    if written is None:
        written = read(report, "cache_creation_input_tokens", "cache_write_tokens")
    inside = read(outputs, "reasoning_tokens") if outputs else None
    beside = read(report, "reasoning_tokens") if inside is None else None
    reasoning = beside if inside is None else inside
    if (prompt, completion, cached, written, reasoning, total) == _NO_COUNT:
        return None
    usage = Usage(prompt, completion, cached, written, reasoning, total)
    if completion is not None and reasoning:
        apart = (
            _total_says_apart(prompt, completion, reasoning, total)
            or (beside is not None and reasoning > completion)
            or _vercel_leaves_out(payload, completion, reasoning)
        )
        if apart:
            return replace(usage, output_tokens=whole(completion, reasoning))
    return usage


def _total_says_apart(
    prompt: int | None, completion: int, reasoning: int, total: int | None
) -> bool:
    """Whether the completion leaves the reasoning out, as far as the numbers tell."""
    if prompt is None or total is None:
        return reasoning > completion
    if total == prompt + completion:
        return False
    return total == prompt + completion + reasoning or reasoning > completion


def _vercel_leaves_out(payload: Mapping[str, Any], completion: int, reasoning: int) -> bool:
    """Whether Vercel's gateway, which alone sends a `generationId`, repeats Gemini's counts as they are."""
    if not isinstance(payload.get("generationId"), str):
        return False
    if reasoning > completion:
        return True
    for choice in items_of(payload.get("choices")):
        fields = mapping_of(choice)
        metadata = mapping_of(fields.get("delta") or fields.get("message")).get("provider_metadata")
        gemini = mapping_of(mapping_of(mapping_of(metadata).get("google")).get("usageMetadata"))
        if (gemini.get("candidatesTokenCount"), gemini.get("thoughtsTokenCount")) == (
            completion,
            reasoning,
        ):
            return True
    return False


def _details(report: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    for name in names:
        value = report.get(name)
        if value and (details := mapping_of(value)):
            return details
    return {}


def _known(usage: Usage) -> int:
    return sum(getattr(usage, name) is not None for name in Usage.__slots__)


def combine(reports: Sequence[Usage]) -> Usage:
    """What the reports of several choices come to (B37): they read one input, and each has its own output."""
    if len(reports) == 1:
        return reports[0]
    return Usage(
        input_tokens=_largest([report.input_tokens for report in reports]),
        output_tokens=_sum([report.output_tokens for report in reports]),
        cached_input_tokens=_largest([report.cached_input_tokens for report in reports]),
        cache_write_tokens=_largest([report.cache_write_tokens for report in reports]),
        reasoning_tokens=_sum([report.reasoning_tokens for report in reports]),
    )


def _largest(counts: Sequence[int | None]) -> int | None:
    return max((count for count in counts if count is not None), default=None)


def _sum(counts: Sequence[int | None]) -> int | None:
    """The sum, or None where one is unknown: what is left out would pass for nothing (C35)."""
    known = [count for count in counts if count is not None]
    return min(sum(known), MAX_AMOUNT) if len(known) == len(counts) else None


def _said_once(said: Mapping[str, Any]) -> object:
    """What a choice says, with its reasoning under one name: some providers send it under two or three."""
    names = [name for name in _REASONING if said.get(name)]
    if len(names) <= 1:
        return said
    lengths = {name: length_of((said[name],)) for name in names}
    if None in lengths.values():
        return CUT
    longest = max(names, key=lambda name: lengths[name] or 0)
    return {name: said[name] for name in said if name == longest or name not in names}


def _only_speaks(payload: Mapping[str, Any]) -> bool:
    """Whether a chunk is the most common one, a piece of one choice's text, which says nothing here."""
    choices = items_of(payload.get("choices"))
    if len(choices) != 1 or payload.get("usage") or "error" in payload or "x_groq" in payload:
        return False
    fields = mapping_of(choices[0])
    return fields.get("finish_reason") is None and "usage" not in fields and "error" not in fields
