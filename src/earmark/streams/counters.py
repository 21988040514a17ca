"""Providers that keep plain counters, with no cache to report (Ollama, watsonx), or none at all (Replicate).

**Ollama's** own API counts on the one object that says `done: true`, which ends the stream. `prompt_eval_count` may
be absent: the input is then unknown, not 0.

**watsonx** gives the input on the first event and 0 afterwards, the output as a running count: each field is the
largest that was seen. Final is a report once a stop reason other than `not_finished` was seen; the event of
that reason is the last, but nothing in it says so.

**Replicate** streams text, with the names of the events as its only structure, and has no usage while it streams:
`done` ends the stream, `error` fails it. A prediction that is asked for later has counts in `metrics`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from earmark.streams.counts import items_of, mapping_of
from earmark.streams.reader import Generated, Reader, text_of
from earmark.streams.texts import json_length, length_of
from earmark.usage import Usage


class TwoCounters(Reader):
    """Two counters, of which neither can tell about a cache."""

    __slots__ = ("_input", "_output")

    def __init__(self, expected_choices: int = 1) -> None:
        super().__init__(expected_choices)
        self._input: int | None = None
        self._output: int | None = None

    @property
    def usage(self) -> Usage | None:
        """The counters; where there is no cache, nothing was read from one or written to one."""
        if self._input is None and self._output is None:
            return None
        return Usage(self._input, self._output, 0, 0)

    def final(self, *, complete: bool) -> bool:
        """Whether the answer has finished and its output is counted."""
        return self._all_finished() and self._output is not None


class Ollama(TwoCounters):
    """The reader of `/api/chat` or `/api/generate`, streamed or whole."""

    name: ClassVar[str] = "ollama"
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(rb'"(?:done"\s*:\s*true|error")')

    __slots__ = ()

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Take in one object; only the last has counts."""
        self._note_error(event, payload)
        if payload.get("done") is not True:
            return
        self.ended = True
        self._finish(0, text_of(payload.get("done_reason")) or "stop")
        self._input = self.counts.read(payload, "prompt_eval_count")
        self._output = self.counts.read(payload, "eval_count")

    def _generated(self, event: str | None, payload: Mapping[str, Any]) -> Generated:
        return payload.get("message"), payload.get("response"), payload.get("thinking")


class Watsonx(TwoCounters):
    """The reader of `text/generation` and `text/generation_stream`."""

    name: ClassVar[str] = "watsonx"
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(rb'"(?:results|errors?)"')

    __slots__ = ()

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Take in one event: each count is the largest seen, since later events say that the input was 0."""
        errors = items_of(payload.get("errors"))
        if errors:
            self._fail(errors[0])
        self._note_error(event, payload)
        for result in items_of(payload.get("results")):
            fields = mapping_of(result)
            reason = text_of(fields.get("stop_reason"))
            self._finish(0, None if reason in ("not_finished", "NOT_FINISHED") else reason)
            self._input = _larger(self._input, self.counts.read(fields, "input_token_count"))
            self._output = _larger(self._output, self.counts.read(fields, "generated_token_count"))

    def _generated(self, event: str | None, payload: Mapping[str, Any]) -> Generated:
        results = items_of(payload.get("results"))
        return [mapping_of(result).get("generated_text") for result in results]


class Replicate(TwoCounters):
    """The reader of a prediction: its stream, or the prediction itself."""

    name: ClassVar[str] = "replicate"

    __slots__ = ()

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Take in one event whose data happens to be an object, or a whole prediction."""
        if event == "output":
            return
        self._note_error(event, payload)
        if event == "done":
            self.ended = True
            reason = text_of(payload.get("reason")) or "done"
            self._finish(0, reason)
            if reason == "error":
                self._fail(reason)
        metrics = mapping_of(payload.get("metrics"))
        if event is None and metrics:
            self._finish(0, payload.get("status"))
            self._input = self.counts.read(metrics, "input_token_count")
            self._output = self.counts.read(metrics, "output_token_count")

    def observe_text(self, event: str | None, data: str) -> None:
        """Text is output, whatever it says: only the name of an event ends the stream."""
        if event == "done":
            self.observe(event, {})
        elif event == "error":
            self._fail(data)

    def text_length(self, event: str | None, data: Mapping[str, Any] | str) -> int | None:
        """The characters of an output; one that happens to be JSON has about as many as that has in short form."""
        if event == "output":
            return len(data) if isinstance(data, str) else json_length(data)
        return (
            length_of((data.get("output"),)) if event is None and not isinstance(data, str) else 0
        )


def _larger(old: int | None, new: int | None) -> int | None:
    if old is None or new is None:
        return new if old is None else old
    return max(old, new)
