"""FastAPI and Starlette: refusals become answers, streams are settled in the response, and nothing stays open.

    app = FastAPI()
    answer_refusals(app)                                  # a RateLimited becomes a 429, and so on

    async with await limiter.pre_commit(alice, tokens=1_200) as reservation:
        ...
        return ReservedStream(reservation.stream(source), reservation)

When a client leaves, a server of ASGI 2.3 cancels the task that sends the response; with one of 2.4 `send` raises,
and the iterator that Starlette was reading is merely dropped. `ReservedStream` closes its stream in both cases, in the
task that reads it, so that the reservation is resolved and the provider let go before the response is over. The stream
itself settles before its last item is sent.

FastAPI runs what follows the `yield` of a dependency after the whole response. `reserving` is therefore a safety
net alone: what the endpoint has not settled, and no stream has taken over, is closed there.

Needs Starlette, which FastAPI brings: `earmark[asgi]`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from earmark.errors import BackendUnavailable, Refused
from earmark.http import BudgetStatus, Fields, Style, answer_to, rate_limit_headers
from earmark.limiter import Limiter
from earmark.limits import Scope
from earmark.reservation import Reservation
from earmark.streams.observe import ObservedStream
from earmark.usage import Usage

__all__ = ["Asks", "ReservedStream", "answer_refusals", "reserving", "style_of"]


def style_of(request: Request) -> Style:
    """Whose words a path wants: Anthropic's for its messages API, else OpenAI's, whose threads have messages (B55)."""
    parts = request.url.path.split("/")
    return "anthropic" if "messages" in parts and "threads" not in parts else "openai"


def answer_refusals(
    app: Starlette,
    *,
    style: Callable[[Request], Style] = style_of,
    budget_status: BudgetStatus = 429,
    details: bool = False,
) -> None:
    """Have an application answer every refusal that its endpoints and dependencies raise.

    Args:
        app: FastAPI's or Starlette's.
        style: whose words the answer to a request uses.
        budget_status: the status of a refusal by a budget.
        details: have bodies name scopes and figures; see `earmark.http.answer_to`.
    """

    async def answer(request: Request, error: Exception) -> Response:
        if not isinstance(error, (Refused, BackendUnavailable)):
            raise error
        said = answer_to(error, style(request), budget_status=budget_status, details=details)
        return Response(said.content, said.status, said.headers)

    app.add_exception_handler(Refused, answer)
    app.add_exception_handler(BackendUnavailable, answer)


class ReservedStream(StreamingResponse):
    """A streamed answer that has a reservation's stream, and closes it however the client goes.

    Args:
        stream: what `Reservation.stream` returned.
        admission: the reservation, whose limits the headers show; None: they show none.
        status_code: the HTTP status.
        headers: further headers.
        media_type: of the stream.
        fields: whose rate-limit headers.
    """

    def __init__(
        self,
        stream: ObservedStream[Any],
        admission: Reservation | None = None,
        *,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str = "text/event-stream",
        fields: tuple[Fields, ...] = ("openai",),
    ) -> None:
        shown = {} if admission is None else rate_limit_headers(admission, *fields)
        super().__init__(stream, status_code, {**shown, **(headers or {})}, media_type)
        self._stream = stream

    async def stream_response(self, send: Send) -> None:
        """Send all of it; background tasks come afterwards, and find the reservation resolved."""
        try:
            await super().stream_response(send)
        finally:
            await self._stream.aclose()

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Send it; when the client leaves, servers cancel this, also before it has begun, or have `send` raise."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stream.aclose()


class Asks(NamedTuple):
    """What a request asks: the arguments of `Limiter.pre_commit`.

    Attributes:
        scopes: whose limits apply.
        tokens: the estimate.
        amounts: what is asked of other metrics.
    """

    scopes: tuple[Scope, ...]
    tokens: int | Usage = 0
    amounts: Mapping[str, int] | None = None


def reserving(
    limiter: Limiter,
    asks: Callable[[Request], Awaitable[Asks]],
    *,
    fields: tuple[Fields, ...] = ("openai",),
) -> Callable[[Request, Response], AsyncGenerator[Reservation, None]]:
    """A dependency of FastAPI's that reserves before the endpoint runs, and closes what is open when all is over.

    Settle in the endpoint, or hand the reservation over to a `ReservedStream`: the exit of a dependency runs after the
    response, when the client may have asked again. Where the endpoint returns a value, and no response of its own, the
    rate-limit headers are added to what FastAPI makes of it.

    Args:
        limiter: decides.
        asks: what a request asks; it raises, an `HTTPException` for one, where the request makes no sense.
        fields: whose rate-limit headers.
    """

    async def reserve(request: Request, response: Response) -> AsyncGenerator[Reservation, None]:
        scopes, tokens, amounts = await asks(request)
        reservation = await limiter.pre_commit(*scopes, tokens=tokens, amounts=amounts)
        async with reservation:
            response.headers.update(rate_limit_headers(reservation, *fields))
            yield reservation

    return reserve
