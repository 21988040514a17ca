"""Who waits for room, in order of arrival: one queue per set of keys (R18).

Only the head of a queue asks the store, so that one free place wakes one caller. Whoever frees room on a key wakes the
heads that wait for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from earmark.amounts import MAX_AMOUNT
from earmark.core.hold import Hold, Verb
from earmark.core.settlement import UNSENT
from earmark.limits import CONCURRENCY, Scope


class Place:
    """A caller's place in a queue.

    Attributes:
        wake: called, from any thread, when it is this caller's turn or when room was freed.
    """

    __slots__ = ("keys", "wake")

    def __init__(self, keys: frozenset[str], wake: Callable[[], None]) -> None:
        self.keys = keys
        self.wake = wake


class _Queue:
    """Those who wait for the same keys, and what the first of them was refused last."""

    __slots__ = ("places", "refused")

    def __init__(self) -> None:
        self.places: deque[Place] = deque()
        self.refused: Hold | None = None


class Queues:
    """All queues of one backend in this process, whatever their threads and event loops."""

    __slots__ = ("_lock", "_queues")

    def __init__(self) -> None:
        self._queues: dict[frozenset[str], _Queue] = {}
        self._lock = threading.RLock()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __len__(self) -> int:
        with self._lock:
            return sum(len(queue.places) for queue in self._queues.values())

    def join(self, keys: frozenset[str], wake: Callable[[], None]) -> Place:
        """Stand behind all who came before."""
        place = Place(keys, wake)
        with self._lock:
            self._queues.setdefault(keys, _Queue()).places.append(place)
        return place

    def is_first(self, place: Place) -> bool:
        """Whether it is this caller's turn."""
        with self._lock:
            queue = self._queues.get(place.keys)
            return queue is not None and queue.places[0] is place

    def refused(self, place: Place, hold: Hold) -> None:
        """The first of a queue was refused: whoever gives up behind it is told so, and need not ask."""
        with self._lock:
            self._queues[place.keys].refused = hold

    def refusal_before(self, place: Place) -> Hold | None:
        """What the first of the queue was refused last, if it was."""
        with self._lock:
            return self._queues[place.keys].refused

    def leave(self, place: Place) -> None:
        """Go, with or without room; the next one is woken where it was this one's turn."""
        with self._lock:
            queue = self._queues.get(place.keys)
            if queue is None or place not in queue.places:
                return
            was_first = queue.places[0] is place
            queue.places.remove(place)
            if not queue.places:
                del self._queues[place.keys]
                return
            first = queue.places[0]
        if was_first:
            self._wake(first)

    def resolved(self, hold: Hold, verb: Verb, exact: Mapping[str, int]) -> None:
        """A reservation was resolved: where that has freed room, wake who waits for it."""
        self.freed(scope.key for scope in hold.scopes if _frees(scope, hold, verb, exact))

    def freed(self, keys: Iterable[str]) -> None:
        """Room was freed on these keys: wake the first of every queue that waits for one of them."""
        freed = set(keys)
        with self._lock:
            first = [
                q.places[0] for q in self._queues.values() if not freed.isdisjoint(q.places[0].keys)
            ]
        for place in first:
            self._wake(place)

    def _wake(self, place: Place) -> None:
        """Wake a caller; one whose event loop is gone waits no longer."""
        try:
            place.wake()
        except RuntimeError:
            self.leave(place)


def _frees(scope: Scope, hold: Hold, verb: Verb, exact: Mapping[str, int]) -> bool:
    """Whether resolving a hold so gives anything of this scope back."""
    if CONCURRENCY in scope.limits.by_metric or verb in UNSENT:
        return True
    return any(
        exact.get(limit.metric, MAX_AMOUNT) < (hold.asks.get(limit.metric, limit.unasked) or 0)
        for limit in scope.limits
    )
