"""What the random tests reached: a random test that never meets a refusal proves nothing about refusals.

A test counts what each of its histories went through and requires a least share of each at its end; the sums over
all tests stand in pytest's closing summary, whether they ran in one process or were spread by xdist.

    reached = Reached("machine")
    ...
    reached.history({"refusal", "rollover"})    # once per history, with what it went through
    reached.count("suspension points", 57)      # a plain sum
    ...
    reached.require(0.05, {"refusal", "rollover", "lapsed lease"})
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

# By name: the number of histories, the histories per mark, the plain sums. Only what xdist can send.
Totals: TypeAlias = dict[str, tuple[int, dict[str, int], dict[str, int]]]

_ALL: Final[list[Reached]] = []


class Reached:
    """The counts of one random test. Several with one name add up in the summary."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.histories = 0
        self.marks: Counter[str] = Counter()
        self.sums: Counter[str] = Counter()
        _ALL.append(self)

    def history(self, marks: Iterable[str] = ()) -> None:
        """Count one history that went through `marks`, each at most once."""
        self.histories += 1
        self.marks.update(set(marks))

    def count(self, what: str, n: int = 1) -> None:
        """Add `n` to a plain sum."""
        self.sums[what] += n

    def share(self, mark: str) -> float:
        """The share of the histories that went through `mark`, from 0 to 1."""
        return self.marks[mark] / self.histories if self.histories else 0.0

    def require(self, share: float, marks: Iterable[str]) -> None:
        """Fail unless each of `marks` was met in at least `share` of the histories."""
        rare = {
            mark: round(self.share(mark), 4)
            for mark in sorted(set(marks))
            if self.share(mark) < share
        }
        assert not rare, (
            f"{self.name}: fewer than {share:.0%} of {self.histories} histories had {rare}"
        )


def totals() -> Totals:
    """What this process reached, added up by name."""
    sums: Totals = {}
    for one in _ALL:
        if one.histories or one.sums:
            add(sums, {one.name: (one.histories, dict(one.marks), dict(one.sums))})
    return sums


def add(sums: Totals, more: Mapping[str, tuple[int, dict[str, int], dict[str, int]]]) -> None:
    """Add the totals of another process to `sums`."""
    for name, (histories, marks, plain) in more.items():
        had, had_marks, had_plain = sums.get(name, (0, {}, {}))
        sums[name] = (
            had + histories,
            dict(Counter(had_marks) + Counter(marks)),
            dict(Counter(had_plain) + Counter(plain)),
        )


def lines(sums: Totals) -> Iterator[str]:
    """The summary, line by line."""
    for name, (histories, marks, plain) in sorted(sums.items()):
        if histories:
            yield f"{name}: {histories:,} histories"
        for mark, n in sorted(marks.items()):
            yield f"{name}: share of histories with {mark}: {n / histories:.1%}"
        for what, n in sorted(plain.items()):
            yield f"{name}: {what}: {n:,}"
