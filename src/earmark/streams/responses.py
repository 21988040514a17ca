"""OpenAI's Responses, from OpenAI, xAI, OpenRouter or Bedrock's mantle, and its runs of Assistants.

**Responses.** The usage is on the event that ends the response: `response.completed`, `response.incomplete` or
`response.failed`, where it may be null or all zeros. Earlier events carry `usage: null`; a count there is only a
report on the way. The type within the event decides, since not everyone names events. The terminal event ends
the stream: OpenAI sends no `[DONE]`, and one that OpenRouter adds changes nothing. Cached tokens are inside the
input and reasoning inside the output, at xAI too.

**Assistants.** Each step that has completed reports its own usage, and the run their sum: two scopes. The run's
report is the usage, and final. Until it comes the steps are added up, since each step is a part of the run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from earmark.streams.counts import mapping_of, says_output, whole
from earmark.streams.openai import usage_of
from earmark.streams.reader import Generated, Reader, text_of
from earmark.usage import Usage

_RESPONSE_ENDS: Final = frozenset({"completed", "incomplete", "failed", "cancelled", "done"})
_RUN_ENDS: Final = frozenset({"completed", "incomplete", "failed", "cancelled", "expired"})


class Responses(Reader):
    """The reader of one response, streamed or whole."""

    name: ClassVar[str] = "openai-responses"
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(
        rb'"(?:response\.(?:completed|incomplete|failed|cancelled|done)"'
        rb'|usage"\s*:\s*\{|object"\s*:\s*"response"|error"(?!\s*:\s*null))'
    )

    __slots__ = ()

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Take in one event, or a whole response."""
        kind = payload.get("type")
        if not isinstance(kind, str):
            kind = ""
        elif kind.endswith(".delta"):
            return
        whole_body = payload.get("object") == "response"
        response = payload if whole_body else mapping_of(payload.get("response"))
        status = text_of(response.get("status"))
        if whole_body:
            terminal = status in _RESPONSE_ENDS
        else:
            prefix, _, name = kind.partition(".")
            terminal = prefix == "response" and name in _RESPONSE_ENDS
            status = status or name
        report = response.get("usage") or payload.get("usage")
        usage = usage_of(self.counts, mapping_of(report), payload)
        if usage is not None:
            self._report = usage
            self._final = self._final or terminal
        if terminal:
            self._finish(0, status)
            self.ended = True
        if response.get("error"):
            self._fail(response["error"])
        self._note_error(event, payload)

    def _generated(self, event: str | None, payload: Mapping[str, Any]) -> Generated:
        """A delta of any kind but audio, which is encoded bytes."""
        kind = text_of(payload.get("type")) or event or ""
        said = kind.endswith(".delta") and not kind.endswith("audio.delta")
        return (payload.get("delta"),) if said else ()


class Assistants(Reader):
    """The reader of one run."""

    name: ClassVar[str] = "openai-assistants"
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(
        rb'"(?:usage"\s*:\s*\{|object"\s*:\s*"thread\.run"|error"(?!\s*:\s*null))'
    )

    __slots__ = ("_last_step", "_run", "_steps")

    def __init__(self, expected_choices: int = 1) -> None:
        super().__init__(expected_choices)
        self._run: Usage | None = None
        self._steps: Usage | None = None
        self._last_step: object = None

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Take in one event, or a whole run; each is an object that says whether it is a run or a step."""
        usage = usage_of(self.counts, mapping_of(payload.get("usage")), payload)
        scope = payload.get("object")
        if scope == "thread.run":
            status = text_of(payload.get("status"))
            if status in _RUN_ENDS:
                self._run = usage
                self.ended = True
                self._finish(0, status)
            elif status == "requires_action":
                self._finish(0, status)
            if payload.get("last_error"):
                self._fail(payload["last_error"])
        elif (
            scope == "thread.run.step"
            and usage is not None
            and payload.get("id") != self._last_step
        ):
            self._last_step = payload.get("id")
            self._steps = _added(self._steps, usage)
        self._note_error(event, payload)

    @property
    def usage(self) -> Usage | None:
        """The run's report, else the sum of the steps that have completed."""
        return self._run or self._steps

    def final(self, *, complete: bool) -> bool:
        """Whether the run reported."""
        return self._run is not None and says_output(self._run)

    def _generated(self, event: str | None, payload: Mapping[str, Any]) -> Generated:
        said = payload.get("object") in ("thread.message.delta", "thread.run.step.delta")
        return (payload.get("delta"),) if said else ()


def _added(old: Usage | None, new: Usage) -> Usage:
    """Two steps of a run together; a field that one of them does not know is unknown."""
    if old is None:
        return new

    def both(name: str) -> int | None:
        other: int | None = getattr(new, name)
        return None if other is None else whole(getattr(old, name), other)

    return Usage(**{name: both(name) for name in Usage.__slots__})
