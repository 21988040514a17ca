"""A reservation over three slots of three masters: refused, failing or cut off at each of them (R2, R10, C54).

What is on the other slots is then as it was before, or a hold that ends by itself.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

import pytest

from earmark import BackendUnavailable, EarmarkError, RateLimited, RequestIdConflict, Scope
from earmark.backends.redis.keys import tag_of
from tests.cluster import slot_of
from tests.redis.crossing import LIMITS, NOTHING, Crossing, crossing
from tests.redis.proxy import LEASE, Kind
from tests.servers import RedisCluster, told

pytestmark = pytest.mark.anyio

POSITIONS: Final = (0, 1, 2)
NAMES: Final = (None, "q")

TAKEN: Final = {"requests": 1, "tokens": 300, "concurrency": 1}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


def full(cross: Crossing, position: int) -> tuple[Scope, ...]:
    """The scopes, one of which has too little room."""
    scopes = list(cross.scopes)
    scopes[position] = Scope(scopes[position].key, LIMITS.__class__(rpd=10, tpd=200, concurrency=2))
    return tuple(scopes)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("position", POSITIONS)
async def test_a_refusal_at_each_slot_leaves_the_counts_as_they_were(
    shared_cluster: RedisCluster, namespace: str, position: int, name: str | None
) -> None:
    """R2, B9, C10, C54: when the call returns; the refusal is that of the node that refused."""
    async with crossing(shared_cluster, namespace, proxied=False) as cross:
        other = await cross.straight.pre_commit(*cross.scopes, tokens=10)
        before = await cross.used()
        with pytest.raises(RateLimited) as refused:
            await cross.limiter.pre_commit(*full(cross, position), tokens=300, request_id=name)
        assert await cross.used() == before
        assert [denial.key for denial in refused.value.denials] == [cross.keys[position]]
        assert not refused.value.retryable
        assert len(list(cross.under("r"))) == 3  # those of the other
        cross.check_ttls()
        again = await cross.limiter.pre_commit(*cross.scopes, tokens=300, request_id=name)
        assert await again.cancel() is True
        assert await other.cancel() is True
        await cross.check(NOTHING, NOTHING, NOTHING)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("position", POSITIONS)
async def test_a_mistake_at_each_slot_leaves_the_counts_as_they_were(
    shared_cluster: RedisCluster, namespace: str, position: int, name: str | None
) -> None:
    """R2: something else is under one of the keys."""
    async with crossing(shared_cluster, namespace, proxied=False) as cross:
        key = cross.keys[position]
        counts = f"{namespace}{{{tag_of(key)}}}:c:{key}"
        cross.look.rpush(counts, "x")
        with pytest.raises(EarmarkError, match="WRONGTYPE"):
            await cross.limiter.pre_commit(*cross.scopes, tokens=300, request_id=name)
        cross.look.delete(counts)
        assert await cross.used() == [NOTHING] * 3
        assert list(cross.under("r")) == []
        await cross.check(NOTHING, NOTHING, NOTHING)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("position", POSITIONS)
async def test_a_master_that_is_out_of_reach_leaves_the_others_as_they_were(
    shared_cluster: RedisCluster, namespace: str, position: int, name: str | None
) -> None:
    """R2, C54: what was taken before it is given back when the call returns."""
    async with crossing(shared_cluster, namespace) as cross:
        await cross.ways[position].refuse()
        with pytest.raises(BackendUnavailable):
            await cross.limiter.pre_commit(*cross.scopes, tokens=300, request_id=name)
        assert await cross.used() == [NOTHING] * 3
        for scope in (one for one in cross.scopes if one is not cross.scopes[position]):
            if name is None:
                one = await cross.limiter.pre_commit(scope)
                assert await one.cancel() is True
        assert not cross.limiter.health().available
        await cross.ways[position].accept()
        await cross.check(NOTHING, NOTHING, NOTHING)


def on_wire(verb: str) -> bytes:
    """What is in every message of a verb and in no other."""
    return f" {verb} ".encode()


KINDS: Final[tuple[Kind, ...]] = ("cut before", "cut after", "swallow")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("position", POSITIONS)
async def test_a_reserve_whose_reply_is_lost_at_each_slot(
    shared_cluster: RedisCluster, namespace: str, position: int, kind: Kind
) -> None:
    """R9: sent again it counts once; where no answer comes, what may have been taken is taken back."""
    timeout = 0.3 if kind == "swallow" else 20.0
    async with crossing(shared_cluster, namespace, timeout=timeout) as cross:
        fault = cross.ways[position].fault(kind, on_wire("reserve"))
        if kind == "swallow":
            with pytest.raises(BackendUnavailable):
                await cross.limiter.pre_commit(*cross.scopes, tokens=300)
            assert fault.met.is_set()
            await cross.check(NOTHING, NOTHING, NOTHING)
            return
        reservation = await cross.limiter.pre_commit(*cross.scopes, tokens=300)
        assert fault.met.is_set()
        assert await cross.used() == [TAKEN] * 3
        assert await reservation.settle_success(120) is True
        await cross.check(*[{"requests": 1, "tokens": 120}] * 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["claim", "resolve"])
async def test_the_reply_of_a_name_is_lost(
    shared_cluster: RedisCluster, namespace: str, verb: str, kind: Kind
) -> None:
    """R5, R9: whether it is the look, the claim or the resolution, everything counts once."""
    timeout = 0.3 if kind == "swallow" else 20.0
    async with crossing(shared_cluster, namespace, timeout=timeout) as cross:
        way = cross.ways[shared_cluster.masters.index(shared_cluster.owner(slot_of("q")))]
        if verb == "claim":
            skipped = way.fault("hold reply", on_wire("claim"))  # the look
            asked = asyncio.create_task(
                cross.limiter.pre_commit(*cross.scopes, tokens=300, request_id="q")
            )
            await skipped.happened()
            fault = way.fault(kind, on_wire("claim"))
            skipped.release()
            if kind == "swallow":
                with pytest.raises(BackendUnavailable):
                    await asked
                await cross.check(NOTHING, NOTHING, NOTHING)
                return
            reservation = await asked
        else:
            reservation = await cross.limiter.pre_commit(*cross.scopes, tokens=300, request_id="q")
            fault = way.fault(kind, b'"settle"')
        assert await reservation.settle_success(120) is True
        assert fault.met.is_set()
        await cross.check(*[{"requests": 1, "tokens": 120}] * 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("name", NAMES)
async def test_a_settlement_whose_reply_is_lost_at_each_slot(
    shared_cluster: RedisCluster, namespace: str, position: int, kind: Kind, name: str | None
) -> None:
    """R5, R9: it counts once on each, and the caller sees True."""
    timeout = 0.3 if kind == "swallow" else 20.0
    async with crossing(shared_cluster, namespace, timeout=timeout) as cross:
        reservation = await cross.limiter.pre_commit(*cross.scopes, tokens=300, request_id=name)
        fault = cross.ways[position].fault(kind, b'"settle"')
        assert await reservation.settle_success(120) is True
        assert fault.met.is_set()
        await cross.check(*[{"requests": 1, "tokens": 120}] * 3)


async def test_a_name_whose_master_is_out_of_reach_is_resolved_later(
    shared_cluster: RedisCluster, namespace: str
) -> None:
    """R5, R10: everything waits for it, since who resolves it first has won; slots go after one lease."""
    async with crossing(shared_cluster, namespace) as cross:
        home = shared_cluster.masters.index(shared_cluster.owner(slot_of("q")))
        reservation = await cross.limiter.pre_commit(*cross.scopes, tokens=300, request_id="q")
        await cross.ways[home].refuse()
        assert await reservation.settle_success(120) is True
        assert cross.limiter.health().owed == 1
        assert await cross.used() == [TAKEN] * 3
        cross.clock.advance(LEASE)
        assert await cross.used() == [{**TAKEN, "concurrency": 0}] * 3
        await cross.ways[home].accept()
        await cross.check(*[{"requests": 1, "tokens": 120}] * 3)


async def test_two_processes_share_a_name_over_several_slots(
    shared_cluster: RedisCluster, namespace: str
) -> None:
    """R5, R9: the same reservation, in whatever order; other keys conflict; the first resolver wins, on every slot."""
    async with crossing(shared_cluster, namespace, proxied=False) as cross:
        one = await cross.limiter.pre_commit(*cross.scopes, tokens=300, request_id="q")
        two = await cross.straight.pre_commit(*cross.scopes[::-1], tokens=300, request_id="q")
        assert await cross.used() == [TAKEN] * 3
        for wrong in (cross.scopes[:2], cross.scopes[2:]):
            with pytest.raises(RequestIdConflict):
                await cross.straight.pre_commit(*wrong, tokens=300, request_id="q")
        with pytest.raises(RequestIdConflict):
            await cross.straight.pre_commit(*cross.scopes, tokens=301, request_id="q")
        assert [status.key for status in two.statuses] == [scope.key for scope in cross.scopes]
        assert await two.renew() is True
        won = await asyncio.gather(one.cancel(), two.settle_success(120))
        assert sorted(won) == [False, True]
        used = NOTHING if won[0] else {**NOTHING, "requests": 1, "tokens": 120}
        assert await cross.used() == [used] * 3
        three = await cross.straight.pre_commit(*cross.scopes[:2], tokens=5, request_id="q")
        assert await three.cancel() is True


@pytest.mark.parametrize("position", POSITIONS)
async def test_the_first_attempt_of_several_is_all_or_nothing_over_slots(
    shared_cluster: RedisCluster, namespace: str, position: int
) -> None:
    """R2: what the request holds and what its target holds are refused together, and settled each on its slot."""
    async with crossing(shared_cluster, namespace, proxied=False) as cross:
        *fixed, target = full(cross, position)
        async with cross.limiter.once(*fixed, tokens=300) as once:
            with pytest.raises(RateLimited) as refused:
                await once.attempt(target)
            assert [denial.key for denial in refused.value.denials] == [cross.keys[position]]
            assert await cross.used() == [NOTHING] * 3
        *fixed, target = cross.scopes
        async with cross.limiter.once(*fixed, tokens=300) as once:
            attempt = await once.attempt(target)
            assert await cross.used() == [TAKEN] * 3
            assert await attempt.settle_success(120) is True
        await cross.check(*[{"requests": 1, "tokens": 120}] * 3)


async def test_a_token_resolves_every_slot(shared_cluster: RedisCluster, namespace: str) -> None:
    """R5: another process needs nothing but the token."""
    async with crossing(shared_cluster, namespace, proxied=False) as cross:
        reservation = await cross.limiter.pre_commit(*cross.scopes, tokens=300)
        token = reservation.token()
        assert await cross.straight.settle_success(token, 120) is True
        assert await cross.straight.settle_success(token, 120) is False
        await cross.check(*[{"requests": 1, "tokens": 120}] * 3)


async def test_a_reset_and_an_addition_reach_every_slot(
    shared_cluster: RedisCluster, namespace: str
) -> None:
    """R6, R8: a hold from before the reset has nothing to give back, on any of them."""
    async with crossing(shared_cluster, namespace, proxied=False) as cross:
        reservation = await cross.limiter.pre_commit(*cross.scopes, tokens=300)
        await cross.limiter.reset(*cross.scopes)
        for scope in cross.scopes:
            await cross.limiter.add_tokens_post_stream(scope, 7, request_id="p")
            await cross.limiter.add_tokens_post_stream(scope, 7, request_id="p")
        assert await reservation.settle_success(120) is True
        await cross.check(*[{"tokens": 7}] * 3)


async def test_scripts_that_are_flushed_on_one_master_are_loaded_there(
    shared_cluster: RedisCluster, namespace: str
) -> None:
    """C54: SCRIPT LOAD reaches one master only."""
    async with crossing(shared_cluster, namespace, proxied=False) as cross:
        for master in shared_cluster.masters:
            told(master, "SCRIPT", "FLUSH")
            reservation = await cross.limiter.pre_commit(*cross.scopes, tokens=300)
            assert await reservation.settle_success(100) is True
        assert cross.limiter.health().admitted_without_store == 0
        await cross.check(*[{"requests": 3, "tokens": 300}] * 3)


async def test_scopes_of_one_tenant_are_one_message(
    shared_cluster: RedisCluster, namespace: str
) -> None:
    """C54: `{tenant}` in the keys, and in the name, puts them on one slot: one round trip, all or nothing there."""
    async with crossing(shared_cluster, namespace) as cross:
        scopes = [Scope(f"{{{namespace}}}:{kind}", LIMITS) for kind in ("key", "team", "model")]
        for way in cross.ways:
            way.requests.clear()
        reservation = await cross.limiter.pre_commit(
            *scopes, tokens=300, request_id=f"{{{namespace}}}-1"
        )
        assert await reservation.settle_success(5) is True
        assert sum(way.asked(b"EVALSHA") for way in cross.ways) == 2


async def test_every_key_of_a_call_is_named_and_on_its_slot(
    shared_cluster: RedisCluster, namespace: str
) -> None:
    """C54: nothing but keys where keys belong, all of one slot in one call, and many slots in one round trip."""
    async with crossing(shared_cluster, namespace) as cross:
        scopes = [Scope(f"{namespace}{n}", LIMITS) for n in range(40)]
        for way in cross.ways:
            way.requests.clear()
        held = await asyncio.gather(*(cross.limiter.pre_commit(scope) for scope in scopes))
        await asyncio.gather(*(one.settle_success(3) for one in held))
        calls = 0
        for way in cross.ways:
            assert len(way.requests) < 10
            for words in map(arguments, way.requests):
                for at, word in enumerate(words):
                    if word == b"EVALSHA":
                        count = int(words[at + 2])
                        keys = [key.decode() for key in words[at + 3 : at + 3 + count]]
                        assert all(re.match(rf"{namespace}\{{\d+}}:[crso]:", key) for key in keys)
                        assert len({key.partition("}")[0] for key in keys}) == 1
                        calls += 1
        assert calls >= 60  # some go together
        cross.forget()


def arguments(request: bytes) -> list[bytes]:
    """All words of all commands of a request."""
    return re.findall(rb"\$\d+\r\n(.*?)\r\n(?=[*$]|\Z)", request, re.DOTALL)
