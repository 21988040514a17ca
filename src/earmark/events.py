"""What observers hear: one frozen record per event."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from earmark.answers import Denial
from earmark.logs import about

logger = logging.getLogger("earmark")

Kind = Literal[
    "admitted", "refused", "settled", "closed", "abandoned", "cancelled", "post_stream", "expired"
]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a request.

    Attributes:
        kind: `admitted` and `refused` at pre_commit; `settled`, `closed`, `abandoned` and `cancelled` once
            per reservation; `post_stream` for tokens without a hold; `expired` where the backend gave up
            a reservation that nobody resolved.
        request_id: the request's id; None where a refused or added one was given none.
        keys: the keys of its scopes, in order.
        asked: units by metric that were asked and, where admitted, held.
        used: units by metric as the resolving call named them; empty where nothing is known.
        denials: every limit that refused.
        dropped: whether it was abandoned since its handle was collected while open, which a `ResourceWarning` says too.
        time: seconds since the epoch, by this process's wall clock, for a log line; decisions never use it.
    """

    kind: Kind
    request_id: str | None
    keys: tuple[str, ...]
    asked: Mapping[str, int] = field(default_factory=dict[str, int])
    used: Mapping[str, int] = field(default_factory=dict[str, int])
    denials: tuple[Denial, ...] = ()
    time: float = field(default_factory=time.time)
    dropped: bool = False

    def __post_init__(self) -> None:
        # Copies: what an observer hears of is the library's own record.
        object.__setattr__(self, "asked", dict(self.asked))
        object.__setattr__(self, "used", dict(self.used))


Observer = Callable[[Event], object]


def tell(observers: tuple[Observer, ...], event: Event) -> None:
    """Tell every observer; one that raises is logged and disturbs nobody."""
    for observer in observers:
        try:
            observer(event)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a plain function is not where a task is cancelled
            logger.exception(
                "the observer %s failed on %s",
                # By its name: what an application has put into it is in its repr.
                getattr(observer, "__qualname__", type(observer).__qualname__),
                event.kind,
                extra=about("observer_failed", kind=event.kind),
            )
