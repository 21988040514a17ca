"""The usage of a response that was not streamed, by the rules of the same dialects.

A whole body is to a dialect one more event, so the streamed and the whole answer of one exchange count alike
(B39): there is no second reading of any provider's fields. What has no usage gives None, which is not 0: an
error body, a body that is no JSON, a provider that does not report (B62).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, cast

from earmark.logs import about
from earmark.streams.counts import items_of, mapping_of
from earmark.streams.detect import detect, factory, undecided
from earmark.streams.jsontext import loaded
from earmark.streams.payloads import event_of
from earmark.streams.undecided import Undecided, decided
from earmark.usage import Usage

logger = logging.getLogger("earmark.streams")

# What a usage object alone has in it, the body that it would be found in, and where there.
_BARE: Final[tuple[tuple[str, Mapping[str, Any], str], ...]] = (
    ("prompt_tokens", {}, "usage"),
    ("completion_tokens", {}, "usage"),
    ("cache_read_input_tokens", {"type": "message", "stop_reason": None}, "usage"),
    ("cache_creation_input_tokens", {"type": "message", "stop_reason": None}, "usage"),
    ("input_tokens", {}, "usage"),
    ("output_tokens", {}, "usage"),
    ("inputTokens", {"output": None}, "usage"),
    ("outputTokens", {"output": None}, "usage"),
    ("billed_units", {}, "usage"),
    ("promptTokenCount", {}, "usageMetadata"),
    ("candidatesTokenCount", {}, "usageMetadata"),
    ("prompt_token_count", {}, "usage_metadata"),
    ("candidates_token_count", {}, "usage_metadata"),
    ("total_input_tokens", {"object": "interaction"}, "usage"),
)


def usage_from_response(body: object, *, dialect: str | None = None) -> Usage | None:
    """What a whole response says that it used.

    Args:
        body: the JSON as bytes or text, the parsed mapping, the response object of a provider's SDK, or only
            the usage object that is in one of these. A list is a streamed JSON array that was read to its end.
        dialect: the name of a dialect, or None to find it out from the body.

    Returns:
        The usage, normalised, or None where the body reports none. Its parts may be unknown.

    Raises:
        ValueError: there is no dialect of this name.
        TypeError: `body` is none of these.
    """
    make = undecided if dialect is None else factory(dialect)
    events = [_with_usage(event) for event in _events_of(body)]
    if not events:
        return None
    reader = make(1)
    for event in events:
        reader.observe(None, event)
        reader = decided(reader, 1)
    if isinstance(reader, Undecided):
        reader.give_up()
    return decided(reader, 1).usage


def _events_of(body: object) -> list[Mapping[str, Any]]:
    """The objects that a body is; empty where it is something else than JSON objects."""
    if isinstance(body, (bytes, bytearray, str)):
        try:
            body = loaded(body)
        except (ValueError, RecursionError) as error:
            logger.warning(
                "a response is no JSON, so its usage is unknown: %s",
                error,
                extra=about("response_unreadable"),
            )
            return []
        return [mapping for event in items_of(body) or (body,) if (mapping := mapping_of(event))]
    if isinstance(body, (list, tuple)):
        return [payload for event in items_of(cast("object", body)) for payload in _dumped(event)]
    payloads = _dumped(body)
    if not payloads and not isinstance(body, Mapping):
        msg = (
            f"a response is bytes, a text, a mapping or an SDK's object, not {type(body).__name__}"
        )
        raise TypeError(msg)
    return payloads


def _dumped(body: object) -> list[Mapping[str, Any]]:
    """The mapping that an object is or dumps itself as, if there is one with anything in it."""
    found = event_of(body)
    payload = mapping_of(found[1]) if found is not None else None
    return [payload] if payload else []


def _with_usage(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """The event, or one made round it where it is a usage object alone."""
    if detect(None, event) is None:
        for field, around, place in _BARE:
            if field in event:
                return {**around, place: event}
    return event
