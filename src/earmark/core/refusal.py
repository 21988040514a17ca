"""Why a hold was refused: by its limits, or by shares of them where the store could not be asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from earmark.answers import Denial
from earmark.core.admission import denials
from earmark.core.hold import Hold
from earmark.limits import Limit


def refusal(hold: Hold) -> Iterator[Denial]:
    """Every limit of an enforcing scope that refused, in order (R3).

    Where it was a share that refused, the whole limit is named: what fits the whole may be asked again.
    """
    found = denials(hold.judged, hold.asks, hold.seen, hold.at)
    if not hold.degraded:
        return found
    wholes = {(scope.key, limit.id): limit for scope in hold.scopes for limit in scope.limits}
    return (_of_whole(denial, wholes[denial.key, denial.limit.id]) for denial in found)


def _of_whole(denial: Denial, whole: Limit) -> Denial:
    denial = replace(denial, limit=whole)
    if denial.retry_after is None and denial.retryable:
        return replace(denial, retry_after=denial.reset_after)
    return denial
