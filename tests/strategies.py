"""Random histories as values: a world of scopes and a list of steps, whose repr is the program to paste.

A history is drawn as a whole and run afterwards, so that it shrinks like a list and prints as one. Steps name scopes
and reservations by small numbers, modulo what there is: every list is a legal program, whatever shrinking leaves of it.
The simplest step is `Peek()`, which is what the machine does after each step anyway: a printed program leaves it out.

The numbers are small and alike on purpose, so that holds, limits and windows meet; the largest amounts are among
them (R12), and the jumps of time go to where something ends, and to the microseconds beside it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from hypothesis import strategies as st

from earmark import Usage
from tests.model_values import MOST, SECOND, Line, Place

T = TypeVar("T")

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
KEYS: Final = ("a", "a:b", "{a}:tokens", "a\0b\n%", "ключ")


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


# A draw costs more than a step, so that most steps are drawn whole from all that there are, the simplest first.
# A tenth of the limits admit nothing, or as much as there is: more of them, and little else would happen.
AMOUNTS: Final = (10, 5, 3, 1, 2, 8, 20, 50, 100, 30, 12, 15, 6, 4, 2, 3, 5, 0, MOST)
WINDOWS: Final = (SECOND, 60 * SECOND, 3, 7 * SECOND, 250_000, 86_400 * SECOND)
ASKS: Final = (0, 1, 2, 3, 5, 8, 1, 2, 3, 4, 1, 2, 10, 13, 50, MOST)
METRICS: Final = (
    "images",
    "tokens",
    "requests",
    "input_tokens",
    "uncached_tokens",
    "uncached_input_tokens",
)
ALGORITHMS: Final = ("fixed_window", "sliding_window", "token_bucket")
SMALL: Final = (0, 1, 2, 3)
HOLDS: Final = (0, 1, 0, 2, 0, 1, 0, 3)  # mostly the last one, so that what happens to it adds up
USAGES: Final = tuple(
    itertools.starmap(
        Usage,
        (
            (3, 4),
            (0, 0),
            (5, 2, 4),
            (5, 2, 9, 1),
            (None, 3),
            (2,),
            (None, 3, 2, 9, 1, 18),
            (None, None, 3, 4, 5),
            (None, None, 3, 4, 5, 6),
            (0, None, None, 2),
            (),
            (None, None, None, None, 3),
            (None, None, None, None, None, 7),
            (9, None, None, 2, 9),
            (3, 5, None, 7, 4, 1),
            (9, 9, 0, 0, 0, 20),
            (0, 5, 3),
            (MOST, MOST, 1),
        ),
    )
)
MAPPINGS: Final = (
    (("tokens", 4),),
    (("images", 1),),
    (("input_tokens", 3), ("output_tokens", 9)),
    (("requests", 9), ("tokens", 0), ("images", 5)),
    (("uncached_tokens", 6), ("tokens", MOST)),
    (("uncached_input_tokens", 7), ("output_tokens", 2)),
    (("uncached_input_tokens", 7), ("tokens", 4)),
    (("output_tokens", 3), ("uncached_tokens", 8)),
)


def _all(make: Callable[..., T], *choices: Iterable[object]) -> st.SearchStrategy[T]:
    """One of all combinations."""
    return st.sampled_from(tuple(itertools.starmap(make, itertools.product(*choices))))


amounts = st.sampled_from(AMOUNTS)
several = tuple(itertools.chain.from_iterable(itertools.permutations(SMALL, n) for n in (1, 2, 3)))
algorithms = st.sampled_from(ALGORITHMS)
_lines = _all(Line, METRICS, AMOUNTS, WINDOWS, ALGORITHMS)
_usual = st.lists(st.sampled_from((*NAMED, "concurrency", "concurrency", "tpm")), max_size=3)
_keys = st.lists(st.sampled_from(KEYS), min_size=2, max_size=3, unique=True)
_enforced = st.sampled_from((True, True, True, True, True, False))


@st.composite
def offers(draw: st.DrawFn) -> tuple[Offer, ...]:
    """Two or three scopes, each with some of the usual limits and up to three others."""
    found = []
    for key in draw(_keys):
        usual = draw(_usual)
        named = tuple((name, draw(amounts)) for name in NAMED if name in usual)
        offer = Offer(key, named, draw(algorithms), (), draw(_enforced))
        taken = {(line.metric, line.window, line.algorithm) for line in offer.place.lines}
        also = []
        for line in draw(st.lists(_lines, max_size=3)):
            if (same := (line.metric, line.window, line.algorithm)) not in taken:
                taken.add(same)
                bucket = line.algorithm == "token_bucket"
                also.append(line._replace(burst=draw(st.none() | amounts) if bucket else None))
        found.append(offer._replace(also=tuple(also)))
    return tuple(found)


_images = ((), (), (), (("images", 2),), (("images", 0),), (("requests", 2),))
_names = (*(None,) * 7, 0, 1, 2, -1)
_leases = (None, None, 5, 0.5, 1e-6, 3_000.0)
_bad = (-1, True, 1.0, float("nan"), 2**53, "1", None)
_hows = ("close", "cancel", "renew", "drop", "abandon", "cancel", "enter", "leave")
_ends = ("window", "lease", "retry", "window", "lease", "window", "keep", "reset")
_waits = (1, 999_999, 100, 1, 20_000_000, 7_000_000, 250_000, -1, -70_000_000, 31_536_000_000_000)

pre_commits = st.builds(
    lambda asked, more: asked._replace(amounts=more.amounts, name=more.name, lease=more.lease),
    _all(lambda tokens, chosen: PreCommit(chosen, tokens), ASKS + ASKS + USAGES, several),
    _all(
        lambda name, lease, images: PreCommit((), 0, images, name, lease), _names, _leases, _images
    ),
)
settles = _all(lambda used, hold: Settle(hold, used), ASKS + USAGES + MAPPINGS, HOLDS)
adds = _all(
    lambda used, name, bare, offer: Add(offer, used, bare, name),
    (1, -3, *ASKS, *USAGES),
    _names[:-1],
    (False, True),
    SMALL,
)
# What is drawn from, and how often: `one_of` would take each once.
_kinds: tuple[st.SearchStrategy[Step], ...] = (
    st.just(Peek()),
    *(pre_commits,) * 14,
    _all(Again, HOLDS),
    *(settles,) * 6,
    *(_all(Finish, _hows, HOLDS),) * 6,
    *(adds,) * 3,
    *(_all(Wait, _waits),) * 2,
    *(_all(WaitFor, _ends, SMALL, HOLDS, (0, 0, 1, 2), (0, -1, 1)),) * 6,
    _all(Amend, SMALL, SMALL, AMOUNTS, (None, *AMOUNTS)),
    _all(Reset, several),
    _all(Enforce, SMALL, (False, True)),
    _all(Bad, SMALL, _bad),
)
kinds = st.sampled_from(_kinds)


# The same with messages that come twice, where there are messages.
kinds_of_a_store = st.sampled_from((*_kinds, *(_all(Replay, (0, 1, 2, 4)),) * 4))


@st.composite
def histories(draw: st.DrawFn, steps: int, *, replays: bool = False) -> History:
    """Histories of so many steps; shorter ones are rare, but a failure shrinks to one."""
    length = min(draw(st.integers(0, 2**20)), steps)
    kind = kinds_of_a_store if replays else kinds
    return History(draw(offers()), tuple(draw(draw(kind)) for _ in range(length)))
