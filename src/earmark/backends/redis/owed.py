"""What the store is owed: messages that nobody waits for any more, kept until it can be reached again.

Each is delivered with its id, so that it counts once, also where the store had it already (R9). What does not fit, and
what the store would no longer know, is counted as lost: nothing goes silently.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Final, NamedTuple

from earmark.backends.redis.messages import Message
from earmark.forking import begins_anew
from earmark.logs import about

logger = logging.getLogger("earmark.redis")

# As long as the store keeps a reservation, and what remembers that tokens were counted; a little less, since
# the store's clock began a little earlier.
_MAX_AGE: Final = 3_600 - 60


class Owed(NamedTuple):
    """A message, and since when it is owed, by this process's monotonic clock."""

    since: float
    message: Message


def messages(count: int) -> str:
    """So many of them, as a log says it."""
    return f"{count} message{'' if count == 1 else 's'}"


class Outbox:
    """Messages that are owed, shared by all loops.

    Args:
        size: so many at most.

    Attributes:
        lost: how many could not be kept, or were too old.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.begin_anew()
        begins_anew(self)

    def begin_anew(self) -> None:
        """Nothing is owed: what a parent owes it delivers itself."""
        self._owed: deque[Owed] = deque()
        self._under_way: dict[int, Owed] = {}
        self._lock = threading.Lock()
        self.lost = 0

    def __len__(self) -> int:
        return len(self._owed) + len(self._under_way)

    def __contains__(self, name: object) -> bool:
        """Whether it is owed that a reservation of this name is over."""
        with self._lock:
            owed = (*self._owed, *self._under_way.values())
        return any(one.message.id == name and one.message.resolves for one in owed)

    @property
    def deliverable(self) -> bool:
        """Whether there is anything to take: what is under way is owed as well."""
        return bool(self._owed)

    def add(self, message: Message) -> None:
        """Keep a message; one too many is lost."""
        with self._lock:
            kept = len(self) < self._size
            if kept:
                self._owed.append(Owed(time.monotonic(), message))
        if not kept:
            self.lose(f"no more than {self._size} are kept")

    def take(self, count: int, keys: int) -> list[Owed]:
        """Take out so many, with about so many keys, from the front; `settle` says what became of them."""
        oldest = time.monotonic() - _MAX_AGE
        taken: list[Owed] = []
        too_old = 0
        with self._lock:
            while self._owed and len(taken) < count and keys > 0:
                owed = self._owed.popleft()
                if owed.since > oldest:
                    taken.append(owed)
                    keys -= len(owed.message.keys)
                else:
                    too_old += 1
            self._under_way |= {id(owed): owed for owed in taken}
        if too_old:
            self.lose("the store would not know it any more", count=too_old)
        return taken

    def lose(self, why: str, *, count: int = 1) -> None:
        """Count what is lost; the first time it is logged."""
        with self._lock:
            first = not self.lost
            self.lost += count
        if first:
            logger.error(
                "a message that the store is owed is lost, and more may be (%s): what is lost stays debited to the"
                " end of its window, and held for one lease",
                why,
                extra=about("message_lost", reason=why),
            )

    def settle(self, taken: list[Owed], still: list[Owed], failed: int) -> None:
        """Of what was taken, keep what is owed still, behind the rest; so many others have failed for good."""
        with self._lock:
            for owed in taken:
                del self._under_way[id(owed)]
            self.lost += failed
            self._owed.extend(still)


def log_owed(level: int, owed: int) -> None:
    """Say what is left that the store was to hear."""
    said = messages(owed)
    logger.log(level, "the store is still owed %s", said, extra=about("store_owed", owed=owed))


def log_failed(error: BaseException) -> None:
    """Say that the store has refused what it was owed."""
    logger.error("a message that was owed has failed", exc_info=error, extra=about("owed_failed"))
