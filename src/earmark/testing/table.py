"""Where tables are played: a limiter on a clock of its own, and what its backend must show."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Final, Self

from earmark.answers import LimitStatus
from earmark.errors import RateLimited, RequestIdConflict
from earmark.events import Event
from earmark.limiter import Limiter
from earmark.limits import Limit, Scope
from earmark.reservation import Reservation
from earmark.testing.clock import ManualClock
from earmark.testing.shape import BackendFactory, made
from earmark.testing.shown import limit_name, shown

ANY: Final[Any] = ...
"""As the expected value of a row: not looked at."""

_EARLIER: Final = 12
"""So many of the rows before the one that failed are shown."""


def label(key: str, limit: Limit) -> str:
    """The name of one limit of one scope, as rows write it: "key.tpm"."""
    return f"{key}.{limit_name(limit)}"


def expect(what: str, actual: object, expected: object) -> None:
    """Fail, with both values, unless they are equal. `ANY` equals everything."""
    if expected is not ANY and actual != expected:
        msg = f"{what}: got {actual!r}, expected {expected!r}"
        raise AssertionError(msg)


class Always(AssertionError):
    """What holds in every row does not, whatever the case is about.

    Attributes:
        what: what that is.
    """

    def __init__(self, what: str, got: str) -> None:
        self.what = what
        super().__init__(f"{what}: {got}")


def always(what: str, actual: object, expected: object) -> None:
    """As `expect`, of what holds in every row."""
    if actual != expected:
        raise Always(what, f"got {shown(actual)}, expected {shown(expected)}")


class Table:
    """A limiter on a clock that only rows move. Leaving it abandons what is still open.

    Args:
        make: makes the backend.
        lease: seconds for which the backend holds a slot.
        start: seconds since the epoch at which the clock stands.

    Raises:
        NotABackend: it could not be made, or is none.
    """

    def __init__(self, make: BackendFactory, *, lease: float = 60.0, start: float = 0.0) -> None:
        self.clock = ManualClock(start)
        self.backend: Any = made(make, self.clock, lease)
        self.played: list[str] = []
        self.events: list[Event] = []
        self.limiter = Limiter(self.backend, observers=(self.events.append,))
        self.handles: dict[str, Reservation] = {}
        self.scopes: dict[str, Scope] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A backend that has failed once may fail at this as well: the first error says more.
        with suppress(*() if error is None else (Exception,)):
            for handle in self.handles.values():
                await handle.abandon()
            await self.limiter.aclose()

    async def play(self, *rows: Row) -> None:
        """Play the rows in order; a failure names its row."""
        for number, row in enumerate(rows, 1):
            if row.at is not None:
                self.clock.set(row.at)
            try:
                await row.play(self)
            except BaseException as error:
                error.add_note(self._where(f"row {number} of {len(rows)}: {row!r}"))
                raise
            self.played.append(repr(row))

    def _where(self, row: str) -> str:
        """The row that failed, and what was played before it."""
        lines = [f"in {row}, when the clock stood at {self.clock():g}"]
        if self.played:
            left_out = len(self.played) - _EARLIER
            lines.append(f"  after{f' {left_out} others and' if left_out > 0 else ''}:")
            lines += [f"    {one}" for one in self.played[-_EARLIER:]]
        return "\n".join(lines)

    def know(self, scopes: Iterable[Scope]) -> None:
        """Remember scopes, so that rows can name their limits."""
        self.scopes.update((scope.key, scope) for scope in scopes)

    async def look(self) -> dict[str, LimitStatus]:
        """Every limit of every scope that was named so far, as `peek` shows it."""
        seen = await self.limiter.peek(*self.scopes.values()) if self.scopes else ()
        return {label(scope.key, one.limit): one for scope in seen for one in scope.limits}

    def size(self) -> int | None:
        """How many things the backend keeps, where it can tell."""
        size = getattr(self.backend, "size", None)
        return None if size is None else int(size())

    async def refusal(self, *scopes: Scope, **asks: Any) -> RateLimited:
        """The refusal of a pre_commit that must be refused."""
        try:
            self.handles["admitted"] = await self.limiter.pre_commit(*scopes, **asks)
        except RateLimited as refused:
            return refused
        msg = f"admitted, and should be refused: {asks}"
        raise AssertionError(msg)

    async def conflict(self, *scopes: Scope, **asks: Any) -> RequestIdConflict:
        """The error of a pre_commit whose id is open with other scopes or asks."""
        try:
            self.handles["no conflict"] = await self.limiter.pre_commit(*scopes, **asks)
        except RequestIdConflict as conflict:
            return conflict
        msg = f"admitted, and should be a RequestIdConflict: {asks}"
        raise AssertionError(msg)

    def kinds(self) -> list[str]:
        """The kinds of all events so far."""
        return [event.kind for event in self.events]


@dataclass(frozen=True, kw_only=True, repr=False)
class Row:
    """One line of a table: at `at`, or when the last one happened. A bare row only moves the clock."""

    at: float | None = None

    async def play(self, table: Table) -> None:
        """Do it, and fail unless it goes as the row says."""

    def __repr__(self) -> str:
        values = [
            f"{one.name}={shown(getattr(self, one.name))}"
            for one in fields(self)
            if getattr(self, one.name) not in (one.default, ANY, (), {}, None)
        ]
        return f"{type(self).__name__}({', '.join(values)})"
