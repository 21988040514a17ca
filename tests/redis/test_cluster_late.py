"""A reservation over three slots of three masters when a part of it comes late: copies, replies, masters (R9, C54)."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import pytest

from earmark import BackendUnavailable, Limits, RateLimited, Scope
from earmark.backends.redis.messages import Message
from earmark.backends.redis.rack import Rack
from tests.cluster import slot_of
from tests.redis.crossing import NOTHING, Crossing, crossing, name_on
from tests.redis.proxy import Proxy, until
from tests.redis.test_cluster_parts import NAMES, POSITIONS, TAKEN, on_wire
from tests.servers import RedisCluster

pytestmark = pytest.mark.anyio

OUTBOX_SECONDS: Final = 3_540
"""For which a message may be owed."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("position", POSITIONS)
async def test_what_cannot_be_decided_disturbs_no_other(
    shared_cluster: RedisCluster, namespace: str, position: int, name: str | None
) -> None:
    """B52, C54: while a master is known to be out of reach, the others hear nothing of what needs it."""
    async with crossing(shared_cluster, namespace, timeout=0.5) as cross:
        if name is not None:  # it is the name alone that cannot be reached
            name = name_on(shared_cluster, cross.scopes[position], "q")
        scopes = [one for n, one in enumerate(cross.scopes) if name is None or n != position]
        await cross.ways[position].refuse()
        with pytest.raises(BackendUnavailable):
            await cross.limiter.pre_commit(*scopes, request_id=name)
        await until(lambda: not cross.limiter.health().available)
        asked = [way.asked(b"EVALSHA") for way in cross.ways]
        for _ in range(10):
            with pytest.raises(BackendUnavailable):
                await cross.limiter.pre_commit(*scopes, request_id=name)
        assert [way.asked(b"EVALSHA") for way in cross.ways] == asked
        await cross.ways[position].accept()
        await cross.delivered()
        reservation = await cross.limiter.pre_commit(*scopes, request_id=name)
        assert await reservation.cancel() is True
        await cross.check(NOTHING, NOTHING, NOTHING)


@pytest.mark.parametrize("name", NAMES)
async def test_a_settlement_that_is_owed_for_longer_than_the_horizon(
    shared_cluster: RedisCluster, namespace: str, name: str | None
) -> None:
    """R5, R9: its first message is applied, nobody hears of that, and the rest still follows, an hour later at most."""
    async with crossing(shared_cluster, namespace, timeout=0.3) as cross:
        reservation = await cross.limiter.pre_commit(*cross.scopes, tokens=300, request_id=name)
        reservation.token()  # whoever has it may be the first to resolve it
        way = way_of(cross, name or cross.keys[0])
        fault = way.fault("swallow", b'"settle"')
        settling = asyncio.create_task(cross.limiter.settle_success(reservation, 120))
        await fault.happened()
        await way.refuse()
        assert await settling is True
        assert cross.limiter.health().owed == 1
        cross.clock.advance(OUTBOX_SECONDS)
        await way.accept()
        await cross.check(*[{"requests": 1, "tokens": 120}] * 3)


@pytest.mark.parametrize("name", NAMES)
async def test_closing_delivers_what_follows_on_other_slots(
    shared_cluster: RedisCluster, namespace: str, name: str | None
) -> None:
    """R5, R16: what is owed to one master decides for others, which are owed something only once it is delivered."""
    async with crossing(shared_cluster, namespace) as cross:
        way = way_of(cross, name or cross.keys[0])
        reservation = await cross.limiter.pre_commit(*cross.scopes, tokens=300, request_id=name)
        reservation.token()
        await way.refuse()
        assert await cross.limiter.settle_success(reservation, 120) is True
        assert cross.limiter.health().owed == 1
        await way.accept()
        await cross.limiter.aclose()
        assert cross.limiter.health().owed == 0
        assert await cross.used() == [{**NOTHING, "requests": 1, "tokens": 120}] * 3


async def test_closing_waits_no_longer_than_it_may(
    shared_cluster: RedisCluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R16: for a master that stays away; what it is owed is told."""
    monkeypatch.setattr("earmark.backends.redis.backend.CLOSING_SECONDS", 0.3)
    async with crossing(shared_cluster, namespace) as cross:
        reservation = await cross.limiter.pre_commit(*cross.scopes, tokens=300)
        await cross.ways[1].refuse()
        assert await reservation.settle_success(120) is True
        async with asyncio.timeout(15):
            await cross.limiter.aclose()
        assert cross.limiter.health().owed == 1
        settled = {**NOTHING, "requests": 1, "tokens": 120}
        assert await cross.used() == [settled, TAKEN, settled]


@pytest.mark.parametrize("position", POSITIONS)
async def test_a_name_that_was_taken_meanwhile_is_no_refusal(
    shared_cluster: RedisCluster, namespace: str, position: int
) -> None:
    """R9: of two who ask by one name at the same time, who is refused by the slot of the other is given the other's."""
    async with crossing(shared_cluster, namespace) as cross:
        scopes = list(cross.scopes)
        scopes[position] = Scope(cross.keys[position], Limits(rpd=10, concurrency=1))
        late = cross.ways[position].fault("hold request", on_wire("reserve"))
        asking = asyncio.create_task(cross.limiter.pre_commit(*scopes, request_id="q"))
        await late.happened()
        two = await cross.straight.pre_commit(*scopes, request_id="q")
        late.release()
        one = await asking
        taken = {**NOTHING, "requests": 1, "concurrency": 1}
        assert await cross.used() == [taken] * 3
        assert await one.settle_success(0) is True
        assert await two.settle_success(0) is False
        await cross.check(*[{"requests": 1}] * 3)


async def test_a_refusal_stands_where_its_name_cannot_be_looked_at_again(
    shared_cluster: RedisCluster, namespace: str
) -> None:
    """R2: nothing is taken, and the caller is told what the limit said."""
    async with crossing(shared_cluster, namespace, timeout=0.3) as cross:
        name = name_on(shared_cluster, cross.scopes[2], "q")
        others = [await cross.straight.pre_commit(cross.scopes[1]) for _ in range(2)]
        refusing = cross.ways[1].fault("hold reply", on_wire("reserve"))
        asking = asyncio.create_task(cross.limiter.pre_commit(*cross.scopes, request_id=name))
        await refusing.happened()
        await cross.ways[2].refuse()
        refusing.release()
        with pytest.raises(RateLimited):
            await asking
        for other in others:
            assert await other.cancel() is True
        await cross.ways[2].accept()
        await cross.check(NOTHING, NOTHING, NOTHING)


@pytest.mark.parametrize("position", POSITIONS)
async def test_a_late_copy_of_a_refused_part_takes_nothing(
    shared_cluster: RedisCluster, namespace: str, position: int
) -> None:
    """R9: its second copy was refused, and there is room by the time at which the first arrives."""
    async with crossing(shared_cluster, namespace) as cross:
        others = [await cross.straight.pre_commit(cross.scopes[position]) for _ in range(2)]
        late = cross.ways[position].fault("cut and hold", on_wire("reserve"))
        with pytest.raises(RateLimited):
            await cross.limiter.pre_commit(*cross.scopes, tokens=300)
        assert late.met.is_set()
        for other in others:
            await other.cancel()
        await cross.delivered()
        late.release()
        assert b" gone" in await late.answered()
        await cross.check(NOTHING, NOTHING, NOTHING)


async def test_a_late_copy_of_an_adopted_claim_takes_no_name(
    shared_cluster: RedisCluster, namespace: str
) -> None:
    """R9: the name had another owner, and is free by the time at which the first copy arrives."""
    async with crossing(shared_cluster, namespace) as cross:
        way = way_of(cross, "q")
        look = way.fault("hold reply", on_wire("claim"))
        asking = asyncio.create_task(
            cross.limiter.pre_commit(*cross.scopes, tokens=300, request_id="q")
        )
        await look.happened()
        owner = await cross.straight.pre_commit(*cross.scopes, tokens=300, request_id="q")
        late = way.fault("cut and hold", on_wire("claim"))
        look.release()
        adopted = await asking
        assert late.met.is_set()
        await cross.delivered()
        assert await owner.settle_success(120) is True
        assert await adopted.cancel() is False
        late.release()
        assert b" gone" in await late.answered()
        again = await cross.straight.pre_commit(*cross.scopes, tokens=300, request_id="q")
        assert await again.cancel() is True
        await cross.check(*[{"requests": 1, "tokens": 120}] * 3)


async def test_a_claim_that_somebody_was_given_is_his(
    shared_cluster: RedisCluster, namespace: str
) -> None:
    """R9: it was applied, its reply is lost, and another caller has it by the time at which it is taken back."""
    async with crossing(shared_cluster, namespace, timeout=0.5) as cross:
        way = way_of(cross, "q")
        look = way.fault("hold reply", on_wire("claim"))
        asking = asyncio.create_task(
            cross.limiter.pre_commit(*cross.scopes, tokens=300, request_id="q")
        )
        await look.happened()
        lost = way.fault("swallow", on_wire("claim"))
        look.release()
        await lost.happened()
        await way.refuse()
        with pytest.raises(BackendUnavailable):
            await asking
        assert cross.limiter.health().owed == 1
        adopted = await cross.straight.pre_commit(*cross.scopes, tokens=300, request_id="q")
        await way.accept()
        await cross.delivered()
        assert await cross.used() == [TAKEN] * 3
        assert await adopted.settle_success(120) is True
        await cross.check(*[{"requests": 1, "tokens": 120}] * 3)


def way_of(cross: Crossing, key: str) -> Proxy:
    """The way to the master that has what is kept about a key, or under a name."""
    return cross.ways[cross.cluster.masters.index(cross.cluster.owner(slot_of(key)))]


def test_what_is_owed_is_never_in_no_tray() -> None:
    """R19: another thread that looks while everything is sorted anew, or settled, sees all of it."""
    here, there = ("host", 1), ("host", 2)
    at = [here]
    seen: list[int] = []

    def address_of(_: Message) -> tuple[str, int]:
        looks.append(pool.submit(len, rack))  # what it finds is known when it is let in
        return at[0]

    with ThreadPoolExecutor() as pool:
        looks: list[Future[int]] = []
        rack = Rack(10, address_of)
        message = Message("peek", "id", ("key",), "")
        rack.add(message)
        looks.clear()
        at[0] = there
        rack.sort()
        tray = rack.tray(there)
        tray.settle(taken := tray.take(1, 1), taken, 0)
        seen = [look.result() for look in looks]
    assert seen == [1, 1]
