"""How the end of a stream resolves its reservation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from earmark.core.hold import Verb
from earmark.core.settlement import NOTHING

if TYPE_CHECKING:
    from earmark.streams.observed import Observed

Ending = tuple[Verb, Mapping[str, int], Mapping[str, int]]
"""The verb, what is known exactly, and what is known at least."""


def after_stream(observed: Observed) -> Ending:
    """How a stream's end resolves its reservation: leaving early is never cheaper than staying (B65)."""
    usage = observed.usage
    at_least = NOTHING if usage is None else usage.floors()
    if usage is not None and observed.authoritative:
        return "settle", usage.determined(), at_least
    gone = observed.outcome in {"cancelled", "dropped"}
    return "abandon" if gone else "close", NOTHING, at_least
