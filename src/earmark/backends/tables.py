"""Where the memory backend keeps the state of one limit for all keys.

A window's counts live in one dict that is dropped whole when the window is over, so that memory follows
the keys of the current windows without a background task and without an expiry per key (R14, C67). Every
state belongs to one (key, metric, window, algorithm): no marker is shared between limits (C19), and none is
renewed by a write (C20).
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Protocol, TypeVar

from earmark.amounts import MAX_AMOUNT
from earmark.core.admission import FIXED_WINDOW, SLIDING_WINDOW, SLOTS, TOKEN_BUCKET
from earmark.core.algorithm import Algorithm
from earmark.core.sliding_window import Counts
from earmark.core.token_bucket import Level, counts_until
from earmark.ids import Id
from earmark.limits import Limit

State = TypeVar("State")


class Table(Protocol[State]):
    """The states of all keys under one limit id, as they read since the last `turn`."""

    @property
    def counts(self) -> dict[str, int] | None:
        """Where the state of a key is a count that is also its use, all of them; None elsewhere.

        Whoever judges many limits reads and writes these directly: most limits are of this kind.
        """
        ...

    @property
    def rules(self) -> Algorithm[State]:
        """The arithmetic of the limit."""
        ...

    def look(self, key: str, now: int) -> State:
        """The state of `key`; unused where there is none that still counts."""
        ...

    def debit(self, key: str, holder: Id, limit: Limit, amount: int, now: int) -> None:
        """Use `amount` more, whatever the limit; a key that was not there is there afterwards."""
        ...

    def __len__(self) -> int:
        """How many states are kept; takes its time."""
        ...


class WindowTable(Table[State], Protocol[State]):
    """A table whose debits can be given back by amount, and whose states end as time goes on."""

    def give_back(self, key: str, limit: Limit, amount: int, taken: int, now: int) -> None:
        """Give back `amount` of what was debited at `taken`; a key that is not there is not made."""
        ...

    def counted(self, key: str, now: int) -> Limit | None:
        """The limit under which `key` still counts, with the amount that a write needs; None: it does not."""
        ...

    def forget(self, key: str) -> None:
        """Drop the state of `key`."""
        ...

    def empty(self) -> bool:
        """Whether no state is kept."""
        ...

    def turn(self, now: int) -> int:
        """Drop what no longer matters; return the moment of the next turn."""
        ...


def end_of_window(limit: Limit, now: int) -> int:
    """When the window that `now` lies in is over."""
    return now - now % limit.window_us + limit.window_us


class FixedTable:
    """Counts of the current window: the commonest limit by far, so its arithmetic is written out.

    It is that of `FixedWindow`, against which it is tested.
    """

    rules = FIXED_WINDOW

    def __init__(self, limit: Limit, now: int) -> None:
        self._limit = limit
        self.counts: dict[str, int] = {}
        self._end = end_of_window(limit, now)
        self._start = self._end - limit.window_us

    def look(self, key: str, now: int) -> int:
        return self.counts.get(key, 0)

    def debit(self, key: str, holder: Id, limit: Limit, amount: int, now: int) -> None:
        count = self.counts.get(key, 0) + amount
        self.counts[key] = min(count, MAX_AMOUNT)

    def give_back(self, key: str, limit: Limit, amount: int, taken: int, now: int) -> None:
        count = self.counts.get(key)
        if count is not None and taken >= self._start:
            self.counts[key] = count - amount if count >= amount else 0

    def counted(self, key: str, now: int) -> Limit | None:
        return self._limit if key in self.counts else None

    def forget(self, key: str) -> None:
        self.counts.pop(key, None)

    def empty(self) -> bool:
        return not self.counts

    def turn(self, now: int) -> int:
        if now >= self._end:
            self.counts = {}
            self._end = end_of_window(self._limit, now)
            self._start = self._end - self._limit.window_us
        return self._end

    def __len__(self) -> int:
        return len(self.counts)


class SlidingTable:
    """Counts of the current window and of the previous one."""

    rules = SLIDING_WINDOW
    counts = None

    def __init__(self, limit: Limit, now: int) -> None:
        self._limit = limit
        self._current: dict[str, int] = {}
        self._previous: dict[str, int] = {}
        self._end = end_of_window(limit, now)

    def look(self, key: str, now: int) -> Counts:
        return (self._current.get(key, 0), self._previous.get(key, 0))

    def debit(self, key: str, holder: Id, limit: Limit, amount: int, now: int) -> None:
        self._current[key], _ = SLIDING_WINDOW.debit(limit, self.look(key, now), amount, now)

    def give_back(self, key: str, limit: Limit, amount: int, taken: int, now: int) -> None:
        state = self.look(key, now)
        current, previous = SLIDING_WINDOW.give_back(limit, state, amount, taken, now)
        if key in self._current:
            self._current[key] = current
        if key in self._previous:
            self._previous[key] = previous

    def counted(self, key: str, now: int) -> Limit | None:
        return self._limit if key in self._current or key in self._previous else None

    def forget(self, key: str) -> None:
        self._current.pop(key, None)
        self._previous.pop(key, None)

    def empty(self) -> bool:
        return not self._current and not self._previous

    def turn(self, now: int) -> int:
        if now >= self._end:
            consecutive = now < self._end + self._limit.window_us
            self._previous = self._current if consecutive else {}
            self._current = {}
            self._end = end_of_window(self._limit, now)
        return self._end

    def __len__(self) -> int:
        return len(self._current.keys() | self._previous.keys())


class BucketTable:
    """Levels, each kept until it no longer matters.

    A key is looked at again when it would be full; if it was written since, it is put off to its new time. So
    a turn only looks at what is due.
    """

    rules = TOKEN_BUCKET
    counts = None

    def __init__(self, limit: Limit, now: int) -> None:
        self._limit = limit
        self._levels: dict[str, Level] = {}
        self._reviews: dict[str, int] = {}  # key -> when it is looked at again
        self._due: dict[int, set[str]] = {}  # the same by moment
        self._moments: list[int] = []  # a heap

    def look(self, key: str, now: int) -> Level:
        return self._levels.get(key) or TOKEN_BUCKET.unused()

    def debit(self, key: str, holder: Id, limit: Limit, amount: int, now: int) -> None:
        before = self.look(key, now)
        level = self._levels[key] = TOKEN_BUCKET.debit(limit, before, amount, now)
        if level[2] != before[2] or key not in self._reviews:  # else it ends no sooner than it did
            self._review(key, level)

    def give_back(self, key: str, limit: Limit, amount: int, taken: int, now: int) -> None:
        if self._counts(key, now):
            level = TOKEN_BUCKET.give_back(limit, self._levels[key], amount, taken, now)
            self._levels[key] = level
            self._review(key, level)

    def counted(self, key: str, now: int) -> Limit | None:
        if not self._counts(key, now):
            return None
        return replace(self._limit, amount=self._levels[key][2], burst=None)

    def _counts(self, key: str, now: int) -> bool:
        level = self._levels.get(key)
        return level is not None and counts_until(level, self._limit.window_us) > now

    def forget(self, key: str) -> None:
        self._levels.pop(key, None)  # its review finds nothing, or what has been written since

    def empty(self) -> bool:
        return not self._levels

    def turn(self, now: int) -> int:
        while self._moments and self._moments[0] <= now:
            moment = heapq.heappop(self._moments)
            for key in self._due.pop(moment):
                del self._reviews[key]
                if self._counts(key, now):
                    self._review(key, self._levels[key])
                else:
                    self._levels.pop(key, None)
        return end_of_window(self._limit, now)

    def _review(self, key: str, level: Level) -> None:
        """See to it that the key is looked at once its level no longer counts, or sooner."""
        window = self._limit.window_us
        moment = (counts_until(level, window) // window + 1) * window
        earlier = self._reviews.get(key)
        if earlier is not None:
            if earlier <= moment:
                return
            self._due[earlier].discard(key)
        self._reviews[key] = moment
        if moment not in self._due:
            self._due[moment] = set()
            heapq.heappush(self._moments, moment)
        self._due[moment].add(key)

    def __len__(self) -> int:
        return len(self._levels)


class SlotTable:
    """Who holds a slot of which key: each slot is one member, freed by its own id (C4, C5)."""

    rules = SLOTS
    counts = None

    def __init__(self) -> None:
        self._members: dict[str, set[Id]] = {}

    def look(self, key: str, now: int) -> int:
        members = self._members.get(key)
        return len(members) if members else 0

    def debit(self, key: str, holder: Id, limit: Limit, amount: int, now: int) -> None:
        self.take(key, holder)

    def take(self, key: str, holder: Id) -> None:
        """Give a slot to a holder."""
        self._members.setdefault(key, set()).add(holder)

    def free(self, key: str, holder: Id) -> None:
        """Free the slot of one holder, if it still has it."""
        members = self._members.get(key)
        if members is not None:
            members.discard(holder)
            if not members:
                del self._members[key]

    def __len__(self) -> int:
        return len(self._members)
