"""What holds of every limit whatever is asked: R1–R4, R6, R7, R12, R14 as laws, and their counterexamples as rows.

A law needs no model: it says of the answers alone how they belong together. Each is tried with the usual small numbers
and with the largest (2**53 − 1), on windows from a microsecond to a year, since it is in the rounding that a limit that
looks right admits one too many, or tells a client to come back a microsecond too early, which it then does (C17, R3).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple, Self

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from earmark import Limit, Limiter, Limits, MemoryBackend, RateLimited, Reservation, Scope
from earmark.core.admission import admits, statuses
from earmark.core.fixed_window import FixedWindow
from earmark.testing import ManualClock
from earmark.testing.histories.drawing import histories
from earmark.testing.histories.steps import History, Step, Wait
from earmark.testing.histories.translation import by_hand, us_of
from earmark.testing.histories.values import MOST
from tests.driver import Driver
from tests.scale import examples

YEAR: Final = 31_536_000_000_000
START: Final = 1_000_000_000_007
# A wait beyond this is not gone through: the seconds of the clock would no longer tell microseconds apart.
FAR: Final = 2**50

windows = st.sampled_from((1, 2, 3, 1_000_000, 7_000_001, 60_000_000, 86_400_000_000, YEAR))
windows |= st.integers(1, YEAR)
amounts = st.integers(1, 30) | st.integers(1, MOST) | st.sampled_from((1, MOST - 1, MOST))
algorithms = st.sampled_from(("fixed_window", "sliding_window", "token_bucket"))
fractions = st.integers(0, 1_000)


class Bench:
    """A limiter on a clock of whole microseconds, and one scope with one limit on tokens."""

    def __init__(self, *limits: Limit, now: int = START) -> None:
        self.us = now
        self.clock = ManualClock(now / 1e6)
        self.backend = MemoryBackend(clock=self.clock)
        self.limiter = Limiter(self.backend)
        self.scope = Scope("key", Limits(also=limits))
        self.handles: list[Reservation] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Resolve what is open, so that a failure is not buried under warnings about dropped handles."""
        for handle in self.handles:
            by_hand(handle.abandon())

    def at(self, us: int) -> None:
        """Set the time."""
        self.us = us
        self.clock.set(us / 1e6)

    def ask(self, tokens: int) -> Reservation | RateLimited:
        """Ask for tokens."""
        try:
            handle = by_hand(self.limiter.pre_commit(self.scope, tokens=tokens))
        except RateLimited as refused:
            return refused
        self.handles.append(handle)
        return handle

    def take(self, tokens: int) -> bool:
        """Ask for tokens, and keep the debit of what was admitted."""
        answer = self.ask(tokens)
        return isinstance(answer, Reservation) and by_hand(answer.close_reserved_only())

    def count(self, tokens: int) -> None:
        """Count tokens, whatever the limit."""
        by_hand(self.limiter.add_tokens_post_stream(self.scope, tokens))

    def seen(self) -> Any:
        """Everything that shows, and how much is kept."""
        return by_hand(self.limiter.peek(self.scope)), self.backend.size()

    def used(self) -> int:
        """What is used of the only limit."""
        return by_hand(self.limiter.peek(self.scope))[0].limits[0].used


def limit(amount: int, window: int, algorithm: str, burst: int | None = None) -> Limit:
    """A limit on tokens; `window` in microseconds, a burst for buckets alone."""
    burst = burst if algorithm == "token_bucket" else None
    return Limit("tokens", amount, window / 1e6, algorithm, burst)  # type: ignore[arg-type]


class Used(NamedTuple):
    """A limit of which something is used: counts, thousandths of a window before each, and a wait after them."""

    algorithm: str
    amount: int
    window: int
    burst: int | None = None
    before: Sequence[tuple[int, int]] = ()
    wait: int = 0

    @property
    def limit(self) -> Limit:
        """The limit."""
        return limit(self.amount, self.window, self.algorithm, self.burst)

    def bench(self) -> Bench:
        """A limiter on which all of this has happened."""
        bench = Bench(self.limit)
        for gap, counted in self.before:
            bench.at(bench.us + gap * self.window // 1_000)
            bench.count(counted)
        bench.at(bench.us + self.wait * self.window // 1_000)
        return bench


used = st.builds(
    Used,
    algorithms,
    amounts,
    windows,
    st.none() | amounts,
    st.lists(st.tuples(fractions, amounts), max_size=4),
    fractions,
)


def traffic(gap: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Asks with the microseconds that pass before each."""
    return st.lists(st.tuples(st.integers(0, gap), st.integers(0, 12)), max_size=40)


# Never more than the limit.


@settings(max_examples=examples(300))
@given(st.integers(1, 30), st.sampled_from((1, 7, 1_000, 60_000_000)), traffic(2_000), algorithms)
def test_never_more_than_the_limit_in_a_window(
    amount: int, window: int, asks: list[tuple[int, int]], algorithm: str
) -> None:
    """R1: what is admitted in one window of a fixed window never exceeds the amount, nor in a sliding window's own."""
    assume(algorithm != "token_bucket")
    bench = Bench(limit(amount, window, algorithm))
    admitted: dict[int, int] = {}
    for gap, tokens in asks:
        bench.at(bench.us + gap * max(1, window // 1_000))
        if bench.take(tokens):
            number = bench.us // window
            admitted[number] = admitted.get(number, 0) + tokens
    assert max(admitted.values(), default=0) <= amount


@settings(max_examples=examples(300))
@given(
    st.integers(1, 30), st.integers(1, 60), st.sampled_from((7, 1_000, 1_000_000)), traffic(1_000)
)
def test_never_more_than_burst_and_refill(
    amount: int, burst: int, window: int, asks: list[tuple[int, int]]
) -> None:
    """R1: a bucket admits over any interval at most its burst and what refills in that time."""
    bench = Bench(limit(amount, window, "token_bucket", burst))
    admitted: list[tuple[int, int]] = []
    for gap, tokens in asks:
        bench.at(bench.us + gap * max(1, window // 1_000))
        if bench.take(tokens):
            admitted.append((bench.us, tokens))
    rounding = Fraction(len(asks), 2**40)
    for first, last in itertools.combinations_with_replacement(range(len(admitted)), 2):
        total = sum(tokens for _, tokens in admitted[first : last + 1])
        time = admitted[last][0] - admitted[first][0]
        assert total <= burst + Fraction(amount * time, window) + rounding


@settings(max_examples=examples(300))
@given(st.integers(0, 4), st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30))
def test_never_more_slots_than_the_limit(places: int, steps: list[tuple[int, bool]]) -> None:
    """R1: there are never more live slots than the limit allows, and none is lost either."""
    with Bench(Limit("concurrency", places)) as bench:
        live: list[Reservation] = []
        for number, free in steps:
            if free and live:
                assert by_hand(live.pop(number % len(live)).close_reserved_only())
                continue
            answer = bench.ask(0)
            assert isinstance(answer, Reservation) is (len(live) < places)
            live += [answer] if isinstance(answer, Reservation) else []
        assert bench.used() == len(live)
        assert all(by_hand(one.cancel()) for one in live)


# A refusal changes nothing.


@settings(max_examples=examples(150))
@given(histories(20))
def test_a_refusal_changes_nothing(history: History) -> None:
    """R2: a history without its refused requests ends in the same state, which reads the same for ever after."""
    whole = Driver(history.offers)
    admitted: list[Step] = []
    for step in history.steps:
        refused, us = len(whole.refused), whole.us
        whole.step(step)
        if len(whole.refused) == refused:
            admitted.append(step if us == whole.us else Wait(whole.us - us))
    without = Driver(history.offers)
    for step in admitted:
        without.step(step)
    for later in (0, 1, 1_000_000, 59_000_000, 3_600_000_000, 86_400_000_000):
        whole.set_clock(whole.us + later)
        without.set_clock(whole.us)
        assert without.look() == whole.look()
    whole.end()
    without.end()
    assert whole.backend.size() == without.backend.size() == 0


# retry_after is tight.


@settings(max_examples=examples(1_500))
@example(Used("sliding_window", 100, YEAR, None, [(1, 100)], 1), 10)
@example(Used("token_bucket", MOST, 1, MOST, [(0, MOST)]), MOST)
@given(used, amounts)
def test_retry_after_is_tight_on_both_sides(case: Used, tokens: int) -> None:
    """R3: after exactly `retry_after` the same ask is admitted; a microsecond earlier it is refused."""
    bench = case.bench()
    answer = bench.ask(tokens)
    if isinstance(answer, Reservation):
        assert by_hand(answer.cancel())
        return
    (denial,) = answer.denials
    assert answer.retryable is (tokens <= case.limit.capacity)
    if not answer.retryable:
        assert (answer.retry_after, denial.retry_after) == (None, None)
        return
    assert denial.retry_after == answer.retry_after
    assert answer.retry_after is not None
    wait, now = us_of(answer.retry_after), bench.us
    assert wait >= 1
    if wait < FAR:
        bench.at(now + wait - 1)
        assert isinstance(bench.ask(tokens), RateLimited)
        bench.at(now + wait)
        assert bench.take(tokens)


@settings(max_examples=examples(700))
@given(used)
def test_reset_after_is_when_nothing_is_used(case: Used) -> None:
    """R3: after exactly `reset_after` nothing is used, a microsecond earlier something is (a fixed window: its end)."""
    bench = case.bench()
    status = by_hand(bench.limiter.peek(bench.scope))[0].limits[0]
    assert status.reset_after is not None
    wait, now = us_of(status.reset_after), bench.us
    if case.algorithm == "fixed_window":
        assert wait == case.window - now % case.window
    elif wait == 0:
        assert status.used == 0
    elif wait < FAR:
        bench.at(now + wait - 1)
        assert bench.used() > 0
        bench.at(now + wait)
        assert bench.used() == 0


@settings(max_examples=examples(100))
@given(
    amounts | st.just(0),
    windows,
    amounts | st.just(0),
    st.integers(0, 2**52),
    st.none() | amounts | st.just(0),
)
def test_a_status_of_a_fixed_window_is_what_its_rules_say(
    amount: int, window: int, used: int, at: int, ask: int | None
) -> None:
    """R1, R12: `statuses` writes the arithmetic out, and says what `FixedWindow` does, to the last unit."""
    limit = Limit("tokens", amount, window / 1e6)
    rules, asks = FixedWindow(), None if ask is None else {"tokens": ask}
    ((status,),) = (
        one.limits for one in statuses((Scope("k", Limits(also=[limit])),), asks, [used], at)
    )
    left = used if ask is None else rules.debit(limit, used, ask, at)
    assert status.used == rules.used(limit, left, at, at)
    assert status.remaining == max(limit.capacity - left, 0)
    assert status.would_refuse == (not admits(limit, used, ask or 0))
    assert status.reset_after == (rules.resets_at(limit, left, at) - at) / 1_000_000


# What was debited is what counts, until it is trued up.

resolutions = st.one_of(
    st.tuples(st.just("settle_success"), st.integers(0, 20)),
    st.tuples(st.sampled_from(("close_reserved_only", "abandon", "cancel")), st.just(0)),
)


def final(held: int, verb: str, actual: int) -> int:
    """What one reservation comes to once it is resolved."""
    return {"settle_success": actual, "cancel": 0}.get(verb, held)


def resolve(one: Reservation, verb: str, actual: int) -> None:
    """Resolve, once."""
    assert by_hand(getattr(one, verb)(*([actual] if verb == "settle_success" else [])))


@settings(max_examples=examples(300))
@given(
    algorithms,
    st.lists(st.tuples(st.integers(0, 20), resolutions), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_order_of_resolvers_and_conservation(
    algorithm: str, holds: list[tuple[int, tuple[str, int]]], order: Any
) -> None:
    """R5–R7: in whatever order reservations are resolved, what counts at the end is the sum of what each came to."""
    with Bench(limit(1_000, 60_000_000, algorithm), Limit("requests", 1_000, 60)) as bench:
        open_ = [(bench.ask(held), verb, actual) for held, (verb, actual) in holds]
        order.shuffle(open_)
        for one, verb, actual in open_:
            assert isinstance(one, Reservation)
            resolve(one, verb, actual)
            assert not by_hand(one.settle_success(7))
        tokens, requests = by_hand(bench.limiter.peek(bench.scope))[0].limits
        assert tokens.used == sum(final(held, verb, actual) for held, (verb, actual) in holds)
        assert requests.used == sum(verb != "cancel" for _, (verb, _) in holds)


@settings(max_examples=examples(300))
@given(
    st.sampled_from(("fixed_window", "sliding_window")),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), resolutions), min_size=1, max_size=8),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_order_of_resolvers_after_their_windows(
    algorithm: str, holds: list[tuple[int, int, tuple[str, int]]], later: int, order: Any
) -> None:
    """R6: nor does the order matter where windows end between the holds and their resolution."""
    ends = []
    for shuffled in (False, True):
        open_ = []
        with Bench(limit(1_000, 60_000_000, algorithm)) as bench:
            for gap, held, (verb, actual) in holds:
                bench.at(bench.us + gap * 20_000_000)
                open_.append((bench.ask(held), verb, actual))
            bench.at(bench.us + later * 30_000_000)
            if shuffled:
                order.shuffle(open_)
            for one, verb, actual in open_:
                assert isinstance(one, Reservation)
                resolve(one, verb, actual)
            ends.append(bench.seen())
    assert ends[0] == ends[1]


@settings(max_examples=examples(300))
@given(used, fractions)
def test_settling_the_estimate_changes_nothing(case: Used, wait: int) -> None:
    """R6: a settlement of exactly what is held changes no counter; only its record goes."""
    with case.bench() as bench:
        one = bench.ask(case.amount // 2)
        assume(isinstance(one, Reservation))
        assert isinstance(one, Reservation)
        bench.at(bench.us + min(wait * case.window // 1_000, 3_000_000_000))
        statuses, size = bench.seen()
        assert by_hand(one.settle_success(case.amount // 2))
        assert bench.seen() == (statuses, size - 1)


# Rows.


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "token_bucket"])
def test_counters_saturate(algorithm: str) -> None:
    """R12: a counter stops at 2**53 − 1, and is exact up to there."""
    bench = Bench(limit(MOST, 60_000_000, algorithm), now=60_000_000)
    bench.count(MOST - 40)
    assert bench.used() == MOST - 40 - (32 if algorithm != "fixed_window" else 0)
    bench.count(MOST)
    assert bench.used() >= MOST - 32
    assert by_hand(bench.limiter.peek(bench.scope))[0].limits[0].remaining <= 32
    assert isinstance(bench.ask(40), RateLimited)


def test_no_limits_nothing_kept() -> None:
    """B10: without limits everything is admitted, and nothing is kept of it once it is resolved."""
    with Bench() as bench:
        for number in range(100):
            answer = bench.ask(1_000)
            assert isinstance(answer, Reservation)
            resolve(answer, ("settle_success", "cancel", "abandon")[number % 3], 5)
            bench.count(500)
        assert bench.seen() == (by_hand(bench.limiter.peek(bench.scope)), 0)
