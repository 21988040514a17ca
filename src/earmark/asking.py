"""Asking a store for a hold: an interrupted call leaves nothing behind."""

from __future__ import annotations

from earmark.core.hold import Hold
from earmark.core.joint import parts_of
from earmark.errors import EarmarkError
from earmark.office import Office
from earmark.reservation import Dropped


class Asker:
    """Asks the backend of one office.

    Args:
        office: whose backend.
    """

    __slots__ = ("_instant", "_office")

    def __init__(self, office: Office) -> None:
        self._office = office
        self._instant = office.backend.instant

    async def __call__(self, hold: Hold) -> Hold | None:
        """What stands after `hold` was sent; None: a limit refused (R9, R16)."""
        if self._instant is not None:
            return self._instant.reserve(hold)
        asked = self._office.desk.asked
        asked[id(hold)] = hold.name
        try:
            return await self._office.backend.reserve(hold)
        except EarmarkError:
            raise
        except GeneratorExit:  # nothing can be awaited any more
            self._office.desk.dropped.extend(self._withdrawals(hold))
            raise
        except BaseException:
            # Whether it was applied is unknown: it is taken back by its id.
            await self._withdraw(*self._withdrawals(hold))
            raise
        finally:
            del asked[id(hold)]

    def _withdrawals(self, hold: Hold) -> list[Dropped]:
        return [Dropped(self._office, part, "withdraw") for part in parts_of(hold)]

    async def _withdraw(self, first: Dropped, *others: Dropped) -> None:
        """Take back each of several, whatever interrupts the others."""
        try:
            await first.do()
        finally:
            if others:
                await self._withdraw(*others)
