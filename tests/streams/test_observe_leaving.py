"""What a gateway may choose where its client leaves early, or did not ask for usage: draining and hiding."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earmark.streams import Observed, ObservedStream, observe_stream
from earmark.usage import Usage
from tests.scale import examples
from tests.streams.test_observe import Model, ServerSent
from tests.streams.toys import (
    CALLBACKS,
    DONE,
    SAY,
    USAGE,
    Source,
    Told,
    Toy,
    consume,
    cut,
    generate,
    sse,
    take,
)

pytestmark = pytest.mark.anyio

# ---------------------------------------------------------------- hiding: B64

LONG = sse({"say": "x" * 40_000})
LONG_USAGE = sse({"usage": {"in": 9, "out": 3, "pad": "x" * 40_000}})
BOTH = sse({"usage": {"in": 9, "out": 3}, "say": "both"})
NULL = sse({"usage": None, "say": "x"})

HIDDEN: list[tuple[str, list[Any], list[Any] | None]] = [
    ("an item of its own", [SAY, USAGE, DONE], [SAY, DONE]),
    ("between others in one item", [SAY + USAGE + DONE], [SAY + DONE]),
    ("cut in two", [SAY, USAGE[:9], USAGE[9:] + DONE], [SAY, DONE]),
    ("text", [SAY.decode(), USAGE.decode() + DONE.decode()], [SAY.decode(), DONE.decode()]),
    ("a bytearray", [bytearray(SAY), bytearray(USAGE + DONE)], [bytearray(SAY), DONE]),
    ("a memoryview", [memoryview(SAY), memoryview(USAGE + DONE)], [memoryview(SAY), DONE]),
    ("a memoryview cut in two", [memoryview(USAGE[:9]), memoryview(USAGE[9:] + DONE)], [DONE]),
    ("no blank line at the end", [SAY, USAGE[:-2]], [SAY]),
    ("no line end at the end", [SAY, DONE[:-2]], [SAY, DONE[:-2]]),
    ("usage beside something else", [BOTH, NULL, DONE], [BOTH, NULL, DONE]),
    ("blank lines around it", [b"\n\n" + USAGE + b"\n" + DONE], [b"\n\n\n" + DONE]),
    ("a comment before it goes too", [SAY, b": hi\n" + USAGE, DONE], [SAY, DONE]),
    ("half an event, then the end of the source", [SAY[:7]], [SAY[:7]]),
    ("a long event passes in pieces", [*cut(LONG, range(0, 40_000, 10_000)), DONE], None),
    (
        "a long event that ends like a report",
        [b"data: " + b"x" * 40_000, b"\n" + USAGE, DONE],
        [b"data: " + b"x" * 40_000, b"\n" + USAGE, DONE],
    ),
    ("a report longer than any", [*cut(LONG_USAGE, range(0, 40_000, 10_000)), DONE], None),
    (
        "mappings",
        [{"say": "x"}, {"usage": {"in": 9, "out": 3}}, {"say": "y"}],
        [{"say": "x"}, {"say": "y"}],
    ),
    (
        "objects",
        [Model(say="x"), Model.model_validate({"usage": {"in": 9, "out": 3}})],
        [Model(say="x")],
    ),
    (
        "cut-out events",
        [ServerSent(json.dumps({"usage": {}})), ServerSent("[DONE]")],
        [ServerSent("[DONE]")],
    ),
    (
        "NDJSON is left as it is",
        [b'{"usage":{"in":9}}\n', b"{}\n"],
        [b'{"usage":{"in":9}}\n', b"{}\n"],
    ),
    ("compressed", [b"\x1f\x8b" + USAGE], [b"\x1f\x8b" + USAGE]),
    ("no stream at all", [b"<html>", b"</html>"], [b"<html></html>"]),
]


@pytest.mark.parametrize(
    ("items", "expected"), [row[1:] for row in HIDDEN], ids=[row[0] for row in HIDDEN]
)
async def test_hide_usage(items: list[Any], expected: list[Any] | None) -> None:
    """B64: the usage-only event is kept from the client, nothing else changes, and it counts all the same."""
    told, plain = Told(), Told()
    stream = observe_stream(generate(items), on_complete=told, dialect=Toy, hide_usage=True)
    out = [item async for item in stream]
    if expected is None:
        assert b"".join(out) == b"".join(items)
    else:
        assert out == expected
    async for _ in observe_stream(generate(items), on_complete=plain, dialect=Toy):
        pass
    assert told.only == plain.only == stream.observed
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_what_hides_nothing_is_the_very_item() -> None:
    """B64: a piece in which nothing is hidden goes on as the object that it was."""
    items = [SAY, bytearray(SAY), memoryview(SAY), SAY.decode(), SAY + SAY, {"say": "x"}]
    stream = observe_stream(generate(items), on_complete=Told(), dialect=Toy, hide_usage=True)
    out = [item async for item in stream]
    assert all(got is given for got, given in zip(out, items, strict=True))


LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                b'data: {"say": "x"}',
                b'data: {"usage": {"in": 1, "out": 2}}',
                b"data: [DONE]",
                b": c",
                b"event: e",
                b'data: {"usage"',
            ]
        ),
        LINE_ENDS,
        LINE_ENDS,
    ),
    max_size=8,
)


@settings(max_examples=examples(400))
@given(EVENTS, st.lists(st.integers(0, 400), max_size=8))
def test_hiding_at_any_cut(events: list[tuple[bytes, bytes, bytes]], places: list[int]) -> None:
    """B64: with any line ends and any cutting, what is missing is that event, with its lines, and nothing else."""
    body = b"".join(line + one + two for line, one, two in events)
    kept = b"".join(line + one + two for line, one, two in events if b'"out"' not in line)
    # One LF after a CR is the second half of a CRLF and no line of its own: such bodies say something else.
    if re.search(
        rb"\r\n", b"".join(one + b"|" + two for _, one, two in events).replace(b"\r\n", b"")
    ):
        return
    if any(one == b"\r" and two == b"\n" for _, one, two in events):
        return
    told = Told()

    async def everything() -> bytes:
        stream = observe_stream(
            generate(cut(b"data: {}\n\n" + body, places)),
            on_complete=told,
            dialect=Toy,
            hide_usage=True,
        )
        return b"".join([item async for item in stream])

    assert by_hand(everything) == b"data: {}\n\n" + kept


def by_hand(call: Callable[[], Any]) -> Any:
    """Run a call that never suspends."""
    coroutine = call()
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    pytest.fail("it suspended")


async def test_hidden_and_an_error() -> None:
    """What was held back comes before the error that follows it, and the error then."""
    told = Told()
    stream = observe_stream(
        Source([SAY, USAGE[:9]], OSError("reset")), on_complete=told, dialect=Toy, hide_usage=True
    )
    assert [await anext(stream), await anext(stream)] == [SAY, USAGE[:9]]
    with pytest.raises(OSError, match="reset"):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert told.only.outcome == "error"


async def test_hidden_and_left() -> None:
    """A hiding stream is closed, dropped and refuses a second consumer as any other."""
    source, told = Source([SAY, USAGE], "wait"), Told()
    stream = observe_stream(source, on_complete=told, dialect=Toy, hide_usage=True)
    await anext(stream)
    async with anyio.create_task_group() as group:
        group.start_soon(take, stream)
        await source.waiting.wait()
        with pytest.raises(RuntimeError, match="another task"):
            await anext(stream)
        group.cancel_scope.cancel()
    await stream.aclose()
    assert (told.only.outcome, told.only.usage, source.closed) == ("cancelled", Usage(9, 3), 1)
    dropped = Told()
    stream = observe_stream(Source([SAY]), on_complete=dropped, dialect=Toy, hide_usage=True)
    del stream
    assert dropped.only.outcome == "dropped"
    await anyio.lowlevel.checkpoint()


# ---------------------------------------------------------------- drain


class Upstream(Source):
    """A source that goes on when it is told to, and dies of a cancellation, as an HTTP client's does."""

    def __init__(self, items: list[Any], ending: BaseException | str = "stop") -> None:
        super().__init__(items, ending)
        self.go_on = anyio.Event()
        self.stuck = anyio.Event()
        self.dead = False

    async def __anext__(self) -> Any:
        if self.dead:
            raise StopAsyncIteration
        try:
            if self.given == 1:
                self.stuck.set()
                await self.go_on.wait()
            return await super().__anext__()
        except BaseException as error:
            self.dead = not isinstance(error, Exception)
            raise


WAYS = pytest.mark.parametrize("way", ["cancelled", "closed", "dropped"])


async def leave(stream: list[Any], way: str, source: Upstream) -> None:
    """Take one item, and leave while the source is silent."""
    assert await anext(stream[0]) == SAY
    if way == "cancelled":
        async with anyio.create_task_group() as group:
            group.start_soon(take, stream[0])
            await source.stuck.wait()
            group.cancel_scope.cancel()
    elif way == "closed":
        await stream[0].aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(stream[0])
    stream.clear()
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


@CALLBACKS
@WAYS
async def test_drain_reads_on(told_by: type[Told], way: str) -> None:
    """A consumer that leaves before the usage is known does not lose it: the source is read to its end."""
    source, told = Upstream([SAY, USAGE, DONE]), told_by()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            stream = [
                observe_stream(source, on_complete=told, dialect=Toy, drain=60, task_group=group)
            ]
            await leave(stream, way, source)
            assert not told
            source.go_on.set()
    assert (told.only.outcome, told.only.usage, told.only.authoritative) == (
        "end",
        Usage(9, 3),
        True,
    )
    assert (source.closed, source.given) == (1, 3)


@WAYS
async def test_drain_gives_up(way: str) -> None:
    """After so many seconds it is told as the consumer left it."""
    source, told = Upstream([SAY, USAGE, DONE]), Told()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            stream = [
                observe_stream(source, on_complete=told, dialect=Toy, drain=0.001, task_group=group)
            ]
            await leave(stream, way, source)
    assert (told.only.outcome, told.only.usage, source.closed) == (way, None, 1)


@pytest.mark.parametrize("ending", ["stop", OSError("reset")], ids=["stop", "error"])
@pytest.mark.parametrize("hide_usage", [False, True])
async def test_a_drained_stream_that_nobody_leaves(ending: Any, *, hide_usage: bool) -> None:
    """The consumer has the same items and the same error, and nothing is told twice."""
    items = [SAY, SAY, USAGE, DONE]
    source, told = Source(items, ending), Told()
    results = []
    async with anyio.create_task_group() as group:
        stream = observe_stream(
            source, on_complete=told, dialect=Toy, drain=1, task_group=group, hide_usage=hide_usage
        )
        results.append(await consume(stream))
        assert stream.observed is told.only
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    error = ending if isinstance(ending, OSError) else None
    assert results == [([SAY, SAY, DONE] if hide_usage else items, error)]
    assert (told.only.outcome, source.closed) == ("end", 1)


async def test_a_drained_stream_reads_one_item_for_each_that_is_asked_for() -> None:
    """No read-ahead while the consumer is there, and the end is told before it is delivered (B32)."""
    items = [SAY, USAGE, DONE]
    source, told = Source(items), Told()
    async with anyio.create_task_group() as group:
        stream = observe_stream(source, on_complete=told, dialect=Toy, drain=1, task_group=group)
        for count, item in enumerate(items, 1):
            await anyio.wait_all_tasks_blocked()
            assert source.given == count - 1
            assert await anext(stream) == item
            assert bool(told) == (item is DONE)
        await stream.aclose()


async def test_a_source_that_fails_while_it_is_drained() -> None:
    """An error after the consumer has gone is told, and does not end the task group."""
    source, told = Upstream([SAY, USAGE], OSError("reset")), Told()
    async with anyio.create_task_group() as group:
        stream = [observe_stream(source, on_complete=told, dialect=Toy, drain=60, task_group=group)]
        await leave(stream, "closed", source)
        source.go_on.set()
    assert (told.only.outcome, told.only.usage) == ("error", Usage(9, 3))


async def test_left_after_the_end_was_told() -> None:
    """What was told cannot change, so the source is not read on but closed."""
    source, told = Source([USAGE, DONE], "wait"), Told()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            stream = observe_stream(
                source, on_complete=told, dialect=Toy, drain=60, task_group=group
            )
            await anext(stream)
            await anext(stream)
            await stream.aclose()
    assert (told.only.outcome, source.closed, source.waiting.is_set()) == ("end", 1, False)


async def ask_in_vain(stream: ObservedStream[Any], errors: list[Any]) -> None:
    """Ask for an item that nobody reads any more."""
    with pytest.raises(RuntimeError, match="was cancelled") as error:
        await anext(stream)
    errors.append(error)


@pytest.mark.parametrize("asking", [True, False])
async def test_the_task_group_is_cancelled(*, asking: bool) -> None:
    """Where the task group ends first the stream is told, and a consumer elsewhere does not wait for ever."""
    source, told = Upstream([SAY, USAGE]), Told()
    errors: list[Any] = []
    streams: list[ObservedStream[Any]] = []
    with anyio.fail_after(10):
        async with anyio.create_task_group() as outside, anyio.create_task_group() as group:
            stream = observe_stream(
                source, on_complete=told, dialect=Toy, drain=60, task_group=group
            )
            streams.append(stream)
            await anext(stream)
            if asking:
                outside.start_soon(ask_in_vain, stream, errors)
                await source.stuck.wait()
            group.cancel_scope.cancel()
        if not asking:
            await ask_in_vain(streams[0], errors)
    assert len(errors) == 1
    assert (told.only.outcome, source.closed) == ("cancelled", 1)


async def test_drain_refuses_a_second_consumer() -> None:
    """A second concurrent `__anext__` is refused, and the first is not disturbed."""
    source, told = Upstream([SAY, DONE]), Told()
    async with anyio.create_task_group() as group:
        stream = observe_stream(source, on_complete=told, dialect=Toy, drain=60, task_group=group)
        await anext(stream)
        group.start_soon(take, stream)
        await source.stuck.wait()
        with pytest.raises(RuntimeError, match="another task"):
            await anext(stream)
        source.go_on.set()
        await anyio.wait_all_tasks_blocked()
        await stream.aclose()
    assert told.only.outcome == "end"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"drain": 5}, "task_group"),
        ({"drain": 0}, "drain"),
        ({"drain": True}, "True"),
        ({"task_group": object()}, "drain"),
    ],
)
def test_bad_drains(options: dict[str, Any], words: str) -> None:
    """Drain and task group come together, and drain is a number of seconds."""
    with pytest.raises(ValueError, match=words):
        observe_stream(Source([]), on_complete=Told(), **options)


def test_the_loop_is_gone_while_it_drains() -> None:
    """Dropped after its loop has gone, a stream that drained ends nothing and raises nothing."""
    held: list[Any] = []
    noted: list[Observed] = []

    async def begin() -> None:
        async with anyio.create_task_group() as group:
            source = Source([SAY])
            held.append(
                observe_stream(
                    source, on_complete=noted.append, dialect=Toy, drain=1, task_group=group
                )
            )
            group.cancel_scope.cancel()

    anyio.run(begin)
    held.clear()
    assert [seen.outcome for seen in noted] == ["cancelled"]
