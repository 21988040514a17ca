"""`earmark.contrib.relay`: what becomes of a request that goes to one provider after the other.

What is charged where nobody has answered is a table in test_llm_gateway.py, over the gateway that is built with it.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final

import anyio
import httpx
import pytest
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from earmark import Limiter, Limits, MemoryBackend, RateLimited, Scope
from earmark.contrib.asgi import ReservedStream
from earmark.contrib.relay import relay
from earmark.testing import ManualClock

pytestmark = pytest.mark.anyio

ALICE: Final = Scope("api_key:alice", Limits(rpm=60, tpm=10_000, concurrency=2))
MAIN: Final = Scope("provider:main", Limits(rpm=600, concurrency=1))
SPARE: Final = Scope("provider:spare", Limits(rpm=600, concurrency=1))

REPORT: Final = b'"usage":{"prompt_tokens":10,"completion_tokens":20,"total_tokens":30}'
FINISHES: Final = b'data: {"choices":[{"index":%d,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE: Final = b'data: {"choices":[],' + REPORT + b"}\n\n"
DONE: Final = b"data: [DONE]\n\n"
WHOLE: Final = b'{"choices":[{"index":0,"message":{},"finish_reason":"stop"}],' + REPORT + b"}"


class Body(httpx.AsyncByteStream):
    """A provider's answer, which knows whether it was closed; after its pieces it may go on for ever."""

    def __init__(self, *pieces: bytes, hangs: bool = False) -> None:
        self._pieces = pieces
        self._hangs = hangs
        self.read = anyio.Event()
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        self.read.set()
        if self._hangs:
            await anyio.sleep_forever()

    async def aclose(self) -> None:
        self.closed = True


class World:
    """A limiter, and two providers; what the second answers is told where it matters."""

    def __init__(
        self,
        answer: Body,
        other: Body | None = None,
        *,
        status: int = 200,
        headers: dict[str, bytes] | None = None,
    ) -> None:
        self.limiter = Limiter(MemoryBackend(clock=ManualClock(20.0)))
        self.answer = answer
        self._answers = {"main": answer, "spare": other or answer}
        self.asked: list[str] = []
        self._status = status
        said = {"content-type": b"application/x-own", "retry-after": b"7", "x-secret": b"1"}
        self._headers = [(name.encode(), value) for name, value in (said | (headers or {})).items()]
        self._client = httpx.AsyncClient(transport=httpx.MockTransport(self._provider))

    def _provider(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.host)
        stream = self._answers[request.url.host]
        return httpx.Response(self._status, headers=self._headers, stream=stream)

    async def send(self, **body: Any) -> Response:
        targets = [
            (scope, self._client.build_request("POST", f"http://{name}/"))
            for name, scope in (("main", MAIN), ("spare", SPARE))
        ]
        async with self.limiter.once(ALICE, tokens=3_000) as once:
            return await relay(once, self._client, targets, body)

    async def used(self, scope: Scope = ALICE) -> dict[str, int]:
        (status,) = await self.limiter.peek(scope)
        return {one.limit.metric: one.used for one in status.limits}


async def said(response: Response) -> bytes:
    """What the client gets."""
    assert isinstance(response, ReservedStream)
    return b"".join([piece async for piece in response.body_iterator if isinstance(piece, bytes)])


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (None, False),
        ({}, False),
        ({"include_usage": False}, False),
        ({"include_usage": True}, True),
    ],
)
async def test_b64_the_report_is_shown_to_a_client_that_asked(options: object, shown: bool) -> None:
    """B64: it is settled by in any case."""
    world = World(Body(FINISHES % 0, USAGE, DONE))
    response = await world.send(stream=True, stream_options=options)
    assert (USAGE in await said(response)) is shown
    assert await world.used() == {"requests": 1, "tokens": 30, "concurrency": 0}
    assert world.answer.closed


@pytest.mark.parametrize(("finished", "tokens"), [(1, 3_000), (2, 30)])
async def test_b38_a_stream_is_settled_when_every_choice_has_finished(
    finished: int, tokens: int
) -> None:
    """B38: of two choices that were asked for one may be missing, and then the hold stays."""
    ends = [FINISHES % index for index in range(finished)]
    world = World(Body(*ends, USAGE, DONE))
    await said(await world.send(stream=True, n=2))
    assert (await world.used())["tokens"] == tokens


@pytest.mark.parametrize(("status", "tokens"), [(200, 30), (400, 0), (500, 3_000)])
async def test_c44_a_whole_answer_is_passed_on_and_settled(status: int, tokens: int) -> None:
    """C44: by its usage, at nothing where it is a refusal that nobody bills, or not at all."""
    world = World(Body(WHOLE if status == 200 else b"{}"), status=status)
    response = await world.send(stream=status != 200)
    assert (response.status_code, bytes(response.body)) == (
        status,
        WHOLE if status == 200 else b"{}",
    )
    assert response.headers["content-type"] == "application/x-own"
    assert response.headers["retry-after"] == "7"
    assert response.headers["x-ratelimit-remaining-tokens"] == "7000"
    assert "x-secret" not in response.headers
    assert await world.used() == {"requests": 1, "tokens": tokens, "concurrency": 0}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_type_that_cannot_be_sent_is_left_out(stream: bool) -> None:
    """C1: the client gets the answer, which is counted, whatever the provider calls it."""
    body = Body(FINISHES % 0, USAGE, DONE) if stream else Body(WHOLE)
    world = World(body, headers={"content-type": "text/plain; name=→".encode()})
    response = await world.send(stream=stream)
    assert response.headers["content-type"] == "application/json"
    if stream:
        await said(response)
    assert await world.used() == {"requests": 1, "tokens": 30, "concurrency": 0}
    assert world.answer.closed


async def test_b63_a_compressed_stream_passes_through_and_says_so() -> None:
    """B63, C69: its bytes are untouched, so the client hears how they are coded; a whole answer is decoded."""
    coded = gzip.compress(FINISHES % 0 + USAGE + DONE)
    world = World(Body(coded), headers={"content-encoding": b"gzip"})
    response = await world.send(stream=True)
    assert response.headers["content-encoding"] == "gzip"
    assert await said(response) == coded
    assert await world.used() == {"requests": 1, "tokens": 3_000, "concurrency": 0}
    world = World(Body(gzip.compress(WHOLE)), headers={"content-encoding": b"gzip"})
    response = await world.send()
    assert "content-encoding" not in response.headers
    assert response.body == WHOLE
    assert (await world.used())["tokens"] == 30


async def test_c44_a_provider_that_refuses_unbilled_gets_all_back_before_the_next_one() -> None:
    """C44: its connection too; of the last one the refusal is the answer, and counts as a request that used nothing."""
    refusals = Body(b"{}"), Body(b"{}")
    world = World(*refusals, status=429)
    assert (await world.send()).status_code == 429
    assert world.asked == ["main", "spare"]
    assert all(refusal.closed for refusal in refusals)
    assert (await world.used(MAIN))["requests"] == 0
    assert (await world.used(SPARE))["requests"] == 1
    assert await world.used() == {"requests": 1, "tokens": 0, "concurrency": 0}


async def test_b35_a_client_that_is_gone_before_the_stream_begins_lets_the_provider_go() -> None:
    """B35: nothing of it was read, so that nothing but the response itself knows of the connection."""
    world = World(Body(FINISHES % 0, USAGE, DONE))
    response = await world.send(stream=True)
    connection = {"type": "http", "asgi": {"spec_version": "2.4"}}

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(_: object) -> None:
        raise OSError

    with pytest.raises(ClientDisconnect):
        await response(connection, receive, send)
    assert world.answer.closed
    assert await world.used() == {"requests": 1, "tokens": 3_000, "concurrency": 0}


async def test_c29_a_provider_without_room_is_passed_over() -> None:
    """C29: the next one is asked, and the request counts once; where none has room, the last refusal is the answer."""
    world = World(Body(WHOLE))
    async with await world.limiter.pre_commit(MAIN):
        await world.send()
        assert world.asked == ["spare"]
        assert (await world.used())["requests"] == 1
        async with await world.limiter.pre_commit(SPARE):
            with pytest.raises(RateLimited) as refusal:
                await world.send()
    assert [denial.key for denial in refusal.value.denials] == [SPARE.key]
    assert (await world.used())["requests"] == 1


async def test_c29_a_request_that_is_refused_asks_nobody() -> None:
    """C29: its own scopes' refusal is final, and no provider counts anything."""
    world = World(Body(WHOLE))
    async with await world.limiter.pre_commit(ALICE), await world.limiter.pre_commit(ALICE):
        with pytest.raises(RateLimited) as refusal:
            await world.send()
    assert [denial.key for denial in refusal.value.denials] == [ALICE.key]
    assert not world.asked
    assert (await world.used(MAIN))["requests"] == 0


async def by_scope(work: Callable[[], Any], reached: anyio.Event) -> None:
    """Cancel it as anyio does."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await reached.wait()
        tasks.cancel_scope.cancel()


async def by_task(work: Callable[[], Any], reached: anyio.Event) -> None:
    """Cancel it as asyncio does."""
    task = asyncio.get_running_loop().create_task(work())
    await reached.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


@pytest.mark.parametrize("cancel", [by_scope, by_task])
async def test_r16_a_client_that_leaves_before_the_answer_is_whole_keeps_its_debit(
    cancel: Callable[[Callable[[], Any], anyio.Event], Any], anyio_backend_name: str
) -> None:
    """R16, R7: the provider is let go, the slots are free, and nobody else is asked."""
    if cancel is by_task and anyio_backend_name == "trio":
        pytest.skip("asyncio alone has it")
    world = World(Body(b"{", hangs=True))
    await cancel(world.send, world.answer.read)
    assert world.asked == ["main"]
    assert world.answer.closed
    assert await world.used() == {"requests": 1, "tokens": 3_000, "concurrency": 0}
    assert await world.used(MAIN) == {"requests": 1, "concurrency": 0}
