"""R9, R5 over a real server: one request id from several processes is one reservation, and the first resolver wins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Self

import anyio
import pytest

from earmark import Limiter, Limits, RedisBackend, RequestIdConflict, Reservation, Scope
from earmark.testing import ManualClock
from tests.redis.others import other_process
from tests.redis.wire import MOMENTS, Moment, Wires, until, wires
from tests.servers import RedisServer

__all__ = ["wires"]

pytestmark = pytest.mark.anyio

NOW: Final = 1_000.0  # no window ends while a test runs
LIMITS: Final[dict[str, Any]] = {"rpm": 60, "tpm": 1_000, "concurrency": 3}
KEY: Final = Scope("key", Limits(**LIMITS))
OTHER: Final = Scope("other", Limits(rpm=60))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


class Two:
    """Two limiters that share nothing but the server."""

    def __init__(self, server: RedisServer, namespace: str) -> None:
        self.url, self.namespace = server.url, namespace
        self.events: list[str] = []
        self.one, self.other = map(self._limiter, ("one", "other"))

    def _limiter(self, who: str) -> Limiter:
        return Limiter(
            RedisBackend.from_url(
                self.url, namespace=self.namespace, clock=ManualClock(NOW), timeout=20
            ),
            observers=(lambda event: self.events.append(f"{who} {event.kind}"),),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.one.aclose()
        await self.other.aclose()

    async def used(self) -> list[int]:
        """Requests, tokens and slots."""
        (status,) = await self.other.peek(KEY)
        return [limit.used for limit in status.limits]


@pytest.fixture
async def two(shared_redis: RedisServer, namespace: str) -> AsyncIterator[Two]:
    """Both for each test."""
    async with Two(shared_redis, namespace) as both:
        yield both


Resolve = Callable[[Reservation], Awaitable[bool]]

RESOLVERS: Final[dict[str, tuple[Resolve, list[int]]]] = {
    "settled": (lambda handle: handle.settle_success(12), [1, 12, 0]),
    "closed": (lambda handle: handle.close_reserved_only(), [1, 30, 0]),
    "abandoned": (lambda handle: handle.abandon(), [1, 30, 0]),
    "cancelled": (lambda handle: handle.cancel(), [0, 0, 0]),
}


@pytest.mark.parametrize("name", [None, "mine"], ids=["the library's id", "the caller's id"])
@pytest.mark.parametrize("first", ["maker", "adopter"])
@pytest.mark.parametrize("verb", RESOLVERS)
@pytest.mark.parametrize("late", RESOLVERS)
async def test_r5_either_may_resolve_and_the_first_wins(
    two: Two, name: str | None, first: str, verb: str, late: str
) -> None:
    """R9, R5: one debit, two handles; the loser changes nothing, is told False, and its handle says so."""
    made = await two.one.pre_commit(KEY, tokens=30, request_id=name)
    adopted = await two.other.pre_commit(KEY, tokens=30, request_id=made.request_id)
    assert adopted is not made
    assert adopted.request_id == made.request_id
    assert adopted.scopes == (KEY,)
    assert adopted.statuses == made.statuses
    assert adopted.held == made.held
    assert await two.used() == [1, 30, 1]
    winner, loser = (made, adopted) if first == "maker" else (adopted, made)
    resolve, left = RESOLVERS[verb]
    assert await resolve(winner) is True
    assert await RESOLVERS[late][0](loser) is False
    assert await resolve(winner) is False
    assert (winner.state, loser.state) == (verb, "abandoned")
    assert await loser.renew() is False
    assert await two.used() == left
    assert two.events == ["one admitted", "other admitted", f"{winner_of(first)} {verb}"]


def winner_of(first: str) -> str:
    """Whose handle that is."""
    return "one" if first == "maker" else "other"


async def test_r9_within_a_process_it_is_the_same_object(two: Two) -> None:
    """R9: whoever adopts in the same process gets the handle that is there, the maker's or the adopter's."""
    made = await two.one.pre_commit(KEY, tokens=30, request_id="mine")
    assert await two.one.pre_commit(KEY, tokens=30, request_id="mine") is made
    adopted = await two.other.pre_commit(KEY, tokens=30, request_id="mine")
    assert await two.other.pre_commit(KEY, tokens=30, request_id="mine") is adopted
    assert await two.used() == [1, 30, 1]
    assert await adopted.cancel() is True
    assert await made.cancel() is False


async def test_r9_the_id_of_something_else_is_a_conflict(two: Two) -> None:
    """R9: with other keys or asks it is another request; the order of keys, and what is asked unasked, are no part."""
    made = await two.one.pre_commit(KEY, OTHER, tokens=30, request_id="mine")
    before = await two.used()
    for scopes, tokens in (((KEY, OTHER), 31), ((KEY,), 30), ((OTHER,), 30), ((OTHER, KEY), 0)):
        for limiter in (two.one, two.other):
            with pytest.raises(RequestIdConflict):
                await limiter.pre_commit(*scopes, tokens=tokens, request_id="mine")
    adopted = await two.other.pre_commit(
        OTHER, KEY, tokens=30, amounts={"requests": 1}, request_id="mine"
    )
    assert await two.used() == before
    assert await adopted.settle_success(12) is True
    assert await made.settle_success(12) is False


async def test_r9_once_it_is_resolved_the_id_is_free(two: Two) -> None:
    """R9: for either, with other asks; an old handle does nothing to whoever has the id now."""
    made = await two.one.pre_commit(KEY, tokens=30, request_id="mine")
    adopted = await two.other.pre_commit(KEY, tokens=30, request_id="mine")
    assert await adopted.settle_success(12) is True
    again = await two.other.pre_commit(KEY, tokens=50, request_id="mine")
    assert await made.cancel() is False
    assert await made.renew() is False
    assert await two.used() == [2, 62, 1]
    assert await again.settle_success(1) is True
    assert await two.used() == [2, 13, 0]


@pytest.mark.parametrize("moment", MOMENTS[:3])
@pytest.mark.parametrize("kind", ["task", "scope"])
async def test_r9_a_withdrawal_spares_what_another_process_has_adopted(
    two: Two, wires: Wires, moment: Moment, kind: str
) -> None:
    """R9: its maker is cancelled in flight, and it stands for whoever was given it meanwhile."""
    await two.used()
    await two.one.peek(KEY)
    hold = wires.hold(moment)
    scope = anyio.CancelScope()

    async def ask() -> None:
        with scope:
            await two.one.pre_commit(KEY, tokens=30, request_id="mine")

    making = asyncio.create_task(ask())
    await hold.reached.wait()
    adopted = await two.other.pre_commit(KEY, tokens=30, request_id="mine")
    if kind == "task":
        making.cancel()
    else:
        scope.cancel()
    hold.open()
    await asyncio.wait([making])
    await two.one.peek(KEY)
    await until(lambda: not two.one.health().owed)
    assert await two.used() == [1, 30, 1]
    assert await adopted.settle_success(12) is True
    assert await two.used() == [1, 12, 0]


async def test_r9_a_cancelled_adopter_takes_nothing_from_the_maker(two: Two, wires: Wires) -> None:
    """R9: what it takes back is its own message, never the reservation that it was to be given."""
    made = await two.one.pre_commit(KEY, tokens=30, request_id="mine")
    await two.used()
    for moment in MOMENTS[:3]:
        hold = wires.hold(moment)
        adopting = asyncio.create_task(two.other.pre_commit(KEY, tokens=30, request_id="mine"))
        await hold.reached.wait()
        adopting.cancel()
        hold.open()
        await asyncio.wait([adopting])
        assert await two.used() == [1, 30, 1]
    assert await made.settle_success(12) is True


async def test_r5_two_processes_settle_at_once(two: Two) -> None:
    """R5: both call at the same moment, 100 times: exactly one is told that it was the one, and it is what counts."""
    for number in range(100):
        name = f"request {number}"
        handles = [
            await limiter.pre_commit(KEY, tokens=3, request_id=name)
            for limiter in (two.one, two.other)
        ]
        won = await asyncio.gather(
            *(handle.settle_success(which) for which, handle in enumerate(handles))
        )
        assert sorted(won) == [False, True]
        (status,) = await two.one.peek(KEY)
        assert status["tokens"].used == won.index(True)
        await two.one.reset(KEY)


async def test_r9_two_real_processes(two: Two, shared_redis: RedisServer) -> None:
    """R9, R5: between processes: adopted, in conflict, settled by the other, free again; the library's ids as well."""
    async with other_process(two.url, two.namespace, now=NOW) as other:
        assert await other("take", "key", LIMITS, 30, "mine") == "mine"
        with pytest.raises(RequestIdConflict):
            await two.one.pre_commit(KEY, tokens=31, request_id="mine")
        adopted = await two.one.pre_commit(KEY, tokens=30, request_id="mine")
        assert await adopted.settle_success(12) is True
        assert await other("settle", "mine", 99) is False
        assert await other("state", "mine") == "abandoned"
        mine = await two.one.pre_commit(KEY, tokens=40, request_id="mine")
        assert await other("take", "key", LIMITS, 30, "mine") == "RequestIdConflict"
        assert await mine.cancel() is True
        theirs = await other("take", "key", LIMITS, 30)
        found = await two.one.pre_commit(KEY, tokens=30, request_id=theirs)
        assert found.request_id == theirs
        assert await two.used() == [2, 42, 1]
        assert await other("settle", theirs, 8) is True
        assert await found.cancel() is False
        assert await two.used() == [2, 20, 0]


async def test_r9_who_adopts_from_a_dead_process_has_it(two: Two) -> None:
    """R9, C4: its maker is killed; the id governs it for whoever asks."""
    async with other_process(two.url, two.namespace, now=NOW) as other:
        await other("take", "key", LIMITS, 30, "mine")
        other.kill()
    adopted = await two.one.pre_commit(KEY, tokens=30, request_id="mine")
    assert await adopted.renew() is True
    assert await adopted.settle_success(12) is True
    assert await two.used() == [1, 12, 0]


@pytest.mark.parametrize("turns", range(6))
async def test_r16_a_caller_that_is_cancelled_leaves_the_name_to_its_twin(
    shared_redis: RedisServer, namespace: str, turns: int
) -> None:
    """R9, R16: of two that ask at once by one id one is cancelled; whoever asks next is given the other's handle."""
    async with Two(shared_redis, namespace) as two:
        await (await two.one.pre_commit(KEY)).cancel()  # the connection is there
        asks = [
            asyncio.ensure_future(two.one.pre_commit(KEY, tokens=10, request_id="job"))
            for _ in range(2)
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        asks[0].cancel()
        _, held = await asyncio.gather(*asks, return_exceptions=True)
        assert isinstance(held, Reservation)
        assert await two.used() == [1, 10, 1]
        # What the first has left behind is withdrawn, which does nothing.
        await two.one.peek(KEY)
        await until(lambda: not two.one.health().owed)
        await two.one.peek(KEY)
        assert await two.one.pre_commit(KEY, tokens=10, request_id="job") is held
        assert await two.used() == [1, 10, 1]
        assert await held.settle_success(7)
        assert await two.used() == [1, 7, 0]
