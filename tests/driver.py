"""The kit's driver on the memory backend: the number of things that it keeps must be the model's, too (R2, R14)."""

from __future__ import annotations

from typing import Any

from earmark import MemoryBackend, Reservation
from earmark.testing import ManualClock
from earmark.testing.histories import driver
from earmark.testing.histories.gateway import Gateway
from earmark.testing.histories.steps import Offer


class Either(Gateway):
    """Resolves by the limiter's verb and by the handle's, in turns."""

    turn = 0

    async def resolve(self, reservation: Reservation, verb: str, *usage: Any) -> bool:
        self.turn += 1
        if self.turn % 2:
            return await super().resolve(reservation, verb, *usage)
        won: bool = await getattr(reservation, verb)(*usage)
        return won


class Driver(driver.Driver):
    """One history, through the memory backend and through the model."""

    def __init__(self, offers: tuple[Offer, ...]) -> None:
        super().__init__(offers, self.make)

    def make(self, clock: ManualClock) -> Gateway:
        self.backend = MemoryBackend(clock=clock)
        return Either(self.backend)

    def check(self) -> None:
        super().check()
        size, least = self.backend.size(), self.model.size()
        assert least <= size <= least + self.model.buckets_just_over(), (size, least)

    def end(self) -> None:
        super().end()
        assert self.backend.size() == 0
