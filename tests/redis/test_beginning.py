"""What serves a loop serves it also where its task is cancelled before that has begun, as a loop's end may do (R16)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis import exceptions

from earmark import Limiter, Limits, RedisBackend, Scope
from earmark.backends.redis.loops import Beginning
from earmark.backends.redis.wire import MethodsWire, Replies
from tests.servers import RedisServer

SCOPE = Scope("key", Limits(rpd=100, tpd=1_000_000, concurrency=7))


async def cancelled_at_once(work: Callable[[], Awaitable[object]], told: list[str]) -> None:
    """Have a task cancelled in the turn of the loop in which it is made."""

    async def one() -> None:
        told.append("begun")
        try:
            await work()
        except asyncio.CancelledError:
            told.append("interrupted")
            raise
        finally:
            told.append("over")

    task = asyncio.create_task(Beginning(one()))
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.parametrize("wait", ["event", "turn", "done"])
def test_it_begins_and_is_interrupted_where_it_waits_first(wait: str) -> None:
    """Whatever it waits for, also where that is there already."""
    told: list[str] = []

    async def work() -> None:
        if wait == "event":
            await asyncio.Event().wait()
        elif wait == "turn":
            await asyncio.sleep(0)
        else:
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(answer.set_result, None)
            await answer

    asyncio.run(cancelled_at_once(work, told))
    assert told == ["begun", "interrupted", "over"]


def test_it_may_end_without_a_wait() -> None:
    """Then nothing is interrupted."""

    async def one() -> None:
        told.append("done")

    async def main() -> None:
        task = asyncio.create_task(Beginning(one()))
        task.cancel()
        await asyncio.wait([task])
        assert not task.cancelled()

    told: list[str] = []
    asyncio.run(main())
    assert told == ["done"]


def test_r16_a_settlement_begun_as_its_loop_ends_is_counted(
    shared_redis: RedisServer, namespace: str
) -> None:
    """R16, R19: it is the first that this loop sends, and the loop ends in the turn in which it is asked."""
    limiter = Limiter(RedisBackend.from_url(shared_redis.url, namespace=namespace, timeout=20))
    tasks: list[asyncio.Task[Any]] = []

    async def ask_and_leave() -> None:
        tasks.append(asyncio.create_task(held.settle_success(7)))

    async def used() -> list[int]:
        async with limiter:
            (status,) = await limiter.peek(SCOPE)
            return [limit.used for limit in status.limits]

    held = asyncio.run(limiter.pre_commit(SCOPE, tokens=100))
    asyncio.run(ask_and_leave())
    assert [task.cancelled() for task in tasks] == [True]
    assert held.state == "settled"
    assert asyncio.run(used()) == [1, 7, 0]


class Stands:
    """A connection whose server says nothing, or all at once."""

    def __init__(self, reply: bytes | None = None) -> None:
        self._reply = reply

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Nobody is there."""

    async def read_response(self) -> Any:
        """Nobody answers, or nobody waits."""
        if self._reply is None:
            await asyncio.Event().wait()
        return self._reply

    async def disconnect(self, nowait: bool = False) -> None:
        """Nobody is there."""


def test_a_round_trip_that_was_cancelled_before_it_began_has_failed() -> None:
    """Whoever waits for it is told."""
    told: list[Replies] = []

    async def main() -> None:
        MethodsWire(Stands()).call([b"asked"], 1, told.append)
        (task,) = asyncio.all_tasks() - {asyncio.current_task()}
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())
    assert [type(one) for one in told] == [exceptions.ConnectionError]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks begin eagerly since 3.12")
def test_a_round_trip_that_waits_nowhere_is_over_as_it_is_begun() -> None:
    """A loop may begin its tasks at once, and a stand-in for a server be as quick."""
    told: list[Replies] = []

    async def main() -> None:
        factory: Any = asyncio  # of a later version
        asyncio.get_running_loop().set_task_factory(factory.eager_task_factory)
        MethodsWire(Stands(b"one")).call([b"asked"], 1, told.append)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert told == [[b"one"]]


def test_a_task_shows_what_it_does() -> None:
    """In a log, or where a program is looked into."""

    async def work() -> None:
        """Do nothing."""

    async def main() -> None:
        task = asyncio.create_task(Beginning(work()))
        assert "<locals>.work" in repr(task)
        await task

    asyncio.run(main())
