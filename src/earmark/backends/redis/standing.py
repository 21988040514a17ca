"""Whether the store can be reached: one warning per outage, and what `health()` says."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from earmark.backends.health import Health
from earmark.backends.redis.chart import Address
from earmark.backends.redis.owed import Outbox, log_owed
from earmark.backends.redis.rack import Rack
from earmark.forking import begins_anew
from earmark.logs import about

logger = logging.getLogger("earmark.redis")

_WORST_CASES: Final = {
    "open": "every request is admitted",
    "closed": "no request is admitted",
}


class Standing:
    """What the lines of all event loops have found.

    Args:
        on_outage: who decides while the store cannot be reached.
        of_local: says what is the worst that comes of `local`.
        outbox: what the store is owed.
    """

    def __init__(self, on_outage: str, of_local: Callable[[], str], outbox: Outbox | Rack) -> None:
        self._of_local = of_local
        self._on_outage = on_outage
        self._outbox = outbox
        self.begin_anew()
        begins_anew(self)

    def begin_anew(self) -> None:
        """No line is there yet."""
        self._down = 0
        self._admitted = 0
        self._round_trips = 0
        self._seconds = 0.0
        self._reason: str | None = None
        self._said: set[bool] = set()
        self._lock = threading.Lock()

    def lost(self) -> None:
        """One more line is down."""
        with self._lock:
            self._down += 1

    def found(self, reason: str, *, passes: bool) -> None:
        """Why a line is down, which may change; `passes`: it will be up again by itself.

        Each of the two is logged once per outage.
        """
        with self._lock:
            self._reason = reason
            first = passes not in self._said
            self._said.add(passes)
        if first and passes:
            logger.warning(
                "the store cannot be reached (%s): on_outage=%r decides until it can be",
                reason,
                self._on_outage,
                extra=about("store_unreachable", reason=reason, on_outage=self._on_outage),
            )
        elif first:
            logger.error(
                "the store cannot be used (%s): requests fail until that is mended",
                reason,
                extra=about("store_unusable", reason=reason),
            )

    def back(self) -> None:
        """One line is up again."""
        if self._one_less():
            logger.info("the store can be reached again", extra=about("store_back"))

    def gone(self) -> None:
        """One line that was down is no more."""
        self._one_less()

    def _one_less(self) -> bool:
        with self._lock:
            self._down -= 1
            if self._down:
                return False
            self._reason = None
            self._said.clear()
            return True

    def closed(self) -> None:
        """The connections of a loop are closed: say what the store has not had."""
        if self._outbox:
            log_owed(logging.ERROR, len(self._outbox))

    def admitted(self) -> None:
        """One more request was admitted without the store."""
        with self._lock:
            self._admitted += 1

    def answered(self, seconds: float) -> None:
        """One more round trip brought answers, after so many seconds."""
        with self._lock:
            self._round_trips += 1
            self._seconds += seconds

    def health(self) -> Health:
        """Everything, at one moment."""
        with self._lock:
            return Health(
                available=not self._down,
                reason=self._reason,
                owed=len(self._outbox),
                lost=self._outbox.lost,
                admitted_without_store=self._admitted,
                round_trips=self._round_trips,
                round_trip_seconds=self._seconds,
                worst_case=_WORST_CASES.get(self._on_outage) or self._of_local(),
            )


class OfMaster(Standing):
    """What a line says about its master: whoever knows of the others hears of it too.

    Args:
        whole: that of the cluster.
        address: of the master.
        missed: called each time when it is found to be out of reach: another may have taken its place.
    """

    def __init__(self, whole: Standing, address: Address, missed: Callable[[], None]) -> None:
        self._whole = whole
        self._name = f"{address[0]}:{address[1]}"
        self._missed = missed

    def lost(self) -> None:
        """The line is down."""
        self._whole.lost()

    def found(self, reason: str, *, passes: bool) -> None:
        """Why, with the name of the master."""
        self._whole.found(f"{self._name}: {reason}", passes=passes)
        self._missed()

    def back(self) -> None:
        """The line is up again."""
        self._whole.back()

    def gone(self) -> None:
        """The line was down, and is no more."""
        self._whole.gone()

    def answered(self, seconds: float) -> None:
        """It was one of the cluster's."""
        self._whole.answered(seconds)
