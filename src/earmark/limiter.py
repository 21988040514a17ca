"""The front door: where scopes, a backend, observers and reservations meet."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from decimal import Decimal
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from earmark import looking
from earmark.answers import Explanation, ScopeStatus
from earmark.asking import Asker, AtOnce, Caller, begin_again, standing_of
from earmark.asks import added_of, asks_of, check_scopes, checked_lease
from earmark.backends.crossings import Over
from earmark.backends.health import Health
from earmark.backends.memory import MemoryBackend
from earmark.backends.protocol import Backend, checked_backend
from earmark.core.admission import denials as denials_of
from earmark.core.hold import Hold
from earmark.core.refusal import refusal as refusal_of
from earmark.events import Event, Observer, tell
from earmark.ids import next_id
from earmark.limits import Scope, check_key
from earmark.office import Office
from earmark.reservation import Reservation
from earmark.shielding import finish
from earmark.spending import Till, office_of, there
from earmark.tokens import Tokens
from earmark.usage import Usage

if TYPE_CHECKING:
    from earmark.budgets import Spend
    from earmark.ledger import Ledger, PriceTable
    from earmark.once import Front, ReserveOnce


class Limiter:
    """Decides whether a request may run, sets aside what it may cost, and trues that up afterwards.

    As an async context manager it gives streams that are to be read on without their consumers (`drain`) a
    task group. When the block ends, those that are open yet are closed and read on, and it waits for them, at most
    as long as their `drain`; then it closes.

    Args:
        backend: where limits are kept; by default the memory of this process.
        ledger: where money is kept; without one nothing can be spent.
        prices: what models cost.
        observers: callables that take one frozen `Event`; one that raises is logged.
        secret: what tokens of reservations are signed with; without one they are not.

    Raises:
        TypeError: what is no backend, such as a URL.
        ValueError: an empty secret.
    """

    def __init__(
        self,
        backend: Backend | None = None,
        *,
        ledger: Ledger | None = None,
        prices: PriceTable | None = None,
        observers: Iterable[Observer] = (),
        secret: str | bytes | None = None,
    ) -> None:
        self._backend: Backend = MemoryBackend() if backend is None else checked_backend(backend)
        self._instant = self._backend.instant
        observers = tuple(observers)
        tokens = Tokens(secret, self._backend.name)
        self._office = Office(self._backend, (self._backend,), observers, tokens)
        self._unlimited = Office(self._backend, (), observers, tokens)
        self._ask = Asker(self._office)
        self._front: Front | None = None
        self._till = None if ledger is None else Till(ledger, prices, self._office)
        self._silent = Office(self._backend, (), (), tokens)
        self._silent.task_groups = self._unlimited.task_groups = self._office.task_groups

    @classmethod
    def disabled(cls) -> Self:
        """Return a limiter for which no limit exists: it always admits and counts nothing (B46)."""
        limiter = cls()
        limiter._office = limiter._unlimited
        return limiter

    async def pre_commit(
        self,
        *scopes: Scope,
        tokens: int | Usage = 0,
        amounts: Mapping[str, int] | None = None,
        request_id: str | None = None,
        wait: float | None = None,
        lease: float | None = None,
        spend: Spend | None = None,
    ) -> Reservation:
        """Admit a request and debit what it asks from every limit of every scope, or refuse it whole.

        Args:
            scopes: whose limits apply, in the order of refusals.
            tokens: the estimate: an int asks `tokens`, a `Usage` asks each token metric.
            amounts: what is asked of other metrics, by name; `requests` is 1 unless it is named here.
            request_id: the caller's id. While its reservation is open the same id returns the same one.
            wait: seconds to queue for room, behind whoever waits; by default what does not fit is refused now.
            lease: seconds for which slots are held without a renewal, at most an hour; None: the backend's own.
            spend: the budgets that have to have room, once all limits have; what it may cost is held there.

        Raises:
            BudgetExceeded: a budget has no room; nothing was counted.
            UnknownPrice: the price list does not know the model that is to be spent on.
            RateLimited: a limit refused, to the end of the wait, or it never can admit this; nothing was counted.
            RequestIdConflict: the id is open with other scopes or asks.
            BackendUnavailable: no decision could be had.
            ValueError: a bad amount, key, wait or lease, or two scopes with one key.
        """
        asks = asks_of(tokens, amounts)
        limited = check_scopes(scopes)
        hold = Hold()
        hold.id = next_id()
        hold.request_id = request_id
        hold.scopes = scopes
        hold.asks = asks
        hold.lease_us = None
        if lease is not None or wait is not None:
            hold.lease_us = checked_lease(lease, wait)
        office = self._office
        desk = office.desk
        if desk.dropped or desk.forgotten:
            await office.tidy()
        named = request_id is not None
        if named or wait or spend is not None or not (limited and office.participants):
            return await self._pre_commit_otherwise(hold, spend, wait, limited=limited)
        instant = self._instant
        standing = instant.reserve(hold) if instant else await self._ask(hold)
        if desk.forgotten:
            office.report_forgotten()
        if standing is None:
            found = denials_of(scopes, asks, hold.seen, hold.at) if instant else refusal_of(hold)
            raise self._office.refusal(hold, found)
        if office.observers:
            office.announce(hold)
        return Reservation(office, hold)

    async def _pre_commit_otherwise(
        self, hold: Hold, spend: Spend | None, wait: float | None, *, limited: bool
    ) -> Reservation:
        """Admit what has a name, waits, is concerned by no limit, or spends: that after all limits (B57)."""
        limited = limited and bool(self._office.participants)
        if spend is not None and self._office.participants:
            there(self._till).charge(hold, spend)
        if hold.request_id is not None and (open_one := self._repeated(hold, limited=limited)):
            return open_one
        if not limited:
            if self._till is not None and hasattr(hold, "charge"):
                await self._till.set_aside(hold, hold, limited=False)
                if hold.request_id is not None and (
                    open_one := self._repeated(hold, limited=False)
                ):
                    return open_one  # of another call, which came at the same moment
            return self._admit_unlimited(hold)
        with self._office.desk.crossings.asking(hold.name) as over:
            return await self._stand(self._caller(hold, wait), over)

    async def _stand(self, caller: Caller, over: Over) -> Reservation:
        """The reservation of what stands once the store was asked, and its budgets have room as well."""
        while (standing := await standing_of(caller, self._office, over)) is not None:
            till = self._till if hasattr(caller.hold, "charge") else None
            if till is not None:
                await till.set_aside(caller.hold, standing, waited=not isinstance(caller, AtOnce))
            if (handle := self._admit(caller.hold, standing, over)) is not None:
                return handle
            if till is not None:
                await till.leave(caller.hold, standing)
            begin_again(caller, over)
        raise self._office.refusal(caller.hold, caller.denials)

    def _repeated(self, hold: Hold, *, limited: bool) -> Reservation | None:
        """The handle that is open under the request id, where the store need not be asked."""
        check_key("request_id", hold.request_id)
        handle = self._office.repeated(hold, limited=limited)
        return handle if isinstance(handle, Reservation) else None

    def _caller(self, hold: Hold, wait: float | None) -> Caller:
        """Who asks at once, or queues for room (R18)."""
        if not wait:
            return AtOnce(hold, self._ask)
        from earmark.waiting import Waiting

        return Waiting(self._office.desk.queues, hold, self._ask, wait, self._backend.clock)

    def _admit(self, hold: Hold, standing: Hold, over: Over) -> Reservation | None:
        """The handle of what stands after `hold` was sent, its own or that which was open before; None: it is over."""
        office = self._office
        made = None
        with office.desk.lock:
            handle = office.handle_of(standing)
            if not isinstance(handle, Reservation):
                if standing is not hold:
                    if office.is_over(standing, over):
                        return None
                    office.take_back(standing)
                made = Reservation(office_of(standing, office, self._till), standing)
                handle = office.sign_on(made, standing)
                if handle is not made:
                    made.step_aside()
        if handle is made:
            office.announce(standing)
        return cast("Reservation", handle)

    def _admit_unlimited(self, hold: Hold) -> Reservation:
        """Admit a request that no limit concerns: nothing is sent and nothing is kept (B10)."""
        hold.seen, hold.at = (), 0
        handle = Reservation(office_of(hold, self._unlimited, self._till), hold)
        if hold.request_id is not None:
            self._unlimited.sign_on(handle, hold)
        self._unlimited.tell("admitted", hold)
        return handle

    def once(
        self,
        *scopes: Scope,
        tokens: int | Usage = 0,
        amounts: Mapping[str, int] | None = None,
        lease: float | None = None,
    ) -> ReserveOnce:
        """One reservation for all attempts of one request; an async context manager.

        Args:
            scopes: whose limits the request counts under once, however many attempts it takes.
            tokens: as for `pre_commit`; every attempt asks the same of its target.
            amounts: so as well.
            lease: so as well.

        Raises:
            ValueError: a bad amount, key or lease, or two scopes with one key.
        """
        check_scopes(scopes)
        front = self._front or self._make_front()
        return front.once(scopes, asks_of(tokens, amounts), checked_lease(lease))

    def _make_front(self) -> Front:
        """What makes a `once`: loaded with the first that there is, and the same for all."""
        from earmark.once import Front

        self._front = Front(self._office, self._unlimited, self._silent, self._ask, self._instant)
        return self._front

    def settle_success(
        self,
        reservation: Reservation | str,
        usage: int | Usage | Mapping[str, int],
        *,
        cost: Decimal | None = None,
        model: str | None = None,
    ) -> Coroutine[Any, Any, bool]:
        """True up to what was really used; see `Reservation.settle_success`.

        Args:
            reservation: a reservation, or its token; so for the other three verbs.
            usage: an int (`tokens`), a `Usage`, or a mapping of metric to amount.
            cost: money, in place of what the price list says of the usage.
            model: the model that answered, for the price and the usage row.

        Raises:
            ValueError: a bad amount or cost, or a token that is none, is forged, or belongs to another store.
            TypeError: neither a reservation nor a token.
        """
        return self._handle(reservation).settle_success(usage, cost=cost, model=model)

    def close_reserved_only(self, reservation: Reservation | str) -> Coroutine[Any, Any, bool]:
        """Keep the debit: the request was sent, and what it used is unknown."""
        return self._handle(reservation).close_reserved_only()

    def abandon(self, reservation: Reservation | str) -> Coroutine[Any, Any, bool]:
        """Keep the debit: whoever held the reservation has gone away."""
        return self._handle(reservation).abandon()

    def cancel(self, reservation: Reservation | str) -> Coroutine[Any, Any, bool]:
        """Give everything back, requests too: nothing was ever sent."""
        return self._handle(reservation).cancel()

    def _handle(self, reservation: Reservation | str) -> Reservation:
        """The handle that a verb is for."""
        if isinstance(reservation, Reservation):
            return reservation
        if not isinstance(reservation, str):
            msg = f"expected a Reservation or its token, not {reservation!r}"
            raise TypeError(msg)
        hold, limited = self._office.tokens.read(reservation)
        office = office_of(hold, self._office if limited else self._unlimited, self._till)
        handle = office.handle_of(hold)
        if not isinstance(handle, Reservation):
            handle = Reservation(office, hold)
            handle.step_aside()
        return handle

    async def add_tokens_post_stream(
        self, key_or_scope: str | Scope, tokens: int | Usage, *, request_id: str | None = None
    ) -> None:
        """Count tokens that no hold covers (R8).

        Args:
            key_or_scope: a scope, whose limits count; or a bare key, which counts in the minute, the hour
                and the day, and under every other `tokens` limit that has counted it lately.
            tokens: an int counts `tokens`, and 0 or less is a no-op; a `Usage` counts each token metric
                that it determines, with a bare key its total.
            request_id: a repeated call with it counts once for the same key.

        Raises:
            ValueError: a bad amount or key.
            TypeError: neither a key nor a scope.
        """
        bare = isinstance(key_or_scope, str)
        if bare:
            check_key("key", key_or_scope)
        elif not isinstance(key_or_scope, Scope):
            msg = f"add_tokens_post_stream takes a key or a Scope, not {key_or_scope!r}"
            raise TypeError(msg)
        if request_id is not None:
            check_key("request_id", request_id)
        amounts = added_of(tokens, bare=bare)
        if not any(amounts.values()) or not self._office.participants:
            return
        message = (key_or_scope, amounts, request_id)
        await (self._add(*message) if self._instant else finish(self._add, *message))

    async def _add(
        self, target: str | Scope, amounts: Mapping[str, int], request_id: str | None
    ) -> None:
        await self._office.tidy()
        counted = await self._backend.add(target, amounts, request_id)
        if counted and self._office.observers:
            key = target if isinstance(target, str) else target.key
            event = Event("post_stream", request_id, (key,), used=amounts)
            tell(self._office.observers, event)

    async def peek(self, *scopes: Scope) -> tuple[ScopeStatus, ...]:
        """What each limit has used, has left, and when it resets; one status per scope. Changes nothing."""
        return await looking.peek(self._office, scopes)

    async def explain(
        self, *scopes: Scope, tokens: int | Usage = 0, amounts: Mapping[str, int] | None = None
    ) -> Explanation:
        """What `pre_commit` would be answered, by which limits, and from when on it is admitted. Changes nothing.

        What of a limit is held memory tells of all, and Redis of slots: see `LimitExplanation.held`.
        """
        return await looking.explain(self._office, scopes, asks_of(tokens, amounts))

    async def reset(self, *scopes: Scope) -> None:
        """Forgive: forget what the limits of these scopes have used. Slots stay held."""
        limited = check_scopes(scopes)
        await self._office.tidy()
        if limited and self._office.participants:
            await self._backend.reset(scopes)
            self._office.desk.queues.freed([scope.key for scope in scopes])

    def health(self) -> Health:
        """Whether the backend can be reached, and what it is owed."""
        return self._backend.health()

    async def aclose(self) -> None:
        """Resolve what finalisers noted, and let go of what the backend and the ledger hold open."""
        try:
            await self._office.tidy()
        finally:
            try:
                await self._backend.aclose()
            finally:
                if self._till is not None:
                    await self._till.aclose()

    async def __aenter__(self) -> Self:
        from anyio.lowlevel import current_token

        from earmark.streams.draining import ReadOn

        groups = self._office.task_groups
        if current_token() in groups:
            msg = "this limiter is open on this event loop already: `async with` it once, where the loop begins"
            raise RuntimeError(msg)
        groups[current_token()] = await ReadOn().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        from anyio.lowlevel import current_token

        group = self._office.task_groups.pop(current_token())
        try:
            await group.__aexit__(kind, error, traceback)
        finally:
            await self.aclose()
