"""Closing a source is done once and to its end, whoever is cancelled meanwhile, and whatever the close does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from earmark.shielding import in_trio
from earmark.streams import ObservedStream, observe_stream
from tests.streams.test_endings import Leaving
from tests.streams.toys import DONE, SAY, USAGE, Source, Told, Toy, consume

pytestmark = pytest.mark.anyio

AWAITS = 3
ENDS = pytest.mark.parametrize("way", ["closed", "end", "error"])


@pytest.fixture(params=["scope", "native"])
def leaving(request: pytest.FixtureRequest, anyio_backend: str) -> Leaving:
    """Both kinds of cancellation; trio has one."""
    return Leaving(request.param, anyio_backend)


class Closing(Source):
    """A source whose close waits three times, and lets know of each."""

    def __init__(self, ending: BaseException | str = "stop") -> None:
        super().__init__([SAY, USAGE], ending)
        self.reached = [anyio.Event() for _ in range(AWAITS)]
        self.may_go = [anyio.Event() for _ in range(AWAITS)]
        self.log: list[str] = []

    async def aclose(self) -> None:
        for step in range(AWAITS):
            self.reached[step].set()
            await self.may_go[step].wait()
        self.log.append("source")

    async def close_given(self) -> None:
        """The caller's own, which waits as well."""
        await anyio.lowlevel.checkpoint()
        self.log.append("given")


class Consumer:
    """Reads or closes a stream, is cancelled at one await of its closing, so many times, and lets it finish then."""

    def __init__(self, source: Closing, stream: ObservedStream[Any], way: str) -> None:
        self.source = source
        self.stream = stream
        self.way = way
        self.went_on = False
        self.task: asyncio.Task[Any] | None = None

    async def leave(self) -> None:
        """Leave, and wait for the cancellation."""
        if not in_trio():
            self.task = asyncio.current_task()
        if self.way == "closed":
            await anext(self.stream)
            await self.stream.aclose()
        else:
            await consume(self.stream)
        self.went_on = True
        await anyio.sleep_forever()

    async def until(self, step: int) -> None:
        """Let the closing go as far as its await of this number."""
        for before in range(step):
            await self.source.reached[before].wait()
            self.source.may_go[before].set()
        await self.source.reached[step].wait()

    async def let_go(self, times: int) -> None:
        """Cancel it as often again; nothing is closed or cut before it may be."""
        for _ in range(times):
            await anyio.lowlevel.checkpoint()
            if self.task is not None:
                self.task.cancel()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        assert (self.source.log, self.went_on) == ([], False)
        for event in self.source.may_go:
            event.set()


@ENDS
@pytest.mark.parametrize("step", range(AWAITS))
@pytest.mark.parametrize("again", [0, 2])
async def test_c42_a_cancellation_at_any_await_of_the_closing_lets_it_finish(
    leaving: Leaving, way: str, step: int, again: int
) -> None:
    """C42: both kinds of cancellation, at every await, once and again: closed to the end, then it goes on."""
    source, told = Closing(OSError("reset") if way == "error" else "stop"), Told()
    stream = observe_stream(source, on_complete=told, dialect=Toy, aclose=source.close_given)
    consumer = Consumer(source, stream, way)
    with anyio.fail_after(10):
        assert await leaving.leave(
            consumer.leave,
            lambda: consumer.until(step),
            lambda: consumer.let_go(again if leaving.by_task else 0),
        )
    assert source.log == ["source", "given"]
    assert len(told) == 1
    assert consumer.went_on != leaving.by_task


async def test_an_error_of_closing_reaches_the_caller_and_a_cancellation_comes_before_it(
    leaving: Leaving, caplog: pytest.LogCaptureFixture
) -> None:
    """What closing raises is the caller's; where asyncio's own cancellation came that is, and the error is logged."""

    class Fails(Closing):
        async def aclose(self) -> None:
            await super().aclose()
            raise ConnectionResetError("closing")

    source = Fails()
    stream = observe_stream(source, on_complete=Told(), dialect=Toy)
    raised: list[BaseException] = []

    async def leave() -> None:
        try:
            await stream.aclose()
        except BaseException as error:  # noqa: BLE001 - whichever comes
            raised.append(error)
        await anyio.lowlevel.checkpoint()
        if leaving.by_task:
            raise raised[0]

    async def after() -> None:
        for event in source.may_go:
            event.set()

    with anyio.fail_after(10):
        assert await leaving.leave(leave, source.reached[0].wait, after)
    if leaving.by_task:
        assert type(raised[0]) is asyncio.CancelledError
        assert "could not be closed" in caplog.text
    else:
        assert type(raised[0]) is ConnectionResetError


async def test_what_is_closed_late_is_cut_and_what_comes_after_it_is_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A close that does not end in time does not keep the caller's own `aclose` from being called."""
    closed: list[int] = []
    cut = anyio.Event()

    class Endless(Source):
        async def aclose(self) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                cut.set()

    stream = observe_stream(
        Endless([]),
        on_complete=Told(),
        dialect=Toy,
        complete_timeout=0.001,
        aclose=lambda: closed.append(1),
    )
    with anyio.fail_after(10):
        await stream.aclose()
        await cut.wait()
        while not closed:
            await anyio.lowlevel.checkpoint()
    assert "not closed after" in caplog.text


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("begun", [False, True], ids=["before its first step", "while it waits"])
def test_the_loop_ends_while_a_source_is_closed(anyio_backend: str, *, begun: bool) -> None:
    """A loop that ends cancels every task: what was to be closed has its time, and what comes after it is closed."""
    source, closed = Closing(), []

    async def main() -> None:
        stream = observe_stream(
            source,
            on_complete=Told(),
            dialect=Toy,
            complete_timeout=0.001,
            aclose=lambda: closed.append(1),
        )
        held.append(stream)
        task = asyncio.ensure_future(stream.aclose())
        held.append(task)
        await asyncio.sleep(0)
        if begun:
            await source.reached[0].wait()

    held: list[Any] = []
    asyncio.run(main())
    assert source.reached[0].is_set()
    assert closed == [1]


def test_without_a_loop_it_is_closed_by_hand() -> None:
    """A source that never waits is closed where there is no loop at all."""
    log: list[str] = []

    class Ready(Source):
        async def aclose(self) -> None:
            log.append("source")

    stream = observe_stream(
        Ready([SAY]), on_complete=Told(), dialect=Toy, aclose=lambda: log.append("given")
    )
    with pytest.raises(StopIteration):
        stream.aclose().send(None)
    assert log == ["source", "given"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_nothing_is_started_where_there_is_nothing_to_wait_for(
    anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source without a close costs no task."""

    class Bare:
        def __aiter__(self) -> AsyncIterator[Any]:
            return self

        async def __anext__(self) -> Any:
            raise StopAsyncIteration

    created: list[Any] = []
    monkeypatch.setattr(
        "earmark.streams.loops._running", type("Noting", (set,), {"add": created.append})()
    )
    await consume(observe_stream(Bare(), on_complete=Told(), dialect=Toy))
    assert not created


# ---------------------------------------------------------------- a close that raises what is no error

CANCELS: list[Callable[[], BaseException]] = [
    lambda: asyncio.CancelledError("nobody cancelled"),
    lambda: BaseExceptionGroup("several", [asyncio.CancelledError(), OSError("reset")]),
]


@ENDS
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("make", CANCELS, ids=["CancelledError", "group"])
async def test_c42_a_close_that_raises_a_cancellation_cancels_nobody(
    way: str, make: Callable[[], BaseException], caplog: pytest.LogCaptureFixture, *, plain: bool
) -> None:
    """A close that raises CancelledError of its own has failed: the end is the end, and the others are closed."""
    closed: list[int] = []

    class Raises(Source):
        async def aclose(self) -> None:
            await anyio.lowlevel.checkpoint()
            raise make()

    class RaisesAtOnce(Source):
        def aclose(self) -> None:  # type: ignore[override]
            raise make()

    told = Told()
    items = [SAY, USAGE, DONE] if way == "end" else [SAY, USAGE]
    source = (RaisesAtOnce if plain else Raises)(items, OSError("x") if way == "error" else "stop")
    stream = observe_stream(source, on_complete=told, dialect=Toy, aclose=lambda: closed.append(1))
    if way == "closed":
        await anext(stream)
        with pytest.raises(Exception, match="clos"):
            await stream.aclose()
    else:
        await consume(stream)
        assert "could not be closed" in caplog.text
    assert told.only.outcome == way
    assert closed == [1]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_what_ends_the_process_passes_once_all_is_closed(kind: type[BaseException]) -> None:
    """A close that raises what is to end the process: the others are closed, and then it goes on."""
    closed: list[int] = []

    class Raises(Source):
        def aclose(self) -> None:  # type: ignore[override]
            raise kind

    stream = observe_stream(
        Raises([SAY]), on_complete=Told(), dialect=Toy, aclose=lambda: closed.append(1)
    )
    with pytest.raises(kind):
        await stream.aclose()
    assert closed == [1]


def test_what_ends_the_process_comes_before_a_cancellation() -> None:
    """A consumer that is cancelled while its source is closed does not keep the process from ending."""

    class Raises(Closing):
        async def aclose(self) -> None:
            await super().aclose()
            raise SystemExit(3)

    async def main() -> None:
        source = Raises()
        stream = observe_stream(source, on_complete=Told(), dialect=Toy)
        task = asyncio.ensure_future(stream.aclose())
        await source.reached[0].wait()
        task.cancel()
        for event in source.may_go:
            event.set()
        await task

    with pytest.raises(SystemExit):
        asyncio.run(main())


# ---------------------------------------------------------------- closed by one, told by another


async def test_b35_a_second_close_does_not_wait_for_what_another_task_tells() -> None:
    """A stream whose end another task is telling is closed: aclose() returns, and the telling goes on there."""
    begun, go, done = anyio.Event(), anyio.Event(), anyio.Event()

    async def tell(_: Any) -> None:
        begun.set()
        await go.wait()
        done.set()

    source = Source([USAGE])
    stream = observe_stream(source, on_complete=tell, dialect=Toy)

    async def read() -> None:
        await consume(stream)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await begun.wait()
            await stream.aclose()
            assert not done.is_set()
            go.set()
    assert done.is_set()
    assert source.closed == 1
