"""Random histories of `once` and its attempts, through the library and through a plain model, step by step.

The model knows windows of requests and tokens, and slots; it has neither messages nor parts. What it says of a request
with several attempts is what DESIGN.md says: debited once with the first attempt that is admitted, settled by the
first settlement, added to by later ones, kept where nobody settles, given back where all of it was cancelled.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earmark import Limiter, Limits, MemoryBackend, RateLimited, RedisBackend, Scope
from earmark.testing import ManualClock
from tests.reached import Reached
from tests.scale import examples
from tests.servers import RedisServer
from tests.streams.toys import DONE, SAY, USAGE, Toy

HISTORIES: Final = 400
ON_REDIS: Final = 60
STEPS: Final = 30

RPM, TPM, SLOTS = 6, 60, 3
KEYS: Final = ("user0", "user1", "p0", "p1", "p2")
REPORTED: Final = 12

MUST_MEET: Final = (
    "fixed refusal",
    "target refusal",
    "second attempt",
    "added settlement",
    "cancelled attempt",
    "handed over",
    "rollover",
)


class Do(NamedTuple):
    """One step: what is done, to which of the things that are there, and with which number."""

    what: str
    which: int
    number: int


WHAT: Final = (
    *("once", *6 * ("attempt",), *6 * ("settle",), *4 * ("stream",), *4 * ("stream ends",)),
    *("close", "abandon", "cancel", "leave", "fail", "cancelled", "cancel all"),
    *("stream closes", "stream drops", "drop", "clock", "clock", "clock"),
)
steps = st.lists(
    st.builds(Do, st.sampled_from(WHAT), st.integers(0, 5), st.integers(0, 61)),
    min_size=STEPS,
    max_size=STEPS,
)


@dataclass(eq=False)
class Debit:
    """What the model holds of one scope."""

    key: str
    window: int
    tokens: int
    open: bool = True


@dataclass
class Store:
    """What the model counts."""

    now: int = 0
    used: defaultdict[tuple[str, int], list[int]] = field(
        default_factory=lambda: defaultdict(lambda: [0, 0])
    )
    slots: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def window(self) -> int:
        return self.now // 60

    def look(self, key: str) -> list[int]:
        return [*self.used[key, self.window], self.slots[key]]

    def fits(self, key: str, tokens: int) -> bool:
        requests, used, slots = self.look(key)
        return requests < RPM and used + max(tokens, 1) <= TPM and slots < SLOTS

    def take(self, key: str, tokens: int) -> Debit:
        count = self.used[key, self.window]
        count[0] += 1
        count[1] += tokens
        self.slots[key] += 1
        return Debit(key, self.window, tokens)

    def resolve(self, debit: Debit, used: int | None, *, unsent: bool = False) -> bool:
        """None: what was held."""
        if not debit.open:
            return False
        debit.open = False
        self.slots[debit.key] -= 1
        over = 0 if used is None else used - debit.tokens
        if over > 0 or debit.window == self.window:
            self.used[debit.key, self.window][1] += over
        if unsent and debit.window == self.window:
            self.used[debit.key, self.window][0] -= 1
        return True


@dataclass(eq=False)
class Try:
    """One attempt, here and in the library."""

    one: One
    debit: Debit | None
    handle: Any
    stream: Any = None
    open: bool = True


@dataclass(eq=False)
class One:
    """One `once`, here and in the library."""

    key: str
    tokens: int
    once: Any
    refused: bool = False
    left: bool = False
    fixed: Debit | None = None
    settled: bool = False
    tries: list[Try] = field(default_factory=list)

    @property
    def has_parties(self) -> bool:
        return not self.left or any(one.stream and one.open for one in self.tries)


class Source:
    """Says something, reports 12 tokens, and ends."""

    def __init__(self) -> None:
        self._items = iter([SAY, USAGE, DONE])

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for item in self._items:
            return item
        raise StopAsyncIteration


async def refusal_of(once: Any, scopes: list[Scope]) -> tuple[Any, bool]:
    """What refuses an attempt, and whether that is final. Nothing keeps the error, which would keep the `once`."""
    try:
        await once.attempt(*scopes)
    except RateLimited as error:
        return error.denials, error is once.refused
    pytest.fail("it was admitted")


class Driver:
    """Plays a history on both."""

    def __init__(self, backend: Any, clock: ManualClock) -> None:
        self.clock = clock
        self.limiter = Limiter(backend)
        limits = Limits(rpm=RPM, tpm=TPM, concurrency=SLOTS)
        self.scopes = {key: Scope(key, limits) for key in KEYS}
        self.store = Store()
        self.ones: list[One] = []
        self.marks: set[str] = set()

    async def play(self, history: list[Do]) -> None:
        for step in history:
            await getattr(self, "do_" + step.what.replace(" ", "_"))(step)
            await self.check()
        for one in self.ones:
            for tried in one.tries:
                if tried.stream is not None and tried.open:
                    await self.end(tried, "stream closes")
            if not one.left:
                await self.leave(one, None)
        await self.check()
        assert not any(self.store.slots.values())
        await self.limiter.aclose()

    async def check(self) -> None:
        """The store shows what the model counts."""
        for status in await self.limiter.peek(*self.scopes.values()):
            assert [limit.used for limit in status.limits] == self.store.look(status.key)

    def one(self, step: Do) -> One | None:
        there = [one for one in self.ones if not one.left]
        return there[step.which % len(there)] if there else None

    def tried(self, step: Do, *, streamed: bool) -> Try | None:
        there = [
            tried
            for one in self.ones
            for tried in one.tries
            if (tried.stream is not None) == streamed and (streamed or not one.left)
        ]
        return there[-1 - step.which % len(there)] if there else None

    async def do_once(self, step: Do) -> None:
        key = KEYS[step.which % 2]
        once = self.limiter.once(self.scopes[key], tokens=step.number)
        self.ones.append(One(key, step.number, await once.__aenter__()))

    async def do_attempt(self, step: Do) -> None:
        one = self.one(step)
        if one is None:
            return await self.do_once(step)
        target = (None, *KEYS[2:])[step.number % 4]
        asked = [key for key in (one.key if one.fixed is None else None, target) if key]
        refused = [key for key in asked if not self.store.fits(key, one.tokens)]
        scopes = [self.scopes[target]] if target else []
        if one.refused or refused:
            denials, final = await refusal_of(one.once, scopes)
            if not one.refused:
                assert {denial.key for denial in denials} == set(refused)
                one.refused = one.key in refused
                self.marks.add("fixed refusal" if one.refused else "target refusal")
            assert final == one.refused
            return None
        handle = await one.once.attempt(*scopes)
        if one.tries:
            self.marks.add("second attempt")
        if one.fixed is None:
            one.fixed = self.store.take(one.key, one.tokens)
        debit = self.store.take(target, one.tokens) if target else None
        one.tries.append(Try(one, debit, handle))
        return None

    async def do_settle(self, step: Do) -> None:
        tried = self.tried(step, streamed=False)
        if tried is not None:
            assert await tried.handle.settle_success(step.number) == self.settle(tried, step.number)

    def settle(self, tried: Try, used: int) -> bool:
        one = tried.one
        if not tried.open:
            return False
        tried.open = False
        if tried.debit:
            self.see(tried.debit)
            self.store.resolve(tried.debit, used)
        assert one.fixed is not None
        if one.settled:
            self.marks.add("added settlement")
            self.store.used[one.key, self.store.window][1] += used
        else:
            self.see(one.fixed)
            one.settled = self.store.resolve(one.fixed, used)
        return True

    def see(self, debit: Debit) -> None:
        if debit.window != self.store.window:
            self.marks.add("rollover")

    def finish(self, tried: Try, *, unsent: bool = False) -> bool:
        """An attempt ends unsettled; the last who might settle what is shared leaves it as it is held."""
        if not tried.open:
            return False
        tried.open = False
        if tried.debit:
            self.store.resolve(tried.debit, 0 if unsent else None, unsent=unsent)
        if tried.stream is not None and not tried.one.has_parties:
            assert tried.one.fixed is not None
            self.store.resolve(tried.one.fixed, None)
        return True

    async def do_close(self, step: Do) -> None:
        tried = self.tried(step, streamed=False)
        if tried is not None:
            assert await tried.handle.close_reserved_only() == self.finish(tried)

    async def do_abandon(self, step: Do) -> None:
        tried = self.tried(step, streamed=False)
        if tried is not None:
            assert await tried.handle.abandon() == self.finish(tried)

    async def do_cancel(self, step: Do) -> None:
        tried = self.tried(step, streamed=False)
        if tried is not None:
            self.marks.add("cancelled attempt")
            assert await tried.handle.cancel() == self.finish(tried, unsent=True)

    async def do_leave(self, step: Do, error: BaseException | None = None) -> None:
        one = self.one(step)
        if one is not None:
            await self.leave(one, error)

    async def do_fail(self, step: Do) -> None:
        await self.do_leave(step, LookupError())

    async def do_cancelled(self, step: Do) -> None:
        await self.do_leave(step, asyncio.CancelledError())

    async def leave(self, one: One, error: BaseException | None) -> None:
        await one.once.__aexit__(None if error is None else type(error), error, None)
        self.over(one)

    def over(self, one: One, *, unsent: bool = False) -> None:
        one.left = True
        for tried in one.tries:
            if tried.stream is None:
                self.finish(tried, unsent=unsent)
        if one.fixed and not one.has_parties:
            self.store.resolve(one.fixed, 0 if unsent else None, unsent=unsent)

    async def do_cancel_all(self, step: Do) -> None:
        one = self.one(step)
        if one is None:
            return
        streams = any(tried.stream and tried.open for tried in one.tries)
        won = one.fixed is not None and one.fixed.open and not streams
        assert await one.once.cancel() == won
        self.over(one, unsent=True)

    async def do_stream(self, step: Do) -> None:
        tried = self.tried(step, streamed=False)
        if tried is None or not tried.open:
            return
        self.marks.add("handed over")
        tried.stream = tried.handle.stream(Source(), dialect=Toy)
        assert await anext(tried.stream) == SAY

    async def do_stream_ends(self, step: Do) -> None:
        await self.end(self.tried(step, streamed=True), step.what)

    async def do_stream_closes(self, step: Do) -> None:
        await self.end(self.tried(step, streamed=True), step.what)

    async def do_stream_drops(self, step: Do) -> None:
        await self.end(self.tried(step, streamed=True), step.what)

    async def end(self, tried: Try | None, how: str) -> None:
        if tried is None or not tried.open:
            return
        stream, tried.stream = tried.stream, True
        if how == "stream ends":
            assert [item async for item in stream] == [USAGE, DONE]
            tried.handle = None
            self.settle(tried, REPORTED)
            return
        if how == "stream closes":
            await stream.aclose()
        tried.handle = None
        del stream
        self.finish(tried)

    async def do_drop(self, step: Do) -> None:
        """R15: dropped while open; whatever of it was handed over stays."""
        one = self.one(step)
        if one is None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            one.once = None
            for tried in one.tries:
                if tried.stream is None:
                    tried.handle = None
        self.over(one)

    async def do_clock(self, step: Do) -> None:
        self.clock.advance(2 * step.number)
        self.store.now += 2 * step.number


def test_random_histories_in_memory() -> None:
    """R5, R6, R15, B41–B44, C28, C29: the library does what the plain model does."""
    reached = Reached("once")

    @settings(max_examples=examples(HISTORIES))
    @given(steps)
    def play(history: list[Do]) -> None:
        clock = ManualClock()
        driver = Driver(MemoryBackend(clock=clock), clock)
        asyncio.run(driver.play(history))
        assert not driver.limiter._backend.instant._book.open  # type: ignore[union-attr]
        reached.history(driver.marks)

    play()
    reached.require(0.03, MUST_MEET)


def test_random_histories_on_redis(shared_redis: RedisServer) -> None:
    """The same on a real server: a joint reserve and its parts are decided alike there."""
    reached = Reached("once on redis")
    client = shared_redis.client(db=3)

    @settings(max_examples=examples(ON_REDIS))
    @given(steps)
    def play(history: list[Do]) -> None:
        client.flushdb()

        async def run() -> set[str]:
            clock = ManualClock()
            backend = RedisBackend.from_url(
                f"{shared_redis.url}/3", clock=clock, lease=3_600.0, timeout=30.0
            )
            driver = Driver(backend, clock)
            await driver.play(history)
            return driver.marks

        reached.history(asyncio.run(run()))
        assert not [key for key in client.scan_iter() if b":r:" in key and not _grave(client, key)]

    play()


def _grave(client: Any, key: bytes) -> bool:
    return b"\n" not in (client.get(key) or b"")
