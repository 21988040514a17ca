"""The limiter itself: what observers hear, `Limiter.disabled()` (B46), making and closing one."""

from __future__ import annotations

import asyncio
import gc
import logging
from dataclasses import FrozenInstanceError
from typing import Any, cast

import pytest

from earmark import (
    Event,
    Limiter,
    MemoryBackend,
    RateLimited,
    ScopeStatus,
    Usage,
)
from earmark.testing import ManualClock
from tests.rows import (
    VERBS,
    C,
    N,
    P,
    R,
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

ALGORITHMS = ["fixed_window", "sliding_window", "token_bucket"]


# Observers


async def test_observers_hear_of_everything_once() -> None:
    """One record per event, of one frozen type, in order; it says which request, which keys, which amounts."""
    a, b = key("a", rpm=5, tpm=100), key("b", tpm=100, concurrency=5)
    async with Table(lease=30) as table:
        await table.play(
            R("r1", a, b, tok=40, request_id="one"),
            R("r2", a, tok=90, request_id="two", deny="a.tpm"),
            S("r1", Usage(20, 5)),
            R("r3", b, request_id="three"),
            C("r3"),
            R("r4", b, request_id="four"),
            X("r4"),
            P(a, 7, id="five"),
        )
        told = [(event.kind, event.request_id, event.keys) for event in table.events]
        assert told == [
            ("admitted", "one", ("a", "b")),
            ("refused", "two", ("a",)),
            ("settled", "one", ("a", "b")),
            ("admitted", "three", ("b",)),
            ("closed", "three", ("b",)),
            ("admitted", "four", ("b",)),
            ("cancelled", "four", ("b",)),
            ("post_stream", "five", ("a",)),
        ]
        admitted, refused, settled, *_, added = table.events
        assert all(type(event) is Event for event in table.events)
        assert admitted.asked["tokens"] == 40
        assert [denial.used for denial in refused.denials] == [40]
        assert refused.asked["tokens"] == 90
        assert (settled.used["tokens"], settled.used["input_tokens"]) == (25, 20)
        assert added.used == {"tokens": 7}
        assert not any(event.denials for event in table.events if event.kind != "refused")
        with pytest.raises(FrozenInstanceError):
            admitted.kind = "refused"  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue]


async def test_an_observer_cannot_change_what_it_hears_of() -> None:
    """The record is frozen through and through: what is given back comes from what was written down (C13)."""
    scope = key(tpm=100)

    meddled: list[tuple[Any, dict[str, int]]] = []

    def meddle(event: Event) -> None:
        for amounts in (cast("dict[str, int]", event.asked), cast("dict[str, int]", event.used)):
            before = dict(amounts)
            amounts["tokens"] = 99
            meddled.append((amounts, before))

    async with Table() as table:
        limiter = Limiter(table.backend, observers=(meddle,))
        try:
            table.handles["closed"] = closed = await limiter.pre_commit(scope)
            table.handles["settled"] = settled = await limiter.pre_commit(scope, tokens=40)
            assert dict(settled.held) == {"tokens": 40}
            assert await closed.close_reserved_only()
            assert await settled.settle_success(30)
            await limiter.add_tokens_post_stream(scope, 5)
            await table.play(used("key.tpm", 35, scope=scope))
        finally:
            for amounts, before in reversed(meddled):  # so that a failure here fails no other test
                amounts.clear()
                amounts.update(before)


@pytest.mark.parametrize("error", [LookupError, asyncio.CancelledError, GeneratorExit])
async def test_an_observer_that_raises_is_logged_and_disturbs_nobody(
    caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    """The request goes on, and the other observers hear of it."""
    heard: list[str] = []

    def broken(event: Event) -> None:
        raise error(event.kind)

    limiter = Limiter(observers=(broken, lambda event: heard.append(event.kind), broken))
    one = key(rpm=1)
    with caplog.at_level(logging.ERROR, logger="earmark"):
        reservation = await limiter.pre_commit(one)
        with pytest.raises(RateLimited):
            await limiter.pre_commit(one)
        assert await reservation.close_reserved_only()
    assert heard == ["admitted", "refused", "closed"]
    assert len(caplog.records) == 6
    assert all(record.exc_info for record in caplog.records)


async def test_an_observer_may_look_at_the_limiter_s_backend() -> None:
    """Observers are called outside the library's own lock: looking from one is no deadlock."""
    backend = MemoryBackend()
    sizes: list[int] = []
    limiter = Limiter(backend, observers=(lambda _: sizes.append(backend.size()),))
    reservation = await limiter.pre_commit(key(rpm=5))
    assert await reservation.cancel()
    assert len(sizes) == 2


# Disabled


async def test_b46_a_disabled_limiter_admits_everything() -> None:
    """B46: no limiter configured: every call is a no-op and always admits."""
    nothing = key("nothing", rpm=0, tpm=0, concurrency=0)
    limiter = Limiter.disabled()
    with quiet():
        for verb in VERBS:
            reservation = await limiter.pre_commit(
                nothing, tokens=10**6, amounts={"images": 9}, lease=5
            )
            assert reservation.state == "open"
            await resolve(reservation, verb)
            assert reservation.state == VERBS[verb]
        async with await limiter.pre_commit(nothing, tokens=5) as reservation:
            await reservation.renew()
        reservation = await limiter.pre_commit(nothing)
        await limiter.settle_success(reservation, Usage(5, 5))
        await limiter.add_tokens_post_stream("nothing", 10**6)
        await limiter.add_tokens_post_stream(nothing, Usage(5, 5), request_id="q")
        await limiter.reset(nothing)
        await limiter.aclose()
    assert await limiter.peek(nothing) == (ScopeStatus("nothing", ()),)


async def test_b46_a_disabled_limiter_still_finds_bad_calls() -> None:
    """B46: what would be an error with limits is one without: turning them on must hold no surprise."""
    limiter = Limiter.disabled()
    with pytest.raises(ValueError, match="tokens"):
        await limiter.pre_commit(key(rpm=5), tokens=-1)
    with pytest.raises(ValueError, match="twin"):
        await limiter.pre_commit(key("twin"), key("twin"))


# Making and closing one


async def test_the_default_is_memory() -> None:
    """Limiter() works out of the box: its own memory, by the wall clock."""
    async with Limiter() as limiter:
        scope = key(rpd=1)
        reservation = await limiter.pre_commit(scope)
        with pytest.raises(RateLimited) as caught:
            await limiter.pre_commit(scope)
        assert caught.value.retry_after is not None
        assert 0 < caught.value.retry_after <= 86_400
        assert await limiter.settle_success(reservation, 5) is True
        assert (await limiter.peek(scope))[0]["requests"].remaining == 0


async def test_two_limiters_on_one_backend_share_and_two_backends_do_not() -> None:
    """What counts is the backend."""
    clock, scope = ManualClock(), key(rpm=1)
    backend = MemoryBackend(clock=clock)
    one, two, three = Limiter(backend), Limiter(backend), Limiter(MemoryBackend(clock=clock))
    reservation = await one.pre_commit(scope)
    with pytest.raises(RateLimited):
        await two.pre_commit(scope)
    other = await three.pre_commit(scope)
    assert await two.cancel(reservation) is True
    assert await two.settle_success(await two.pre_commit(scope), 1) is True
    assert await three.cancel(other) is True


@pytest.mark.parametrize("thing", ["redis://user:secret@host", MemoryBackend, 5])
def test_what_is_no_backend_is_told_at_once(thing: Any) -> None:
    """The most likely mistake, a URL, is told what takes one; its password is not shown."""
    with pytest.raises(
        TypeError, match=r"Limiter takes a backend, .* RedisBackend\.from_url"
    ) as raised:
        Limiter(thing)
    assert "secret" not in str(raised.value)


async def test_verbs_take_reservations() -> None:
    """Or their tokens; anything else is an error that shows it."""
    limiter = Limiter()
    for thing, error in ((7.5, TypeError), ("not-one", ValueError)):
        for verb in ("close_reserved_only", "abandon", "cancel"):
            with pytest.raises(error, match=str(thing)):
                await getattr(limiter, verb)(thing)
        with pytest.raises(error, match=str(thing)):
            await limiter.settle_success(thing, 5)  # type: ignore[arg-type]


async def test_a_lease_of_the_backend_is_the_default() -> None:
    """MemoryBackend(lease=…) is what a reservation has that names none."""
    one = key(concurrency=1)
    await play(R("r1", one), N("r1", at=9.999999), N("r1", held=False, at=19.999999), lease=10)


async def test_handles_keep_no_limiter_alive_in_a_cycle() -> None:
    """A limiter that nobody holds is freed at once, without the collector."""
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(one, Limiter) for one in gc.get_objects())
        limiter = Limiter()
        assert await (await limiter.pre_commit(key(rpm=5, concurrency=1))).close_reserved_only()
        del limiter
        assert sum(isinstance(one, Limiter) for one in gc.get_objects()) == before
    finally:
        gc.enable()
