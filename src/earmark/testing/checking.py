"""Holds a backend to the contract, without pytest and without hypothesis."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, cast

import anyio

from earmark.testing.contract import Case, chosen
from earmark.testing.shape import BackendFactory, NotABackend
from earmark.testing.table import Always

DEADLINE: Final = 60.0
"""Seconds of the wall clock after which a case counts as hung: each takes milliseconds."""

_MOST: Final = 20
"""So many kinds of failures are told in full."""

_NAMED: Final = 5
"""So many cases are named that fail by the cause of another."""

_NOT_A_BACKENDS: Final = frozenset({*sys.stdlib_module_names, "anyio", "earmark", "trio"})
_INSTALLED: Final = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that did not come out as it must.

    Attributes:
        case: the case; `case.rules` are the numbers of what it proves.
        error: what went wrong: an AssertionError with what was got and what was expected, or what the backend raised.
            Its traceback is there; what its frames held is not.
    """

    case: Case
    error: Exception

    @property
    def place(self) -> str | None:
        """The line of the backend at which it was raised, if it was raised there: "kvbackend.py:57 in delete"."""
        raised = [
            (frame.f_code, line)
            for frame, line in traceback.walk_tb(self.error.__traceback__)
            if _package(frame) not in _NOT_A_BACKENDS
        ]
        own = [one for one in raised if not one[0].co_filename.startswith(_INSTALLED)]
        for code, line in reversed(own or raised):
            return f"{Path(code.co_filename).name}:{line} in {code.co_name}"
        return None

    @property
    def cause(self) -> object:
        """What failures of one cause have in common."""
        if isinstance(self.error, Always):
            return self.error.what
        if isinstance(self.error, AssertionError):
            return self.case.name
        return type(self.error), str(self.error), self.place

    def __str__(self) -> str:
        numbers = ", ".join(self.case.rules)
        if numbers.startswith("C"):
            numbers = f"{numbers}, a fault that others had"
        lines = [f"{self.case}", f"{numbers}: {self.case.says}", *self._what()]
        return "\n".join(lines).replace("\n", "\n    ")

    def _what(self) -> Iterator[str]:
        for error in _leaves(self.error):
            plain = isinstance(error, AssertionError)
            yield str(error) if plain else f"{type(error).__name__}: {error}"
        if self.place is not None:
            yield f"at {self.place}"
        yield from (note for note in _notes(self.error) if note.startswith("in row"))


class ContractBroken(AssertionError):
    """A backend does not do what every backend does.

    Its text tells failures of one cause once, and some twenty at the most.

    Attributes:
        failures: every case that failed, in the order of the contract.
    """

    def __init__(self, failures: Iterable[Failure], cases: int) -> None:
        self.failures = tuple(failures)
        super().__init__("\n".join(_report(self.failures, cases)))

    @property
    def rules(self) -> frozenset[str]:
        """The numbers of all that is broken: rules (R), behaviours (B) and cases (C)."""
        return frozenset(rule for failure in self.failures for rule in failure.case.rules)


async def check_backend(make: BackendFactory, cases: Iterable[Case] | None = None) -> None:
    """Play every case of the contract on backends of their own, on asyncio or trio.

    Args:
        make: called as `make(clock=…, lease=…)` for every table that is played; it returns a backend in which nothing
            is kept, which decides by this clock and holds slots for `lease` seconds by default.
        cases: which cases are played, by default all of the contract (`CONTRACT`).

    Raises:
        ContractBroken: some fail; its text names for each the rules, what was got, and what was expected. Where `make`
            makes no backend no further case is played.
        ValueError: there are no cases, such as those of a number that none has.
    """
    played = chosen(cases)
    failures: list[Failure] = []
    for case in played:
        error = await _error_of(case, make)
        if error is not None:
            failures.append(Failure(case, error))
        if isinstance(error, NotABackend):
            break
    if failures:
        raise ContractBroken(failures, len(played))


async def _error_of(case: Case, make: BackendFactory) -> Exception | None:
    try:
        with anyio.fail_after(DEADLINE):
            await case.check(make)
    except Exception as raised:  # noqa: BLE001 - whatever a backend raises, the other cases are played
        return _freed(_alone(raised))
    return None


def _alone(error: Exception) -> Exception:
    """The one error that a group of tasks has raised; the group, where they differ."""
    leaves = list(_leaves(error))
    if len({(type(leaf), str(leaf)) for leaf in leaves}) > 1:
        return error
    (leaf, *_) = leaves
    if leaf is not error:
        for note in _notes(error):
            leaf.add_note(note)
    return leaf


def _leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for one in cast("ExceptionGroup[Exception]", error).exceptions:
            yield from _leaves(one)
    else:
        yield error


def _freed(error: Exception) -> Exception:
    """The same error, whose frames hold nothing any more: reservations among that would warn when it is collected."""
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()
    while chain:
        one = chain.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        chain += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            chain += cast("BaseExceptionGroup[BaseException]", one).exceptions
    return error


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _notes(error: Exception) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def _report(failures: tuple[Failure, ...], cases: int) -> Iterator[str]:
    if isinstance(failures[-1].error, NotABackend):
        yield f"no further case was played: {failures[-1].error}"
        if (why := failures[-1].error.__cause__) is not None:
            yield "".join(traceback.format_exception(why)).rstrip()
        failures = failures[:-1]
        if not failures:
            return
    alike: dict[object, list[Failure]] = {}
    for failure in failures:
        alike.setdefault(failure.cause, []).append(failure)
    groups = list(alike.values())
    yield f"{len(failures)} of {cases} cases fail (docs/rules.md says what the numbers mean)"
    for first, *others in groups[:_MOST]:
        yield str(first)
        if others:
            yield f"    and {len(others)} more{_like(first, others)}"
    if left := groups[_MOST:]:
        yield f"and {len(left)} more: {', '.join(group[0].case.name for group in left)}"


def _like(first: Failure, others: list[Failure]) -> str:
    """What more has failed by the cause of the first."""
    names = list(dict.fromkeys(one.case.name for one in others))
    if names == [first.case.name]:
        return " of its variants"
    etc = ", …" if len(names) > _NAMED else ""
    return f" cases that fail alike: {', '.join(names[:_NAMED])}{etc}"
