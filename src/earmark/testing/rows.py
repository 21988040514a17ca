"""Tables of rows, in the notation of the cases, and the one runner that plays them.

    hundred = key("key", tpm=100)
    async with Table(MyBackend) as table:
        await table.play(
            R("r1", hundred, tok=80, at=55),
            R("r2", hundred, tok=80, at=61),
            S("r1", 0, at=62),
            R("r3", hundred, tok=30, at=63, deny="key.tpm", after=57),
            used("key.tpm", 80),
        )

`R` is a pre_commit, `S` a settle_success, `C`, `A` and `X` close, abandon and cancel, `P` an
add_tokens_post_stream, `N` a renew, `Z` a reset, `Gone` a handle that is dropped while open. `at=` moves the
clock, and nothing else does. A limit is named by its scope's key and its usual name: "key.tpm", "key.conc", or
"key.images/10" where it has none.

The runner holds every row to the rules that hold always, so that no table has to say them:

* a refusal changes nothing and creates nothing (R2), every refusing limit is listed, in order, and the whole
  follows from the parts (R3);
* an admission's statuses are what `peek` shows;
* one event, of the right kind, for each admission, refusal and resolution, and none for a lost race (R5).
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from earmark.errors import RateLimited
from earmark.limits import Limits, Scope
from earmark.reservation import Reservation
from earmark.testing.table import ANY, Row, Table, always, expect, label
from earmark.usage import Usage

__all__ = [
    "ANY",
    "VERBS",
    "A",
    "C",
    "Empty",
    "Gone",
    "N",
    "P",
    "R",
    "Resolve",
    "S",
    "See",
    "Table",
    "X",
    "Z",
    "key",
    "resolve",
    "used",
]

_STATUSES: Final = "statuses, told from `hold.seen` (the states before the debit), against what peek shows was kept"

VERBS: Final = {
    "settle_success": "settled",
    "close_reserved_only": "closed",
    "abandon": "abandoned",
    "cancel": "cancelled",
}
"""Each resolving verb, and the state that it leads to."""


def resolve(handle: Reservation, verb: str, usage: int = 25) -> Awaitable[bool]:
    """Call a verb of the handle itself; a settlement uses `usage`."""
    answer: Awaitable[bool] = getattr(handle, verb)(*([usage] if verb == "settle_success" else []))
    return answer


@dataclass(frozen=True, init=False, repr=False)
class R(Row):
    """A pre_commit under the name `name`: admitted, or refused by exactly the limits that `deny` lists.

    `after` is the retry_after of the whole, None where there must be none; `never` says that it must not be
    retryable. The asks are `tok`, an int or a `Usage`, and `amounts`.
    """

    name: str
    scopes: tuple[Scope, ...]
    deny: tuple[str, ...] = ()
    after: float | None = ANY
    never: bool = False
    arguments: Mapping[str, Any] = field(hash=False, default_factory=dict[str, Any])

    def __init__(
        self,
        name: str,
        *scopes: Scope,
        tok: int | Usage = 0,
        at: float | None = None,
        deny: str = "",
        after: float | None = ANY,
        never: bool = False,
        **arguments: Any,
    ) -> None:
        values: dict[str, Any] = {
            "name": name,
            "scopes": scopes,
            "at": at,
            "deny": tuple(deny.split()),
        }
        values |= {"after": after, "never": never, "arguments": {"tokens": tok, **arguments}}
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def __repr__(self) -> str:
        return super().__repr__().replace("arguments=", "")

    async def play(self, table: Table) -> None:
        table.know(self.scopes)
        before = (await table.look(), table.size())
        told = len(table.events)
        try:
            handle = await table.limiter.pre_commit(*self.scopes, **self.arguments)
        except RateLimited as refusal:
            self._refused(refusal)
            looked, size = before
            changed = {
                of: f"{looked[of].used} used before, {one.used} after"
                for of, one in (await table.look()).items()
                if one != looked[of]
            }
            always("what a refusal changed (R2)", changed, {})
            always("how much is kept after a refusal (R2)", table.size(), size)
            expect(
                "events", [kind for kind in table.kinds()[told:] if kind != "expired"], ["refused"]
            )
            return
        table.handles[self.name] = handle
        expect("admitted, where these should refuse", (), self.deny)
        expect("state", handle.state, "open")
        always(_STATUSES, *await self._both(table, handle))
        expect("events", [kind for kind in table.kinds()[told:] if kind != "expired"], ["admitted"])

    async def _both(self, table: Table, handle: Reservation) -> tuple[object, object]:
        """What the statuses say and what `peek` shows, of the limits of which that differs."""
        told, seen = (
            {label(scope.key, one.limit): one for scope in statuses for one in scope.limits}
            for statuses in (handle.statuses, await table.limiter.peek(*self.scopes))
        )
        both = [
            (
                f"{of} used {one.used}, left {one.remaining}, resets {one.reset_after}",
                f"{of} used {seen[of].used}, left {seen[of].remaining}, resets {seen[of].reset_after}",
            )
            for of, one in told.items()
        ]
        differ = [pair for pair in both if pair[0] != pair[1]]
        return [one for one, _ in differ], [other for _, other in differ]

    def _refused(self, refusal: RateLimited) -> None:
        denials = refusal.denials
        expect("refused by", tuple(label(one.key, one.limit) for one in denials), self.deny)
        expect("retry_after", refusal.retry_after, self.after)
        expect("retryable", refusal.retryable, not self.never)
        waits = [one.retry_after for one in denials if one.retry_after is not None]
        whole = max(waits) if waits and refusal.retryable else None
        expect("retry_after of the whole (R3)", refusal.retry_after, whole)
        for one in denials:
            if one.limit.metric == "concurrency":
                expect(
                    "times of a concurrency limit", (one.retry_after, one.reset_after), (None, None)
                )
            elif one.retry_after is not None:
                micros = one.retry_after * 1_000_000
                expect(
                    "positive whole microseconds",
                    (micros > 0, abs(micros - round(micros)) < 0.001),  # noqa: PLR2004 - a rounding error
                    (True, True),
                )


@dataclass(frozen=True, repr=False)
class Resolve(Row):
    """A verb on the handle of `name`; `won` says whether this call must be the one that resolves."""

    name: str
    verb: str
    usage: int | Usage | Mapping[str, int] | None = None
    won: bool = True

    async def play(self, table: Table) -> None:
        handle, told = table.handles[self.name], len(table.events)
        arguments = () if self.usage is None else (self.usage,)
        expect(self.verb, await getattr(table.limiter, self.verb)(handle, *arguments), self.won)
        if self.won:
            expect("state", handle.state, VERBS[self.verb])
        events = [event for event in table.events[told:] if event.kind in VERBS.values()]
        expected = [(VERBS[self.verb], handle.request_id)] if self.won else []
        expect("events", [(event.kind, event.request_id) for event in events], expected)


def S(  # noqa: N802 - the notation of the cases
    name: str, usage: int | Usage | Mapping[str, int], *, at: float | None = None, won: bool = True
) -> Resolve:
    """A settle_success with `usage`."""
    return Resolve(name, "settle_success", usage, won, at=at)


def C(name: str, *, at: float | None = None, won: bool = True) -> Resolve:  # noqa: N802
    """A close_reserved_only."""
    return Resolve(name, "close_reserved_only", None, won, at=at)


def A(name: str, *, at: float | None = None, won: bool = True) -> Resolve:  # noqa: N802
    """An abandon."""
    return Resolve(name, "abandon", None, won, at=at)


def X(name: str, *, at: float | None = None, won: bool = True) -> Resolve:  # noqa: N802
    """A cancel."""
    return Resolve(name, "cancel", None, won, at=at)


@dataclass(frozen=True, repr=False)
class N(Row):
    """A renew by the handle of `name`, which must answer `held`."""

    name: str
    held: bool = True

    async def play(self, table: Table) -> None:
        expect("renew", await table.handles[self.name].renew(), self.held)


@dataclass(frozen=True, repr=False)
class P(Row):
    """An add_tokens_post_stream of `tokens` for a bare key or a scope."""

    target: str | Scope
    tokens: int | Usage
    id: str | None = None

    async def play(self, table: Table) -> None:
        if isinstance(self.target, Scope):
            table.know((self.target,))
        await table.limiter.add_tokens_post_stream(self.target, self.tokens, request_id=self.id)


@dataclass(frozen=True, init=False, repr=False)
class Z(Row):
    """A reset of `scopes`."""

    scopes: tuple[Scope, ...]

    def __init__(self, *scopes: Scope, at: float | None = None) -> None:
        object.__setattr__(self, "scopes", scopes)
        object.__setattr__(self, "at", at)

    async def play(self, table: Table) -> None:
        table.know(self.scopes)
        await table.limiter.reset(*self.scopes)


@dataclass(frozen=True, repr=False)
class Gone(Row):
    """The handle of `name` is dropped while open: one ResourceWarning, and it is abandoned (R15)."""

    name: str

    async def play(self, table: Table) -> None:
        handles = [table.handles.pop(self.name)]
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            handles.clear()
        ours = [one.category for one in warned if isinstance(one.source, Reservation)]
        warned.clear()  # a warning names its source
        expect("warnings", ours, [ResourceWarning])


@dataclass(frozen=True, repr=False)
class See(Row):
    """What `peek` shows of one limit: `of` names it, `scope` where no earlier row did."""

    of: str
    used: int = ANY
    left: int = ANY
    resets: float | None = ANY
    refuses: bool = ANY
    scope: Scope | None = None

    async def play(self, table: Table) -> None:
        if self.scope is not None:
            table.know((self.scope,))
        status = (await table.look())[self.of]
        expect(f"used of {self.of}", status.used, self.used)
        expect(f"remaining of {self.of}", status.remaining, self.left)
        expect(f"reset_after of {self.of}", status.reset_after, self.resets)
        expect(f"would_refuse of {self.of}", status.would_refuse, self.refuses)


def used(of: str, n: int, *, at: float | None = None, scope: Scope | None = None) -> See:
    """What is used of the limit that `of` names."""
    return See(of, used=n, at=at, scope=scope)


@dataclass(frozen=True, repr=False)
class Empty(Row):
    """The backend keeps nothing: its size is that of one that was never asked (R14)."""

    async def play(self, table: Table) -> None:
        expect("how much is kept (R14)", table.size() or 0, 0)


def key(name: str = "key", /, **limits: Any) -> Scope:
    """Return a scope, by its key and its limits: `key("a", rpm=3)`."""
    return Scope(name, Limits(**limits))
