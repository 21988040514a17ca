"""R19 over a real server: one limiter in several threads and event loops, one loop after another, and under trio."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

import anyio
import pytest
from redis.asyncio import Redis

from earmark import Limiter, Limits, RateLimited, RedisBackend, Reservation, Scope
from earmark.backends.redis import backend
from tests.redis.wire import Wires, until, wires
from tests.servers import RedisServer, redis_server

__all__ = ["wires"]

KEY: Final = Scope("key", Limits(rpd=100, tpd=1_000_000, concurrency=7))


def limiter_for(server: RedisServer, namespace: str) -> Limiter:
    """One that serves every loop."""
    return Limiter(RedisBackend.from_url(server.url, namespace=namespace, timeout=20))


async def used(limiter: Limiter, scope: Scope = KEY) -> list[int]:
    """What every limit has used."""
    (status,) = await limiter.peek(scope)
    return [limit.used for limit in status.limits]


def in_threads(work: Callable[[int], object], threads: int) -> None:
    """Each thread does its part; what any of them raises is raised."""
    errors: list[BaseException] = []

    def part(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - it is raised where the test can fail
            errors.append(error)

    parts = [threading.Thread(target=part, args=(number,)) for number in range(threads)]
    for one in parts:
        one.start()
    for one in parts:
        one.join()
    if errors:
        raise errors[0]


def test_r19_loops_in_threads_share_one_limiter(shared_redis: RedisServer, namespace: str) -> None:
    """R1, R19: four loops ask for 400 of 100 requests; never more than 7 slots at once, each settlement counts once."""
    limiter = limiter_for(shared_redis, namespace)
    told: Counter[str] = Counter()
    lock = threading.Lock()
    live = [0]
    most = [0]

    async def ask(number: int) -> None:
        try:
            reservation = await limiter.pre_commit(KEY, tokens=1)
        except RateLimited as refused:
            with lock:
                told[refused.denials[0].limit.metric] += 1
            return
        with lock:
            told["admitted"] += 1
            live[0] += 1
            most[0] = max(most[0], live[0])
        await asyncio.sleep(0)
        with lock:
            live[0] -= 1
        assert await reservation.settle_success(number % 3) is True
        with lock:
            told["tokens"] += number % 3

    async def part() -> None:
        for round_ in range(25):
            await asyncio.gather(*(ask(round_ + number) for number in range(4)))
        await limiter.aclose()

    in_threads(lambda _: asyncio.run(part()), 4)
    assert told["admitted"] + told["concurrency"] + told["requests"] == 400
    assert told["admitted"] <= 100
    assert most[0] <= 7
    asked = [told["admitted"], told["tokens"], 0]
    assert asyncio.run(looked(limiter)) == asked
    health = limiter.health()
    assert (health.owed, health.lost, health.admitted_without_store) == (0, 0, 0)


async def looked(limiter: Limiter) -> list[int]:
    """What every limit has used, and the limiter is closed."""
    try:
        return await used(limiter)
    finally:
        await limiter.aclose()


def test_r19_what_one_loop_has_taken_another_resolves(
    shared_redis: RedisServer, namespace: str
) -> None:
    """R19: a handle goes from loop to loop, and from thread to thread; its renewal stops wherever it went on."""
    limiter = limiter_for(shared_redis, namespace)
    taken: list[Reservation] = []
    entered, resolved = threading.Event(), threading.Event()

    async def take() -> None:
        reservation = await limiter.pre_commit(KEY, tokens=30)
        await reservation.__aenter__()
        taken.append(reservation)
        entered.set()
        await asyncio.to_thread(resolved.wait)
        assert reservation.state == "settled"
        await reservation.__aexit__(None, None, None)
        await limiter.aclose()

    async def settle() -> None:
        await asyncio.to_thread(entered.wait)
        try:
            assert await taken[0].settle_success(12) is True
            await limiter.aclose()
        finally:
            resolved.set()

    in_threads(lambda number: asyncio.run((take, settle)[number]()), 2)
    assert asyncio.run(looked(limiter)) == [1, 12, 0]


@pytest.mark.parametrize("closes", [True, False])
def test_r19_a_loop_per_test(closes: bool, shared_redis: RedisServer, namespace: str) -> None:
    """R19: `asyncio.run` many times with one limiter, closed each time or not."""
    limiter = limiter_for(shared_redis, namespace)

    async def one() -> None:
        reservation = await limiter.pre_commit(KEY, tokens=30)
        assert await reservation.settle_success(12) is True
        if closes:
            await limiter.aclose()

    for _ in range(10):
        asyncio.run(one())
    assert asyncio.run(looked(limiter)) == [10, 120, 0]


@pytest.mark.parametrize("closes", [True, False])
def test_r19_a_handle_outlives_its_loop(
    closes: bool, shared_redis: RedisServer, namespace: str
) -> None:
    """R19: taken and attended on a loop that is closed by now, settled on the next."""
    limiter = limiter_for(shared_redis, namespace)
    kept: list[Reservation] = []

    async def take() -> None:
        kept.append(await limiter.pre_commit(KEY, tokens=30, request_id="kept"))
        await kept[0].__aenter__()
        if closes:
            await limiter.aclose()

    async def settle() -> list[int]:
        assert await limiter.pre_commit(KEY, tokens=30, request_id="kept") is kept[0]
        assert await kept[0].renew() is True
        assert await kept[0].settle_success(12) is True
        return await looked(limiter)

    asyncio.run(take())
    assert asyncio.run(settle()) == [1, 12, 0]


def test_r19_what_a_closed_loop_left_owed_the_next_delivers(
    shared_redis: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch, wires: Wires
) -> None:
    """R19, R15: a coroutine outlives its loop in the midst of a settlement; the next loop delivers that."""
    monkeypatch.setattr(backend, "CLOSING_SECONDS", 0.0)
    limiter = limiter_for(shared_redis, namespace)
    works: list[Any] = []

    async def begin() -> None:
        reservation = await limiter.pre_commit(KEY, tokens=30)
        works.append(reservation.settle_success(12))
        wires.hold("before")
        works[0].send(None)
        await limiter.aclose()

    asyncio.run(begin())
    works.pop().close()
    assert limiter.health().owed == 1

    async def settle() -> list[int]:
        await limiter.peek(KEY)
        await until(lambda: not limiter.health().owed)
        return await looked(limiter)

    assert asyncio.run(settle()) == [1, 12, 0]


def test_r19_what_a_loop_left_owed_is_delivered_by_closing_on_another(namespace: str) -> None:
    """R19: a loop that has sent nothing yet opens a line for that, and leaves none behind."""
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        limiter = Limiter(RedisBackend.from_url(server.url, namespace=namespace))

        async def settle() -> None:
            reservation = await limiter.pre_commit(KEY, tokens=30)
            server.kill()
            assert await reservation.settle_success(12) is True

        async def close() -> None:
            await limiter.aclose()
            assert not [task for task in asyncio.all_tasks() if task.get_name() == "earmark.redis"]

        asyncio.run(settle())
        assert limiter.health().owed == 1
        server.start()
        asyncio.run(close())
        assert limiter.health().owed == 0
        assert asyncio.run(looked(limiter)) == [1, 12, 0]


def test_r19_a_client_of_another_loop_delivers_nothing_and_says_so(
    namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """R19: closing where the client does not serve raises nothing: what is owed is logged, and stays owed."""
    with redis_server() as server:
        limiter = Limiter(RedisBackend(Redis.from_url(server.url), namespace=namespace))

        async def settle() -> None:
            reservation = await limiter.pre_commit(KEY, tokens=30)
            server.kill()
            assert await reservation.settle_success(12) is True
            await asyncio.to_thread(asyncio.run, limiter.aclose())
            assert "the store is still owed 1 message" in caplog.messages
            assert limiter.health().owed == 1

        asyncio.run(settle())


def test_r19_a_client_serves_one_loop_at_a_time(shared_redis: RedisServer, namespace: str) -> None:
    """R19: a client that was handed in belongs to the loop that used it; others are told so until that is closed."""
    limiter = Limiter(RedisBackend(Redis.from_url(shared_redis.url), namespace=namespace))

    async def first() -> Reservation:
        reservation = await limiter.pre_commit(KEY, tokens=30)
        await asyncio.to_thread(asyncio.run, second(reservation))
        assert reservation.state == "open"
        await limiter.aclose()
        return reservation

    async def second(reservation: Reservation) -> None:
        with pytest.raises(RuntimeError, match="belong to another event loop"):
            await limiter.pre_commit(KEY)
        with pytest.raises(RuntimeError, match="from_url"):
            await reservation.settle_success(99)

    async def third(reservation: Reservation) -> list[int]:
        assert await reservation.settle_success(12) is True
        return await looked(limiter)

    reservation = asyncio.run(first())
    assert limiter.health().owed == 0
    assert asyncio.run(third(reservation)) == [1, 12, 0]


async def source() -> AsyncIterator[bytes]:
    """A stream that just stops."""
    yield b"x"


Call = Callable[[Limiter, Reservation], Coroutine[Any, Any, object]]

CALLS: Final[dict[str, Call]] = {
    "pre_commit": lambda limiter, _: limiter.pre_commit(KEY),
    "pre_commit by id": lambda limiter, _: limiter.pre_commit(KEY, request_id="q"),
    "settle_success": lambda _, handle: handle.settle_success(99),
    "close_reserved_only": lambda _, handle: handle.close_reserved_only(),
    "abandon": lambda _, handle: handle.abandon(),
    "cancel": lambda limiter, handle: limiter.cancel(handle),
    "renew": lambda _, handle: handle.renew(),
    "async with": lambda _, handle: handle.__aenter__(),
    "add": lambda limiter, _: limiter.add_tokens_post_stream(KEY, 5),
    "peek": lambda limiter, _: limiter.peek(KEY),
    "reset": lambda limiter, _: limiter.reset(KEY),
    "aclose": lambda limiter, _: limiter.aclose(),
    "stream": lambda _, handle: as_coroutine(handle),
}


async def as_coroutine(handle: Reservation) -> None:
    handle.stream(source())


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_r19_trio_is_told_by_every_call(
    call: Call, shared_redis: RedisServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """R19: a clear error, and nothing else: nothing is logged, owed or changed."""
    limiter = limiter_for(shared_redis, namespace)

    async def take() -> Reservation:
        return await limiter.pre_commit(KEY, tokens=30)

    async def ask() -> None:
        with pytest.raises(RuntimeError, match="RedisBackend needs asyncio"):
            await call(limiter, reservation)

    async def settle() -> list[int]:
        assert await reservation.settle_success(12) is True
        return await looked(limiter)

    reservation = asyncio.run(take())
    anyio.run(ask, backend="trio")
    assert not caplog.records
    assert limiter.health().owed == 0
    assert asyncio.run(settle()) == [1, 12, 0]


def test_r19_no_loop_at_all(shared_redis: RedisServer) -> None:
    """R19: a coroutine that is run by hand is told as well."""
    work = limiter_for(shared_redis, "none").pre_commit(KEY)
    with pytest.raises(RuntimeError, match="RedisBackend needs"):
        work.send(None)


PROGRAM: Final = """
import asyncio, gc, sys
from earmark import Limiter, Limits, RedisBackend, Scope

KEY = Scope("key", Limits(rpd=100, tpd=1_000_000, concurrency=7))
limiter = Limiter(RedisBackend.from_url(sys.argv[1], namespace=sys.argv[2], timeout=20))

async def held(begun):
    async with await limiter.pre_commit(KEY, tokens=30):
        begun.set()
        await asyncio.Event().wait()

async def settling():
    reservation = await limiter.pre_commit(KEY, tokens=30)
    await reservation.settle_success(12)

async def streaming():
    async with await limiter.pre_commit(KEY, tokens=30) as reservation:
        try:
            yield 1
        finally:  # as late as the loop shuts its generators down
            await reservation.settle_success(12)

kept = []

async def main():
    asyncio.get_running_loop().slow_callback_duration = 60  # how busy the machine is plays no part
    begun = asyncio.Event()
    task = asyncio.create_task(held(begun))
    await begun.wait()
    kept.append(streaming())
    await anext(kept[-1])
    other = asyncio.create_task(settling())
    await asyncio.sleep(0)
    asking = limiter.pre_commit(KEY, tokens=30)
    asking.send(None)
    asking.close()
    return task, other

for _ in range(5):
    asyncio.run(main())
gc.collect()
"""


def test_r19_a_program_that_never_closes_is_not_told_off(
    shared_redis: RedisServer, namespace: str
) -> None:
    """R19: with every warning an error, in asyncio's debug mode, nothing is said on stderr, and no slot is left."""
    done = subprocess.run(
        [
            sys.executable,
            *("-X", "dev", "-W", "error", "-c", PROGRAM),
            *(shared_redis.url, namespace),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    left = asyncio.run(looked(limiter_for(shared_redis, namespace)))
    assert left[0] >= 10
    assert left[2] == 0
    assert left[1] == 150 + 12 * (left[0] - 5)
