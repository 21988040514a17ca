"""From FastAPI or Starlette to providers over httpx: one is asked after the other, and what came of it is charged.

    async with limiter.once(alice, tokens=estimate(body)) as once:
        return await relay(once, client, [(main, to_main), (spare, to_spare)], body)

What happens to an attempt says how it is resolved:

* it could not be sent: the provider's scope gets everything back, and the next one is asked;
* refused unbilled (400, 401, 429, …): nothing was used. Where another provider may do it, the next one is asked. Where
  one before may bill the request, what was held of it stays;
* answered whole: settled by the usage that the answer reports;
* streamed: the stream takes it over, and resolves it however it ends;
* sent, outcome unknown (a timeout, a 5xx, an answer that broke off): what was held stays.

Where nobody answers, the request is charged what its attempts come to: a provider that is down is not paid for from a
client's limits.

Needs Starlette and httpx: `earmark[relay]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, NamedTuple

import httpx
from starlette.exceptions import HTTPException
from starlette.responses import Response

from earmark.contrib.asgi import ReservedStream
from earmark.errors import RateLimited
from earmark.http import Fields, Style, rate_limit_headers, upstream_retry_headers
from earmark.http.bodies import FIELDS_OF
from earmark.http.passing import passed_on
from earmark.limits import Scope
from earmark.once import ReserveOnce
from earmark.reservation import Reservation
from earmark.streams.counts import mapping_of
from earmark.streams.response import usage_from_response
from earmark.usage import Usage

__all__ = ["relay"]

# What httpx raises while nothing has been sent yet; whatever else it raises leaves the outcome unknown.
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
# Refused by the provider and not billed; another provider may do it where this one is at fault or has no room.
_UNBILLED: Final = frozenset({400, 401, 403, 404, 413, 422, 429})
_ELSEWHERE: Final = frozenset({401, 403, 408, 429, 500, 502, 503, 504, 529})

_JSON: Final = "application/json"

_Fate = Literal["never sent", "unbilled", "unknown"]
"""What became of an attempt that has no answer for the client."""


class _Asked(NamedTuple):
    """What the client has asked for, as far as it matters here."""

    streams: bool
    choices: int
    shows_usage: bool
    fields: Fields


async def relay(
    once: ReserveOnce,
    client: httpx.AsyncClient,
    targets: Sequence[tuple[Scope, httpx.Request]],
    body: Mapping[str, Any],
    *,
    style: Style = "openai",
) -> Response:
    """Ask one provider after the other, and answer with what the first of them says that is an answer.

    The limits of the request are counted once, those of a provider for each attempt. The provider's body and status are
    passed on as they are, with the rate-limit headers and what it says of coming back.

    Args:
        once: the request's, entered.
        client: sends the requests, and follows no redirects.
        targets: whom to ask, in order: a provider's own scope, and the request as it gets it. That should ask for
            usage (`ask_for_usage`) and for a body that is not compressed.
        body: the client's own request: whether it streams, how many choices it wants, and whether it asked to see the
            usage. A value of a wrong type says nothing here: it is for the provider to refuse.
        style: whose rate-limit headers: those of the API that the client has called (`style_of`).

    Raises:
        RateLimited: a scope of the request refused, or that of the last provider.
        HTTPException: 502, no provider has answered.
    """
    asked = _Asked(bool(body.get("stream")), _choices(body), _shows_usage(body), FIELDS_OF[style])
    fates: set[_Fate] = set()
    for number, (scope, request) in enumerate(targets, start=1):
        last = number == len(targets)
        try:
            attempt = await once.attempt(scope)
        except RateLimited:
            if once.refused or last:
                await _nobody_answered(once, fates)
                raise
            continue  # this provider has no room
        async with attempt:
            answer = await _ask(attempt, client, request, asked, fates, last=last)
        if isinstance(answer, Response):
            return answer
        fates.add(answer)
    await _nobody_answered(once, fates)
    raise HTTPException(502, "No provider has answered.")


async def _nobody_answered(once: ReserveOnce, fates: set[_Fate]) -> None:
    """Charge the request what its attempts come to."""
    if fates <= {"never sent"}:
        await once.cancel()
    elif "unknown" not in fates:
        # Refused by all who were asked: it counts, and used nothing.
        async with await once.attempt() as nobody:
            await nobody.settle_success(Usage(0, 0))
    # Otherwise somebody may bill it: leaving the once keeps what was held.


async def _ask(
    attempt: Reservation,
    client: httpx.AsyncClient,
    request: httpx.Request,
    asked: _Asked,
    fates: set[_Fate],
    *,
    last: bool,
) -> Response | _Fate:
    """Ask one provider, and resolve the attempt as its answer says; without one another provider is to be asked."""
    try:
        response = await client.send(request, stream=True)
    except _NEVER_SENT:
        await attempt.cancel()
        return "never sent"
    except httpx.RequestError:
        return "unknown"  # leaving the attempt keeps what was held
    if response.status_code in _ELSEWHERE and not last:
        await response.aclose()
        if response.status_code not in _UNBILLED:
            return "unknown"
        await attempt.cancel()
        return "unbilled"
    headers = rate_limit_headers(attempt, asked.fields)
    headers |= upstream_retry_headers(response.headers)
    media_type = passed_on(response.headers, ("content-type",)).get("content-type", _JSON)
    if asked.streams and response.is_success:
        headers |= passed_on(
            response.headers, ("content-encoding",)
        )  # its bytes are untouched (B63)
        stream = attempt.stream(  # from here on the stream resolves it, however it ends
            response.aiter_raw(),
            aclose=response.aclose,
            expected_choices=asked.choices,
            hide_usage=not asked.shows_usage,
        )
        return ReservedStream(stream, headers=headers, media_type=media_type)
    return await _whole(attempt, response, fates, headers, media_type)


async def _whole(
    attempt: Reservation,
    response: httpx.Response,
    fates: set[_Fate],
    headers: dict[str, str],
    media_type: str,
) -> Response | _Fate:
    """Pass on an answer that is no stream, and settle by what it says that it used."""
    try:
        async with aclosing(response):
            content = await response.aread()
    except httpx.RequestError:
        return "unknown"  # it broke off, or cannot be decoded
    if response.status_code in _UNBILLED and "unknown" in fates:
        # Settled at nothing, it would give the request back what another may bill (C44).
        await attempt.cancel()
    elif response.status_code in _UNBILLED:
        await attempt.settle_success(Usage(0, 0))
    elif (usage := usage_from_response(content)) is not None:
        await attempt.settle_success(usage)
    return Response(content, response.status_code, headers, media_type)


def _choices(body: Mapping[str, Any]) -> int:
    n = body.get("n")
    return n if type(n) is int and n > 0 else 1


def _shows_usage(body: Mapping[str, Any]) -> bool:
    return mapping_of(body.get("stream_options")).get("include_usage") is True
