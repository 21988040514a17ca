"""Asking the provider for usage, in the outgoing request body (B64).

A stream of OpenAI's shape reports usage only where `stream_options.include_usage` says so; without it a gateway
has nothing to settle with. Others always report, and some of them refuse a field that they do not know (Anthropic,
Mistral and Cohere answer 400 or 422), so a body is changed only where it is of this shape and not known to be theirs.

What is changed in a body of bytes is that one option: a signature, a prompt cache or a log that knows the
body byte by byte finds all else as it was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar, cast

from earmark.streams.counts import items_of, mapping_of
from earmark.streams.jsontext import value_at

Body = TypeVar("Body", bytes, str, Mapping[str, Any])

_OPTION: Final = '"stream_options":{"include_usage":true}'
_INCLUDE: Final = '"include_usage":true'
_BLANK: Final = re.compile(r"[ \t\r\n]*")

# Fields at the top of a request that OpenAI's shape does not have: Anthropic's, Ollama's own API, Cohere's.
_FOREIGN: Final = frozenset(
    {
        "anthropic_version",
        "anthropic_beta",
        "system",
        "stop_sequences",
        "mcp_servers",
        "context_management",
        "keep_alive",
        "options",
        "safety_mode",
        "citation_options",
        "input",
        "contents",
    }
)
# Models by the names that their makers' own APIs use, which report unasked. Elsewhere they have a vendor's prefix.
_UNASKED: Final = (
    "claude",
    "mistral-",
    "open-mistral",
    "open-mixtral",
    "ministral",
    "magistral",
    "codestral",
    "devstral",
    "pixtral",
    "command",
)


def ask_for_usage(body: Body) -> Body:
    """The request body that makes the provider report usage in its stream.

    Args:
        body: an outgoing request: a mapping, or its JSON as bytes or text. It is not changed itself.

    Returns:
        A new body of the same kind with `stream_options.include_usage` turned on; the very same object where
        nothing needs to change. So `ask_for_usage(body) is not body` tells that the client did not ask, and
        should not see the answer (`hide_usage`). The length of a body of bytes may have changed.

    Raises:
        TypeError: `body` is none of these.
    """
    if isinstance(body, Mapping):
        if not _needs_asking(body):
            return body
        options = {**mapping_of(body.get("stream_options")), "include_usage": True}
        return cast("Body", {**body, "stream_options": options})
    if isinstance(body, str):
        return _edited(body)
    if isinstance(body, bytes):
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError:
            return body
        edited = _edited(text)
        return body if edited is text else edited.encode("utf-8")
    msg = f"a request body is a mapping, bytes or a text, not {type(body).__name__}"
    raise TypeError(msg)


def _needs_asking(body: Mapping[str, Any]) -> bool:
    """Whether a request streams, in OpenAI's shape, and has not asked for usage."""
    if body.get("stream") is not True or not ("messages" in body or "prompt" in body):
        return False
    given = body.get("stream_options")
    options = mapping_of(given)
    if (given is not None and options is not given) or options.get("include_usage") is True:
        return False
    return not _reports_unasked(body)


def _reports_unasked(body: Mapping[str, Any]) -> bool:
    if not _FOREIGN.isdisjoint(body):
        return True
    model = body.get("model")
    if isinstance(model, str) and model.lower().startswith(_UNASKED):
        return True
    return any("input_schema" in mapping_of(tool) for tool in items_of(body.get("tools")))


class _Member(NamedTuple):
    """A member of an object in a text: its value, and where that begins and ends."""

    value: Any
    start: int
    end: int


def _edited(text: str) -> str:
    """The text with the option turned on; the same object where it needs no change or is no request."""
    try:
        members, end = _members(text, 1 if text.startswith("\ufeff") else 0)
    except (ValueError, RecursionError):
        return text
    body = {name: member.value for name, member in members.items()}
    if _skip(text, end) < len(text) or not _needs_asking(body):
        return text
    options = members.get("stream_options")
    if options is None:
        last = max(member.end for member in members.values())
        return f"{text[:last]},{_OPTION}{text[last:]}"
    if options.value is None:
        return f"{text[: options.start]}{{{_INCLUDE}}}{text[options.end :]}"
    inner, _ = _members(text, options.start)
    include = inner.get("include_usage")
    if include is not None:
        return f"{text[: include.start]}true{text[include.end :]}"
    comma = "," if inner else ""
    return f"{text[: options.start + 1]}{_INCLUDE}{comma}{text[options.start + 1 :]}"


def _members(text: str, at: int) -> tuple[dict[str, _Member], int]:
    """The members of the JSON object that begins there, and where it ends; of one name the last, as parsers do.

    Raises:
        ValueError: no object begins there, or it is broken.
    """
    members: dict[str, _Member] = {}
    at = _skip(text, at)
    if text[at : at + 1] != "{":
        msg = "no object"
        raise ValueError(msg)
    at = _skip(text, at + 1)
    while text[at : at + 1] != "}":
        name, at = value_at(text, at)
        at = _skip(text, at)
        if not isinstance(name, str) or text[at : at + 1] != ":":
            msg = "no member"
            raise ValueError(msg)
        start = _skip(text, at + 1)
        value, end = value_at(text, start)
        members[name] = _Member(value, start, end)
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != "}":
            msg = "no end"
            raise ValueError(msg)
    return members, at + 1


def _skip(text: str, at: int) -> int:
    """The position of the next character that is no blank."""
    blank = _BLANK.match(text, at)
    return at if blank is None else blank.end()
