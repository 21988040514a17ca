"""Two gateway workers on one Redis, and 500 streams at once whose clients leave at random: nothing leaks."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from earmark import Limiter, Limits, RedisBackend, Scope, ScopeStatus
from earmark.estimates import estimate
from earmark.policies import Policies
from earmark.testing.provider import Act, running
from tests.e2e.processes import Gateway, gateway
from tests.servers import RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

STREAMS: Final = 500
ADMITTED: Final = 450
CHUNKS: Final = 10
REPORTED: Final = 10 + CHUNKS
BODY: Final[dict[str, Any]] = {"model": "m", "messages": [], "max_tokens": 1_000, "stream": True}
HELD: Final = estimate(BODY).total or 0
DATABASE: Final = 9

LIMITS: Final[dict[str, Any]] = {"rpd": ADMITTED, "tpd": 10_000_000, "concurrency": STREAMS}
POLICIES: Final = {
    "default": {"limits": {}},
    "tenants": [
        {"key": "many", "limits": LIMITS},
        {"key": "two", "limits": {"rpd": 3, "tpd": 1_000}},
    ],
}


class Client:
    """One of many: reads a stream to its end, or leaves it somewhere."""

    def __init__(self, http: httpx.AsyncClient, leaves_after: int | None) -> None:
        self._http = http
        self._leaves_after = leaves_after

    async def run(self, url: str) -> str:
        """What became of it."""
        headers = {"authorization": "Bearer sk-many"}
        async with self._http.stream(
            "POST", f"{url}/v1/chat/completions", json=BODY, headers=headers
        ) as response:
            if response.status_code != 200:
                return str(response.status_code)
            read = b""
            async for piece in response.aiter_raw():
                read += piece
                if self._leaves_after is not None and read.count(b"\n\n") >= self._leaves_after:
                    return "left"
            assert read.endswith(b"data: [DONE]\n\n")
            return "read"


async def status_of(limiter: Limiter, scope: Scope) -> ScopeStatus:
    (status,) = await limiter.peek(scope)
    return status


async def test_500_streams_with_random_disconnects(
    shared_redis: RedisServer, tmp_path: Path
) -> None:
    """R5, R10, R16, C42: exactly as many are admitted as may be; in the end no slot is held and no record open.

    Whoever read the end was settled at what was reported. Whoever left was settled as well, if the report had come
    by then, or keeps what was held (B65): of the tokens, every one is one of the two.
    """
    redis = f"redis://127.0.0.1:{shared_redis.port}/{DATABASE}"
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    with shared_redis.client(db=DATABASE) as look:
        look.flushdb()
    async with (
        running(Act(chunks=CHUNKS, pace=0.01)) as provider,
        gateway([provider], POLICIES, tmp_path, redis=redis, workers=2) as served,
        Limiter(RedisBackend.from_url(redis)) as limiter,
        httpx.AsyncClient(
            trust_env=False, timeout=120, limits=httpx.Limits(max_connections=None)
        ) as http,
    ):
        ends = await asyncio.gather(
            *(
                Client(http, dice.choice([None, None, 0, 1, 3, CHUNKS // 2, CHUNKS])).run(
                    served.urls[number % 2]
                )
                for number in range(STREAMS)
            )
        )
        found = Counter(ends)
        scope = Scope(key_of("many"), Limits(**LIMITS))
        async with asyncio.timeout(60):
            while (status := await status_of(limiter, scope))["concurrency"].used:  # noqa: ASYNC110 - other processes tell nobody
                await asyncio.sleep(0)
        assert found["429"] == STREAMS - ADMITTED, f"seed {seed}: {found}"
        assert found["read"] + found["left"] == ADMITTED
        assert status["requests"].used == ADMITTED
        over = status["tokens"].used - ADMITTED * REPORTED
        kept, rest = divmod(over, HELD - REPORTED)
        assert rest == 0, f"seed {seed}: {over} tokens"
        assert 0 < kept <= found["left"]
        assert await provider.streaming() == 0
    assert open_records(shared_redis) == []


def key_of(tenant: str) -> str:
    """The key of a tenant's own limits."""
    (scope,) = Policies(POLICIES).scopes(tenant=tenant, model="m")
    return scope.key


def open_records(server: RedisServer) -> list[Any]:
    """The reservations that nobody has resolved."""
    with server.client(db=DATABASE) as client:
        look: Any = client
        return [key for key in look.scan_iter("earmark:r:*") if b"\n" in (look.get(key) or b"")]


async def test_b50_two_workers_share_every_limit(shared_redis: RedisServer, tmp_path: Path) -> None:
    """B50, B31: three a day, whichever worker is asked; the tokens that one has settled refuse at the other."""
    redis = f"redis://127.0.0.1:{shared_redis.port}/{DATABASE}"
    with shared_redis.client(db=DATABASE) as look:
        look.flushdb()
    async with (
        running() as provider,
        gateway([provider], POLICIES, tmp_path, redis=redis, workers=2) as served,
    ):
        # Of a thousand tokens each holds 514 and settles 15.
        assert [await asked(served, number % 2) for number in range(5)] == [
            ("200", "2", "486"),
            ("200", "1", "471"),
            ("200", "0", "456"),
            ("429", "0", ""),
            ("429", "0", ""),
        ]


async def asked(served: Gateway, worker: int) -> tuple[str, ...]:
    """One request of a worker: its status, and what remains."""
    body = {"model": "m", "messages": [], "max_tokens": 510}
    async with httpx.AsyncClient(trust_env=False) as http:
        response = await http.post(
            f"{served.urls[worker]}/v1/chat/completions",
            json=body,
            headers={"authorization": "Bearer sk-two"},
        )
    remaining = [
        response.headers.get(f"x-ratelimit-remaining-{name}", "") for name in ("requests", "tokens")
    ]
    return (str(response.status_code), *remaining)
