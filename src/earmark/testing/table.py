"""Where tables are played: a limiter on a clock of its own, and what its backend must show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Final, Protocol, Self

from earmark.answers import LimitStatus
from earmark.backends.protocol import Backend
from earmark.clock import Clock
from earmark.errors import RateLimited, RequestIdConflict
from earmark.events import Event
from earmark.limiter import Limiter
from earmark.limits import Limit, Scope
from earmark.reservation import Reservation
from earmark.testing.clock import ManualClock

ANY: Final[Any] = ...
"""As the expected value of a row: not looked at."""

_WINDOWS: Final[Mapping[float, str]] = {1: "s", 60: "m", 3_600: "h", 86_400: "d"}
_METRICS: Final = {"requests": "r", "tokens": "t", "input_tokens": "it", "output_tokens": "ot"}


def label(key: str, limit: Limit) -> str:
    """The name of one limit of one scope, as rows write it: "key.tpm"."""
    if limit.metric == "concurrency":
        return f"{key}.conc"
    window = limit.window or 0
    if limit.metric in _METRICS and window in _WINDOWS:
        return f"{key}.{_METRICS[limit.metric]}p{_WINDOWS[window]}"
    return f"{key}.{limit.metric}/{window:g}"


def expect(what: str, actual: object, expected: object) -> None:
    """Fail, with both values, unless they are equal. `ANY` equals everything."""
    if expected is not ANY and actual != expected:
        msg = f"{what}: got {actual!r}, expected {expected!r}"
        raise AssertionError(msg)


class BackendFactory(Protocol):
    """Makes a backend in which nothing is kept yet: `MemoryBackend` is one.

    Where what it makes has `size()`, how many things it keeps that still count, tables hold it to R2 and R14 as well.
    """

    def __call__(self, *, clock: Clock, lease: float) -> Backend:
        """Make one that is on this clock, and holds slots for `lease` seconds where nobody says otherwise."""
        ...


class Table:
    """A limiter on a clock that only rows move. Leaving it abandons what is still open.

    Args:
        make: makes the backend.
        lease: seconds for which the backend holds a slot.
        start: seconds since the epoch at which the clock stands.
    """

    def __init__(self, make: BackendFactory, *, lease: float = 60.0, start: float = 0.0) -> None:
        self.clock = ManualClock(start)
        self.backend: Any = make(clock=self.clock, lease=lease)
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
                error.add_note(f"in row {number} of {len(rows)}: {row!r}")
                raise

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
        shown = [
            f"{one.name}={getattr(self, one.name)!r}"
            for one in fields(self)
            if getattr(self, one.name) not in (one.default, ANY, (), {}, None)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"
