"""Sources: what is iterated, and that it is closed however the stream ends, also where it was never started."""

from __future__ import annotations

import gc
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import httpx
import pytest

from earmark.streams import observe_stream
from tests.streams.toys import DONE, SAY, USAGE, Told, Toy, take

pytestmark = pytest.mark.anyio


class Iterable:
    """An SDK's stream: iterating it makes a generator, and it has a close of its own."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.log: list[str] = []

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            for item in self.items:
                yield item
        finally:
            self.log.append("generator")

    async def close(self) -> None:
        """Async, as openai's and anthropic's streams have it."""
        self.log.append("close")


class Plain(Iterable):
    """One whose close is plain, as boto3's event stream has it."""

    def close(self) -> None:  # type: ignore[override]
        """Plain."""
        self.log.append("close")


class Both(Iterable):
    """One with two ways to close it: `aclose` is the async one, and comes first."""

    async def aclose(self) -> None:
        """The one that is called."""
        self.log.append("aclose")


class Bare:
    """An iterator with nothing to close."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if not self.items:
            raise StopAsyncIteration
        return self.items.pop(0)


async def at_the_end(stream: Any) -> None:
    """Iterate to the end."""
    async for _ in stream:
        pass


async def in_the_middle(stream: Any) -> None:
    """Close after one item."""
    await anext(stream)
    await stream.aclose()


async def before_it_began(stream: Any) -> None:
    """Close without an item."""
    await stream.aclose()


WAYS = [at_the_end, in_the_middle, before_it_began]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "own"), [(Iterable, "close"), (Plain, "close"), (Both, "aclose")])
async def test_a_source_is_closed_by_its_own(
    way: Callable[[Any], Awaitable[None]], kind: Any, own: str
) -> None:
    """The iterator and then the source are closed, once, by `aclose` or `close`, whichever there is."""
    source = kind([SAY, USAGE, DONE])
    await way(observe_stream(source, on_complete=Told(), dialect=Toy))
    began = way is not before_it_began
    assert source.log == (["generator", own] if began else [own])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [Iterable, Bare])
@pytest.mark.parametrize("plain", [True, False])
async def test_a_source_is_closed_by_what_was_given(
    way: Callable[[Any], Awaitable[None]], kind: Any, *, plain: bool
) -> None:
    """`aclose=` is called after the source's own, plain or async, also where iteration never began."""
    source = kind([SAY, USAGE, DONE])
    log = getattr(source, "log", [])

    async def later() -> None:
        log.append("given")

    stream = observe_stream(
        source,
        on_complete=Told(),
        dialect=Toy,
        aclose=(lambda: log.append("given")) if plain else later,
    )
    await way(stream)
    assert log[-1] == "given"
    assert log.count("given") == 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_source_that_cannot_be_closed(
    way: Callable[[Any], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    """A failure to close is raised by aclose(), and only logged at an end; what comes after is closed all the same."""
    told, closed = Told(), []

    class Stuck(Bare):
        async def aclose(self) -> None:
            raise ConnectionResetError

    stream = observe_stream(
        Stuck([SAY, USAGE]), on_complete=told, dialect=Toy, aclose=lambda: closed.append(1)
    )
    if way is at_the_end:
        await way(stream)
        assert "could not be closed" in caplog.text
    else:
        with pytest.raises(ConnectionResetError):
            await way(stream)
    assert (len(told), closed) == (1, [1])


async def test_a_source_that_never_finishes_closing() -> None:
    """Closing is bounded by `complete_timeout`, so that a dead connection holds nobody."""

    class Endless(Bare):
        async def aclose(self) -> None:
            await anyio.sleep_forever()

    told = Told()
    stream = observe_stream(Endless([]), on_complete=told, dialect=Toy, complete_timeout=0.001)
    with anyio.fail_after(10):
        await stream.aclose()
    assert told.only.outcome == "closed"


async def test_a_source_is_closed_under_a_cancelled_scope() -> None:
    """A close that waits finishes although the scope around it is cancelled."""
    closed = []

    class Waiting(Bare):
        async def aclose(self) -> None:
            await anyio.lowlevel.checkpoint()
            closed.append(1)

    stream = observe_stream(Waiting([SAY]), on_complete=Told(), dialect=Toy)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await stream.aclose()
    assert closed == [1]


async def test_dropped_without_a_loop_closes_what_can_be() -> None:
    """A dropped stream hands its closing to its loop, and a generator to the generator's own finaliser."""
    source = Iterable([SAY, USAGE])
    stream = observe_stream(source, on_complete=Told(), dialect=Toy)
    await anext(stream)
    del stream
    gc.collect()
    with anyio.fail_after(10):
        while len(source.log) < 2:
            await anyio.lowlevel.checkpoint()
    assert sorted(source.log) == ["close", "generator"]


def test_dropped_outside_of_any_loop() -> None:
    """Without a loop a plain close is called, and an async one cannot be."""
    for kind, log in ((Plain, ["close"]), (Iterable, [])):
        source = kind([SAY])
        stream = observe_stream(source, on_complete=Told(), dialect=Toy)
        del stream
        assert source.log == log


# ---------------------------------------------------------------- a real HTTP client

BODY = SAY + USAGE + DONE
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNKS = [b"%x\r\n%b\r\n" % (len(part), part) for part in (SAY, USAGE, DONE, b"")]
REPLY = HEAD + b"".join(CHUNKS)
SILENT = HEAD + CHUNKS[0]


@asynccontextmanager
async def provider(*, silent: bool = False) -> AsyncGenerator[str, None]:
    """A server on the loopback that answers each request with the stream, and keeps its connections.

    A silent one says nothing after the first event.
    """

    async def serve(connection: anyio.abc.SocketStream) -> None:
        async with connection:
            received = b""
            while True:
                try:
                    received += await connection.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return
                while b"\r\n\r\n" in received:
                    _, _, received = received.partition(b"\r\n\r\n")
                    try:
                        await connection.send(SILENT if silent else REPLY)
                    except anyio.BrokenResourceError:
                        return

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - this is no Django
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        yield f"http://127.0.0.1:{port}/"
        group.cancel_scope.cancel()


async def drop(stream: list[Any]) -> None:
    """Let go of a stream that was never started."""
    stream.clear()


async def take_one_and_drop(stream: list[Any]) -> None:
    """Let go of a stream after one item."""
    await anext(stream[0])
    stream.clear()


async def close_unstarted(stream: list[Any]) -> None:
    """Close a stream that was never started."""
    await stream[0].aclose()


async def leave_cancelled(stream: list[Any]) -> None:
    """Be cancelled in the middle, as a web server does with a handler whose client left."""
    with anyio.CancelScope() as scope:
        await anext(stream[0])
        scope.cancel()
        await anyio.lowlevel.checkpoint()
    stream.clear()


async def read_to_the_end(stream: list[Any]) -> None:
    """Read all of it."""
    assert b"".join([item async for item in stream[0]]) == BODY


# httpx leaves generators of its own behind where a stream is left early, of which trio warns.
@pytest.mark.filterwarnings(
    "ignore:.*async_generator object:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning")
@pytest.mark.parametrize(
    "way", [drop, take_one_and_drop, close_unstarted, leave_cancelled, read_to_the_end]
)
async def test_an_httpx_response_gives_its_connection_back(
    way: Callable[[list[Any]], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    """A pool of one connection serves one request after another, whatever became of the streams before."""
    caplog.set_level(logging.WARNING)
    told = Told()
    limits = httpx.Limits(max_connections=1)
    async with provider() as url, httpx.AsyncClient(limits=limits, timeout=10) as client:
        for count in range(1, 4):
            response = await client.send(client.build_request("GET", url), stream=True)
            stream = [
                observe_stream(
                    response.aiter_raw(), on_complete=told, dialect=Toy, aclose=response.aclose
                )
            ]
            del response
            await way(stream)
            assert len(told) == count
    assert not caplog.records
    if way is read_to_the_end:
        assert {(seen.outcome, seen.tokens) for seen in told} == {("end", 12)}


async def test_a_cancelled_httpx_stream_ends_for_good() -> None:
    """A wait in httpx that is cancelled is told as cancelled, once, and what follows is no clean end of its own."""
    told = Told()
    async with provider(silent=True) as url, httpx.AsyncClient(timeout=10) as client:
        response = await client.send(client.build_request("GET", url), stream=True)
        stream = observe_stream(
            response.aiter_raw(), on_complete=told, dialect=Toy, aclose=response.aclose
        )
        assert await anext(stream) == SAY
        async with anyio.create_task_group() as group:
            group.start_soon(take, stream)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        assert [item async for item in stream] == []
    assert (told.only.outcome, told.only.items) == ("cancelled", 1)
    assert response.is_closed
