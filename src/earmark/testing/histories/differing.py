"""What two looks at the same scopes do not agree in, and nothing else: in a history that is where to begin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from earmark.answers import LimitStatus, ScopeStatus
from earmark.testing.histories.translation import line_of
from earmark.testing.histories.values import Line, Shown, Statuses

_FIGURES: Final = ("used", "remaining", "would_refuse")


def expect_alike(what: str, got: Iterable[ScopeStatus], expected: Statuses) -> None:
    """Fail with every figure that differs, if any does."""
    shown = tuple((status.key, tuple(map(_shown, status.limits))) for status in got)
    if shown != expected:
        msg = "\n".join((f"{what}:", *_differences(shown, expected)))
        raise AssertionError(msg)


def _shown(one: LimitStatus) -> Shown:
    return Shown(line_of(one.limit), one.used, one.remaining, one.would_refuse)


def _differences(got: Statuses, expected: Statuses) -> Iterator[str]:
    keys = [key for key, _ in got], [key for key, _ in expected]
    if keys[0] != keys[1]:
        yield _said("scopes", *keys)
        return
    for (key, shown), (_, wanted) in zip(got, expected, strict=True):
        yield from _of_scope(key, shown, wanted)


def _of_scope(key: str, got: Sequence[Shown], expected: Sequence[Shown]) -> Iterator[str]:
    lines = [one[0] for one in got], [one[0] for one in expected]
    if lines[0] != lines[1]:
        yield _said(f"limits of {key!r}", *lines)
        return
    for shown, wanted in zip(got, expected, strict=True):
        for name, figure, other in zip(_FIGURES, shown[1:], wanted[1:], strict=True):
            if figure != other:
                yield _said(f"{name} of {key!r}, {called(shown[0])}", figure, other)


def called(line: Line) -> str:
    """A limit, as a reader knows it."""
    if not line.window:
        return f"{line.metric} of {line.amount}"
    burst = "" if line.burst is None else f", burst {line.burst}"
    return f"{line.metric} of {line.amount} in {line.window / 1e6:g} s ({line.algorithm}{burst})"


def _said(what: str, got: object, expected: object) -> str:
    return f"  {what}: got {got!r}, expected {expected!r}"
