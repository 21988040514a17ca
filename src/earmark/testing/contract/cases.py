"""What a case of the contract is: a short history, what must come of it, and the rules that say so.

A case is a plain async function that plays on a bench. Its docstring begins with what it proves, by number
("C17, R6: …"), and it may come in several variants:

    cases = Cases()

    @cases(each("algorithm", ALGORITHMS))
    async def c11_an_oversized_ask_burns_nothing(bench: Bench, algorithm: Algorithm) -> None:
        \"\"\"C11: the refused ask of 5 also consumed what was left.\"\"\"
        await bench.play(…)
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from earmark.limits import Algorithm
from earmark.testing.shape import BackendFactory
from earmark.testing.shown import shown
from earmark.testing.table import Row, Table

ALGORITHMS: Final[tuple[Algorithm, ...]] = ("fixed_window", "sliding_window", "token_bucket")

_SHORT: Final = 60
_PROVES: Final = re.compile(r"((?:[RBC]\d+[a-z]?(?:, )?)+): (.*)", re.DOTALL)


class Bench:
    """Where a case is played: every table on it has a backend of its own, in which nothing is kept yet."""

    def __init__(self, make: BackendFactory) -> None:
        self._make = make

    def table(self, *, lease: float = 60.0, start: float = 0.0) -> Table:
        """A table of rows, to be entered by `async with`."""
        return Table(self._make, lease=lease, start=start)

    async def play(self, *rows: Row, lease: float = 60.0, start: float = 0.0) -> None:
        """Play one table from nothing."""
        async with self.table(lease=lease, start=start) as table:
            await table.play(*rows)


@dataclass(frozen=True)
class Case:
    """One case in one variant.

    Attributes:
        name: begins with the number of what it proves: "c17_a_refund_after_…".
        variant: which of several it is, in words; empty where there is one.
        rules: the rules (R), behaviours (B) and cases (C) that it proves.
        says: what must hold, in a sentence.
    """

    name: str
    variant: str
    rules: tuple[str, ...]
    says: str
    body: Callable[[Bench], Awaitable[None]] = field(repr=False)

    async def check(self, make: BackendFactory) -> None:
        """Play it on backends that `make` makes.

        Raises:
            AssertionError: something came out otherwise; its notes say where, and what rule that breaks.
        """
        try:
            await self.body(Bench(make))
        except Exception as error:
            error.add_note(f"{', '.join(self.rules)}: {self.says}")
            raise

    def __str__(self) -> str:
        return f"{self.name}[{self.variant}]" if self.variant else self.name


class Each(NamedTuple):
    """Arguments of a case, and what they may be."""

    names: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]


def each(names: str | tuple[str, ...], values: Iterable[Any]) -> Each:
    """One variant for each of the values; with several names a value is a tuple of so many."""
    if isinstance(names, str):
        return Each((names,), tuple((value,) for value in values))
    return Each(names, tuple(tuple(value) for value in values))


class Cases:
    """The cases of one table, in order. Calling it registers one more."""

    def __init__(self) -> None:
        self._all: list[Case] = []

    def __call__(
        self, *variants: Each
    ) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., Awaitable[None]]]:
        """Register a function, in every combination of its variants."""

        def register(body: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
            found = _PROVES.fullmatch(body.__doc__ or "")
            if found is None:
                msg = f"{body.__name__} does not say which rule it proves"
                raise ValueError(msg)
            rules = tuple(re.findall(r"[RBC]\d+", found[1]))
            says = " ".join(found[2].split())
            for chosen in itertools.product(*(one.values for one in variants)):
                arguments = {
                    name: value
                    for one, values in zip(variants, chosen, strict=True)
                    for name, value in zip(one.names, values, strict=True)
                }
                variant = "-".join(map(_short, arguments.values()))
                if any((case.name, case.variant) == (body.__name__, variant) for case in self._all):
                    variant += f"-{len(self._all)}"
                case = Case(body.__name__, variant, rules, says, partial(body, **arguments))
                self._all.append(case)
            return body

        return register

    def __iter__(self) -> Iterator[Case]:
        return iter(self._all)


def _short(value: object) -> str:
    # A function's repr has its address, which no two processes have in common.
    text = value if isinstance(value, str) else getattr(value, "__name__", None) or shown(value)
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"
