"""A close with scopes and task groups of its own, and scopes of the consumer's round it.

Issue 3, part 4, and R16: the close runs out of reach of the consumer's cancellations, but its own are its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from earmark.streams.uncut import _SIGNED, _scopes_here
from tests.streams.toys import SAY, Source, Told, watched

pytestmark = pytest.mark.anyio

Close = Callable[[], Awaitable[object]]


class Closing(Source):
    """A source whose close does something of the test's, and then gives its connection back."""

    def __init__(self, first: Close) -> None:
        super().__init__([SAY])
        self._first = first
        self.given_back = False

    async def aclose(self) -> None:
        await super().aclose()
        await self._first()
        self.given_back = True


async def too_late() -> None:
    """A goodbye with a time limit, which nobody answers."""
    with anyio.move_on_after(0):
        await anyio.sleep_forever()


async def a_race() -> None:
    """The first of several to be done ends the group."""
    async with anyio.create_task_group() as group:
        group.start_soon(_cancel, group.cancel_scope)
        await anyio.sleep_forever()


async def _cancel(scope: anyio.CancelScope) -> None:
    await anyio.lowlevel.checkpoint()
    scope.cancel()


async def a_child_that_fails() -> None:
    """The others are cancelled, and so is whoever waits in the group."""

    async def fail() -> None:
        await anyio.lowlevel.checkpoint()
        raise KeyError

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(fail)
            await anyio.sleep_forever()
    except* KeyError:
        pass


async def waiting_for_a_task_of_its_own() -> None:
    """As a bare close would, it cancels what it waits for."""
    if _on_asyncio():
        helper = asyncio.ensure_future(anyio.sleep_forever())
        with anyio.move_on_after(0):
            await helper
        assert helper.cancelled()


async def shielded_and_too_late() -> None:
    """Its own shield keeps the consumer's scopes off, and its own limit holds within."""
    with anyio.CancelScope(shield=True):
        await too_late()


def _on_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


CLOSES = pytest.mark.parametrize(
    "close",
    [
        too_late,
        a_race,
        a_child_that_fails,
        waiting_for_a_task_of_its_own,
        shielded_and_too_late,
    ],
)


@CLOSES
async def test_a_scope_of_the_close_s_own_has_its_way(
    close: Close, caplog: pytest.LogCaptureFixture
) -> None:
    """It is cancelled as it would be in a task, and the rest of the close runs."""
    source, told = Closing(close), Told()
    stream = watched(source, told, complete_timeout=3600)
    await anext(stream)
    with anyio.fail_after(10), caplog.at_level(logging.WARNING):
        await stream.aclose()
    assert source.given_back
    assert told.only.outcome == "closed"
    assert not caplog.records


@CLOSES
async def test_and_within_a_cancelled_scope_of_the_consumer_s(close: Close) -> None:
    """A client that disconnects is a cancelled scope: it reaches neither the close nor the tasks that this starts."""
    source = Closing(close)
    stream = watched(source, Told(), complete_timeout=3600)
    await anext(stream)
    with anyio.fail_after(10):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await stream.aclose()
        assert source.given_back
        await anyio.lowlevel.checkpoint()


async def some_turns(until: Callable[[], bool]) -> None:
    """Let the loop turn until something is so."""
    for _ in range(100):
        if until():
            return
        await asyncio.sleep(0)
    pytest.fail("it has not come to that")


ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@ON_ASYNCIO
async def test_a_cancelled_scope_does_not_keep_the_loop_turning(anyio_backend: str) -> None:
    """It cancels the consumer's task once or twice, not in every turn for as long as the close takes."""
    may_close = anyio.Event()
    source = Closing(may_close.wait)
    stream = watched(source, Told())
    await anext(stream)
    tasks: list[asyncio.Task[Any]] = []

    async def leave() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        await stream.aclose()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(leave)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
            asyncio.ensure_future(_open_after(may_close, tasks))  # noqa: RUF006 - the group waits for it
    assert source.given_back


async def _open_after(event: anyio.Event, tasks: list[asyncio.Task[Any]]) -> None:
    for _ in range(50):
        await asyncio.sleep(0)
    assert tasks[0].cancelling() <= 2
    event.set()


@ON_ASYNCIO
@pytest.mark.parametrize("turns", range(14))
@pytest.mark.parametrize("gap", [0, 1, 3])
async def test_r16_a_cancel_that_comes_with_a_scope_s_is_not_lost(
    anyio_backend: str, turns: int, gap: int
) -> None:
    """Not either where the close has had a cancelled group of its own before."""

    async def close() -> None:
        async with anyio.create_task_group() as group:  # the helpers end ...
            group.start_soon(anyio.sleep_forever)
            group.cancel_scope.cancel()
        for _ in range(12):
            await asyncio.sleep(0)  # ... and then the connection

    source = Closing(close)
    stream = watched(source, Told())
    await anext(stream)
    scopes: list[anyio.CancelScope] = []
    states: list[str] = []

    async def consume() -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await stream.aclose()
        states.append("left the scope")
        await asyncio.sleep(0)
        states.append("went on")

    task = asyncio.ensure_future(consume())
    await some_turns(lambda: bool(scopes))
    for _ in range(turns):
        await asyncio.sleep(0)
    scopes[0].cancel()
    for _ in range(gap):
        await asyncio.sleep(0)
    asked_to = task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    assert source.given_back
    assert isinstance(result, asyncio.CancelledError) == asked_to
    assert ("went on" in states) == (not asked_to)


@ON_ASYNCIO
@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("by", ["the scope", "both"])
@pytest.mark.parametrize("kind", ["group", "scope"])
async def test_r16_a_generator_with_a_scope_round_its_yield_loses_no_cancel(
    anyio_backend: str, kind: str, by: str, turns: int
) -> None:
    """What is cancelled as it ends takes that back when it is left, or leaves it to the consumer's scope round it.

    What is left is a cancellation of the consumer's task where there was one, and none where there was none.
    """
    log: list[str] = []
    scopes: list[anyio.CancelScope] = []

    async def grouped() -> AsyncIterator[bytes]:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(slow_to_end)
                yield SAY
        finally:
            for _ in range(6):
                await asyncio.sleep(0)
            log.append("closed")

    async def slow_to_end() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(4):
                    await asyncio.sleep(0)

    async def consume() -> None:
        with anyio.CancelScope() as scope:
            stream = watched(grouped() if kind == "group" else scoped(log), Told())
            await anext(stream)
            await asyncio.sleep(0)  # its child begins
            scopes.append(scope)
            await stream.aclose()
        log.append("left")
        await asyncio.sleep(0)
        log.append("went on")

    task = asyncio.ensure_future(consume())
    await some_turns(lambda: bool(scopes))
    for _ in range(turns):
        await asyncio.sleep(0)
    scopes[0].cancel()
    asked_to = by == "both" and task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(result, asyncio.CancelledError) == asked_to
    assert log == ["closed"] + ["left", "went on"] * (not asked_to)
    assert task.cancelling() == asked_to


async def scoped(log: list[str]) -> AsyncIterator[bytes]:
    """A generator whose scope is cancelled as it ends."""
    try:
        with anyio.CancelScope() as scope:
            try:
                yield SAY
            finally:
                scope.cancel()
                done = asyncio.get_running_loop().create_future()
                helper = asyncio.ensure_future(_set_after(done))
                await done
                await helper
    finally:
        for _ in range(6):
            await asyncio.sleep(0)
        log.append("closed")


async def _set_after(future: asyncio.Future[None]) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    future.set_result(None)


@ON_ASYNCIO
async def test_a_close_that_waits_for_the_task_in_which_it_runs_is_refused(
    anyio_backend: str,
) -> None:
    """At once, as asyncio would."""
    task = asyncio.current_task()
    assert task is not None

    async def close() -> None:
        await task

    stream = watched(Closing(close), Told(), complete_timeout=3600)
    with anyio.fail_after(10), pytest.raises(RuntimeError, match="itself"):
        await stream.aclose()
    assert task.cancelling() == 0


@ON_ASYNCIO
async def test_anyio_s_scopes_sign_with_their_id(anyio_backend: str) -> None:
    """What `uncut` goes by, and anyio promises nowhere: a release that changes it fails here first."""
    errors: list[BaseException] = []
    with anyio.CancelScope() as outer, anyio.CancelScope() as inner:
        known = _scopes_here()
        assert list(known)[:2] == [id(inner), id(outer)]
        outer.cancel()
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError as error:
            errors.append(error)
            raise
    signed = _SIGNED.search(str(errors[0]))
    assert signed is not None
    assert int(signed[1], 16) == id(outer)
    # Of asyncio's own there is no sign.
    task = asyncio.ensure_future(anyio.sleep_forever())
    await asyncio.sleep(0)
    task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    assert _SIGNED.search(str(result)) is None


@ON_ASYNCIO
@pytest.mark.parametrize("fails", [False, True])
async def test_r16_a_cancel_within_a_limit_of_the_close_s_own_comes_after_the_close(
    anyio_backend: str, caplog: pytest.LogCaptureFixture, *, fails: bool
) -> None:
    """The limit still holds, the rest of the close runs or fails as it would, then the consumer is cancelled, once."""
    limits: list[anyio.CancelScope] = []

    async def close() -> None:
        with anyio.CancelScope() as limit:
            limits.append(limit)
            await anyio.sleep_forever()
        if fails:
            raise KeyError("close")

    source = Closing(close)
    stream = watched(source, Told(), complete_timeout=3600)
    await anext(stream)
    task = asyncio.ensure_future(stream.aclose())
    await some_turns(lambda: bool(limits))
    task.cancel()
    await asyncio.sleep(0)
    limits[0].cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(result, asyncio.CancelledError)
    assert task.cancelling() == 1
    assert source.given_back != fails
    assert ("could not be closed" in caplog.text) == fails
