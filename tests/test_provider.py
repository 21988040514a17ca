"""The provider stand-in, in a process of its own, as the real SDKs see it: streamed and whole, tools, and faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import httpx2
import pytest

from earmark import Usage, observe_stream, usage_from_response
from earmark.testing.provider import Act, Provider, ProviderProcess, Recorded, running

pytestmark = pytest.mark.anyio

PROMPT: Final[Any] = [{"role": "user", "content": "hello"}]
USED: Final = Usage(10, 5)
PATHS: Final = {
    "/v1/chat/completions": {"stream_options": {"include_usage": True}},
    "/v1/completions": {"stream_options": {"include_usage": True}},
    "/v1/responses": {},
    "/v1/messages": {},
    "/v1beta/models/m:generateContent": {},
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """What uvicorn runs on."""
    return "asyncio"


@pytest.fixture(scope="module")
async def process(anyio_backend: str) -> AsyncIterator[ProviderProcess]:
    """One process for all tests of this module."""
    async with running() as one:
        yield one


@asynccontextmanager
async def openai(url: str) -> AsyncIterator[Any]:
    from openai import AsyncOpenAI

    http = httpx2.AsyncClient(trust_env=False)
    async with AsyncOpenAI(
        base_url=f"{url}/v1", api_key="k", http_client=http, max_retries=0
    ) as client:
        yield client


@asynccontextmanager
async def anthropic(url: str) -> AsyncIterator[Any]:
    from anthropic import AsyncAnthropic

    http = httpx2.AsyncClient(trust_env=False)
    async with AsyncAnthropic(base_url=url, api_key="k", max_retries=0, http_client=http) as client:
        yield client


@pytest.mark.parametrize("path", PATHS)
async def test_what_it_reports_is_what_earmark_reads(path: str) -> None:
    """Streamed and whole, in every dialect: the same usage (B39)."""
    transport = httpx.ASGITransport(Provider(Act(cached_tokens=4)))
    async with httpx.AsyncClient(transport=transport, base_url="http://provider") as client:
        whole = await client.post(path, json={"model": "m"})
        usage = usage_from_response(whole.content)
        assert usage is not None
        assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == (10, 4, 5)
        told: list[Any] = []
        streamed = path.replace(":generate", ":streamGenerate")
        body = {"model": "m", "stream": True, **PATHS[path]}
        async with client.stream("POST", streamed, json=body) as response:
            stream = observe_stream(response.aiter_raw(), on_complete=told.append)
            assert b"".join([item async for item in stream])
        (observed,) = told
        assert observed.authoritative
        assert observed.usage.total == usage.total == 15
        assert observed.usage.cached_input_tokens == 4


async def test_openais_sdk(process: ProviderProcess) -> None:
    """Whole, streamed with n = 2, and a tool call."""
    async with openai(process.url) as client:
        chat = client.chat.completions.create
        answer = await chat(model="m", messages=PROMPT, n=2)
        assert [choice.message.content for choice in answer.choices] == [
            "word0 word1 word2 word3 word4 "
        ] * 2
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (10, 10)
        stream = await chat(
            model="m", messages=PROMPT, n=2, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage.completion_tokens == 10
        assert sum(len(chunk.choices) for chunk in chunks) == 14
        await process.script(Act(tool=True), Act(tool=True))
        answer = await chat(model="m", messages=PROMPT)
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name == "look"
        stream = await chat(model="m", messages=PROMPT, stream=True)
        pieces = [
            tool.function.arguments
            async for chunk in stream
            for choice in chunk.choices
            for tool in choice.delta.tool_calls or ()
        ]
        assert "".join(pieces) == call.function.arguments
        assert (await client.completions.create(model="m", prompt="hi")).choices[0].text
        response = await client.responses.create(model="m", input="hi")
        assert response.output_text.startswith("word0")
        kinds = [
            event.type
            async for event in await client.responses.create(model="m", input="hi", stream=True)
        ]
        assert kinds[-1] == "response.completed"


async def test_anthropics_sdk(process: ProviderProcess) -> None:
    """Whole, streamed and a tool."""
    async with anthropic(process.url) as client:
        answer = await client.messages.create(model="m", messages=PROMPT, max_tokens=9)
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (10, 5)
        async with client.messages.stream(model="m", messages=PROMPT, max_tokens=9) as stream:
            assert "".join([text async for text in stream.text_stream]) == answer.content[0].text
            assert (await stream.get_final_message()).usage.output_tokens == 5
        await process.script(Act(tool=True))
        async with client.messages.stream(model="m", messages=PROMPT, max_tokens=9) as stream:
            message = await stream.get_final_message()
        assert message.content[0].input["place"].startswith("word0")


async def test_what_is_scripted_happens_once_each(process: ProviderProcess) -> None:
    """Errors with their headers, in the words of the API that is asked; then all is well again."""
    from anthropic import APIStatusError
    from openai import RateLimitError

    await process.script(Act(status=429, headers={"retry-after": "7"}), Act(status=529))
    async with openai(process.url) as client, anthropic(process.url) as other:
        with pytest.raises(RateLimitError) as limited:
            await client.chat.completions.create(model="m", messages=PROMPT)
        assert limited.value.response.headers["retry-after"] == "7"
        assert limited.value.code == "rate_limit_exceeded"
        with pytest.raises(APIStatusError) as overloaded:
            await other.messages.create(model="m", messages=PROMPT, max_tokens=9)
        body: Any = overloaded.value.body
        assert body["error"]["type"] == "overloaded_error"
        assert await client.chat.completions.create(model="m", messages=PROMPT)
    assert [one.path for one in await process.seen()][-3:] == [
        *("/v1/chat/completions", "/v1/messages", "/v1/chat/completions"),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_that_breaks(process: ProviderProcess, stream: bool) -> None:
    """In the midst of a body, streamed or not."""
    await process.script(Act(cut=2))
    async with httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(f"{process.url}/v1/chat/completions", json={"stream": stream})


async def test_a_stream_that_fails_in_its_midst(process: ProviderProcess) -> None:
    """The SDK raises what the provider said."""
    from openai import APIError

    await process.script(Act(fail=2))
    async with openai(process.url) as client:
        stream = await client.chat.completions.create(model="m", messages=PROMPT, stream=True)
        with pytest.raises(APIError, match="has failed"):
            assert [chunk async for chunk in stream]


async def test_a_stream_that_hangs_ends_when_its_client_goes(process: ProviderProcess) -> None:
    """Nothing is left under way."""
    await process.script(Act(hang=2))
    async with (
        httpx.AsyncClient(trust_env=False) as client,
        client.stream("POST", f"{process.url}/v1/messages", json={"stream": True}) as response,
    ):
        pieces = response.aiter_raw()  # dropped, it would close the connection
        assert await anext(pieces)
        assert await process.streaming() == 1
    async with asyncio.timeout(30):
        while await process.streaming():  # noqa: ASYNC110 - another process tells nobody
            await asyncio.sleep(0)


async def test_what_it_does_not_know_is_not_found(process: ProviderProcess) -> None:
    """Neither a path nor a body that is no JSON."""
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.post(f"{process.url}/v2/chat", json={})).status_code == 404
        assert (await client.post(f"{process.url}/v1/messages", content="[]")).status_code == 404


@pytest.mark.parametrize("wrong", [{"status": 99}, {"delay": -1}, {"cut": -1}, {"colour": 1}])
def test_an_act_that_is_none_is_an_error(wrong: dict[str, Any]) -> None:
    """Before it is sent anywhere."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Act.from_json(wrong)
    with suppress(TypeError):
        assert Act.from_json(Act(cut=3).to_json()) == Act(cut=3)


async def test_a_recording_is_streamed_as_it_is_and_waits_where_it_is_told() -> None:
    """Cut anywhere, with and without the usage; a pause is ended by the test, or by the client that goes."""
    recorded = Recorded(
        "text/event-stream", b"data: abc\n\ndata: usage\n\n", b"data: abc\n\n", piece=4
    )
    provider = Provider(recorded=recorded, models={"m"})
    transport = httpx.ASGITransport(provider)
    async with httpx.AsyncClient(transport=transport, base_url="http://provider") as client:

        async def ask(**more: Any) -> httpx.Response:
            body = {"model": "m", "stream": True, **more}
            return await client.post("/v1/chat/completions", json=body)

        assert (await ask()).content == recorded.without_usage
        assert (await ask(stream_options={"include_usage": True})).content == recorded.content
        assert (await ask(model="other")).status_code == 404
        pause = provider.pause(5, 7)
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(ask())
            for _ in range(2):
                assert not pause.ended.is_set()
                pause.go_on()
        assert asking.result().content == recorded.without_usage
        assert pause.ended.is_set()


@pytest.mark.parametrize(("name", "content"), [("a.sse", b""), ("a.txt", b"data")])
def test_a_recording_says_what_it_is(tmp_path: Path, name: str, content: bytes) -> None:
    """By the end of its name; one that is empty is none."""
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"\.sse"):
        Recorded.load(file)


@pytest.mark.parametrize(("n", "choices"), [(2, 2), (0, 1), ("2", 1), (True, 1), (10**30, 128)])
async def test_a_made_up_number_of_choices_does_not_keep_it_busy_for_ever(
    n: object, choices: int
) -> None:
    """C32, C34: a client may ask for any number of answers; a stand-in gives as many as a provider might."""
    transport = httpx.ASGITransport(Provider())
    async with httpx.AsyncClient(transport=transport, base_url="http://provider") as client:
        body = {"model": "m", "messages": [], "n": n}
        answer = await client.post("/v1/chat/completions", json=body)
    assert len(answer.json()["choices"]) == choices
