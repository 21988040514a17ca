"""What the LiteLLM hook does at each step, called as LiteLLM calls it: LiteLLM itself is not needed here.

tests/litellm drives the same hook in a real proxy, where its environment is there.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest
import yaml
from fastapi import HTTPException

from earmark import Limiter, MemoryBackend
from earmark.policies import Policies
from earmark.testing import ManualClock

POLICIES: Final[dict[str, Any]] = {
    "default": {"limits": {"rpm": 3, "tpm": 1_000, "concurrency": 2}},
    "tenants": [
        {"key": "free", "limits": {}},
        {"key": "tiny", "limits": {"tpm": 10}},
        {"key": "busy", "limits": {"concurrency": 0}},
    ],
}
HI: Final = {"messages": [{"role": "user", "content": "hi"}]}
USAGE: Final = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
ANSWER: Final = {"object": "chat.completion", "choices": [], "usage": USAGE}


class Anchor:
    """Stands in for the logging object that LiteLLM makes for each request."""


def key(alias: str | None = "alice", **more: str) -> Any:
    """Stands in for LiteLLM's `UserAPIKeyAuth`."""
    names = ("api_key", "team_alias", "team_id", "user_id", "org_id", "end_user_id")
    return SimpleNamespace(key_alias=alias, **{**dict.fromkeys(names), **more})


class Desk:
    """A hook, and what it counts."""

    def __init__(self, module: ModuleType, **more: Any) -> None:
        self.limiter = Limiter(MemoryBackend(clock=ManualClock()))
        self.policies = Policies(POLICIES)
        self.hook = module.EarmarkHook(self.limiter, self.policies, output=100, **more)

    async def begin(
        self, who: Any = None, call_type: str = "acompletion", **more: Any
    ) -> dict[str, Any]:
        """Let a request in; returns what LiteLLM knows of it."""
        data = {
            **HI,
            "litellm_logging_obj": Anchor(),
            "metadata": {},
            **more,
        }
        await self.hook.async_pre_call_hook(key() if who is None else who, None, data, call_type)
        return data

    async def used(self, tenant: str = "alice") -> dict[str, int]:
        """What a tenant has used."""
        (status,) = await self.limiter.peek(*self.policies.scopes(tenant=tenant))
        return {limit.limit.metric: limit.used for limit in status.limits}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`earmark.contrib.litellm`, as it is imported where LiteLLM is."""
    logger = ModuleType("litellm.integrations.custom_logger")
    logger.CustomLogger = object  # type: ignore[attr-defined]
    for name in ("litellm", "litellm.integrations"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, logger.__name__, logger)
    monkeypatch.delitem(sys.modules, "earmark.contrib.litellm", raising=False)
    import earmark.contrib.litellm as module

    yield module
    sys.modules.pop("earmark.contrib.litellm")


@pytest.fixture
def desk(module: ModuleType) -> Desk:
    """A hook in memory."""
    return Desk(module)


async def chunks(*, usage: bool = True) -> AsyncIterator[dict[str, Any]]:
    """A stream of OpenAI's."""
    yield {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]}
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    if usage:
        yield {"choices": [], "usage": USAGE}


def test_an_answer_settles_once(desk: Desk) -> None:
    """Settled by the answer's usage, and not again by the event that LiteLLM tells afterwards."""

    async def run() -> None:
        data = await desk.begin()
        assert await desk.used() == {"requests": 1, "tokens": 105, "concurrency": 1}
        headers = await desk.hook.async_post_call_response_headers_hook(data, key(), None)
        assert headers["x-ratelimit-remaining-tokens"] == "895"
        await desk.hook.async_post_call_success_hook(data, key(), ANSWER)
        await desk.hook.async_log_success_event(
            data, {**ANSWER, "usage": {"total_tokens": 999}}, 0, 1
        )
        assert await desk.used() == {"requests": 1, "tokens": 12, "concurrency": 0}

    asyncio.run(run())


def test_an_answer_that_only_the_log_tells(desk: Desk) -> None:
    """Some routes call no other hook: the event settles, found by the mark in the request's metadata."""

    async def run() -> None:
        data = await desk.begin()
        told = {"litellm_params": {"metadata": data["metadata"]}}
        await desk.hook.async_log_success_event(told, ANSWER, 0, 1)
        assert await desk.used() == {"requests": 1, "tokens": 12, "concurrency": 0}

    asyncio.run(run())


@pytest.mark.parametrize("metadata", ["text", None, {"earmark_request": ["forged"]}])
def test_c8_an_id_that_a_client_gives_to_two_requests(desk: Desk, metadata: object) -> None:
    """C8: LiteLLM takes a call's id from its client: what is refused or never begun does not resolve what runs."""

    async def run() -> None:
        used = {"requests": 1, "tokens": 105, "concurrency": 1}
        data = await desk.begin(litellm_call_id="mine")
        other = {**HI, "litellm_call_id": "mine", "metadata": metadata}
        await desk.hook.async_post_call_failure_hook(other, ProviderError(429), key())
        await desk.hook.async_post_call_failure_hook(other, HTTPException(401), key())
        await desk.hook.async_log_success_event({**other, "litellm_params": other}, ANSWER, 0, 1)
        assert await desk.hook.async_post_call_response_headers_hook(other, key(), None) is None
        assert await desk.used() == used
        await desk.hook.async_post_call_success_hook(data, key(), ANSWER)

    asyncio.run(run())


@pytest.mark.parametrize("own", ["metadata", "litellm_metadata"])
def test_what_a_provider_is_sent_has_no_mark(desk: Desk, own: str) -> None:
    """Where LiteLLM has metadata of its own beside the client's, which a provider gets, these stay as they are."""

    async def run() -> None:
        kept: dict[str, Any] = {"metadata": {"user_id": "u"}, own: {}}
        data = await desk.begin(**kept)
        assert list(data[own]) == ["earmark_request"]
        assert data["metadata"] == {"user_id": "u"} or own == "metadata"
        failed = {name: value for name, value in data.items() if name != "litellm_logging_obj"}
        await desk.hook.async_post_call_failure_hook(failed, ProviderError(429), key())
        assert await desk.used() == {"requests": 1, "tokens": 0, "concurrency": 0}

    asyncio.run(run())


@pytest.mark.parametrize("response", [b"sound", object(), {}, None])
def test_an_answer_without_usage_keeps_its_hold(desk: Desk, response: object) -> None:
    """A file, or an answer that says nothing of usage: the hold stays."""

    async def run() -> None:
        await desk.hook.async_post_call_success_hook(await desk.begin(), key(), response)
        assert await desk.used() == {"requests": 1, "tokens": 105, "concurrency": 0}

    asyncio.run(run())


@pytest.mark.parametrize(("usage", "tokens"), [(True, 12), (False, 105)])
def test_a_stream_resolves(desk: Desk, usage: bool, tokens: int) -> None:
    """A stream settles by its usage, or keeps its hold; the event at its end changes nothing."""

    async def run() -> None:
        data = await desk.begin()
        stream = desk.hook.async_post_call_streaming_iterator_hook(key(), chunks(usage=usage), data)
        first = await anext(stream)
        await desk.hook.async_log_success_event(
            data, {**ANSWER, "usage": {"total_tokens": 999}}, 0, 1
        )
        assert (await desk.used())["concurrency"] == 1
        items = [first, *[item async for item in stream]]
        assert items == [item async for item in chunks(usage=usage)]
        assert await desk.used() == {"requests": 1, "tokens": tokens, "concurrency": 0}

    asyncio.run(run())


def test_a_stream_that_is_closed_early_keeps_its_hold(desk: Desk) -> None:
    """LiteLLM closes what the hook returned when the client leaves."""

    async def run() -> None:
        data = await desk.begin()
        stream = desk.hook.async_post_call_streaming_iterator_hook(key(), chunks(), data)
        await anext(stream)
        await stream.aclose()
        assert await desk.used() == {"requests": 1, "tokens": 105, "concurrency": 0}

    asyncio.run(run())


def test_every_choice_of_a_stream_has_to_end(desk: Desk) -> None:
    """B38: of n = 2 only one choice has finished: not authoritative, the hold stays."""

    async def run() -> None:
        data = await desk.begin(n=2)
        stream = desk.hook.async_post_call_streaming_iterator_hook(key(), chunks(), data)
        assert [item async for item in stream]
        assert (await desk.used())["tokens"] == 205

    asyncio.run(run())


class ProviderError(Exception):
    """Stands in for LiteLLM's errors, which have the provider's status."""

    def __init__(self, status_code: int) -> None:
        super().__init__(status_code)
        self.status_code = status_code


@pytest.mark.parametrize(
    ("sent", "error", "used"),
    [
        (False, HTTPException(400), {"requests": 0, "tokens": 0}),  # by LiteLLM, before it was sent
        (False, ProviderError(500), {"requests": 1, "tokens": 105}),  # by a route of its own
        (True, HTTPException(400), {"requests": 1, "tokens": 0}),
        (True, HTTPException(500), {"requests": 1, "tokens": 105}),
        (True, ProviderError(400), {"requests": 1, "tokens": 0}),
        (True, ProviderError(429), {"requests": 1, "tokens": 0}),
        (True, ProviderError(503), {"requests": 1, "tokens": 105}),
        (True, ConnectionError(), {"requests": 1, "tokens": 105}),
    ],
    ids=str,
)
def test_what_failed(desk: Desk, sent: bool, error: Exception, used: dict[str, int]) -> None:
    """What was never sent is given back, what is not billed gives its tokens back, all else keeps its hold."""

    async def run() -> None:
        data = await desk.begin()
        if sent:
            await desk.hook.async_pre_call_deployment_hook(data, None)
        await desk.hook.async_post_call_failure_hook(data, error, key())
        assert await desk.used() == {**used, "concurrency": 0}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("earlier", "tokens"),
    [
        ([ProviderError(500)], 105),
        ([ConnectionError()], 105),
        ([ProviderError(500), ProviderError(429)], 105),
        ([ProviderError(429), ProviderError(429)], 0),
    ],
    ids=str,
)
def test_c44_an_earlier_attempt_may_be_billed(
    desk: Desk, earlier: list[Exception], tokens: int
) -> None:
    """C44: LiteLLM asks once more, and that is refused unbilled: of what came before nobody knows."""

    async def run() -> None:
        data = await desk.begin()
        await desk.hook.async_pre_call_deployment_hook(data, None)
        for error in earlier:
            told = {"litellm_params": {"metadata": data["metadata"]}, "exception": error}
            await desk.hook.async_log_failure_event(told, None, 0, 1)
        await desk.hook.async_post_call_failure_hook(data, ProviderError(429), key())
        assert await desk.used() == {"requests": 1, "tokens": tokens, "concurrency": 0}

    asyncio.run(run())


def test_refusals(desk: Desk) -> None:
    """429 with a time, without one for slots, and with x-should-retry where it can never fit; nothing is counted."""

    async def run() -> None:
        for _ in range(2):
            await desk.hook.async_post_call_success_hook(await desk.begin(), key(), ANSWER)
        running = await desk.begin()
        answers = {}
        for tenant in ("alice", "busy", "tiny"):
            data = {**HI, "metadata": {}}
            with pytest.raises(HTTPException) as caught:
                await desk.hook.async_pre_call_hook(key(tenant), None, data, "acompletion")
            await desk.hook.async_post_call_failure_hook(data, caught.value, key(tenant))
            answers[tenant] = caught.value
        assert {answer.status_code for answer in answers.values()} == {429}
        assert answers["alice"].headers is not None
        assert answers["alice"].headers["retry-after"] == "60"
        assert "retry-after" not in (answers["busy"].headers or {})
        assert (answers["tiny"].headers or {})["x-should-retry"] == "false"
        assert not any(tenant in str(answer.detail) for tenant, answer in answers.items())
        assert await desk.used() == {"requests": 3, "tokens": 12 + 12 + 105, "concurrency": 1}
        await desk.hook.async_post_call_success_hook(running, key(), ANSWER)

    asyncio.run(run())


def test_who_asks(module: ModuleType) -> None:
    """The tenant is the key's alias, or its hash, or "anonymous"; and the rest is said by name."""
    assert module.tenant_of(key("alice", api_key="hash")) == "alice"
    assert module.tenant_of(key(None, api_key="hash")) == "hash"
    assert module.tenant_of(key(None)) == "anonymous"
    assert module.dims_of(key("a", team_id="t", user_id="u")) == {
        "team": "t",
        "user": "u",
        "organization": None,
        "end_user": None,
        "key": "a",
    }


def test_tenants_and_dims_of_ones_own(module: ModuleType) -> None:
    """A gateway says who the tenant is."""
    desk = Desk(module, tenant=lambda who: who.user_id, dims=lambda who: {})

    async def run() -> None:
        await desk.hook.async_post_call_success_hook(
            await desk.begin(key("k", user_id="bob")), key(), ANSWER
        )
        assert (await desk.used("bob"))["tokens"] == 12

    asyncio.run(run())


def test_what_is_not_limited(desk: Desk) -> None:
    """A tenant without limits: nothing is taken, and every later step does nothing."""

    async def run() -> None:
        data = await desk.begin(key("free"))
        await desk.hook.async_pre_call_deployment_hook(data, None)
        source = chunks()
        assert desk.hook.async_post_call_streaming_iterator_hook(key(), source, data) is source
        await desk.hook.async_post_call_success_hook(data, key(), ANSWER)
        await desk.hook.async_post_call_failure_hook(data, ValueError(), key())
        assert await desk.hook.async_post_call_response_headers_hook(data, key(), None) is None

    asyncio.run(run())


def test_what_cannot_be_limited(desk: Desk) -> None:
    """A model that is no key is the client's mistake: 400."""

    async def run() -> None:
        for model in (5, ["gpt-4o"], "m" * 2_000):
            with pytest.raises(HTTPException) as caught:
                await desk.begin(model=model)
            assert caught.value.status_code == 400

    asyncio.run(run())


@pytest.mark.parametrize("call_type", ["aembedding", "amoderation", "image_generation", "arerank"])
def test_calls_without_output_ask_for_their_input(desk: Desk, call_type: str) -> None:
    """What puts out no tokens holds none."""

    async def run() -> None:
        data = await desk.begin(call_type=call_type)
        assert (await desk.used())["tokens"] == 5
        await desk.hook.async_post_call_success_hook(data, key(), ANSWER)

    asyncio.run(run())


def test_a_request_that_litellm_forgets_is_abandoned(desk: Desk) -> None:
    """R15: no hook is called again: the debit stays, the slot is free once the request's objects are collected."""

    async def run() -> None:
        data = await desk.begin()
        with pytest.warns(ResourceWarning, match="was dropped while open"):
            del data
        assert await desk.used() == {"requests": 1, "tokens": 105, "concurrency": 0}

    asyncio.run(run())


def test_a_request_that_nothing_stands_for(desk: Desk) -> None:
    """Where LiteLLM has no object for a request it is counted at once: nobody would tell how it ends."""

    async def run() -> None:
        await desk.begin(litellm_logging_obj=None)
        assert await desk.used() == {"requests": 1, "tokens": 105, "concurrency": 0}

    asyncio.run(run())


@pytest.mark.parametrize("given", [False, True])
def test_the_example_enforces_its_policies(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: bool
) -> None:
    """What its configuration names is a hook, with the policies of the gateway, or with those that are given."""
    folder = Path(__file__).parent.parent / "examples" / "litellm"
    settings = yaml.safe_load((folder / "config.yaml").read_text())["litellm_settings"]
    name, _, attribute = settings["callbacks"].partition(".")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delenv("EARMARK_REDIS", raising=False)
    monkeypatch.delenv("EARMARK_POLICIES", raising=False)
    if given:
        (tmp_path / "own.json").write_text('{"default": {"limits": {"rpd": 1}}}')
        monkeypatch.setenv("EARMARK_POLICIES", str(tmp_path / "own.json"))
    hook = getattr(importlib.import_module(name), attribute)
    del sys.modules[name]
    assert isinstance(hook, module.EarmarkHook)

    async def ask() -> None:
        data = {**HI, "model": "gpt-4o", "litellm_logging_obj": Anchor()}
        await hook.async_pre_call_hook(key("acme"), None, data, "acompletion")
        await hook.async_post_call_success_hook(data, key("acme"), ANSWER)

    asyncio.run(ask())
    if given:
        with pytest.raises(HTTPException) as refusal:
            asyncio.run(ask())
        assert refusal.value.status_code == 429
