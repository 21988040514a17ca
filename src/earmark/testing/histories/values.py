"""The words of the plain model: limits, scopes, asks, usages, entries, holds. Values, with no rule for changing them.

What a usage names and what is known of it (R6) is worked out here a second time, from the contract: a token metric
that nobody reported is not 0, and what was reported of it is charged all the same (C35, C40).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from earmark.usage import Usage

SECOND: Final = 1_000_000
KEEP: Final = 3_600 * SECOND
MOST: Final = 2**53 - 1
TOLERANCE: Final = 2.0**-48
TOKENS: Final = (
    "tokens",
    "input_tokens",
    "output_tokens",
    "uncached_tokens",
    "uncached_input_tokens",
)
BARE: Final = (60 * SECOND, 3_600 * SECOND, 86_400 * SECOND)

Asks: TypeAlias = Mapping[str, int]
Used: TypeAlias = "int | Usage | Mapping[str, int]"


class Line(NamedTuple):
    """One limit. `window` is in microseconds, 0 for concurrency."""

    metric: str
    amount: int
    window: int = 0
    algorithm: str = "fixed_window"
    burst: int | None = None

    @property
    def capacity(self) -> int:
        """The most that can be used at once. An amount of 0 admits nothing, whatever the burst."""
        return self.burst if self.burst is not None and self.amount else self.amount


class Place(NamedTuple):
    """One scope: a key with its limits, in the order in which they refuse."""

    key: str
    lines: tuple[Line, ...]
    enforce: bool = True


class Counter(NamedTuple):
    """What a count belongs to (R13): amount, burst and enforce are no part of it."""

    key: str
    metric: str
    window: int
    algorithm: str


class Entry(NamedTuple):
    """One thing that happened to one counter."""

    kind: Literal["count", "give", "reset"]
    at: int
    amount: int = 0
    window_at: int = 0
    """An instant of the window that it belongs to: for what is given back, when it was taken."""
    line: Line = Line("", 0)
    """The limit in the call that wrote it."""


class Debit(NamedTuple):
    """What an admission took of one limit; `entries` is how many entries its counter had then."""

    place: Place
    line: Line
    amount: int
    at: int
    entries: int


class Refusal(NamedTuple):
    """One limit that refused."""

    place: Place
    line: Line
    used: int
    asked: int

    @property
    def never(self) -> bool:
        """The ask is above what the limit can ever hold."""
        return max(self.asked, 1) > self.line.capacity


class Shown(NamedTuple):
    """One limit as a status shows it. Its reset is checked by what it promises."""

    line: Line
    used: int
    remaining: int
    would_refuse: bool


Statuses: TypeAlias = tuple[tuple[str, tuple[Shown, ...]], ...]


@dataclass(eq=False)
class Hold:
    """One reservation."""

    request_id: str
    places: tuple[Place, ...]
    asks: Asks
    at: int
    lease: int
    slots_until: float
    keep_until: float
    state: str = "open"
    debits: list[Debit] = field(default_factory=list[Debit])
    statuses: Statuses = ()

    def is_open(self, at: int) -> bool:
        """Unresolved, and kept for no longer than an hour after its last renewal."""
        return self.state == "open" and at < self.keep_until

    def has_slots(self) -> bool:
        """Whether it took any slot at all."""
        return any(line.metric == "concurrency" for place in self.places for line in place.lines)

    def holds_slot(self, key: str, at: int) -> bool:
        """Whether it holds a slot of `key`: a lease is over at the very moment at which it ends."""
        takes = any(
            p.key == key and any(x.metric == "concurrency" for x in p.lines) for p in self.places
        )
        return takes and self.state == "open" and at < self.slots_until


def counter_of(key: str, line: Line) -> Counter:
    """Return the counter of a limit under a key."""
    return Counter(key, line.metric, line.window, line.algorithm)


def within(number: int) -> int:
    """A counter never leaves 0 … 2**53 − 1."""
    return max(0, min(number, MOST))


def parts_of(used: Used) -> dict[str, int | None]:
    """Take a usage apart into what is known of it, None where it says nothing."""
    if isinstance(used, Usage):
        return {
            "total": used.reported_total,
            "input": used.input_tokens,
            "output": used.output_tokens,
            "cached": used.cached_input_tokens,
            "written": used.cache_write_tokens,
            "reasoning": used.reasoning_tokens,
        }
    names: Mapping[str, int] = {} if isinstance(used, int) else used
    return {
        "total": used if isinstance(used, int) else names.get("tokens"),
        "input": names.get("input_tokens"),
        "output": names.get("output_tokens"),
        "uncached": names.get("uncached_tokens"),
        "uncached_input": names.get("uncached_input_tokens"),
    }


def named_by(used: Used) -> dict[str, int]:
    """The metrics that a usage names, and their amounts (R6)."""
    if isinstance(used, int):
        return {"tokens": used}
    if not isinstance(used, Usage):
        return {metric: amount for metric, amount in used.items() if metric != "requests"}
    part = parts_of(used)
    read, written_out, cached = part["input"], part["output"], part["cached"]
    uncached = 0 if read == 0 else None if read is None or cached is None else max(0, read - cached)
    total = part["total"] if read is None or written_out is None else read + written_out
    both = None if uncached is None or written_out is None else uncached + written_out
    values = (total, read, written_out, both, uncached)
    return {m: within(v) for m, v in zip(TOKENS, values, strict=True) if v is not None}


def known_of(used: Used) -> dict[str, int]:
    """At least this much of each token metric was used: what is named, else the sum of its known parts (R6).

    Parts cannot exceed their known whole.
    """
    part, named = parts_of(used), named_by(used)

    def part_or_0(name: str) -> int:
        return part.get(name) or 0

    def pick(metric: str, known: int) -> int:
        return named[metric] if metric in named else min(known, whole)

    whole = named.get("tokens", MOST)
    parts_of_input = part_or_0("cached") + part_or_0("written") + part_or_0("uncached_input")
    read = pick("input_tokens", parts_of_input)
    wrote = pick("output_tokens", part_or_0("reasoning"))
    uncached_input = pick("uncached_input_tokens", min(part_or_0("written"), read))
    uncached = pick("uncached_tokens", uncached_input + wrote)
    tokens = pick("tokens", max(read + wrote, uncached))
    return dict(zip(TOKENS, (tokens, read, wrote, uncached, uncached_input), strict=True))


def asked(place: Place, asks: Asks) -> Iterator[tuple[Line, int]]:
    """The limits of a scope that a request is judged by, and what it asks of each (R1)."""
    for line in place.lines:
        if line.metric == "concurrency":
            yield line, 1
        elif line.metric in asks:
            yield line, asks[line.metric]


def asks_of(tokens: int | Usage, amounts: Mapping[str, int]) -> dict[str, int]:
    """What a request asks: one request, each token metric, and what it sets itself."""
    estimate = known_of(tokens) if isinstance(tokens, Usage) else {"tokens": tokens}
    return {"requests": 1} | dict.fromkeys(TOKENS, 0) | estimate | dict(amounts)
