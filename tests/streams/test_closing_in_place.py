"""A source is closed in its consumer's own task and context: what it holds open round its `yield` is left in order.

Each source here is an async generator that has something open while it is left, and whose clean-up waits three
times. Bare, all of it works; observed it must as well, cancelled at any of these waits or not.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from earmark.shielding import in_trio
from tests.streams.test_endings import Leaving
from tests.streams.toys import SAY, Told, watched

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
