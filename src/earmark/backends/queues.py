"""Who waits for room, in order of arrival: one queue per set of keys (R18).

Only the head of a queue asks the store, so that one free place wakes one caller. Whoever frees room on a key wakes the
heads that wait for it. Callers of one event loop have a lane of their own in a queue: a loop that has stopped, or was
closed without a word, cannot ask, and its lane is passed over.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping

from earmark.amounts import MAX_AMOUNT
from earmark.core.hold import Hold, Verb
from earmark.core.settlement import UNSENT
from earmark.forking import begins_anew
from earmark.limits import CONCURRENCY, Scope


class Place:
    """A caller's place in a queue.

    Attributes:
        wake: called, from any thread, when it is this caller's turn or when room was freed.
    """

    __slots__ = ("keys", "loop", "number", "wake")

    def __init__(
        self, keys: frozenset[str], wake: Callable[[], None], loop: Hashable, number: int
    ) -> None:
        self.keys = keys
        self.wake = wake
        self.loop = loop
        self.number = number


class _Lane:
    """Those of one event loop who wait for the same keys."""

    __slots__ = ("places", "runs")

    def __init__(self, runs: Callable[[], bool]) -> None:
        self.places: OrderedDict[Place, None] = OrderedDict()
        self.runs = runs

    @property
    def first(self) -> Place:
        return next(iter(self.places))


class _Queue:
    """Those who wait for the same keys, and what the first of them was refused last, and when."""

    __slots__ = ("lanes", "refused")

    def __init__(self) -> None:
        self.lanes: dict[Hashable, _Lane] = {}
        self.refused: tuple[Hold, float] | None = None

    @property
    def first(self) -> Place | None:
        """Whose turn it is, of those whose loops run."""
        alone = len(self.lanes) == 1
        firsts = [lane.first for lane in self.lanes.values() if alone or lane.runs()]
        return min(firsts, key=lambda place: place.number, default=None)


class Queues:
    """All queues of one backend in this process, whatever their threads and event loops."""

    __slots__ = ("__weakref__", "_lock", "_number", "_of_key", "_queues")

    def __init__(self) -> None:
        self.begin_anew()
        begins_anew(self)

    def begin_anew(self) -> None:
        """Nobody waits."""
        self._queues: dict[frozenset[str], _Queue] = {}
        self._of_key: dict[str, dict[_Queue, None]] = {}
        self._number = itertools.count().__next__
        self._lock = threading.RLock()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __len__(self) -> int:
        with self._lock:
            queues = self._queues.values()
            return sum(len(lane.places) for queue in queues for lane in queue.lanes.values())

    def join(
        self,
        keys: frozenset[str],
        wake: Callable[[], None],
        loop: Hashable = None,
        runs: Callable[[], bool] = lambda: True,
    ) -> Place:
        """Stand behind all who came before.

        Args:
            keys: what is waited for.
            wake: called, from any thread, when it is this caller's turn or when room was freed.
            loop: the caller's event loop.
            runs: whether that runs now; from any thread.
        """
        with self._lock:
            place = Place(keys, wake, loop, self._number())
            queue = self._queues.get(keys)
            if queue is None:
                queue = self._queues[keys] = _Queue()
                for key in keys:
                    self._of_key.setdefault(key, {})[queue] = None
            lane = queue.lanes.setdefault(loop, _Lane(runs))
            lane.places[place] = None
        return place

    def is_first(self, place: Place) -> bool:
        """Whether it is this caller's turn."""
        with self._lock:
            queue = self._queues.get(place.keys)
            return queue is not None and queue.first is place

    def watches(self, place: Place) -> bool:
        """Whether this caller has to look by itself whether those before it still run: the first of each loop does."""
        with self._lock:
            queue = self._queues.get(place.keys)
            return (
                queue is not None
                and len(queue.lanes) > 1
                and queue.lanes[place.loop].first is place
            )

    def refused(self, place: Place, hold: Hold, answered: float) -> None:
        """The first of a queue was refused: whoever gives up behind it is told so, and need not ask.

        Args:
            place: of the first.
            hold: what it was refused.
            answered: when, by the clock by which all of them wait.
        """
        with self._lock:
            self._queues[place.keys].refused = (hold, answered)

    def refusal_before(self, place: Place) -> tuple[Hold, float] | None:
        """What the first of the queue was refused last, if it was, and when."""
        with self._lock:
            return self._queues[place.keys].refused

    def leave(self, place: Place) -> None:
        """Go, with or without room; the next one is woken where it was this one's turn.

        So is the next one of its loop, where there are others: it looks from now on whether they run.
        """
        with self._lock:
            queue = self._queues.get(place.keys)
            lane = None if queue is None else queue.lanes.get(place.loop)
            if queue is None or lane is None or place not in lane.places:
                return
            led, was_first = lane.first is place, queue.first is place
            del lane.places[place]
            if not lane.places:
                self._close(place)
            next_ones: set[Place | None] = {queue.first} if was_first else set()
            if led and lane.places and len(queue.lanes) > 1:
                next_ones.add(lane.first)
        for one in next_ones:
            self._wake(one)

    def _close(self, place: Place) -> Place | None:
        """Nobody of its loop waits in its queue any more; returns whose turn it is then."""
        with self._lock:
            queue = self._queues.get(place.keys)
            if queue is None or queue.lanes.pop(place.loop, None) is None:
                return None
            if queue.lanes:
                return queue.first
            del self._queues[place.keys]
            for key in place.keys:
                self._of_key[key].pop(queue, None)
                if not self._of_key[key]:
                    del self._of_key[key]
            return None

    def resolved(self, hold: Hold, verb: Verb, exact: Mapping[str, int]) -> None:
        """A reservation was resolved: where that has freed room, wake who waits for it."""
        self.freed(scope.key for scope in hold.scopes if _frees(scope, hold, verb, exact))

    def freed(self, keys: Iterable[str]) -> None:
        """Room was freed on these keys: wake the first of every queue that waits for one of them."""
        with self._lock:
            queues = {queue: None for key in keys for queue in self._of_key.get(key, ())}
            first = [queue.first for queue in queues]
        for place in first:
            self._wake(place)

    def _wake(self, place: Place | None) -> None:
        """Wake a caller; where its event loop is gone nobody there waits any longer, and the next one is woken."""
        while place is not None:
            try:
                place.wake()
            except RuntimeError:
                place = self._close(place)
            else:
                return


def _frees(scope: Scope, hold: Hold, verb: Verb, exact: Mapping[str, int]) -> bool:
    """Whether resolving a hold so gives anything of this scope back."""
    if CONCURRENCY in scope.limits.by_metric or verb in UNSENT:
        return True
    return any(
        exact.get(limit.metric, MAX_AMOUNT) < (hold.asks.get(limit.metric, limit.unasked) or 0)
        for limit in scope.limits
    )
