"""Who has told its observers of an admission, by the id of the reservation.

A store that keeps records makes a hold afresh of each, and such a hold knows of no observer. Whoever told of the
admission is found here by the id, so that the same observers hear what became of it, and nobody hears of it twice.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import Final

from earmark.ids import Id

MOST: Final = 10_000
"""So many are remembered. What other processes resolve is not known to be over here, and must not grow for ever."""


class Tellers:
    """See above. From any thread."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: OrderedDict[Id, object] = OrderedDict()

    def __contains__(self, id_: Id) -> bool:
        return id_ in self._by_id

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, id_: Id, teller: object) -> None:
        """Remember who told of an admission, and for that the oldest no longer where there are too many."""
        self._by_id[id_] = teller
        if len(self._by_id) > MOST:
            with suppress(KeyError):  # another thread was faster
                self._by_id.popitem(last=False)

    def pop(self, id_: Id) -> object:
        """Whoever told of the admission, or None; it is over, and is remembered no longer."""
        return self._by_id.pop(id_, None)
