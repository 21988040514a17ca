"""Random histories as values: a world of scopes and a list of steps, whose repr is the program to paste.

A history is drawn as a whole and run afterwards, so that it shrinks like a list and prints as one. Steps name scopes
and reservations by small numbers, modulo what there is: every list is a legal program, whatever shrinking leaves of it.
The simplest step is `Peek()`, which is what the machine does after each step anyway: a printed program leaves it out.

The numbers are small and alike on purpose, so that holds, limits and windows meet; the largest amounts are among
them (R12), and the jumps of time go to where something ends, and to the microseconds beside it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from hypothesis import strategies as st

from earmark import Usage
from tests.model_values import MOST, SECOND, Line, Place

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
        given = dict(self.named)
        lines = tuple(
            Line(metric, given[name], window, self.algorithm if window else "fixed_window")
            for name, (metric, window) in NAMED.items()
            if name in given
        )
        return Place(self.key, lines + self.also, self.enforce)

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
)


class History(NamedTuple):
    """A world and what happens in it. Its repr is the program to paste."""

    offers: tuple[Offer, ...]
    steps: tuple[Step, ...]

    def __repr__(self) -> str:
        offers = "".join(f"        {offer!r},\n" for offer in self.offers)
        steps = "".join(f"        {step!r},\n" for step in self.steps if step != Peek())
        return f"History(\n    (\n{offers}    ),\n    (\n{steps}    ),\n)"


# A tenth of the limits admit nothing, or as much as there is: more of them, and little else would happen.
amounts = st.sampled_from((10, 5, 3, 1, 2, 8, 20, 50, 100, 30, 12, 15, 6, 4, 2, 3, 5, 0, MOST))
windows = st.sampled_from((SECOND, 60 * SECOND, 3, 7 * SECOND, 250_000, 86_400 * SECOND))
asks = st.sampled_from((0, 1, 2, 3, 5, 8, 1, 2, 3, 4, 1, 2, 10, 13, 50, MOST))
small = st.integers(0, 3)
bursts = st.none() | amounts
some = st.sampled_from((None, None, 0, 1, 2, 3, 5, 9))
usages = st.builds(Usage, some, some, some, some, some, st.none() | st.integers(0, 40))
metrics = st.sampled_from(("images", "tokens", "requests", "input_tokens", "uncached_tokens"))
algorithms = st.sampled_from(("fixed_window", "sliding_window", "token_bucket"))
several = st.lists(small, min_size=1, max_size=3, unique=True).map(tuple)


@st.composite
def _lines(draw: st.DrawFn) -> Line:
    algorithm = draw(algorithms)
    burst = draw(bursts) if algorithm == "token_bucket" else None
    return Line(draw(metrics), draw(amounts), draw(windows), algorithm, burst)


@st.composite
def offers(draw: st.DrawFn) -> tuple[Offer, ...]:
    """Two or three scopes, each with some of the usual limits and up to three others."""
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=2, max_size=3, unique=True))
    found = []
    for key in keys:
        usual = draw(_usual)
        named = tuple((name, draw(amounts)) for name in NAMED if name in usual)
        offer = Offer(key, named, draw(algorithms), (), draw(st.integers(0, 5)) > 0)
        taken = {(line.metric, line.window, line.algorithm) for line in offer.place.lines}
        also = []
        for line in draw(st.lists(_lines(), max_size=3)):
            if (same := (line.metric, line.window, line.algorithm)) not in taken:
                taken.add(same)
                also.append(line)
        found.append(offer._replace(also=tuple(also)))
    return tuple(found)


_usual = st.lists(st.sampled_from((*NAMED, "concurrency", "concurrency", "tpm")), max_size=3)
_images = st.sampled_from(((), (), (), (("images", 2),), (("images", 0),), (("requests", 2),)))
_names = st.sampled_from((None,) * 7 + (0, 1, 2, -1))
_estimates = st.one_of(asks, asks, usages)
_mappings = st.sampled_from(
    (
        (("tokens", 4),),
        (("images", 1),),
        (("input_tokens", 3), ("output_tokens", 9)),
        (("requests", 9), ("tokens", 0), ("images", 5)),
        (("uncached_tokens", 6), ("tokens", MOST)),
    )
)
_offs = st.sampled_from((0, -1, 1))
_leases = st.sampled_from((None, None, 5, 0.5, 1e-6, 3_000.0))
_bad = st.sampled_from((-1, True, 1.0, float("nan"), 2**53, "1", None))

pre_commits = st.builds(PreCommit, several, _estimates, _images, _names, _leases)
settles = st.builds(Settle, small, st.one_of(asks, usages, _mappings))
finishes = st.builds(
    Finish,
    st.sampled_from(("close", "cancel", "renew", "drop", "abandon", "cancel", "enter", "leave")),
    small,
)
adds = st.builds(Add, small, st.one_of(asks, usages, st.just(-3)), st.booleans(), _names)
_waits = (1, 999_999, 100, 1, 20_000_000, 7_000_000, 250_000, -1, -70_000_000, 31_536_000_000_000)
waits = st.builds(Wait, st.sampled_from(_waits))
ends = st.builds(
    WaitFor,
    st.sampled_from(("window", "lease", "retry", "window", "lease", "window", "keep", "reset")),
    small,
    small,
    st.sampled_from((0, 0, 1, 2)),
    _offs,
)
amends = st.builds(Amend, small, small, amounts, bursts)
# What is drawn from, and how often: `one_of` would take each once.
kinds: st.SearchStrategy[st.SearchStrategy[Step]] = st.sampled_from(
    (
        st.builds(Peek),
        *(pre_commits,) * 14,
        st.builds(Again, small),
        *(settles,) * 6,
        *(finishes,) * 6,
        *(adds,) * 3,
        *(waits,) * 2,
        *(ends,) * 6,
        amends,
        st.one_of(st.builds(Reset, several), st.builds(Enforce, small, st.booleans())),
        st.builds(Bad, small, _bad),
    )
)


@st.composite
def histories(draw: st.DrawFn, steps: int) -> History:
    """Histories of so many steps; shorter ones are rare, but a failure shrinks to one."""
    length = min(draw(st.integers(0, 2**20)), steps)
    return History(draw(offers()), tuple(draw(draw(kinds)) for _ in range(length)))
