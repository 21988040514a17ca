"""The gateway of examples/ in a process of its own, a provider in another, and the real SDKs as its clients.

B31 exactly, streamed and whole, tools, n = 2, disconnects, fallback, and what the SDKs make of a refusal by themselves.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from earmark.testing.provider import Act, ProviderProcess, running
from tests.e2e.processes import Gateway, gateway
from tests.servers import free_port

pytestmark = pytest.mark.anyio

PROMPT: Final[Any] = [{"role": "user", "content": "hello"}]

# A tenant for each test, since a minute is not waited for: limits of an hour, so that none of them turns meanwhile.
TENANTS: Final[dict[str, dict[str, int]]] = {
    "b31": {"tph": 1_000},
    "whole": {"rph": 100, "tph": 100_000, "concurrency": 1},
    "parts": {"rph": 100, "tph": 100_000},
    "gone": {"rph": 100, "tph": 100_000, "concurrency": 1},
    "claude": {"rph": 100, "tph": 100_000},
    "leaves": {"tph": 100_000, "concurrency": 1},
    "full": {"rph": 0},
    "small": {"tph": 500},
    "second": {"rps": 1},
    "fails": {"rph": 100, "tph": 100_000, "concurrency": 1},
}
POLICIES: Final = {
    "default": {"limits": {}},
    "tenants": [{"key": key, "limits": limits} for key, limits in TENANTS.items()],
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """What uvicorn runs on."""
    return "asyncio"


@pytest.fixture(scope="module")
async def providers(anyio_backend: str) -> AsyncIterator[tuple[ProviderProcess, ProviderProcess]]:
    """The one that is asked first, and the one that is asked when it fails."""
    async with running() as one, running() as other:
        yield one, other


@pytest.fixture(scope="module")
async def served(
    providers: tuple[ProviderProcess, ProviderProcess], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Gateway]:
    """One gateway for all tests of this module."""
    folder: Path = tmp_path_factory.mktemp("gateway")
    async with gateway(providers, POLICIES, folder) as one:
        yield one


async def left(client: Any) -> tuple[int, int]:
    """The requests and tokens that remain, as the next answer says; that one counts itself."""
    raw = await client.chat.completions.with_raw_response.create(
        model="m", messages=PROMPT, max_tokens=1
    )
    remaining = "x-ratelimit-remaining-"
    return int(raw.headers[remaining + "requests"]), int(raw.headers[remaining + "tokens"])


async def test_b31_the_request_that_overruns_is_served_and_the_next_is_refused(
    served: Gateway, providers: tuple[ProviderProcess, ProviderProcess]
) -> None:
    """B31: a stream whose last chunk reports 1,500 on a key with 1,000: it runs to its end, the second is 429."""
    from openai import RateLimitError

    async with served.openai("sk-b31") as client:
        await providers[0].script(Act(chunks=500, input_tokens=1_000))
        stream = await client.chat.completions.create(
            model="m",
            messages=PROMPT,
            max_tokens=100,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage.total_tokens == 1_500
        assert sum(len(chunk.choices[0].delta.content or "") > 0 for chunk in chunks[:-1]) == 500
        with pytest.raises(RateLimitError) as refused:
            await client.chat.completions.create(model="m", messages=PROMPT, max_tokens=100)
        assert refused.value.status_code == 429
        assert refused.value.code == "rate_limit_exceeded"
        assert "tokens per hour" in refused.value.message
        headers = refused.value.response.headers
        assert 0 < int(headers["retry-after"]) <= 3_600
        assert headers["x-ratelimit-remaining-tokens"] == "0"


async def test_whole_and_streamed_are_counted_alike(served: Gateway) -> None:
    """B39: 15 tokens each, whatever was held; the slot is free when the answer is read."""
    async with served.openai("sk-whole") as client:
        create = client.chat.completions.create
        before = await left(client)
        await create(model="m", messages=PROMPT)
        stream = await create(model="m", messages=PROMPT, stream=True)
        chunks = [chunk async for chunk in stream]
        assert all(
            chunk.usage is None for chunk in chunks
        )  # B64: it was not asked for, and is not shown
        requests, tokens = await left(client)
        assert (before[0] - requests, before[1] - tokens) == (3, 3 * 15)


async def test_tools_and_two_choices(
    served: Gateway, providers: tuple[ProviderProcess, ProviderProcess]
) -> None:
    """B37: n = 2 counts both outputs and one prompt; a tool call passes untouched."""
    async with served.openai("sk-parts") as client:
        create = client.chat.completions.create
        before = await left(client)
        answer = await create(model="m", messages=PROMPT, n=2, max_tokens=50)
        assert len(answer.choices) == 2
        stream = await create(
            model="m",
            messages=PROMPT,
            n=2,
            stream=True,
            stream_options={"include_usage": True},
        )
        last = [chunk async for chunk in stream][-1]
        assert last.usage.total_tokens == 20
        await providers[0].script(Act(tool=True))
        answer = await create(model="m", messages=PROMPT, tools=[])
        assert answer.choices[0].message.tool_calls[0].function.name == "look"
        _, tokens = await left(client)
        assert before[1] - tokens == 20 + 20 + 15 + 15


@pytest.mark.parametrize("chunks", [1, 3])
async def test_b35_a_client_that_disconnects_frees_its_slot_and_pays_what_was_held(
    served: Gateway, providers: tuple[ProviderProcess, ProviderProcess], chunks: int
) -> None:
    """B35, B65, C42: the provider hangs, the client goes: the slot is free for the next one, the debit stays."""
    async with served.openai("sk-gone") as client:
        before = await left(client)
        await providers[0].script(Act(hang=chunks))
        stream = await client.chat.completions.create(
            model="m", messages=PROMPT, max_tokens=1_000, stream=True
        )
        for _ in range(chunks):
            await anext(stream)
        await stream.close()
        async with asyncio.timeout(60):
            while await providers[0].streaming():  # noqa: ASYNC110 - another process tells nobody
                await asyncio.sleep(0)
        _, tokens = await until_admitted(client)
        held = before[1] - tokens - 15
        assert 1_000 < held < 1_050


async def until_admitted(client: Any) -> tuple[int, int]:
    """What is left, once the slot is free."""
    from openai import RateLimitError

    async with asyncio.timeout(60):
        while True:
            try:
                return await left(client)
            except RateLimitError:
                await asyncio.sleep(0)


async def test_anthropics_sdk(
    served: Gateway, providers: tuple[ProviderProcess, ProviderProcess]
) -> None:
    """Whole, streamed, a tool; a refusal in its own words, as its own error."""
    from anthropic import RateLimitError

    async with served.anthropic("sk-claude") as client:
        create = client.messages.create
        answer = await create(model="m", messages=PROMPT, max_tokens=9)
        assert answer.usage.output_tokens == 5
        async with client.messages.stream(model="m", messages=PROMPT, max_tokens=9) as stream:
            assert (await stream.get_final_message()).usage.output_tokens == 5
        await providers[0].script(Act(tool=True))
        answer = await create(model="m", messages=PROMPT, max_tokens=9)
        assert answer.stop_reason == "tool_use"
        raw = await client.messages.with_raw_response.create(
            model="m", messages=PROMPT, max_tokens=9
        )
        assert raw.headers["anthropic-ratelimit-requests-remaining"] == "96"
    async with served.anthropic("sk-full") as client:
        with pytest.raises(RateLimitError) as refused:
            await client.messages.create(model="m", messages=PROMPT, max_tokens=9)
        body: Any = refused.value.body
        assert body["error"]["type"] == "rate_limit_error"
        assert refused.value.response.headers["x-should-retry"] == "false"


async def test_b35_anthropics_sdk_that_disconnects_frees_its_slot_and_pays_what_was_held(
    served: Gateway, providers: tuple[ProviderProcess, ProviderProcess]
) -> None:
    """B35, B65, C42: as OpenAI's does; what was reported at the start of the message is not the end of it."""
    async with served.anthropic("sk-leaves") as client:
        create = client.messages.create
        await providers[0].script(Act(hang=2))
        stream = await create(model="m", messages=PROMPT, max_tokens=1_000, stream=True)
        await anext(aiter(stream))
        await stream.close()
        async with asyncio.timeout(60):
            while await providers[0].streaming():  # noqa: ASYNC110 - another process tells nobody
                await asyncio.sleep(0)
    async with served.anthropic("sk-leaves", max_retries=100) as client:
        raw = await client.messages.with_raw_response.create(
            model="m", messages=PROMPT, max_tokens=9
        )
        left = int(raw.headers["anthropic-ratelimit-tokens-remaining"])
        assert 1_000 < 100_000 - left < 1_060


async def count(providers: tuple[ProviderProcess, ProviderProcess]) -> int:
    """How many requests reached a provider."""
    return len(await providers[0].seen()) + len(await providers[1].seen())


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
async def test_r3_the_sdk_stops_where_it_never_helps(
    served: Gateway, providers: tuple[ProviderProcess, ProviderProcess], sdk: str
) -> None:
    """R3, B19: `x-should-retry: false`: an SDK that may retry ten times asks once."""
    before = await count(providers)
    asked: list[Any] = []
    async with getattr(served, sdk)("sk-small", max_retries=10) as client:
        client._client.event_hooks = {"request": [_noting(asked)]}
        error = importlib.import_module(sdk).RateLimitError
        with pytest.raises(error, match="Request too large"):
            await creating(client)(model="m", messages=PROMPT, max_tokens=900)
    assert len(asked) == 1
    assert await count(providers) == before


def creating(client: Any) -> Any:
    """How an SDK is asked for an answer."""
    return client.messages.create if hasattr(client, "messages") else client.chat.completions.create


def _noting(asked: list[Any]) -> Any:
    async def note(request: Any) -> None:
        asked.append(time.monotonic())

    return note


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
async def test_b4_the_sdk_comes_back_when_it_was_told_to(served: Gateway, sdk: str) -> None:
    """B4: one request a second: the SDK waits as long as `retry-after-ms` says, and is admitted the first time."""
    asked: list[Any] = []
    async with getattr(served, sdk)("sk-second", max_retries=2) as client:
        create = creating(client)
        client._client.event_hooks = {"request": [_noting(asked)]}
        for _ in range(3):
            before = len(asked)
            await create(model="m", messages=PROMPT, max_tokens=9)
            # What came within the second of the one before was sent once more, and never in vain.
            assert len(asked) - before <= 2


async def test_c29_the_next_provider_is_asked_and_the_client_counted_once(
    served: Gateway, providers: tuple[ProviderProcess, ProviderProcess]
) -> None:
    """C29, C1: refused, overloaded or broken: the second provider answers, and it costs one request and one usage."""
    async with served.openai("sk-fails") as client:
        before = await left(client)
        faults = [Act(status=429), Act(status=503), Act(status=500)]
        for fault in faults:
            await providers[0].script(fault)
            answer = await client.chat.completions.create(model="m", messages=PROMPT)
            assert answer.usage.total_tokens == 15
        requests, tokens = await left(client)
        assert (before[0] - requests, before[1] - tokens) == (4, 4 * 15)


async def test_an_upstreams_own_refusal_reaches_the_client_with_its_retry_after(
    served: Gateway, providers: tuple[ProviderProcess, ProviderProcess]
) -> None:
    """The last provider's 429 is passed on; what was held for it is given back."""
    from openai import RateLimitError

    async with served.openai("sk-fails") as client:
        before = await left(client)
        await providers[0].script(Act(status=429))
        await providers[1].script(Act(status=429, headers={"retry-after": "17"}))
        with pytest.raises(RateLimitError) as refused:
            await client.chat.completions.create(model="m", messages=PROMPT, max_tokens=5_000)
        assert refused.value.response.headers["retry-after"] == "17"
        _, tokens = await left(client)
        assert before[1] - tokens == 15


async def test_a_provider_that_cannot_be_reached_costs_the_client_what_was_held(
    tmp_path: Path,
) -> None:
    """Nobody answers: 502, in JSON; a key or a body that makes no sense never gets that far."""
    async with (
        gateway([f"http://127.0.0.1:{free_port()}"], POLICIES, tmp_path) as served,
        httpx.AsyncClient(trust_env=False, base_url=served.url) as client,
    ):
        path, body = "/v1/chat/completions", {"model": "m", "messages": PROMPT}
        known = {"authorization": "Bearer sk-fails"}
        assert (await client.post(path, json=body)).status_code == 401
        assert (await client.post(path, json=[], headers=known)).status_code == 400
        assert (await client.post(path, json=body, headers=known)).status_code == 502
