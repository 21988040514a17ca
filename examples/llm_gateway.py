"""A complete gateway: API keys, policies, limits, fallback between providers, and streams that are settled.

    uvicorn --app-dir examples llm_gateway:app

It speaks whatever its providers speak (OpenAI's chat completions, completions and responses, Anthropic's messages), and
is configured by the environment:

    GATEWAY_POLICIES    who may use how much; by default the policies.yaml beside this file
    GATEWAY_KEYS        API keys, their tenants, and a team where there is one: "sk-1=acme,sk-2=globex/research"
    GATEWAY_PROVIDERS   whom to ask, in order: "main=https://api.openai.com,spare=http://10.0.0.7:8000"
    GATEWAY_PROVIDER_KEY  what the providers are sent in place of the client's key
    GATEWAY_REDIS       where several processes keep their limits; by default each process has its own

`/live` says that the process answers, `/health` whether its limits are shared at this moment.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal

import httpx
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse

from earmark import (
    Limiter,
    Limits,
    RateLimited,
    RedisBackend,
    Reservation,
    ReserveOnce,
    Scope,
    Usage,
    ask_for_usage,
    usage_from_response,
)
from earmark.contrib.asgi import ReservedStream, answer_refusals, style_of
from earmark.estimates import estimate
from earmark.http import Fields, rate_limit_headers, upstream_retry_headers
from earmark.policies import Policies


def pairs(variable: str, default: str) -> dict[str, str]:
    """What an environment variable lists: "a=1,b=2"."""
    listed = {}
    for number, one in enumerate(os.environ.get(variable, default).split(","), start=1):
        name, sign, value = one.strip().partition("=")
        if not (name and sign and value):  # a key is a secret, so what stands there is not shown
            msg = f"{variable} must list pairs, such as {default!r}: entry {number} is none"
            raise ValueError(msg)
        listed[name] = value
    return listed


POLICIES: Final = Policies.load(
    os.environ.get("GATEWAY_POLICIES", Path(__file__).with_name("policies.yaml")),
    dims=[
        "team"
    ],  # what is told of a request beside tenant and model: a scope by anything else stops the start
)
KEYS: Final = pairs("GATEWAY_KEYS", "sk-demo=acme")
# A provider's own scope carries what is asked of it, whoever asks: at most so many requests at a time.
PROVIDERS: Final = [
    (url, Scope(f"provider:{name}", Limits(concurrency=500)))
    for name, url in pairs("GATEWAY_PROVIDERS", "main=http://127.0.0.1:8001").items()
]
PROVIDER_KEY: Final = os.environ.get("GATEWAY_PROVIDER_KEY", "none")
REDIS: Final = os.environ.get("GATEWAY_REDIS")

# What httpx raises while nothing has been sent yet; whatever else it raises leaves the outcome unknown.
NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
# Refused by the provider and not billed; another provider may do it where this one is at fault or has no room.
UNBILLED: Final = frozenset({400, 401, 403, 404, 413, 422, 429})
ELSEWHERE: Final = frozenset({401, 403, 408, 429, 500, 502, 503, 504, 529})

Fate = Literal["never sent", "unbilled", "unknown"]
"""What became of an attempt that has no answer for the client."""

limiter = Limiter(RedisBackend.from_url(REDIS) if REDIS else None)
upstream = httpx.AsyncClient(
    timeout=httpx.Timeout(600, connect=5),
    limits=httpx.Limits(max_connections=None),
    trust_env=False,
)


@asynccontextmanager
async def life(_: FastAPI) -> AsyncIterator[None]:
    """What is owed to the store is delivered before the process ends."""
    async with upstream, limiter:
        yield


app = FastAPI(lifespan=life)
answer_refusals(app)  # a refusal becomes a 429, in the words of the API that was asked


@app.get("/live")
async def live() -> Response:
    """Whether this process answers: what restarts it, and what sends it requests, asks here.

    A store that is down is no reason for either: the gateway goes on by itself, and so would every other one.
    """
    return Response("ok", media_type="text/plain")


@app.get("/health")
async def health() -> Response:
    """What an operator watches: whether the last message reached the store, and what is owed to it; 503 if not."""
    state = limiter.health()
    return JSONResponse(asdict(state), 200 if state.available else 503)


@app.post("/v1/{path:path}")
async def complete(path: str, request: Request) -> Response:  # noqa: ARG001 - providers know which paths there are
    """Whatever can fail without a provider comes first; then the reservation, before a byte goes upstream."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    bearer = (
        key.strip() if scheme.lower() == "bearer" else ""
    )  # schemes have no case (RFC 9110, 11.1)
    owner = KEYS.get(request.headers.get("x-api-key", bearer))
    if owner is None:
        raise HTTPException(401, "This API key is not known here.")
    try:
        asked: dict[str, Any] = json.loads(await request.body())
        asked["model"] = POLICIES.resolve(asked["model"])
        tenant, _, team = owner.partition("/")
        scopes = POLICIES.scopes(tenant=tenant, model=asked["model"], team=team)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise HTTPException(400, "The body is no JSON object with a model.") from error
    async with limiter.once(*scopes, tokens=estimate(asked, scopes=scopes)) as once:
        return await ask_around(once, asked, request)


async def ask_around(once: ReserveOnce, asked: dict[str, Any], request: Request) -> Response:
    """Ask one provider after the other; the client's limits are counted once, a provider's for each attempt."""
    fates: set[Fate] = set()
    fields: Fields = "anthropic" if style_of(request) == "anthropic" else "openai"
    for number, (url, scope) in enumerate(PROVIDERS, start=1):
        last = number == len(PROVIDERS)
        try:
            attempt = await once.attempt(scope)
        except RateLimited:
            if once.refused or last:
                await nobody_answered(once, fates)
                raise
            continue  # this provider has no room
        async with attempt:
            sent = outgoing(url, asked, request)
            answer = await ask(attempt, sent, asked, last=last, fields=fields)
            if isinstance(answer, Response):
                return answer
            fates.add(answer)
    await nobody_answered(once, fates)
    raise HTTPException(502, "No provider has answered.")


async def nobody_answered(once: ReserveOnce, fates: set[Fate]) -> None:
    """Charge the client what its attempts come to: a provider that is down is not paid from a client's limits."""
    if fates <= {"never sent"}:
        await once.cancel()
    elif "unknown" not in fates:
        async with (
            await once.attempt() as nobody
        ):  # refused by all who were asked: it counts, and used nothing
            await nobody.settle_success(Usage(0, 0))
    # Otherwise somebody may bill it: leaving the once keeps what was held.


async def ask(
    attempt: Reservation,
    request: httpx.Request,
    asked: dict[str, Any],
    *,
    last: bool,
    fields: Fields,
) -> Response | Fate:
    """Ask one provider, and resolve the attempt as its answer says; without one another provider is to be asked."""
    try:
        response = await upstream.send(request, stream=True)
    except NEVER_SENT:
        await attempt.cancel()  # the provider's scope gets all of it back
        return "never sent"
    except httpx.RequestError:
        return "unknown"  # leaving the attempt keeps what was held
    if response.status_code in ELSEWHERE and not last:
        await response.aclose()
        if response.status_code not in UNBILLED:
            return "unknown"
        await attempt.cancel()
        return "unbilled"
    headers = {**rate_limit_headers(attempt, fields), **upstream_retry_headers(response.headers)}
    media_type = response.headers.get("content-type", "application/json")
    if asked.get("stream") and response.is_success:
        stream = attempt.stream(  # from here on the stream resolves it, however it ends
            response.aiter_raw(),
            aclose=response.aclose,
            expected_choices=choices(asked),
            hide_usage=not shows_usage(asked),
        )
        return ReservedStream(stream, headers=headers, media_type=media_type)
    return await whole(attempt, response, headers, media_type)


async def whole(
    attempt: Reservation, response: httpx.Response, headers: dict[str, str], media_type: str
) -> Response | Fate:
    """Pass on an answer that is no stream, and settle by what it says that it used."""
    try:
        async with aclosing(response):
            content = await response.aread()
    except httpx.RequestError:
        return "unknown"  # it broke off, or cannot be decoded
    if response.status_code in UNBILLED:
        await attempt.settle_success(Usage(0, 0))
    elif (usage := usage_from_response(content)) is not None:
        await attempt.settle_success(usage)
    return Response(content, response.status_code, headers, media_type)


def choices(asked: Mapping[str, Any]) -> int:
    """How many answers a request wants; what is no such number is for the provider to refuse."""
    n = asked.get("n")
    return n if type(n) is int and n > 0 else 1


def shows_usage(asked: Mapping[str, Any]) -> bool:
    """Whether the client wants to see the usage of a stream."""
    options = asked.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def outgoing(url: str, asked: dict[str, Any], request: Request) -> httpx.Request:
    """The request as a provider gets it: it asks for usage, and for a body that can be read."""
    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    if style_of(request) == "anthropic":
        headers |= {"x-api-key": PROVIDER_KEY, "anthropic-version": "2023-06-01"}
    else:
        headers["authorization"] = f"Bearer {PROVIDER_KEY}"
    content = ask_for_usage(json.dumps(asked).encode())
    return upstream.build_request("POST", url + request.url.path, content=content, headers=headers)
