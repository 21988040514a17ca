"""Watches a limiter through what its observers hear, and says what can never be true of a sound one.

It keeps a plain account of its own, from which a store's counts can only differ upwards: what nobody was told of it
leaves out, so that whatever it finds is a fault. It needs no hypothesis and changes nothing; it may watch a test of a
gateway, or a gateway at work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from earmark.clock import Clock
from earmark.events import Event
from earmark.limiter import Limiter
from earmark.limits import CONCURRENCY, MICROSECONDS, Scope, lease_microseconds
from earmark.testing.histories.differing import called
from earmark.testing.histories.model import Model
from earmark.testing.histories.translation import place_of
from earmark.testing.histories.values import Hold, Line, Place, asked
from earmark.usage import TOKEN_METRICS

__all__ = ["InvariantBroken", "Oracle"]

_RESOLVED: Final = frozenset({"settled", "closed", "abandoned", "cancelled"})


class InvariantBroken(AssertionError):
    """What was heard of a limiter cannot be: its text names every fault, with the rule that it breaks."""


class Suspicion:
    """An admission that did not fit, unless something that was told later had made room before it."""

    def __init__(self, place: Place, line: Line, excess: int, at: int, text: str) -> None:
        self.place = place
        self.line = line
        self.excess = excess
        self.at = at
        self.text = text


class Oracle:
    """An observer that fails on over-admission (R1), on a second resolution (R5), and on what is left open or dropped.

        oracle = Oracle(alice, gpt4o, clock=clock)
        limiter = Limiter(backend, observers=[oracle])
        ...
        await oracle.finish(limiter)

    Events of one instant may be told in another order than they happened in, since callers wait for their own answers:
    what room that could have made is taken into account. Let what is under way finish before you move the clock.

    Args:
        scopes: whose limits are watched, as requests have them; about the counts of others it says nothing.
        clock: the clock of the backend.
        lease: seconds of the shortest lease in use. A slot that may have lapsed is not counted.
        drops: whether handles may be dropped while open; else each that Python has collected is a fault.
    """

    def __init__(
        self, *scopes: Scope, clock: Clock, lease: float = 60.0, drops: bool = False
    ) -> None:
        self._clock = clock
        self._places = {scope.key: place_of(scope) for scope in scopes}
        self._model = Model(lease_microseconds(lease))
        self._open: dict[str, Hold] = {}
        self._drops = drops
        self._asked: dict[str, str] = {}  # what each has asked, and of whom
        self._suspicions: list[Suspicion] = []
        self._faults: list[str] = []
        self._scopes = scopes

    def __call__(self, event: Event) -> None:
        """Hear of one event."""
        self._model.now = max(self._model.now, round(self._clock() * MICROSECONDS))
        if event.kind == "admitted":
            self._admitted(event)
        elif event.kind in _RESOLVED:
            self._resolved(event)
        elif event.kind == "expired":
            hold = self._open.pop(event.request_id or "", None)
            if hold is not None:
                self._model.close(hold, "abandoned")
        elif event.kind == "post_stream":
            self._added(event)

    @property
    def open(self) -> tuple[str, ...]:
        """The request ids of what was admitted and not resolved."""
        return tuple(self._open)

    def forgive(self, *scopes: Scope) -> None:
        """Take a `reset` into account, of which no observer hears."""
        self._model.reset(tuple(map(place_of, scopes)))

    def check(self) -> None:
        """See that nothing impossible was heard so far.

        Raises:
            InvariantBroken: something was.
        """
        self._raise_if([*self._faults, *(one.text for one in self._suspicions)])

    async def finish(self, limiter: Limiter) -> None:
        """See the same at the end, and that nothing is left: every reservation resolved, every slot free.

        Raises:
            InvariantBroken: something impossible was heard, a reservation is open, or a slot is held.
        """
        statuses = await limiter.peek(*self._scopes)  # what finalisers have noted is done by then
        faults = [*self._faults, *(one.text for one in self._suspicions)]
        faults += [
            f"{name!r} was admitted and never resolved (R15): {self._asked[name]}"
            for name in self._open
        ]
        for scope in statuses:
            for one in scope.limits:
                if one.limit.metric == CONCURRENCY and one.used:
                    faults.append(f"{scope.key!r}: {one.used} slots are held by nobody (R7, R10)")
        self._raise_if(faults)

    def _raise_if(self, faults: list[str]) -> None:
        if faults:
            raise InvariantBroken("\n".join(faults))

    def _admitted(self, event: Event) -> None:
        name = event.request_id or ""
        if name in self._open:
            self._faults.append(f"{name!r} was admitted again while it is open (R9)")
        model = self._model
        known = {"requests": 1} | dict.fromkeys(TOKEN_METRICS, 0) | dict(event.asked)
        places = tuple(self._places[key] for key in event.keys if key in self._places)
        for place in places:
            for line, ask in asked(place, known):
                used = model.used(place.key, line, model.now)
                excess = used + max(ask, 1) - line.capacity
                if excess > 0 and place.enforce:
                    limit = f"{place.key!r}, {called(line)}"
                    text = f"{name!r} was admitted over a limit (R1): {limit}: {used} used, {ask} asked"
                    self._suspicions.append(Suspicion(place, line, excess, model.now, text))
        # Judged above: here it is written down, whatever was found.
        free = tuple(place._replace(enforce=False) for place in places)
        hold = model.pre_commit(free, known, f"{name}/{len(model.holds)}")
        if isinstance(hold, Hold):
            hold.keep_until = math.inf
            self._open[name] = hold
            self._asked[name] = _described(event)

    def _resolved(self, event: Event) -> None:
        name = event.request_id or ""
        hold = self._open.pop(name, None)
        if hold is None:
            what = "a second time" if name in self._asked else "and was never admitted"
            self._faults.append(f"{name!r} is {event.kind} {what} (R5)")
            return
        if event.dropped and not self._drops:
            self._faults.append(f"{name!r} was dropped while open (R15): {self._asked[name]}")
        before = self._counts(hold)
        model = self._model
        if event.kind == "settled":
            model.settle(hold, _as_named(event.used))
        elif event.kind == "cancelled":
            model.cancel(hold)
        else:
            model.close(hold, "closed")
        after = self._counts(hold)
        for one in self._suspicions:
            pair = (one.place.key, one.line)
            if one.at == model.now and pair in before:
                one.excess -= max(before[pair] - after[pair], 0)
        self._suspicions = [one for one in self._suspicions if one.excess > 0]

    def _counts(self, hold: Hold) -> Mapping[tuple[str, Line], int]:
        used: Callable[[str, Line, int], int] = self._model.used
        return {
            (place.key, line): used(place.key, line, self._model.now)
            for place in hold.places
            for line in place.lines
        }

    def _added(self, event: Event) -> None:
        tokens = event.used.get("tokens", 0)
        for key in event.keys:
            if tokens and key in self._places:
                self._model.add(key, tokens)


def _described(event: Event) -> str:
    asked = ", ".join(f"{amount} {metric}" for metric, amount in event.asked.items())
    return f"{', '.join(event.keys)}, which asked {asked or 'nothing'}"


def _as_named(used: Mapping[str, int]) -> Mapping[str, int]:
    return {metric: amount for metric, amount in used.items() if metric != "requests"}
