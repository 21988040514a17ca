"""What a database is owed: resolutions that it could not be told, kept in this process until it can.

The database knows by the reservation whether it had one already, so that each counts once. What does not fit is counted
as lost, and logged: its amount stays pending, and is posted as it stands after its expiry.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from earmark.ledger.charge import Resolution
from earmark.logs import about

logger = logging.getLogger("earmark.ledger")


class Owed:
    """Resolutions, shared by all loops.

    Args:
        size: so many at most.

    Attributes:
        lost: how many could not be kept, or were refused when they came.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: deque[Resolution] = deque()
        self._under_way = 0
        self._lock = threading.Lock()
        self.lost = 0

    def __len__(self) -> int:
        return len(self._kept) + self._under_way

    @property
    def deliverable(self) -> bool:
        """Whether there is anything to take: what is under way is owed as well."""
        return bool(self._kept)

    def add(self, told: Resolution) -> None:
        """Keep a resolution; one too many is lost."""
        with self._lock:
            kept = len(self) < self._size
            if kept:
                self._kept.append(told)
        if not kept:
            self.lose(told, f"no more than {self._size} are kept")

    def take(self) -> Resolution | None:
        """Take out the oldest; `settle` says what became of it."""
        with self._lock:
            if not self._kept:
                return None
            self._under_way += 1
            return self._kept.popleft()

    def settle(self, told: Resolution, *, delivered: bool) -> None:
        """It was delivered, or is owed still, before all others."""
        with self._lock:
            self._under_way -= 1
            if not delivered:
                self._kept.appendleft(told)

    def lose(self, told: Resolution, why: str) -> None:
        """Give one up."""
        self.lost += 1
        logger.error(
            "what a request has cost could not be posted (%s): what it held is posted instead, after its expiry",
            why,
            extra=about("posting_lost", reason=why, request_id=told.charge.request_id),
        )
