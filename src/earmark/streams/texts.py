"""How much of an event a model generated: the characters of everything textual in it, for an estimator.

Text, reasoning, refusals, plans and the arguments of tools are all output, and providers keep adding places for
them. So a dialect says only where in an event its model speaks, and everything textual below is measured, however
deep: texts by their length, arguments that come as an object by that of their JSON. What stands there and was not
generated (identifiers, signatures, encoded bytes, what a citation quotes) has other names, and is not.

Unknown is not zero: what was cut, or cannot be measured, makes the whole unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from earmark.streams.salvage import CUT

_ARGUMENTS: Final = frozenset({"arguments", "args", "parameters", "input"})
_TEXTUAL: Final = _ARGUMENTS | {
    "code",
    "content",
    "partial_json",
    "reasoning",
    "reasoning_content",
    "refusal",
    "summary",
    "text",
    "thinking",
    "tool_plan",
    "transcript",
    "value",
}
_QUOTED: Final = frozenset({"annotations", "citation", "citations"})


def length_of(values: Iterable[object]) -> int | None:
    """The characters of texts, and of everything textual below objects and lists.

    Returns:
        None where a part is missing, or nothing that can be measured.
    """
    total = 0
    try:
        for value in values:
            # The exact type first: nearly all are texts.
            total += len(value) if type(value) is str else _length(value, textual=True)
    except (ValueError, TypeError, RecursionError):
        return None
    return total


def json_length(value: object) -> int:
    """The characters of a value as JSON, without blanks.

    Raises:
        ValueError, TypeError, RecursionError: it is no JSON.
    """
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _length(value: object, *, textual: bool) -> int:
    if isinstance(value, str):
        return len(value) if textual else 0
    if type(value) is dict or isinstance(value, Mapping):
        total = 0
        for name, member in cast("Mapping[str, Any]", value).items():
            if isinstance(member, str):
                total += len(member) if name in _TEXTUAL else 0
            elif member is not None:
                total += _length_of_member(name, member)
        return total
    if isinstance(value, (list, tuple)):
        return sum(_length(item, textual=textual) for item in cast("list[object]", value))
    if value is CUT:
        msg = "a part is missing"
        raise ValueError(msg)
    return 0


def _length_of_member(name: str, value: object) -> int:
    if name in _ARGUMENTS and isinstance(value, (dict, list)):
        return json_length(cast("object", value)) if value else 0
    return 0 if name in _QUOTED else _length(value, textual=name in _TEXTUAL)
