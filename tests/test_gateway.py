"""What the gateway of examples/ answers and counts, in each way that a request can go.

People copy it, so it is tested like the library: every failure of the provider by the debit that it leaves, and a
client that leaves, on servers that cancel and on servers that let `send` raise. The provider is a transport of
httpx's; the whole over real HTTP is the demo's, in test_demo.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import pytest
from starlette.requests import ClientDisconnect

from earmark import Event, Limiter, Limits, MemoryBackend, Scope
from earmark.testing import ManualClock

pytestmark = pytest.mark.anyio

ROOT: Final = Path(__file__).parent.parent

answers: Any = import_module("examples.gateway.answers")
app: Any = import_module("examples.gateway.app")

PATH: Final = "/v1/chat/completions"
ALICE: Final = Scope("api_key:alice", Limits(rpm=10, tpm=1_000))
HEADERS: Final = {"authorization": "Bearer sk-alice"}
# A prompt of 10 tokens, and 190 of output.
CHAT: Final = {"model": "m", "messages": [{"role": "user", "content": "x" * 40}], "max_tokens": 190}
REPORT: Final = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}

CHUNKS: Final = (
    b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[],"usage":' + json.dumps(REPORT).encode() + b"}\n\n",
    b"data: [DONE]\n\n",
)

Provider = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The event loop that uvicorn runs on."""
    return "asyncio"


class Body(httpx.AsyncByteStream):
    """A body that yields chunks, then does what it was told, and knows whether it was closed."""

    def __init__(self, *chunks: bytes, then: Exception | anyio.Event | None = None) -> None:
        self._chunks = chunks
        self._then = then
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        if isinstance(self._then, anyio.Event):
            await self._then.wait()
        elif self._then is not None:
            raise self._then

    async def aclose(self) -> None:
        self.closed = True


class World:
    """A gateway for alice in front of a provider; what it counted, and what became of its reservations."""

    def __init__(self, provider: Provider) -> None:
        self.events: list[Event] = []
        backend = MemoryBackend(clock=ManualClock(20.0))
        self.limiter = Limiter(backend, observers=[self.events.append])
        self.upstream = httpx.AsyncClient(
            transport=httpx.MockTransport(provider), base_url="http://provider"
        )
        self.app = app.Gateway(self.limiter, {"sk-alice": ALICE}, self.upstream).app()

    async def used(self) -> tuple[int, int]:
        """The requests and tokens that are debited."""
        (status,) = await self.limiter.peek(ALICE)
        return status["requests"].used, status["tokens"].used

    @property
    def resolved(self) -> list[str]:
        """What became of the reservations, in order."""
        return [event.kind for event in self.events if event.kind not in {"admitted", "refused"}]


@asynccontextmanager
async def running(provider: Provider) -> AsyncIterator[tuple[World, httpx.AsyncClient]]:
    """A world, and a client of its gateway."""
    world = World(provider)
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(world.app), base_url="http://gateway", headers=HEADERS
    )
    async with world.upstream, client:
        yield world, client


def raising(error: type[httpx.TransportError]) -> Provider:
    """A provider that cannot be had."""

    def provider(request: httpx.Request) -> httpx.Response:
        message = "no answer"
        raise error(message, request=request)

    return provider


def answering(status: int, **body: Any) -> Provider:
    """A provider that answers in one piece."""
    content = json.dumps(body).encode()
    return lambda request: httpx.Response(status, stream=Body(content))


@pytest.mark.parametrize(
    ("provider", "status", "used", "resolved"),
    [
        # Never sent: everything is given back.
        (raising(httpx.ConnectError), 502, (0, 0), "cancelled"),
        (raising(httpx.ConnectTimeout), 502, (0, 0), "cancelled"),
        (raising(httpx.PoolTimeout), 502, (0, 0), "cancelled"),
        # Sent, outcome unknown: the debit stays.
        (raising(httpx.ReadTimeout), 502, (1, 200), "closed"),
        (raising(httpx.WriteError), 502, (1, 200), "closed"),
        (raising(httpx.RemoteProtocolError), 502, (1, 200), "closed"),
        (answering(500, error="oops"), 500, (1, 200), "closed"),
        (answering(529, error="overloaded"), 529, (1, 200), "closed"),
        (answering(200, choices=[]), 200, (1, 200), "closed"),
        # Refused and not billed: the tokens are given back.
        (answering(400, error="bad"), 400, (1, 0), "settled"),
        (answering(401, error="key"), 401, (1, 0), "settled"),
        (answering(429, error="slow down"), 429, (1, 0), "settled"),
        # Answered: what it says.
        (answering(200, object="chat.completion", usage=REPORT), 200, (1, 30), "settled"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_b15_b26_every_way_that_a_request_can_go(
    provider: Provider,
    status: int,
    used: tuple[int, int],
    resolved: str,
    stream: bool,
) -> None:
    """What happened decides what stays debited, and each reservation is resolved once."""
    async with running(provider) as (world, client):
        response = await client.post(PATH, json={**CHAT, "stream": stream})
        assert response.status_code == status
        assert await world.used() == used
        assert world.resolved == [resolved]


async def test_c44_a_whole_answer_that_breaks_off_keeps_its_debit() -> None:
    """The provider has begun to answer, and may have billed it."""
    body = Body(b'{"choices":', then=httpx.ReadError("broken"))
    async with running(lambda request: httpx.Response(200, stream=body)) as (world, client):
        assert (await client.post(PATH, json=CHAT)).status_code == 502
        assert await world.used() == (1, 200)
        assert world.resolved == ["closed"]
        assert body.closed


async def test_b32_a_stream_passes_untouched_and_settles_at_what_it_reports() -> None:
    """The provider is asked for the usage, uncompressed; the client gets its bytes and its media type."""
    asked: list[httpx.Request] = []
    body = Body(*CHUNKS)

    def provider(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, stream=body, headers={"content-type": "text/event-stream"})

    async with running(provider) as (world, client):
        response = await client.post(PATH, json={**CHAT, "stream": True})
        assert response.content == b"".join(CHUNKS)
        assert response.headers["content-type"].startswith("text/event-stream")
        assert await world.used() == (1, 30)
        assert world.resolved == ["settled"]
    assert body.closed
    (request,) = asked
    assert json.loads(request.content)["stream_options"] == {"include_usage": True}
    assert request.headers["accept-encoding"] == "identity"


async def test_b38_a_report_before_every_choice_has_finished_is_not_the_last_word() -> None:
    """Two choices were asked for and one has finished: the hold stays."""
    body = Body(*CHUNKS)
    async with running(lambda request: httpx.Response(200, stream=body)) as (world, client):
        await client.post(PATH, json={**CHAT, "n": 2, "stream": True})
        assert await world.used() == (1, 390)
        assert world.resolved == ["closed"]


@pytest.mark.parametrize(
    ("headers", "content", "status", "code"),
    [
        ({}, json.dumps(CHAT), 401, "invalid_api_key"),
        ({"authorization": "Bearer sk-mallory"}, json.dumps(CHAT), 401, "invalid_api_key"),
        (HEADERS, "no json", 400, "invalid_request_error"),
        (HEADERS, "{}", 400, "invalid_request_error"),
        (HEADERS, json.dumps({**CHAT, "max_tokens": -1}), 400, "invalid_request_error"),
        (HEADERS, json.dumps({**CHAT, "n": 10**9}), 400, "invalid_request_error"),
    ],
)
async def test_b9_what_fails_without_the_provider_counts_nothing(
    headers: dict[str, str], content: str, status: int, code: str
) -> None:
    """A key that is not known and a body that makes no sense never reach the limiter."""
    async with running(answering(200)) as (world, client):
        client.headers = httpx.Headers(headers)
        response = await client.post(PATH, content=content)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert await world.used() == (0, 0)
        assert world.events == []


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        ({}, 200),
        ({"n": 4}, 770),  # C34: the output is multiplied, the prompt is not
        ({"max_completion_tokens": 50}, 60),
        ({"max_tokens": None}, 1_010),
        ({"messages": [{"content": None}, {"role": "user"}]}, 190),
    ],
)
def test_c34_the_estimate_is_the_prompt_and_all_the_output_it_may_have(
    more: dict[str, Any], tokens: int
) -> None:
    """A token for four characters, and n times the output; a body that says nothing gets a default."""
    body = {name: value for name, value in {**CHAT, **more}.items() if value is not None}
    assert app.ChatRequest.model_validate(body).estimate().total == tokens


def http_scope(spec_version: str) -> dict[str, Any]:
    """A request of alice's, as a server of that version of ASGI passes it on."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": spec_version},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": PATH,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in HEADERS.items()],
    }


@pytest.mark.parametrize(
    ("sent", "resolved", "tokens"),
    [(0, "closed", 200), (1, "closed", 200), (2, "settled", 30)],
    ids=["before the first chunk", "after it", "with the usage in hand"],
)
async def test_b35_a_client_that_leaves_where_send_raises(
    sent: int, resolved: str, tokens: int
) -> None:
    """ASGI 2.4: `send` raises and the iterator is dropped; stream and source are closed all the same."""
    body = Body(*CHUNKS[:2])
    world = World(lambda request: httpx.Response(200, stream=body))
    messages = [{"type": "http.request", "body": json.dumps({**CHAT, "stream": True}).encode()}]
    passed: list[str] = []

    async def receive() -> dict[str, Any]:
        return messages.pop()

    async def send(message: dict[str, Any]) -> None:
        if len(passed) == sent:
            raise OSError
        passed.append(message["type"])

    with pytest.raises(ClientDisconnect):
        await world.app(http_scope("2.4"), receive, send)
    assert passed == ["http.response.start", "http.response.body"][:sent]
    assert world.resolved == [resolved]
    assert await world.used() == (1, tokens)
    assert body.closed
    await world.upstream.aclose()


async def test_b35_a_client_that_leaves_where_the_server_cancels() -> None:
    """ASGI 2.3: the task is cancelled while it waits for the provider; the debit stays, the provider is let go."""
    body = Body(CHUNKS[0], then=anyio.Event())
    world = World(lambda request: httpx.Response(200, stream=body))
    first = anyio.Event()
    requests = iter([json.dumps({**CHAT, "stream": True}).encode()])

    async def receive() -> dict[str, Any]:
        for request in requests:
            return {"type": "http.request", "body": request}
        await first.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            first.set()

    await world.app(http_scope("2.3"), receive, send)
    assert world.resolved == ["abandoned"]
    assert await world.used() == (1, 200)
    assert body.closed
    await world.upstream.aclose()


@pytest.mark.parametrize(
    ("provider", "status", "used"),
    [
        (raising(httpx.ConnectError), 502, (0, 0)),
        (answering(400, error="bad"), 400, (1, 0)),
        (answering(503, error="busy"), 503, (1, 1_050)),
        (lambda request: httpx.Response(200, stream=Body(*CHUNKS)), 200, (1, 30)),
        (
            lambda request: httpx.Response(
                200, stream=Body(*CHUNKS), headers={"content-type": "text/event-stream"}
            ),
            200,
            (1, 30),
        ),
    ],
)
async def test_the_sketch_in_the_readme_counts_as_the_gateway_does(
    provider: Provider, status: int, used: tuple[int, int]
) -> None:
    """The gateway that README shows resolves every reservation as its table of verbs says."""
    (sketch,) = re.findall(
        r"^```python\n((?:(?!```).)*^async def complete.*?)^```$",
        (ROOT / "README.md").read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    names: dict[str, Any] = {}
    exec(compile(sketch, "README.md", "exec", dont_inherit=True), names)  # noqa: S102 - it is ours
    await names["upstream"].aclose()
    names["limiter"] = Limiter(MemoryBackend(clock=ManualClock()))
    transport = httpx.ASGITransport(names["app"])
    async with (
        httpx.AsyncClient(
            transport=httpx.MockTransport(provider), base_url="http://provider"
        ) as names["upstream"],
        httpx.AsyncClient(
            transport=transport, base_url="http://gateway", headers=HEADERS
        ) as client,
    ):
        # 200 bytes: 50 tokens, and a thousand for the output.
        response = await client.post(PATH, content=json.dumps({**CHAT, "stream": True}).ljust(200))
    assert response.status_code == status
    if status != 502:  # the provider's type, whether it streams or not
        said = provider(httpx.Request("POST", PATH)).headers.get("content-type", "application/json")
        assert response.headers["content-type"].split(";")[0] == said
    (found,) = await names["limiter"].peek(names["scopes"]["Bearer sk-alice"])
    assert (found["requests"].used, found["tokens"].used) == used
    assert found["concurrency"].used == 0
