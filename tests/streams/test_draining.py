"""Many streams are read on in one task group: none takes another with it, and none keeps it open for ever.

R16: cancelling one never disturbs another. Issue 3, part 5.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from earmark import Limiter, Limits, MemoryBackend, Reservation, Scope
from earmark.streams import ObservedStream, observe_stream
from earmark.testing import ManualClock
from tests.streams.toys import DONE, SAY, USAGE, Source, Told, Toy

pytestmark = pytest.mark.anyio

KEY = Scope("key", Limits(tpm=1_000))


class Panic(BaseException):
    """What an extension raises that no `except Exception` sees."""


FOREIGN: dict[str, Callable[[], BaseException]] = {
    "a CancelledError that nobody meant": asyncio.CancelledError,
    "a group of them": lambda: BaseExceptionGroup("g", [asyncio.CancelledError()]),
    "a panic": Panic,
    "GeneratorExit": GeneratorExit,
    "an error": lambda: OSError("reset"),
}
ERRORS = pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)


def limiter() -> Limiter:
    """One on a clock that stands still."""
    return Limiter(MemoryBackend(clock=ManualClock()))


async def used(of: Limiter) -> int:
    """The tokens that are debited."""
    (status,) = await of.peek(KEY)
    return status["tokens"].used


class Stepwise(Source):
    """A source that lets others run before each item."""

    async def __anext__(self) -> Any:
        await anyio.lowlevel.checkpoint()
        return await super().__anext__()


async def read(stream: ObservedStream[Any], caught: list[BaseException]) -> None:
    """Take all items, and keep what is raised: it is this consumer's alone."""
    try:
        async for _ in stream:
            pass
    except BaseException as error:
        if not any(isinstance(error, type(make())) for make in FOREIGN.values()):
            raise
        caught.append(error)


@ERRORS
async def test_r16_what_a_source_raises_is_its_consumer_s_alone(
    make: Callable[[], BaseException],
) -> None:
    """The other stream of the limiter goes on and is settled, and so does the block."""
    error = make()
    caught: list[BaseException] = []
    with anyio.fail_after(10):
        async with limiter() as limits:
            good = await limits.pre_commit(KEY, tokens=100)
            bad = await limits.pre_commit(KEY, tokens=100)
            async with anyio.create_task_group() as group:
                failing = bad.stream(Stepwise([SAY], error), drain=60, dialect=Toy)
                group.start_soon(read, failing, caught)
                going = good.stream(Stepwise([SAY] * 8 + [USAGE, DONE]), drain=60, dialect=Toy)
                group.start_soon(read, going, caught)
            await anyio.lowlevel.checkpoint()
            assert caught == [error]
            assert (good.state, await used(limits)) == ("settled", 112)
    assert bad.state == ("abandoned" if isinstance(error, GeneratorExit) else "closed")


@ERRORS
async def test_r16_what_it_raises_while_it_is_read_on_is_nobody_s(
    make: Callable[[], BaseException],
) -> None:
    """There is nobody to raise it to: the task group ends as if nothing had been."""
    told = Told()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            source = Stepwise([SAY, USAGE], make())
            stream = observe_stream(
                source, on_complete=told, dialect=Toy, drain=60, task_group=group
            )
            await anext(stream)
            await stream.aclose()
    for _ in range(
        9
    ):  # what was left without being closed is closed on the loop, as if it had been dropped
        await anyio.lowlevel.checkpoint()
    assert (told.only.items, told.only.tokens, source.closed) == (2, 12, 1)


class ClosesWith(Stepwise):
    """A source whose close is a function of the test's."""

    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        super().__init__([SAY, USAGE, DONE])
        self._close = close

    async def aclose(self) -> None:
        await super().aclose()
        await self._close()


async def raises_cancelled() -> None:
    """A close that ends as the helper ended that it waited for."""
    raise asyncio.CancelledError


async def cancels_its_task() -> None:
    """A close that takes the task in which it runs for one of its own."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("close", [raises_cancelled, cancels_its_task])
async def test_r16_a_close_that_cancels_ends_one_stream(
    close: Callable[[], Awaitable[None]], anyio_backend_name: str
) -> None:
    """What cancels the task that reads, and nothing else, ends this stream; the block and the others go on."""
    if close is cancels_its_task and anyio_backend_name == "trio":
        return  # which has no such thing
    with anyio.fail_after(10):
        async with limiter() as limits:
            one, other = [await limits.pre_commit(KEY, tokens=100) for _ in range(2)]
            stream = one.stream(ClosesWith(close), drain=60, dialect=Toy)
            assert await anext(stream) == SAY
            await stream.aclose()
            going = other.stream(Stepwise([SAY] * 20 + [USAGE, DONE]), drain=60, dialect=Toy)
            assert len([item async for item in going]) == 22
    assert (one.state, other.state) == ("settled", "settled")


# ---------------------------------------------------------------- the end of the limiter's block


async def never_started(stream: ObservedStream[Any]) -> None:
    """The stream is a local of the block, and that is all."""


async def broken_off(stream: ObservedStream[Any]) -> None:
    """Left by `break`."""
    async for _ in stream:
        break


async def failed(stream: ObservedStream[Any]) -> None:
    """Left by an error that the block catches."""
    with suppress(KeyError):
        async for _ in stream:
            raise KeyError


LEFT = pytest.mark.parametrize("leave", [never_started, broken_off, failed])


@LEFT
async def test_a_stream_that_is_merely_referenced_is_read_on_when_the_limiter_ends(
    leave: Callable[[ObservedStream[Any]], Awaitable[None]],
) -> None:
    """Whoever leaves the block cannot close it any more: without this the two wait for each other for ever."""
    with anyio.fail_after(10):
        async with limiter() as limits:
            reservation = await limits.pre_commit(KEY, tokens=100)
            source = Stepwise([SAY, SAY, USAGE, DONE])
            stream = reservation.stream(source, drain=60, dialect=Toy)
            await leave(stream)
    assert (reservation.state, source.given, source.closed) == ("settled", 4, 1)
    with pytest.raises(RuntimeError, match="closed, with its limiter"):
        await anext(stream)


@LEFT
async def test_and_no_longer_than_it_drains(
    leave: Callable[[ObservedStream[Any]], Awaitable[None]],
) -> None:
    """The block waits as long as its `drain` at most, and then it is told as closed."""
    with anyio.fail_after(10):
        async with limiter() as limits:
            reservation = await limits.pre_commit(KEY, tokens=100)
            source = Source([SAY], "wait")
            stream = reservation.stream(source, drain=0.001, dialect=Toy)
            await leave(stream)
    assert (reservation.state, source.closed, await used(limits)) == ("closed", 1, 100)
    assert stream.observed.outcome == "closed"


async def test_a_consumer_elsewhere_is_told_that_its_limiter_is_closed() -> None:
    """It has the item that it waits for; what it would ask for then is read for its usage alone, and it is told so."""
    for _ in range(20):  # trio chooses by chance who runs first
        await closed_under_a_consumer()


async def closed_under_a_consumer() -> None:
    """Leave a limiter's block while a task outside waits for an item of a stream."""
    caught: list[RuntimeError] = []
    begun, go_on = anyio.Event(), anyio.Event()

    async def upstream() -> AsyncIterator[bytes]:
        yield SAY
        begun.set()
        await go_on.wait()
        for item in (SAY, USAGE, DONE):
            yield item

    async def consume(stream: ObservedStream[Any], items: list[Any]) -> None:
        try:
            async for item in stream:
                items.append(item)  # noqa: PERF401 - those before the error count
        except RuntimeError as error:
            caught.append(error)

    items: list[Any] = []
    states: list[Reservation] = []
    with anyio.fail_after(10):
        async with anyio.create_task_group() as outside, limiter() as limits:
            states.append(await limits.pre_commit(KEY, tokens=100))
            outside.start_soon(consume, states[0].stream(upstream(), drain=60, dialect=Toy), items)
            await begun.wait()
            outside.start_soon(_set_later, go_on)
    assert [str(error)[:11] for error in caught] == ["this stream"]
    assert (len(caught), items, states[0].state) == (1, [SAY, SAY], "settled")


async def _set_later(event: anyio.Event) -> None:
    await anyio.wait_all_tasks_blocked()
    event.set()


async def test_the_block_s_own_error_cancels_what_is_read_on() -> None:
    """An application that fails does not wait: the stream is told as cancelled, and the error comes out as it is."""
    source = Source([SAY], "wait")
    limits = limiter()
    reservation = await limits.pre_commit(KEY, tokens=100)

    async def serve() -> None:
        async with limits:
            stream = reservation.stream(source, drain=60, dialect=Toy)
            await anext(stream)
            raise KeyError

    with anyio.fail_after(10), pytest.raises(KeyError):
        await serve()
    assert (reservation.state, source.closed) == ("abandoned", 1)


async def test_a_reservation_s_stream_that_cannot_be_read_on_says_what_to_do() -> None:
    """Without a task group there is nowhere to read on, and the message names both ways to one."""
    limits = limiter()
    reservation = await limits.pre_commit(KEY, tokens=100)
    with pytest.raises(ValueError, match=r"task_group.*async with Limiter"):
        reservation.stream(Source([]), drain=5)
    assert reservation.state == "open"
    await reservation.cancel()
