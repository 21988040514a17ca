"""Who decides while the store cannot be reached, what is said about it, and how it ends (B52, C4, C57, C58).

The way to the server is a proxy that takes no connections when it is told to. Pauses between attempts are short.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from earmark import (
    BackendUnavailable,
    Limiter,
    Limits,
    RateLimited,
    RequestIdConflict,
    Reservation,
    Scope,
)
from earmark.backends.redis import backend as backend_module
from earmark.backends.redis import line, owed
from earmark.backends.redis.owed import Outbox
from earmark.backends.redis.standing import Standing
from tests.redis.proxy import LEASE, PATIENT, SCOPE, TIMEOUT, Proxy, Way, proxied
from tests.servers import RedisServer

pytestmark = pytest.mark.anyio

MODES: Final = ("local", "open", "closed")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(line, "LONGEST_PAUSE", 0.05)


@pytest.fixture
async def proxy(shared_redis: RedisServer) -> AsyncIterator[Proxy]:
    """The way to the server."""
    async with Proxy(shared_redis) as proxy:
        yield proxy


def outages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings of outages."""
    return [record.message for record in caplog.records if "cannot be reached" in record.message]


def tens(share: int = 10) -> Scope:
    """A scope of so many requests an hour."""
    return Scope("key", Limits(rpd=share))


async def admitted(limiter: Limiter, scope: Scope, attempts: int) -> list[Reservation]:
    """What a limiter admits of so many requests."""
    reservations = []
    for _ in range(attempts):
        try:
            reservations.append(await limiter.pre_commit(scope))
        except RateLimited:
            continue
    return reservations


async def test_open_admits_everything_and_says_so(
    shared_redis: RedisServer, namespace: str, proxy: Proxy
) -> None:
    """C57: nothing is counted, and nothing is given back to the store."""
    async with proxied(shared_redis, namespace, proxy, on_outage="open") as way:
        await proxy.refuse()
        reservations = await admitted(way.limiter, tens(), 20)
        assert len(reservations) == 20
        assert all(reservation.degraded for reservation in reservations)
        (status,) = reservations[19].statuses
        assert status["requests"].used == 1  # as if nothing had been used but this
        assert await reservations[0].renew()
        assert way.limiter.health().admitted_without_store == 20
        assert way.limiter.health().worst_case == "every request is admitted"
        await proxy.accept()
        await way.delivered()
        for reservation in reservations:
            assert await reservation.cancel()
            assert not await reservation.cancel()
        assert (await way.used(tens()))["requests"] == 0


async def test_closed_refuses_everything_and_says_why(
    shared_redis: RedisServer, namespace: str, proxy: Proxy
) -> None:
    """C57: the store cannot be reached, which is another thing than a limit."""
    async with proxied(shared_redis, namespace, proxy, on_outage="closed") as way:
        await proxy.refuse()
        for _ in range(3):
            with pytest.raises(BackendUnavailable, match="cannot be reached"):
                await way.limiter.pre_commit(tens())
        assert way.limiter.health().admitted_without_store == 0
        assert way.limiter.health().worst_case == "no request is admitted"
        await proxy.accept()
        await way.delivered()
        assert (await way.used(tens()))["requests"] == 0


async def test_local_admits_a_share_in_each_process(
    shared_redis: RedisServer, namespace: str, proxy: Proxy
) -> None:
    """C57, B52: two processes with half of 10 each; afterwards the shared count is neither negative nor doubled."""
    options: dict[str, Any] = {"on_outage": "local", "local_share": 0.5}
    async with (
        proxied(shared_redis, namespace, proxy, **options) as one,
        proxied(shared_redis, namespace, proxy, **options) as other,
    ):
        before = await admitted(one.limiter, tens(), 3)
        await proxy.refuse()
        mine = await admitted(one.limiter, tens(), 20)
        theirs = await admitted(other.limiter, tens(), 20)
        assert (len(mine), len(theirs)) == (5, 5)
        assert all(reservation.degraded for reservation in mine + theirs)
        assert "replicas × 0.5" in one.limiter.health().worst_case
        for reservation in before:
            assert await reservation.close_reserved_only()
        await proxy.accept()
        await one.delivered()
        await other.delivered()
        for reservation in mine + theirs:
            assert await reservation.cancel()
        assert (await one.used(tens()))["requests"] == 3
        after = await admitted(one.limiter, tens(), 20)
        assert len(after) == 7
        assert not any(reservation.degraded for reservation in after)
        for reservation in after:
            assert await reservation.cancel()


async def test_a_refusal_of_the_store_is_no_outage(
    shared_redis: RedisServer, namespace: str, proxy: Proxy
) -> None:
    """C58: limit 2, asked 3: refused, and the memory of this process is not asked."""
    scope = Scope("key", Limits(tpd=2))
    async with proxied(shared_redis, namespace, proxy) as way:
        with pytest.raises(RateLimited):
            await way.limiter.pre_commit(scope, tokens=3)
        assert way.limiter.health().admitted_without_store == 0
        assert way.backend._local._store.size() == 0


async def test_what_was_taken_locally_is_resolved_locally(
    shared_redis: RedisServer, namespace: str, proxy: Proxy
) -> None:
    """C58: the store is back by then, and is not credited with what it never gave; this process is."""
    async with proxied(shared_redis, namespace, proxy) as way:
        stored = await way.limiter.pre_commit(SCOPE, tokens=200)
        await proxy.refuse()
        first = await way.limiter.pre_commit(SCOPE, tokens=300)
        second = await way.limiter.pre_commit(SCOPE, tokens=300)
        with pytest.raises(RateLimited):
            await way.limiter.pre_commit(SCOPE)
        await proxy.accept()
        await way.delivered()
        asked = proxy.asked(b"resolve ")
        assert await first.settle_success(0)
        assert await second.renew()
        assert proxy.asked(b"resolve ") == asked
        assert await way.used() == {"requests": 1, "tokens": 200, "concurrency": 1}
        await proxy.refuse()
        third = await way.limiter.pre_commit(SCOPE, tokens=700)  # 300 of 1,000 are held here
        (status,) = third.statuses
        assert status["tokens"].used == 1_000
        for reservation in (second, third, stored):
            assert await reservation.settle_success(1)
        await proxy.accept()
        await way.check(requests=1, tokens=1)


async def test_what_fits_the_whole_limit_may_be_asked_again(
    shared_redis: RedisServer, namespace: str, proxy: Proxy
) -> None:
    """A share that is too small refuses for as long as its window lasts; the whole limit is named."""
    scope = Scope("key", Limits(tpd=10))
    async with proxied(shared_redis, namespace, proxy, local_share=0.5) as way:
        await proxy.refuse()
        with pytest.raises(RateLimited) as refused:
            await way.limiter.pre_commit(scope, tokens=6)
        (denial,) = refused.value.denials
        assert denial.limit.amount == 10
        assert denial.retryable
        assert denial.retry_after is not None
        with pytest.raises(RateLimited) as refused:
            await way.limiter.pre_commit(scope, tokens=11)
        assert not refused.value.retryable
        assert refused.value.retry_after is None
        await proxy.accept()
        await way.delivered()


async def test_a_share_of_something_is_at_least_one(
    shared_redis: RedisServer, namespace: str, proxy: Proxy
) -> None:
    """No key is locked out by the size of its limit; nothing of nothing is nothing."""
    async with proxied(shared_redis, namespace, proxy, local_share=0.01) as way:
        await proxy.refuse()
        some = await admitted(way.limiter, Scope("key", Limits(rpd=3, concurrency=7)), 5)
        assert len(some) == 1
        assert await some[0].cancel()
        assert not await admitted(way.limiter, Scope("none", Limits(rpd=0)), 5)
        await proxy.accept()
        await way.delivered()


async def test_a_slot_that_was_lent_locally_is_free_after_a_lease(
    shared_redis: RedisServer, namespace: str, proxy: Proxy
) -> None:
    """R10: a holder that is gone holds nothing for ever; one at work holds on."""
    scope = Scope("key", Limits(concurrency=1))
    async with proxied(shared_redis, namespace, proxy) as way:
        await proxy.refuse()
        bare = await way.limiter.pre_commit(scope)
        way.clock.advance(LEASE)
        async with await way.limiter.pre_commit(scope):
            way.clock.advance(LEASE)
            with pytest.raises(RateLimited):
                await way.limiter.pre_commit(scope)
        assert await bare.close_reserved_only()
        await proxy.accept()
        await way.delivered()


@pytest.mark.parametrize("mode", MODES)
async def test_resolvers_raise_for_no_outage(
    shared_redis: RedisServer, namespace: str, proxy: Proxy, mode: str
) -> None:
    """C4, B52: the caller sees True, the message is owed, and counts once when it is delivered."""
    async with proxied(shared_redis, namespace, proxy, on_outage=mode) as way:
        first = await way.limiter.pre_commit(SCOPE, tokens=100)
        second = await way.limiter.pre_commit(SCOPE, tokens=100)
        await proxy.refuse()
        assert await first.settle_success(40)
        assert await second.cancel()
        assert not await first.close_reserved_only()
        await way.limiter.add_tokens_post_stream(SCOPE, 7)
        assert way.limiter.health().owed == 3
        assert await way.used() == {"requests": 2, "tokens": 200, "concurrency": 2}
        await proxy.accept()
        await way.check(requests=1, tokens=47)


@pytest.mark.parametrize("verb", ["close_reserved_only", "abandon"])
async def test_the_other_resolvers_raise_for_no_outage(
    shared_redis: RedisServer, namespace: str, proxy: Proxy, verb: str
) -> None:
    """The debit stays, the slot is freed when the store is back."""
    async with proxied(shared_redis, namespace, proxy) as way:
        held = await way.limiter.pre_commit(SCOPE, tokens=100)
        await proxy.refuse()
        assert await getattr(held, verb)()
        assert held.state == ("abandoned" if verb == "abandon" else "closed")
        await proxy.accept()
        await way.check(requests=1, tokens=100)


@pytest.mark.parametrize("mode", MODES)
async def test_reading_and_forgiving_need_the_store(
    shared_redis: RedisServer, namespace: str, proxy: Proxy, mode: str
) -> None:
    """Nobody can answer in its place."""
    async with proxied(shared_redis, namespace, proxy, on_outage=mode) as way:
        held = await way.limiter.pre_commit(SCOPE)
        await proxy.refuse()
        with pytest.raises(BackendUnavailable):
            await way.limiter.peek(SCOPE)
        with pytest.raises(BackendUnavailable):
            await way.limiter.reset(SCOPE)
        with pytest.raises(BackendUnavailable):
            await held.renew()
        await proxy.accept()
        await way.delivered()
        assert await held.cancel()


@pytest.mark.parametrize("mode", MODES)
async def test_a_request_id_that_is_open_is_known_in_an_outage(
    shared_redis: RedisServer, namespace: str, proxy: Proxy, mode: str
) -> None:
    """R9: the same object, taken from the store or without it; nothing is debited again."""
    async with proxied(shared_redis, namespace, proxy, on_outage=mode) as way:
        held = await way.limiter.pre_commit(SCOPE, tokens=300, request_id="r1")
        await proxy.refuse()
        assert await way.limiter.pre_commit(SCOPE, tokens=300, request_id="r1") is held
        with pytest.raises(RequestIdConflict):
            await way.limiter.pre_commit(SCOPE, tokens=301, request_id="r1")
        assert way.limiter.health().admitted_without_store == 0
        assert not held.degraded
        assert await held.settle_success(200)
        await proxy.accept()
        await way.check(requests=1, tokens=200)


@pytest.mark.parametrize("mode", ["local", "open"])
async def test_a_request_id_that_was_taken_without_the_store_stays_so(
    shared_redis: RedisServer, namespace: str, proxy: Proxy, mode: str
) -> None:
    """R9, C58: while it is open the id is this process's, also when the store is back; then it is free."""
    async with proxied(shared_redis, namespace, proxy, on_outage=mode) as way:
        await proxy.refuse()
        held = await way.limiter.pre_commit(SCOPE, tokens=300, request_id="r1")
        assert await way.limiter.pre_commit(SCOPE, tokens=300, request_id="r1") is held
        with pytest.raises(RequestIdConflict):
            await way.limiter.pre_commit(SCOPE, tokens=301, request_id="r1")
        assert way.limiter.health().admitted_without_store == 1
        await proxy.accept()
        await way.delivered()
        assert await way.limiter.pre_commit(SCOPE, tokens=300, request_id="r1") is held
        assert await held.settle_success(300)
        heir = await way.limiter.pre_commit(SCOPE, tokens=100, request_id="r1")
        assert not heir.degraded
        assert await heir.settle_success(100)
        await way.check(requests=1, tokens=100)


async def test_an_outage_is_warned_of_once(
    shared_redis: RedisServer, namespace: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """B52: one warning each, and one line when it is over."""
    caplog.set_level("INFO", logger="earmark.redis")
    async with proxied(shared_redis, namespace, proxy) as way:
        for number in (1, 2):
            await proxy.refuse()
            for reservation in await admitted(way.limiter, tens(), 5):
                assert await reservation.cancel()
            assert len(outages(caplog)) == number
            await proxy.accept()
            await way.delivered()
            back = [record for record in caplog.records if "reached again" in record.message]
            assert len(back) == number
    assert "on_outage='local'" in outages(caplog)[0]


def test_an_outage_of_many_loops_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """B52: it is over when the last line is back, or gone."""
    caplog.set_level("INFO", logger="earmark.redis")
    standing = Standing("closed", str, Outbox(1))
    for _ in range(3):
        standing.lost()
        standing.found("gone", passes=True)
    standing.back()
    standing.back()
    assert not standing.health().available
    assert standing.health().reason == "gone"
    standing.gone()
    assert standing.health().available
    assert standing.health().reason is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_callers_do_not_wait_in_an_outage(
    shared_redis: RedisServer, namespace: str, proxy: Proxy
) -> None:
    """A breaker: one deadline is waited for, once; later ones are answered without a turn of the loop's."""
    async with proxied(shared_redis, namespace, proxy) as way:
        proxy.fault("swallow", b"reserve ")
        first = await way.limiter.pre_commit(tens(1_000))
        await proxy.refuse()
        turns: list[int] = []
        counting = asyncio.create_task(_count(turns))
        reservations = await admitted(way.limiter, tens(1_000), 100)
        assert len(turns) <= 1
        counting.cancel()
        for reservation in [first, *reservations]:
            assert reservation.degraded
            assert await reservation.cancel()
        await proxy.accept()
        await way.delivered()
        assert (await way.used(tens()))["requests"] == 0


async def _count(turns: list[int]) -> None:
    while True:
        turns.append(1)
        await asyncio.sleep(0)


async def test_a_store_that_is_down_is_not_stormed(
    shared_redis: RedisServer, namespace: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One attempt at a time, after a pause of which a random part is left out, however many ask."""
    spreads: list[tuple[float, float]] = []
    pauses: list[float] = []

    def uniform(low: float, high: float) -> float:
        spreads.append((low, high))
        line: Any = way.backend._line()
        pauses.append(line._pause)
        return high

    monkeypatch.setattr("random.uniform", uniform)
    async with proxied(shared_redis, namespace, proxy) as way:
        before, proxy.most_at_once = proxy.connections, 0
        proxy.unreachable = True
        await proxy.cut()
        while len(spreads) < 6:
            for reservation in await admitted(way.limiter, tens(1_000), 20):
                assert await reservation.cancel()
            await asyncio.sleep(0)
        proxy.unreachable = False
        await way.delivered()
        assert set(spreads) == {(0.5, 1)}
        assert pauses[:5] == [0.01, 0.02, 0.04, 0.05, 0.05]
        # The first finds that the store is down; then there is one for every pause.
        assert proxy.connections - before == len(spreads) + 1
        assert proxy.most_at_once == 1


async def test_closing_delivers_what_is_owed(
    shared_redis: RedisServer, namespace: str, proxy: Proxy
) -> None:
    """`aclose` tries for some seconds, and the store comes back within them."""
    way = await Way(shared_redis, namespace, proxy.url).__aenter__()
    held = await way.limiter.pre_commit(SCOPE, tokens=300)
    await proxy.refuse()
    assert await held.settle_success(100)
    begun = time.monotonic()
    closing = asyncio.create_task(way.limiter.aclose())
    await asyncio.sleep(0)
    await proxy.accept()
    await closing
    assert (
        time.monotonic() - begun < backend_module.CLOSING_SECONDS / 2
    )  # it does not wait for longer than it must
    assert way.limiter.health().owed == 0
    assert way.limiter.health().lost == 0
    assert await way.used() == {"requests": 1, "tokens": 100, "concurrency": 0}
    await way.straight.aclose()
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert not names & {"earmark.redis", "earmark.redis.renewal"}


async def test_closing_waits_for_what_is_under_way(
    shared_redis: RedisServer, namespace: str, proxy: Proxy
) -> None:
    """What is being delivered is owed still, by this loop's line or another's."""
    async with proxied(shared_redis, namespace, proxy, timeout=20) as way:
        held = await way.limiter.pre_commit(SCOPE, tokens=300)
        await proxy.refuse()
        assert await held.settle_success(100)
        delivery = proxy.fault("hold request", b"resolve ")
        await proxy.accept()
        await delivery.happened()
        closing = asyncio.create_task(way.limiter.aclose())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not closing.done()
        assert way.limiter.health().owed == 1
        delivery.release()
        await closing
        assert way.limiter.health().owed == 0
        assert await way.used() == {"requests": 1, "tokens": 100, "concurrency": 0}


async def test_closing_waits_for_what_another_loop_delivers(
    shared_redis: RedisServer, namespace: str
) -> None:
    """It may have to be put back, and is delivered here then."""
    async with Way(shared_redis, namespace) as way:
        held = await way.limiter.pre_commit(SCOPE, tokens=300)
        outbox: Any = way.backend._outbox
        messages = way.backend._messages
        outbox.add(messages.resolve(held._hold, "close", {}, {}))
        taken = outbox.take(1, 100)
        closing = asyncio.create_task(way.limiter.aclose())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not closing.done()
        outbox.settle(taken, taken, 0)
        await closing
        assert way.limiter.health().owed == 0
        assert await way.used() == {"requests": 1, "tokens": 300, "concurrency": 0}
        await held.cancel()


async def test_closing_says_what_it_could_not_deliver(
    shared_redis: RedisServer,
    namespace: str,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It ends in time, and what is owed stays in `health()`; whoever uses the backend again delivers it."""
    assert backend_module.CLOSING_SECONDS == 5.0
    monkeypatch.setattr(backend_module, "CLOSING_SECONDS", 0.1)
    async with proxied(shared_redis, namespace, proxy) as way:
        held = await way.limiter.pre_commit(SCOPE, tokens=300)
        await proxy.refuse()
        assert await held.settle_success(100)
        async with asyncio.timeout(0.1 + TIMEOUT + 2):
            await way.limiter.aclose()
        assert "the store is still owed 1 message" in caplog.messages
        assert "the store can be reached again" not in caplog.messages
        assert way.limiter.health().owed == 1
        await proxy.accept()
        (status,) = await way.limiter.peek(SCOPE)
        assert status["tokens"].used in {300, 100}
        await way.check(requests=1, tokens=100)


async def test_a_full_outbox_is_counted_and_logged_once(
    shared_redis: RedisServer, namespace: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """What is lost stays debited to the end of its window, and held for one lease."""
    scope = Scope("key", Limits(rpd=10, tpd=1_000, concurrency=4))
    async with proxied(shared_redis, namespace, proxy, outbox=2) as way:
        held = [await way.limiter.pre_commit(scope, tokens=100) for _ in range(4)]
        await proxy.refuse()
        for reservation in held:
            assert await reservation.settle_success(1)
        health = way.limiter.health()
        assert (health.owed, health.lost) == (2, 2)
        lost = [record for record in caplog.records if "is lost" in record.message]
        assert [record.levelname for record in lost] == ["ERROR"]
        await proxy.accept()
        await way.delivered()
        assert await way.used(scope) == {"requests": 4, "tokens": 202, "concurrency": 2}
        way.clock.advance(LEASE)
        assert await way.used(scope) == {"requests": 4, "tokens": 202, "concurrency": 0}
        assert way.limiter.health().lost == 2


async def test_what_is_owed_for_too_long_is_lost(
    shared_redis: RedisServer,
    namespace: str,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After an hour the store has forgotten what it is about, and could count it twice: that is said, not done."""
    async with proxied(shared_redis, namespace, proxy) as way:
        held = await way.limiter.pre_commit(SCOPE, tokens=300)
        await proxy.refuse()
        assert await held.settle_success(100)
        monkeypatch.setattr(owed, "_MAX_AGE", 0)
        await proxy.accept()
        await way.delivered()
        assert way.limiter.health().lost == 1
        assert any("is lost" in message for message in caplog.messages)
        assert await way.used() == {"requests": 1, "tokens": 300, "concurrency": 1}


def block() -> None:
    """What an application does that should not: hold up its loop for longer than the deadline."""
    end = time.monotonic() + 1.5 * PATIENT
    while time.monotonic() < end:
        continue


@pytest.mark.parametrize("turns", [0, 1, 3, 6])
@pytest.mark.parametrize("connected", [True, False])
async def test_a_loop_that_is_blocked_is_no_outage(
    shared_redis: RedisServer,
    namespace: str,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    turns: int,
    connected: bool,
) -> None:
    """R19: at whatever moment it is blocked for longer than the deadline, the store is asked, and answers."""
    async with Way(shared_redis, namespace, timeout=PATIENT) as way:
        if not connected:
            line: Any = way.backend._line()
            await line._hang_up()
        asked = asyncio.create_task(way.limiter.pre_commit(SCOPE, tokens=300))
        for _ in range(turns):
            await asyncio.sleep(0)
        block()
        reservation = await asked
        assert not reservation.degraded
        settled = asyncio.create_task(reservation.settle_success(100))
        for _ in range(turns):
            await asyncio.sleep(0)
        block()
        assert await settled
        assert not outages(caplog)
        await way.check(requests=1, tokens=100)


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_a_loop_that_is_blocked_delivers_what_is_owed(
    shared_redis: RedisServer,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
    turns: int,
) -> None:
    """Nor is it an outage where nobody waits for the answer."""
    async with Way(shared_redis, namespace, timeout=PATIENT) as way:
        reservation = await way.limiter.pre_commit(SCOPE, tokens=300)
        way.backend._owe(way.backend._messages.resolve(reservation._hold, "cancel", {}, {}))
        for _ in range(turns):
            await asyncio.sleep(0)
        block()
        await way.check()
        assert not outages(caplog)
        await reservation.cancel()


async def test_a_blocked_loop_does_not_hide_an_outage(
    shared_redis: RedisServer, namespace: str, proxy: Proxy
) -> None:
    """A store that does not answer is found out all the same."""
    async with proxied(shared_redis, namespace, proxy) as way:
        fault = proxy.fault("swallow", b"reserve ")
        asked = asyncio.create_task(way.limiter.pre_commit(SCOPE, tokens=300))
        await fault.happened()
        block()
        reservation = await asked
        assert reservation.degraded
        await reservation.cancel()
        await way.check()
