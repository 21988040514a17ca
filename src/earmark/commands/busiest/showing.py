"""The busiest limits, as rows: how much is used of how much, until when, and who is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from earmark.answers import LimitStatus, ScopeStatus
from earmark.commands.busiest.finding import amount_is_known
from earmark.commands.words import briefly, columns, legible, percent
from earmark.limits import Limit, Scope

HEADS: Final = ("scope", "limit", "used", "of", "full", "resets in", "")
LEFT: Final = 2  # columns that are text


class Row(NamedTuple):
    """One limit of one scope."""

    scope: Scope
    status: LimitStatus

    @property
    def share(self) -> float:
        """How full it is, of 1; where nobody knows how much it allows, 0."""
        limit = self.status.limit
        return self.status.used / limit.capacity if amount_is_known(limit) else 0.0

    @property
    def refuses(self) -> bool:
        """Whether it has no room for another request, as far as anybody knows."""
        return amount_is_known(self.status.limit) and self.status.would_refuse

    @property
    def verdict(self) -> str:
        """The same in a word."""
        if not self.refuses:
            return ""
        return "refuses" if self.scope.enforce else "would refuse"

    def rank(self) -> tuple[bool, bool, float, int, str]:
        """What it is sorted by: who refuses, who would if it were enforced, the fullest, what is used most."""
        refused = self.refuses and self.scope.enforce
        return (not refused, not self.refuses, -self.share, -self.status.used, self.scope.key)

    def cells(self) -> tuple[str, ...]:
        """As it is shown."""
        status, known = self.status, amount_is_known(self.status.limit)
        return (
            legible(self.scope.key),
            _said(status.limit),
            f"{status.used:,}",
            f"{status.limit.capacity:,}" if known else "?",
            percent(self.share) if known else "?",
            "-" if status.reset_after is None else f"{status.reset_after:,.0f} s",
            self.verdict,
        )


def rows_of(scope: Scope, seen: ScopeStatus) -> list[Row]:
    """Every limit of which something is used."""
    return [Row(scope, status) for status in seen.limits if status.used]


def lines(rows: Sequence[Row], said: str) -> Iterator[str]:
    """As text."""
    yield said
    if rows:
        yield ""
        yield from columns(HEADS, [row.cells() for row in rows], left=LEFT)


def _said(limit: Limit) -> str:
    """A limit in few words, without the amount where it is unknown."""
    said = briefly(limit)
    return said if amount_is_known(limit) else said.partition(" ")[2]
