"""What a history is played on: the calls of a limiter, each of which a gateway of one's own may do otherwise."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from earmark.answers import ScopeStatus
from earmark.backends.protocol import Backend
from earmark.limiter import Limiter
from earmark.limits import Scope
from earmark.reservation import Reservation
from earmark.usage import Usage


class Run(Protocol):
    """Runs a coroutine to its end."""

    def __call__(self, call: Coroutine[Any, Any, Any], /) -> Any:
        """Return its result."""
        ...


class Gateway:
    """How a history reaches what is tested: through a limiter. A gateway of one's own overrides the calls.

    Args:
        backend: where the limiter keeps its limits.

    Attributes:
        backend: the same.
        limiter: where each call goes that is not overridden; a gateway of one's own may put another in its place.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.limiter = Limiter(backend)

    async def pre_commit(
        self,
        *scopes: Scope,
        tokens: int | Usage,
        amounts: Mapping[str, int] | None,
        request_id: str | None,
        lease: float | None,
    ) -> Reservation:
        """Ask; as `Limiter.pre_commit`."""
        return await self.limiter.pre_commit(
            *scopes, tokens=tokens, amounts=amounts, request_id=request_id, lease=lease
        )

    async def resolve(self, reservation: Reservation, verb: str, *usage: Any) -> bool:
        """Resolve by the verb of that name; `settle_success` comes with its usage."""
        won: bool = await getattr(self.limiter, verb)(reservation, *usage)
        return won

    async def renew(self, reservation: Reservation) -> bool:
        """Renew; as `Reservation.renew`."""
        return await reservation.renew()

    async def add(self, target: str | Scope, used: int | Usage, request_id: str | None) -> None:
        """Count what no hold covers; as `Limiter.add_tokens_post_stream`."""
        await self.limiter.add_tokens_post_stream(target, used, request_id=request_id)

    async def peek(self, *scopes: Scope) -> tuple[ScopeStatus, ...]:
        """Look; as `Limiter.peek`."""
        return await self.limiter.peek(*scopes)

    async def reset(self, *scopes: Scope) -> None:
        """Forgive; as `Limiter.reset`."""
        await self.limiter.reset(*scopes)

    async def aclose(self) -> None:
        """Let go of what is held open."""
        await self.limiter.aclose()
