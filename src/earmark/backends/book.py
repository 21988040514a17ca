"""The open reservations of a store in memory: their names, their leases, and when each is given up.

Most reservations are short and unremarkable: one entry in one dict. What is remarkable about one (a slot, a
renewal, a second caller) stands in a note beside it.
"""

from __future__ import annotations

import heapq
from itertools import takewhile
from typing import Final, TypeVar

from earmark.backends.tables import SlotTable
from earmark.core.hold import Hold, Verb
from earmark.core.joint import Joint
from earmark.errors import RequestIdConflict
from earmark.ids import Id, id_of
from earmark.limits import HOUR, MICROSECONDS

Name = TypeVar("Name")

# So many callers to whom one reservation was handed are told apart.
_MOST: Final = 32

KEEP_US: Final = HOUR * MICROSECONDS
"""How long an open reservation can be resolved after its last renewal (R10)."""


class _Note:
    """What is remarkable about an open reservation."""

    given: set[Id] | None = None
    """By which holds it was handed to other callers under its request id; 0 for those that are not told apart."""
    left = False
    """Whoever made it has withdrawn it: it is theirs."""
    attended = False
    """Its holder lives in this process: no lease ends it."""
    lapsed = False
    """Its lease is over: its slots are free and stay so."""
    lease_end = 0
    """When the lease of its slots is over, in microseconds; 0: none runs."""
    lease_us = 0
    named = False
    """It answers to a request id that its caller chose."""
    renewed = 0
    """When it was last renewed, in microseconds."""
    slots: tuple[str, ...] = ()
    """The keys of which it holds a slot."""


_UNREMARKABLE: Final = _Note()


class Book:
    """Open reservations.

    Args:
        slots: where their slots are taken.
        lease_us: how long a slot is held where a hold names no lease of its own, in microseconds.
    """

    def __init__(self, slots: SlotTable, lease_us: int) -> None:
        self.open: dict[Id, Hold] = {}  # in the order of their last renewal
        self.notes: dict[Id, _Note] = {}  # empty: every open one is unremarkable
        self._names: dict[str, Id] = {}  # the request ids that callers chose
        self._leases: list[
            tuple[int, Id]
        ] = []  # a heap of (end, id); stale where the note says otherwise
        self._slots = slots
        self._lease_us = lease_us

    def name(self, request_id: str, hold: Hold) -> None:
        """Let a hold answer to the request id that its caller chose."""
        self._names[request_id] = hold.id
        self._note(hold.id).named = True

    def adopt(self, request_id: str, hold: Hold) -> Hold | None:
        """The reservation that is open under the request id, if there is one (R9).

        Raises:
            RequestIdConflict: it has other scopes or asks than `hold`.
        """
        known = self.open.get(
            id_of(request_id) or 0
        )  # which is meant before a name that reads the same
        if known is None or known.request_id is not None:
            known = self.open.get(self._names.get(request_id, 0))
        if known is None:
            return None
        if not hold.repeats(known):
            raise RequestIdConflict(request_id)
        note = self._note(known.id)
        note.given = given = note.given or set()
        given.add(hold.id if len(given) < _MOST else 0)
        return known

    def lend(self, hold: Hold, key: str) -> int:
        """Note a slot that a hold was given; return the end of its lease."""
        note = self._note(hold.id)
        note.slots += (key,)
        note.lease_us = hold.lease_us or self._lease_us
        return self._begin_lease(hold.id, note, hold.at)

    def divide(self, joint: Joint) -> None:
        """Let the parts of a joint hold that was just admitted be open each by itself, with its own slots."""
        joint.divide()
        first, *others = joint.parts
        # The whole has gone by its id, so that all slots are the first one's.
        self.open[first.id] = first
        note = self.notes.get(first.id, _UNREMARKABLE)
        for part in others:
            self.open[part.id] = part
            for scope in part.scopes:
                if scope.key in note.slots:
                    self._pass_on(scope.key, first, note, part)

    def _pass_on(self, key: str, giver: Hold, note: _Note, taker: Hold) -> None:
        """Let a slot be another's; a giver who has none left holds nothing remarkable."""
        self._slots.take(key, taker.id)
        self._slots.free(key, giver.id)
        self.lend(taker, key)
        note.slots = tuple(slot for slot in note.slots if slot != key)
        if not note.slots:
            del self.notes[giver.id]

    def strike(self, hold: Hold, verb: Verb) -> Hold | None:
        """Take a reservation that is resolved off the book, and free its slots; None: it is not open.

        A withdrawal spares what others were handed. Once they have all withdrawn as well it is theirs that strikes it.
        """
        id_ = hold.id
        if verb == "withdraw" and id_ not in self.open:
            id_ = self._left_by(hold)
        note = self.notes.get(id_)
        if note is not None:
            if verb == "withdraw" and note.given:
                note.left = True
                return None
            del self.notes[id_]
            self._free(id_, note)
            if note.named:
                del self._names[self.open[id_].name]
        return self.open.pop(id_, None)

    def _left_by(self, hold: Hold) -> Id:
        """Take a caller off those who were handed a reservation; its id, where it is nobody's any more, or 0."""
        id_ = self._names.get(hold.request_id or "", 0)
        note = self.notes.get(id_, _UNREMARKABLE)
        if note.given and hold.id in note.given:
            note.given.remove(hold.id)
            if note.left and not note.given:
                return id_
        return 0

    def renew(self, id_: Id, now: int) -> bool:
        """Extend a lease that has not lapsed; a lapsed one is never revived (C5)."""
        hold = self.open.pop(id_, None)
        if hold is None:
            return False
        self.open[id_] = hold
        note = self._note(id_)
        note.renewed = now
        if note.slots and not note.lapsed and not note.attended:
            self._begin_lease(id_, note, now)
        return not note.lapsed

    def attend(self, id_: Id) -> None:
        """The holder is at work in this process: no lease ends the reservation from now on."""
        if id_ in self.open:
            note = self._note(id_)
            note.attended = True
            note.lease_end = 0

    def is_attended(self, id_: Id) -> bool:
        """Whether its holder is known to be at work; may be asked without a lock."""
        note = self.notes.get(id_)
        return note is not None and note.attended

    def release(self, id_: Id, now: int) -> int:
        """The holder may be gone: the lease of its slots begins anew. Returns when it ends, or the far future."""
        note = self.notes.get(id_)
        if note is not None and note.attended:
            note.attended = False
            if note.slots and not note.lapsed:
                return self._begin_lease(id_, note, now)
        return now + KEEP_US

    def turn(self, now: int) -> tuple[list[Hold], int]:
        """Free the slots of leases that are over, and give up what nobody came back for.

        Returns what was given up, and the moment of the next turn.
        """
        while self._leases and self._leases[0][0] <= now:
            end, id_ = heapq.heappop(self._leases)
            note = self.notes.get(id_)
            if note is not None and note.lease_end == end:
                note.lease_end = 0
                note.lapsed = True
                self._free(id_, note)
        turn = self._leases[0][0] if self._leases else now + KEEP_US
        stale: list[Hold] = []
        for hold in self.open.values():
            end = max(self.notes.get(hold.id, _UNREMARKABLE).renewed, hold.at) + KEEP_US
            if end > now:
                turn = min(turn, end)
                break
            stale.append(hold)
        given_up: list[Hold] = []
        for hold in stale:
            if self.notes.get(hold.id, _UNREMARKABLE).attended:
                self.renew(hold.id, now)
            else:
                self.strike(hold, "abandon")
                given_up.append(hold)
        return given_up, min(turn, now + KEEP_US)

    def _note(self, id_: Id) -> _Note:
        note = self.notes.get(id_)
        if note is None:
            note = self.notes[id_] = _Note()
        return note

    def _begin_lease(self, id_: Id, note: _Note, now: int) -> int:
        note.lease_end = now + note.lease_us
        if len(self._leases) > 2 * len(self.notes) + 4:  # most of them have ended before their time
            running = ((note.lease_end, id_) for id_, note in self.notes.items() if note.lease_end)
            self._leases = list(running)
            heapq.heapify(self._leases)
        heapq.heappush(self._leases, (note.lease_end, id_))
        return note.lease_end

    def _free(self, id_: Id, note: _Note) -> None:
        for key in note.slots:
            self._slots.free(key, id_)


def over(ends: dict[Name, int], now: int) -> list[Name]:
    """Take out, in order, what ends at `now` or before; `ends` is in the order of the ends."""
    names = list(takewhile(lambda name: ends[name] <= now, ends))
    for name in names:
        del ends[name]
    return names
