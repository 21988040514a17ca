"""Drops: a stream that nobody holds any more is told once, by a finaliser that may run anywhere and never raises."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable
from typing import Any

import anyio
import pytest

from earmark.streams import Observed, ObservedStream
from earmark.streams.observe import begin
from earmark.streams.options import Options
from earmark.streams.telling import Conclude
from tests.streams.toys import (
    CALLBACKS,
    DONE,
    SAY,
    USAGE,
    Slow,
    Source,
    Told,
    ToldLater,
    Toy,
    consume,
    watched,
)

pytestmark = pytest.mark.anyio


async def settle() -> None:
    """Give the loop a few rounds."""
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


@CALLBACKS
@pytest.mark.parametrize("taken", [0, 2, 3])
async def test_dropped(told_by: type[Told], taken: int) -> None:
    """C42c: dropped before or during iteration it is told once, and the source is closed on the stream's loop."""
    source, told = Source([SAY, USAGE, DONE]), told_by()
    stream = watched(source, told)
    for _ in range(taken):
        await anext(stream)
    if told_by is ToldLater and taken < 3:
        del stream
        assert not told
    else:
        del stream
    gc.collect()
    assert told_by is ToldLater or told
    await settle()
    assert (told.only.outcome, told.only.items) == ("end" if taken == 3 else "dropped", taken)
    assert source.closed == 1


async def test_dropped_while_somebody_waits() -> None:
    """A coroutine that is closed while it waits for an item drops the stream: it is no place to wait."""

    class Never:
        def __await__(self) -> Any:
            yield

    class Stuck(Source):
        async def __anext__(self) -> Any:
            await Never()

    source, told = Stuck([]), Told()
    stream = watched(source, told)
    waiting: Any = stream.__anext__()
    waiting.send(None)
    waiting.close()
    assert told.only.outcome == "dropped"
    await settle()
    assert source.closed == 1


@CALLBACKS
async def test_dropped_in_another_thread(told_by: type[Told]) -> None:
    """The finaliser may run in any thread; the async callback runs on the stream's own loop."""
    source, told = Source([SAY, USAGE]), told_by()
    held = [watched(source, told)]
    await anext(held[0])
    await anyio.to_thread.run_sync(held.clear)
    with anyio.fail_after(5):
        while not (told and source.closed):
            await anyio.lowlevel.checkpoint()
    assert told.only.outcome == "dropped"


async def test_dropped_in_a_cycle() -> None:
    """A stream in a cycle is told when the collector finds it, wherever that is."""
    source, told = Source([SAY]), Told()
    stream = watched(source, told)
    cycle: list[Any] = [stream]
    cycle.append(cycle)
    del stream, cycle
    assert not told
    gc.collect()
    assert told.only.outcome == "dropped"
    await settle()


async def test_dropped_tells_the_one_who_asked_for_drops() -> None:
    """R15: where `on_drop` is given, the finaliser calls it and nothing else; it is for drops alone."""
    for taken, outcome in ((1, "dropped"), (3, "end")):
        told, noted = Told(), Told()
        concludes: list[Conclude] = []
        source = Source([SAY, USAGE, DONE])
        stream = begin(source, told, Options(dialect=Toy), on_drop=concludes.append)
        for _ in range(taken):
            await anext(stream)
        del stream
        assert [seen.outcome for seen in told] == ([] if outcome == "dropped" else ["end"])
        for conclude in concludes:
            noted(conclude())
        assert [seen.outcome for seen in noted] == (["dropped"] if outcome == "dropped" else [])
        await settle()


@CALLBACKS
async def test_a_finaliser_never_raises(
    told_by: type[Told], caplog: pytest.LogCaptureFixture
) -> None:
    """A callback or a source that fails in a finaliser is logged."""

    class Failing(Source):
        async def aclose(self) -> None:
            self.closed += 1
            raise OSError("close")

    def plain(observed: Observed) -> None:
        raise KeyError("plain")

    async def later(observed: Observed) -> None:
        raise KeyError("later")

    source = Failing([SAY])
    stream = watched(source, plain if told_by is Told else later)
    del stream
    await settle()
    assert source.closed == 1
    assert "on_complete has failed" in caplog.text
    assert "could not be closed" in caplog.text


BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@BACKENDS
@CALLBACKS
def test_dropped_when_its_loop_is_gone(
    backend: str, told_by: type[Told], caplog: pytest.LogCaptureFixture
) -> None:
    """A plain callback is called all the same; an async one cannot be, and that is logged."""
    source, told = Source([SAY, USAGE]), told_by()

    async def begin() -> ObservedStream[Any]:
        stream = watched(source, told)
        await anext(stream)
        return stream

    stream = anyio.run(begin, backend=backend)
    with caplog.at_level(logging.DEBUG):
        del stream
        gc.collect()
    assert [seen.outcome for seen in told] == (["dropped"] if told_by is Told else [])
    assert ("not called" in caplog.text) == (told_by is ToldLater)
    assert source.closed == 0


@CALLBACKS
def test_dropped_without_any_loop(told_by: type[Told], caplog: pytest.LogCaptureFixture) -> None:
    """Made and dropped outside of a loop: a plain callback is called, an async one is logged."""
    told = told_by()
    stream = watched(Source([SAY]), told)
    del stream
    assert len(told) == (told_by is Told)
    assert ("not called" in caplog.text) == (told_by is ToldLater)


@BACKENDS
def test_made_outside_and_dropped_inside(backend: str) -> None:
    """The loop is remembered at the first item where none ran when the stream was made."""
    source, told = Source([SAY, USAGE]), ToldLater()
    held = [watched(source, told)]

    async def begin_and_drop() -> None:
        await anext(held[0])
        held.clear()
        await settle()

    anyio.run(begin_and_drop, backend=backend)
    assert (told.only.outcome, source.closed) == ("dropped", 1)


@BACKENDS
def test_a_callback_that_returns_an_awaitable_when_the_loop_is_gone(backend: str) -> None:
    """What a plain function returned to be awaited is closed, and does not warn that nobody awaited it."""
    told = ToldLater()

    def told_as_awaitable(observed: Observed) -> Awaitable[None]:
        return told(observed)

    async def begin() -> ObservedStream[Any]:
        return watched(Source([SAY]), told_as_awaitable)

    stream = anyio.run(begin, backend=backend)
    del stream
    gc.collect()
    assert told == []


def test_the_loop_ends_while_the_callback_runs(caplog: pytest.LogCaptureFixture) -> None:
    """A callback that is still running when its loop ends is cancelled with it, and that is logged."""

    async def begin() -> None:
        slow = Slow()
        stream = watched(Source([USAGE, DONE]), slow, complete_timeout=0.001)
        await consume(stream)
        assert slow.begun.is_set()

    asyncio.run(begin())
    assert "was cancelled" in caplog.text
