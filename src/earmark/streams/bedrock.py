"""Amazon Bedrock: ConverseStream, and InvokeModelWithResponseStream with each model's native events.

**Converse.** One report, in the `metadata` event, which comes last, after `messageStop`: it is final and ends the
stream. The source may stop after `messageStop`, with no usage known. The input excludes cache reads and writes.

**InvokeModel** wraps native events in `chunk.bytes` and adds `amazon-bedrock-invocationMetrics` to the last one. The
two may disagree (Claude 3.5 with tools); they are never added up. The native report is the usage wherever it is
final by the rules of its own dialect; the metrics stand in for one that is not, and are final themselves. Their
input excludes caches too. Models with counters of their own (Llama, Titan) report the last of each.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from earmark.streams.anthropic import Anthropic
from earmark.streams.counts import Counts, items_of, length_of, mapping_of, whole
from earmark.streams.jsontext import loaded
from earmark.streams.openai import OpenAI
from earmark.streams.reader import Reader
from earmark.usage import Usage

_METRICS: Final = "amazon-bedrock-invocationMetrics"
_CONVERSE: Final = (
    "messageStart",
    "contentBlockStart",
    "contentBlockDelta",
    "contentBlockStop",
    "messageStop",
    "metadata",
    "output",
)


class Bedrock(Reader):
    """The reader of either API: an event with a `chunk` is one of InvokeModel."""

    name: ClassVar[str] = "bedrock"
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(
        # With what the native events have outside of a `chunk`, where somebody else has unwrapped them.
        rb'"(?:messageStop"|metadata"|chunk"|usage"|\w+Exception"|error"|message(?:_start|_delta|_stop)?"'
        rb'|(?:prompt|generation)_token_count"|inputTextTokenCount"|results"|stopReason"'
        rb'|(?:stop|finish)_reason"\s*:\s*")'
    )

    __slots__ = ("_inner", "_metrics")

    def __init__(self, expected_choices: int = 1) -> None:
        super().__init__(expected_choices)
        self._inner: Reader | None = None
        self._metrics: Usage | None = None

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Take in one event of either stream, or a whole response of Converse."""
        self._note_exception(payload)
        native = _native(payload)
        if native is payload:
            self._note_error(event, payload)
        if not native:
            return
        if self._inner is None:
            self._inner = _reader_of(native, self._expected)
        if self._inner is not None:
            self._inner.observe(event, native)
            self.reasons = self._inner.reasons
            self.error = self.error or self._inner.error
            self.ended = self.ended or self._inner.ended
        metrics = mapping_of(native.get(_METRICS))
        if metrics:
            self._metrics = _bedrock_usage(self.counts, metrics)
            self.ended = True

    def _note_exception(self, payload: Mapping[str, Any]) -> None:
        for name, value in payload.items():
            if name.endswith("Exception"):
                self._fail(mapping_of(value).get("message") or name)

    @property
    def usage(self) -> Usage | None:
        """The native report where it is final, else the metrics, else what the native events said."""
        native = self._inner.usage if self._inner is not None else None
        if self._inner is not None and self._inner.authoritative:
            return native
        return self._metrics or native

    @property
    def authoritative(self) -> bool:
        """True once one of the two sources has given its final report."""
        if self._inner is not None and self._inner.authoritative:
            return True
        return self._metrics is not None and self._metrics.output_tokens is not None

    @property
    def finished(self) -> bool:
        """Whether the source may stop here, by the native events' own rules."""
        return self.ended or (self._inner is not None and self._inner.finished)

    def text_length(self, event: str | None, payload: Mapping[str, Any]) -> int:
        """What the native dialect counts."""
        native = _native(payload)
        inner = self._inner or _reader_of(native, self._expected)
        return inner.text_length(event, native) if inner is not None else 0


class Converse(Reader):
    """The events of ConverseStream, which Nova's native stream shares, and Converse's whole response."""

    name: ClassVar[str] = "bedrock"

    __slots__ = ("_report",)

    def __init__(self, expected_choices: int = 1) -> None:
        super().__init__(expected_choices)
        self._report: Usage | None = None

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Take in one event, or a whole response."""
        self._finish(0, mapping_of(payload.get("messageStop")).get("stopReason"))
        self._finish(0, payload.get("stopReason"))
        report = mapping_of(payload.get("metadata")).get("usage") or payload.get("usage")
        usage = _bedrock_usage(self.counts, mapping_of(report))
        if usage is not None:
            self._report = usage
            self.ended = True
        self._note_error(event, payload)

    @property
    def usage(self) -> Usage | None:
        """The one report."""
        return self._report

    @property
    def authoritative(self) -> bool:
        """True once the report is there, and says what came out."""
        return self._report is not None and self._report.output_tokens is not None

    def text_length(self, event: str | None, payload: Mapping[str, Any]) -> int:
        """The characters of text, of tool input and of reasoning."""
        delta = mapping_of(mapping_of(payload.get("contentBlockDelta")).get("delta"))
        return (
            length_of(delta.get("text"))
            + length_of(mapping_of(delta.get("toolUse")).get("input"))
            + length_of(mapping_of(delta.get("reasoningContent")).get("text"))
        )


class Counters(Reader):
    """Native events of models that only keep counters: Llama's and Titan's."""

    name: ClassVar[str] = "bedrock"

    __slots__ = ("_input", "_output")

    def __init__(self, expected_choices: int = 1) -> None:
        super().__init__(expected_choices)
        self._input: int | None = None
        self._output: int | None = None

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Take in one event, or a whole response; Titan's has its output in a list of results."""
        results = items_of(payload.get("results"))
        for fields in (payload, *(mapping_of(result) for result in results)):
            self._finish(0, fields.get("stop_reason") or fields.get("completionReason"))
            read = self.counts.read(fields, "prompt_token_count", "inputTextTokenCount")
            self._input = self._input if read is None else read
            made = self.counts.read(
                fields, "generation_token_count", "totalOutputTextTokenCount", "tokenCount"
            )
            self._output = self._output if made is None else made
        self._note_error(event, payload)

    @property
    def usage(self) -> Usage | None:
        """The last of each counter. These models have no cache, so nothing was read from one."""
        if self._input is None and self._output is None:
            return None
        return Usage(self._input, self._output, 0, 0)

    @property
    def authoritative(self) -> bool:
        """True once the model has finished and its output is counted."""
        return self._all_finished() and self._output is not None

    def text_length(self, event: str | None, payload: Mapping[str, Any]) -> int:
        """The characters of what was generated."""
        return length_of(payload.get("generation")) + length_of(payload.get("outputText"))


def _reader_of(native: Mapping[str, Any], expected_choices: int) -> Reader | None:
    """The dialect of the native events; None where this one does not tell, as an error does not."""
    if any(name in native for name in _CONVERSE):
        return Converse(expected_choices)
    if "choices" in native:
        return OpenAI(expected_choices)
    if "generation" in native or "outputText" in native or "inputTextTokenCount" in native:
        return Counters(expected_choices)
    if isinstance(native.get("type"), str) or "completion" in native:
        return Anthropic(expected_choices)
    return None


def _bedrock_usage(counts: Counts, report: Mapping[str, Any]) -> Usage | None:
    """Normalise `usage` or the invocation metrics; None where there is no count."""
    read = counts.read(report, "inputTokens", "inputTokenCount")
    made = counts.read(report, "outputTokens", "outputTokenCount")
    cached = counts.read(report, "cacheReadInputTokens", "cacheReadInputTokenCount")
    written = counts.read(report, "cacheWriteInputTokens", "cacheWriteInputTokenCount")
    total = counts.read(report, "totalTokens")
    if all(count is None for count in (read, made, cached, written, total)):
        return None
    return Usage(whole(read, cached, written), made, cached, written, None, total)


def _native(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The event of a model within an event of InvokeModel, or the event itself."""
    if "chunk" not in payload or any(name in payload for name in _CONVERSE):
        return payload
    return _decode(payload["chunk"])


def _decode(chunk: object) -> Mapping[str, Any]:
    """The native event of a `chunk`: boto3 has decoded its bytes, the wire has them in base64."""
    fields = mapping_of(chunk)
    raw = fields.get("bytes")
    if raw is None:
        return fields
    try:
        if isinstance(raw, str):
            raw = base64.b64decode(raw)
        return mapping_of(loaded(raw)) if isinstance(raw, (bytes, bytearray)) else {}
    except (binascii.Error, ValueError, RecursionError):
        return {}
