"""The gateway: API keys with limits in front of a provider's chat completions.

The order is what keeps the counts true. What can fail without the provider comes first (401, 400), then `pre_commit`,
before a byte goes upstream. From there on, inside `async with reservation`, what happens decides how it is resolved:

    never sent, no connection           cancel(): everything is given back
    refused by the provider, unbilled   settle_success(Usage(0, 0)): the tokens are given back
    streamed                            stream(…) takes it over and resolves it, however the stream ends
    answered whole                      settle_success(usage), as the body reports it
    sent, outcome unknown               nothing: leaving the block closes it, and the debit stays
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final

import httpx
from pydantic import AliasChoices, BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from earmark import (
    BackendUnavailable,
    Limiter,
    Refused,
    Reservation,
    Scope,
    Usage,
    ask_for_usage,
    usage_from_response,
)
from earmark.contrib.asgi import ReservedStream
from earmark.ledger import Budget, Spend

from .answers import failed, refused

COMPLETIONS: Final = "/v1/chat/completions"

# What httpx raises while nothing has been sent yet; whatever else it raises leaves the outcome unknown.
NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

# A provider does not bill a request that it refuses in one of these ways; a 5xx it may.
UNBILLED: Final = frozenset({400, 401, 403, 404, 413, 422, 429})


class Message(BaseModel):
    """One message of a prompt: text, or parts of several kinds."""

    content: str | list[Any] | None = None


class ChatRequest(BaseModel):
    """As much of a request's body as the gateway has to know."""

    messages: list[Message]
    max_tokens: int = Field(
        default=1_000,
        ge=1,
        le=1_000_000,
        validation_alias=AliasChoices("max_completion_tokens", "max_tokens"),
    )
    n: int = Field(default=1, ge=1, le=128)
    stream: bool = False
    model: str = Field(default="unknown", min_length=1, max_length=200)

    def estimate(self) -> Usage:
        """What to hold: a token for four characters of the prompt, and all the output it may have."""
        prompt = sum(len(str(message.content or "")) for message in self.messages) // 4
        return Usage(prompt, self.n * self.max_tokens)


class Gateway:
    """Forwards chat completions for whoever has a key.

    Args:
        limiter: decides.
        keys: the scope of every API key.
        upstream: a client whose base URL is the provider's.
        budgets: by the key of a scope, what it may spend; the limiter has a ledger then.
    """

    def __init__(
        self,
        limiter: Limiter,
        keys: Mapping[str, Scope],
        upstream: httpx.AsyncClient,
        budgets: Mapping[str, Budget] | None = None,
    ) -> None:
        self._limiter = limiter
        self._keys = keys
        self._upstream = upstream
        self._budgets = budgets or {}

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(routes=[Route(COMPLETIONS, self.complete, methods=["POST"])])

    async def complete(self, request: Request) -> Response:
        """Answer one chat completion, streamed or not."""
        scope = self._keys.get(request.headers.get("authorization", "").removeprefix("Bearer "))
        if scope is None:
            return failed(401, "invalid_api_key", "This API key is not known here.")
        body = await request.body()
        try:
            chat = ChatRequest.model_validate_json(body)
        except ValidationError as error:
            return failed(400, "invalid_request_error", str(error))
        try:
            estimate = chat.estimate()
            budget = self._budgets.get(scope.key)
            spend = None if budget is None else Spend((budget,), chat.model, estimate)
            reservation = await self._limiter.pre_commit(
                scope, tokens=estimate.total or 0, spend=spend
            )
        except Refused as refusal:
            return refused(refusal)
        except BackendUnavailable:  # a store that is shared, and on_outage="closed"
            return failed(503, "limits_unavailable", "Nobody can tell whether a limit is reached.")
        try:
            async with reservation:
                return await self._forward(reservation, chat, body)
        except httpx.TransportError:
            return failed(502, "provider_unavailable", "The provider did not answer.")

    async def _forward(self, reservation: Reservation, chat: ChatRequest, body: bytes) -> Response:
        """Have the provider answer, and resolve the reservation as its answer says.

        Raises:
            httpx.TransportError: there is no answer, or not the whole of it.
        """
        # A stream reports its usage only where the request asks for it; a compressed one cannot be read.
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        outgoing = self._upstream.build_request(
            "POST", COMPLETIONS, content=ask_for_usage(body), headers=headers
        )
        try:
            response = await self._upstream.send(outgoing, stream=True)
        except NEVER_SENT:
            await reservation.cancel()
            raise
        media_type = response.headers.get("content-type")
        if chat.stream and response.status_code == HTTPStatus.OK:
            stream = reservation.stream(
                response.aiter_raw(), aclose=response.aclose, expected_choices=chat.n
            )
            return ReservedStream(stream, media_type=media_type or "text/event-stream")
        async with aclosing(response):
            content = await response.aread()
        if response.status_code in UNBILLED:
            await reservation.settle_success(Usage(0, 0))
        elif (usage := usage_from_response(content)) is not None:
            await reservation.settle_success(usage)
        return Response(content, response.status_code, media_type=media_type)
