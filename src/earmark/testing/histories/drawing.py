"""Random histories: what is drawn of worlds and of steps, and how often.

The numbers are small and alike on purpose, so that holds, limits and windows meet; the largest amounts are among
them (R12), and the jumps of time go to where something ends, and to the microseconds beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from hypothesis import strategies as st

from earmark.testing.histories.steps import (
    NAMED,
    Add,
    Again,
    Amend,
    Bad,
    Enforce,
    Finish,
    History,
    Offer,
    Peek,
    PreCommit,
    Replay,
    Reset,
    Settle,
    Step,
    Wait,
    WaitFor,
)
from earmark.testing.histories.values import MOST, SECOND, Line
from earmark.usage import Usage

T = TypeVar("T")

KEYS: Final = ("a", "a:b", "{a}:tokens", "a\0b\n%", "ключ")

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
    found: list[Offer] = []
    for key in draw(_keys):
        usual = draw(_usual)
        named = tuple((name, draw(amounts)) for name in NAMED if name in usual)
        offer = Offer(key, named, draw(algorithms), (), draw(_enforced))
        taken = {(line.metric, line.window, line.algorithm) for line in offer.place.lines}
        also: list[Line] = []
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


def _asked(tokens: int | Usage, chosen: tuple[int, ...]) -> PreCommit:
    return PreCommit(chosen, tokens)


def _named(name: int | None, lease: float | None, images: tuple[tuple[str, int], ...]) -> PreCommit:
    return PreCommit((), 0, images, name, lease)


def _both(asked: PreCommit, more: PreCommit) -> PreCommit:
    return asked._replace(amounts=more.amounts, name=more.name, lease=more.lease)


def _settled(used: int | Usage | tuple[tuple[str, int], ...], hold: int) -> Settle:
    return Settle(hold, used)


def _added(used: int | Usage, name: int | None, bare: bool, offer: int) -> Add:  # noqa: FBT001
    return Add(offer, used, bare, name)


pre_commits = st.builds(
    _both,
    _all(_asked, ASKS + ASKS + USAGES, several),
    _all(_named, _names, _leases, _images),
)
settles = _all(_settled, ASKS + USAGES + MAPPINGS, HOLDS)
settles_last = _all(_settled, ASKS + USAGES + MAPPINGS, (0,))
adds = _all(_added, (1, -3, *ASKS, *USAGES), _names[:-1], (False, True), SMALL)
agains = _all(Again, HOLDS)
finishes = _all(Finish, _hows, HOLDS)
endings = _all(Finish, _hows[:-2], HOLDS)
"""Without entering and leaving `async with`."""
_waits_on = _all(Wait, _waits)
_waits_for = _all(WaitFor, _ends, SMALL, HOLDS, (0, 0, 1, 2), (0, -1, 1))
waits: st.SearchStrategy[Wait | WaitFor] = _waits_on | _waits_for
_amends = _all(Amend, SMALL, SMALL, AMOUNTS, (None, *AMOUNTS))
_resets = _all(Reset, several)
_enforces = _all(Enforce, SMALL, (False, True))
changes: st.SearchStrategy[Amend | Reset | Enforce] = _amends | _resets | _enforces
mistakes = _all(Bad, SMALL, _bad)
Kinds = tuple[st.SearchStrategy[Step], ...]


def _kinds(finishes: st.SearchStrategy[Finish]) -> Kinds:
    """What is drawn from, and how often: `one_of` would take each once."""
    return (
        st.just(Peek()),
        *(pre_commits,) * 14,
        agains,
        *(settles,) * 6,
        *(finishes,) * 6,
        *(adds,) * 3,
        *(_waits_on,) * 2,
        *(_waits_for,) * 6,
        _amends,
        _resets,
        _enforces,
        mistakes,
    )


ALL_KINDS: Final = _kinds(finishes)
OF_A_STORE: Final[Kinds] = (*ALL_KINDS, *(_all(Replay, (0, 1, 2, 4)),) * 4)
"""With messages that come twice, where there are messages."""
OF_ANY_GATEWAY: Final = _kinds(endings)
"""Without holders at work: how a backend renews for those is its own."""


@st.composite
def histories(
    draw: st.DrawFn, steps: int, *, replays: bool = False, kinds: Kinds | None = None
) -> History:
    """Histories of so many steps; shorter ones are rare, but a failure shrinks to one."""
    length = min(draw(st.integers(0, 2**20)), steps)
    kind = st.sampled_from(kinds or (OF_A_STORE if replays else ALL_KINDS))
    return History(draw(offers()), tuple(draw(draw(kind)) for _ in range(length)))
