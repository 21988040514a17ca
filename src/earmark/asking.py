"""Asking a store for a hold: an interrupted call leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from earmark.answers import Denial
from earmark.backends.crossings import Over
from earmark.core.hold import Hold
from earmark.core.joint import parts_of
from earmark.core.refusal import refusal
from earmark.errors import EarmarkError
from earmark.office import Office
from earmark.reservation import Dropped

# Seconds after which a store is asked again that has not heard yet of what it has found over.
_PAUSE: Final = 0.005


class Caller(Protocol):
    """Who asks a store, at once or when it is its turn.

    Attributes:
        hold: what is asked for.
    """

    hold: Hold

    @property
    def denials(self) -> Iterable[Denial]:
        """Why it was refused."""
        ...

    async def admitted(self) -> Hold | None:
        """What stands; None: a limit refused."""
        ...


async def standing_of(caller: Caller, office: Office, over: Over) -> Hold | None:
    """What stands once a store was asked; it is asked again for as long as what it has found is over by then (R9).

    A resolution of this process goes before what is asked after it, so that mostly once is enough.
    """
    first = True
    while True:
        standing = await caller.admitted()
        office.report_forgotten()
        if standing is None or standing is caller.hold:
            return standing
        standing = office.own(standing, caller.hold)
        if not office.is_over(standing, over):
            return standing
        if not first:
            import anyio

            await anyio.sleep(_PAUSE)
        first = False
        begin_again(caller, over)


def begin_again(caller: Caller, over: Over) -> None:
    """What was found is over: ask afresh."""
    over.clear()
    caller.hold = caller.hold.once_more()


class AtOnce:
    """A caller that does not wait for room.

    Args:
        hold: what is asked for.
        ask: asks the store.
    """

    __slots__ = ("_ask", "hold")

    def __init__(self, hold: Hold, ask: Asker) -> None:
        self.hold = hold
        self._ask = ask

    @property
    def denials(self) -> Iterable[Denial]:
        """Why it was refused."""
        return refusal(self.hold)

    async def admitted(self) -> Hold | None:
        """What stands; None: a limit refused."""
        return await self._ask(self.hold)


class Asker:
    """Asks the backend of one office.

    Args:
        office: whose backend.
    """

    __slots__ = ("_instant", "_office", "_serves")

    def __init__(self, office: Office) -> None:
        self._office = office
        self._serves = not office.desk.tells_loops
        self._instant = office.backend.instant

    async def __call__(self, hold: Hold) -> Hold | None:
        """What stands after `hold` was sent; None: a limit refused (R9, R16)."""
        office = self._office
        desk = office.desk
        if self._instant is not None:
            if desk.dropped:  # whoever waits for room may wait for that of a dropped handle
                await office.tidy()
            return self._instant.reserve(hold)
        desk.asked[hold] = hold.request_id or ""
        try:
            standing = await office.backend.reserve(hold)
        except EarmarkError:
            raise
        except GeneratorExit:  # nothing can be awaited any more
            desk.note(*self._withdrawals(hold))
            raise
        except BaseException:
            # Whether it was applied is unknown: it is taken back by its id.
            await self._withdraw(*self._withdrawals(hold))
            raise
        else:
            if self._serves:
                desk.serve_here()
            return standing
        finally:
            del desk.asked[hold]
            if desk.dropped:  # what has waited for the answer
                desk.call()

    def _withdrawals(self, hold: Hold) -> list[Dropped]:
        return [Dropped(self._office, part, "withdraw") for part in parts_of(hold)]

    async def _withdraw(self, first: Dropped, *others: Dropped) -> None:
        """Take back each of several, whatever interrupts the others."""
        try:
            await first.do()
        finally:
            if others:
                await self._withdraw(*others)
