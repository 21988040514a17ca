"""What docs/operating.md says of a real server: its configuration, its runbook, and a process that stops."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from earmark import Limit, Limiter, Limits, RateLimited, RedisBackend, Scope
from tests.redis.rights import DOCUMENTS, acl_file
from tests.servers import HOST, RedisServer
from tests.versions import VERSIONS, program_of

pytestmark = pytest.mark.anyio

ALICE: Final = Scope("api_key:alice", Limits(rpd=90, tpd=9_000, concurrency=2))
TEAM: Final = Scope("team:research", Limits(tpd=90_000, algorithm="sliding_window"))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture
async def limiter(shared_redis: RedisServer, namespace: str) -> Any:
    """On the shared server, in a namespace of its own."""
    async with Limiter(RedisBackend.from_url(shared_redis.url, namespace=namespace)) as one:
        yield one


class Guarded(RedisServer):
    """A server with the documented users, of whom only one may do what a test does."""

    def client(self, **options: Any) -> redis.Redis:
        """As `operator`."""
        return super().client(**{"username": "operator", "password": "sesame", **options})


def configuration(users: Path) -> list[str]:
    """The documented `redis.conf`, as arguments; the users are in that file."""
    text = (DOCUMENTS / "operating.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```conf\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)
    words: list[str] = []
    for line in block.replace("/etc/redis/users.acl", str(users)).splitlines():
        name, *values = shlex.split(line, comments=True) or [""]
        words += [f"--{name}", *values] if name else []
    return words


@pytest.fixture(params=VERSIONS)
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guarded]:
    """Such a server. The disk is waited for, since which second is lost else is chance."""
    users = tmp_path / "users.acl"
    users.write_text(acl_file(), encoding="utf-8")
    server = Guarded(
        *configuration(users), "--appendfsync", "always", program=program_of(request.param)
    )
    try:
        yield server.start()
    finally:
        server.close()


async def test_the_documented_server_loses_nothing_when_it_is_killed(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    """B52: with its ACL file and its append-only file; and there is nothing to warn of."""
    with guarded.client() as client:
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert (client.acl_getuser("default") or {})["enabled"] is False
    url = f"redis://gateway:sesame@{HOST}:{guarded.port}"
    async with Limiter(RedisBackend.from_url(url, timeout=5)) as limiter:
        async with await limiter.pre_commit(ALICE, TEAM, tokens=900) as reservation:
            await reservation.settle_success(500)
        held = await limiter.pre_commit(ALICE, TEAM, tokens=300)
        before = await limiter.peek(ALICE, TEAM)
        assert [limit.used for scope in before for limit in scope.limits] == [2, 800, 1, 800]
        assert caplog.records == []
        guarded.kill()
        guarded.start()
        after = await limiter.peek(ALICE, TEAM)
        assert [limit.used for scope in after for limit in scope.limits] == [2, 800, 1, 800]
        assert await held.settle_success(100)
        assert limiter.health().lost == 0


async def test_a_process_that_stops_lets_go_of_what_it_cuts(
    shared_redis: RedisServer, namespace: str
) -> None:
    """One stream ends in time and one is cancelled: debit stays, no slot does, and nothing is owed."""
    backend = RedisBackend.from_url(shared_redis.url, namespace=namespace, timeout=20)
    ends, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def stream(limiter: Limiter) -> str:
        async with await limiter.pre_commit(ALICE, tokens=900) as reservation:
            begun.release()
            await ends.wait()
            await reservation.settle_success(500)
        return reservation.state

    async with Limiter(backend) as limiter:
        tasks = [asyncio.create_task(stream(limiter)) for _ in range(2)]
        for _ in tasks:
            await begun.acquire()
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        ends.set()
        assert await tasks[1] == "settled"
    assert tasks[0].cancelled()
    assert limiter.health().owed == 0
    (status,) = await limiter.peek(ALICE)
    assert [limit.used for limit in status.limits] == [2, 1_400, 0]
    await limiter.aclose()


async def test_a_stuck_tenant_is_forgiven_and_its_slots_by_hand(
    shared_redis: RedisServer, namespace: str, limiter: Limiter
) -> None:
    """A reset leaves slots; the set of them may be deleted, and who held one settles as ever."""
    held = [await limiter.pre_commit(ALICE, tokens=900) for _ in range(2)]
    await limiter.reset(ALICE)
    (status,) = await limiter.peek(ALICE)
    assert [limit.used for limit in status.limits] == [0, 0, 2]
    with pytest.raises(RateLimited):
        await limiter.pre_commit(ALICE)
    with shared_redis.client() as client:
        assert client.delete(f"{namespace}:s:{ALICE.key}") == 1
    held.append(await limiter.pre_commit(ALICE, tokens=100))
    assert not await held[0].renew()
    assert [await one.settle_success(50) for one in held] == [True] * 3
    (status,) = await limiter.peek(ALICE)
    assert [limit.used for limit in status.limits] == [1, 50, 0]


async def test_another_amount_goes_on_and_another_window_begins_at_zero(limiter: Limiter) -> None:
    """A limit is its metric, window and algorithm; how much it allows is what the request says."""
    await (await limiter.pre_commit(ALICE, tokens=900)).close_reserved_only()
    lower, higher = Scope(ALICE.key, Limits(tpd=500)), Scope(ALICE.key, Limits(tpd=2_000))
    with pytest.raises(RateLimited):
        await limiter.pre_commit(lower, tokens=1)
    await (await limiter.pre_commit(higher, tokens=1_000)).close_reserved_only()
    for limit in (Limit("tokens", 500, 7_200), Limit("tokens", 500, 86_400, "sliding_window")):
        other = Scope(ALICE.key, Limits(also=[limit]))
        await (await limiter.pre_commit(other, tokens=400)).cancel()
    (status,) = await limiter.peek(higher)
    assert status["tokens"].used == 1_900
