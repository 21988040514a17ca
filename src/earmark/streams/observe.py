"""`observe_stream`, the way in: what it is given is checked here, before anything is set up."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Final, TypeVar, cast

from anyio.abc import TaskGroup

from earmark.streams.detect import factory
from earmark.streams.dialect import DialectFactory
from earmark.streams.draining import DrainingStream
from earmark.streams.estimating import Estimate
from earmark.streams.hiding import HidingStream
from earmark.streams.observed import Observed, ObservedStream
from earmark.streams.sources import Close
from earmark.streams.telling import OnComplete, Teller
from earmark.streams.watched import WatchedStream
from earmark.streams.watcher import Watcher

__all__ = ["MAX_EVENT", "Observed", "ObservedStream", "observe_stream"]

T = TypeVar("T")

MAX_EVENT: Final = 16 * 1024 * 1024


def observe_stream(
    source: AsyncIterable[T],
    *,
    on_complete: OnComplete,
    dialect: str | DialectFactory | None = None,
    expected_choices: int = 1,
    estimate: Estimate | None = None,
    aclose: Close | None = None,
    complete_timeout: float = 5.0,
    max_event: int = MAX_EVENT,
    hide_usage: bool = False,
    drain: float | None = None,
    task_group: TaskGroup | None = None,
    on_drop: OnComplete | None = None,
) -> ObservedStream[T]:
    """Wrap a stream so that its usage is known when it ends.

    Args:
        source: bytes or text of a body cut anywhere, parsed events as mappings, or an SDK's objects.
        on_complete: called once with what was observed, before the consumer has the item that completes the
            end, or however else the stream ends. Plain or async; an async one is waited for.
        dialect: a dialect's name, or what makes one; None finds it out from the first events.
        expected_choices: how many choices the request asked for (n).
        estimate: asked for a usage where the provider's own last word did not arrive.
        aclose: closes what the source reads from, such as an httpx response's `aclose`; plain or async. The
            source's own `aclose` or `close` is called in any case. All are called in the consumer's task.
        complete_timeout: seconds for which an async `on_complete` is waited for, and then for each thing that is
            closed; `on_complete` goes on by itself afterwards, and a close is cut off.
        max_event: the largest event that is read whole, in bytes; of a larger one the end is searched.
        hide_usage: keep the event that has nothing but the usage from the consumer, and change nothing else.
        drain: seconds for which the source is read on after the consumer has gone, so that the provider's own
            count still arrives; then `aclose()` returns at once, and `on_complete` is called later.
        task_group: where the task that reads runs, if `drain` is given; it must outlive the consumer.
        on_drop: called in place of `on_complete` when the stream is dropped: a plain function that may run
            anywhere, in any thread and inside any lock.

    Raises:
        TypeError: the source cannot be iterated with `async for`, or a callback cannot be called.
        ValueError: a number is out of its range, or no dialect has this name.
        RuntimeError: the task group has ended; nothing is told then, and nothing closed.
    """
    _check_count("expected_choices", expected_choices)
    _check_count("max_event", max_event)
    _check_seconds("complete_timeout", complete_timeout)
    _check_seconds("drain", 1 if drain is None else drain)
    if (drain is None) != (task_group is None):
        msg = (
            "drain and task_group belong together: seconds, and the task group in which to read on"
        )
        raise ValueError(msg)
    _check_functions(on_complete=on_complete)
    _check_functions(optional=True, on_drop=on_drop, estimate=estimate, aclose=aclose)
    made_by = factory(dialect) if isinstance(dialect, str) else dialect
    watcher = Watcher(made_by, expected_choices, max_event, count_text=estimate is not None)
    teller = Teller(on_complete, on_drop, complete_timeout)
    watched = WatchedStream(source, watcher, teller, estimate, aclose)
    stream = (
        watched if drain is None or task_group is None else _draining(watched, drain, task_group)
    )
    return HidingStream(stream, watcher) if hide_usage else stream


def _draining(watched: WatchedStream[T], drain: float, group: TaskGroup) -> ObservedStream[T]:
    try:
        return DrainingStream(watched, drain, group)
    except BaseException:
        watched.disarm()
        raise


def _check_functions(*, optional: bool = False, **given: object) -> None:
    for name, value in given.items():
        if not (callable(value) or (optional and value is None)):
            msg = f"{name} must be a function, not {value!r}"
            raise TypeError(msg)


def _check_count(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        msg = f"{name} must be an integer of at least 1, not {value!r}"
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
