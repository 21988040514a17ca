"""The life of a reservation: resolved once (R5, R7), closed by its block, abandoned when dropped (R15)."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from earmark import (
    Limit,
    Limiter,
    Limits,
    Reservation,
    Scope,
)
from earmark.testing import LOST, FaultyBackend
from tests.rows import (
    VERBS,
    A,
    C,
    Gone,
    R,
    Resolve,
    Row,
    S,
    Table,
    X,
    key,
    play,
    quiet,
    resolve,
    used,
)

pytestmark = pytest.mark.anyio

WIDE = key(rpm=60, tpm=100, concurrency=1)
ALGORITHMS = ["fixed_window", "sliding_window", "token_bucket"]


# R5 and R7: the verbs


@pytest.mark.parametrize("verb", VERBS)
async def test_r5_the_handle_has_the_verbs_of_the_limiter(verb: str) -> None:
    """R5: a verb of the handle resolves it once; state says how, and nothing is held any more."""
    async with Table() as table:
        await table.play(R("r1", WIDE, tok=40))
        handle = table.handles["r1"]
        assert (handle.state, dict(handle.held)) == ("open", {"requests": 1, "tokens": 40})
        assert await resolve(handle, verb) is True
        assert (handle.state, dict(handle.held)) == (VERBS[verb], {})
        for other in VERBS:
            assert await resolve(handle, other) is False
        assert handle.state == VERBS[verb]
        assert table.kinds() == ["admitted", VERBS[verb]]
        await table.play(used("key.conc", 0))


async def test_r5_a_reservation_says_what_it_is() -> None:
    """Its id, scopes, holds and statuses; a repr that names it; never degraded in memory."""
    other = Scope("other", Limits(rpd=5, also=(Limit("images", 9, 10), Limit("pages", 9, 10))))
    async with Table() as table:
        await table.play(R("r1", WIDE, other, tok=40, amounts={"images": 2}, request_id="q"))
        handle = table.handles["r1"]
        assert handle.request_id == "q"
        assert handle.scopes == (WIDE, other)
        assert dict(handle.held) == {"requests": 1, "tokens": 40, "images": 2}
        assert [status.key for status in handle.statuses] == ["key", "other"]
        assert handle.degraded is False
        assert "q" in repr(handle)
        assert "open" in repr(handle)


async def test_r5_each_reservation_has_an_id_of_its_own() -> None:
    """Where the caller chose none, the library does, and never the same twice."""
    async with Table() as table:
        await table.play(*(R(f"r{n}", key(rpm=500)) for n in range(100)))
        ids = {handle.request_id for handle in table.handles.values()}
        assert len(ids) == 100
        assert {type(id_) for id_ in ids} == {str}
        assert all(ids)


@pytest.mark.parametrize(
    ("ending", "requests", "tokens"),
    [
        (S("r1", 25), 1, 25),
        (S("r1", 0), 1, 0),
        (S("r1", 130), 1, 130),
        (C("r1"), 1, 40),
        (A("r1"), 1, 40),
        (X("r1"), 0, 0),
    ],
)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_r7_what_each_verb_leaves(
    algorithm: str, ending: Row, requests: int, tokens: int
) -> None:
    """R6, R7: slots are free in any case; cancel gives back requests too, the others keep them."""
    scope = key(rpm=60, tpm=100, concurrency=1, algorithm=algorithm)
    await play(
        R("r1", scope, tok=40),
        ending,
        used("key.rpm", requests),
        used("key.tpm", tokens),
        used("key.conc", 0),
    )


@pytest.mark.parametrize(
    "settle", [True, 1.0, float("nan"), -1, 2**53, "5", None, [5], {"tokens": -1}]
)
async def test_r12_a_bad_usage_changes_nothing(settle: Any) -> None:
    """R12: the error comes before any state changes; the reservation is open and can still be settled."""
    async with Table() as table:
        await table.play(R("r1", WIDE, tok=40))
        with pytest.raises((ValueError, TypeError)):
            await table.handles["r1"].settle_success(settle)
        assert table.handles["r1"].state == "open"
        await table.play(used("key.tpm", 40), used("key.conc", 1), S("r1", 25), used("key.tpm", 25))


# The context manager


async def test_with_a_clean_exit_closes() -> None:
    """Leaving it open closes: the debit stays, the slot is free."""
    async with Table() as table:
        async with await table.limiter.pre_commit(WIDE, tokens=40) as reservation:
            assert isinstance(reservation, Reservation)
            await table.play(used("key.conc", 1, scope=WIDE))
        assert reservation.state == "closed"
        await table.play(used("key.tpm", 40), used("key.conc", 0))


async def test_with_an_exception_closes_and_propagates() -> None:
    """An exception closes: it says nothing about whether the request was sent."""
    async with Table() as table:
        with pytest.raises(LookupError, match=WIDE.key):
            async with await table.limiter.pre_commit(WIDE, tokens=40) as reservation:
                raise LookupError(WIDE.key)
        assert reservation.state == "closed"
        await table.play(used("key.tpm", 40, scope=WIDE), used("key.conc", 0))


async def test_with_a_cancelled_scope_abandons() -> None:
    """An anyio scope's cancellation abandons, and propagates."""
    async with Table() as table:
        with anyio.CancelScope() as scope:
            async with await table.limiter.pre_commit(WIDE, tokens=40) as reservation:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert reservation.state == "abandoned"
        await table.play(used("key.tpm", 40, scope=WIDE), used("key.conc", 0))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_with_a_cancelled_task_abandons() -> None:
    """Asyncio's own cancellation abandons, and propagates."""
    async with Table() as table:
        held: list[Reservation] = []
        entered = asyncio.Event()

        async def work() -> None:
            async with await table.limiter.pre_commit(WIDE, tokens=40) as reservation:
                held.append(reservation)
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert held[0].state == "abandoned"
        await table.play(used("key.tpm", 40, scope=WIDE), used("key.conc", 0))


@pytest.mark.parametrize("verb", VERBS)
async def test_with_a_resolved_reservation_is_left_alone(verb: str) -> None:
    """What was resolved inside stays as it was resolved, also under an exception."""
    async with Table() as table:
        reservation = await table.limiter.pre_commit(WIDE, tokens=40)

        async def work() -> None:
            async with reservation:
                assert await resolve(reservation, verb) is True
                raise LookupError

        with pytest.raises(LookupError):
            await work()
        assert reservation.state == VERBS[verb]
        assert table.kinds() == ["admitted", VERBS[verb]]


# R15: drop safety


@pytest.mark.parametrize(
    "message", ["pre_commit", "peek", "add", "reset", "settle", "renew", "refused"]
)
async def test_r15_the_next_message_abandons_what_was_dropped(message: str) -> None:
    """R15: a finaliser only notes the id; whichever message comes next does the work, once."""
    other = key("other", rpm=1)
    async with Table() as table:
        await table.play(R("o", other), R("r1", WIDE, tok=40, request_id="q"), Gone("r1"))
        if message == "pre_commit":
            await table.play(R("r2", key("third", rpm=1)))
        elif message == "peek":
            await table.limiter.peek(other)
        elif message == "add":
            await table.limiter.add_tokens_post_stream("other", 5)
        elif message == "reset":
            await table.limiter.reset(other)
        elif message == "settle":
            assert await table.limiter.settle_success(table.handles["o"], 5)
        elif message == "renew":
            assert await table.handles["o"].renew()
        else:
            await table.play(R("r2", other, deny="other.rpm"))
        abandoned = [event.request_id for event in table.events if event.kind == "abandoned"]
        assert abandoned == ["q"]
        await table.play(used("key.conc", 0), used("key.tpm", 40), used("key.rpm", 1))
        assert [event.kind for event in table.events].count("abandoned") == 1


async def test_r15_whoever_asks_next_does_the_work() -> None:
    """R15: the limiter that made it is never asked again: a message of another one frees the slot."""
    async with Table() as table:
        other = Limiter(table.backend)
        await table.play(R("r1", WIDE, tok=40), Gone("r1"))
        async with await other.pre_commit(WIDE, tokens=40):
            (status,) = await other.peek(WIDE)
            assert [limit.used for limit in status.limits] == [2, 80, 1]


class Messages(logging.Handler):
    """Keeps what was logged, and nothing of what it was logged with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())


async def test_r15_what_cannot_be_abandoned_is_logged_and_disturbs_no_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R15: a store that raises is asked once for each message, not until it answers; the caller goes on."""
    logger, messages = logging.getLogger("earmark"), Messages()
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", [messages])
    async with Table() as table:
        backend = FaultyBackend(table.backend)
        backend.script("resolve", *[LOST] * 10)
        limiter = Limiter(backend)
        handles = [await limiter.pre_commit(WIDE, tokens=40)]
        with pytest.warns(ResourceWarning) as warned:
            handles.clear()
        assert len(warned) == 1
        with quiet():
            (status,) = await limiter.peek(WIDE)
        assert status["tokens"].used == 40
        assert backend.sent["resolve"] == 1
        assert len(messages.seen) == 1


async def test_r5_a_verb_that_fails_may_be_tried_again() -> None:
    """R5, C24: nothing is resolved until the store says so: the error reaches the caller, the handle is open."""
    async with Table() as table:
        backend = FaultyBackend(table.backend)
        backend.script("resolve", *[LOST] * 10)
        limiter = Limiter(backend)
        reservation = await limiter.pre_commit(WIDE, tokens=40)
        for _ in range(10):
            with pytest.raises(ConnectionError):
                await reservation.settle_success(25)
            assert reservation.state == "open"
        assert await reservation.settle_success(25) is True
        assert await reservation.settle_success(25) is False
        await table.play(used("key.tpm", 25, scope=WIDE), used("key.conc", 0))


async def test_r15_the_warning_says_what_was_dropped_and_what_to_do() -> None:
    """R15: ResourceWarning, with the id and the remedy."""
    async with Table() as table:
        handles = [await table.limiter.pre_commit(WIDE, request_id="lost-one")]
        with pytest.warns(ResourceWarning, match=r"lost-one.*async with"):
            handles.clear()


async def test_r15_a_handle_in_a_cycle_is_abandoned_when_it_is_collected() -> None:
    """R15: whenever the collector finds it, and from whichever thread."""
    async with Table() as table:
        cycle: list[Any] = [await table.limiter.pre_commit(WIDE, tokens=40)]
        cycle.append(cycle)
        with pytest.warns(ResourceWarning):  # noqa: PT031 - the collector may come by itself
            del cycle
            await anyio.to_thread.run_sync(gc.collect)
        await table.play(used("key.conc", 0, scope=WIDE), used("key.tpm", 40))
        assert table.kinds() == ["admitted", "abandoned"]


@pytest.mark.parametrize("verb", VERBS)
async def test_r15_a_resolved_handle_is_dropped_in_silence(verb: str) -> None:
    """R15: only what is open warns."""
    async with Table() as table:
        handle = await table.limiter.pre_commit(WIDE, tokens=40)
        assert await resolve(handle, verb)
        with quiet():
            del handle
        assert table.kinds() == ["admitted", VERBS[verb]]


async def test_r15_a_dropped_handle_of_a_limiter_that_is_gone_only_warns() -> None:
    """R15: with nobody left to tell, there is nothing to do."""
    handles = [await Limiter().pre_commit(WIDE, tokens=40)]
    gc.collect()
    with pytest.warns(ResourceWarning):
        handles.clear()


@pytest.mark.parametrize("first", VERBS)
@pytest.mark.parametrize("second", VERBS)
async def test_r5_two_tasks_race_to_resolve(first: str, second: str) -> None:
    """R5: of two concurrent resolvers exactly one is told that it resolved."""
    async with Table() as table:
        await table.play(R("r1", WIDE, tok=40))
        won: list[bool] = []

        async def race(verb: str) -> None:
            await anyio.lowlevel.checkpoint()
            won.append(await resolve(table.handles["r1"], verb))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(race, first)
            tasks.start_soon(race, second)
        assert sorted(won) == [False, True]
        assert len(table.events) == 2
        await table.play(Resolve("r1", "abandon", won=False), used("key.conc", 0))
