"""A process that is killed between two slots of a cluster, and compensation whose replies are lost (R2, R9, R10, C54).

Of a process that dies debits stay to the end of their windows, and slots for one lease; of one that lives nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from earmark import BackendUnavailable, RateLimited
from tests.redis.crossing import NOTHING, Crossing, crossing, name_on
from tests.redis.proxy import LEASE, PATIENCE, Kind
from tests.redis.test_cluster_parts import KINDS, NAMES, POSITIONS, TAKEN, full, on_wire
from tests.servers import RedisCluster

pytestmark = pytest.mark.anyio

ROOT: Final = Path(__file__).parent.parent.parent

SETTLED: Final = {"requests": 1, "tokens": 120, "concurrency": 0}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


# What it does is in `task`: a limiter on the cluster, each of whose masters it reaches by a proxy of the test's.
CHILD: Final = """
import asyncio, json, sys
import redis.asyncio
from earmark import Limiter, Limits, RedisBackend, Scope
task = json.loads(sys.argv[1])
remap = {tuple(there): tuple(here) for there, here in task["remap"]}

async def main():
    client = redis.asyncio.RedisCluster(
        host="127.0.0.1", port=task["port"], address_remap=lambda address: remap.get(tuple(address), address)
    )
    clock = lambda: task["clock"]
    limiter = Limiter(RedisBackend(client, namespace=task["namespace"], timeout=60, clock=clock, lease=30))
    scopes = [Scope(key, Limits(rpd=10, tpd=room, concurrency=2)) for key, room in task["room"].items()]
    reservation = await limiter.pre_commit(*scopes, tokens=300, request_id=task["name"])
    await reservation.settle_success(120)

asyncio.run(main())
"""


@asynccontextmanager
async def victim(
    cross: Crossing, name: str | None = None, full: int | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that reserves over all three slots and settles, by the proxies; it is killed at the end.

    Args:
        cross: where.
        name: under which it asks.
        full: which of its scopes refuses.
    """
    task: dict[str, Any] = {
        "namespace": cross.namespace,
        "port": cross.cluster.masters[0].port,
        "remap": [
            [["127.0.0.1", master.port], ["127.0.0.1", way.port]]
            for master, way in zip(cross.cluster.masters, cross.ways, strict=True)
        ],
        "room": {key: 200 if n == full else 1_000 for n, key in enumerate(cross.keys)},
        "clock": cross.clock(),
        "name": name,
    }
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CHILD, json.dumps(task)),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield child
    finally:
        child.send_signal(signal.SIGKILL)
        await child.wait()


async def stays(cross: Crossing, left: list[Mapping[str, int]]) -> None:
    """So much is debited, nothing lives for ever, and one lease later no slot is held."""
    assert await cross.used() == left
    assert len(list(cross.under("s"))) == sum(one["concurrency"] for one in left)
    cross.check_ttls()
    cross.clock.advance(LEASE)
    assert await cross.used() == [{**one, "concurrency": 0} for one in left]


@pytest.mark.parametrize(("position", "name"), [(1, None), (2, "q")])
async def test_of_a_process_that_is_killed_between_two_slots_debits_stay(
    shared_cluster: RedisCluster, namespace: str, position: int, name: str | None
) -> None:
    """R10, C54: what it had taken; the name was never claimed, and is free for others."""
    async with crossing(shared_cluster, namespace) as cross:
        fault = cross.ways[position].fault("cut and hold", on_wire("reserve"))
        async with victim(cross, name):
            await fault.happened()
        await stays(cross, [TAKEN if n < position else NOTHING for n in POSITIONS])
        fresh = await cross.straight.pre_commit(*cross.scopes, tokens=300, request_id=name)
        assert await fresh.cancel() is True


async def test_of_a_process_that_is_killed_before_it_has_the_name_debits_stay(
    shared_cluster: RedisCluster, namespace: str
) -> None:
    """R10, C54: on every slot; who asks by the name then is given a reservation of his own."""
    async with crossing(shared_cluster, namespace) as cross:
        name = name_on(shared_cluster, cross.scopes[0], "q")
        look = cross.ways[0].fault("hold reply", on_wire("claim"))
        async with victim(cross, name):
            await look.happened()
            claim = cross.ways[0].fault("cut and hold", on_wire("claim"))
            look.release()
            await claim.happened()
        await stays(cross, [TAKEN] * 3)
        fresh = await cross.straight.pre_commit(*cross.scopes, tokens=300, request_id=name)
        assert [one["requests"] for one in await cross.used()] == [2] * 3
        assert await fresh.cancel() is True


async def test_of_a_process_that_is_killed_while_it_gives_back_debits_stay(
    shared_cluster: RedisCluster, namespace: str
) -> None:
    """R10, C54: the third slot has refused, and the first two have not heard of it."""
    async with crossing(shared_cluster, namespace) as cross:
        faults = [way.fault("cut and hold", b'"cancel"') for way in cross.ways[:2]]
        async with victim(cross, "q", full=2):
            for fault in faults:
                await fault.happened()
        await stays(cross, [TAKEN, TAKEN, NOTHING])


async def test_of_a_process_that_is_killed_while_it_settles_a_name_the_rest_stays_held(
    shared_cluster: RedisCluster, namespace: str
) -> None:
    """R5, R10, C54: the name is resolved, and so is one slot; the two others keep what they hold, for nobody comes."""
    async with crossing(shared_cluster, namespace) as cross:
        name = name_on(shared_cluster, cross.scopes[0], "q")
        faults = [way.fault("cut and hold", b'"settle"') for way in cross.ways[1:]]
        async with victim(cross, name):
            for fault in faults:
                await fault.happened()
            async with asyncio.timeout(PATIENCE):
                while (await cross.used())[0] != SETTLED:
                    pass
        await stays(cross, [SETTLED, TAKEN, TAKEN])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("position", [0, 1])
async def test_a_give_back_whose_reply_is_lost_at_each_slot(
    shared_cluster: RedisCluster, namespace: str, position: int, kind: Kind, name: str | None
) -> None:
    """R2, R9: the refusal stands, and what was taken is given back once: nothing is left, and nothing too much."""
    timeout = 0.3 if kind == "swallow" else 20.0
    async with crossing(shared_cluster, namespace, timeout=timeout) as cross:
        other = await cross.straight.pre_commit(*cross.scopes, tokens=10)
        fault = cross.ways[position].fault(kind, b'"cancel"')
        with pytest.raises(RateLimited) as refused:
            await cross.limiter.pre_commit(*full(cross, 2), tokens=300, request_id=name)
        assert fault.met.is_set()
        assert [denial.key for denial in refused.value.denials] == [cross.keys[2]]
        await cross.delivered()
        assert await cross.used() == [{"requests": 1, "tokens": 10, "concurrency": 1}] * 3
        assert await other.cancel() is True
        await cross.check(NOTHING, NOTHING, NOTHING)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("position", POSITIONS)
async def test_a_reserve_under_a_name_whose_reply_is_lost_at_each_slot(
    shared_cluster: RedisCluster, namespace: str, position: int, kind: Kind
) -> None:
    """R9: as without a name; and where no answer comes, the name is free afterwards."""
    timeout = 0.3 if kind == "swallow" else 20.0
    async with crossing(shared_cluster, namespace, timeout=timeout) as cross:
        fault = cross.ways[position].fault(kind, on_wire("reserve"))
        asked = cross.limiter.pre_commit(*cross.scopes, tokens=300, request_id="q")
        if kind == "swallow":
            with pytest.raises(BackendUnavailable):
                await asked
            await cross.delivered()
            assert await cross.used() == [NOTHING] * 3
            asked = cross.limiter.pre_commit(*cross.scopes, tokens=300, request_id="q")
        reservation = await asked
        assert fault.met.is_set()
        assert await cross.used() == [TAKEN] * 3
        assert await reservation.settle_success(120) is True
        await cross.check(*[{"requests": 1, "tokens": 120}] * 3)
