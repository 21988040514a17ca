"""Amazon Bedrock: ConverseStream, and InvokeModelWithResponseStream with each model's native events.

**Converse.** One report, in the `metadata` event, which comes last, after `messageStop`: it is final and ends the
stream. The source may stop after `messageStop`, with no usage known. The input excludes cache reads and writes.

**InvokeModel** wraps native events in `chunk.bytes` and adds `amazon-bedrock-invocationMetrics` to the last one. The
two may disagree (Claude 3.5 with tools); they are never added up. The native report is the usage wherever it is
final by the rules of its own dialect; the metrics stand in for one that is not, and are final themselves. Their
input excludes caches too. Models with counters of their own (Llama, Titan) report the last of each.

Whose events they are is found out from the first of them, and from then on the dialect of those reads the stream:
it is the very reader that reads them without Bedrock, and only takes them out of their envelope first.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from earmark.streams.anthropic import Anthropic
from earmark.streams.counters import TwoCounters
from earmark.streams.counts import Counts, items_of, mapping_of, whole
from earmark.streams.dialect import DialectFactory
from earmark.streams.jsontext import loaded
from earmark.streams.openai import OpenAI
from earmark.streams.reader import Generated, Reader
from earmark.streams.undecided import Undecided
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
_COUNTED: Final = ("generation", "outputText", "inputTextTokenCount")


class Converse(Reader):
    """The events of ConverseStream, which Nova's native stream shares, and Converse's whole response."""

    __slots__ = ()

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Take in one event, or a whole response."""
        self._finish(0, mapping_of(payload.get("messageStop")).get("stopReason"))
        self._finish(0, payload.get("stopReason"))
        report = mapping_of(payload.get("metadata")).get("usage") or payload.get("usage")
        usage = _bedrock_usage(self.counts, mapping_of(report))
        if usage is not None:
            self._report = usage
            self._final = self.ended = True
        self._note_error(event, payload)

    def _generated(self, event: str | None, payload: Mapping[str, Any]) -> Generated:
        said = mapping_of(payload.get("contentBlockDelta"))
        return said.get("delta"), mapping_of(payload.get("output")).get("message")


class Counters(TwoCounters):
    """Native events of models that only keep counters: Llama's and Titan's."""

    __slots__ = ()

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

    def _generated(self, event: str | None, payload: Mapping[str, Any]) -> Generated:
        results = [
            mapping_of(result).get("outputText") for result in items_of(payload.get("results"))
        ]
        return payload.get("generation"), payload.get("outputText"), results


class _Enveloped(Reader):
    """What all streams of Bedrock have, whosever events are in them: envelopes, exceptions and metrics.

    Put before the reader of the native events, which does all else.
    """

    name: ClassVar[str] = "bedrock"
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(
        # With what the native events have outside of a `chunk`, where somebody else has unwrapped them.
        rb'"(?:messageStop"|metadata"|chunk"|usage"|\w+Exception"|error"|message(?:_start|_delta|_stop)?"'
        rb'|(?:prompt|generation)_token_count"|inputTextTokenCount"|stopReason"'
        rb'|(?:stop|finish)_reason"\s*:\s*")'
    )

    def __init__(self, expected_choices: int = 1) -> None:
        super().__init__(expected_choices)
        self._metrics: Usage | None = None

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Take in one event of either stream, or a whole response of Converse."""
        for name in _exceptions(payload):
            self._fail(mapping_of(payload[name]).get("message") or name)
        native = _native(payload)
        super().observe(event, native)
        metrics = mapping_of(native.get(_METRICS))
        if metrics:
            self._metrics = _bedrock_usage(self.counts, metrics)
            self.ended = True

    def only_usage(self, event: str | None, payload: Mapping[str, Any]) -> bool:
        """Whether the native event is there for its usage alone."""
        return super().only_usage(event, _native(payload))

    @property
    def usage(self) -> Usage | None:
        """The native report where it is final, else the metrics, else what the native events said."""
        native = super().usage
        return native if super().final(complete=True) else self._metrics or native

    def final(self, *, complete: bool) -> bool:
        """Whether one of the two sources has given its final report."""
        if super().final(complete=complete):
            return True
        return self._metrics is not None and self._metrics.output_tokens is not None

    def _generated(self, event: str | None, payload: Mapping[str, Any]) -> Generated:
        if _exceptions(payload):
            return ()
        native = _native(payload)
        return super()._generated(event, native) if native else None


class _Converse(_Enveloped, Converse):
    pass


class _OpenAI(_Enveloped, OpenAI):
    pass


class _Counters(_Enveloped, Counters):
    pass


class _Anthropic(_Enveloped, Anthropic):
    pass


class _Unknown(_Enveloped):
    """Of a model that nobody knows: its metrics count all the same."""


class Bedrock(Undecided):
    """A stream of either API, of which it is not known yet whose events are in it."""

    name: ClassVar[str] = "bedrock"

    __slots__ = ()

    def __init__(self, expected_choices: int = 1) -> None:
        super().__init__(_reader_of, _Unknown)


def _reader_of(event: str | None, data: Mapping[str, Any] | str) -> DialectFactory | None:  # noqa: ARG001 - names say nothing here
    """The dialect of the native events; None where this one does not tell, as an error does not."""
    native: Mapping[str, Any] = {} if isinstance(data, str) else _native(data)
    if any(name in native for name in _CONVERSE):
        return _Converse
    if "choices" in native:
        return _OpenAI
    if any(name in native for name in _COUNTED):
        return _Counters
    if isinstance(native.get("type"), str) or "completion" in native:
        return _Anthropic
    return _Unknown if _METRICS in native else None


def _exceptions(payload: Mapping[str, Any]) -> list[str]:
    return [name for name in payload if name.endswith("Exception")]


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
