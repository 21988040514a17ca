"""The plain model: a list of everything that ever happened, from which every number is worked out afresh.

The library keeps a few numbers for each limit and changes them in place; that is where such systems went wrong (a
refund that erased somebody else's hold, C17; a counter whose end moved, C19, C20; an amount given back twice, C24,
C25). The model keeps no number at all. It is slow and knows nothing of how the library counts; it shares with it only
the contract's two formulas, whose double operations are part of the contract (R12): the weighted sum of a sliding
window and the refill of a bucket. `retry_after` and `reset_after` have no formula here: they are checked by what they
promise, just before and at their end.

Time is whole microseconds. Nothing here imports the library, `Usage` excepted, which is what a caller writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, TypeAlias

from earmark.testing.histories.values import (
    BARE,
    KEEP,
    MOST,
    SECOND,
    TOLERANCE,
    Asks,
    Counter,
    Debit,
    Entry,
    Hold,
    Line,
    Place,
    Refusal,
    Shown,
    Statuses,
    Used,
    asked,
    counter_of,
    known_of,
    named_by,
    within,
)
from earmark.usage import Usage

BucketState: TypeAlias = tuple[float, Entry]


class Model:
    """Everything that ever happened, and the questions that may be asked about it."""

    def __init__(self, lease: int = 60 * SECOND) -> None:
        self.now = 0
        self.lease = lease
        self.entries: dict[Counter, list[Entry]] = {}
        self.holds: list[Hold] = []
        self.add_ids: dict[tuple[str, str], int] = {}

    # What a counter comes to.

    def windows(self, counter: Counter) -> dict[int, int]:
        """What was counted in each window of a counter, by the window's number."""
        sums: dict[int, int] = {}
        for entry in self.entries.get(counter, ()):
            window = entry.window_at // counter.window
            if entry.kind == "reset":
                sums = {}
            elif entry.kind == "count":
                sums[window] = within(sums.get(window, 0) + entry.amount)
            else:
                sums[window] = within(sums.get(window, 0) - entry.amount)
        return sums

    def bucket_states(self, counter: Counter) -> Iterator[BucketState | None]:
        """What a bucket had in use after each of its writes, and that write; None where it was over."""
        state: BucketState | None = None
        for entry in self.entries.get(counter, ()):
            if entry.kind == "reset" or (state and entry.at >= self.end_of(state)):
                state = None
            before = self.refilled(state, entry.line, entry.at) if state else 0.0
            if entry.kind == "count":
                state = min(before + entry.amount, float(MOST)), entry
            elif entry.kind == "give" and state:
                state = max(before - entry.amount, 0.0), entry
            yield state

    def bucket(self, counter: Counter, at: int) -> BucketState | None:
        """What a bucket had in use after its last write, and that write; None where it is over at `at`."""
        *_, state = None, *self.bucket_states(counter)
        return None if state and at >= self.end_of(state) else state

    @staticmethod
    def refilled(state: BucketState, line: Line, at: int) -> float:
        """What is in use at `at`: it refills at the rate of the limit that asks."""
        level, last = state
        return max(0.0, level - float(at - last.at) * line.amount / line.window)

    @staticmethod
    def end_of(state: BucketState) -> int:
        """A bucket is over once it is full, but not within a window of its last write.

        One that never refills counts for that window.
        """
        level, last = state
        full = math.ceil(level * last.line.window / last.line.amount) if last.line.amount else 0
        return last.at + max(last.line.window, full)

    def rounded(self, state: BucketState, line: Line, at: int) -> int:
        """What a bucket has in use, rounded up."""
        largest = max(float(line.amount), state[0])
        return within(math.ceil(self.refilled(state, line, at) - largest * TOLERANCE))

    def used(self, key: str, line: Line, at: int) -> int:
        """What is used of a limit at `at`, if nothing happens until then."""
        if line.metric == "concurrency":
            return sum(hold.holds_slot(key, at) for hold in self.holds)
        counter = counter_of(key, line)
        if line.algorithm == "token_bucket":
            state = self.bucket(counter, at)
            return self.rounded(state, line, at) if state else 0
        sums = self.windows(counter)
        window = at // line.window
        current, previous = sums.get(window, 0), sums.get(window - 1, 0)
        if line.algorithm == "fixed_window":
            return current
        left = line.window - at % line.window
        weighted = float(current) + float(previous) * (left / line.window)
        largest = max(float(line.amount), float(current + previous))
        return within(math.ceil(weighted - largest * TOLERANCE))

    def admits(self, key: str, line: Line, ask: int, at: int) -> bool:
        """R1, for one limit."""
        return self.used(key, line, at) + max(ask, 1) <= line.capacity

    def counts(self, counter: Counter, at: int) -> Entry | None:
        """The last write of a counter whose state still counts at `at` (R8), however little it was."""
        if counter.algorithm == "token_bucket":
            state = self.bucket(counter, at)
            return state[1] if state else None
        alive = None
        windows = 1 if counter.algorithm == "fixed_window" else 2
        for entry in self.entries.get(counter, ()):
            if entry.kind == "reset":
                alive = None
            elif (
                entry.kind == "count"
                and entry.at // counter.window > at // counter.window - windows
            ):
                alive = entry
        return alive

    def size(self) -> int:
        """What is to be remembered: what still counts, keys with slots, open reservations, ids of additions."""
        kept = [counter for counter in self.entries if self.counts(counter, self.now)]
        holds = [h for h in self.holds if h.is_open(self.now) and any(p.lines for p in h.places)]
        slots = {p.key for hold in holds for p in hold.places if hold.holds_slot(p.key, self.now)}
        ids = [end for end in self.add_ids.values() if end > self.now]
        return len(kept) + len(holds) + len(slots) + len(ids)

    def buckets_just_over(self) -> int:
        """How many buckets are over since the last multiple of their window: they may be kept until the next."""
        just_over = 0
        for counter in self.entries:
            state = self.bucket(counter, -1) if counter.algorithm == "token_bucket" else None
            end = self.end_of(state) if state else 0
            just_over += (
                end <= self.now < (end // counter.window + 1) * counter.window if end else 0
            )
        return just_over

    # What is done.

    def write(
        self, kind: Literal["count", "give"], key: str, line: Line, amount: int, taken: int
    ) -> None:
        """Add one entry at the present time."""
        entries = self.entries.setdefault(counter_of(key, line), [])
        entries.append(Entry(kind, self.now, amount, taken, line))

    def pre_commit(
        self, places: tuple[Place, ...], asks: Asks, request_id: str, lease: int | None = None
    ) -> Hold | list[Refusal] | Literal["conflict"]:
        """Admit, refuse, or find the open reservation of that id."""
        for hold in self.holds:
            if hold.request_id == request_id and hold.is_open(self.now):
                same = hold.asks == asks and {p.key for p in hold.places} == {p.key for p in places}
                return hold if same else "conflict"
        refusals = [
            Refusal(place, line, self.used(place.key, line, self.now), ask)
            for place in places
            for line, ask in asked(place, asks)
            if not self.admits(place.key, line, ask, self.now)
        ]
        if any(refusal.place.enforce for refusal in refusals):
            return [refusal for refusal in refusals if refusal.place.enforce]
        lease = self.lease if lease is None else lease
        # Without any limit there is nothing to keep, and nothing that could be forgotten (B10).
        keep = self.now + KEEP if any(place.lines for place in places) else math.inf
        hold = Hold(request_id, places, asks, self.now, lease, self.now + lease, keep)
        self.holds.append(hold)
        for place in places:
            for line, ask in asked(place, asks):
                if line.metric != "concurrency":
                    self.write("count", place.key, line, ask, self.now)
                    entries = len(self.entries[counter_of(place.key, line)])
                    hold.debits.append(Debit(place, line, ask, self.now, entries))
        refused = {(refusal.place.key, refusal.line) for refusal in refusals}
        hold.statuses = self.peek(places, refused)
        return hold

    def peek(
        self, places: tuple[Place, ...], refused: set[tuple[str, Line]] | None = None
    ) -> Statuses:
        """What each limit shows. `refused` is what would have refused the request; None: ask for nothing."""

        def shown(key: str, line: Line) -> Shown:
            used = self.used(key, line, self.now)
            would = used + 1 > line.capacity if refused is None else (key, line) in refused
            return Shown(line, used, max(line.capacity - used, 0), would)

        return tuple((p.key, tuple(shown(p.key, line) for line in p.lines)) for p in places)

    def charge(self, key: str, line: Line, amount: int) -> None:
        """Count at the present time, whatever the limit."""
        self.write("count", key, line, amount, self.now)

    def give_back(self, debit: Debit, amount: int) -> None:
        """Give back to the window in which it was taken, where that still counts (R6)."""
        counter = counter_of(debit.place.key, debit.line)
        later = self.entries[counter][debit.entries :]
        if any(entry.kind == "reset" for entry in later):
            return
        ago = self.now // counter.window - debit.at // counter.window
        if counter.algorithm == "token_bucket":
            reachable = self.bucket(counter, self.now) is not None
        else:
            reachable = ago <= (0 if counter.algorithm == "fixed_window" else 1)
        if reachable:
            self.write("give", debit.place.key, debit.line, amount, debit.at)

    def settle(self, hold: Hold, used: Used) -> bool:
        """True up to what was used (R6)."""
        if not hold.is_open(self.now):
            return False
        named, known = named_by(used), known_of(used)
        for debit in hold.debits:
            metric = debit.line.metric
            if metric == "requests":
                continue
            delta = named.get(metric, max(debit.amount, known.get(metric, 0))) - debit.amount
            if delta > 0:
                self.charge(debit.place.key, debit.line, delta)
            elif delta < 0:
                self.give_back(debit, -delta)
        for place in hold.places:
            for line in place.lines:
                taken = line.metric in hold.asks or line.metric == "concurrency"
                if not taken and named.get(line.metric):
                    self.charge(place.key, line, named[line.metric])
        hold.state = "settled"
        return True

    def close(self, hold: Hold, state: Literal["closed", "abandoned"]) -> bool:
        """Free the slots and keep the debit (R7)."""
        if not hold.is_open(self.now):
            return False
        hold.state = state
        return True

    def cancel(self, hold: Hold) -> bool:
        """Free the slots and give everything back (R7)."""
        if not hold.is_open(self.now):
            return False
        for debit in hold.debits:
            if debit.amount:
                self.give_back(debit, debit.amount)
        hold.state = "cancelled"
        return True

    def renew(self, hold: Hold) -> bool:
        """Extend what is still held, revive nothing (R10)."""
        if not hold.is_open(self.now):
            return False
        hold.keep_until = max(hold.keep_until, self.now + KEEP)
        if self.now >= hold.slots_until:
            return not hold.has_slots()
        hold.slots_until = max(hold.slots_until, self.now + hold.lease)
        return True

    def enter(self, hold: Hold) -> None:
        """`async with`: from now on it renews itself, what has lapsed excepted."""
        if hold.is_open(self.now):
            hold.keep_until = math.inf
            if self.now < hold.slots_until:
                hold.slots_until = math.inf

    def add(self, target: str | Place, used: int | Usage, request_id: str | None = None) -> None:
        """Count tokens that no hold covers (R8)."""
        bare = isinstance(target, str)
        key = target if isinstance(target, str) else target.key
        used = max(used, 0) if isinstance(used, int) else used
        named = {m: n for m, n in named_by(used).items() if n and (m == "tokens" or not bare)}
        reach = self.bare_lines(key) if isinstance(target, str) else iter(target.lines)
        lines = [line for line in reach if line.metric in named]
        if not lines:
            return
        if request_id is not None:
            if self.now < self.add_ids.get((key, request_id), 0):
                return
            self.add_ids[key, request_id] = self.now + KEEP
        for line in lines:
            self.charge(key, line, named[line.metric])

    def bare_lines(self, key: str) -> Iterator[Line]:
        """What a bare key reaches: three fixed windows, and every other limit on tokens that still counts."""
        for window in BARE:
            yield Line("tokens", 0, window)
        for counter in list(self.entries):
            usual = counter.algorithm == "fixed_window" and counter.window in BARE
            if counter.key == key and counter.metric == "tokens" and not usual:
                last = self.counts(counter, self.now)
                if last:
                    yield last.line

    def reset(self, places: tuple[Place, ...]) -> None:
        """Forget what the scopes have used, but not their slots."""
        for place in places:
            for line in place.lines:
                entries = self.entries.get(counter_of(place.key, line))
                if entries:
                    entries.append(Entry("reset", self.now))
