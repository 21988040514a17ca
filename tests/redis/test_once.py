"""`once` over a real server: one message for the first attempt, both parts or neither, whatever becomes of it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import anyio
import pytest

from earmark import Limit, Limiter, Limits, RateLimited, RedisBackend, Scope
from earmark.testing import ManualClock
from tests.redis.wire import MOMENTS, Moment, Wires, wires
from tests.servers import RedisServer, free_port
from tests.stores import real

__all__ = ["wires"]

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

_EVERY_KIND: Final = [
    Limit("tokens", 1_000, 60, "sliding_window"),
    Limit("tokens", 1_000, 60, "token_bucket"),
]
USER: Final = Scope("user", Limits(rpm=10, tpm=1_000, concurrency=5, also=_EVERY_KIND))
P1: Final = Scope("p1", Limits(rpm=10, tpm=1_000, concurrency=5, also=_EVERY_KIND))


def limiter_on(server: RedisServer, namespace: str, **options: Any) -> Limiter:
    """A limiter on the shared server."""
    options.setdefault("clock", ManualClock(1_000.0))
    backend = RedisBackend.from_url(server.url, namespace=namespace, timeout=10.0, **options)
    return Limiter(backend)


async def looks(limiter: Limiter) -> list[list[int]]:
    """What every limit of both scopes shows."""
    return [[limit.used for limit in status.limits] for status in await limiter.peek(USER, P1)]


def counted(requests: int, tokens: int, slots: int) -> list[int]:
    return [requests, tokens, slots, tokens, tokens]


NOTHING: Final = counted(0, 0, 0)


async def test_the_first_attempt_is_one_message_and_a_settlement_one_round_trip(
    shared_redis: RedisServer, namespace: str, wires: Wires
) -> None:
    """DESIGN: the scopes of the request and of its first target in one reserve; both are settled in one round trip."""
    async with limiter_on(shared_redis, namespace) as limiter:
        await limiter.add_tokens_post_stream(
            "other", 1
        )  # the server knows the scripts from here on
        await limiter.peek(USER)
        wires.sent.clear()
        async with limiter.once(USER, tokens=50) as once:
            attempt = await once.attempt(P1)
            assert wires.sent["EVALSHA"] == 1
            assert await looks(limiter) == [counted(1, 50, 1)] * 2
            wires.sent.clear()
            assert await attempt.settle_success(70)
            assert wires.sent["round trips"] == wires.sent["EVALSHA"] == 1
        assert wires.sent["EVALSHA"] == 1
        assert await looks(limiter) == [counted(1, 70, 0)] * 2


async def test_r9_a_joint_message_that_comes_again_counts_once(shared_redis: RedisServer) -> None:
    """R9: while both parts are open it is told what it was told; afterwards it does nothing."""
    store = real(shared_redis, db=4)
    store.look.flushdb()
    backend = store.recording(ManualClock(1_000.0))
    async with Limiter(backend) as limiter:
        once = await limiter.once(USER, tokens=50).__aenter__()
        await limiter.add_tokens_post_stream(P1, 7)
        attempt = await once.attempt(P1)
        (sent,) = [sent for sent in backend.sent if sent.message.verb == "reserve"]
        assert await backend.again(sent.message) == sent.answer
        assert await looks(limiter) == [counted(1, 50, 1), counted(1, 57, 1)]
        assert await attempt.close_reserved_only()
        assert await backend.again(sent.message) == "gone"
        await once.__aexit__(None, None, None)
        assert await backend.again(sent.message) == "gone"
        assert await looks(limiter) == [counted(1, 50, 0), counted(1, 57, 0)]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", ["task", "scope"])
async def test_r16_a_first_attempt_that_is_cancelled_leaves_neither_part(
    shared_redis: RedisServer, namespace: str, wires: Wires, moment: Moment, kind: str
) -> None:
    """R16: whenever it happens, both parts are given back, and the next attempt reserves both anew."""
    async with limiter_on(shared_redis, namespace) as limiter:
        await limiter.peek(USER)
        scope = anyio.CancelScope()

        async def try_it() -> None:
            with scope:
                await once.attempt(P1)

        async with limiter.once(USER, tokens=50) as once:
            wires.report = lambda at: cancel() if at == moment else None
            task = asyncio.create_task(try_it())

            def cancel() -> None:
                wires.report = None
                task.cancel() if kind == "task" else scope.cancel()

            await asyncio.wait([task])
            assert task.cancelled() or scope.cancelled_caught or moment == "answered"
            if moment != "answered":
                assert await looks(limiter) == [NOTHING, NOTHING]
            async with await once.attempt(P1) as attempt:
                assert await attempt.settle_success(5)
        tokens = [tokens for _, tokens, *_ in await looks(limiter)]
        assert tokens[0] == 5
        assert all(look[2] == 0 for look in await looks(limiter))


@pytest.mark.parametrize("moment", MOMENTS[:3])
async def test_r9_a_connection_that_breaks_under_a_first_attempt(
    shared_redis: RedisServer, namespace: str, wires: Wires, moment: Moment
) -> None:
    """R9: the message is sent again, and both parts are counted once."""
    async with limiter_on(shared_redis, namespace) as limiter:
        await limiter.peek(USER)
        hold = wires.hold(moment)
        async with limiter.once(USER, tokens=50) as once:
            asking = asyncio.create_task(once.attempt(P1))
            await hold.reached.wait()
            with shared_redis.client() as client:
                client.client_kill_filter(_type="normal", skipme=True)
            hold.open()
            attempt = await asking
            assert not attempt.degraded
            assert await looks(limiter) == [counted(1, 50, 1)] * 2
            assert await attempt.settle_success(3)
        assert await looks(limiter) == [counted(1, 3, 0)] * 2


@pytest.mark.parametrize("mode", ["local", "open"])
async def test_c58_what_was_taken_without_the_store_is_resolved_without_it(mode: Any) -> None:
    """C58: each part knows where it was taken; a local share refuses as the store would."""
    url = f"redis://127.0.0.1:{free_port()}"
    backend = RedisBackend.from_url(url, on_outage=mode, clock=ManualClock(), timeout=5.0)
    async with Limiter(backend) as limiter:
        small = Scope("p1", Limits(tpm=60, concurrency=1))
        async with limiter.once(USER, tokens=50) as once:
            async with await once.attempt(small) as attempt:
                assert attempt.degraded
                assert [status.key for status in attempt.statuses] == ["user", "p1"]
                if mode == "local":
                    with pytest.raises(RateLimited) as refused:
                        await limiter.pre_commit(small, tokens=5)
                    assert len(refused.value.denials) == 1
                assert await attempt.cancel()
            async with await once.attempt(small) as attempt:
                assert await attempt.settle_success(50)
        if mode == "local":
            async with limiter.once(USER) as once, await once.attempt(small) as attempt:
                assert [status["tokens"].used for status in attempt.statuses] == [50, 50]
    assert limiter.health().owed == 0


async def test_r6_each_part_of_a_joint_message_knows_the_resets_before_it(
    shared_redis: RedisServer, namespace: str
) -> None:
    """R6, Readings: what was reset before it was taken is given back by either part; what is reset later is not."""
    clock = ManualClock(1_000.0)
    async with limiter_on(shared_redis, namespace, clock=clock) as limiter:
        for scope in (P1, USER):
            await limiter.add_tokens_post_stream(scope, 9)
            await limiter.reset(scope)
            clock.advance(0.001)
        for later in ((), (P1,), (USER,)):
            async with limiter.once(USER, tokens=50) as once:
                attempt = await once.attempt(P1)
                assert await looks(limiter) == [counted(1, 50, 1)] * 2
                if later:
                    await limiter.reset(*later)
                    await limiter.add_tokens_post_stream(later[0], 40)
                await attempt.settle_success(20)
            used = [40 if scope in later else 20 for scope in (USER, P1)]
            assert [look[1] for look in await looks(limiter)] == used
            assert [look[3:] for look in await looks(limiter)] == [[one, one] for one in used]
            await limiter.reset(USER, P1)


@pytest.mark.parametrize("slots", [("first",), ("second",), ("first", "second")])
async def test_r10_a_slot_of_either_part_has_its_lease(
    shared_redis: RedisServer, namespace: str, slots: tuple[str, ...]
) -> None:
    """R10: also where the other part has no slots."""
    first, second = (
        Scope(key, Limits(tpm=1_000, concurrency=5 if key in slots else None))
        for key in ("first", "second")
    )
    async with limiter_on(shared_redis, namespace) as limiter:
        async with limiter.once(first, tokens=50) as once:
            await once.attempt(second)
            for status in await limiter.peek(first, second):
                held = [1] if status.key in slots else []
                assert [limit.used for limit in status.limits] == [50, *held]
        assert [status.limits[-1].used for status in await limiter.peek(first, second)] == [
            0 if key in slots else 50 for key in ("first", "second")
        ]


async def test_r14_nothing_of_a_once_is_left(shared_redis: RedisServer, namespace: str) -> None:
    """R14: two records while it is open, none afterwards, and every key ends by itself."""
    async with limiter_on(shared_redis, namespace) as limiter:
        with shared_redis.client() as client:
            async with limiter.once(USER, tokens=50) as once:
                await once.attempt(P1)
                keys = client.keys(f"{namespace}:*")
                assert len(client.keys(f"{namespace}:r:*")) == 2
                assert all(client.pttl(key) > 0 for key in keys)
            assert client.keys(f"{namespace}:[rs]:*") == []


async def test_a_reset_before_the_attempt_takes_nothing_from_it(
    shared_redis: RedisServer, namespace: str
) -> None:
    """R6, DESIGN's readings: each part remembers which reset it came after, and gives back what it holds since."""
    async with limiter_on(shared_redis, namespace) as limiter:
        for scope in (USER, P1):
            await limiter.add_tokens_post_stream(scope, 9)
        await limiter.reset(USER, P1)
        async with limiter.once(USER, tokens=50) as once:
            attempt = await once.attempt(P1)
            assert await attempt.cancel()
            assert await looks(limiter) == [counted(1, 50, 1), NOTHING]
            assert await once.cancel()
        assert await looks(limiter) == [NOTHING, NOTHING]


async def test_r16_an_attempt_that_was_never_sent_costs_no_message(
    shared_redis: RedisServer, namespace: str, wires: Wires
) -> None:
    """R16: cancelled while it waited for its turn: neither part has to be taken back."""
    async with limiter_on(shared_redis, namespace) as limiter:
        await limiter.peek(USER)
        before = wires.sent["EVALSHA"]
        hold = wires.hold("sent")
        looking = asyncio.create_task(looks(limiter))
        await hold.reached.wait()
        async with limiter.once(USER, tokens=50) as once:
            asking = asyncio.create_task(once.attempt(P1))
            await asyncio.sleep(0)
            asking.cancel()
            hold.open()
            await asyncio.wait([asking])
            assert asking.cancelled()
        assert await looking == [NOTHING, NOTHING]
        assert await looks(limiter) == [NOTHING, NOTHING]
        assert wires.sent["EVALSHA"] == before + 2


async def test_r9_a_reply_that_is_lost_for_good_takes_both_parts_back(
    shared_redis: RedisServer, namespace: str, wires: Wires
) -> None:
    """R9: the store may have applied it, and cannot be reached: both parts are owed, and what was taken here stays."""
    backend = RedisBackend.from_url(
        shared_redis.url, namespace=namespace, clock=ManualClock(1_000.0), timeout=0.2
    )
    async with Limiter(backend) as limiter:
        await limiter.add_tokens_post_stream("other", 1)
        wires.hold("applied")  # for good: the reply is there, and nobody ever sees it
        wires.hold("applied")
        async with limiter.once(USER, tokens=50) as once:
            attempt = await once.attempt(P1)
            assert attempt.degraded
            assert await attempt.settle_success(5)
        async with asyncio.timeout(30):
            while not limiter.health().available or limiter.health().owed:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0)
        assert await looks(limiter) == [NOTHING, NOTHING]
