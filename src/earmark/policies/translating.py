"""From pydantic's errors to mistakes: what is wrong in the words of the file, and what helps."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, get_args

from pydantic import ValidationError

from earmark.amounts import MAX_AMOUNT
from earmark.limits import Algorithm
from earmark.policies.mistakes import Path, shown
from earmark.policies.shape import PARTS, Part

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class Found(NamedTuple):
    """A mistake before it is known in which file and line it stands."""

    kind: str
    path: Path
    problem: str
    remedy: str


def found(error: ValidationError) -> list[Found]:
    """Everything that pydantic found."""
    return [_one(details) for details in error.errors(include_url=False)]


def _one(details: ErrorDetails) -> Found:
    path: Path = tuple(details["loc"])
    value: object = details["input"]
    context = details.get("ctx") or {}
    if "remedy" in context:
        return Found(details["type"], path, str(context["problem"]), str(context["remedy"]))
    translate = _WORDS.get(details["type"])
    if translate is None:
        return Found(details["type"], path, f"is {shown(value)}", details["msg"])
    return translate(path, value)


def _part(path: Path) -> type[Part]:
    """The part that a path leads to."""
    names = [name for name in path if isinstance(name, str)]
    return PARTS[names[-1] if names else ""]


def _unknown(path: Path, _: object) -> Found:
    part = _part(path[:-1])
    fields = sorted(part.model_fields)
    name = str(path[-1])
    close = difflib.get_close_matches(name, fields)
    close.sort(key=lambda field: sorted(field) != sorted(name))  # of rpm and rps, rmp is rpm
    meant = f"did you mean {close[0]!r}? " if close else ""
    remedy = f"{meant}{part.what} has {', '.join(fields)}"
    return Found("unknown_field", path, "there is no such field", remedy)


def _missing(path: Path, _: object) -> Found:
    field = str(path[-1])
    kind = "missing_key" if field == "key" else "missing_field"
    return Found(kind, path, "is missing", _NEEDED.get(field, f"write {field}"))


def _amount(kind: str, problem: str) -> Callable[[Path, object], Found]:
    def translate(path: Path, value: object) -> Found:
        said = problem.format(shown(value))
        remedy = f"write a whole number from 0 (admit nothing) to {MAX_AMOUNT}; leave it out for no limit"
        return Found(kind, path, said, remedy)

    return translate


def _wrong(kind: str, what: str, remedy: str) -> Callable[[Path, object], Found]:
    def translate(path: Path, value: object) -> Found:
        return Found(kind, path, f"is {shown(value)}, not {what}", remedy)

    return translate


def _mapping(path: Path, value: object) -> Found:
    nothing = value is None
    problem = "is left empty" if nothing else f"is {shown(value)}, not a mapping of fields"
    last = path[-1] if path else ""
    remedy = "write {} for no limit" if last == "limits" else "write its fields below it"
    return Found("not_a_mapping", path, problem, remedy)


_NEEDED: Final = {
    "default": "say what tenants get that are not listed: `default: {limits: {rpm: 60}}`",
    "key": "write what the gateway knows the tenant by",
    "limits": "write the limits, or {} for none",
    "match": "name a model, or the beginning of names with a star: gpt-4*",
    "id": "name what the counts are kept under",
}
_TEXT: Final = _wrong("not_text", "a text", "write it in quotes")
_LARGE: Final = _amount("large_amount", "is more than can be counted: {}")

_WORDS: Final[dict[str, Callable[[Path, object], Found]]] = {
    "extra_forbidden": _unknown,
    "missing": _missing,
    "string_type": _TEXT,
    "string_unicode": _wrong("not_text", "valid Unicode", "write it without lone surrogates"),
    "int_type": _amount("not_an_amount", "is no amount: {}"),
    "int_parsing_size": _LARGE,
    "less_than_equal": _LARGE,
    "greater_than_equal": _amount("negative_amount", "is negative: {}"),
    "bool_type": _wrong("not_a_bool", "true or false", "write true or false, without quotes"),
    "list_type": _wrong("not_a_list", "a list", "write a list, also round a single one"),
    "dict_type": _mapping,
    "model_type": _mapping,
    "literal_error": _wrong(
        "unknown_algorithm", "an algorithm", f"write one of {', '.join(get_args(Algorithm))}"
    ),
    "invalid_key": _wrong("not_text", "a field's name", "a field's name is a text"),
    "recursion_loop": _wrong("recursion", "finite", "an anchor may not stand for what it is in"),
}
