"""The SDKs of OpenAI, Anthropic and Google as clients of a real server, and their streaming objects as sources.

What an SDK makes of a stream is its own affair: it drops `[DONE]` and pings, raises errors that came in the body, and
stacks generators of which Python closes only the outermost. So the real ones are asked, over HTTP, what an observer
sees of them, and whether the connection comes back however a stream is left.
"""

from __future__ import annotations

import asyncio
import gc
import ssl
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from earmark import Event, Limiter, Limits, MemoryBackend, Scope, Usage, observe_stream
from earmark.testing import ManualClock
from tests.streams.bodies import ALL
from tests.streams.bodies.chunks import bare, chat, counts, details
from tests.streams.bodies.gemini import gemini, tokens
from tests.streams.bodies.shape import DONE, Stream, named
from tests.streams.loopback import Provider, Sdks, gateway, served
from tests.streams.toys import Told

pytestmark = [
    pytest.mark.anyio,
    # The SDKs do not close the generators that they are made of, not even at an end; trio warns of each.
    pytest.mark.filterwarnings(
        "ignore:Async generator '(openai|anthropic|httpx2|httpcore2)\\.:ResourceWarning"
    ),
    # Two of them that are left at once get into each other's way.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <async_generator object Response\\.aiter_:"
        "pytest.PytestUnraisableExceptionWarning"
    ),
]

EXAMPLES: Final = Path(__file__).parent.parent.parent / "examples"
HOLD: Final = 200
ALICE: Final = Scope("api_key:alice", Limits(tpm=10_000, concurrency=1))

CHAT: Final = Stream(
    "chat",
    "openai-compatible",
    (
        chat("Good", usage=None),
        chat(" day", usage=None),
        chat(finish="stop", usage=None),
        bare(counts(14, 8, **details(4, 3))),
        DONE,
    ),
    Usage(14, 8, 4, None, 3, 22),
)
_RESPONSE: Final = {"id": "resp_1", "object": "response", "model": "m", "output": []}
_TEXT: Final = {"type": "output_text", "text": "Good day", "annotations": []}
_ITEM: Final = {"id": "msg_1", "type": "message", "role": "assistant", "content": [_TEXT]}
_PART: Final = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
RESPONSE: Final = Stream(
    "response",
    "openai-responses",
    named(
        {"type": "response.created", "response": {**_RESPONSE, "status": "in_progress"}},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**_ITEM, "content": []},
        },
        {
            "type": "response.content_part.added",
            "part": {**_TEXT, "text": ""},
            **_PART,
        },
        {"type": "response.output_text.delta", "delta": "Good", **_PART},
        {"type": "response.output_text.delta", "delta": " day", **_PART},
        {"type": "response.output_text.done", "text": "Good day", **_PART},
        {"type": "response.content_part.done", "part": _TEXT, **_PART},
        {"type": "response.output_item.done", "output_index": 0, "item": _ITEM},
        {
            "type": "response.completed",
            "response": {
                **_RESPONSE,
                "status": "completed",
                "output": [_ITEM],
                "usage": {"input_tokens": 14, "output_tokens": 8, "total_tokens": 22},
            },
        },
    ),
    Usage(14, 8, None, None, None, 22),
)
MESSAGE: Final = Stream(
    "message",
    "anthropic",
    named(
        {
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "m",
                "content": [],
                "usage": {
                    "input_tokens": 40,
                    "cache_read_input_tokens": 600,
                    "output_tokens": 1,
                },
            },
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Good"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " day"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 8},
        },
        {"type": "message_stop"},
    ),
    Usage(640, 8, 600),
)
CONTENT: Final = Stream(
    "content",
    "gemini",
    (
        gemini(tokens(640, 1, 60, 701), text="Good"),
        gemini(tokens(640, 8, 60, 708), "STOP", text=" day"),
    ),
    Usage(640, 68, None, None, 60, 708),
)


@dataclass(frozen=True)
class Call:
    """A way in which an SDK opens a stream.

    Attributes:
        open: opens the stream of a model.
        body: a whole one, which says "Good day".
        marked: the SDK gives an item that ends the stream, and the tokens are settled before it.
        reported: the tokens that are reported in what a silent provider sends, its first event.
        backends: the event loops that the SDK runs on.
    """

    open: Callable[[Sdks, str], Awaitable[Any]]
    body: Stream
    marked: bool
    reported: int = 0
    backends: tuple[str, ...] = ("asyncio", "trio")

    def begun(self) -> bytes:
        """The first event."""
        return Stream("", "", self.body.events[:1], None).sse()


CHUNKS: Final = Call(Sdks.chat, CHAT, marked=False)
RESPONSES: Final = Call(Sdks.response, RESPONSE, marked=True)
MESSAGES: Final = Call(Sdks.message, MESSAGE, marked=True, reported=641)
CONTENTS: Final = Call(
    Sdks.content, CONTENT, marked=False, reported=701, backends=("asyncio",)
)
CALLS: Final = (
    CHUNKS,
    Call(Sdks.chat_events, CHAT, marked=False),
    RESPONSES,
    Call(Sdks.response_events, RESPONSE, marked=True),
    MESSAGES,
    Call(Sdks.message_events, MESSAGE, marked=True, reported=641),
    CONTENTS,
)

each_call = pytest.mark.parametrize(
    ("anyio_backend", "call"),
    [
        pytest.param(backend, call, id=f"{call.open.__name__}-{backend}")
        for call in CALLS
        for backend in call.backends
    ],
)


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
    "B38: n = 2, one choice finished, at a clean end": (Usage(10, 9, reported_total=19), False, "truncated"),
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


# Each way with the outcome, and whether the stream had begun.
WAYS: Final = {
    close: ("closed", False),
    drop: ("dropped", False),
    close_begun: ("closed", True),
    drop_begun: ("dropped", True),
    wait_cancelled: ("cancelled", True),
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@each_call
async def test_b65_a_stream_of_an_sdk_is_left(
    call: Call, way: Callable[[list[Any]], Awaitable[None]], provider: Provider, sdks: Sdks
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
