"""What is raised that is no Exception: by an item, by a dialect, on a loop that is gone. It must not break the stream.

An SDK's objects are built on extensions whose panics derive from BaseException (pyo3's PanicException), and so do
CancelledError and GeneratorExit, which anybody can raise.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import pytest

from earmark import Limiter, Limits, MemoryBackend, Scope, Usage
from earmark.streams import Observed, observe_stream
from earmark.testing import ManualClock
from tests.streams.toys import DONE, SAY, USAGE, Source, Told, ToldLater, Toy, consume, watched

pytestmark = pytest.mark.anyio

KEY = Scope("key", Limits(tpm=1_000, concurrency=1))


class Panic(BaseException):
    """As an extension in Rust raises it."""


RAISED = pytest.mark.parametrize(
    "raised",
    [Panic, asyncio.CancelledError, GeneratorExit, OSError],
    ids=lambda kind: kind.__name__,
)


class Chunk:
    """An SDK's object that cannot be dumped."""

    def __init__(self, raised: type[BaseException]) -> None:
        self._raised = raised

    def model_dump(self, **_: Any) -> dict[str, Any]:
        raise self._raised


class Lazy(dict[str, Any]):
    """A mapping that cannot be read."""

    def __init__(self, raised: type[BaseException]) -> None:
        super().__init__(a=1)
        self._raised = raised

    def get(self, *_: Any) -> Any:
        raise self._raised

    def __contains__(self, _: object) -> bool:
        raise self._raised


@RAISED
@pytest.mark.parametrize("make", [Chunk, Lazy])
@pytest.mark.parametrize("hide_usage", [False, True])
async def test_an_item_that_panics_passes_through(
    make: Callable[[type[BaseException]], Any],
    raised: type[BaseException],
    caplog: pytest.LogCaptureFixture,
    *,
    hide_usage: bool,
) -> None:
    """R5, R10: the consumer has it, the source is closed, and the reservation is resolved."""
    limiter = Limiter(MemoryBackend(clock=ManualClock()))
    items = [make(raised), SAY, make(raised)]
    for taken in range(4):
        reservation = await limiter.pre_commit(KEY, tokens=10)
        source = Source(items)
        stream = reservation.stream(source, hide_usage=hide_usage)
        for item in items[:taken]:
            assert await anext(stream) is item
        await stream.aclose()
        assert (reservation.state, source.closed) == ("closed", 1)
        (status,) = await limiter.peek(KEY)
        assert status["concurrency"].used == 0
    assert "could not be read" in caplog.text or "failed on an event" in caplog.text


class Panicking(Toy):
    """A user's dialect of which one member panics.

    Attributes:
        member: which.
        raised: with what.
    """

    member: ClassVar[str]
    raised: ClassVar[type[BaseException]]
    trigger: ClassVar[re.Pattern[bytes]] = Toy.trigger

    def _panic(self, member: str) -> None:
        if member == self.member:
            raise self.raised

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        self._panic("observe")
        super().observe(event, payload)

    def observe_text(self, event: str | None, data: str) -> None:
        self._panic("observe_text")
        super().observe_text(event, data)

    def text_length(self, event: str | None, data: Mapping[str, Any] | str) -> int | None:
        self._panic("text_length")
        return super().text_length(event, data)

    def final(self, *, complete: bool) -> bool:
        self._panic("final")
        return super().final(complete=complete)

    def only_usage(self, event: str | None, payload: Mapping[str, Any]) -> bool:
        self._panic("only_usage")
        return super().only_usage(event, payload)

    def __getattribute__(self, name: str) -> Any:
        if name in ("usage", "ended", "finished", "error") and name == type(self).member:
            raise type(self).raised
        return super().__getattribute__(name)


MEMBERS = (
    "observe",
    "observe_text",
    "text_length",
    "only_usage",
    "usage",
    "final",
    "ended",
    "finished",
    "error",
)


@RAISED
@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("options", [{}, {"hide_usage": True}, {"estimate": lambda _: None}])
async def test_a_dialect_that_panics_is_logged(
    member: str, raised: type[BaseException], options: dict[str, Any]
) -> None:
    """The items pass, the end is told once, and the source is closed."""

    class Dialect(Panicking):
        pass

    Dialect.member, Dialect.raised = member, raised
    items = [SAY, b'data: {"enough": 1}\n\n', DONE]
    for leave in (False, True):
        source, told = Source(items), Told()
        stream = observe_stream(source, on_complete=told, dialect=Dialect, **options)
        if leave:
            await anext(stream)
            await stream.aclose()
        else:
            assert await consume(stream) == (items, None)
        assert not told.only.authoritative
        assert source.closed == 1


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
async def test_what_ends_the_process_passes(raised: type[BaseException]) -> None:
    """It is not for the library to keep."""
    stream = watched(Source([Lazy(raised)]), Told())
    with pytest.raises(raised):
        await anext(stream)
    await stream.aclose()


# ---------------------------------------------------------------- loops


@pytest.mark.parametrize("first", ["asyncio", "trio"])
@pytest.mark.parametrize("second", ["asyncio", "trio"])
def test_a_stream_belongs_to_the_loop_that_iterates_it(first: str, second: str) -> None:
    """Made on one that has ended since, and dropped: it is told and closed on the other."""
    source, told = Source([SAY, USAGE]), ToldLater()
    held: list[Any] = []

    async def make() -> None:
        held.append(watched(source, told))

    async def iterate() -> None:
        await anext(held[0])
        held.clear()
        gc.collect()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()

    anyio.run(make, backend=first)
    anyio.run(iterate, backend=second)
    assert (told.only.outcome, source.closed) == ("dropped", 1)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_guess_of_a_panicking_estimator_is_none(
    anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What was reported stays."""

    def estimate(_: Observed) -> Usage:
        raise Panic

    told = Told()
    with caplog.at_level(logging.ERROR):
        await consume(watched(Source([SAY]), told, estimate=estimate))
    assert told.only.usage is None
    assert "an estimator has failed" in caplog.text
