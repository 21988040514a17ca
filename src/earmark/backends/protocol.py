"""What a backend is: six messages, each decided at one instant of the store's own clock.

A backend judges, changes and returns the states that it saw; it computes no answer. Messages name a
reservation by the id of its hold, never by the request id of a caller. Whoever writes a backend owes three things
beyond the arithmetic of `earmark.core`:

* a refusal changes nothing (R2), and the first `resolve` of an id wins (R5);
* `reserve` with a `request_id` that is open answers with the reservation that is open, marked as adopted;
* a message that was interrupted left either no trace or its whole effect.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from earmark.backends.crossings import Crossings
from earmark.backends.delivery import Loop, loop_of, running
from earmark.backends.health import Health
from earmark.backends.queues import Queues
from earmark.backends.tellers import Tellers
from earmark.clock import Clock
from earmark.core.admission import States
from earmark.core.hold import Hold, Verb
from earmark.ids import id_of
from earmark.limits import Scope


class Seen(NamedTuple):
    """The state of every limit of some scopes, and the instant at which it was read."""

    states: States
    at: int


class Noted(Protocol):
    """Work on a hold that a finaliser could only note (R15)."""

    @property
    def hold(self) -> Hold:
        """The hold."""
        ...

    async def do(self) -> bool:
        """Do it; True iff it has failed, and is noted once more."""
        ...


class Handle(Protocol):
    """What a caller has of a reservation."""

    @property
    def state(self) -> str:
        """`open`, or how it was resolved."""
        ...


class Known(NamedTuple):
    """Who answers to a request id in this process.

    Attributes:
        handle: the reservation, if somebody still has it.
        hold: its record.
        limited: whether the store knows of it.
    """

    handle: weakref.ref[Handle]
    hold: Hold
    limited: bool

    def holder_of(self, hold: Hold) -> Handle | None:
        """The handle of this very hold, if somebody still has it and may resolve it.

        A finaliser may have run that a warning's record has brought back to life.
        """
        handle = self.handle() if self.hold.id == hold.id else None
        return handle if handle is not None and handle.state == "open" else None


Deliver = Callable[["Desk"], Coroutine[Any, Any, None]]
"""Does what a desk has noted."""

_NO_LOOPS: Final[Mapping[object, Loop]] = {}


class Desk:
    """What the limiters of this process share about one backend; every backend has one of its own.

    Attributes:
        handles: the open handles by the aliases of their holds, so that an id asked twice is one object (R9).
        dropped: what finalisers noted. Appending needs no lock, so that they may run inside one (R15); a loop does
            the work soon, or the next message does.
        deliver: does it; the limiter says what that is.
        loops: on which a store that suspends was asked.
        tells_loops: whether the backend itself says on which (`serve_here`), so that the limiter need not each time.
        lock: to be held while a handle is found or made for a hold, so that threads find one.
        asked: holds for which a store is being asked, and the names that their callers chose, or "", which is compared
            sooner than None.
        forgotten: holds that the store gave up unresolved, made afresh of its records where it keeps those; the next
            message tells whoever heard of the admission.
        queues: who waits for room.
        crossings: who asks for a request id, and what is resolved meanwhile.
        owed: the names of reservations whose resolution the store has yet to hear of.
        tellers: who has told its observers of which admission.
    """

    __slots__ = (
        "asked",
        "crossings",
        "deliver",
        "dropped",
        "forgotten",
        "handles",
        "lock",
        "loops",
        "owed",
        "queues",
        "tellers",
        "tells_loops",
    )

    deliver: Deliver

    def __init__(self, *, tells_loops: bool = False) -> None:
        self.tells_loops = tells_loops
        self.loops: Mapping[object, Loop] = _NO_LOOPS
        self.handles: dict[object, Known] = {}
        self.lock = threading.RLock()  # a finaliser may run inside it
        self.asked: dict[Hold, str] = {}
        self.dropped: deque[Noted] = deque()
        self.forgotten: deque[Hold] = deque()
        self.queues = Queues()
        self.crossings = Crossings()
        self.owed: Container[str] = ()
        self.tellers = Tellers()

    def known(self, request_id: str) -> Known | None:
        """Who answers to a request id: an id of the library's is meant before a name that reads the same."""
        handles = self.handles
        return handles.get((id_of(request_id) or request_id,)) or handles.get(request_id)

    def own(self, hold: Hold) -> Hold:
        """This process's own record of what a store has answered with, if it has one: it knows more."""
        known = self.handles.get(hold.alias)
        if known is not None and known.hold.id == hold.id:
            return known.hold
        for noted in tuple(self.dropped):
            if noted.hold.id == hold.id:
                return noted.hold
        return hold

    def serve_here(self) -> None:
        """Have the loop that runs this do what is noted from now on."""
        loop = running()
        if loop is not None and loop not in self.loops:
            # Replaced, never changed: finalisers and other threads may be reading it.
            going = {one: on for one, on in self.loops.items() if not on.is_over()}
            self.loops = going | {loop: loop_of(loop)}

    def note(self, *noted: Noted) -> None:
        """Note work on what nobody holds any more. From anywhere (R15)."""
        self.dropped.extend(noted)
        self.call()

    def call(self) -> None:
        """Have what is noted done soon, where a loop can; else the next message does it. From anywhere."""
        for loop in self.loops.values():
            loop.call(self)


class Instant(Protocol):
    """The two messages of every request as plain functions, of a store that never waits."""

    def reserve(self, hold: Hold) -> Hold | None:
        """As `Backend.reserve`."""
        ...

    def resolve(
        self,
        hold: Hold,
        verb: Verb,
        exact: Mapping[str, int],
        at_least: Mapping[str, int],
    ) -> bool:
        """As `Backend.resolve`."""
        ...


class Backend(Protocol):
    """A store of limits.

    Attributes:
        desk: a `Desk()` of its own.
        name: what tokens call the store: two backends of one name know the same reservations.
        clock: the clock that was injected, by whose `sleep` callers wait where it has one; or None.
    """

    desk: Desk
    name: str
    clock: Clock | None

    @property
    def assured(self) -> bool:
        """Whether a `resolve` that has begun reaches the store whatever becomes of its caller.

        Where it is not, the core sees to that, with a task for each.
        """
        ...

    @property
    def instant(self) -> Instant | None:
        """Where no message ever suspends, so that none can be cancelled half-way: the same as plain functions."""
        ...

    async def reserve(self, hold: Hold) -> Hold | None:
        """Decide and debit; write `seen` and `at` into the hold.

        Returns the hold, or the one that is open already under its request id, or None: a limit refused.

        Raises:
            RequestIdConflict: the request id is open with other scopes or asks.
            BackendUnavailable: no decision could be had.
        """
        ...

    async def resolve(
        self,
        hold: Hold,
        verb: Verb,
        exact: Mapping[str, int],
        at_least: Mapping[str, int],
    ) -> bool:
        """Turn the holds into what was used (R6), and free the slots; True iff it was open.

        `cancel` gives everything back. So does `withdraw`, unless somebody else was given the reservation since: then
        it changes nothing, and is False. Who was given it, and then withdraws his own hold, may be the last who has it:
        a store that knows by which holds it gave it away gives it back then.
        """
        ...

    async def add(
        self, target: Scope | str, amounts: Mapping[str, int], request_id: str | None
    ) -> bool:
        """Count what no hold covers, under a scope's limits or under a bare key (R8).

        A bare key counts `tokens` alone: in the fixed windows of a minute, an hour and a day always, and in every other
        limit on them under which it still counts. False iff the same `request_id` was counted before for this key, or
        nothing was to be counted.
        """
        ...

    async def renew(self, holds: Sequence[Hold]) -> Sequence[bool]:
        """Extend the leases of many; for each whether it is open and every slot of it still held."""
        ...

    async def peek(self, scopes: tuple[Scope, ...]) -> Seen:
        """Read, change nothing."""
        ...

    async def reset(self, scopes: tuple[Scope, ...]) -> None:
        """Forget what the limits of these scopes have used; slots stay. Open holds have nothing of it to give back."""
        ...

    def attend(self, hold: Hold) -> None:
        """From now on the holder is at work in this process: the backend renews by itself (R10).

        It must not wait. What is over stays over, a slot that has lapsed among that.
        """
        ...

    def release(self, hold: Hold) -> None:
        """The holder has handed it over: its lease runs, and nobody here renews it. It must not wait."""
        ...

    def health(self) -> Health:
        """How the backend is doing."""
        ...

    async def aclose(self) -> None:
        """Let go of what the backend holds open."""
        ...


class TellsHeld(Protocol):
    """A backend that knows of every limit what open reservations hold of it. None has to: who has `unheld` tells."""

    def unheld(self, scopes: tuple[Scope, ...], seen: Seen) -> States:
        """What was seen of the limits, as it would be had every open reservation been cancelled at that instant."""
        ...


def checked_backend(backend: Backend) -> Backend:
    """The backend, where it is one.

    Raises:
        TypeError: it is something else. What it is is not shown: a URL may have a password in it.
    """
    if isinstance(backend, type) or not hasattr(backend, "instant"):
        kind = type(backend).__name__
        msg = f"Limiter takes a backend, such as RedisBackend.from_url(…) for a URL, not a {kind}"
        raise TypeError(msg)
    return backend
