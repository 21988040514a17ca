"""The event in an item that is no raw body: a mapping, or an object of a provider's SDK.

An item is read and never changed, and goes on to the consumer as it is. Which SDK it comes from does not
matter, and none is imported: an object that dumps itself (pydantic: openai, anthropic, google-genai) is
dumped under the names that the provider uses, so that a dialect sees what it would have seen on the wire. The
events of openai's `chat.completions.stream()` have the provider's chunk inside one of their own. An object or a
mapping with an `event` and its `data` is a server-sent event that somebody else has cut out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

Payload = Mapping[str, Any]

_SSE_FIELDS: Final = frozenset({"event", "data", "id", "retry", "enabled"})


def event_of(item: object) -> tuple[str | None, Payload | str] | None:
    """The name and the payload of an item, or its text where it has no payload; None for an item without either.

    Raises:
        Exception: whatever the item's own dump raises.
    """
    if isinstance(item, Mapping):
        return _unwrapped(cast("Payload", item))
    if getattr(item, "type", None) == "chunk":
        item = getattr(
            item, "chunk", item
        )  # beside it is all that came before, which nobody has to dump
    dump = getattr(item, "model_dump", None)
    if dump is not None:
        dumped = _dump(dump)
        return _unwrapped(cast("Payload", dumped)) if isinstance(dumped, Mapping) else None
    data = getattr(item, "data", None)
    if isinstance(data, str) and hasattr(item, "event"):
        return _name(getattr(item, "event", None)), data
    return None


def _unwrapped(payload: Payload) -> tuple[str | None, Payload | str]:
    """A payload, or what is in the `data` of one that is a whole server-sent event."""
    if "data" in payload and payload.keys() <= _SSE_FIELDS:
        data = payload["data"]
        if isinstance(data, str):
            return _name(payload.get("event")), data
        if isinstance(data, Mapping):
            return _name(payload.get("event")), cast("Payload", data)
    return None, payload


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _dump(dump: Callable[..., object]) -> object:
    """The fields that were sent, under their wire names."""
    try:
        # Fields that nobody sent would be nulls; a field of another type than declared is no news here.
        return dump(by_alias=True, exclude_unset=True, warnings=False)
    except TypeError:
        return dump()  # a look-alike that knows no such options
