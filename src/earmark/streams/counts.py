"""Reading counts out of what a provider sent, which may be anything at all.

A count is an integer from 0 to 2**53 − 1. A negative one, a float, a bool, a string, a NaN or 10**30 is no
count: it is left out, as if it had not been sent, and one warning per stream says so. Observing must not
break the stream, and a wrong count must not reach a limit or a bill.

Unknown is not zero (C35): what was not sent is None, and a sum with an unknown whole is unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from earmark.amounts import MAX_AMOUNT
from earmark.logs import about
from earmark.usage import Usage

logger = logging.getLogger("earmark.streams")

_NOTHING: Final[Mapping[str, Any]] = {}


class Counts:
    """Reads the counts of one stream, and warns once about what is none.

    Args:
        source: who is being read, for the warning: the name of a dialect.
    """

    __slots__ = ("_source", "_warned")

    def __init__(self, source: str) -> None:
        self._source = source
        self._warned = False

    def read(self, report: Mapping[str, Any], *names: str) -> int | None:
        """The count under the first of these names that holds one; None where none does."""
        for name in names:
            value = report.get(name)
            if value is None:
                continue
            if type(value) is int and 0 <= value <= MAX_AMOUNT:
                return value
            self._warn(name, value)
        return None

    def _warn(self, name: str, value: object) -> None:
        if self._warned:
            return
        self._warned = True
        # The type and not the value: a long enough integer cannot even be turned into text.
        logger.warning(
            "%s: ignored %s, which is no count (%s); further ones of this stream are not reported",
            self._source,
            name,
            f"out of range: {type(value).__name__}" if type(value) is int else type(value).__name__,
            extra=about("count_ignored", field=name),
        )


def whole(base: int | None, *parts: int | None) -> int | None:
    """`base` with the parts that the provider counts apart from it; unknown where `base` is."""
    if base is None:
        return None
    for part in parts:
        base += part or 0
    return min(base, MAX_AMOUNT)


def total_of(usage: Usage) -> int:
    """How much a report comes to, for comparing one with another: the larger of its sum and its total."""
    known = (usage.input_tokens or 0) + (usage.output_tokens or usage.reasoning_tokens or 0)
    return max(known, usage.reported_total or 0)


def says_output(usage: Usage) -> bool:
    """Whether a report says anything about the output: one about the input alone is never final (B38)."""
    if usage.output_tokens is not None or usage.reasoning_tokens is not None:
        return True
    total = usage.reported_total
    return total is not None and (usage.input_tokens is None or total > usage.input_tokens)


def mapping_of(value: Any) -> Mapping[str, Any]:  # noqa: ANN401 - whatever was sent; a `cast` would cost a call
    """`value` if it is a mapping, else an empty one."""
    found: Mapping[str, Any] = value
    # The exact type first: asking the abstract one takes longer than all else here.
    is_one = type(value) is dict or (value is not None and isinstance(value, Mapping))
    return found if is_one else _NOTHING


def items_of(value: Any) -> Sequence[Any]:  # noqa: ANN401 - as above
    """`value` if it is a list or a tuple, else an empty one."""
    found: Sequence[Any] = value
    return found if isinstance(value, (list, tuple)) else ()
