"""A reservation over three slots of three masters, when what belongs to it comes late: copies, replies, callers (R9, C54)."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from earmark import BackendUnavailable, Limits, RateLimited, Scope
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
        home = slot_of(name or cross.keys[0])
        way = cross.ways[shared_cluster.masters.index(shared_cluster.owner(home))]
        fault = way.fault("swallow", b'"settle"')
        settling = asyncio.create_task(cross.limiter.settle_success(reservation, 120))
        await fault.happened()
        await way.refuse()
        assert await settling is True
        assert cross.limiter.health().owed == 1
        cross.clock.advance(OUTBOX_SECONDS)
        await way.accept()
        await cross.check(*[{"requests": 1, "tokens": 120}] * 3)


