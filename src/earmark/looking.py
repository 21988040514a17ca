"""Looking at limits without changing anything: what they have used, and what they would say to a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from earmark.answers import Explanation, ScopeStatus
from earmark.asks import check_scopes
from earmark.backends.protocol import Seen, TellsHeld
from earmark.core.admission import statuses
from earmark.core.explanation import explanation
from earmark.limits import Scope
from earmark.office import Office


async def peek(office: Office, scopes: tuple[Scope, ...]) -> tuple[ScopeStatus, ...]:
    """What each limit has used; see `Limiter.peek`."""
    limited = check_scopes(scopes)
    await office.tidy()
    if not office.participants:
        return tuple(ScopeStatus(scope.key, ()) for scope in scopes)
    if not limited:
        return statuses(scopes, None, (), 0)
    seen = await office.backend.peek(scopes)
    return statuses(scopes, None, seen.states, seen.at)


async def explain(
    office: Office, scopes: tuple[Scope, ...], asks: Mapping[str, int]
) -> Explanation:
    """What each limit would say to a request; see `Limiter.explain`."""
    limited = check_scopes(scopes)
    await office.tidy()
    if not (limited and office.participants):
        return explanation((), asks, Seen((), 0), None)
    backend = office.backend
    seen = await backend.peek(scopes)
    # Looked up by its name: the class of a backend that passes on what another has does not tell.
    tells = hasattr(backend, "unheld")
    unheld = cast("TellsHeld", backend).unheld(scopes, seen) if tells else None
    return explanation(scopes, asks, seen, unheld)
