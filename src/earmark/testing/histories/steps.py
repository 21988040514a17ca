"""Histories as values: a world of scopes and a list of steps, whose repr is the program to paste.

A history is drawn as a whole and run afterwards, so that it shrinks like a list and prints as one. Steps name scopes
and reservations by small numbers, modulo what there is: every list is a legal program, whatever shrinking leaves of it.
The simplest step is `Peek()`, which is what a driver does after each step anyway: a printed program leaves it out.
"""

from __future__ import annotations

import functools
from typing import Any, Final, NamedTuple, TypeAlias

from earmark.testing.histories.values import SECOND, Line, Place
from earmark.usage import Usage

# The usual names, in the order in which they refuse: metric and window.
NAMED: Final = {
    "rps": ("requests", SECOND),
    "rpm": ("requests", 60 * SECOND),
    "rph": ("requests", 3_600 * SECOND),
    "rpd": ("requests", 86_400 * SECOND),
    "tpm": ("tokens", 60 * SECOND),
    "tph": ("tokens", 3_600 * SECOND),
    "tpd": ("tokens", 86_400 * SECOND),
    "itpm": ("input_tokens", 60 * SECOND),
    "otpm": ("output_tokens", 60 * SECOND),
    "concurrency": ("concurrency", 0),
}


class Offer(NamedTuple):
    """A scope as its owner writes it: limits by their usual names, and others."""

    key: str
    named: tuple[tuple[str, int], ...] = ()
    algorithm: str = "fixed_window"
    also: tuple[Line, ...] = ()
    enforce: bool = True

    @property
    def place(self) -> Place:
        """What the model takes it for."""
        return _place(self)

    def amended(self, index: int, amount: int, burst: int | None) -> Offer:
        """Give the limit at `index` another amount, and a bucket of `also` another burst."""
        if index < len(self.named):
            named = list(self.named)
            named[index] = (named[index][0], amount)
            return self._replace(named=tuple(named))
        also = list(self.also)
        line = also[index - len(named_ := self.named)]
        burst = burst if line.algorithm == "token_bucket" else None
        also[index - len(named_)] = line._replace(amount=amount, burst=burst)
        return self._replace(also=tuple(also))


@functools.lru_cache(4_096)
def _place(offer: Offer) -> Place:
    given = dict(offer.named)
    lines = tuple(
        Line(metric, given[name], window, offer.algorithm if window else "fixed_window")
        for name, (metric, window) in NAMED.items()
        if name in given
    )
    return Place(offer.key, lines + offer.also, offer.enforce)


class PreCommit(NamedTuple):
    """Ask. `name`: a number of the caller's own ids, None: a new one, below 0: that of a reservation, from the last."""

    offers: tuple[int, ...] = (0,)
    tokens: int | Usage = 0
    amounts: tuple[tuple[str, int], ...] = ()
    name: int | None = None
    lease: float | None = None


class Again(NamedTuple):
    """Ask for the id of a reservation again, with what it asked of its scopes, these in another order."""

    hold: int = 0


class Settle(NamedTuple):
    """Settle; `hold` counts reservations from the last one backwards."""

    hold: int = 0
    used: int | Usage | tuple[tuple[str, int], ...] = 0


class Finish(NamedTuple):
    """Close, abandon, cancel, renew, drop the handle, enter or leave `async with`."""

    how: str = "close"
    hold: int = 0


class Add(NamedTuple):
    """Count tokens afterwards, for a scope or for its bare key."""

    offer: int = 0
    used: int | Usage = 1
    bare: bool = False
    name: int | None = None


class Reset(NamedTuple):
    """Forgive."""

    offers: tuple[int, ...] = (0,)


class Peek(NamedTuple):
    """Look: no more than the machine does after each step."""


class Wait(NamedTuple):
    """Let time pass. Negative: the clock steps back, and time stands still."""

    us: int = 0


class WaitFor(NamedTuple):
    """Let time pass until something ends, and `off` microseconds more.

    `what`: the end of the window of a limit (`which`), `more` windows later, the end of the lease of a hold (`which`),
    the end of its `keep`, what the last refusal told to wait, or a `reset_after` that was seen.
    """

    what: str = "window"
    offer: int = 0
    which: int = 0
    more: int = 0
    off: int = 0


class Amend(NamedTuple):
    """Change the amount of a limit from now on (R17)."""

    offer: int = 0
    which: int = 0
    amount: int = 0
    burst: int | None = None


class Enforce(NamedTuple):
    """Roll a scope out, or back."""

    offer: int = 0
    enforce: bool = False


class Bad(NamedTuple):
    """A call with a bad amount: an error before anything changes (R12)."""

    offer: int = 0
    value: Any = -1

    def __repr__(self) -> str:
        """As an expression: what is no number has no literal."""
        value = f"float('{self.value}')" if isinstance(self.value, float) else repr(self.value)
        return f"Bad(offer={self.offer!r}, value={value})"


class Replay(NamedTuple):
    """Send a message to the store once more: the last that may have changed anything, or the `back`-th before it."""

    back: int = 0


Step: TypeAlias = (
    PreCommit
    | Again
    | Settle
    | Finish
    | Add
    | Reset
    | Peek
    | Wait
    | WaitFor
    | Amend
    | Enforce
    | Bad
    | Replay
)


class History(NamedTuple):
    """A world and what happens in it. Its repr is the program to paste."""

    offers: tuple[Offer, ...]
    steps: tuple[Step, ...]

    def __repr__(self) -> str:
        offers = "".join(f"        {offer!r},\n" for offer in self.offers)
        steps = "".join(f"        {step!r},\n" for step in self.steps if step != Peek())
        return f"History(\n    (\n{offers}    ),\n    (\n{steps}    ),\n)"
