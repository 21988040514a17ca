"""How the end of a stream resolves its reservation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from earmark.core.bill import Bill
from earmark.core.hold import Hold, Verb
from earmark.core.settlement import NOTHING, Amounts, known_of
from earmark.logs import about

if TYPE_CHECKING:
    from earmark.streams.observed import Observed
    from earmark.streams.telling import Conclude

logger = logging.getLogger("earmark")

Ending = tuple[Verb, Amounts, Amounts, Bill | None]
"""The verb, what is known exactly, what is known at least, and what it costs."""


def after_stream(observed: Observed) -> Ending:
    """How a stream's end resolves its reservation: leaving early is never cheaper than staying (B65).

    It never raises: a stream that has ended never leaves its reservation open, whatever it has reported.
    """
    gone = observed.outcome in {"cancelled", "dropped"}
    unknown: Verb = "abandon" if gone else "close"
    usage = observed.usage
    if usage is None:
        return unknown, NOTHING, NOTHING, None
    bill = Bill(usage, estimated=observed.estimated)
    try:
        if observed.authoritative or _failed_for_free(observed):
            return "settle", *known_of(usage), bill
        at_least = usage.floors()
    except Exception:
        logger.exception(
            "the usage of a stream could not be read: its reservation keeps its debit",
            extra=about("usage_unreadable"),
        )
        return unknown, NOTHING, NOTHING, None
    return unknown, NOTHING, at_least, bill


def _failed_for_free(observed: Observed) -> bool:
    """Whether an estimator says that a stream which failed before any output has cost nothing (C44).

    It is believed then alone: nothing was reported, and whoever leaves a stream cannot make it fail.
    """
    return (
        observed.estimated
        and observed.outcome == "error"
        and observed.text_length == 0
        and observed.usage is not None
        and observed.usage.total == 0
    )


class DroppedStream(NamedTuple):
    """A stream that nobody holds any more, as its finaliser notes it: what was observed is found out later."""

    hold: Hold
    conclude: Conclude
    drop: Callable[[Verb, Amounts, Amounts, Bill | None], None]

    async def do(self) -> bool:
        """Ask the dialect and the estimator, and note how they say that it is to be resolved."""
        self.drop(*after_stream(self.conclude()))
        return False
