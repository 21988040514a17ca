"""A source is closed in its consumer's own task and context: what it holds open round its `yield` is left in order.

Each source here is an async generator that has something open while it is left, and whose clean-up waits three
times. Bare, all of it works; observed it must as well, cancelled at any of these waits or not.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from earmark.shielding import in_trio
from earmark.streams import observe_stream
from tests.streams.test_endings import Leaving
from tests.streams.toys import SAY, Source, Told, Toy, watched

pytestmark = pytest.mark.anyio

AWAITS = 3
SPAN: contextvars.ContextVar[str] = contextvars.ContextVar("span", default="none")
Main = Callable[[], Coroutine[Any, Any, None]]
ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])


class Upstream:
    """Makes generators, and lets their clean-up be watched."""

    def __init__(self) -> None:
        self.reached = [anyio.Event() for _ in range(AWAITS)]
        self.may_go = [anyio.Event() for _ in range(AWAITS)]
        self.log: list[str] = []

    async def plain(self) -> AsyncGenerator[bytes, None]:
        """Nothing is open but the generator itself."""
        try:
            while True:
                yield SAY
        finally:
            for step in range(AWAITS):
                self.reached[step].set()
                await self.may_go[step].wait()
            self.log.append("closed")

    async def variable(self) -> AsyncGenerator[bytes, None]:
        """A context variable, as tracing and logging set one."""
        token = SPAN.set("open")
        try:
            async with aclosing(self.plain()) as items:
                async for item in items:
                    yield item
        finally:
            SPAN.reset(token)

    async def scope(self) -> AsyncGenerator[bytes, None]:
        """A scope of anyio's with a deadline."""
        with anyio.move_on_after(1000):
            async with aclosing(self.plain()) as items:
                async for item in items:
                    yield item

    async def group(self) -> AsyncGenerator[bytes, None]:
        """A task group with a task."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            async with aclosing(self.plain()) as items:
                async for item in items:
                    yield item

    async def timeout(self) -> AsyncGenerator[bytes, None]:
        """A timeout of asyncio's."""
        async with asyncio.timeout(1000), aclosing(self.plain()) as items:
            async for item in items:
                yield item

    async def all(self) -> AsyncGenerator[bytes, None]:
        """Everything at once."""
        token = SPAN.set("open")
        try:
            with anyio.move_on_after(1000):
                async with aclosing(self.timeout()) as items:
                    async for item in items:
                        yield item
        finally:
            SPAN.reset(token)


KINDS = pytest.mark.parametrize("kind", ["plain", "variable", "scope", "group", "timeout", "all"])


@pytest.fixture(autouse=True)
def _unless_trio_forbids_it(request: pytest.FixtureRequest, anyio_backend: str) -> None:
    """Trio has no scopes round a `yield`: on it, a source has no more than a context variable open."""
    if anyio_backend == "trio" and "kind" in request.fixturenames:
        kind = request.getfixturevalue("kind")
        if kind not in ("plain", "variable"):
            pytest.skip("trio forbids a scope round a yield")


@pytest.fixture(params=["scope", "native"])
def leaving(request: pytest.FixtureRequest, anyio_backend: str) -> Leaving:
    """Both kinds of cancellation; trio has one."""
    return Leaving(request.param, anyio_backend)


async def nothing_is_left_open() -> None:
    """No scope of the source's is left on this task, and no cancellation is on its way to it."""
    assert anyio.current_effective_deadline() == float("inf")
    for _ in range(5):
        await anyio.lowlevel.checkpoint()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.lowlevel.checkpoint)
    if not in_trio():
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


@KINDS
async def test_a_generator_that_is_left_finishes_what_it_has_open(kind: str) -> None:
    """R15: the same as closing the bare generator, in its consumer's task and context."""
    upstream = Upstream()
    for event in upstream.may_go:
        event.set()
    told = Told()
    stream = watched(getattr(upstream, kind)(), told)
    await anext(stream)
    await stream.aclose()
    assert "closed" in upstream.log
    assert told.only.outcome == "closed"
    assert SPAN.get() == "none"
    await nothing_is_left_open()


@KINDS
@pytest.mark.parametrize("step", range(AWAITS))
@pytest.mark.parametrize("again", [0, 2])
async def test_c42_a_cancellation_at_any_await_of_it_lets_it_finish(
    leaving: Leaving, kind: str, step: int, again: int
) -> None:
    """C42: both kinds of cancellation, at every await and once again: all is left in order, and then it goes on."""
    upstream, told = Upstream(), Told()
    stream = watched(getattr(upstream, kind)(), told)
    tasks: list[asyncio.Task[Any]] = []
    closed = []

    async def leave() -> None:
        if not in_trio():
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)
        await anext(stream)
        try:
            await stream.aclose()
        finally:
            closed.append(SPAN.get())
        await anyio.sleep_forever()

    async def until() -> None:
        for before in range(step):
            await upstream.reached[before].wait()
            upstream.may_go[before].set()
        await upstream.reached[step].wait()

    async def let_go() -> None:
        for _ in range(again if leaving.by_task else 0):
            await anyio.lowlevel.checkpoint()
            tasks[0].cancel()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        assert (upstream.log, closed) == ([], [])
        for event in upstream.may_go:
            event.set()

    with anyio.fail_after(10):
        assert await leaving.leave(leave, until, let_go)
    assert "closed" in upstream.log
    assert closed == ["none"]
    assert told.only.outcome == "closed"


@ON_ASYNCIO
@KINDS
async def test_a_scope_and_asyncio_cancel_at_once(anyio_backend: str, kind: str) -> None:
    """Of two cancellations in one turn the task sees one: that of asyncio must not be lost behind the scope's."""
    upstream = Upstream()
    stream = watched(getattr(upstream, kind)(), Told())
    ended: list[Any] = []

    async def leave() -> None:
        await anext(stream)
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await stream.aclose()
        ended.append("went on")

    scopes: list[anyio.CancelScope] = []
    task = asyncio.ensure_future(leave())
    await upstream.reached[0].wait()
    scopes[0].cancel()
    task.cancel()
    for _ in range(5):
        await anyio.lowlevel.checkpoint()
    for event in upstream.may_go:
        event.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "closed" in upstream.log
    assert not ended


@ON_ASYNCIO
@pytest.mark.parametrize("how", ["asyncio", "anyio"])
async def test_a_timeout_of_the_source_s_own_cuts_nobody(anyio_backend: str, how: str) -> None:
    """One that comes while its source is closed is no cancellation of the consumer: it is waited on, and forgotten."""
    over = anyio.Event()

    async def timed() -> AsyncGenerator[bytes, None]:
        try:
            if how == "asyncio":
                async with asyncio.timeout(None) as timeout:
                    try:
                        yield SAY
                    finally:
                        timeout.reschedule(asyncio.get_running_loop().time())
                        await over.wait()
            else:
                with anyio.CancelScope() as scope:
                    try:
                        yield SAY
                    finally:
                        scope.cancel()
                        await over.wait()
        finally:
            log.append("closed")

    log: list[str] = []
    stream = watched(timed(), Told())
    await anext(stream)
    task = asyncio.ensure_future(after_some_turns(over.set))
    await stream.aclose()
    assert log == ["closed"]
    await nothing_is_left_open()
    await task


async def after_some_turns(do: Callable[[], object]) -> None:
    """Do it when the loop has turned a few times."""
    for _ in range(5):
        await anyio.lowlevel.checkpoint()
    do()


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

    stream = watched(Hangs([]), Told(), aclose=given, complete_timeout=0.001)
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
