"""A reservation: the handle of one request's holds and slots, open until it is resolved exactly once.

The handle names the reservation by its id, and the store decides who resolved first (R5); any copy of the
handle is the handle (C8). Leaving it open is safe on every way out: a `with` block closes or abandons it, a
stream takes it over, and a handle that is collected while open is abandoned and warns (R15).
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Coroutine, Mapping
from contextlib import nullcontext
from decimal import Decimal
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, Unpack

from earmark.answers import LimitStatus, ScopeStatus
from earmark.core.admission import binding, statuses
from earmark.core.bill import Bill, bill_of
from earmark.core.hold import Hold, Verb
from earmark.core.settlement import NOTHING, Amounts, known_of
from earmark.ending import DroppedStream, Ending, after_stream
from earmark.limits import Scope
from earmark.moves import MOVES, Resolved, State
from earmark.office import Office, log_unresolved, stream_makers, warn_of
from earmark.shielding import at_once, finish
from earmark.usage import Usage

if TYPE_CHECKING:
    from earmark.streams.observed import Observed, ObservedStream
    from earmark.streams.options import StreamOptions
    from earmark.streams.telling import Conclude

Item = TypeVar("Item")

_ALONE: Final = nullcontext()


class Reservation:
    """One logical request's holds and slots over all its scopes; made by `Limiter.pre_commit`.

    As an async context manager it renews itself while the block runs, and closes when the block ends with
    it still open: an exception or a clean exit closes, a cancellation abandons.
    """

    __slots__ = (
        "__weakref__",
        "_ending",
        "_handed_over",
        "_hold",
        "_office",
        "_resolved",
        "_state",
    )

    _tidies = True  # a move first does what finalisers have noted
    _ending: Ending  # how a stream has ended, until that is carried out
    _resolved: Resolved  # what a move of this process made of it; another that lost the race changes nothing

    def __init__(self, office: Office, hold: Hold) -> None:
        self._state: State = "open"
        self._handed_over = False
        self._office = office
        self._hold = hold

    @property
    def request_id(self) -> str:
        """The caller's id of the request, or one of the library's own."""
        hold = self._hold
        if hold.request_id is None and self._state == "open":
            self._office.give_out_name(self, hold)
        return hold.name

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The scopes that it was taken from."""
        return self._hold.scopes

    @property
    def state(self) -> State:
        """`open`, then `settled`, `closed`, `abandoned` or `cancelled`.

        It reads `abandoned` also where the store no longer knew the reservation when it was resolved, unless an earlier
        call here had resolved it, whose answer got lost.
        """
        return getattr(self, "_resolved", self._state)

    @property
    def held(self) -> Mapping[str, int]:
        """Units by metric that are debited and not yet resolved; slots are not among them."""
        return self._hold.debits if self._state == "open" and self._office.participants else {}

    @property
    def statuses(self) -> tuple[ScopeStatus, ...]:
        """Every limit as this request left it when it was admitted: what response headers need."""
        hold = self._hold
        if not self._office.participants:
            return tuple(ScopeStatus(scope.key, ()) for scope in hold.scopes)
        return statuses(hold.judged, hold.asks, hold.seen, hold.at)

    @property
    def binding(self) -> Mapping[str, LimitStatus]:
        """Of `statuses` what headers show: by metric, the enforced limit of which the least remains."""
        hold = self._hold
        return (
            binding(hold.judged, hold.asks, hold.seen, hold.at) if self._office.participants else {}
        )

    @property
    def degraded(self) -> bool:
        """Whether it was admitted without the store, or without the ledger."""
        return self._hold.unsure

    def __repr__(self) -> str:
        keys = ", ".join(scope.key for scope in self._hold.scopes)
        return f"<Reservation {self._hold.name!r} of {keys}: {self.state}>"

    def step_aside(self) -> None:
        """Hold nothing: a stream has it, or another handle of the same hold was there first."""
        self._handed_over = True

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def settle_success(
        self, usage: int | Usage | Amounts, *, cost: Decimal | None = None, model: str | None = None
    ) -> Coroutine[Any, Any, bool]:
        """True up to what was really used; True iff this call resolved the reservation.

        Args:
            usage: an int (`tokens`), a `Usage` (what its known fields determine), or a mapping of metric to
                amount. A held metric that it does not name keeps its hold, raised to what is known of it.
            cost: money, for a ledger, in place of what the price list says of the usage.
            model: the model that answered, for the price and the usage row.

        Raises:
            ValueError: a bad amount or cost, or a provider's field name in place of a metric.
        """
        exact, at_least = known_of(usage)
        bill = None if self._office.cashier is None else bill_of(usage, cost, model)
        return self._resolve("settle", exact, at_least, bill)

    def close_reserved_only(self) -> Coroutine[Any, Any, bool]:
        """Keep the debit: the request was sent, and what it used is unknown."""
        return self._resolve("close")

    def abandon(self) -> Coroutine[Any, Any, bool]:
        """Keep the debit: whoever held this has gone away."""
        return self._resolve("abandon")

    def cancel(self) -> Coroutine[Any, Any, bool]:
        """Give everything back, requests too: nothing was ever sent."""
        return self._resolve("cancel")

    async def renew(self) -> bool:
        """Extend the lease of the slots; True iff every slot is still held (without slots: iff open)."""
        if self._office.desk.dropped:
            await self._office.tidy()
        if self._state != "open":
            return False
        if not self._office.participants:
            return True
        (held,) = await self._office.backend.renew([self._hold])
        return held

    def stream(
        self, source: AsyncIterable[Item], **options: Unpack[StreamOptions]
    ) -> ObservedStream[Item]:
        """Hand the reservation over to a stream, which resolves it when it ends, however it ends.

        With the provider's own final report it is settled. Otherwise the debit becomes the larger of the
        hold and what was reported (or of what `estimate` says). The slots are held until then.

        Args:
            source: bytes or text of a body cut anywhere, parsed events as mappings, or an SDK's objects.
            **options: what `observe_stream` takes, and describes. `complete_timeout` is the seconds for which the
                last item waits for the settlement. `drain` reads on, unless a `task_group` is given, in that
                of `async with Limiter(…)`.

        Raises:
            RuntimeError: the reservation is resolved, or a stream has it already.
            TypeError, ValueError: as `observe_stream`; all is then still the caller's.
        """
        self._check_free("take a stream")
        begin, options_of = stream_makers()
        stream = begin(
            source,
            self._stream_ended,
            options_of("Reservation.stream", options),
            on_drop=self._stream_dropped,
            read_on=self._office.task_group() if options.get("drain") is not None else None,
            begun=partial(self._office.attend, self._hold),
        )
        self.step_aside()
        return stream

    def token(self) -> str:
        """Hand the reservation over to whoever has this text, in any process that uses the same store.

        From then on this handle neither renews itself, nor closes on leaving, nor abandons when it is collected.
        The text can be read by anybody; a limiter that has a `secret` signs it.

        Raises:
            RuntimeError: the reservation is resolved, or a stream has it already.
        """
        self._check_free("give a token")
        text = self._office.tokens.write(self._hold, limited=bool(self._office.participants))
        self._handed_over = self._hold.travels = True
        self._office.release(self._hold)
        return text

    def _check_free(self, purpose: str) -> None:
        if self._state != "open" or self._handed_over:
            msg = f"{self!r} cannot {purpose}: it is already {'handed over' if self._handed_over else self._state}"
            raise RuntimeError(msg)

    @property
    def _is_instant(self) -> bool:
        """Whether resolving it now suspends nowhere, so that nobody needs a task for it."""
        return self._office.instant and not self._office.desk.dropped

    def _stream_ended(self, observed: Observed) -> Coroutine[Any, Any, bool] | bool:
        self._ending = after_stream(observed)
        resolution = self._resolve(*self._ending)
        return at_once(resolution) if self._is_instant else resolution

    def _stream_dropped(self, conclude: Conclude) -> None:
        self._office.sign_off(self._hold)
        self._office.desk.note(DroppedStream(self._hold, conclude, self._drop))

    async def _resolve(
        self,
        verb: Verb,
        exact: Amounts = NOTHING,
        at_least: Amounts = NOTHING,
        bill: Bill | None = None,
    ) -> bool:
        """Make one legal move with every participant; one that has begun finishes (R16)."""
        office = self._office
        if not office.instant:
            by_itself = self._carry_out(verb, exact, at_least, bill) if office.assured else None
            return await (by_itself or finish(self._carry_out, verb, exact, at_least, bill))
        if office.desk.dropped and self._tidies:
            return await self._carry_out(verb, exact, at_least, bill)
        state = MOVES[self._state].get(verb)
        if state is None:
            return False
        self._state = state
        won = not office.participants
        try:
            for participant in office.participants:
                if participant.instant is not None:
                    won = participant.instant.resolve(self._hold, verb, exact, at_least) or won
        except BaseException:
            self._state = "open"
            raise
        return self._conclude(state, verb, exact, at_least, won=won)

    async def _carry_out(
        self, verb: Verb, exact: Amounts, at_least: Amounts, bill: Bill | None
    ) -> bool:
        """The same, and what finalisers have noted, with participants that may suspend."""
        office = self._office
        state = MOVES[self._state].get(verb)
        if state is None:
            return False
        private = self._hold.is_private  # nobody can ask for it meanwhile
        with _ALONE if private else office.desk.crossings.ending(self._hold, verb):
            # Claimed before anything is sent: a second resolver of this process finds it taken.
            self._state = state
            won = not office.participants
            try:
                for participant in office.participants:
                    won = await participant.resolve(self._hold, verb, exact, at_least) or won
                if office.cashier is not None:  # its row says who was first; slots are free by now
                    told = await office.cashier.resolve(self._hold, verb, bill)
                    won = won if verb == "withdraw" and office.participants else told
            except BaseException as error:
                if office.assured and not isinstance(error, Exception):
                    self._conclude(state, verb, exact, at_least, won=True)
                else:
                    self._state = "open"  # nothing is settled until the store says so (C24)
                    self._hold.has_tried(verb, exact, at_least, bill)
                raise
            won = self._conclude(state, verb, exact, at_least, won=won)
        if self._tidies:
            await office.tidy()
        return won

    def _conclude(
        self, state: Resolved, verb: Verb, exact: Amounts, at_least: Amounts, *, won: bool
    ) -> bool:
        if (office := self._office).desk.handles:
            office.sign_off(self._hold, over=won)
        if not won:
            self._state = "abandoned"
            if not (self._hold.is_private and (tried := getattr(self._hold, "tried", ()))):
                return False
            verb, exact, at_least, _ = tried  # nobody else knew of it: its reply was lost
            self._state = state = MOVES["open"][verb]
        self._resolved = state
        if office.observers or office.desk.queues:
            office.resolved(self._hold, state, verb, exact, at_least)
        return won

    async def __aenter__(self) -> Self:
        self._office.attend(self._hold)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._handed_over:
            return
        if isinstance(error, GeneratorExit) and not self._is_instant:
            self._drop()  # it may be a coroutine that is closed, where nothing can be awaited: a loop does it soon
        elif error is None or isinstance(error, Exception):
            await self.close_reserved_only()
        else:
            await self.abandon()

    def __del__(self) -> None:
        # May run anywhere, also inside a lock of this library: it notes, and the next message does the work (R15).
        if self._state != "open":
            return
        if self._handed_over:
            ending: Ending | None = getattr(self, "_ending", None)
            if ending is not None:  # its stream has told, and what was to resolve it was cut off
                self._drop(*ending)
            return
        tried = getattr(self._hold, "tried", ())
        self._drop(*tried)
        if tried:  # its caller was told that it has failed
            return
        self._hold.dropped = True
        warn_of(self)

    def _drop(
        self,
        verb: Verb = "abandon",
        exact: Amounts = NOTHING,
        at_least: Amounts = NOTHING,
        bill: Bill | None = None,
    ) -> None:
        """Note that nobody can resolve this any more; needs no lock and no loop."""
        self._office.sign_off(self._hold)
        if (state := MOVES[self._state].get(verb)) is not None:
            self._state = state
            noted = Dropped(self._office, self._hold, verb, exact, at_least, bill)
            self._office.desk.note(noted)


class Dropped(NamedTuple):
    """A reservation that nobody can resolve any more, as its finaliser notes it."""

    office: Office
    hold: Hold
    verb: Verb
    exact: Amounts = NOTHING
    at_least: Amounts = NOTHING
    bill: Bill | None = None
    failed: bool = False

    async def do(self) -> bool:
        """Resolve it. What fails is logged the first time, and tried again with the next message: then True."""
        handle = _Noted(self.office, self.hold)
        try:
            if self.verb != "withdraw" and not self.office.instant:
                self.office.release(
                    self.hold
                )  # also where the store cannot be told, it is renewed no longer
            await handle.finish_off(self)
        except BaseException as error:
            if handle.state == "open":  # the next message tries again
                self.office.desk.dropped.append(self._replace(failed=True))
            if not isinstance(error, Exception):
                raise
            if not self.failed:
                log_unresolved(self.hold, error)
        return handle.state == "open"


class _Noted(Reservation):
    """The handle of a dropped reservation, which nobody notes a second time."""

    __slots__ = ()
    _tidies = False

    async def finish_off(self, dropped: Dropped) -> None:
        await self._resolve(dropped.verb, dropped.exact, dropped.at_least, dropped.bill)

    def __del__(self) -> None:
        """Warn of nothing: that was done."""
