"""What examples/llm_gateway.py charges its clients where no provider has an answer, and how it is set up and watched.

It is the gateway to deploy, so a provider that is down must not eat its clients' limits. The providers are a
transport of httpx's; the whole over real HTTP, with streams and SDKs, is tests/e2e.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import pytest

from earmark import Health, Limiter, Limits, MemoryBackend, Scope
from earmark.policies import PolicyError
from earmark.testing import FaultyBackend, ManualClock

pytestmark = pytest.mark.anyio

FILE: Final = Path(__file__).parent.parent / "examples" / "llm_gateway.py"
PATH: Final = "/v1/chat/completions"
ACME: Final = Scope("tenant:acme", Limits(rpm=600, tpm=400_000, concurrency=40))
CHAT: Final = {"model": "m", "messages": [], "max_tokens": 3_000}

Answer = int | type[httpx.TransportError]
"""What a provider does: a status, or what keeps it from answering."""

DEAD: Final = httpx.ConnectError
LOST: Final = httpx.ReadTimeout


@pytest.fixture
def anyio_backend() -> str:
    """The event loop that uvicorn runs on."""
    return "asyncio"


Load = Callable[..., Any]  # a module, of whose names mypy knows nothing


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """The gateway's module, afresh, with these settings."""

    def loaded(**settings: str) -> object:
        for name, value in settings.items():
            monkeypatch.setenv(f"GATEWAY_{name}", value)
        spec = importlib.util.spec_from_file_location("llm_gateway_of_a_test", FILE)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return loaded


class World:
    """A gateway in front of two providers, each of which does what it is told."""

    def __init__(self, load: Load, *answers: Answer, **settings: str) -> None:
        self.module = load(PROVIDERS="p0=http://p0,p1=http://p1", **settings)
        self.module.limiter = self.limiter = Limiter(MemoryBackend(clock=ManualClock(20.0)))
        self.module.upstream = httpx.AsyncClient(transport=httpx.MockTransport(self._provider))
        self._answers = answers
        transport = httpx.ASGITransport(self.module.app)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://gateway")

    def _provider(self, request: httpx.Request) -> httpx.Response:
        answer = self._answers[int(request.url.host.removeprefix("p"))]
        if isinstance(answer, int):
            return httpx.Response(answer, json={"error": "no"})
        message = "no answer"
        raise answer(message, request=request)

    async def post(self, scheme: str = "Bearer", path: str = PATH, **more: Any) -> httpx.Response:
        headers = {"authorization": f"{scheme} sk-demo"}
        return await self.client.post(path, content=json.dumps(CHAT | more), headers=headers)

    async def used(self) -> tuple[bool, int]:
        """Whether tokens are debited, and how many requests."""
        (acme,) = await self.limiter.peek(ACME)
        assert acme["concurrency"].used == 0
        return acme["tokens"].used > 0, acme["requests"].used


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("answers", "status", "used"),
    [
        # Nobody was sent anything: all is given back.
        ((DEAD, DEAD), 502, (False, 0)),
        ((httpx.ConnectTimeout, httpx.PoolTimeout), 502, (False, 0)),
        # Refused and unbilled, by whom it may be: it counts as a request, and used nothing.
        ((429, DEAD), 502, (False, 1)),
        ((DEAD, 429), 429, (False, 1)),
        ((429, 401), 401, (False, 1)),
        ((400, 500), 400, (False, 1)),
        # Somebody may bill it: what was held stays.
        ((LOST, DEAD), 502, (True, 1)),
        ((DEAD, LOST), 502, (True, 1)),
        ((429, LOST), 502, (True, 1)),
        ((500, DEAD), 502, (True, 1)),
        ((DEAD, 500), 500, (True, 1)),
        ((LOST, 429), 429, (True, 1)),
        ((500, 400), 400, (True, 1)),
    ],
)
async def test_what_no_provider_answers_is_charged_by_what_was_sent(
    load: Load, answers: tuple[Answer, Answer], status: int, used: tuple[bool, int], stream: bool
) -> None:
    """DESIGN's table of verbs, for the client, whichever provider comes first (C44)."""
    world = World(load, *answers)
    assert (await world.post(stream=stream)).status_code == status
    assert await world.used() == used


@pytest.mark.parametrize(("first", "used"), [(DEAD, (False, 0)), (LOST, (True, 1))])
async def test_a_last_provider_without_room_charges_by_what_was_sent(
    load: Load, first: Answer, used: tuple[bool, int]
) -> None:
    """The refusal of the last provider's scope is the answer, and the client pays for none of it."""
    world = World(load, first, 200)
    (_, (full, _)) = world.module.PROVIDERS
    one_at_a_time = Scope(full.key, Limits(concurrency=1))
    world.module.PROVIDERS[1] = (one_at_a_time, "http://p1")
    async with await world.limiter.pre_commit(one_at_a_time):
        assert (await world.post()).status_code == 429
        assert await world.used() == used


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_an_authentication_scheme_has_no_case(load: Load, scheme: str) -> None:
    """As HTTP says of all schemes; what is no bearer's key is none."""
    world = World(load, DEAD, DEAD)
    assert (await world.post(scheme)).status_code == 502
    assert (await world.post("Basic")).status_code == 401


@pytest.mark.parametrize(
    ("path", "header"),
    [(PATH, "x-ratelimit-limit-requests"), ("/v1/messages", "anthropic-ratelimit-requests-limit")],
)
async def test_an_admission_speaks_the_words_of_the_api_as_a_refusal_does(
    load: Load, path: str, header: str
) -> None:
    """Anthropic's headers at its messages API, OpenAI's elsewhere (B55)."""
    response = await World(load, DEAD, 400).post(path=path)
    assert response.headers[header] == "600"
    assert sum("ratelimit" in name for name in response.headers) == sum(
        name.startswith(header.partition("ratelimit")[0]) for name in response.headers
    )


@pytest.mark.parametrize("listed", ["sk-one", "", "sk-one=acme,", "=acme", "sk-one="])
def test_a_setting_that_lists_no_pairs_is_named(load: Load, listed: str) -> None:
    """The variable and the entry are told, and no key is."""
    with pytest.raises(ValueError, match=r"GATEWAY_KEYS must list pairs, such as") as raised:
        load(KEYS=listed)
    assert "sk-one" not in str(raised.value)


async def test_the_team_of_a_key_meets_its_limits(load: Load) -> None:
    """What the policies beside the gateway say of teams applies to the keys that have one, and to no others."""
    team = Scope("team:research", Limits(tpd=5_000_000))  # as policies.yaml has it
    for owner, counts in (("acme", False), ("acme/research", True)):
        world = World(load, LOST, LOST, KEYS=f"sk-demo={owner}")
        assert (await world.post()).status_code == 502
        (status,) = await world.limiter.peek(team)
        assert (status["tokens"].used > 0) is counts
        assert await world.used() == (True, 1)


def test_a_scope_by_what_the_gateway_does_not_tell_stops_the_start(
    load: Load, tmp_path: Path
) -> None:
    """A limit that nobody would ever meet is a mistake in the file."""
    file = tmp_path / "policies.json"
    scope = {"id": "team", "by": "taem", "limits": {"tpd": 5}}
    file.write_text(json.dumps({"default": {"limits": {}}, "scopes": [scope]}))
    with pytest.raises(PolicyError, match="the gateway says no 'taem' of a request"):
        load(POLICIES=str(file))


async def test_a_hangup_reads_the_policies_again(load: Load, tmp_path: Path) -> None:
    """What was used stays used (R17); a file that cannot be read leaves everything as it was."""
    file = tmp_path / "policies.json"

    def write(rpm: object) -> None:
        file.write_text(json.dumps({"default": {"limits": {"rpm": rpm}}}))

    write(5)
    world = World(load, 400, 400, POLICIES=str(file))
    left = "x-ratelimit-remaining-requests"
    reload, read = world.module.reload, [anyio.Event(), anyio.Event()]

    def reload_and_tell() -> None:
        reload()
        read.pop(0).set()

    world.module.reload = reload_and_tell
    async with world.module.life(world.module.app):
        assert (await world.post()).headers[left] == "4"
        for rpm, remaining in ((3, "1"), ("many", "0")):
            write(rpm)
            told = read[0]
            signal.raise_signal(signal.SIGHUP)
            await told.wait()
            assert (await world.post()).headers[left] == remaining
    asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)


async def test_a_store_that_is_down_takes_no_gateway_out_of_service(load: Load) -> None:
    """Liveness is the process's alone; what an operator watches says why limits are not shared."""
    world = World(load, DEAD, DEAD)
    backend = FaultyBackend(MemoryBackend())
    world.module.limiter = Limiter(backend)
    assert (await world.client.get("/health")).status_code == 200
    backend.go_down()
    assert (await world.client.get("/live")).status_code == 200
    watched = await world.client.get("/health")
    assert (watched.status_code, watched.json()["available"]) == (503, False)
    assert watched.json().keys() == {field.name for field in fields(Health)}
