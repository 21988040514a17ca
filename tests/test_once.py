"""One request, several attempts (B41–B46, C28, C29): what the request holds is held once, a target's is an attempt's.

Windows are 60 s from t = 0, and the clock stands still. tests/redis/test_contract.py plays the same on Redis.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import AsyncIterator
from typing import Any, Final

import anyio
import pytest

from earmark import Event, Limiter, Limits, RateLimited, ReserveOnce, Scope, Usage
from earmark.testing import ManualClock
from tests.rows import Stores, quiet
from tests.streams.toys import DONE, SAY, USAGE, Toy, generate
from tests.suspending import quiesce

pytestmark = pytest.mark.anyio

USER: Final = Scope("user", Limits(rpm=10, tpm=1_000, concurrency=2))
P1: Final = Scope("p1", Limits(rpm=10, tpm=1_000, concurrency=1))
P2: Final = Scope("p2", Limits(rpm=10, tpm=1_000, concurrency=1))

Look = tuple[int, int, int]
"""Requests and tokens used, slots taken."""

NOTHING: Final[Look] = (0, 0, 0)


class World:
    """A limiter, and what its observers are told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.clock = ManualClock()
        self.limiter = Limiter(Stores.make(clock=self.clock), observers=[self.events.append])

    async def look(self, scope: Scope) -> Look:
        """What the store shows of a scope."""
        (status,) = await self.limiter.peek(scope)
        requests, tokens, slots = (limit.used for limit in status.limits)
        return requests, tokens, slots

    async def looks(self) -> tuple[Look, Look, Look]:
        """The user, and both providers."""
        return await self.look(USER), await self.look(P1), await self.look(P2)

    def told(self, key: str) -> list[str]:
        """What observers were told about a key."""
        return [event.kind for event in self.events if key in event.keys]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A world of its own. Whatever is dropped while open in it warns, which is an error."""
    one = World()
    yield one
    await one.limiter.aclose()


async def test_b41_two_attempts_are_one_debit(world: World) -> None:
    """B41: tpm 6, ask 5, two attempts through one `once`: both run, one debit."""
    six = Scope("six", Limits(rpm=1, tpm=6))
    async with world.limiter.once(six, tokens=5) as once:
        first = await once.attempt()
        second = await once.attempt()
        assert first.held == second.held == {"requests": 1, "tokens": 5}
        assert await second.settle_success(4)
    (status,) = await world.limiter.peek(six)
    assert (status["requests"].used, status["tokens"].used) == (1, 4)


async def test_b42_a_refusal_of_the_request_is_final(world: World) -> None:
    """B42, C28: refused once, and the same refusal for every later attempt, for which nothing is sent."""
    three = Scope("three", Limits(tpm=3))
    async with world.limiter.once(three, tokens=5) as once:
        assert once.refused is None
        with pytest.raises(RateLimited) as first:
            await once.attempt(P1)
        assert once.refused is first.value
        assert [denial.key for denial in first.value.denials] == ["three"]
        await world.limiter.reset(three)  # what is final stays so, whatever becomes of the limits
        for target in ((), (P1,), (P2,)):
            with pytest.raises(RateLimited) as again:
                await once.attempt(*target)
            assert again.value is once.refused
    assert await world.look(P1) == NOTHING
    assert [event.kind for event in world.events] == ["refused"]


async def test_b42_a_refusal_of_a_target_is_that_attempts_alone(world: World) -> None:
    """R2, C29: nothing is counted for it, the request can go elsewhere, and is counted once."""
    full = Scope("p1", Limits(tpm=4))
    async with world.limiter.once(USER, tokens=5) as once:
        with pytest.raises(RateLimited) as refused:
            await once.attempt(full)
        assert [denial.key for denial in refused.value.denials] == ["p1"]
        assert once.refused is None
        assert await world.look(USER) == NOTHING
        attempt = await once.attempt(P2)
        with pytest.raises(RateLimited):
            await once.attempt(full)
        assert await attempt.settle_success(7)
    assert await world.looks() == ((1, 7, 0), NOTHING, (1, 7, 0))


async def test_b42_both_refuse(world: World) -> None:
    """R3: the refusal names every limit that refused, and the request's makes it final."""
    one, other = Scope("one", Limits(tpm=1)), Scope("other", Limits(tpm=1))
    async with world.limiter.once(one, tokens=5) as once:
        with pytest.raises(RateLimited) as refused:
            await once.attempt(other)
        assert [denial.key for denial in refused.value.denials] == ["one", "other"]
        assert once.refused is refused.value


@pytest.mark.parametrize(
    ("end", "p1"), [("leave", (1, 50, 0)), ("close", (1, 50, 0)), ("cancel", NOTHING)]
)
async def test_c29_a_retry_at_another_provider(world: World, end: str, p1: Look) -> None:
    """C29: the second hop was refused by the first hop's own increment; p1 keeps its 50, or gets it back."""
    async with world.limiter.once(USER, tokens=50) as once:
        async with await once.attempt(P1) as attempt:
            assert await world.looks() == ((1, 50, 1), (1, 50, 1), NOTHING)
            if end == "cancel":
                assert await attempt.cancel()
            elif end == "close":
                assert await attempt.close_reserved_only()
        assert await world.looks() == ((1, 50, 1), p1, NOTHING)
        async with await once.attempt(P2) as attempt:
            assert await world.looks() == ((1, 50, 1), p1, (1, 50, 1))
            assert await attempt.settle_success(80)
            assert not await attempt.settle_success(90)
        assert await world.looks() == ((1, 80, 0), p1, (1, 80, 0))
    assert await world.looks() == ((1, 80, 0), p1, (1, 80, 0))
    assert world.told("user") == ["admitted", "settled"]


async def test_c28_the_second_attempt_has_the_handle_of_the_first(world: World) -> None:
    """C28(a): rpm 1: attempt 2 was refused by the count of attempt 1."""
    tenant = Scope("tenant", Limits(rpm=1, tpm=100))
    async with world.limiter.once(tenant, tokens=10) as once:
        async with await once.attempt():
            pass
        async with await once.attempt() as attempt:
            assert await attempt.settle_success(50)
    (status,) = await world.limiter.peek(tenant)
    assert (status["requests"].used, status["tokens"].used) == (1, 50)


async def test_b43_leaving_without_a_settlement_closes(world: World) -> None:
    """B43: the debit stays, the slots are free, whatever is open: a bare attempt, and what all share."""
    async with world.limiter.once(USER, tokens=50) as once:
        attempt = await once.attempt(P1)
    assert await world.looks() == ((1, 50, 0), (1, 50, 0), NOTHING)
    assert attempt.state == "closed"
    assert world.told("user") == ["admitted", "closed"]
    with pytest.raises(RuntimeError, match="over"):
        await once.attempt(P1)


async def test_b43_an_error_closes(world: World) -> None:
    """B43: a final non-2xx that nothing settled is such a leaving."""
    with pytest.raises(LookupError):
        async with world.limiter.once(USER, tokens=50) as once, await once.attempt(P1):
            raise LookupError
    assert await world.looks() == ((1, 50, 0), (1, 50, 0), NOTHING)
    assert world.told("user") == ["admitted", "closed"]


async def test_b43_a_cancellation_abandons_once(world: World) -> None:
    """B43: what is open is abandoned, once."""
    with anyio.CancelScope() as scope:
        async with world.limiter.once(USER, tokens=50) as once:
            await once.attempt(P2)
            async with await once.attempt(P1):
                scope.cancel()
                await anyio.sleep_forever()
    assert await world.looks() == ((1, 50, 0), (1, 50, 0), (1, 50, 0))
    for key in ("user", "p1", "p2"):
        assert world.told(key) == ["admitted", "abandoned"]


async def test_b43_after_a_refusal_leaving_does_nothing(world: World) -> None:
    """B43: there is nothing to close, and nothing to tell."""
    with pytest.raises(RateLimited):
        async with world.limiter.once(USER, tokens=1_001) as once:
            await once.attempt(P1)
    assert await world.looks() == (NOTHING, NOTHING, NOTHING)
    assert [event.kind for event in world.events] == ["refused"]


async def test_b43_a_once_without_an_attempt_costs_nothing(world: World) -> None:
    """Nothing is reserved before the first attempt."""
    async with world.limiter.once(USER, tokens=50):
        pass
    assert await world.looks() == (NOTHING, NOTHING, NOTHING)
    assert world.events == []


class Source:
    """Gives its items."""

    def __init__(self, *items: bytes) -> None:
        self._items = iter(items)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        for item in self._items:
            return item
        raise StopAsyncIteration


REPORTED: Final = 12
"""What `USAGE` says."""


async def test_b43_handed_over_to_a_stream_leaving_does_nothing(world: World) -> None:
    """B43, B32: the stream resolves, the target and the request, before the end is seen."""
    async with world.limiter.once(USER, tokens=50) as once:
        async with await once.attempt(P1):
            pass
        async with await once.attempt(P2) as attempt:
            stream = attempt.stream(Source(SAY, USAGE, DONE), dialect=Toy)
    assert await world.looks() == ((1, 50, 1), (1, 50, 0), (1, 50, 1))
    async for item in stream:
        if item == DONE:
            assert await world.looks() == ((1, REPORTED, 0), (1, 50, 0), (1, REPORTED, 0))
    assert attempt.state == "settled"
    assert world.told("user") == ["admitted", "settled"]


@pytest.mark.parametrize("end", ["aclose", "drop", "error"])
async def test_b65_a_stream_that_breaks_off_keeps_what_was_held(world: World, end: str) -> None:
    """B65: leaving early is never cheaper than staying, for the target and for the request."""
    async with world.limiter.once(USER, tokens=50) as once:
        attempt = await once.attempt(P1)
        stream = attempt.stream(Source(SAY, DONE) if end != "error" else Broken(), dialect=Toy)
        del attempt
    if end == "error":
        with pytest.raises(LookupError):
            await anext(stream)
    else:
        assert await anext(stream) == SAY
    if end == "aclose":
        await stream.aclose()
    if end == "drop":
        del stream
        gc.collect()
    assert await world.looks() == ((1, 50, 0), (1, 50, 0), NOTHING)
    gone = "abandoned" if end == "drop" else "closed"
    assert world.told("user") == world.told("p1") == ["admitted", gone]


class Broken:
    """Fails at once."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        raise LookupError


async def test_b65_a_stream_that_is_dropped_after_its_report_is_settled(world: World) -> None:
    """What a finaliser notes is noted for the request as well; a second one's usage is added."""
    for _ in range(2):
        async with world.limiter.once(USER, tokens=50) as once:
            streams = [
                (await once.attempt(scope)).stream(Source(USAGE, DONE), dialect=Toy)
                for scope in (P1, P2)
            ]
        for stream in streams:
            assert await anext(stream) == USAGE
            assert await anext(stream) == DONE
        del stream, streams
        gc.collect()
    tokens = 2 * REPORTED
    assert await world.looks() == ((2, 2 * tokens, 0), (2, tokens, 0), (2, tokens, 0))


@pytest.mark.parametrize("first", [0, 1])
async def test_two_streams_at_once_are_charged_both(world: World, first: int) -> None:
    """DESIGN: the first settlement trues up the scopes of the request, a later one adds its usage to them."""
    async with world.limiter.once(USER, tokens=50) as once:
        streams = [
            (await once.attempt(scope)).stream(Source(USAGE, DONE), dialect=Toy)
            for scope in (P1, P2)
        ]
    for stream in (streams[first], streams[1 - first]):
        assert [item async for item in stream] == [USAGE, DONE]
    assert await world.looks() == ((1, 2 * REPORTED, 0), (1, REPORTED, 0), (1, REPORTED, 0))
    assert world.told("user") == ["admitted", "settled", "post_stream"]


async def test_of_two_streams_the_last_one_closes(world: World) -> None:
    """What is shared stays open as long as somebody may settle it, and then keeps what was held."""
    async with world.limiter.once(USER, tokens=50) as once:
        streams = [
            (await once.attempt(scope)).stream(Source(SAY, USAGE, DONE), dialect=Toy)
            for scope in (P1, P2)
        ]
    await streams[0].aclose()
    assert await world.look(USER) == (1, 50, 1)
    await streams[1].aclose()
    assert await world.looks() == ((1, 50, 0), (1, 50, 0), (1, 50, 0))


async def test_a_later_settlement_adds_its_usage(world: World) -> None:
    """DESIGN: tokens and metrics of one's own are added, requests count once; a usage's parts as they are known."""
    images = Limits(rpm=10, tpm=1_000, itpm=1_000, also=[])
    user = Scope("wide", images)
    async with world.limiter.once(user, tokens=50) as once:
        first, second, third = [
            await once.attempt(target) for target in (P1, P2, Scope("x", Limits()))
        ]
        assert await first.settle_success(Usage(10, 20))
        assert await second.settle_success(Usage(1, 2))
        assert await third.settle_success({"tokens": 5})
    (status,) = await world.limiter.peek(user)
    assert [limit.used for limit in status.limits] == [1, 38, 11]
    assert (await world.look(P1))[1] == 30
    assert (await world.look(P2))[1] == 3


async def test_parallel_attempts_share_one_reservation(world: World) -> None:
    """Three at once: the request is reserved by one of them, and counted once."""
    targets = [Scope(f"p{number}", Limits(rpm=1, concurrency=1)) for number in range(3)]
    async with world.limiter.once(USER, tokens=50) as once:
        async with anyio.create_task_group() as tasks:
            for target in targets:
                tasks.start_soon(once.attempt, target)
        assert await world.look(USER) == (1, 50, 1)
        for status in await world.limiter.peek(*targets):
            assert [limit.used for limit in status.limits] == [1, 1]
    for status in await world.limiter.peek(*targets):
        assert [limit.used for limit in status.limits] == [1, 0]
    assert await world.look(USER) == (1, 50, 0)


async def test_b44_the_scopes_are_those_of_the_first_attempt(world: World) -> None:
    """B44: an alias that resolves to another model on a retry moves no charge of the request."""
    async with world.limiter.once(USER, tokens=50) as once:
        assert once.scopes == (USER,)
        first = await once.attempt(P1)
        second = await once.attempt(P2)
        assert [scope.key for scope in first.scopes] == ["user", "p1"]
        assert [status.key for status in second.statuses] == ["user", "p2"]
        assert first.statuses[0]["tokens"].remaining == 950
        assert await second.settle_success(10)


async def test_b46_a_limiter_that_is_disabled_admits_every_attempt() -> None:
    """B46: every call is a no-op."""
    limiter = Limiter.disabled()
    nothing = Scope("user", Limits(rpm=0))
    async with limiter.once(nothing, tokens=10**6) as once:
        async with await once.attempt(P1) as attempt:
            assert attempt.held == {}
            assert await attempt.cancel()
        async with await once.attempt(P1) as attempt:
            assert await attempt.settle_success(5)
            assert not await attempt.settle_success(5)
            assert attempt.state == "settled"
        stream = (await once.attempt(P2)).stream(Source(SAY, DONE), dialect=Toy)
    assert [item async for item in stream] == [SAY, DONE]


async def test_the_request_without_limits_and_the_target_without(world: World) -> None:
    """Whichever of the two is limited is counted, and the other costs nothing."""
    free = Scope("free", Limits())
    async with world.limiter.once(free, tokens=50) as once:
        assert await (await once.attempt(P1)).settle_success(5)
    async with world.limiter.once(USER, tokens=50) as once:
        assert await (await once.attempt(free)).settle_success(6)
    async with world.limiter.once(tokens=50) as once:
        assert await (await once.attempt(P2)).settle_success(7)
    assert await world.looks() == ((1, 6, 0), (1, 5, 0), (1, 7, 0))


async def test_cancel_gives_everything_back(world: World) -> None:
    """Nothing was ever sent: requests too, for the request and whatever target is open; no attempt follows."""
    async with world.limiter.once(USER, tokens=50) as once:
        await once.attempt(P1)
        async with await once.attempt(P2) as attempt:
            await attempt.cancel()
        assert await once.cancel()
        assert not await once.cancel()
        with pytest.raises(RuntimeError, match="over"):
            await once.attempt(P1)
    assert await world.looks() == (NOTHING, NOTHING, NOTHING)


async def test_cancel_leaves_a_settlement_and_a_stream_alone(world: World) -> None:
    """What is settled stays, and what a stream has is the stream's."""
    async with world.limiter.once(USER, tokens=50) as once:
        assert await (await once.attempt(P1)).settle_success(5)
        assert not await once.cancel()
    assert await world.looks() == ((1, 5, 0), (1, 5, 0), NOTHING)
    async with world.limiter.once(USER, tokens=50) as once:
        stream = (await once.attempt(P2)).stream(Source(USAGE, DONE), dialect=Toy)
        assert not await once.cancel()
    assert [item async for item in stream] == [USAGE, DONE]
    assert await world.look(USER) == (2, 5 + REPORTED, 0)


async def test_r15_a_once_that_is_dropped_is_abandoned(world: World) -> None:
    """R15: whoever enters it, never leaves it and lets it go is warned; the next message frees what it held."""

    async def drop() -> None:
        once = await world.limiter.once(USER, tokens=50).__aenter__()
        await once.attempt(P1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        await drop()
        gc.collect()
        kinds = {warning.category for warning in caught}
        caught.clear()  # a warning names its source
        gc.collect()
    assert kinds == {ResourceWarning}
    assert await world.looks() == ((1, 50, 0), (1, 50, 0), NOTHING)
    assert world.told("user") == world.told("p1") == ["admitted", "abandoned"]


async def test_b8_the_slot_of_the_request_is_held_over_all_attempts(world: World) -> None:
    """B8, C1: a provider's slot is free when its attempt is left, the user's when the `once` is."""
    one = Scope("user", Limits(concurrency=1))
    async with world.limiter.once(one) as once:
        async with await once.attempt(P1):
            pass
        with pytest.raises(RateLimited) as refused:
            await world.limiter.pre_commit(one)
        assert refused.value.retry_after is None
        async with await world.limiter.pre_commit(P1):
            pass
    async with await world.limiter.pre_commit(one):
        pass


async def test_r10_an_attempt_is_renewed_with_what_it_shares(world: World) -> None:
    """R10: True while every slot is held, of the target and of the request."""
    async with world.limiter.once(USER, tokens=5) as once:
        attempt = await once.attempt(P1)
        assert await attempt.renew()
        assert await attempt.settle_success(5)
        assert not await attempt.renew()


async def test_an_attempt_has_no_token(world: World) -> None:
    """It is settled together with what others share, in this process."""
    async with world.limiter.once(USER) as once:
        attempt = await once.attempt(P1)
        with pytest.raises(RuntimeError, match="no token"):
            attempt.token()


@pytest.mark.parametrize("settles", ["first", "last", "last, and is dropped"])
async def test_b65_a_stream_that_is_left_counts_beside_what_is_settled_before_it_or_after(
    settles: str, world: World
) -> None:
    """B65: what is known of it is of the request, in whatever order its attempts come to their ends."""

    async def left(once: ReserveOnce) -> None:
        options: Any = {"dialect": Toy, "estimate": lambda _: Usage(30, 10)}
        stream = (await once.attempt(P1)).stream(generate([SAY, SAY]), **options)
        assert await anext(stream) == SAY
        await stream.aclose()

    async def settled(once: ReserveOnce) -> None:
        stream = (await once.attempt(P2)).stream(generate([SAY, USAGE, DONE]), dialect=Toy)
        async for _ in stream:
            if settles == "last, and is dropped" and stream.observed.usage is not None:
                return

    with quiet():
        async with world.limiter.once(USER, tokens=5) as once:
            for end in (settled, left) if settles == "first" else (left, settled):
                await end(once)
        await quiesce()
    assert await world.looks() == ((1, 40 + 12, 0), (1, 40, 0), (1, 12, 0))


async def test_the_limiters_own_verbs_take_an_attempt(world: World) -> None:
    """An attempt is a reservation."""
    async with world.limiter.once(USER, tokens=50) as once:
        assert await world.limiter.cancel(await once.attempt(P1))
        assert await world.limiter.settle_success(await once.attempt(P2), 9)
    assert await world.looks() == ((1, 9, 0), NOTHING, (1, 9, 0))


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda limiter: limiter.once(USER, USER), ValueError, "one key"),
        (lambda limiter: limiter.once("user"), TypeError, "Scope"),
        (lambda limiter: limiter.once(USER, tokens=-1), ValueError, "tokens"),
        (lambda limiter: limiter.once(USER, lease=0), ValueError, "lease"),
        (lambda limiter: limiter.once(USER, amounts={"images": 1.5}), ValueError, "images"),
    ],
)
def test_r12_bad_values_are_errors_at_once(make: Any, error: type[Exception], match: str) -> None:
    """R12: before anything is asked."""
    with pytest.raises(error, match=match):
        make(Limiter())


async def test_r13_a_target_is_another_key_than_the_request(world: World) -> None:
    """Two scopes with one key in one request: ValueError, and nothing is counted."""
    async with world.limiter.once(USER, tokens=5) as once:
        with pytest.raises(ValueError, match="one key"):
            await once.attempt(Scope("user", Limits(rpm=5)))
        with pytest.raises(TypeError):
            await once.attempt("p1")  # type: ignore[arg-type]
    assert await world.look(USER) == NOTHING


async def test_attempts_are_made_inside_the_block(world: World) -> None:
    """Before it nobody would resolve them, and after it nobody can: both are mistakes, and count nothing."""
    once = world.limiter.once(USER, tokens=50)
    with pytest.raises(RuntimeError, match="has not begun: attempts are made inside its block"):
        await once.attempt(P1)
    async with once:
        pass
    with pytest.raises(RuntimeError, match="is over"):
        await once.attempt(P1)
    assert await world.looks() == (NOTHING, NOTHING, NOTHING)


async def test_a_lease_and_amounts_of_its_own(world: World) -> None:
    """They hold for what is shared and for every target."""
    images = Scope("images", Limits(concurrency=1, also=()))
    once = world.limiter.once(images, amounts={"requests": 3}, lease=10.0)
    assert isinstance(once, ReserveOnce)
    async with once:
        await once.attempt(P1)
        assert (await world.look(P1))[0] == 3
