"""The SDKs of OpenAI, Anthropic and Google as clients of a real server, and their streaming objects as sources.

What an SDK makes of a stream is its own affair: it drops `[DONE]` and pings, raises errors that came in the body, and
stacks generators of which Python closes only the outermost. So the real ones are asked, over HTTP, what an observer
sees of them, and whether the connection comes back however a stream is left.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, Final

import anyio
import pytest

from earmark import (
    Event,
    Limiter,
    Limits,
    MemoryBackend,
    Scope,
    Usage,
    observe_stream,
    usage_from_response,
)
from earmark.testing import ManualClock
from earmark.testing.streams.bodies import ALL
from earmark.testing.streams.bodies.chunks import bare, counts, details
from earmark.testing.streams.bodies.good_day import CHAT, CONTENT, MESSAGE, RESPONSE
from earmark.testing.streams.bodies.shape import DONE, Stream
from tests.streams.loopback import Provider, gateway, served
from tests.streams.sdks import CHUNKS, CONTENTS, MESSAGES, RESPONSES, Call, Sdks, each_call
from tests.streams.toys import Told

pytestmark = [
    pytest.mark.anyio,
    # The SDKs do not close the generators that they are made of, not even at an end; trio warns of each.
    pytest.mark.filterwarnings(
        "ignore:Async generator '(openai|anthropic|httpx2|httpcore2)\\.:ResourceWarning"
    ),
    # Two of them that are left at once get into each other's way.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <async_generator object (Response\\.aiter_|BoundAsyncStream\\.__aiter__):"
        "pytest.PytestUnraisableExceptionWarning"
    ),
]

HOLD: Final = 200
ALICE: Final = Scope("api_key:alice", Limits(tpm=10_000, concurrency=1))


@pytest.fixture(scope="module")
def provider() -> Generator[Provider, None, None]:
    """The server that all of them talk to."""
    with served(Provider()) as provider:
        yield provider


@pytest.fixture
async def sdks(provider: Provider) -> AsyncIterator[Sdks]:
    """The SDKs, on a pool of one connection."""
    import httpx2  # the HTTP client of all three

    limits = httpx2.Limits(max_connections=1)
    # Trusted certificates would take longer to load than all the rest.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    async with httpx2.AsyncClient(limits=limits, verify=context, trust_env=False) as http:
        yield Sdks(provider.url, http)


class World:
    """A limiter, and what it told of its reservations."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        backend = MemoryBackend(clock=ManualClock())
        self.limiter = Limiter(backend, observers=[self.events.append])

    async def used(self) -> tuple[int, int]:
        """The tokens and the slots that are used."""
        (status,) = await self.limiter.peek(ALICE)
        return status["tokens"].used, status["concurrency"].used


# ---------------------------------------------------------------- what is seen

# What an SDK keeps to itself of the hand-written streams, and what is left to see then.
NOTHING: Final = (None, False, "truncated")
KEPT_BACK: Final = {
    # an event without a name, and with it the whole stream
    "anthropic: the type within the event decides, not its name": NOTHING,
    # no server of Google's sends such names: the SDK passes on none of it
    "gemini: the names of the SDK": NOTHING,
    # the name of an event
    "an event named error, whatever is in it": NOTHING,
    # the end, where it says something that the finish reasons do not
    "B38: n = 2, one choice finished, at a clean end": (
        Usage(10, 9, reported_total=19),
        False,
        "truncated",
    ),
    "nothing but the end": NOTHING,
    # a chunk with an error, which is raised instead
    "openrouter: an error and a usage in one chunk": (None, False, "error"),
}
BODIES: Final = [
    pytest.param(call, body, id=body.name)
    for call in (CHUNKS, RESPONSES, MESSAGES, CONTENTS)
    for body in ALL
    if body.dialect == call.body.dialect
]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # an item says the same on any loop
@pytest.mark.parametrize(("call", "body"), BODIES)
async def test_b33_the_items_of_an_sdk_say_what_the_body_said(
    call: Call, body: Stream, provider: Provider, sdks: Sdks
) -> None:
    """Usage, authority and outcome are those of the bytes, but for what the SDK keeps to itself."""
    told = Told()
    source = await call.open(sdks, provider.model(body.sse()))
    stream = observe_stream(source, on_complete=told, expected_choices=body.n)
    error: Exception | None = None
    try:
        async for _ in stream:
            pass
    except Exception as raised:  # noqa: BLE001 - an SDK raises the provider's errors as its own
        error = raised
    seen = told.only
    expected = KEPT_BACK.get(body.name, (body.usage, body.authoritative, body.outcome))
    assert (seen.usage, seen.authoritative, seen.outcome) == expected
    assert error is None or seen.error is error


class Tap:
    """An SDK's stream that remembers what it gave last, and how that looked."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.count = 0
        self.given: Any = None
        self.looked = ""

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for item in self._stream:
            self.count += 1
            self.given = item
            self.looked = item.model_dump_json(warnings=False)
            yield item


@each_call
async def test_the_items_of_an_sdk_pass_untouched(
    call: Call, provider: Provider, sdks: Sdks
) -> None:
    """What comes out is the very objects that the SDK made, in order, as it made them; their text is measured once."""
    told = Told()
    tap = Tap(await call.open(sdks, provider.model(call.body.sse())))
    stream = observe_stream(tap, on_complete=told, estimate=lambda _: None)
    count = 0
    async for item in stream:
        count += 1
        assert item is tap.given
        assert item.model_dump_json(warnings=False) == tap.looked
    assert (told.only.items, tap.count) == (count, count)
    assert told.only.text_length == len("Good day")
    assert told.only.dialect == call.body.dialect


@each_call
async def test_b32_the_tokens_are_counted_before_the_end_is_seen(
    call: Call, provider: Provider, sdks: Sdks
) -> None:
    """Settled before the last item where that marks the end, else before the iteration ends; no slot is left."""
    world = World()
    reservation = await world.limiter.pre_commit(ALICE, tokens=HOLD)
    stream = reservation.stream(await call.open(sdks, provider.model(call.body.sse())))
    states = [reservation.state async for _ in stream]
    assert set(states[:-1]) == {"open"}
    assert states[-1] == ("settled" if call.marked else "open")
    assert [event.kind for event in world.events] == ["admitted", "settled"]
    assert call.body.usage is not None
    assert await world.used() == (call.body.usage.total, 0)


# ---------------------------------------------------------------- how it is left


async def close(stream: list[Any]) -> None:
    """Close it."""
    await stream[0].aclose()


async def drop(stream: list[Any]) -> None:
    """Let go of it."""
    stream.clear()


async def close_begun(stream: list[Any]) -> None:
    """Close it after one item."""
    await anext(stream[0])
    await stream[0].aclose()


async def drop_begun(stream: list[Any]) -> None:
    """Let go of it after one item."""
    await anext(stream[0])
    stream.clear()


async def wait_cancelled(stream: list[Any]) -> None:
    """Be cancelled while waiting for what does not come, by a scope, as Starlette does it."""
    begun = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(read, stream[0], begun)
        await begun.wait()
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert [item async for item in stream[0]] == []


async def read(stream: AsyncIterator[Any], begun: anyio.Event) -> None:
    """Read all that comes."""
    async for _ in stream:
        begun.set()


Way = Callable[[list[Any]], Awaitable[None]]
# Each with the outcome, and whether the stream had begun.
WAYS: Final[dict[Way, tuple[str, bool]]] = {
    close: ("closed", False),
    drop: ("dropped", False),
    close_begun: ("closed", True),
    drop_begun: ("dropped", True),
    wait_cancelled: ("cancelled", True),
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@each_call
async def test_b65_a_stream_of_an_sdk_is_left(
    call: Call, way: Way, provider: Provider, sdks: Sdks
) -> None:
    """The one connection comes back, the slot as well, and at least the hold stays, and what was reported."""
    outcome, begun = WAYS[way]
    world, told = World(), Told()
    model = provider.model(call.begun(), silent=True)
    aclose = sdks.close_response if call is CONTENTS else None
    owed = max(HOLD, call.reported) if begun else HOLD
    with anyio.fail_after(10):
        for count in (1, 2):
            reservation = await world.limiter.pre_commit(ALICE, tokens=HOLD)
            await way([reservation.stream(await call.open(sdks, model), aclose=aclose)])
            assert await world.used() == (count * owed, 0)
        source = await call.open(sdks, model)
        stream = [observe_stream(source, on_complete=told, aclose=aclose)]
        del source
        await way(stream)
    assert told.only.outcome == outcome
    kind = "closed" if outcome == "closed" else "abandoned"
    assert [event.kind for event in world.events] == ["admitted", kind] * 2


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("call", [CHUNKS, MESSAGES, CONTENTS], ids=lambda call: call.open.__name__)
async def test_c42_the_task_that_reads_an_sdk_is_cancelled(
    call: Call, provider: Provider, sdks: Sdks
) -> None:
    """`Task.cancel()` in the SDK's wait is told once, as cancelled; what follows is nothing, and no clean end."""
    told = Told()
    source = await call.open(sdks, provider.model(call.begun(), silent=True))
    stream = observe_stream(source, on_complete=told, aclose=sdks.close_response)
    begun = anyio.Event()
    task = asyncio.create_task(read(stream, begun))
    await begun.wait()
    await anyio.wait_all_tasks_blocked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [item async for item in stream] == []
    assert (told.only.outcome, told.only.items) == ("cancelled", 1)


@each_call
async def test_a_stream_of_an_sdk_is_read_on(call: Call, provider: Provider, sdks: Sdks) -> None:
    """With `drain` the provider's own count is settled although the consumer left, and the connection comes back."""
    world = World()
    model = provider.model(call.body.sse())
    with anyio.fail_after(10):
        for _ in range(3):
            async with world.limiter:
                reservation = await world.limiter.pre_commit(ALICE, tokens=HOLD)
                stream = reservation.stream(await call.open(sdks, model), drain=10)
                await anext(stream)
                await stream.aclose()
            assert reservation.state == "settled"
    assert call.body.usage is not None
    assert await world.used() == (3 * (call.body.usage.total or 0), 0)


# ---------------------------------------------------------------- what belongs to it


@pytest.mark.parametrize("anyio_backend", CHUNKS.backends)
async def test_b64_the_usage_is_kept_from_who_did_not_ask(provider: Provider, sdks: Sdks) -> None:
    """`hide_usage` leaves out the chunk that is there for its usage alone, and settles what it says."""
    world = World()
    reservation = await world.limiter.pre_commit(ALICE, tokens=HOLD)
    source = await CHUNKS.open(sdks, provider.model(CHAT.sse()))
    items = [item async for item in reservation.stream(source, hide_usage=True)]
    assert [[choice.delta.content for choice in item.choices] for item in items] == [
        ["Good"],
        [" day"],
        [""],
    ]
    assert await world.used() == (22, 0)


WHOLE: Final = (
    (
        lambda sdks, model: sdks.openai.chat.completions.create(model=model, messages=[]),
        {
            "object": "chat.completion",
            "choices": [{"index": 0, "message": {"content": "Good day"}, "finish_reason": "stop"}],
            "usage": counts(14, 8, **details(4, 3)),
        },
        CHAT,
    ),
    (
        lambda sdks, model: sdks.openai.responses.create(model=model, input="hi"),
        RESPONSE.payloads()[-1]["response"],
        RESPONSE,
    ),
    (
        lambda sdks, model: sdks.anthropic.messages.create(model=model, messages=[], max_tokens=9),
        {
            **MESSAGE.payloads()[0]["message"],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 40, "cache_read_input_tokens": 600, "output_tokens": 8},
        },
        MESSAGE,
    ),
    (
        lambda sdks, model: sdks.google.models.generate_content(model=model, contents="hi"),
        CONTENT.payloads()[-1],
        CONTENT,
    ),
)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("ask", "body", "streamed"), WHOLE, ids=[row[2].name for row in WHOLE])
async def test_b39_an_answer_in_one_piece_counts_the_same(
    ask: Callable[[Sdks, str], Awaitable[Any]],
    body: dict[str, Any],
    streamed: Stream,
    provider: Provider,
    sdks: Sdks,
) -> None:
    """`usage_from_response` reads the SDK's response as the observer reads the SDK's stream."""
    response = await ask(sdks, provider.model(json.dumps(body).encode()))
    assert usage_from_response(response) == streamed.usage


async def test_b31_a_stream_over_the_limit_ends_and_the_next_is_refused(
    provider: Provider, sdks: Sdks
) -> None:
    """A key with tpm 1,000 gets a stream of 1,500 to its end; then the SDK raises the gateway's 429."""
    from openai import AsyncOpenAI, RateLimitError

    events = (*CHAT.events[:3], bare(counts(10, 1_490)), DONE)
    request: Any = {
        "model": provider.model(Stream("", "", events, None).sse()),
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 100,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    limiter = Limiter(MemoryBackend(clock=ManualClock(20.0)))
    alice = Scope("api_key:alice", Limits(tpm=1_000))
    with gateway(limiter, {"sk-alice": alice}, provider) as url:
        client = AsyncOpenAI(
            base_url=f"{url}/v1", api_key="sk-alice", max_retries=0, http_client=sdks.http
        )
        stream: Any = await client.chat.completions.create(**request)
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage.total_tokens == 1_500
        (status,) = await limiter.peek(alice)
        assert status["tokens"].used == 1_500
        with pytest.raises(RateLimitError) as refused:
            await client.chat.completions.create(**request)
    assert refused.value.status_code == 429
    assert refused.value.code == "rate_limit_exceeded"
    assert refused.value.response.headers["retry-after"] == "40"
