"""What the dialects share: reasons of finishing, in-band errors, and the few events that all know.

A reader takes any JSON at all and never raises: what it does not expect says nothing to it. Its memory does
not grow with the stream: reports are combined as they come, and the choices that it tells apart are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from earmark.streams.counts import Counts, mapping_of
from earmark.usage import Usage

MAX_CHOICES: Final = 1024
_MAX_TEXT: Final = 500


class Reader:
    """The common part of the dialects; see `Dialect` for what the members mean.

    Args:
        expected_choices: how many choices the request asked for (n).

    Attributes:
        reasons: the finish reason of each choice that has finished, by its index.
    """

    name: ClassVar[str] = ""
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(b"")

    __slots__ = ("_expected", "counts", "ended", "error", "reasons")

    def __init__(self, expected_choices: int = 1) -> None:
        self._expected = expected_choices
        self.counts = Counts(self.name)
        self.ended = False
        self.error: str | None = None
        self.reasons: dict[int, str] = {}

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Note an error; what else an event means is the dialect's to say."""
        self._note_error(event, payload)

    def observe_text(self, event: str | None, data: str) -> None:
        """`[DONE]` ends the stream, in whichever dialect a provider or a proxy adds it."""
        if event == "error":
            self._fail(data)
        elif data.strip() == "[DONE]":
            self.ended = True

    def text_length(self, event: str | None, payload: Mapping[str, Any]) -> int:
        """None, unless the dialect knows where its text is."""
        return 0

    def only_usage(self, event: str | None, payload: Mapping[str, Any]) -> bool:
        """No: usage has an event of its own, for those who ask for it, in OpenAI's shape alone."""
        return False

    @property
    def usage(self) -> Usage | None:
        """None, unless the dialect has reports."""
        return None

    @property
    def authoritative(self) -> bool:
        """False, unless the dialect has a final report."""
        return False

    @property
    def may_go_on(self) -> bool:
        """Whether a report that seems final is so only if the source stops here: False, unless the dialect has such."""
        return False

    @property
    def finished(self) -> bool:
        """Whether the source may stop here: after the end, or once every expected choice has finished."""
        return self.ended or self._all_finished()

    def _all_finished(self) -> bool:
        return bool(self.reasons) and len(self.reasons) >= self._expected

    def _finish(self, index: int, reason: object) -> None:
        """Note the finish reason of a choice, where it is one: null, "" and "null" are none."""
        text = text_of(reason)
        if text is None or not 0 <= index < MAX_CHOICES:
            return
        self.reasons[index] = text

    def _note_error(self, event: str | None, payload: Mapping[str, Any]) -> None:
        error = payload.get("error")
        if error:
            self._fail(error)
        elif event == "error" or payload.get("type") == "error" or payload.get("object") == "error":
            self._fail(payload)

    def _fail(self, error: object) -> None:
        """Keep the first error: those that follow are mostly its echoes."""
        if self.error is None:
            self.error = _error_text(error)


def index_of(fields: Mapping[str, Any], position: int) -> int:
    """The index that a choice says it has; where that is no integer, its position in the event."""
    index = fields.get("index")
    return index if type(index) is int else position


def text_of(value: object) -> str | None:
    """`value` if it is a text that says something, cut to a length fit for a log; an enum gives its value."""
    text = getattr(value, "value", value)
    if not isinstance(text, str) or text in ("", "null"):
        return None
    return text[:_MAX_TEXT]


def _error_text(error: object) -> str:
    """The words of an error, whatever its form; never empty."""
    fields = mapping_of(error)
    inner = mapping_of(fields.get("error"))
    for names in (inner, fields):
        for name in ("message", "detail", "code", "type", "status", "reason"):
            text = text_of(names.get(name))
            if text is not None:
                return text
    return text_of(error) or "an error without a message"
