"""Who only looks on needs rights to read: those of `watcher` in docs/redis.md are enough, and each is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
import redis
from redis.exceptions import RedisClusterException

from earmark import BackendUnavailable, EarmarkError, Limiter, Limits, RedisBackend, Scope
from earmark.commands import main
from earmark.commands.busiest.watch import Watch
from tests.redis.rights import PASSWORD, commands, rights, server
from tests.servers import HOST, RedisServer, redis_cluster, told

__all__ = ["server"]

pytestmark = pytest.mark.anyio

NAMESPACE: Final = "earmark"
ON_A_CLUSTER: Final = ("+command", "+cluster|slots")

SCOPES: Final = [
    Scope("api_key:alice", Limits(rpd=9, tpd=900, concurrency=2)),
    Scope("team:research", Limits(tpd=9_000, algorithm="token_bucket")),
    Scope("model:m", Limits(rpd=90, algorithm="sliding_window")),
]

# What writes, of all that the gateways' user may run.
WRITING: Final = {"set", "del", "pexpire", "zadd", "zrem", "zremrangebyscore"}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


def url_of_watcher(servers: list[RedisServer], words: list[str]) -> str:
    """The URL of the user, who has these rights; nobody knows a script."""
    for one in servers:
        told(one, "SCRIPT", "FLUSH")
        told(one, "ACL", "SETUSER", "watcher", "reset", *words)
    return f"redis://watcher:{PASSWORD.replace(' ', '%20')}@{HOST}:{servers[0].port}"


@asynccontextmanager
async def at_work(url: str, *, cluster: bool = False) -> AsyncIterator[None]:
    """A gateway, whose user may do everything, with an open reservation over every scope."""
    backend = RedisBackend.from_url(url, cluster=cluster, timeout=20)
    async with Limiter(backend) as limiter, await limiter.pre_commit(*SCOPES, tokens=90):
        yield


async def limits_seen(url: str, *, cluster: bool = False) -> int:
    """How many limits are found to be used, by looks at the whole of it."""
    watch = Watch(url, namespace=NAMESPACE, cluster=cluster, limits_of=lambda _: None)
    try:
        while not watch.is_complete:
            await watch.look()
        return len(await watch.rows())
    finally:
        await watch.aclose()


async def test_the_documented_rights_are_enough(
    server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """All limits are seen, with rights of which none is to write; the server has denied and changed nothing."""
    assert not WRITING & set(commands("watcher"))
    assert set(commands("gateway")) > WRITING
    async with at_work(server.url):
        url = url_of_watcher([server], rights("watcher"))
        told(server, "ACL", "LOG", "RESET")
        before = told(server, "INFO", "persistence")
        assert await limits_seen(url) == 5
        with server.client() as client:
            keys = set(client.scan_iter())
        assert f"{NAMESPACE}:p".encode() not in keys
        assert told(server, "ACL", "LOG") == []
        changes = [line for line in before.splitlines() if b"rdb_changes" in line]
        assert changes[0] in told(server, "INFO", "persistence").splitlines()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", commands("watcher"))
async def test_each_of_them_is_needed(server: RedisServer, command: str) -> None:
    """Without it the server's refusal is told, and it does not look as if nobody used anything."""
    async with at_work(server.url):
        url = url_of_watcher([server], [*rights("watcher"), f"-{command}"])
        with pytest.raises((EarmarkError, redis.RedisError), match=r"permissions|can't run"):
            await limits_seen(url)


async def test_a_server_that_serves_nothing_for_a_while_is_an_outage(server: RedisServer) -> None:
    """The view goes on with what it had, and looks again: here while a replica has no master."""
    async with at_work(server.url):
        watch = Watch(server.url, namespace=NAMESPACE, cluster=False, limits_of=lambda _: None)
        await watch.look()
        told(server, "CONFIG", "SET", "replica-serve-stale-data", "no")
        told(server, "REPLICAOF", HOST, 1)
        try:
            with pytest.raises(BackendUnavailable, match="MASTERDOWN"):
                await watch.rows()
        finally:
            told(server, "REPLICAOF", "NO", "ONE")
        assert len(await watch.rows()) == 5
        await watch.aclose()


def test_a_refusal_is_a_line_and_an_exit_code(
    server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command names what the user may not run."""
    url = url_of_watcher([server], [*rights("watcher"), "-scan"])
    assert main(["top", "--redis", url, "--once"]) == 1
    told_of = capsys.readouterr()
    assert told_of.out == ""
    assert "'scan'" in told_of.err
    assert "sesame" not in told_of.err


async def test_a_cluster_takes_two_more() -> None:
    """`+command` and `+cluster|slots`, and the keys of a cluster, as documented."""
    words = [word.replace("~earmark:*", "~earmark{*") for word in rights("watcher")]
    with redis_cluster() as cluster:
        async with at_work(cluster.url, cluster=True):
            url = url_of_watcher(cluster.masters, [*words, *ON_A_CLUSTER])
            assert await limits_seen(url, cluster=True) == 5
            for missing in ON_A_CLUSTER:
                poor = [*words, *ON_A_CLUSTER, missing.replace("+", "-")]
                url = url_of_watcher(cluster.masters, poor)
                with pytest.raises((redis.RedisError, RedisClusterException)):
                    await limits_seen(url, cluster=True)
