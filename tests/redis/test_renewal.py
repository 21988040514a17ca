"""R10 over a real server: whoever is at work keeps its slots, and whoever is not loses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final, Self

import pytest

from earmark import Limiter, Limits, RateLimited, RedisBackend, Scope
from earmark.backends.redis import line
from earmark.testing import ManualClock
from tests.redis.others import other_process
from tests.redis.proxy import Proxy, proxied
from tests.redis.wire import Wires, until, wires
from tests.servers import RedisServer

__all__ = ["wires"]

pytestmark = pytest.mark.anyio

LEASE: Final = 30.0
SLOT: Final = Scope("slot", Limits(concurrency=1))
MANY: Final = Scope("many", Limits(concurrency=200))
DAY: Final = Scope("day", Limits(tpd=1_000))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


class Stage:
    """A limiter, and another process's eyes, on one clock that only the test moves."""

    def __init__(self, server: RedisServer, namespace: str, wires: Wires) -> None:
        self.clock = ManualClock(start=1_000)
        self.wires = wires
        self.limiter, self.other = (
            Limiter(
                RedisBackend.from_url(
                    server.url, namespace=namespace, clock=self.clock, lease=LEASE, timeout=20
                )
            )
            for _ in range(2)
        )

    async def __aenter__(self) -> Self:
        await self.slots()  # the server has the script by now
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.limiter.aclose()
        await self.other.aclose()

    async def slots(self, scope: Scope = SLOT) -> int:
        """How many are taken, as the other one sees it."""
        (status,) = await self.other.peek(scope)
        return status["concurrency"].used

    async def passes(self, seconds: float, *, renewals: int) -> None:
        """So much time passes, and in the end there were so many round trips, each with one call of a script."""
        before = self.wires.sent.copy()
        self.clock.advance(seconds)
        await until(lambda: self.wires.sent["answered"] - before["answered"] >= renewals)
        for _ in range(20):
            await asyncio.sleep(0)
        made = self.wires.sent - before
        assert (made["round trips"], made["EVALSHA"]) == (renewals, renewals)


@pytest.fixture
async def stage(shared_redis: RedisServer, namespace: str, wires: Wires) -> AsyncIterator[Stage]:
    """One for each test."""
    async with Stage(shared_redis, namespace, wires) as one:
        yield one


async def test_r10_all_of_a_loop_are_renewed_in_one_round_trip(stage: Stage) -> None:
    """R10: 100 reservations at work, each third of a lease one message for all, for ten leases."""
    async with AsyncExitStack() as blocks:
        for number in range(100):
            if number % 10 == 0:
                stage.clock.advance(0.1)  # they need not have begun together
            await blocks.enter_async_context(await stage.limiter.pre_commit(MANY))
        await stage.slots(MANY)
        for _ in range(30):
            await stage.passes(LEASE / 3, renewals=1)
        assert await stage.slots(MANY) == 100
    assert await stage.slots(MANY) == 0
    await stage.passes(LEASE, renewals=0)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "earmark.redis.renewal"]


async def test_b51_a_call_longer_than_its_lease_keeps_its_slot(stage: Stage) -> None:
    """B51, C5: a call that is not streamed, inside `async with`: nobody else has the slot for 20 leases."""
    async with await stage.limiter.pre_commit(SLOT) as reservation:
        for _ in range(60):
            await stage.passes(LEASE / 3, renewals=1)
            with pytest.raises(RateLimited):
                await stage.other.pre_commit(SLOT)
        assert await reservation.renew() is True
    assert await stage.slots() == 0


async def test_b51_a_stream_longer_than_its_lease_keeps_its_slot(stage: Stage) -> None:
    """B51: from before its first item to its end."""
    ends = asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        yield b"one"
        await ends.wait()

    reservation = await stage.limiter.pre_commit(SLOT)
    stream = reservation.stream(source())
    await stage.passes(LEASE / 3, renewals=1)
    assert await anext(stream) == b"one"
    for _ in range(30):
        await stage.passes(LEASE / 3, renewals=1)
    assert await stage.slots() == 1
    ends.set()
    assert [item async for item in stream] == []
    assert await stage.slots() == 0
    await stage.passes(LEASE, renewals=0)


async def test_c1_a_bare_handle_is_nobodys_work(stage: Stage) -> None:
    """R10, C1, C4: whoever does not say that it is at work renews by itself, or has lost the slot after one lease."""
    reservation = await stage.limiter.pre_commit(SLOT)
    await stage.passes(LEASE - 1, renewals=0)
    assert await reservation.renew() is True
    await stage.passes(LEASE - 0.000001, renewals=0)
    assert await stage.slots() == 1
    await stage.passes(0.000001, renewals=0)
    assert await stage.slots() == 0
    successor = await stage.other.pre_commit(SLOT)
    assert await reservation.renew() is False
    assert await reservation.settle_success(1) is True
    assert await stage.slots() == 1
    assert await successor.cancel() is True


@pytest.mark.parametrize("lease", [1.0, 7.0, 0.1])
async def test_r10_a_third_of_a_lease_is_met_to_the_microsecond(stage: Stage, lease: float) -> None:
    """R10: a third that no clock can count is no reason to turn in circles."""
    async with await stage.limiter.pre_commit(SLOT, lease=lease):
        await stage.slots()
        for _ in range(10):
            await stage.passes(int(lease / 3 * 1_000_000) / 1_000_000, renewals=1)
    await stage.slots()


async def test_r10_what_ends_sooner_is_renewed_sooner(stage: Stage) -> None:
    """R10: a short lease that comes later does not wait for a long one."""
    short = Scope("short", Limits(concurrency=1))
    async with await stage.limiter.pre_commit(MANY):
        await stage.slots()
        async with await stage.limiter.pre_commit(short, lease=3):
            for _ in range(9):
                await stage.passes(1, renewals=1)
            assert await stage.slots(short) == 1
        await stage.passes(1, renewals=0)
        await stage.passes(5, renewals=1)  # the long one was renewed with the short one once
        assert await stage.slots(MANY) == 1


async def test_r10_what_is_resolved_is_renewed_no_longer(stage: Stage) -> None:
    """R10, C8: by its holder, or by whoever else has its id."""
    mine, theirs = Scope("mine", Limits(concurrency=1)), Scope("theirs", Limits(concurrency=1))
    async with (
        await stage.limiter.pre_commit(mine) as one,
        await stage.limiter.pre_commit(theirs, request_id="shared") as other,
    ):
        await stage.passes(LEASE / 3, renewals=1)
        assert await one.settle_success(1) is True
        await stage.passes(LEASE / 3, renewals=1)
        adopted = await stage.other.pre_commit(theirs, request_id="shared")
        assert await adopted.settle_success(1) is True
        await stage.passes(LEASE / 3, renewals=1)  # the store says that it is gone
        await stage.passes(LEASE, renewals=0)
        assert await other.settle_success(1) is False
        assert other.state == "abandoned"


async def test_r10_a_loop_whose_tasks_were_all_cancelled_goes_on_renewing(stage: Stage) -> None:
    """R10: whoever is at work still keeps its slot, also where nobody else sends anything, and time and again."""
    async with await stage.limiter.pre_commit(SLOT) as reservation:
        for _ in range(2):
            tasks = {task for task in asyncio.all_tasks() if task.get_name().startswith("earmark.")}
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            renewed = stage.wires.sent["answered"]
            stage.clock.advance(LEASE / 3)
            await until(lambda renewed=renewed: stage.wires.sent["answered"] > renewed)  # type: ignore[misc]
            await stage.passes(0, renewals=0)
            for _ in range(6):
                await stage.passes(LEASE / 3, renewals=1)
            assert await stage.slots() == 1
        assert await reservation.settle_success(1) is True
    await stage.passes(LEASE, renewals=0)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "earmark.redis.renewal"]


async def test_r10_without_slots_it_is_kept_as_long_as_somebody_is_at_work(stage: Stage) -> None:
    """R10: attended for five hours, it is open, and gives back what it held; a bare one is forgotten after one."""
    bare = await stage.limiter.pre_commit(DAY, tokens=100)
    async with await stage.limiter.pre_commit(DAY, tokens=100) as reservation:
        for _ in range(15):
            await stage.passes(20 * 60, renewals=1)
        assert await bare.settle_success(1) is False
        assert await reservation.settle_success(30) is True
    (status,) = await stage.other.peek(DAY)
    assert status["tokens"].used == 130


async def test_c5_a_lapsed_lease_is_not_revived(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """C5: a holder that was away for longer than its lease finds its slot taken, says so once, and frees nobody's."""
    async with await stage.limiter.pre_commit(SLOT) as reservation:
        await stage.slots()
        await stage.passes(LEASE / 3, renewals=1)
        await stage.passes(LEASE, renewals=1)
        successor = await stage.other.pre_commit(SLOT)
        for _ in range(2):
            await stage.passes(LEASE / 3, renewals=1)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "renewed too late" in caplog.text
        assert await reservation.renew() is False
    assert reservation.state == "closed"
    assert await stage.slots() == 1
    assert await successor.cancel() is True
    assert await stage.slots() == 0


async def test_r10_a_renewal_that_met_an_outage_is_made_as_soon_as_the_store_is_back(
    shared_redis: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R10: an outage over a renewal's time, which ends with a sixth of the lease left: all keep their slots."""
    monkeypatch.setattr(line, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(line, "LONGEST_PAUSE", 0.05)
    async with (
        Proxy(shared_redis) as proxy,
        proxied(shared_redis, namespace, proxy, timeout=20) as way,
        AsyncExitStack() as blocks,
    ):
        for _ in range(5):
            await blocks.enter_async_context(await way.limiter.pre_commit(MANY))
        renewal = way.backend._lines.here().renewal

        def nearest() -> float:
            return min(one.due for one in renewal._kept.values())

        await asyncio.sleep(0)  # it waits for its time
        await proxy.refuse()
        for part in (LEASE / 3, LEASE / 2):
            way.clock.advance(part)
            await until(lambda: nearest() > way.clock())
        assert not way.limiter.health().available
        await proxy.accept()
        await way.delivered()
        before = len(proxy.requests)
        way.clock.advance(LEASE / 60)
        await until(lambda: proxy.asked(b"renew ") == 5)
        await way.used(MANY)
        assert sum(b"renew " in request for request in proxy.requests[before:]) == 1
        await until(lambda: nearest() > way.clock() + 1)
        way.clock.advance(LEASE / 3 - 1)
        assert (await way.used(MANY))["concurrency"] == 5


async def test_r10_one_that_cannot_be_renewed_does_not_keep_the_others_from_it(
    stage: Stage, shared_redis: RedisServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """R10: somebody has put something else under its key: that is logged, and all others keep their slots."""
    broken = await stage.limiter.pre_commit(MANY, request_id="broken")
    async with await stage.limiter.pre_commit(SLOT), broken:
        await stage.slots()
        with shared_redis.client() as client:
            key = f"{namespace}:r:=broken"
            assert client.delete(key) == 1
            client.lpush(key, "something else")
        for _ in range(6):
            await stage.passes(LEASE / 3, renewals=1)
        assert await stage.slots() == 1
        assert "could not be renewed" in caplog.text
        with shared_redis.client() as client:
            client.delete(key)


async def test_c5_a_loop_that_was_blocked_for_less_than_a_lease_keeps_its_slot(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """C5, R10: the store alone judges what has lapsed, to the microsecond, also where the clock steps back."""
    async with await stage.limiter.pre_commit(SLOT) as reservation:
        await stage.slots()
        for blocked in (LEASE - 0.000001, LEASE / 2, LEASE - 0.000001):
            await stage.passes(blocked, renewals=1)
            with pytest.raises(RateLimited):
                await stage.other.pre_commit(SLOT)
        now = stage.clock()
        stage.clock.set(now - 1_000)  # the backend's time stands still until it has caught up
        await stage.passes(0, renewals=0)
        await stage.passes(1_000, renewals=0)
        assert await stage.slots() == 1
        await stage.passes(LEASE / 3, renewals=1)
        await stage.passes(LEASE / 3, renewals=1)
        assert await stage.slots() == 1
        assert not caplog.records
        await stage.passes(LEASE, renewals=1)  # to the microsecond at which it is over
        assert await stage.slots() == 0
        assert "renewed too late" in caplog.text
        assert await reservation.renew() is False


@pytest.mark.parametrize("behind", [0, 40, 90, 4_000])
async def test_r11_a_renewal_by_a_clock_that_is_behind_costs_no_slot(
    shared_redis: RedisServer, namespace: str, behind: int
) -> None:
    """R10, R11: a server whose clock is behind takes over; who renews keeps the slot and the hour, as who does not."""
    scope = Scope("slot", Limits(concurrency=2, tpd=1_000))

    def by(clock: ManualClock) -> Limiter:
        return Limiter(
            RedisBackend.from_url(
                shared_redis.url, namespace=namespace, clock=clock, lease=60, timeout=20
            )
        )

    ahead, late = ManualClock(start=10_000), ManualClock(start=10_050 - behind)
    async with by(ahead) as former, by(late) as limiter:
        first = await former.pre_commit(scope, tokens=5)
        ahead.advance(50)  # the time of the scope is this from now on
        assert await first.renew() is True
        second = await former.pre_commit(scope)
        hold = first._hold
        with shared_redis.client() as client:
            slots, record = f"{namespace}:s:slot", f"{namespace}:r:{hold.name}"
            before: Any = client.zscore(slots, hold.name)
            kept: Any = client.get(record)
            assert await limiter._backend.renew([hold]) == [True]
            assert client.zscore(slots, hold.name) == before == 10_110e6
            assert client.get(record) == kept is not None
        with pytest.raises(RateLimited):
            await limiter.pre_commit(scope)
        late.advance(behind + 60)  # both leases end as they had begun
        assert await (await limiter.pre_commit(scope)).cancel() is True
        assert await first.settle_success(5) is True
        assert await second.cancel() is True


async def test_c5_a_frozen_process_loses_its_slot_and_frees_nobody_elses(
    shared_redis: RedisServer, namespace: str
) -> None:
    """C5, B51: stopped by SIGSTOP, it has lost its slot after a lease; when it wakes it neither takes nor frees one."""
    limits = {"concurrency": 1, "tpd": 1_000}
    scope = Scope("slot", Limits(concurrency=1, tpd=1_000))
    limiter = Limiter(RedisBackend.from_url(shared_redis.url, namespace=namespace, timeout=20))
    async with limiter, other_process(shared_redis.url, namespace, lease=0.6) as other:
        name = await other("take", "slot", limits, 30)
        await other("enter", name)
        until_renewed(shared_redis, f"{namespace}:s:slot")
        other.freeze()
        async with asyncio.timeout(30):
            while True:
                try:
                    mine = await limiter.pre_commit(scope, tokens=50)
                    break
                except RateLimited:
                    continue
        other.thaw()
        assert await other("renew", name) is False
        assert await other("settle", name, 12) is True
        (status,) = await limiter.peek(scope)
        assert (status["concurrency"].used, status["tokens"].used) == (1, 62)
        assert await mine.renew() is True
        assert await mine.cancel() is True


def until_renewed(server: RedisServer, slots: str) -> None:
    """Wait until the one slot has been renewed twice."""
    ends: list[float] = []
    with server.client() as client:
        while len(ends) < 3:
            found: Any = client.zrange(slots, 0, -1, withscores=True)
            ((_, end),) = found  # it is there all the time
            if end not in ends:
                ends.append(end)
