"""earmark's hook in a real LiteLLM proxy, on loopback: a process of its own, in an environment of its own.

`make litellm` prepares that environment (.venv/litellm; EARMARK_LITELLM names the Python of another). Where it is
missing these tests are skipped, and the closing report says so. What was counted is looked up in the Redis server that
the proxy's hook uses, by another limiter: another process of the same limits.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from earmark import Limiter, RedisBackend
from earmark.policies import Policies
from tests.litellm.provider import Provider, serving
from tests.servers import HOST, RedisServer, free_port

ROOT: Final = Path(__file__).parent.parent.parent
HERE: Final = Path(__file__).parent
PYTHON: Final = Path(
    os.environ.get("EARMARK_LITELLM", ROOT / ".venv" / "litellm" / "bin" / "python")
)

# A day: no window ends in the middle of a test but at midnight.
POLICIES: Final[dict[str, Any]] = {
    "default": {"limits": {"rpd": 100, "tpd": 10_000, "concurrency": 2}},
    "tenants": [
        {"key": "three", "limits": {"rpd": 3}},
        {"key": "small", "limits": {"tpd": 150}},
        {"key": "tiny", "limits": {"tpd": 10}},
        {"key": "alone", "limits": {"tpd": 10_000, "concurrency": 1}},
        {
            "key": "ruled",
            "limits": {},
            "models": [{"match": "gpt-4o", "limits": {"rpd": 1}}],
        },
    ],
    "scopes": [{"id": "team", "by": "team", "limits": {"rpd": 2}}],
    "aliases": {"fast": "gpt-4o"},
}

if not PYTHON.exists():
    pytest.skip(
        "LiteLLM's proxy is not installed, so its hook was not tested: make litellm",
        allow_module_level=True,
    )


@dataclass
class Proxy:
    """A proxy that runs."""

    url: str
    provider: Provider
    redis: str
    log: Path

    def ask(
        self, key: str, said: str = "hi", *, path: str = "/v1/chat/completions", **more: Any
    ) -> httpx.Response:
        """Send a request, and read all of the answer."""
        with httpx.Client(timeout=60) as client:
            return client.post(self.url + path, json=body(said, **more), headers=bearer(key))

    def used(self, tenant: str) -> dict[str, int]:
        """What the tenant's own limits have used."""

        async def peek() -> dict[str, int]:
            async with Limiter(RedisBackend.from_url(self.redis, namespace="litellm")) as limiter:
                (status,) = await limiter.peek(*Policies(POLICIES).scopes(tenant=tenant))
                return {limit.limit.metric: limit.used for limit in status.limits}

        return asyncio.run(peek())

    def free(self, tenant: str) -> bool:
        """Wait until a tenant has no slot taken; False where that does not come about."""
        for _ in range(200):
            if self.used(tenant)["concurrency"] == 0:
                return True
            self.provider.go_on.wait(0.05)
        return False


def body(said: str, *, model: str = "gpt-4o", **more: Any) -> dict[str, Any]:
    """A request of OpenAI's or Anthropic's."""
    return {"model": model, "messages": [{"role": "user", "content": said}], **more}


def bearer(key: str) -> dict[str, str]:
    """The header with a key."""
    return {"authorization": f"Bearer {key}"}


def config(provider: str) -> dict[str, Any]:
    """LiteLLM's configuration."""
    openai = {"api_base": f"{provider}/v1", "api_key": "sk-provider", "max_retries": 0}
    return {
        "model_list": [
            {"model_name": name, "litellm_params": {"model": model, **openai, **more}}
            for name, model, more in (
                ("gpt-4o", "openai/gpt-4o", {}),
                ("fast", "openai/gpt-4o", {}),
                ("embed", "openai/text-embedding-3-small", {}),
                ("nowhere", "openai/gpt-4o", {"api_base": f"http://{HOST}:1/v1"}),
                ("claude", "anthropic/claude-sonnet-4-5", {"api_base": provider}),
            )
        ],
        "litellm_settings": {"callbacks": "earmark_hook.hook", "num_retries": 0},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
        "general_settings": {"custom_auth": "earmark_hook.authenticate"},
    }


@pytest.fixture(scope="module")
def proxy(shared_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A LiteLLM proxy with the hook, in front of the stand-in."""
    folder = tmp_path_factory.mktemp("litellm")
    (folder / "policies.json").write_text(json.dumps(POLICIES))
    (folder / "earmark_hook.py").write_bytes((HERE / "earmark_hook.py").read_bytes())
    port, url = free_port(), f"redis://{HOST}:{shared_redis.port}/14"
    with shared_redis.client(db=14) as client:
        client.flushdb()
    environment = {
        **os.environ,
        "EARMARK_URL": url,
        "EARMARK_NAMESPACE": "litellm",
        "EARMARK_POLICIES": str(folder / "policies.json"),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MASTER_KEY": "sk-" + "0123456789abcdef" * 4,
        "NO_PROXY": HOST,
        "PYTHONPATH": str(ROOT / "src"),
    }
    with serving() as provider, (folder / "log").open("w") as log:
        (folder / "config.yaml").write_text(json.dumps(config(provider.url)))
        command = [str(PYTHON.parent / "litellm"), "--config", "config.yaml", "--host", HOST]
        with subprocess.Popen(
            [*command, "--port", str(port)], cwd=folder, env=environment, stdout=log, stderr=log
        ) as process:
            running = Proxy(f"http://{HOST}:{port}", provider, url, folder / "log")
            try:
                _wait(running, process)
                yield running
            finally:
                process.terminate()


def _wait(proxy: Proxy, process: subprocess.Popen[bytes]) -> None:
    """Wait until the proxy answers."""
    for _ in range(600):
        try:
            httpx.get(f"{proxy.url}/health/liveliness", timeout=5)
        except httpx.HTTPError:
            if process.poll() is not None:
                break
            proxy.provider.holding.wait(0.2)
        else:
            return
    pytest.fail(f"LiteLLM's proxy did not start:\n{proxy.log.read_text()[-3_000:]}")


def test_a_key_over_its_limit_gets_429(proxy: Proxy) -> None:
    """The key over its limit is refused, before anything is sent, and told when to come back; others are not."""
    answers = [proxy.ask("three") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    sent = len(proxy.provider.asked)
    refused = proxy.ask("three")
    assert refused.status_code == 429
    assert len(proxy.provider.asked) == sent
    assert 1 <= int(refused.headers["retry-after"]) <= 86_400
    assert "retry-after-ms" in refused.headers
    error = refused.json()["error"]
    assert error["type"] == "rate_limit_error"
    assert "requests" in error["message"]
    assert "three" not in refused.text  # no scope's key
    assert proxy.ask("other").status_code == 200


def test_an_answer_settles(proxy: Proxy) -> None:
    """An answer that is not streamed is settled by the provider's usage before the client has it."""
    answer = proxy.ask("whole", max_tokens=500)
    assert answer.status_code == 200
    assert answer.headers["x-ratelimit-remaining-requests"] == "99"
    assert answer.headers["x-ratelimit-remaining-tokens"] == str(10_000 - 505)
    assert proxy.used("whole") == {"requests": 1, "tokens": 12, "concurrency": 0}


def test_a_stream_settles(proxy: Proxy) -> None:
    """A stream is settled by the usage in it, which the client that did not ask for it does not see."""
    answer = proxy.ask("streamed", stream=True, max_tokens=500)
    assert "[DONE]" in answer.text
    assert "prompt_tokens" not in answer.text
    assert answer.headers["x-ratelimit-limit-tokens"] == "10000"
    assert proxy.used("streamed") == {"requests": 1, "tokens": 12, "concurrency": 0}
    options = {"include_usage": True}
    answer = proxy.ask("streamed", stream=True, stream_options=options)
    assert "prompt_tokens" in answer.text
    assert proxy.used("streamed")["tokens"] == 24


def test_streams_are_limited(proxy: Proxy) -> None:
    """What streams used refuses the next request: 104 fit into 150 twice, since 12 are used of the first."""
    assert proxy.ask("small", stream=True).status_code == 200
    assert proxy.ask("small", stream=True).status_code == 200
    assert proxy.ask("small", max_tokens=140).status_code == 429
    assert proxy.used("small") == {"tokens": 24}


def test_what_can_never_fit(proxy: Proxy) -> None:
    """An ask above what the limit can hold: the SDKs are told not to try again."""
    refused = proxy.ask("tiny", max_tokens=50)
    assert refused.status_code == 429
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers


@pytest.mark.parametrize("status", [400, 401, 429])
def test_a_refusal_by_the_provider_is_not_billed(status: int, proxy: Proxy) -> None:
    """What the provider refuses unbilled gives its tokens back; the request counts."""
    key = f"refused {status}"
    assert proxy.ask(key, f"refuse {status}", max_tokens=500).status_code == status
    assert proxy.used(key) == {"requests": 1, "tokens": 0, "concurrency": 0}


def test_an_unknown_outcome_keeps_the_hold(proxy: Proxy) -> None:
    """What failed with an unknown outcome keeps its hold, and frees its slot."""
    assert proxy.ask("unknown", "refuse 500", max_tokens=500).status_code == 500
    assert proxy.used("unknown") == {"requests": 1, "tokens": 507, "concurrency": 0}
    assert proxy.ask("unknown", model="nowhere", max_tokens=500).status_code >= 500
    assert proxy.used("unknown") == {"requests": 2, "tokens": 507 + 505, "concurrency": 0}


@pytest.mark.parametrize(("statuses", "tokens"), [("500 429", 58), ("429 429", 0)])
def test_c44_what_an_earlier_attempt_may_be_billed_for_keeps_its_hold(
    statuses: str, tokens: int, proxy: Proxy
) -> None:
    """C44: LiteLLM asks once more, and that is refused unbilled: of what came before nobody knows."""
    key, sent = f"again {statuses}", len(proxy.provider.asked)
    answer = proxy.ask(key, f"refuse {statuses}", num_retries=1, max_tokens=50)
    assert answer.status_code == 429
    assert len(proxy.provider.asked) == sent + 2
    assert proxy.used(key) == {"requests": 1, "tokens": tokens, "concurrency": 0}


def test_what_the_proxy_refuses_is_given_back(proxy: Proxy) -> None:
    """A model that LiteLLM does not have was never sent: nothing counts."""
    assert proxy.ask("lost", model="no such model").status_code in {400, 404}
    assert proxy.used("lost") == {"requests": 0, "tokens": 0, "concurrency": 0}


def test_slots_are_held_until_the_stream_ends(proxy: Proxy) -> None:
    """A stream holds its slot to its end; a client that leaves frees it, and keeps its debit."""
    proxy.provider.holding.clear()
    proxy.provider.go_on.clear()
    url = proxy.url + "/v1/chat/completions"
    asked = body("hold", stream=True, max_tokens=500)
    with httpx.Client(timeout=60) as client:
        with client.stream("POST", url, json=asked, headers=bearer("alone")) as stream:
            lines = stream.iter_lines()
            assert "Hi" in next(lines)
            assert proxy.provider.holding.wait(10)
            refused = proxy.ask("alone")
            assert refused.status_code == 429
            assert "retry-after" not in refused.headers  # no clock promises a slot
            proxy.provider.go_on.set()
            assert "[DONE]" in "".join(lines)
        assert proxy.used("alone") == {"tokens": 12, "concurrency": 0}
        proxy.provider.holding.clear()
        proxy.provider.go_on.clear()
        with client.stream("POST", url, json=asked, headers=bearer("alone")) as stream:
            next(stream.iter_lines())
            assert proxy.provider.holding.wait(10)
    assert proxy.free("alone")
    proxy.provider.go_on.set()
    assert proxy.used("alone")["tokens"] >= 12 + 505


def test_c8_an_id_that_a_client_gives_to_two_requests(proxy: Proxy) -> None:
    """C8: LiteLLM takes a request's id from its client. What is refused does not resolve what runs under it."""
    proxy.provider.holding.clear()
    proxy.provider.go_on.clear()
    url = proxy.url + "/v1/chat/completions"
    asked = body("hold", stream=True, max_tokens=500)
    headers = bearer("slow") | {"x-litellm-call-id": "mine"}
    with (
        httpx.Client(timeout=60) as client,
        client.stream("POST", url, json=asked, headers=headers) as stream,
    ):
        assert proxy.provider.holding.wait(10)
        for key, status in (("alone/red", 429), ("slow", 429)):
            too_much = body("hi", max_tokens=20_000)
            refused = client.post(url, json=too_much, headers=headers | bearer(key))
            assert refused.status_code == status
        assert proxy.used("slow") == {"requests": 1, "tokens": 505, "concurrency": 1}
        proxy.provider.go_on.set()
        assert stream.read()
    assert proxy.used("slow") == {"requests": 1, "tokens": 12, "concurrency": 0}


def test_no_provider_is_sent_what_the_hook_marks_a_request_with(proxy: Proxy) -> None:
    """What a client says of itself is passed on, and nothing of the hook's is."""
    sent = len(proxy.provider.asked)
    own = {"user_id": "u"}
    for path, model in (("/v1/messages", "claude"), ("/v1/chat/completions", "gpt-4o")):
        answer = proxy.ask("marked", path=path, model=model, max_tokens=500, metadata=own)
        assert answer.status_code == 200
    seen = proxy.provider.asked[sent:]
    assert seen[0]["metadata"] == own
    assert "earmark" not in json.dumps(seen)
    assert proxy.free("marked")
    assert proxy.used("marked") == {"requests": 2, "tokens": 24, "concurrency": 0}


def test_rules_teams_and_aliases(proxy: Proxy) -> None:
    """A rule for a model, an alias of it, and a limit per team, as the policies say."""
    assert proxy.ask("ruled", model="gpt-4o").status_code == 200
    assert proxy.ask("ruled", model="fast").status_code == 429
    assert proxy.ask("ruled", model="claude").status_code == 200
    assert [proxy.ask(f"{key}/red").status_code for key in "abc"] == [200, 200, 429]
    assert proxy.ask("c/blue").status_code == 200


def test_anthropics_messages(proxy: Proxy) -> None:
    """LiteLLM's /v1/messages, streamed and not: settled by Anthropic's own usage."""
    for stream in (False, True):
        key = f"messages {stream}"
        answer = proxy.ask(key, path="/v1/messages", model="claude", max_tokens=500, stream=stream)
        assert answer.status_code == 200
        assert proxy.free(key)
        assert proxy.used(key) == {"requests": 1, "tokens": 12, "concurrency": 0}


def test_embeddings_have_no_output(proxy: Proxy) -> None:
    """An embedding asks for its input alone."""
    with httpx.Client(timeout=60) as client:
        asked = {"model": "embed", "input": "one two three"}
        answer = client.post(f"{proxy.url}/v1/embeddings", json=asked, headers=bearer("tiny"))
    assert answer.status_code == 200  # 10 a day, of which this asks 8
    assert proxy.used("tiny") == {"tokens": 9}


def test_a_request_that_cannot_be_limited(proxy: Proxy) -> None:
    """A model that can be no key is the client's mistake."""
    assert proxy.ask("odd", model="m" * 2_000).status_code == 400
