"""The backend of a single process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from earmark.backends.health import Health
from earmark.backends.protocol import Desk, Seen
from earmark.backends.store import MemoryStore
from earmark.clock import Clock, injected, wall_clock
from earmark.core.admission import States
from earmark.core.hold import Hold, Verb
from earmark.ids import name_of, next_id
from earmark.limits import Scope, lease_microseconds


class MemoryBackend:
    """Limits in the memory of this process, shared by its threads and event loops.

    Args:
        clock: a callable that returns seconds since the epoch; by default the wall clock as it stands
            now, running monotonically.
        lease: seconds for which a slot is held without a renewal, where a reservation names no lease of
            its own; at most an hour.

    Raises:
        ValueError: a lease that is no such number of seconds.
    """

    assured = True  # nothing suspends

    def __init__(self, *, clock: Clock | None = None, lease: float = 60.0) -> None:
        reading = wall_clock() if clock is None else injected(clock)
        self.desk = Desk()
        self.clock = clock
        self.name = f"memory:{name_of(next_id())}"
        self.instant = MemoryStore(reading, lease_microseconds(lease), self.desk)

    async def reserve(self, hold: Hold) -> Hold | None:
        """Decide over every limit of every scope at one instant, and debit all of them or none."""
        return self.instant.reserve(hold)

    async def resolve(
        self,
        hold: Hold,
        verb: Verb,
        exact: Mapping[str, int],
        at_least: Mapping[str, int],
    ) -> bool:
        """True up the holds of one reservation and free its slots; the first one wins (R5)."""
        return self.instant.resolve(hold, verb, exact, at_least)

    async def add(
        self, target: Scope | str, amounts: Mapping[str, int], request_id: str | None
    ) -> bool:
        """Count what no hold covers (R8)."""
        return self.instant.add(target, amounts, request_id)

    async def renew(self, holds: Sequence[Hold]) -> list[bool]:
        """Extend leases that have not lapsed; a lapsed one is never revived (C5)."""
        return self.instant.renew(holds)

    async def peek(self, scopes: tuple[Scope, ...]) -> Seen:
        """Read the state of every limit at one instant."""
        return self.instant.peek(scopes)

    def unheld(self, scopes: tuple[Scope, ...], seen: Seen) -> States:
        """What was seen, without what open reservations hold; it looks at every one of them."""
        return self.instant.unheld(scopes, seen)

    async def reset(self, scopes: tuple[Scope, ...]) -> None:
        """Forget counts; open holds on them then have nothing to give back."""
        self.instant.reset(scopes)

    def attend(self, hold: Hold) -> None:
        """The holder lives in this process: its reservation needs no lease from now on (R10)."""
        self.instant.attend(hold)

    def release(self, hold: Hold) -> None:
        """Its holder may live anywhere: the lease of its slots runs from now on."""
        self.instant.release(hold)

    def health(self) -> Health:
        """There is no store that could be out of reach."""
        return Health()

    async def aclose(self) -> None:
        """Nothing is held open."""

    def size(self) -> int:
        """How many states, slots, reservations and ids are kept."""
        return self.instant.size()
