"""One request in several attempts: what it may use is reserved once, whatever becomes of an attempt.

The scopes of the request are reserved together with those of the first attempt's target, in one message; later
attempts reserve their own target's alone. What refuses the request is final and is remembered here, since the store
keeps nothing of a refusal (R2); what refuses a target is the matter of that attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from earmark.asks import check_scopes
from earmark.attempt import Attempt, Shared
from earmark.backends.protocol import Instant
from earmark.core.hold import Hold, Verb
from earmark.core.joint import Joint, Part
from earmark.core.refusal import refusal as refusal_of
from earmark.core.settlement import NOTHING
from earmark.errors import RateLimited
from earmark.ids import next_id
from earmark.limits import Scope
from earmark.office import Office
from earmark.reservation import Reservation
from earmark.shielding import finish, together

if TYPE_CHECKING:
    import anyio


@dataclass(frozen=True, slots=True)
class Front:
    """What a `once` needs of its limiter.

    Attributes:
        limited: shared by reservations that a limit concerns.
        unlimited: shared by the others.
        silent: shared by those of no scope, of which no observer hears.
        ask: has the store decide over a hold.
        instant: the same as a plain function, where it never suspends.
    """

    limited: Office
    unlimited: Office
    silent: Office
    ask: Callable[[Hold], Awaitable[Hold | None]]
    instant: Instant | None

    def once(
        self, scopes: tuple[Scope, ...], asks: Mapping[str, int], lease_us: int | None
    ) -> ReserveOnce:
        """One reservation for all attempts of one request, of what was checked."""
        return ReserveOnce(self, scopes, asks, lease_us)

    def office_of(self, scopes: tuple[Scope, ...]) -> Office:
        """Where reservations over these scopes belong."""
        if not scopes:
            return self.silent
        if self.limited.participants:
            for scope in scopes:
                if scope.limits.all:
                    return self.limited
        return self.unlimited


class ReserveOnce:
    """One reservation for all attempts of one request; made by `Limiter.once`, used as `async with`.

    Leaving the block closes what is open, and abandons it where the block was cancelled; what was handed over to
    a stream is the stream's. Attempts may be made one after the other, or at the same time in tasks of one event loop.

    Attributes:
        refused: the refusal by a scope of the request, after which no attempt is made any more; or None.
    """

    __slots__ = (
        "__weakref__",
        "_asks",
        "_attempts",
        "_decided",
        "_entered",
        "_front",
        "_lease_us",
        "_over",
        "_scopes",
        "_shared",
        "refused",
    )

    def __init__(
        self,
        front: Front,
        scopes: tuple[Scope, ...],
        asks: Mapping[str, int],
        lease_us: int | None,
    ) -> None:
        self.refused: RateLimited | None = None
        self._front = front
        self._scopes = scopes
        self._asks = asks
        self._lease_us = lease_us
        self._entered = self._over = False
        self._shared: Shared | None = None
        self._attempts: list[Attempt] = []
        self._decided: anyio.Event | None = None  # set once the first message is answered

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The scopes of the request, fixed when the `once` was made (B44)."""
        return self._scopes

    def __repr__(self) -> str:
        keys = ", ".join(scope.key for scope in self._scopes)
        state = self._shared.state if self._shared else "refused" if self.refused else "not asked"
        return f"<ReserveOnce of {keys}: {state}>"

    async def attempt(self, *target_scopes: Scope) -> Attempt:
        """Reserve what one attempt may use, and with the first one what the request may use.

        Args:
            target_scopes: whose limits this attempt counts under beside the request's: a provider's, a model's. The
                same amounts are asked of them.

        Raises:
            RateLimited: a scope of the request refused (then it is `refused`, and raised again by every later
                attempt), or one of the target's (then another target may be tried). Nothing was counted.
            BackendUnavailable: no decision could be had.
            RuntimeError: the block was not entered, or was left.
            ValueError: two scopes with one key.
        """
        if target_scopes:
            check_scopes((*self._scopes, *target_scopes))
        self._check_going_on()
        desk = self._front.limited.desk
        if desk.dropped or desk.forgotten:
            await self._front.limited.tidy()
        while self._shared is None:
            self._check_going_on()
            if self._decided is None:
                return await self._first(target_scopes)
            await self._decided.wait()
        hold, office = self._hold(target_scopes), self._front.office_of(target_scopes)
        if office.participants:
            await self._ask(hold)
        attempt = self._begun(hold, office, self._shared)
        if self._over:
            await self._take_back(attempt)
        return attempt

    async def cancel(self) -> bool:
        """Give everything back that is open, requests too: no attempt was ever sent. No further one can be made.

        What was handed over to a stream stays. True iff this resolved what the attempts share.
        """
        return await self._end("cancel")

    def _check_going_on(self) -> None:
        if self.refused is not None:
            raise self.refused.with_traceback(None)
        if not self._entered:
            msg = (
                f"{self!r} has not begun: attempts are made inside its block, `async with` it first"
            )
            raise RuntimeError(msg)
        if self._over:
            msg = f"{self!r} is over: attempts are made inside its block"
            raise RuntimeError(msg)

    async def _first(self, target_scopes: tuple[Scope, ...]) -> Attempt:
        """Reserve for the request and for its first target, both or neither."""
        own, own_office = self._hold(self._scopes), self._front.office_of(self._scopes)
        target, office = self._hold(target_scopes), self._front.office_of(target_scopes)
        asked = own if own_office.participants else None
        if office.participants:
            asked = target if asked is None else Joint(own, target)
        if asked is not None:
            await (self._ask(asked) if self._front.instant else self._decide(asked))
        self._admit(own, own_office)
        self._shared = shared = Shared(own_office, own)
        attempt = self._begun(target, office, shared)
        if self._over:
            await self._take_back(attempt, shared)
        return attempt

    async def _decide(self, hold: Hold) -> None:
        """Ask for the first time, where that may suspend; parallel attempts wait for what comes of it."""
        import anyio

        self._decided = decided = anyio.Event()
        try:
            await self._ask(hold)
        finally:
            self._decided = None
            decided.set()

    async def _ask(self, hold: Hold) -> None:
        front = self._front
        standing = front.instant.reserve(hold) if front.instant else await front.ask(hold)
        if standing is None:
            raise self._refusal(hold)

    def _refusal(self, hold: Hold) -> RateLimited:
        refusal = self._front.limited.refusal(hold, refusal_of(hold))
        own = {scope.key for scope in self._scopes}
        if any(denial.key in own for denial in refusal.denials):
            self.refused = refusal
        return refusal

    def _hold(self, scopes: tuple[Scope, ...]) -> Hold:
        hold = Part()
        hold.id = next_id()
        hold.request_id = None
        hold.scopes = scopes
        hold.asks = self._asks
        hold.lease_us = self._lease_us
        return hold

    def _admit(self, hold: Hold, office: Office) -> None:
        """It renews itself from now on, and observers are told."""
        if office.participants:
            office.backend.attend(hold)
        else:
            hold.seen, hold.at = (), 0
        if office.observers:
            office.announce(hold)

    def _begun(self, hold: Hold, office: Office, shared: Shared) -> Attempt:
        """The attempt of a hold that was admitted."""
        self._admit(hold, office)
        attempt = Attempt(office, hold, shared)
        if self._over:
            return attempt  # it is taken back, and not by whoever resolves all that is open
        if self._attempts:
            self._attempts = [one for one in self._attempts if one.is_left_to_once]
        self._attempts.append(attempt)
        return attempt

    async def _take_back(self, *late: Reservation) -> None:
        """Give back what was admitted when the block had been left, all of it, and say so.

        Also where the caller is cancelled meanwhile: nobody else knows of it (R16).
        """
        await finish(together, *(one.cancel for one in late))
        self._check_going_on()

    async def __aenter__(self) -> Self:
        self._entered = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        front = self._front
        if isinstance(error, GeneratorExit) and not (
            front.instant and not front.limited.desk.dropped
        ):
            self._let_go()  # it may be a coroutine that is closed, where nothing can be awaited: a loop does it soon
        elif error is None or isinstance(error, Exception):
            await self._end("close")
        else:
            await self._end("abandon")

    async def _end(self, verb: Verb) -> bool:
        """Resolve what is open of this, once."""
        over, self._over = self._over, True
        if over or self._shared is None:
            return False
        if self._front.instant:
            won = await self._resolve_all(verb, self._shared)
        else:
            won = await finish(self._resolve_all, verb, self._shared)
        desk = self._front.limited.desk
        if desk.dropped or desk.forgotten:
            await self._front.limited.tidy()  # it may suspend: not before all is done (R16)
        return won

    async def _resolve_all(self, verb: Verb, shared: Shared) -> bool:
        open_ones = [attempt for attempt in self._attempts if attempt.is_left_to_once]
        if self._front.instant:
            for attempt in open_ones:
                await attempt.give_up(verb)
            return await shared.give_up(verb)
        won: list[bool] = []

        async def resolve_shared() -> None:
            won.append(await shared.give_up(verb))

        await together(resolve_shared, *(partial(one.give_up, verb) for one in open_ones))
        return any(won)

    def _let_go(self) -> None:
        """Note what is open (R15)."""
        over, self._over = self._over, True
        if over or self._shared is None:
            return
        for attempt in self._attempts:
            if attempt.is_left_to_once:
                attempt.let_go()
        self._shared.note("abandon", NOTHING, NOTHING, leaves=True)

    def __del__(self) -> None:
        # Dropped without having been left: what is open warns by itself (R15), and a stream may have the last word.
        if not self._over and self._shared is not None:
            self._shared.leave()
