"""Mistakes: what does not pass by itself is told, and what may have been applied by then counts once (R9, C24, C56)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from earmark import Limiter, Limits, RateLimited, RedisBackend, Scope
from earmark.backends.redis import line
from earmark.backends.redis.failures import StoreError
from tests.redis.proxy import SCOPE, Kind, Proxy, Way, proxied
from tests.servers import RedisServer, redis_server

pytestmark = pytest.mark.anyio

CUTS: Final[tuple[Kind, ...]] = ("cut before", "cut after")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture
async def way(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Way]:
    """Limits of a server of its own, whose password changes."""
    monkeypatch.setattr(line, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(line, "LONGEST_PAUSE", 0.05)
    with redis_server() as server:
        async with Proxy(server) as proxy, proxied(server, "test", proxy) as way:
            yield way


class Locked:
    """While it is entered nobody gets in who is not in already."""

    def __init__(self, way: Way) -> None:
        self._admin = way.server.client(single_connection_client=True)

    def __enter__(self) -> None:
        self._admin.config_set("requirepass", "secret")

    def __exit__(self, *_: object) -> None:
        self._admin.config_set("requirepass", "")
        self._admin.close()


@pytest.mark.parametrize("kind", CUTS)
@pytest.mark.parametrize("request_id", [None, "r1"])
async def test_a_settlement_that_meets_a_mistake_on_its_second_way_counts_once(
    way: Way, kind: Kind, request_id: str | None
) -> None:
    """R9, C24: whether it was applied is unknown: it is owed, so that nobody has to call again."""
    held = await way.limiter.pre_commit(SCOPE, tokens=300, request_id=request_id)
    way.proxy.fault(kind, b"resolve ")
    with Locked(way):
        assert await held.settle_success(100) is True
        assert held.state == "settled"
        assert await held.cancel() is False
        assert way.limiter.health().owed == 1
        with pytest.raises(StoreError):
            await way.limiter.peek(SCOPE)
    await way.check(requests=1, tokens=100)


@pytest.mark.parametrize("kind", CUTS)
async def test_an_addition_that_meets_a_mistake_on_its_second_way_counts_once(
    way: Way, kind: Kind
) -> None:
    """R9, C56: it is owed with its id; called again it would have another."""
    way.proxy.fault(kind, b"add ")
    with Locked(way):
        await way.limiter.add_tokens_post_stream(SCOPE, 70)
        assert way.limiter.health().owed == 1
    await way.check(tokens=70)


@pytest.mark.parametrize("kind", CUTS)
async def test_a_reserve_that_meets_a_mistake_on_its_second_way_is_taken_back(
    way: Way, kind: Kind
) -> None:
    """R9: its caller is told, and nothing is held."""
    way.proxy.fault(kind, b"reserve ")
    with Locked(way):
        with pytest.raises(StoreError):
            await way.limiter.pre_commit(SCOPE, tokens=300)
        assert way.limiter.health().owed == 1
    await way.check()


async def test_what_was_never_sent_is_not_owed_by_a_mistake(way: Way) -> None:
    """C24: nothing is settled, and the reservation is open: its holder calls again."""
    held = await way.limiter.pre_commit(SCOPE, tokens=300)
    with Locked(way):
        await way.proxy.cut()
        with pytest.raises(StoreError):
            await way.limiter.peek(SCOPE)
        with pytest.raises(StoreError):
            await held.settle_success(100)
        with pytest.raises(StoreError):
            await way.limiter.add_tokens_post_stream(SCOPE, 70)
        assert held.state == "open"
        assert way.limiter.health().owed == 0
    await way.delivered()
    assert await held.settle_success(100)
    await way.check(requests=1, tokens=100)


@pytest.mark.parametrize(
    ("option", "content"),
    [
        ("ssl_ca_certs", None),
        ("ssl_ca_certs", "no certificate"),
        ("ssl_certfile", None),
        ("ssl_certfile", "no certificate"),
        ("ssl_ca_certs", "/"),
    ],
)
async def test_a_file_of_tls_that_is_missing_is_a_mistake(
    shared_redis: RedisServer, tmp_path: Path, option: str, content: str | None
) -> None:
    """It is told, whatever `on_outage` says: memory would decide for as long as the process lives."""
    file = tmp_path / "file.pem"
    if content == "/":
        file.mkdir()
    elif content is not None:
        file.write_text(content)
    url = shared_redis.url.replace("redis://", "rediss://")
    backend = RedisBackend.from_url(url, client_options={option: str(file)}, timeout=20)
    async with Limiter(backend) as limiter:
        for _ in range(2):
            with pytest.raises(StoreError, match="settings of the connection"):
                await limiter.pre_commit(SCOPE)
        assert limiter.health().admitted_without_store == 0
        assert not limiter.health().available


async def test_a_socket_that_is_not_there_is_an_outage(tmp_path: Path) -> None:
    """Its server has not begun yet."""
    backend = RedisBackend.from_url(f"unix://{tmp_path}/redis.sock")
    async with Limiter(backend) as limiter:
        reservation = await limiter.pre_commit(SCOPE)
        assert reservation.degraded
        assert await reservation.cancel()


async def test_the_horizon_is_a_setting(shared_redis: RedisServer, namespace: str) -> None:
    """R9: for so long it is remembered that a reservation is over, where a late copy could count it twice."""
    async with Way(shared_redis, namespace, horizon=7.5) as way:
        held = await way.limiter.pre_commit(SCOPE, tokens=300, request_id="r1")
        assert await held.cancel()
        with shared_redis.client() as client:
            (key,) = client.scan_iter(f"{namespace}:r:*")
            grave = client.get(key)
        end = round((way.clock() + 7.5) * 1_000_000)
        assert isinstance(grave, bytes)
        assert grave.startswith(b"%d " % end)


async def test_r9_the_horizon_is_as_long_as_a_message_may_be_sent_again(
    shared_redis: RedisServer, namespace: str
) -> None:
    """R9: a shorter one would have a second copy, within four deadlines, find nothing of the first."""
    async with Way(shared_redis, namespace, horizon=0.001, timeout=20) as way:
        held = await way.limiter.pre_commit(SCOPE, tokens=300, request_id="r1")
        settlement = way.backend._messages.resolve(held._hold, "settle", {"tokens": 100}, {})
        line = way.backend._lines.here().line
        assert await line.ask(settlement) == "done"
        way.clock.advance(4 * 20 - 0.001)
        assert await line.ask(settlement, again=True) == "done"
        assert await way.used() == {"requests": 1, "tokens": 100, "concurrency": 0}
        assert await held.cancel() is False


@pytest.mark.parametrize("horizon", [0, -1, 3_601, True, "60", None, float("nan")])
def test_a_horizon_out_of_its_range(horizon: object) -> None:
    """Above 0 and at most an hour."""
    with pytest.raises(ValueError, match="horizon"):
        RedisBackend.from_url("redis://127.0.0.1:1", horizon=horizon)


async def test_a_local_limit_refuses_across_outages(
    shared_redis: RedisServer, namespace: str
) -> None:
    """What this process has admitted in a window counts in its next outage, and is forgotten when it is over."""
    scope = Scope("key", Limits(rpd=3))
    async with (
        Proxy(shared_redis) as proxy,
        proxied(shared_redis, namespace, proxy) as way,
    ):
        await proxy.refuse()
        left = await way.limiter.pre_commit(scope, request_id="left")
        for _ in range(2):
            assert await (await way.limiter.pre_commit(scope)).close_reserved_only()
        await proxy.accept()
        await way.delivered()
        assert await (await way.limiter.pre_commit(scope)).cancel()
        await proxy.refuse()
        with pytest.raises(RateLimited):
            await way.limiter.pre_commit(scope)
        await proxy.accept()
        await way.delivered()
        store = way.backend._local._store
        assert sum(map(len, store._tables.values())) == 1
        way.clock.advance(2 * 86_400)
        assert await (await way.limiter.pre_commit(scope)).cancel()
        assert not store._tables
        assert not store._book.open
        assert not way.backend._local._own_desk.forgotten
        # Nobody came back for it within an hour: its name is free again.
        heir = await way.limiter.pre_commit(scope, request_id="left")
        assert not heir.degraded
        assert await heir.cancel()
        assert await left.close_reserved_only() is False
