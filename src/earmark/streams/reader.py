"""What the dialects share: reasons of finishing, in-band errors, and the few events that all know.

A reader takes any JSON at all and never raises: what it does not expect says nothing to it. Its memory does
not grow with the stream: reports are combined as they come, and the choices that it tells apart are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from earmark.streams.counts import Counts, mapping_of, says_output
from earmark.streams.texts import length_of
from earmark.usage import Usage

Generated = Iterable[object] | None
"""The parts of an event in which its model speaks, see `texts`; None where a dialect cannot tell."""

MAX_CHOICES: Final = 1024
_MAX_TEXT: Final = 500


class Reader:
    """The common part of the dialects; see `Dialect` for what the members mean.

    Of a dialect that has its usage in one report this holds the latest, and whether that one is the last.

    Args:
        expected_choices: how many choices the request asked for (n).

    Attributes:
        reasons: the finish reason of each choice that has finished, by its index.
    """

    name: ClassVar[str] = ""
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(b"")

    __slots__ = ("_expected", "_final", "_report", "counts", "ended", "error", "reasons")

    def __init__(self, expected_choices: int = 1) -> None:
        self._expected = expected_choices
        self._report: Usage | None = None
        self._final = False
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

    def text_length(self, event: str | None, data: Mapping[str, Any] | str) -> int | None:
        """The characters of what was generated; text is no part of most dialects, so nobody can tell what it is."""
        if isinstance(data, str):
            return 0 if event == "error" or data.strip() in ("", "[DONE]") else None
        generated = self._generated(event, data)
        return None if generated is None else length_of(generated)

    def _generated(self, event: str | None, payload: Mapping[str, Any]) -> Generated:
        """Where in an event the model speaks, see `texts`. None where the dialect does not know, but for an error."""
        return () if self._is_error(event, payload) else None

    def only_usage(self, event: str | None, payload: Mapping[str, Any]) -> bool:
        """No: usage has an event of its own, for those who ask for it, in OpenAI's shape alone."""
        return False

    @property
    def usage(self) -> Usage | None:
        """The latest report."""
        return self._report

    def final(self, *, complete: bool) -> bool:
        """Whether the last report is there, and says something about the output."""
        return self._final and self._report is not None and says_output(self._report)

    @property
    def finished(self) -> bool:
        """Whether the source may stop here: after the end, or once every expected choice has finished."""
        return self.ended or self._all_finished()

    def _all_finished(self) -> bool:
        return bool(self.reasons) and len(self.reasons) >= self._expected

    def _finish(self, index: int, reason: object) -> bool:
        """Note the finish reason of a choice; True where it is one: null, "" and "null" are none."""
        text = text_of(reason)
        if text is None:
            return False
        if 0 <= index < MAX_CHOICES:
            self.reasons[index] = text
        return True

    def _note_error(self, event: str | None, payload: Mapping[str, Any]) -> None:
        if self._is_error(event, payload):
            self._fail(payload.get("error") or payload)

    def _is_error(self, event: str | None, payload: Mapping[str, Any]) -> bool:
        return bool(
            payload.get("error")
            or event == "error"
            or payload.get("type") == "error"
            or payload.get("object") == "error"
        )

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
    text = value if value is None or type(value) is str else getattr(value, "value", value)
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
