"""The life of a reservation: one table of legal moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from earmark.core.hold import Verb

Resolved = Literal["settled", "closed", "abandoned", "cancelled"]
State = Literal["open"] | Resolved

MOVES: Final[Mapping[State, Mapping[Verb, Resolved]]] = {
    "open": {
        "settle": "settled",
        "close": "closed",
        "abandon": "abandoned",
        "cancel": "cancelled",
        "withdraw": "cancelled",
    },
    "settled": {},
    "closed": {},
    "abandoned": {},
    "cancelled": {},
}
"""Every legal move (R5). Whatever is not here is illegal, and an illegal move changes nothing."""
