"""Every way to name a server, by URL or by a client that was handed in; and namespaces, which never share."""

from __future__ import annotations

from typing import Any, Final

import pytest
from redis.asyncio import Redis

from earmark import EarmarkError, Limiter, Limits, RateLimited, RedisBackend, Scope
from tests.servers import HOST, RedisServer, redis_server

pytestmark = pytest.mark.anyio

ALICE: Final = Scope("api_key:alice", Limits(rph=2, tph=1_000, concurrency=1))
TEAM: Final = Scope("team:research", Limits(tpd=10_000, algorithm="token_bucket"))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


async def works(backend: RedisBackend) -> None:
    """It admits, counts, refuses and settles."""
    async with Limiter(backend) as limiter:
        async with await limiter.pre_commit(ALICE, TEAM, tokens=600, request_id="a") as first:
            with pytest.raises(RateLimited):
                await limiter.pre_commit(ALICE, TEAM, tokens=500)
            assert await first.settle_success(100)
        alice, _ = await limiter.peek(ALICE, TEAM)
        assert (alice["tokens"].used, alice["concurrency"].used) == (100, 0)
        health = limiter.health()
        assert (health.available, health.admitted_without_store) == (True, 0)


def names(server: RedisServer, database: int = 0) -> set[str]:
    """The keys of a database, up to what follows their letter."""
    with server.client(db=database, decode_responses=True) as client:
        return {":".join(key.split(":")[:2]) for key in client.scan_iter()}


@pytest.mark.parametrize("host", [HOST, "localhost"])
async def test_a_redis_url(shared_redis: RedisServer, namespace: str, host: str) -> None:
    """`redis://`, by address and by name."""
    await works(RedisBackend.from_url(f"redis://{host}:{shared_redis.port}", namespace=namespace))


async def test_a_unix_socket(namespace: str) -> None:
    """`unix://`."""
    with redis_server("--unixsocket", "redis.sock", "--unixsocketperm", "700") as server:
        url = f"unix://{server.folder}/redis.sock"
        await works(RedisBackend.from_url(url, namespace=namespace))
        assert f"{namespace}:c" in names(server)


@pytest.mark.parametrize("form", ["redis://{address}/3", "redis://{address}?db=3"])
async def test_a_database_number(shared_redis: RedisServer, namespace: str, form: str) -> None:
    """Keys are in that database and in no other."""
    url = form.format(address=f"{HOST}:{shared_redis.port}")
    await works(RedisBackend.from_url(url, namespace=namespace))
    assert f"{namespace}:c" in names(shared_redis, 3)
    assert f"{namespace}:c" not in names(shared_redis)


async def test_a_password(namespace: str) -> None:
    """That of the default user; a wrong one is a mistake, and no outage to be sat out."""
    with redis_server() as server:
        with server.client() as client:
            client.config_set("requirepass", "open sesame")
        address = f"{HOST}:{server.port}"
        good = f"redis://:open%20sesame@{address}"
        await works(RedisBackend.from_url(good, namespace=namespace))
        backend = RedisBackend.from_url(f"redis://:wrong@{address}", namespace=namespace)
        async with Limiter(backend) as limiter:
            for _ in range(3):
                with pytest.raises(EarmarkError, match="invalid username-password"):
                    await limiter.pre_commit(ALICE)
            assert limiter.health().admitted_without_store == 0


async def test_options_for_the_client(shared_redis: RedisServer, namespace: str) -> None:
    """`client_options` are those of `Redis.from_url`."""
    backend = RedisBackend.from_url(
        shared_redis.url, namespace=namespace, client_options={"client_name": namespace}
    )
    async with Limiter(backend) as limiter:
        await limiter.peek(ALICE)
        with shared_redis.client(decode_responses=True) as client:
            assert [one["name"] for one in client.client_list()].count(namespace) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"decode_responses": True},
        {"protocol": 2},
        {"protocol": 3},
        {"socket_timeout": 0.01, "health_check_interval": 1, "single_connection_client": True},
        {"max_connections": 1},
    ],
    ids=str,
)
async def test_a_client_that_was_handed_in(
    shared_redis: RedisServer, namespace: str, settings: dict[str, Any]
) -> None:
    """Its address is used; its other settings, right for its other uses, do no harm."""
    scope = Scope("ключ:ü", Limits(rph=5))
    async with Redis(host=HOST, port=shared_redis.port, **settings) as client:
        async with Limiter(RedisBackend(client, namespace=namespace)) as limiter:
            async with await limiter.pre_commit(scope, request_id="заявка"):
                pass
            (status,) = await limiter.peek(scope)
            assert status["requests"].used == 1
        await works(RedisBackend(client, namespace=f"{namespace}-too"))


async def test_r13_namespaces_never_share(shared_redis: RedisServer, namespace: str) -> None:
    """The same scopes and request ids under two namespaces: not one key in common, whatever they contain."""
    one = f"{namespace}.a"
    # Names that would meet if any part were left out, or joined without a mark.
    keys = ["k", f"{one}:c:k", "c:k", ":", "s:k"]
    scopes = [Scope(key, Limits(rph=1, concurrency=1)) for key in keys]
    async with (
        Limiter(RedisBackend.from_url(shared_redis.url, namespace=one)) as first,
        Limiter(RedisBackend.from_url(shared_redis.url, namespace=f"{one}.b")) as second,
    ):
        mine = [await first.pre_commit(scope, request_id=scope.key) for scope in scopes]
        theirs = [await second.pre_commit(scope, request_id=scope.key) for scope in scopes]
        assert len({id(handle) for handle in (*mine, *theirs)}) == 2 * len(scopes)
        await first.add_tokens_post_stream("k", 5, request_id="k")
        await first.reset(*scopes)
        for scope in scopes:
            (status,) = await second.peek(scope)
            assert (status["requests"].used, status["concurrency"].used) == (1, 1)
        for handle in mine:
            assert await handle.cancel()
        for scope in scopes:
            (status,) = await second.peek(scope)
            assert (status["requests"].used, status["concurrency"].used) == (1, 1)
        for handle in theirs:
            assert await handle.close_reserved_only()


@pytest.mark.parametrize("bad", ["", "a:b", "a b", "a" * 65, "a*", "ключ", "{a}", None])
def test_a_namespace_has_no_colon(bad: Any) -> None:
    """What could make two namespaces meet, or a pattern of one match another, is refused."""
    with pytest.raises((ValueError, TypeError)):
        RedisBackend.from_url("redis://localhost", namespace=bad)
