"""`observe_stream`, the way in: what it is given is checked here, before anything is set up."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from functools import partial
from typing import TypeVar, Unpack

from earmark.streams.detect import factory
from earmark.streams.draining import DrainingStream, ReadOn, Start, read_in
from earmark.streams.hiding import HidingStream
from earmark.streams.observed import Observed, ObservedStream
from earmark.streams.options import (
    MAX_EVENT,
    Options,
    StreamOptions,
    check_function,
    options_of,
)
from earmark.streams.telling import OnComplete, OnDrop, Teller
from earmark.streams.watched import WatchedStream
from earmark.streams.watcher import Watcher

__all__ = ["MAX_EVENT", "Observed", "ObservedStream", "observe_stream"]

T = TypeVar("T")


def observe_stream(
    source: AsyncIterable[T], *, on_complete: OnComplete, **options: Unpack[StreamOptions]
) -> ObservedStream[T]:
    """Wrap a stream so that its usage is known when it ends.

    Args:
        source: bytes or text of a body cut anywhere, parsed events as mappings, or an SDK's objects.
        on_complete: called once with what was observed, before the consumer has the item that completes the
            end, or however else the stream ends. Plain or async; an async one is waited for. Where the stream
            is dropped a plain one, and then an estimator as well, is called by the finaliser: anywhere, in
            any thread and inside any lock.
        **options: by name, each optional; `Reservation.stream` takes the same.

            * `dialect` (None): a dialect's name, or what makes one; None finds it out from the first events.
            * `expected_choices` (1): how many choices the request asked for (n).
            * `estimate` (None): asked for a usage where the provider's own last word did not arrive, or left
              out the whole of the input or of the output.
            * `aclose` (None): closes what the source reads from, such as an httpx response's `aclose`; plain or
              async. The source's own `aclose` or `close` is called in any case. All are called in the
              consumer's task.
            * `complete_timeout` (5.0): seconds for which an async `on_complete` is waited for, and then for
              each thing that is closed; `on_complete` goes on by itself afterwards, and a close is cut off.
            * `max_event` (16 MiB): the largest event that is read whole, in bytes; of a larger one the last 64 KiB
              are searched.
            * `hide_usage` (False): keep the event that has nothing but the usage from the consumer, and change
              nothing else.
            * `drain` (None): seconds for which the source is read on after the consumer has gone, so that the
              provider's own count still arrives; then `aclose()` returns at once, and `on_complete` is called
              later.
            * `task_group` (None): where the task that reads runs, if `drain` is given; it must outlive the
              consumer.

    Raises:
        TypeError: the source cannot be iterated with `async for`, a callback cannot be called, or there is no
            such option.
        ValueError: a number is out of its range, no dialect has this name, or `drain` lacks its task group.
        RuntimeError: the task group has ended; nothing is told then, and nothing closed.
    """
    return begin(source, on_complete, options_of("observe_stream", options))


def begin(
    source: AsyncIterable[T],
    on_complete: OnComplete,
    options: Options,
    *,
    on_drop: OnDrop | None = None,
    read_on: ReadOn | None = None,
    begun: Callable[[], None] | None = None,
) -> ObservedStream[T]:
    """The same for whoever has more to say.

    Args:
        source: as in `observe_stream`.
        on_complete: as in `observe_stream`.
        options: all the others.
        on_drop: called in place of `on_complete` when the stream is dropped; see `OnDrop`.
        read_on: where the source is read on if no task group is given.
        begun: called when nothing is left that can be refused; where it raises, the source is still the caller's.
    """
    check_function("on_complete", on_complete)
    start = _start(options, read_on)
    dialect, estimate = options.dialect, options.estimate
    made_by = factory(dialect) if isinstance(dialect, str) else dialect
    watcher = Watcher(
        made_by, options.expected_choices, options.max_event, count_text=estimate is not None
    )
    teller = Teller(on_complete, on_drop, options.complete_timeout)
    watched = WatchedStream(source, watcher, teller, estimate, options.aclose)
    stream: ObservedStream[T] = watched
    try:
        if start is not None and options.drain is not None:
            stream = DrainingStream(watched, options.drain, start)
        if begun is not None:
            begun()
    except BaseException:
        watched.disarm()
        raise
    return HidingStream(stream, watcher) if options.hide_usage else stream


def _start(options: Options, read_on: ReadOn | None) -> Start | None:
    """What starts the task that reads, where one is to."""
    if options.drain is None:
        if options.task_group is not None:
            msg = "task_group is where a stream is read on: it needs drain, for how many seconds"
            raise ValueError(msg)
        return None
    if options.task_group is not None:
        return partial(read_in, options.task_group)
    if read_on is not None:
        return read_on.start
    msg = (
        "drain needs a task group in which to read on: give task_group, or make the reservation with a"
        " limiter that `async with Limiter(…)` has opened on this event loop"
    )
    raise ValueError(msg)
