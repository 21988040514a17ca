"""A callback that raises what is no Exception: the stream does not suffer, and what ends the process passes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio.lowlevel
import pytest

from earmark.streams import Observed, observe_stream
from earmark.usage import Usage
from tests.streams.toys import DONE, SAY, USAGE, Source, Told, consume, watched

pytestmark = pytest.mark.anyio

STRANGE: list[Callable[[], BaseException]] = [
    lambda: asyncio.CancelledError("nobody cancelled"),
    lambda: BaseExceptionGroup("several", [asyncio.CancelledError(), KeyError("x")]),
    lambda: GeneratorExit("nobody closed"),
]
KINDS = pytest.mark.parametrize("make", STRANGE, ids=["CancelledError", "group", "GeneratorExit"])
ITEMS = [SAY, USAGE, DONE, SAY]


@KINDS
@pytest.mark.parametrize("how", ["plain", "async"])
async def test_a_callback_that_raises_anything_is_logged(
    make: Callable[[], BaseException], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """B32, C42: no item is lost, the source is closed, and the log says what failed."""
    calls: list[Observed] = []

    def plain(observed: Observed) -> None:
        calls.append(observed)
        raise make()

    async def later(observed: Observed) -> None:
        await anyio.lowlevel.checkpoint()
        plain(observed)

    if how == "async" and isinstance(make(), GeneratorExit):
        pytest.skip("a coroutine that raises GeneratorExit is one that is being closed")
    source = Source(ITEMS)
    stream = watched(source, plain if how == "plain" else later)
    assert await consume(stream) == (ITEMS, None)
    assert (len(calls), source.closed, stream.observed.outcome) == (1, 1, "end")
    assert "on_complete has failed" in caplog.text
    assert "loop is ending" not in caplog.text


@KINDS
async def test_an_estimator_that_raises_anything_is_logged(
    make: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """C43: the usage stays as it was reported, and is told."""

    def estimate(_: Observed) -> Usage:
        raise make()

    told = Told()
    assert await consume(watched(Source([SAY]), told, estimate=estimate)) == ([SAY], None)
    assert (told.only.usage, told.only.outcome) == (None, "truncated")
    assert "estimator has failed" in caplog.text


@pytest.mark.parametrize(
    "make",
    [
        KeyboardInterrupt,
        lambda: SystemExit(3),
        lambda: BaseExceptionGroup("g", [KeyError(1), BaseExceptionGroup("h", [SystemExit(3)])]),
    ],
    ids=["KeyboardInterrupt", "SystemExit", "within groups"],
)
@pytest.mark.parametrize("items", [[USAGE, DONE, SAY], [USAGE]], ids=["end", "stop"])
async def test_what_ends_the_process_passes(
    make: Callable[[], BaseException], items: list[bytes]
) -> None:
    """It goes through the stream, which has been told by then and can still be closed, or read on."""
    calls: list[Observed] = []

    def tell(observed: Observed) -> None:
        calls.append(observed)
        raise make()

    source = Source(items)
    stream = watched(source, tell)
    with pytest.raises(type(make())):
        await consume(stream)
    assert stream.observed is calls[0]
    assert await consume(stream) == (items[1:], None)  # the item in hand is not lost
    await stream.aclose()
    assert (len(calls), source.closed) == (1, 1)


@KINDS
async def test_a_dropped_stream_tells_what_raises_anything(
    make: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """A finaliser has nobody to raise to."""

    def tell(_: Observed) -> Any:
        raise make()

    stream = observe_stream(Source([SAY]), on_complete=tell)
    del stream
    assert "on_complete has failed" in caplog.text
    await anyio.lowlevel.checkpoint()
