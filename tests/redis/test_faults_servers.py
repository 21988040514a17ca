"""Servers that die, freeze, fill up or refuse: what was admitted, settled and lost is what docs/failure.md states.

Each test has a server of its own, which it breaks and mends. Time is a clock of the test's own, so that no window
ends by itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest
import redis

from earmark import BackendUnavailable, EarmarkError, Limiter, Limits, RedisBackend, Scope
from earmark.backends.redis import line
from earmark.backends.redis.failures import StoreError
from tests.redis.proxy import SCOPE, Way, until
from tests.servers import HOST, RedisServer, free_port, redis_server

pytestmark = pytest.mark.anyio

NAMESPACE: Final = "test"
DURABLE: Final = ("--appendonly", "yes", "--appendfsync", "always")

# A script that frees no slot writes in another way first: what it sets may need memory.
UNSLOTTED: Final = Scope("bob", Limits(rpd=10, tpd=1_000))

Serve = Callable[..., RedisServer]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(line, "LONGEST_PAUSE", 0.05)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers, which end with the test."""
    with ExitStack() as stack:
        yield lambda *settings: stack.enter_context(redis_server(*settings))


@pytest.fixture
async def way(serve: Serve) -> AsyncIterator[Way]:
    """Limits of a server of its own."""
    async with Way(serve(), NAMESPACE) as way:
        yield way


def outages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings of outages."""
    return [record.message for record in caplog.records if "cannot be reached" in record.message]


async def test_a_killed_server_that_kept_everything_has_lost_nothing(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """B52: with `appendonly yes` and `appendfsync always`; what was settled meanwhile is counted once."""
    server = serve(*DURABLE)
    async with Way(server, NAMESPACE) as way:
        settled = await way.limiter.pre_commit(SCOPE, tokens=100)
        assert await settled.settle_success(60)
        held = await way.limiter.pre_commit(SCOPE, tokens=300, request_id="r1")
        server.kill()
        assert await held.settle_success(200)
        assert not await held.cancel()
        without = await way.limiter.pre_commit(SCOPE, tokens=500)
        assert without.degraded
        await way.limiter.add_tokens_post_stream(SCOPE, 7)
        assert way.limiter.health().owed == 2
        server.start()
        await way.delivered()
        assert await without.settle_success(1)
        after = await way.limiter.pre_commit(SCOPE, tokens=11)
        assert not after.degraded
        assert await after.close_reserved_only()
        await way.check(requests=3, tokens=60 + 200 + 7 + 11)
    assert len(outages(caplog)) == 1


async def test_a_killed_server_that_kept_nothing_begins_at_zero(way: Way) -> None:
    """Without persistence at most one more amount is admitted; what was held there counts nothing more."""
    held = await way.limiter.pre_commit(SCOPE, tokens=300)
    other = await way.limiter.pre_commit(SCOPE, tokens=300)
    way.server.kill()
    assert await held.settle_success(500)  # owed, and the server will not know what it is about
    way.server.start()
    await way.delivered()
    assert not await other.settle_success(500)
    assert other.state == "abandoned"
    await way.check()
    whole = await way.limiter.pre_commit(SCOPE, tokens=1_000)
    with pytest.raises(EarmarkError):
        await way.limiter.pre_commit(SCOPE)
    assert await whole.close_reserved_only()
    await way.check(requests=1, tokens=1_000)


async def test_scripts_that_are_flushed_are_loaded_again(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    """SCRIPT FLUSH under load: every request is decided by the store, once."""
    done = threading.Event()
    scope = Scope("alice", Limits(rpd=1_000, tpd=100_000, concurrency=20))

    def flush() -> int:
        flushes = 0
        with way.server.client() as client:
            while not done.is_set():
                client.script_flush()
                flushes += 1
        return flushes

    async def work() -> None:
        for _ in range(25):
            reservation = await way.limiter.pre_commit(scope, tokens=10)
            assert not reservation.degraded
            assert await reservation.settle_success(7)

    flushing = asyncio.create_task(asyncio.to_thread(flush))
    try:
        await asyncio.gather(*(work() for _ in range(8)))
    finally:
        done.set()
        assert await flushing > 25
    assert not outages(caplog)
    await way.check(requests=200, tokens=1_400)


async def test_a_frozen_server_applies_nothing_that_was_taken_back(way: Way) -> None:
    """SIGSTOP for longer than the deadline: what waits in its sockets is applied when it wakes, and undone."""
    held = await way.limiter.pre_commit(SCOPE, tokens=300)
    way.server.freeze()
    without = await way.limiter.pre_commit(SCOPE, tokens=500)
    assert without.degraded
    assert await held.settle_success(200)
    assert not way.limiter.health().available
    way.server.thaw()
    await way.delivered()
    assert await without.settle_success(500)
    await way.check(requests=1, tokens=200)


async def test_a_server_that_freezes_in_the_midst_of_a_settlement(way: Way) -> None:
    """The settlement is sent twice, and counts once."""
    held = await way.limiter.pre_commit(SCOPE, tokens=300, request_id="r1")
    way.server.freeze()
    assert await held.settle_success(200)
    way.server.thaw()
    await way.check(requests=1, tokens=200)


async def test_a_full_server_lets_go_of_what_is_held(way: Way) -> None:
    """With its memory full (noeviction) reserves are an outage; resolutions get through all the same."""
    first = await way.limiter.pre_commit(SCOPE, tokens=300)
    second = await way.limiter.pre_commit(SCOPE, tokens=300)
    third = await way.limiter.pre_commit(UNSLOTTED, tokens=300)
    with way.server.client() as admin:
        admin.config_set("maxmemory", 1)
        assert await third.settle_success(100)
        assert await first.settle_success(100)
        assert way.limiter.health().available
        assert await way.used() == {"requests": 2, "tokens": 400, "concurrency": 1}
        without = await way.limiter.pre_commit(SCOPE, tokens=300)
        assert without.degraded
        assert "OOM" in (way.limiter.health().reason or "")
        # The store is out of reach by now: what is settled is owed, and delivered while its memory is full still.
        await way.limiter.add_tokens_post_stream(SCOPE, 7)
        assert await second.settle_success(100)
        await until(lambda: way.limiter.health().owed == 1)
        assert await way.used() == {"requests": 2, "tokens": 200, "concurrency": 0}
        assert not way.limiter.health().available
        admin.config_set("maxmemory", 0)
    await without.cancel()
    assert await way.used(UNSLOTTED) == {"requests": 1, "tokens": 100}
    await way.check(requests=2, tokens=207)


@pytest.mark.parametrize("stale", ["yes", "no"])
async def test_a_replica_takes_nothing(way: Way, stale: str) -> None:
    """READONLY, and MASTERDOWN where stale data is not served: an outage until it is a master again."""
    held = await way.limiter.pre_commit(SCOPE, tokens=300)
    with way.server.client() as admin:
        admin.config_set("replica-serve-stale-data", stale)
        admin.execute_command("REPLICAOF", HOST, free_port())
        without = await way.limiter.pre_commit(SCOPE, tokens=300)
        assert without.degraded
        word = "READONLY" if stale == "yes" else "MASTERDOWN"
        assert word in (way.limiter.health().reason or "")
        assert await held.settle_success(100)
        assert way.limiter.health().owed == 1
        admin.execute_command("REPLICAOF", "NO", "ONE")
    await without.cancel()
    await way.check(requests=1, tokens=100)


@pytest.mark.parametrize("verb", ["reserve", "resolve"])
async def test_a_replica_is_an_outage_for_both_kinds_of_scripts(way: Way, verb: str) -> None:
    """What takes is refused before it runs, and what frees at its first write."""
    held = await way.limiter.pre_commit(SCOPE, tokens=300)
    with way.server.client() as admin:
        admin.execute_command("REPLICAOF", HOST, free_port())
        if verb == "reserve":
            without = await way.limiter.pre_commit(SCOPE, tokens=300)
            assert without.degraded
            await without.cancel()
        else:
            assert await held.cancel()
        assert not way.limiter.health().available
        admin.execute_command("REPLICAOF", "NO", "ONE")
    await held.cancel()
    await way.check()


@pytest.mark.parametrize("connected", [True, False])
async def test_a_busy_server_is_an_outage(serve: Serve, connected: bool) -> None:
    """BUSY: somebody's script runs on and on; seen by a connection that was there, and by a new one."""
    server = serve("--busy-reply-threshold", "1")
    async with Way(server, NAMESPACE) as way, Way(server, NAMESPACE) as other:
        used = way if connected else other
        if not connected:
            line: Any = used.backend._line()
            await line._hang_up()
        with server.client() as admin, server.client() as patient:
            loop = asyncio.create_task(asyncio.to_thread(_run_on, patient))
            await until(lambda: _answers(admin, "BUSY"))
            without = await used.limiter.pre_commit(SCOPE, tokens=300)
            assert without.degraded
            assert "BUSY" in (used.limiter.health().reason or "")
            admin.script_kill()
            await loop
        await without.cancel()
        await used.check()


def _run_on(client: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="SCRIPT KILL"):
        client.eval("while true do end", 0)


def _answers(client: redis.Redis, word: str) -> bool:
    try:
        client.get("x")
    except redis.RedisError as error:
        return word in f"{error}"
    return False


async def test_a_server_that_cannot_save_is_an_outage(serve: Serve) -> None:
    """MISCONF: it takes no writes until its snapshots succeed again."""
    server = serve("--save", "3600", "1")
    async with Way(server, NAMESPACE) as way:
        held = await way.limiter.pre_commit(SCOPE, tokens=300)
        blocked = server.folder / "dump.rdb"
        blocked.unlink(missing_ok=True)
        blocked.mkdir()
        with server.client() as admin:
            _save(admin)
            await until(lambda: _last_save(admin) == "err")
            without = await way.limiter.pre_commit(SCOPE, tokens=300)
            assert without.degraded
            assert "MISCONF" in (way.limiter.health().reason or "")
            assert await held.settle_success(100)
            blocked.rmdir()
            _save(admin)
        await without.cancel()
        await way.check(requests=1, tokens=100)


def _save(admin: redis.Redis) -> None:
    admin.bgsave()


def _last_save(admin: redis.Redis) -> str:
    facts: dict[str, Any] = admin.info("persistence")
    return "" if facts["rdb_bgsave_in_progress"] else str(facts["rdb_last_bgsave_status"])


async def test_a_server_that_is_loading_is_an_outage(serve: Serve) -> None:
    """LOADING: it has been restarted and reads its data."""
    server = serve("--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024")
    async with Way(server, NAMESPACE) as way:
        held = await way.limiter.pre_commit(SCOPE, tokens=300)
        with server.client() as admin:
            admin.mset({f"filler{number}": "x" * 100 for number in range(3_000)})
            admin.save()
        server.kill()
        starting = asyncio.create_task(asyncio.to_thread(server.start))
        async with Limiter(
            RedisBackend.from_url(
                server.url, namespace=NAMESPACE, clock=way.clock, on_outage="closed"
            )
        ) as closed:
            reasons: set[str] = set()
            while not any("LOADING" in reason for reason in reasons):
                with pytest.raises(BackendUnavailable) as refused:
                    await closed.pre_commit(SCOPE)
                reasons.add(str(refused.value))
                await asyncio.sleep(0)
            await starting
        assert await held.settle_success(100)
        await way.check(requests=1, tokens=100)


async def test_a_wrong_password_is_seen_at_once(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """It is somebody's mistake: requests fail, nothing is decided without the store, and it works once it is right."""
    server = serve()
    with server.client() as admin:
        admin.config_set("requirepass", "right")
        url = f"redis://:wrong@{HOST}:{server.port}/0"
        async with Limiter(RedisBackend.from_url(url, timeout=0.2)) as limiter:
            for _ in range(3):
                with pytest.raises(StoreError, match="WRONGPASS"):
                    await limiter.pre_commit(SCOPE)
            health = limiter.health()
            assert not health.available
            assert "WRONGPASS" in (health.reason or "")
            assert health.admitted_without_store == 0
            admin.config_set("requirepass", "wrong")
            await until(lambda: limiter.health().available)
            reservation = await limiter.pre_commit(SCOPE)
            assert not reservation.degraded
            assert await reservation.cancel()
    assert not outages(caplog)
    assert sum("cannot be used" in record.message for record in caplog.records) == 1


async def test_a_password_that_changes_leaves_reservations_open(way: Way) -> None:
    """A resolver raises for a mistake, and can be called again."""
    held = await way.limiter.pre_commit(SCOPE, tokens=300)
    with way.server.client() as admin:
        admin.config_set("requirepass", "secret")
        admin.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(StoreError, match="NOAUTH"):
            await way.limiter.peek(SCOPE)
        with pytest.raises(StoreError, match="NOAUTH"):
            await held.settle_success(100)
        assert held.state == "open"
        admin.config_set("requirepass", "")
    await way.delivered()
    assert await held.settle_success(100)
    await way.check(requests=1, tokens=100)


async def test_what_was_owed_before_a_mistake_is_delivered_after_it(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage that ends with a wrong password becomes a mistake, which is logged once, and then passes."""
    server = serve(*DURABLE)
    async with Way(server, NAMESPACE) as way:
        held = await way.limiter.pre_commit(SCOPE, tokens=300)
        server.kill()
        assert await held.settle_success(100)
        server.start()
        with server.client() as admin:
            admin.config_set("requirepass", "secret")
            await until(lambda: "NOAUTH" in (way.limiter.health().reason or "") or _free(way))
            if not _free(way):
                with pytest.raises(StoreError):
                    await way.limiter.pre_commit(SCOPE)
            admin.config_set("requirepass", "")
        await way.check(requests=1, tokens=100)
    assert len(outages(caplog)) == 1


def _free(way: Way) -> bool:
    """The backend was faster than the test."""
    return way.limiter.health().available


@pytest.mark.parametrize("rights", ["~* +@all -evalsha", "~other:* +@all"])
async def test_missing_rights_are_seen(way: Way, rights: str) -> None:
    """NOPERM is a mistake: it raises, and the store is not out of reach."""
    with way.server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "gateway", "on", ">secret", *rights.split())
    url = f"redis://gateway:secret@{HOST}:{way.server.port}/0"
    async with Limiter(RedisBackend.from_url(url, namespace=NAMESPACE)) as limiter:
        for _ in range(2):
            with pytest.raises(StoreError, match="NOPERM"):
                await limiter.pre_commit(SCOPE, tokens=1)
        assert limiter.health().admitted_without_store == 0
    await way.check()


async def test_a_user_without_info_frees_slots_of_a_full_server(way: Way) -> None:
    """What the server does not tell of itself is found out by asking; the rights are those of docs/failure.md."""
    commands = "evalsha eval script|load time get set del exists pexpire"
    slots = "zadd zrem zscore zcount zrevrange zremrangebyscore"
    rights = (f"~{NAMESPACE}:*", *(f"+{name}" for name in f"{commands} {slots}".split()))
    with way.server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "gateway", "on", ">secret", *rights)
        url = f"redis://gateway:secret@{HOST}:{way.server.port}/0"
        async with Limiter(RedisBackend.from_url(url, namespace=NAMESPACE)) as limiter:
            assert await (await limiter.pre_commit(SCOPE)).cancel()  # by the server's clock
        backend = RedisBackend.from_url(url, namespace=NAMESPACE, clock=way.clock)
        async with Limiter(backend) as limiter:
            held = await limiter.pre_commit(UNSLOTTED, tokens=300)
            admin.config_set("maxmemory", 1)
            assert await held.cancel()
            assert limiter.health().available
            admin.config_set("maxmemory", 0)
    await way.check()


async def test_a_wrong_type_fails_one_message_alone(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    """WRONGTYPE under one key: that message raises; the others of the same round trip are answered."""
    with way.server.client() as admin:
        admin.rpush(f"{NAMESPACE}:c:broken", "x")
        admin.set(f"{NAMESPACE}:s:slots", "x")
        scopes = [Scope(key, SCOPE.limits) for key in ("alice", "broken", "slots", "bob")]
        results = await asyncio.gather(
            *(way.limiter.pre_commit(scope, tokens=300) for scope in scopes),
            return_exceptions=True,
        )
        by_key = dict(zip(("alice", "broken", "slots", "bob"), results, strict=True))
        for key in ("broken", "slots"):
            assert isinstance(by_key[key], StoreError)
            assert "WRONGTYPE" in str(by_key[key])
        for key in ("alice", "bob"):
            reservation: Any = by_key[key]
            assert await reservation.settle_success(100)
        assert admin.exists(f"{NAMESPACE}:c:slots", f"{NAMESPACE}:s:broken") == 0
        admin.delete(f"{NAMESPACE}:c:broken", f"{NAMESPACE}:s:slots")
    assert not outages(caplog)
    await way.check(requests=1, tokens=100)


async def test_an_owed_message_that_fails_is_counted_as_lost(way: Way) -> None:
    """What cannot be delivered for good is logged and counted; it holds up nothing else."""
    broken = await way.limiter.pre_commit(Scope("broken", SCOPE.limits), tokens=300)
    held = await way.limiter.pre_commit(SCOPE, tokens=300)
    with way.server.client() as admin:
        admin.execute_command("REPLICAOF", HOST, free_port())
        assert await broken.settle_success(1)
        assert await held.settle_success(100)
        admin.config_set("replica-read-only", "no")
        admin.delete(f"{NAMESPACE}:c:broken")
        admin.rpush(f"{NAMESPACE}:c:broken", "x")
        admin.execute_command("REPLICAOF", "NO", "ONE")
    await way.delivered()
    assert way.limiter.health().lost == 1
    assert await way.used() == {"requests": 1, "tokens": 100, "concurrency": 0}


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_a_server_that_fails_again_and_again_under_load(serve: Serve, fault: str) -> None:
    """R9, B52: what the store counts is what was admitted by it and settled, whatever was under way when it failed."""
    server = serve(*DURABLE)
    scope = Scope("alice", Limits(rpd=100_000, tpd=1_000_000, concurrency=50))
    stop = asyncio.Event()
    settled = {True: 0, False: 0}  # by whether the store was left out

    async def work(way: Way, number: int) -> None:
        while not stop.is_set():
            name = f"r{number}" if number % 2 else None
            reservation = await way.limiter.pre_commit(scope, tokens=10, request_id=name)
            await asyncio.sleep(0)
            assert await reservation.settle_success(7)
            settled[reservation.degraded] += 1
            await asyncio.sleep(0)

    async def fail(way: Way) -> None:
        with_store, without = settled[False], settled[True]
        await until(lambda: settled[False] >= with_store + 100)
        server.kill() if fault == "kill" else server.freeze()
        await until(lambda: settled[True] >= without + 100)
        await asyncio.to_thread(server.start if fault == "kill" else server.thaw)
        await until(lambda: way.limiter.health().available)

    async with Way(server, NAMESPACE) as way:
        async with asyncio.TaskGroup() as group:
            for number in range(12):
                group.create_task(work(way, number))
            for _ in range(3):
                await fail(way)
            stop.set()
        assert way.limiter.health().admitted_without_store == settled[True]
        await way.check(requests=settled[False], tokens=7 * settled[False])
