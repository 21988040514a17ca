"""What may be chosen for a stream: one record, for `observe_stream` and for a reservation's stream alike.

Both take these by name and hand them on as they are, so that neither can forget one.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from typing import Final, TypedDict, cast

from anyio.abc import TaskGroup

from earmark.streams.dialect import DialectFactory
from earmark.streams.estimating import Estimate
from earmark.streams.sources import Close

MAX_EVENT: Final = 16 * 1024 * 1024


class StreamOptions(TypedDict, total=False):
    """The options as a caller names them; `Options` says what each is."""

    dialect: str | DialectFactory | None
    expected_choices: int
    estimate: Estimate | None
    aclose: Close | None
    complete_timeout: float
    max_event: int
    hide_usage: bool
    drain: float | None
    task_group: TaskGroup | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one stream, checked.

    Attributes:
        dialect: a dialect's name, or what makes one; None finds it out from the first events.
        expected_choices: how many choices the request asked for (n).
        estimate: asked for a usage where the provider's own last word did not arrive.
        aclose: closes what the source reads from.
        complete_timeout: seconds for which telling is waited for, and then each thing that is closed.
        max_event: the largest event that is read whole, in bytes; of a larger one the end is searched.
        hide_usage: keep the event that has nothing but the usage from the consumer.
        drain: seconds for which the source is read on after the consumer has gone.
        task_group: where the task that reads runs, if `drain` is given.

    Raises:
        TypeError: a function is none, or an option has no such name.
        ValueError: a number is out of its range.
    """

    dialect: str | DialectFactory | None = None
    expected_choices: int = 1
    estimate: Estimate | None = None
    aclose: Close | None = None
    complete_timeout: float = 5.0
    max_event: int = MAX_EVENT
    hide_usage: bool = False
    drain: float | None = None
    task_group: TaskGroup | None = None

    def __post_init__(self) -> None:
        _check_count("expected_choices", self.expected_choices)
        _check_count("max_event", self.max_event)
        _check_seconds("complete_timeout", self.complete_timeout)
        if self.drain is not None:
            _check_seconds("drain", self.drain)
        for name in ("estimate", "aclose"):
            value: object = getattr(self, name)
            if value is not None:
                check_function(name, value)


def options_of(call: str, given: StreamOptions) -> Options:
    """The options that a call was given.

    Raises:
        TypeError: one has a name that is none; the message names the call. Else as `Options`.
    """
    if not given:
        return _DEFAULTS
    for name in given:
        if name not in _NAMES:
            close = difflib.get_close_matches(name, _NAMES, 1)
            meant = f": did you mean {close[0]!r}? It" if close else "; it"
            msg = f"{call} takes no option {name!r}{meant} takes {', '.join(_NAMES)}"
            raise TypeError(msg)
    return Options(**given)


_NAMES: Final = tuple(field.name for field in fields(Options))


def check_function(name: str, value: object) -> None:
    """Raise TypeError where `value` cannot be called."""
    if not callable(value):
        msg = f"{name} must be a function, not {value!r}"
        raise TypeError(msg)


def _check_count(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        msg = f"{name} must be an integer of at least 1, not {_shown(value)}"
        raise ValueError(msg)


def _check_seconds(name: str, value: object) -> None:
    try:
        # A float of it is what deadlines are made of: an int may be too large for one.
        good = type(value) in (int, float) and float(cast("float", value)) > 0
    except OverflowError:
        good = False
    if not good:
        msg = f"{name} must be a number of seconds above 0, not {_shown(value)}"
        raise ValueError(msg)


def _shown(value: object) -> str:
    """The value for a message: an int of thousands of digits has no text."""
    try:
        return repr(value)
    except ValueError:
        return "a number of more digits than can be shown"


_DEFAULTS: Final = Options()
