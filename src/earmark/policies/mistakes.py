"""What is wrong with a policies file: the file, the place in it, what is wrong there, and what helps.

A file has many mistakes as easily as one, so all that can be found are told at once. The `kind` of a mistake is a
stable word for programs, the rest is for whoever edits the file.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
"""Where in a file: the names of fields and the numbers of list items, from the top."""

_PLAIN: Final = re.compile(r"[\w-]+")
MAX_SHOWN: Final = 60


def place_of(path: Path) -> str:
    """A path as one reads it: `tenants[2].models[0].match`; the whole file is ""."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{shown(part)}]"
    return text


# Of what is within a value so much at most is written out: YAML's anchors put 9**9 texts into nine lines. As much as
# is shown is there in any case.
_short: Final = reprlib.Repr()
_short.maxlevel = 4
_short.maxlist = _short.maxdict = _short.maxtuple = MAX_SHOWN // 3
_short.maxstring = _short.maxlong = _short.maxother = 10 * MAX_SHOWN


def shown(value: object) -> str:
    """A value in a message: short, whatever it is."""
    try:
        text = _short.repr(value)
    except (ValueError, RecursionError):  # an integer of many thousand digits, a list in itself
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake.

    Attributes:
        kind: a stable word for it, such as "unknown_field" or "duplicate_key".
        place: where, such as `tenants[2].models[0].match`; "" is the file as a whole.
        problem: what is wrong there.
        remedy: what to do about it.
        file: the name of the file; "policies" where they came from no file.
        line: the line in it, from 1, where its format can tell.
    """

    kind: str
    place: str
    problem: str
    remedy: str
    file: str = "policies"
    line: int | None = None

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        inside = f"{self.place}: " if self.place else ""
        return f"{where}: {inside}{self.problem}: {self.remedy}"


class PolicyError(ValueError):
    """Policies that are missing, cannot be read or have mistakes: they never mean "no limits" (B49).

    Attributes:
        mistakes: all that were found, at least one.
    """

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        super().__init__()
        self.mistakes = tuple(mistakes)

    def __str__(self) -> str:
        return "\n".join(map(str, self.mistakes))

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[Mistake, ...]]]:
        return type(self), (self.mistakes,)
