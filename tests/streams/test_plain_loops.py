"""Finalisers where servers run: under `asyncio.run` and `trio.run`, with no task and no context round a callback.

Under a runner of anyio's, as in most tests, a callback of the loop's finds a context in which anyio knows its
library. A server that calls `asyncio.run` has none, and whatever a finaliser leaves to its loop must do without.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio

from earmark import Limiter, Limits, MemoryBackend, Scope
from earmark.streams import ObservedStream
from earmark.testing import ManualClock
from tests.streams.toys import CALLBACKS, SAY, USAGE, Source, Told, ToldLater, watched

Run = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]

RUNS = pytest.mark.parametrize(
    "run",
    [lambda main: asyncio.run(main()), trio.run],
    ids=["asyncio.run", "trio.run"],
)
ALICE = Scope("alice", Limits(concurrency=1, tpm=100))


async def until(done: Callable[[], object]) -> None:
    """Let the loop turn until it is done."""
    with anyio.fail_after(10):
        while not done():
            await anyio.lowlevel.checkpoint()


def drop(held: list[Any], where: str) -> None:
    """Let go of what is held: here, in another thread, or so that the collector finds it in a cycle."""
    if where == "thread":
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
    elif where == "cycle":
        held.append(held[:])
        held[-1].append(held[-1])
        held.clear()
        gc.collect()
    else:
        held.clear()


WHERE = pytest.mark.parametrize("where", ["here", "thread", "cycle"])


@RUNS
@WHERE
@CALLBACKS
def test_a_dropped_stream_is_told_and_closed(run: Run, where: str, told_by: type[Told]) -> None:
    """R15, C42c: once, on the stream's own loop where it has to be."""
    source, told = Source([SAY, USAGE]), told_by()

    async def main() -> None:
        held = [watched(source, told)]
        await anext(held[0])
        drop(held, where)
        await until(lambda: told and source.closed)

    run(main)
    assert (told.only.outcome, source.closed) == ("dropped", 1)


@RUNS
def test_what_a_dropped_source_does_on_its_loop_may_wait_and_fail(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """A close that takes its time, has a scope, and fails at last: that is logged."""
    closed: list[str] = []

    class Slow(Source):
        async def aclose(self) -> None:
            with anyio.CancelScope(shield=True):
                for _ in range(3):
                    await anyio.lowlevel.checkpoint()
            closed.append("source")
            raise ConnectionResetError("closing")

    async def main() -> None:
        held = [watched(Slow([SAY]), ToldLater(), aclose=lambda: closed.append("given"))]
        await anext(held[0])
        drop(held, "here")
        await until(lambda: len(closed) == 2)
        await until(lambda: "could not be closed" in caplog.text)

    with caplog.at_level(logging.ERROR):
        run(main)
    assert closed == ["source", "given"]


async def endless(reached: Callable[[], object]) -> AsyncIterator[bytes]:
    """An upstream that never ends by itself."""
    while True:
        await anyio.lowlevel.checkpoint()
        reached()
        yield SAY


@RUNS
@WHERE
def test_a_dropped_stream_is_read_on_and_then_left(run: Run, where: str) -> None:
    """A draining stream that nobody holds any more has its time, and ends: it gives its slot back."""
    read: list[int] = []

    async def main() -> None:
        async with Limiter(MemoryBackend(clock=ManualClock())) as limiter:
            reservation = await limiter.pre_commit(ALICE, tokens=5)
            held: list[Any] = [reservation.stream(endless(lambda: read.append(1)), drain=0.05)]
            await anext(held[0])
            drop(held, where)
            await until(lambda: reservation.state != "open")
            assert reservation.state == "abandoned"
            (status,) = await limiter.peek(ALICE)
            assert (status["concurrency"].used, status["tokens"].used) == (0, 5)

    run(main)
    assert len(read) > 1


@RUNS
def test_a_draining_stream_that_is_dropped_at_its_end_is_settled(run: Run) -> None:
    """What is read on may be the provider's own count."""

    async def upstream() -> AsyncIterator[bytes]:
        yield SAY
        yield b'data: {"choices":[{"index":0,"finish_reason":"stop"}]}\n\n'
        yield b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}\n\n'
        yield b"data: [DONE]\n\n"

    async def main() -> None:
        async with Limiter(MemoryBackend(clock=ManualClock())) as limiter:
            reservation = await limiter.pre_commit(ALICE, tokens=50)
            held: list[Any] = [reservation.stream(upstream(), drain=30.0)]
            await anext(held[0])
            drop(held, "here")
            await until(lambda: reservation.state != "open")
            assert reservation.state == "settled"
            (status,) = await limiter.peek(ALICE)
            assert status["tokens"].used == 12

    run(main)


@RUNS
@pytest.mark.parametrize("way", ["closed", "dropped"])
def test_a_reservation_s_stream_is_resolved(run: Run, way: str) -> None:
    """R15: however it ends, it gives its slot back."""

    async def main() -> None:
        limiter = Limiter(MemoryBackend(clock=ManualClock()))
        reservation = await limiter.pre_commit(ALICE, tokens=5)
        held: list[ObservedStream[Any]] = [reservation.stream(Source([SAY, SAY]))]
        await anext(held[0])
        if way == "closed":
            await held[0].aclose()
        drop(held, "here")
        (status,) = await limiter.peek(ALICE)
        assert (status["concurrency"].used, status["tokens"].used) == (0, 5)
        assert reservation.state == ("closed" if way == "closed" else "abandoned")

    run(main)


@RUNS
@pytest.mark.parametrize("hide_usage", [False, True])
def test_a_task_group_that_has_ended_takes_no_stream_and_no_reservation(
    run: Run, *, hide_usage: bool
) -> None:
    """Nobody has had the stream: nothing is told or closed, and the reservation is still the caller's."""
    source, told = Source([SAY]), Told()

    async def main() -> None:
        async with anyio.create_task_group() as ended:
            pass
        limiter = Limiter(MemoryBackend(clock=ManualClock()))
        reservation = await limiter.pre_commit(ALICE, tokens=5)
        with pytest.raises(RuntimeError):
            reservation.stream(source, drain=1.0, task_group=ended, hide_usage=hide_usage)
        with pytest.raises(RuntimeError):
            watched(source, told, drain=1.0, task_group=ended, hide_usage=hide_usage)
        gc.collect()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        assert reservation.state == "open"
        assert await reservation.cancel()
        (status,) = await limiter.peek(ALICE)
        assert (status["concurrency"].used, status["tokens"].used) == (0, 0)

    run(main)
    assert (told, source.closed) == ([], 0)


# ---------------------------------------------------------------- what ends the process

ENDS: list[Callable[[], BaseException]] = [
    KeyboardInterrupt,
    lambda: SystemExit(3),
    lambda: BaseExceptionGroup("g", [KeyError(1), SystemExit(3)]),
]


@RUNS
@pytest.mark.parametrize("make", ENDS, ids=["KeyboardInterrupt", "SystemExit", "group"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_async_callback_may_end_the_process(run: Run, make: Callable[[], BaseException]) -> None:
    """It comes out of the run as what it is."""

    async def tell(_: Any) -> None:
        await anyio.lowlevel.checkpoint()
        raise make()

    async def main() -> None:
        async for _ in watched(Source([USAGE]), tell):
            pass

    with pytest.raises(type(make())):
        run(main)


def test_on_trio_the_consumer_gets_it() -> None:
    """And may go on from there: the stream has been told, and its source is closed."""
    source = Source([USAGE])

    async def tell(_: Any) -> None:
        await anyio.lowlevel.checkpoint()
        raise SystemExit(3)

    async def main() -> None:
        stream = watched(source, tell)
        await anext(stream)
        with pytest.raises(SystemExit):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    trio.run(main)
    assert source.closed == 1
