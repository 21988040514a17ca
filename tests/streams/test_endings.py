"""Endings: however a stream ends, what was observed is told once, cancellation goes on, and the source is closed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import pytest

from earmark.streams import Observed
from tests.streams.toys import (
    CALLBACKS,
    DONE,
    SAY,
    USAGE,
    Slow,
    Source,
    Told,
    consume,
    sse,
    watched,
)

pytestmark = pytest.mark.anyio

ENOUGH: Final = sse({"enough": True})
ERROR: Final = sse({"error": "overloaded"})
BROKEN: Final = OSError("connection reset")

# ---------------------------------------------------------------- ends that come from the source

ROWS: list[tuple[str, list[bytes], BaseException | str, str, Any, bool]] = [
    ("the end was seen", [SAY, USAGE, DONE], "stop", "end", None, True),
    ("the end in one item with the usage", [SAY + USAGE + DONE], "stop", "end", None, True),
    ("more after the end", [USAGE, DONE, SAY], "stop", "end", None, True),
    ("an error after the end", [USAGE, DONE], BROKEN, "end", None, True),
    ("the source may stop", [SAY, ENOUGH], "stop", "end", None, False),
    ("the source just stopped", [SAY, USAGE], "stop", "truncated", None, True),
    ("the source stopped in an event", [SAY, USAGE[:-9]], "stop", "truncated", None, False),
    ("no blank line at the end", [SAY, USAGE[:-2]], "stop", "truncated", None, True),
    ("nothing at all", [], "stop", "truncated", None, False),
    ("an error in the stream", [SAY, ERROR], "stop", "error", "overloaded", False),
    ("an error in the stream, then the end", [SAY, ERROR, DONE], "stop", "error", "overloaded", False),
    ("an error in the stream, with usage", [ERROR, USAGE], "stop", "error", "overloaded", True),
    ("C43: an error before the first item", [], BROKEN, "error", BROKEN, False),
    ("C43: an error after two items", [SAY, USAGE], BROKEN, "error", BROKEN, True),
    ("an error where the source may stop", [ENOUGH], BROKEN, "error", BROKEN, False),
]  # fmt: skip


@CALLBACKS
@pytest.mark.parametrize(
    ("items", "ending", "outcome", "error", "authoritative"),
    [row[1:] for row in ROWS],
    ids=[row[0] for row in ROWS],
)
async def test_the_source_ends(
    told_by: type[Told],
    items: list[bytes],
    ending: BaseException | str,
    outcome: str,
    error: Any,
    *,
    authoritative: bool,
) -> None:
    """B32, C41, C43: told once, with the right outcome; a close and a drop afterwards tell nothing more."""
    source, told = Source(items, ending), told_by()
    stream = watched(source, told)
    got, raised = await consume(stream)
    assert got == items
    assert raised is (ending if isinstance(ending, BaseException) else None)
    seen = told.only
    assert (seen.outcome, seen.error, seen.authoritative) == (outcome, error, authoritative)
    assert (seen.usage is not None) == authoritative
    assert source.closed == 1
    await stream.aclose()
    assert [item async for item in stream] == []
    del stream
    gc.collect()
    assert told.only is seen
    assert source.closed == 1


@CALLBACKS
@pytest.mark.parametrize("cuts", ["whole", "bytes"])
async def test_told_before_the_end_is_delivered(told_by: type[Told], cuts: str) -> None:
    """B32: whoever has the item that completes the end finds the tokens already counted; nobody before."""
    body = SAY + USAGE + DONE
    pieces = [body] if cuts == "whole" else [body[at : at + 1] for at in range(len(body))]
    told = told_by()
    given = 0
    async for _ in watched(Source(pieces), told):
        given += 1
        assert bool(told) == (given == len(pieces))
    assert (told.only.items, told.only.bytes, told.only.tokens) == (len(pieces), len(body), 12)


@CALLBACKS
async def test_told_before_the_iteration_stops(told_by: type[Told]) -> None:
    """Where nothing marks the end, it is told before StopAsyncIteration and after the last item."""
    told = told_by()
    stream = watched(Source([USAGE]), told)
    assert await anext(stream) == USAGE
    assert not told
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert told.only.outcome == "truncated"


# ---------------------------------------------------------------- ends that come from the consumer


@CALLBACKS
@pytest.mark.parametrize("taken", [0, 2, 3])
async def test_closed(told_by: type[Told], taken: int) -> None:
    """C42a: aclose() tells once and closes the source, also where iteration never began."""
    source, told = Source([SAY, USAGE, DONE]), told_by()
    stream = watched(source, told)
    for _ in range(taken):
        await anext(stream)
    await stream.aclose()
    await stream.aclose()
    seen = told.only
    assert (seen.outcome, seen.items) == ("end" if taken == 3 else "closed", taken)
    assert (seen.usage is None) == (taken == 0)
    assert source.closed == 1
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


class Leaving:
    """How a consumer is cancelled: by an anyio scope, which cancels again at every await, or by the loop's own means.

    asyncio's own is Task.cancel(), which comes once and goes through an anyio shield.
    """

    def __init__(self, kind: str, backend: str) -> None:
        self.by_task = kind == "native" and backend == "asyncio"

    async def leave(
        self,
        consume: Callable[[], Awaitable[object]],
        ready: Callable[[], Awaitable[object]],
        after: Callable[[], Awaitable[object]] = anyio.lowlevel.checkpoint,
    ) -> bool:
        """Start to consume, cancel once it is `ready`, then do `after`; True if the consumer was cancelled."""
        if self.by_task:
            task = asyncio.ensure_future(consume())
            await ready()
            task.cancel()
            await after()
            await asyncio.wait({task})
            return task.cancelled()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def cancel() -> None:
                    await ready()
                    scope.cancel()
                    with anyio.CancelScope(shield=True):
                        await after()

                group.start_soon(cancel)
                await consume()
        return scope.cancelled_caught


@pytest.fixture(params=["scope", "native"])
def leaving(request: pytest.FixtureRequest, anyio_backend: str) -> Leaving:
    """Both kinds of cancellation; trio has one."""
    return Leaving(request.param, anyio_backend)


@CALLBACKS
@pytest.mark.parametrize("items", [[], [SAY, USAGE]], ids=["first", "third"])
async def test_cancelled_while_it_waits_upstream(
    told_by: type[Told], leaving: Leaving, items: list[bytes]
) -> None:
    """C42b: both kinds of cancellation are told once, go on, and leave the source closed."""
    source, told = Source(items, "wait"), told_by()
    stream = watched(source, told)
    assert await leaving.leave(lambda: consume(stream), source.waiting.wait)
    assert (told.only.outcome, told.only.items) == ("cancelled", len(items))
    assert source.closed == 1
    await stream.aclose()
    assert (await consume(stream), len(told), source.closed) == (([], None), 1, 1)


async def test_cancelled_upstream_and_then_in_the_callback(leaving: Leaving) -> None:
    """C42d: a settlement that has begun because of a cancellation finishes, and only then does it go on."""
    source, slow = Source([USAGE], "wait"), Slow()
    stream = watched(source, slow)

    async def let_go() -> None:
        await slow.begun.wait()
        await slow.let_go()

    assert await leaving.leave(lambda: consume(stream), source.waiting.wait, let_go)
    (seen,) = slow.told
    assert (seen.outcome, seen.tokens, source.closed) == ("cancelled", 12, 1)


@pytest.mark.parametrize(
    ("items", "outcome"), [([USAGE, DONE], "end"), ([USAGE], "truncated")], ids=["end", "stop"]
)
async def test_cancelled_in_the_callback(
    leaving: Leaving, items: list[bytes], outcome: str
) -> None:
    """C42d: a cancellation that comes while the end is told lets it finish, and then goes on."""
    source, slow = Source(items), Slow()
    stream = watched(source, slow)

    async def consume_and_wait() -> None:
        await consume(stream)
        await anyio.sleep_forever()

    assert await leaving.leave(consume_and_wait, slow.begun.wait, slow.let_go)
    (seen,) = slow.told
    assert (seen.outcome, seen.tokens) == (outcome, 12)
    await stream.aclose()
    assert (len(slow.told), source.closed) == (1, 1)


async def test_cancelled_in_the_callback_of_a_close(leaving: Leaving) -> None:
    """C42d: aclose() that is cancelled while it tells lets that finish."""
    source, slow = Source([USAGE]), Slow()
    stream = watched(source, slow)
    await anext(stream)

    async def close_and_wait() -> None:
        await stream.aclose()
        await anyio.sleep_forever()

    assert await leaving.leave(close_and_wait, slow.begun.wait, slow.let_go)
    (seen,) = slow.told
    assert seen.outcome == "closed"


async def test_a_consumer_that_goes_on_after_a_cancellation(leaving: Leaving) -> None:
    """A cancellation while the end is told costs no item: the one in hand comes next, and then the rest."""
    source, slow = Source([USAGE, DONE, SAY]), Slow()
    stream = watched(source, slow)
    cancelled = await leaving.leave(lambda: consume(stream), slow.begun.wait, slow.let_go)
    assert cancelled == leaving.by_task
    rest, error = await consume(stream)
    assert (rest, error) == ([DONE, SAY] if cancelled else [], None)
    assert len(slow.told) == 1


@pytest.mark.parametrize("items", [[USAGE, DONE], [USAGE]], ids=["end", "stop"])
async def test_a_slow_callback_goes_on_by_itself(
    items: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """A slow callback delays the last item alone, for at most `complete_timeout`; later it finishes by itself."""
    slow = Slow()
    got, error = await consume(watched(Source(items), slow, complete_timeout=0.001))
    assert (got, error, slow.told) == (items, None, [])
    assert "goes on by itself" in caplog.text
    slow.may_finish.set()
    await slow.done.wait()
    assert len(slow.told) == 1


async def test_a_slow_callback_does_not_hold_a_cancellation_for_ever(leaving: Leaving) -> None:
    """A cancelled consumer waits for at most `complete_timeout` as well."""
    source, slow = Source([], "wait"), Slow()
    stream = watched(source, slow, complete_timeout=0.001)
    assert await leaving.leave(lambda: consume(stream), source.waiting.wait)
    assert slow.told == []
    slow.may_finish.set()
    await slow.done.wait()
    assert [seen.outcome for seen in slow.told] == ["cancelled"]


@pytest.mark.parametrize("kind", ["plain", "async", "later"])
async def test_a_raising_callback_is_logged(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """A callback that raises does not hurt the consumer: the items still flow."""
    calls = []

    def plain(observed: Observed) -> None:
        calls.append(observed)
        raise KeyError("callback")

    async def fails(observed: Observed) -> None:
        await anyio.lowlevel.checkpoint()
        plain(observed)

    async def raised() -> None:
        raise KeyError("callback")

    def later(observed: Observed) -> Awaitable[None]:
        calls.append(observed)
        return raised()

    items = [USAGE, DONE, SAY]
    on_complete = {"plain": plain, "async": fails, "later": later}[kind]
    assert await consume(watched(Source(items), on_complete)) == (items, None)
    assert len(calls) == 1
    assert "on_complete has failed" in caplog.text


async def test_the_callback_may_close_the_stream() -> None:
    """A callback that closes its own stream ends neither in a deadlock nor in a second call."""
    told: list[Observed] = []

    async def on_complete(observed: Observed) -> None:
        told.append(observed)
        await stream.aclose()

    source = Source([USAGE, DONE])
    stream = watched(source, on_complete)
    assert await consume(stream) == ([USAGE, DONE], None)
    assert (len(told), source.closed) == (1, 1)


async def test_a_consumer_that_goes_on_after_a_cancellation_gets_the_error_of_the_source(
    leaving: Leaving,
) -> None:
    """A cancellation while a failure is told does not make a clean end of it: the failure comes with the next step."""
    source, slow = Source([USAGE], BROKEN), Slow()
    stream = watched(source, slow)
    cancelled = await leaving.leave(lambda: consume(stream), slow.begun.wait, slow.let_go)
    assert cancelled == leaving.by_task
    assert await consume(stream) == ([], BROKEN if cancelled else None)
    assert await consume(stream) == ([], None)
    assert (len(slow.told), source.closed) == (1, 1)
