"""Who waits for room, in order of arrival: one queue per set of keys (R18).

Only the head of a queue asks the store, so that one free place wakes one caller. Whoever frees room on a key tells the
heads that wait for it, of whatever queues, one after another in order of arrival: the next one hears of it when the one
before has asked, unless it asks no less of what has refused that one. Callers of one event loop have a lane of their
own in a queue: a loop that has stopped, or was closed without a word, cannot ask, and its lane is passed over.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

from earmark.amounts import MAX_AMOUNT
from earmark.answers import Denial
from earmark.core.hold import Hold, Verb
from earmark.core.settlement import UNSENT
from earmark.forking import begins_anew
from earmark.limits import CONCURRENCY, Limits, Scope


class News:
    """That room was freed on a key: one who waits for it has it, and hands it on.

    Attributes:
        key: what has room.
        rest: who is to hear of it next, in order of arrival.
        refusals: by which limits of the key those were refused who have asked since: the metric, and what they asked.
    """

    __slots__ = ("key", "refusals", "rest")

    def __init__(self, key: str, first: Iterable[Place | None]) -> None:
        self.key = key
        waits = (place for place in first if place is not None)
        self.rest = deque(sorted(waits, key=lambda place: place.number))
        self.refusals: list[tuple[Limits, str, int]] = []

    def refused(self, hold: Hold, denials: Iterable[Denial]) -> None:
        """Who had it has asked in vain."""
        limits = _limits_of(hold, self.key)
        self.refusals += [
            (limits, denial.limit.metric, max(denial.asked, 1))
            for denial in denials
            if limits is not None and denial.key == self.key
        ]

    def concerns(self, hold: Hold | None) -> bool:
        """Whether there may be room for this: not where it asks no less than what was refused."""
        if hold is None or not self.refusals:
            return True
        limits = _limits_of(hold, self.key)
        return not any(
            limits == refused and _ask_of(hold, refused, metric) >= asked
            for refused, metric, asked in self.refusals
        )


def _limits_of(hold: Hold, key: str) -> Limits | None:
    return next((scope.limits for scope in hold.scopes if scope.key == key), None)


def _ask_of(hold: Hold, limits: Limits, metric: str) -> int:
    """For how many units of a metric there has to be room (R1); 0 where it is not judged."""
    ask = hold.asks.get(metric, limits.by_metric[metric][0].unasked)
    return 0 if ask is None else max(ask, 1)


class Place:
    """A caller's place in a queue.

    Attributes:
        wake: called, from any thread, when it is this caller's turn or when room was freed.
        hold: what it asks for, if that is known.
        news: what it has heard of since it has asked last.
        heard: what it had heard of when it did.
        polls: keys of slots for which it waits, and for nothing else.
    """

    __slots__ = ("heard", "hold", "keys", "loop", "news", "number", "polls", "wake")

    def __init__(
        self,
        keys: frozenset[str],
        wake: Callable[[], None],
        loop: Hashable,
        number: int,
        hold: Hold | None,
    ) -> None:
        self.keys = keys
        self.wake = wake
        self.loop = loop
        self.number = number
        self.hold = hold
        self.news: list[News] = []
        self.heard: list[News] = []
        self.polls: Collection[str] = ()


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

    __slots__ = ("__weakref__", "_lock", "_number", "_of_key", "_pollers", "_queues")

    def __init__(self) -> None:
        self.begin_anew()
        begins_anew(self)

    def begin_anew(self) -> None:
        """Nobody waits."""
        self._queues: dict[frozenset[str], _Queue] = {}
        self._of_key: dict[str, dict[_Queue, None]] = {}
        self._pollers: dict[str, Place] = {}
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
        hold: Hold | None = None,
    ) -> Place:
        """Stand behind all who came before.

        Args:
            keys: what is waited for.
            wake: called, from any thread, when it is this caller's turn or when room was freed.
            loop: the caller's event loop.
            runs: whether that runs now; from any thread.
            hold: what is asked for.
        """
        with self._lock:
            place = Place(keys, wake, loop, self._number(), hold)
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

    def asks(self, place: Place) -> None:
        """The first of a queue is about to ask: what it hears of from now on is answered by the next time."""
        with self._lock:
            place.heard += place.news
            place.news = []

    def refused(
        self, place: Place, hold: Hold, answered: float, denials: Sequence[Denial] = ()
    ) -> None:
        """The first of a queue was refused: whoever gives up behind it is told so, and need not ask.

        Args:
            place: of the first.
            hold: what it was refused.
            answered: when, by the clock by which all of them wait.
            denials: by which limits.
        """
        with self._lock:
            self._queues[place.keys].refused = (hold, answered)
            heard, place.heard, place.polls = place.heard, [], ()
        for news in heard:
            news.refused(hold, denials)
        self._tell(heard)

    def polls(self, place: Place, keys: Collection[str]) -> list[str]:
        """For which of these keys this caller has to see, now and then, whether somebody elsewhere has freed a slot.

        Of all who wait for a slot of one key a single one does; where it goes another one is woken, and is it then.
        """
        with self._lock:
            place.polls = keys
            mine = [key for key in keys if not self._is_polled(key, place)]
            self._pollers |= dict.fromkeys(mine, place)
        return mine

    def _is_polled(self, key: str, place: Place) -> bool:
        """Whether another one asks for slots of this key now and then."""
        poller = self._pollers.get(key, place)
        queue = self._queues.get(poller.keys)
        lane = None if queue is None else queue.lanes.get(poller.loop)
        waits = lane is not None and poller in lane.places and lane.runs()
        return poller is not place and waits and key in poller.polls

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
            heirs = self._heirs(place)
            next_ones: set[Place | None] = {queue.first} if was_first else set()
            if led and lane.places and len(queue.lanes) > 1:
                next_ones.add(lane.first)
        left = [news for one in (*next_ones, *heirs) for news in self._wake(one)]
        self._tell([*left, *self._taken_from(place)])

    def _heirs(self, place: Place) -> list[Place]:
        """One goes: who else waits for a slot of each key for which it polled."""
        heirs: list[Place] = []
        for key in place.polls:
            if self._pollers.get(key) is place:
                del self._pollers[key]
                firsts = (queue.first for queue in self._of_key.get(key, ()))
                heirs += itertools.islice((one for one in firsts if one and key in one.polls), 1)
        return heirs

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
        self.freed([scope.key for scope in hold.scopes if _frees(scope, hold, verb, exact)])

    def freed(self, keys: Collection[str]) -> None:
        """Room was freed on these keys: whoever is the first to wait for one of them hears of it."""
        with self._lock:
            waits = {key: self._of_key[key] for key in keys if key in self._of_key}
            queues = {queue: None for found in waits.values() for queue in found}
            first = {queue: queue.first for queue in queues}
            told = [News(key, [first[queue] for queue in found]) for key, found in waits.items()]
        self._tell(told)

    def _tell(self, told: Iterable[News]) -> None:
        """Tell of each the next one who may have room, and has heard of no such news since it has asked."""
        todo = [*told]
        while todo:
            places = dict.fromkeys(place for news in todo for place in self._next(news))
            todo = [news for place in places for news in self._wake(place)]

    def _next(self, news: News) -> list[Place]:
        """Who is woken for it: whoever has it now, and those before whose loops have stopped, if these go on."""
        woken: list[Place] = []
        with self._lock:
            while news.rest:
                place = news.rest.popleft()
                queue = self._queues.get(place.keys)
                lane = None if queue is None else queue.lanes.get(place.loop)
                leads = lane is not None and place in lane.places and lane.first is place
                knows = any(other.key == news.key for other in place.news)
                if lane is None or not leads or knows or not news.concerns(place.hold):
                    continue
                woken.append(place)
                if lane.runs():
                    place.news.append(news)
                    break
        return woken

    def _taken_from(self, place: Place) -> list[News]:
        """What one who goes had heard of: others may have that room, or what is left of it."""
        with self._lock:
            news = place.heard + place.news
            place.heard, place.news = [], []
        return news

    def _wake(self, place: Place | None) -> list[News]:
        """Wake a caller; where its event loop is gone nobody there waits any longer, and the next one is woken.

        Returns the news of those who are gone.
        """
        left: list[News] = []
        while place is not None:
            try:
                place.wake()
            except RuntimeError:
                left += self._taken_from(place)
                place = self._close(place)
            else:
                break
        return left


def _frees(scope: Scope, hold: Hold, verb: Verb, exact: Mapping[str, int]) -> bool:
    """Whether resolving a hold so gives anything of this scope back."""
    if CONCURRENCY in scope.limits.by_metric or verb in UNSENT:
        return True
    return any(
        exact.get(limit.metric, MAX_AMOUNT) < (hold.asks.get(limit.metric, limit.unasked) or 0)
        for limit in scope.limits
    )
