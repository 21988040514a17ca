"""What the reservations of a limiter share: where their messages go, and who answers to which request id."""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from earmark.answers import Denial
from earmark.backends.crossings import Over
from earmark.backends.protocol import Backend, Desk, Handle, Instant, Known
from earmark.core.bill import Bill
from earmark.core.hold import Hold, Verb
from earmark.core.settlement import NOTHING
from earmark.errors import RateLimited, RequestIdConflict
from earmark.events import Event, Kind, Observer, tell
from earmark.ids import name_of
from earmark.logs import about
from earmark.tokens import Tokens

if TYPE_CHECKING:
    from earmark.streams.draining import ReadOn
    from earmark.streams.observed import ObservedStream
    from earmark.streams.options import Options, StreamOptions

logger = logging.getLogger("earmark")


class Participant(Protocol):
    """Whoever holds something for a reservation; one procedure resolves them all."""

    @property
    def instant(self) -> Instant | None:
        """The same as a plain function, where it never suspends."""
        ...

    @property
    def assured(self) -> bool:
        """Whether a resolution that has begun finishes whatever becomes of its caller."""
        ...

    async def resolve(
        self,
        hold: Hold,
        verb: Verb,
        exact: Mapping[str, int],
        at_least: Mapping[str, int],
    ) -> bool:
        """Resolve what is held; True iff it was open."""
        ...


class Cashier(Protocol):
    """Whoever sets money aside for a reservation, and posts what it cost."""

    async def resolve(self, hold: Hold, verb: Verb, bill: Bill | None) -> bool:
        """Post the cost, or give it back; True iff this was the first who did."""
        ...


class Office:
    """What the reservations of one kind share: a limiter has one for those that a limit concerns, one for the others.

    Attributes:
        backend: where limits are kept.
        participants: who holds something for them; nobody, where no limit concerns them.
        cashier: who holds money for them, and says who resolved one first; None, where nothing is spent.
        assured: whether a resolution that has begun finishes by itself; beside a cashier it does not.
        instant: whether nobody ever suspends.
        desk: what the limiters of this process share about the backend.
        observers: who hears of every event.
        tokens: makes and reads the tokens of reservations.
        task_groups: by event loop, where streams are read on after their consumers have gone.
    """

    __slots__ = (
        "assured",
        "backend",
        "cashier",
        "desk",
        "instant",
        "observers",
        "participants",
        "task_groups",
        "tokens",
    )

    def __init__(
        self,
        backend: Backend,
        participants: tuple[Participant, ...],
        observers: tuple[Observer, ...],
        tokens: Tokens,
        cashier: Cashier | None = None,
    ) -> None:
        self.backend = backend
        self.participants = participants
        self.cashier = cashier
        alone = cashier is None
        self.instant = alone and all(participant.instant for participant in participants)
        self.assured = alone and len(participants) == 1 and participants[0].assured
        self.desk = backend.desk
        self.desk.deliver = tidy
        self.observers = observers
        self.tokens = tokens
        self.task_groups: dict[object, ReadOn] = {}

    def task_group(self) -> ReadOn | None:
        """The one that `async with Limiter(…)` opened on this event loop."""
        from anyio.lowlevel import current_token

        return self.task_groups.get(current_token())

    def attend(self, hold: Hold) -> None:
        """Let a reservation renew itself from now on: its holder is at work (R10)."""
        if self.participants:
            self.backend.attend(hold)

    def release(self, hold: Hold) -> None:
        """Whoever has its token is the holder now: nobody here renews it any more."""
        if self.participants:
            self.backend.release(hold)

    def sign_on(self, handle: Handle, hold: Hold) -> Handle:
        """Let a handle answer to the request id of its hold; return the one that does, which may be another."""
        handles = self.desk.handles
        mine = Known(weakref.ref(handle), hold, limited=bool(self.participants))
        known = handles.setdefault(hold.alias, mine)
        first = known.holder_of(hold)
        if first is None:
            handles[hold.alias] = mine
        return first or handle

    def give_out_name(self, handle: Handle, hold: Hold) -> None:
        """Whoever reads an id may ask for it again: here that is this very object, and elsewhere the same hold (R9)."""
        self.sign_on(handle, hold)
        hold.travels = True

    def sign_off(self, hold: Hold, *, over: bool = True) -> None:
        """Answer to the request id no longer, unless another hold has it by now.

        Args:
            hold: that of the handle which is done.
            over: the reservation is, whoever else has a handle of it. A caller that was cancelled is not all of them.
        """
        _sign_off(self.desk, hold, over=over)

    def handle_of(self, hold: Hold) -> Handle | None:
        """The handle of this very hold, if somebody still has it."""
        known = self.desk.handles.get(hold.alias)
        return None if known is None else known.holder_of(hold)

    def own(self, standing: Hold, asked: Hold) -> Hold:
        """What a store has answered with, as this process knows it.

        Raises:
            RequestIdConflict: it asks something else, of which the store knows nothing: what it spends.
        """
        mine = self.desk.own(standing)
        if mine is not standing and not asked.repeats(mine):
            raise RequestIdConflict(asked.name)
        return mine

    def is_over(self, standing: Hold, over: Over) -> bool:
        """Whether somebody here has resolved what a store has answered with, since it was asked, or is about to.

        Then the store has heard of that, or will: it is to be asked again. Where nobody ever suspends only another
        thread can have come between, and might as well have come a moment later.
        """
        if self.instant:
            return False
        known = self.desk.handles.get(standing.alias)
        handle = known.handle() if known is not None and known.hold.id == standing.id else None
        if handle is not None and handle.state != "open":
            return True
        desk = self.desk
        return desk.crossings.crossed(standing, over) or name_of(standing.id) in desk.owed

    def take_back(self, hold: Hold) -> None:
        """Strike what a finaliser noted of this hold: it has found another holder (R9)."""
        with suppress(AttributeError):
            del hold.dropped
        dropped = self.desk.dropped
        for noted in tuple(dropped):
            if noted.hold is hold:
                with suppress(ValueError):  # another thread has done it by now
                    dropped.remove(noted)

    def repeated(self, hold: Hold, *, limited: bool) -> Handle | None:
        """The open handle that a request id names, where the store need not be asked.

        The store knows nothing of a request that no limit concerns, and alone knows the others.

        Raises:
            RequestIdConflict: it was made for other scopes or asks.
        """
        known = self.desk.known(hold.name)
        handle = None if known is None else known.handle()
        if known is None or handle is None or handle.state != "open" or (limited and known.limited):
            return None
        if not hold.repeats(known.hold):
            raise RequestIdConflict(hold.name)
        return handle

    def announce(self, hold: Hold) -> None:
        """Tell the observers that a hold was admitted, unless somebody here has told of it.

        A store that never suspends gives the very hold back that it was given; another may make it afresh.
        """
        tellers = self.desk.tellers
        if hasattr(hold, "told") or hold.id in tellers:
            return
        hold.told = self
        if self.observers:
            if self.participants and self.backend.instant is None:
                tellers.add(hold.id, self)
            self.tell("admitted", hold)

    def tell(self, kind: Kind, hold: Hold, used: Mapping[str, int] = NOTHING) -> None:
        """Tell the observers what became of a hold."""
        if self.observers:
            keys = tuple(scope.key for scope in hold.scopes)
            dropped = hasattr(hold, "dropped")
            event = Event(kind, hold.name, keys, asked=hold.asks, used=used, dropped=dropped)
            tell(self.observers, event)

    def resolved(
        self,
        hold: Hold,
        kind: Kind,
        verb: Verb,
        exact: Mapping[str, int],
        at_least: Mapping[str, int],
    ) -> None:
        """Tell the observers, and whoever waits for room, that a hold was resolved."""
        self.desk.tellers.pop(hold.id)
        if self.desk.queues:
            self.desk.queues.resolved(hold, verb, exact)
        if verb != "withdraw":
            known = {metric: amount for metric, amount in at_least.items() if amount}
            self.tell(kind, hold, {**known, **exact})

    def refusal(self, hold: Hold, denials: Iterable[Denial]) -> RateLimited:
        """The error of a hold that was refused; the observers are told."""
        refusal = RateLimited(denials)
        if self.observers:
            keys = tuple(scope.key for scope in hold.scopes)
            event = Event(
                "refused", hold.request_id, keys, asked=hold.asks, denials=refusal.denials
            )
            tell(self.observers, event)
        return refusal

    def tidy(self) -> Coroutine[Any, Any, None]:
        """Do what finalisers could only note, and report what the store gave up (R15)."""
        return tidy(self.desk)

    def report_forgotten(self) -> None:
        """Tell whoever heard of its admission that the store gave a reservation up."""
        _report_forgotten(self.desk)


async def tidy(desk: Desk) -> None:
    """Do what finalisers could only note at a desk, and report what the store gave up."""
    todo = len(desk.dropped)
    while todo > 0:
        todo -= 1
        try:
            noted = desk.dropped.popleft()
        except IndexError:  # other threads and tasks tidy as well
            break
        # No step of it is Python's own: other threads ask meanwhile, and many may be asked for.
        if noted.hold in desk.asked or noted.hold.name in desk.asked.values():
            desk.dropped.append(noted)  # it may be about to find another holder
            continue
        before = len(desk.dropped)
        failed = await noted.do()
        del noted  # whoever it has held may be collected now, and note more
        todo += max(len(desk.dropped) - before - failed, 0)
    _report_forgotten(desk)


def _report_forgotten(desk: Desk) -> None:
    forgotten = desk.forgotten
    while forgotten:
        try:
            hold = forgotten.popleft()
        except IndexError:  # another thread reports as well
            break
        _sign_off(desk, hold)
        teller = desk.tellers.pop(hold.id) or getattr(hold, "told", None)
        if isinstance(teller, Office):
            teller.tell("expired", hold)


def _sign_off(desk: Desk, hold: Hold, *, over: bool = True) -> None:
    known = desk.handles.get(hold.alias)
    if known is not None and (known.hold is hold or (over and known.hold.id == hold.id)):
        desk.handles.pop(hold.alias, None)
    if over:
        desk.crossings.ended(hold)


def warn_of(handle: Handle) -> None:
    """Warn of a handle that is collected while open. From anywhere (R15)."""
    warnings.warn(
        f"{handle!r} was dropped while open and is abandoned: "
        "settle it, close it, or use it as `async with`",
        ResourceWarning,
        source=handle,
        stacklevel=2,
    )


def log_unresolved(hold: Hold, why: BaseException) -> None:
    """Say that nobody could resolve it yet."""
    logger.error(
        "a dropped reservation could not be resolved yet",
        exc_info=why,
        extra=about("resolve_failed", request_id=hold.name),
    )


@cache
def stream_makers() -> tuple[
    Callable[..., ObservedStream[Any]], Callable[[str, StreamOptions], Options]
]:
    """What makes a stream of options, and options of what was given: loaded with the first stream that there is.

    An import statement within `Reservation.stream` would cost as much as all that it does.
    """
    from earmark.streams.observe import begin
    from earmark.streams.options import options_of

    return begin, options_of
