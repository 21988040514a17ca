"""Replies that get lost, come late or never, and connections that are cut: every message has its effect once (R9, C56).

The proxy tells when the server has applied a message. Time is a clock of the test's own, so that no window ends by
itself; deadlines are short, and nothing waits for them but the backend.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import pytest

from earmark import BackendUnavailable, Limits, RateLimited, Scope
from earmark.backends.redis import line
from tests.redis.proxy import LEASE, PATIENCE, SCOPE, Kind, Proxy, Way, proxied
from tests.servers import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture
async def way(
    shared_redis: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Way]:
    """Limits of a healthy server that has the scripts, decided by the memory of the process in an outage."""
    monkeypatch.setattr(line, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(line, "LONGEST_PAUSE", 0.05)
    async with Proxy(shared_redis) as proxy, proxied(shared_redis, namespace, proxy) as way:
        yield way


# Before the withdrawal comes, what is on the server is that of the swallowed reserve: one debit and one slot.
TAKEN: Final = {"requests": 1, "tokens": 300, "concurrency": 1}


@pytest.mark.parametrize("request_id", [None, "r1"])
async def test_a_reserve_whose_reply_is_swallowed_is_withdrawn(
    way: Way, request_id: str | None
) -> None:
    """C56, R9: it is applied once, the caller is answered without it, and it is taken back by its id."""
    fault = way.proxy.fault("swallow", b"reserve ")
    withdrawal = way.proxy.fault("hold request", b"withdraw")
    reservation = await way.limiter.pre_commit(SCOPE, tokens=300, request_id=request_id)
    assert fault.met.is_set()
    assert reservation.degraded
    await withdrawal.happened()
    assert await way.used() == TAKEN
    assert not way.limiter.health().available
    withdrawal.release()
    await way.delivered()
    assert await way.used() == {"requests": 0, "tokens": 0, "concurrency": 0}
    assert await reservation.settle_success(100)  # where it was taken: in this process
    await way.check()


@pytest.mark.parametrize("kind", ["cut before", "cut after"])
@pytest.mark.parametrize("request_id", [None, "r1"])
async def test_a_reserve_is_sent_again_when_its_connection_is_cut(
    way: Way, kind: Kind, request_id: str | None
) -> None:
    """C56: one debit and one slot, whether the first copy was applied or not, and no outage."""
    fault = way.proxy.fault(kind, b"reserve ")
    reservation = await way.limiter.pre_commit(SCOPE, tokens=300, request_id=request_id)
    assert fault.met.is_set()
    assert not reservation.degraded
    assert way.proxy.asked(reservation_id(way)) == 2
    assert await way.used() == TAKEN
    assert await reservation.settle_success(100)
    await way.check(requests=1, tokens=100)


def reservation_id(way: Way) -> bytes:
    """The head of the last reserve but for its flags, as it stands in a request."""
    at = way.proxy.requests[-1].index(b"reserve ")
    return b" ".join(way.proxy.requests[-1][at:].split(b" ")[:2])


@pytest.mark.parametrize("kind", ["swallow", "cut before", "cut after"])
@pytest.mark.parametrize("request_id", [None, "r1"])
async def test_a_settlement_counts_once(way: Way, kind: Kind, request_id: str | None) -> None:
    """C56: the refund is made once, and the caller learns that it was (True)."""
    reservation = await way.limiter.pre_commit(SCOPE, tokens=300, request_id=request_id)
    fault = way.proxy.fault(kind, b"resolve ")
    assert await reservation.settle_success(100)
    assert reservation.state == "settled"
    assert fault.met.is_set()
    assert not await reservation.cancel()
    await way.check(requests=1, tokens=100)


@pytest.mark.parametrize("verb", ["cancel", "close_reserved_only", "abandon"])
@pytest.mark.parametrize("kind", ["swallow", "cut before", "cut after"])
async def test_every_resolution_counts_once(way: Way, kind: Kind, verb: str) -> None:
    """R5, R9: the other three as well."""
    reservation = await way.limiter.pre_commit(SCOPE, tokens=300)
    way.proxy.fault(kind, b"resolve ")
    resolve: Callable[[], Awaitable[bool]] = getattr(reservation, verb)
    assert await resolve()
    assert not await resolve()
    await way.check(**({} if verb == "cancel" else {"requests": 1, "tokens": 300}))


@pytest.mark.parametrize("kind", ["swallow", "cut before", "cut after"])
@pytest.mark.parametrize("request_id", [None, "r1"])
async def test_an_addition_counts_once(way: Way, kind: Kind, request_id: str | None) -> None:
    """C56: it has an id of its own, so that its copy counts nothing."""
    way.proxy.fault(kind, b"add ")
    await way.limiter.add_tokens_post_stream(SCOPE, 70, request_id=request_id)
    await way.check(tokens=70)
    await way.limiter.add_tokens_post_stream(SCOPE, 70, request_id=request_id)
    await way.check(tokens=70 if request_id else 140)


async def test_a_reset_is_done_once(way: Way) -> None:
    """R9: what is counted between its two copies is not forgiven by the second."""
    await way.limiter.add_tokens_post_stream(SCOPE, 70)
    late = way.proxy.fault("cut and hold", b"reset ")
    await way.limiter.reset(SCOPE)
    await way.limiter.add_tokens_post_stream(SCOPE, 30)
    late.release()
    assert b" done" in await late.answered()
    await way.check(tokens=30)


async def test_a_reset_that_is_not_answered_says_so(way: Way) -> None:
    """Whether the counts were forgotten is not known: that is raised, not guessed."""
    way.proxy.fault("swallow", b"reset ")
    with pytest.raises(BackendUnavailable):
        await way.limiter.reset(SCOPE)
    await way.check()


async def test_renewals_and_peeks_are_answered_after_a_cut(way: Way) -> None:
    """They change nothing twice: they are asked again."""
    reservation = await way.limiter.pre_commit(SCOPE, tokens=300)
    for kind in ("cut before", "cut after"):
        way.clock.advance(20)
        way.proxy.fault(kind, b"renew ")
        assert await reservation.renew()
        way.proxy.fault(kind, b"peek ")
        (status,) = await way.limiter.peek(SCOPE)
        assert status["concurrency"].used == 1
    assert await reservation.cancel()


async def test_a_renewal_that_is_not_answered_says_so(way: Way) -> None:
    """Whether the slot is held is not known: that is raised, not guessed."""
    reservation = await way.limiter.pre_commit(SCOPE, tokens=300)
    way.proxy.fault("swallow", b"renew ")
    with pytest.raises(BackendUnavailable):
        await reservation.renew()
    await way.delivered()
    assert await reservation.renew()
    assert await reservation.cancel()
    await way.check()


@pytest.mark.parametrize("request_id", [None, "r1"])
async def test_a_late_reserve_finds_that_it_was_withdrawn(way: Way, request_id: str | None) -> None:
    """R9: a copy that arrives after the withdrawal takes nothing, within the horizon."""
    late = way.proxy.fault("hold request", b"reserve ")
    reservation = await way.limiter.pre_commit(SCOPE, tokens=300, request_id=request_id)
    assert reservation.degraded
    await way.delivered()  # the withdrawal has come first
    late.release()
    assert b" gone" in await late.answered()
    await reservation.cancel()
    await way.check()


async def test_a_reserve_that_comes_after_the_horizon_is_held_for_a_lease_at_most(way: Way) -> None:
    """R9: the store remembers a withdrawal for the horizon; a debit that comes later ends with its window."""
    late = way.proxy.fault("hold request", b"reserve ")
    reservation = await way.limiter.pre_commit(SCOPE, tokens=300)
    await way.delivered()
    way.forget()
    late.release()
    assert b" held" in await late.answered()
    await reservation.cancel()
    assert await way.used() == TAKEN
    way.clock.advance(LEASE)
    await way.check(requests=1, tokens=300)
    way.clock.advance(86_400)
    await way.check()


async def test_a_late_copy_of_a_refused_reserve_takes_nothing(way: Way) -> None:
    """R9: sent again it has the effect of the first, though there is room by the time at which the other arrives."""
    late = way.proxy.fault("cut and hold", b"reserve ")
    others = [await way.straight.pre_commit(SCOPE) for _ in range(2)]
    with pytest.raises(RateLimited):
        await way.limiter.pre_commit(SCOPE, tokens=300)
    assert late.met.is_set()
    for other in others:
        await other.cancel()
    await way.delivered()
    late.release()
    assert b" gone" in await late.answered()
    await way.check()


async def test_a_late_copy_of_an_adopted_reserve_takes_nothing(way: Way) -> None:
    """R9: the id was open, and is free by the time at which the other copy arrives."""
    owner = await way.straight.pre_commit(SCOPE, tokens=300, request_id="r1")
    late = way.proxy.fault("cut and hold", b"reserve ")
    adopted = await way.limiter.pre_commit(SCOPE, tokens=300, request_id="r1")
    assert late.met.is_set()
    await way.delivered()
    assert await owner.settle_success(100)
    assert not await adopted.cancel()
    late.release()
    assert b" gone" in await late.answered()
    await way.check(requests=1, tokens=100)


@pytest.mark.parametrize("request_id", [None, "r1"])
async def test_a_late_settlement_counts_nothing_more(way: Way, request_id: str | None) -> None:
    """R5, R9: nor does it free the slot of the id's new owner."""
    reservation = await way.limiter.pre_commit(SCOPE, tokens=300, request_id=request_id)
    late = way.proxy.fault("hold request", b"resolve ")
    assert await reservation.settle_success(100)
    await way.delivered()
    heir = await way.straight.pre_commit(SCOPE, tokens=200, request_id=request_id)
    if request_id is not None:
        way.forget()
    late.release()
    assert b" gone" in await late.answered()
    assert await way.used() == {"requests": 2, "tokens": 300, "concurrency": 1}
    assert await heir.settle_success(0)
    await way.check(requests=2, tokens=100)


async def test_the_store_tells_whose_settlement_it_was(way: Way) -> None:
    """R9: the second copy of a settlement is told that it was the first that won."""
    reservation = await way.limiter.pre_commit(SCOPE, tokens=300, request_id="r1")
    late = way.proxy.fault("hold request", b"resolve ")
    assert await reservation.settle_success(100)
    await way.delivered()
    late.release()
    assert b" done" in await late.answered()
    await way.check(requests=1, tokens=100)


async def test_a_late_addition_counts_nothing_more(way: Way) -> None:
    """R9: an addition is remembered for as long as the outbox may keep it, an hour."""
    late = way.proxy.fault("hold request", b"add ")
    await way.limiter.add_tokens_post_stream(SCOPE, 70)
    await way.delivered()
    with way.server.client() as client:
        (mark,) = client.scan_iter(f"{way.namespace}:o:*")
        assert client.pttl(mark) > 3_600_000
    late.release()
    assert b" counted" in await late.answered()
    await way.check(tokens=70)


async def test_a_cancelled_caller_leaves_its_reply_to_nobody(way: Way) -> None:
    """C55, R16: a hundred times on one connection: everybody has their own answer, and what was taken is back."""
    exhausted = Scope("bob", Limits(rpm=0))
    for _ in range(100):
        fault = way.proxy.fault("hold reply", b"reserve ")
        gone = asyncio.create_task(way.limiter.pre_commit(SCOPE, tokens=300))
        await fault.happened()
        gone.cancel()
        other = asyncio.create_task(way.limiter.pre_commit(exhausted))
        fault.release()
        with pytest.raises(RateLimited):
            await other
        with pytest.raises(asyncio.CancelledError):
            await gone
    assert way.limiter.health().admitted_without_store == 0
    assert way.proxy.connections == 1
    await way.check()


@pytest.mark.parametrize("request_id", [None, "r1"])
async def test_a_reserve_that_was_never_sent_leaves_nothing(
    way: Way, request_id: str | None
) -> None:
    """R9: a caller that is cancelled before anything was sent for it has taken nothing that could be late."""
    await asyncio.gather(
        way.limiter.peek(SCOPE), way.limiter.peek(SCOPE)
    )  # nobody is alone, and leaves at once
    withdrawn = way.proxy.asked(b"withdraw")
    for _ in range(10):
        asked = asyncio.create_task(way.limiter.pre_commit(SCOPE, request_id=request_id))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    before = len(way.proxy.requests)
    await way.limiter.peek(SCOPE)
    assert len(way.proxy.requests) == before + 1
    assert b"reserve " not in way.proxy.requests[-1]
    assert way.proxy.asked(b"withdraw") == withdrawn
    assert not way.backend._unsent
    with way.server.client() as client:
        assert not list(client.scan_iter(f"{way.namespace}:r:*"))
    held = await way.limiter.pre_commit(SCOPE, tokens=300, request_id=request_id)
    assert await way.used() == TAKEN
    assert await held.cancel()
    await way.check()


async def test_a_cancelled_caller_ahead_does_not_spare_the_deadline(way: Way) -> None:
    """R16: who waits behind a caller that has gone waits for no longer than the deadline."""
    message = way.backend._messages.peek((SCOPE,))
    fault = way.proxy.fault("swallow", message.id.encode())
    first = way.backend._line().ask(message)
    await fault.happened()
    first.cancel()
    way.proxy.fault("swallow", b" peek ")
    with pytest.raises(BackendUnavailable):
        await way.limiter.peek(SCOPE)
    await way.check()


async def test_a_reply_that_comes_after_the_deadline_reaches_nobody(way: Way) -> None:
    """C55: its connection has been given up."""
    fault = way.proxy.fault("hold reply", b"reserve ")
    reservation = await way.limiter.pre_commit(SCOPE, tokens=300)
    assert reservation.degraded
    fault.release()
    await reservation.cancel()
    await way.check()


async def test_an_idle_connection_that_was_closed_is_no_outage(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    """Servers and middleboxes close what is idle: the next message goes out on a new connection."""
    await way.proxy.cut()
    reservation = await way.limiter.pre_commit(SCOPE, tokens=300)
    assert not reservation.degraded
    await way.proxy.cut()
    assert await reservation.settle_success(100)
    await way.proxy.cut()
    # What nobody waits for is delivered on a new connection as well.
    other = await way.limiter.pre_commit(SCOPE, tokens=300)
    await way.proxy.cut()
    message = way.backend._messages.resolve(other._hold, "cancel", {}, {})
    way.backend._owe(message)
    await way.check(requests=1, tokens=100)
    assert not caplog.records
    await other.cancel()  # its handle does not know that it was cancelled in its place
    await way.check(requests=1, tokens=100)


async def test_a_message_is_sent_twice_at_most(way: Way) -> None:
    """A message that every connection breaks on is an outage, and does not come for ever."""
    for _ in range(3):
        way.proxy.fault("cut before", b"reserve ")
    before = way.proxy.asked(b"reserve ")
    reservation = await way.limiter.pre_commit(SCOPE)
    assert reservation.degraded
    assert way.proxy.asked(b"reserve ") - before == 2
    await reservation.cancel()
    way.proxy.forget()
    await way.check()


async def test_what_is_owed_is_delivered_under_load(way: Way) -> None:
    """What nobody waits for is not put off for as long as somebody always waits."""
    reservation = await way.limiter.pre_commit(SCOPE, tokens=300)
    line_of_loop: Any = way.backend._line()
    messages = way.backend._messages
    way.backend._owe(messages.resolve(reservation._hold, "cancel", {}, {}))
    answers: list[asyncio.Future[str]] = []
    async with asyncio.timeout(PATIENCE):
        while way.limiter.health().owed:
            answers.append(line_of_loop.ask(messages.peek((SCOPE,))))
            assert line_of_loop._waiting
            await asyncio.sleep(0)
    await asyncio.gather(*answers)
    await reservation.cancel()
    await way.check()


@pytest.mark.parametrize("kind", ["swallow", "hold reply", "hold request"])
async def test_a_cancelled_reserve_gives_back_what_it_took_and_no_more(
    way: Way, kind: Kind
) -> None:
    """C14: 40 are used by others; whatever had become of the cancelled 30, there are 40 in the end, never 10."""
    await way.straight.add_tokens_post_stream(SCOPE, 40)
    fault = way.proxy.fault(kind, b"reserve ")
    asked = asyncio.create_task(way.limiter.pre_commit(SCOPE, tokens=30))
    await fault.happened()
    assert (await way.used())["tokens"] == (40 if kind == "hold request" else 70)
    asked.cancel()
    fault.release()
    with pytest.raises(asyncio.CancelledError):
        await asked
    if kind != "swallow":
        await fault.answered()
    await way.check(tokens=40)


async def test_a_release_that_fails_is_delivered_once(way: Way) -> None:
    """C4: the caller sees True, the slot is held until the store hears of it, and a second copy frees no other's."""
    scope = Scope("carol", Limits(concurrency=1))
    first = await way.limiter.pre_commit(scope)
    message = way.backend._messages.resolve(first._hold, "cancel", {}, {})
    await way.proxy.refuse()
    assert await first.cancel()
    with pytest.raises(RateLimited):
        await way.straight.pre_commit(scope)
    await way.proxy.accept()
    await way.delivered()
    second = await way.straight.pre_commit(scope)
    way.backend._owe(message)
    await way.delivered()
    with pytest.raises(RateLimited):
        await way.straight.pre_commit(scope)
    assert await second.cancel()


@pytest.mark.parametrize("verb", [b"reserve ", b"resolve ", b"add "])
async def test_a_reply_that_comes_late_is_nobody_elses(way: Way, verb: bytes) -> None:
    """C55, C56: longer on its way than the deadline; by then another connection is used, and all is counted once."""
    held = await way.limiter.pre_commit(SCOPE, tokens=300)
    late = way.proxy.fault("hold reply", verb)
    if verb == b"reserve ":
        reservation = await way.limiter.pre_commit(SCOPE, tokens=100)
        assert await reservation.cancel()
    if verb == b"add ":
        await way.limiter.add_tokens_post_stream(SCOPE, 5)
    assert await held.settle_success(100)
    assert late.met.is_set()
    await way.delivered()
    exhausted = asyncio.create_task(way.limiter.pre_commit(Scope("bob", Limits(rpm=0))))
    late.release()
    with pytest.raises(RateLimited):
        await exhausted
    await way.check(requests=1, tokens=105 if verb == b"add " else 100)
