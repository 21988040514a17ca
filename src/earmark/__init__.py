"""Reserve, settle and limit what LLM requests may use: requests, tokens, concurrency.

Names resolve on first use, so that importing earmark costs no more than what is used of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from earmark.answers import Denial, Explanation, LimitExplanation, LimitStatus, ScopeStatus
    from earmark.backends.health import Health
    from earmark.backends.memory import MemoryBackend
    from earmark.backends.redis import RedisBackend
    from earmark.errors import (
        BackendUnavailable,
        BudgetExceeded,
        EarmarkError,
        RateLimited,
        Refused,
        RequestIdConflict,
        UnknownPrice,
    )
    from earmark.events import Event
    from earmark.limiter import Limiter
    from earmark.limits import Limit, Limits, Scope
    from earmark.once import ReserveOnce
    from earmark.reservation import Reservation
    from earmark.streams.asking import ask_for_usage
    from earmark.streams.observe import ObservedStream, observe_stream
    from earmark.streams.observed import Observed
    from earmark.streams.response import usage_from_response
    from earmark.usage import Usage

__version__ = "0.1.0.dev0"

_HOMES: Final = {
    "BackendUnavailable": "errors",
    "BudgetExceeded": "errors",
    "Denial": "answers",
    "EarmarkError": "errors",
    "Event": "events",
    "Explanation": "answers",
    "Health": "backends.health",
    "Limit": "limits",
    "LimitExplanation": "answers",
    "LimitStatus": "answers",
    "Limiter": "limiter",
    "Limits": "limits",
    "MemoryBackend": "backends.memory",
    "Observed": "streams.observed",
    "ObservedStream": "streams.observe",
    "RateLimited": "errors",
    "RedisBackend": "backends.redis",
    "Refused": "errors",
    "RequestIdConflict": "errors",
    "Reservation": "reservation",
    "ReserveOnce": "once",
    "Scope": "limits",
    "ScopeStatus": "answers",
    "UnknownPrice": "errors",
    "Usage": "usage",
    "ask_for_usage": "streams.asking",
    "observe_stream": "streams.observe",
    "usage_from_response": "streams.response",
}

__all__ = [
    "BackendUnavailable",
    "BudgetExceeded",
    "Denial",
    "EarmarkError",
    "Event",
    "Explanation",
    "Health",
    "Limit",
    "LimitExplanation",
    "LimitStatus",
    "Limiter",
    "Limits",
    "MemoryBackend",
    "Observed",
    "ObservedStream",
    "RateLimited",
    "RedisBackend",
    "Refused",
    "RequestIdConflict",
    "Reservation",
    "ReserveOnce",
    "Scope",
    "ScopeStatus",
    "UnknownPrice",
    "Usage",
    "ask_for_usage",
    "observe_stream",
    "usage_from_response",
]


if not TYPE_CHECKING:  # a type checker knows the names, and finds a misspelt one

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value = getattr(import_module(f"{__name__}.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
