"""What a close may await, how long it may take, and what becomes of it where whoever closes is collected."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from earmark.streams import observe_stream
from tests.streams.test_closing_in_place import (
    ON_ASYNCIO,
    Upstream,
    after_some_turns,
    nothing_is_left_open,
)
from tests.streams.test_endings import Leaving
from tests.streams.toys import Source, Told, Toy, watched

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["scope", "native"])
def leaving(request: pytest.FixtureRequest, anyio_backend: str) -> Leaving:
    """Both kinds of cancellation; trio has one."""
    return Leaving(request.param, anyio_backend)


# ---------------------------------------------------------------- what can be awaited


class Awaited:
    """Awaits in the ways that there are: a future, a task, a turn of the loop, a gathering, a thread."""

    @staticmethod
    def future() -> Awaitable[object]:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        loop.call_soon(future.set_result, None)
        return future

    @staticmethod
    def done() -> Awaitable[object]:
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    @staticmethod
    def task() -> Awaitable[object]:
        return asyncio.ensure_future(asyncio.sleep(0))

    @staticmethod
    def turn() -> Awaitable[object]:
        return asyncio.sleep(0)

    @staticmethod
    def gathering() -> Awaitable[object]:
        return asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))

    @staticmethod
    def thread() -> Awaitable[object]:
        return asyncio.to_thread(int)


@ON_ASYNCIO
@pytest.mark.parametrize("kind", ["future", "done", "task", "turn", "gathering", "thread"])
async def test_a_close_may_await_anything(anyio_backend: str, kind: str) -> None:
    """What a task of asyncio's can wait for, closing can."""
    closed: list[str] = []

    async def close() -> None:
        await getattr(Awaited, kind)()
        closed.append(kind)

    for given in (close, getattr(Awaited, kind)):
        stream = watched(Source([]), Told(), aclose=given)
        await stream.aclose()
    assert closed == [kind]


@ON_ASYNCIO
async def test_a_future_of_another_loop_is_refused(anyio_backend: str) -> None:
    """As a task refuses it: with a RuntimeError, and not by waiting for ever."""
    other = asyncio.new_event_loop()
    try:
        stream = watched(Source([]), Told(), aclose=other.create_future)
        with pytest.raises(RuntimeError, match="loop"):
            await stream.aclose()
    finally:
        other.close()


# ---------------------------------------------------------------- the time for closing


async def test_each_close_has_its_own_time(caplog: pytest.LogCaptureFixture) -> None:
    """One that hangs does not eat the time of those after it: the connection is given back."""
    log: list[str] = []

    class Hangs(Source):
        async def aclose(self) -> None:
            await anyio.sleep_forever()

    async def given() -> None:
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        log.append("given back")

    stream = watched(Hangs([]), Told(), aclose=given, complete_timeout=0.2)
    with anyio.fail_after(10):
        await stream.aclose()
    assert log == ["given back"]
    assert "not closed after" in caplog.text


@ON_ASYNCIO
@pytest.mark.parametrize("stubborn", ["once", "always", "collected"])
async def test_a_close_that_does_not_heed_its_deadline_is_left(
    anyio_backend: str, stubborn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is cancelled at each further await, as in a cancelled scope; and what swallows that is left."""
    told: list[str] = []

    async def close() -> None:
        while len(told) < (1 if stubborn == "once" else 1000):
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                told.append("cancelled")
            except GeneratorExit:
                told.append("collected")
                if stubborn == "always" or told.count("collected") > 1:
                    raise
        await anyio.lowlevel.checkpoint()
        told.append("went on")

    closed: list[int] = []
    stream = watched(Source([]), Told(), aclose=close, complete_timeout=0.001)
    with anyio.fail_after(10):
        await stream.aclose()
    closed.append(1)
    assert 1 <= len(told) <= 110
    assert "went on" not in told
    assert "not closed after" in caplog.text
    await nothing_is_left_open()


@ON_ASYNCIO
async def test_what_a_late_close_waits_for_is_cancelled_with_it(anyio_backend: str) -> None:
    """As `Task.cancel` does: a task of its own that it waits for goes with it."""
    inner: list[asyncio.Future[Any]] = []

    async def close() -> None:
        inner.append(asyncio.ensure_future(anyio.sleep_forever()))
        await asyncio.gather(*inner)

    stream = watched(Source([]), Told(), aclose=close, complete_timeout=0.001)
    with anyio.fail_after(10):
        await stream.aclose()
        await asyncio.wait(inner)
    assert inner[0].cancelled()


async def test_a_late_close_that_fails_has_failed() -> None:
    """What it makes of its deadline is its own: another error than the cancellation is the caller's."""

    async def close() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise ConnectionResetError("closing")

    stream = watched(Source([]), Told(), aclose=close, complete_timeout=0.001)
    with anyio.fail_after(10), pytest.raises(ConnectionResetError):
        await stream.aclose()


async def test_one_observed_stream_within_another_is_closed_to_its_end(leaving: Leaving) -> None:
    """The closing of the inner one is within that of the outer: cancelled, both finish."""
    upstream, told = Upstream(), Told()
    stream = watched(watched(upstream.variable(), told), told)

    async def leave() -> None:
        await anext(stream)
        await stream.aclose()
        await anyio.sleep_forever()

    async def let_go() -> None:
        for event in upstream.may_go:
            event.set()

    with anyio.fail_after(10):
        assert await leaving.leave(leave, upstream.reached[0].wait, let_go)
    assert upstream.log == ["closed"]
    assert [seen.outcome for seen in told] == ["closed", "closed"]


# ---------------------------------------------------------------- whoever closes is collected


@ON_ASYNCIO
async def test_a_consumer_that_is_collected_while_it_closes_leaves_the_rest_to_the_loop(
    anyio_backend: str,
) -> None:
    """What has not been called yet is called on the stream's own loop."""
    closed: list[str] = []

    class Stuck(Source):
        async def aclose(self) -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                closed.append("source")

    stream = watched(Stuck([]), Told(), aclose=lambda: closed.append("given"))
    closing: Any = stream.aclose()
    closing.send(None)
    closing.close()
    assert closed == ["source"]
    await after_some_turns(lambda: None)
    assert closed == ["source", "given"]


@ON_ASYNCIO
async def test_a_closed_stream_is_not_kept_alive(anyio_backend: str) -> None:
    """Neither a cancellation that came, nor what closing raised, holds the stream in a cycle."""
    upstream = Upstream()
    source = upstream.plain()
    stream = observe_stream(source, on_complete=Told(), dialect=Toy)
    gone = weakref.ref(stream)
    await anext(stream)
    task = asyncio.ensure_future(stream.aclose())
    await upstream.reached[0].wait()
    task.cancel()
    for event in upstream.may_go:
        event.set()
    gc.collect()
    gc.disable()
    try:
        await asyncio.wait({task})
        assert task.cancelled()
        del stream, source, task
        await anyio.lowlevel.checkpoint()
        assert gone() is None
    finally:
        gc.enable()
