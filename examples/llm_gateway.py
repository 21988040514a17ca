"""A complete gateway: API keys, policies, limits, fallback between providers, and streams that are settled.

    uvicorn --app-dir examples llm_gateway:app

It speaks whatever its providers speak (OpenAI's chat completions, completions and responses, Anthropic's messages), and
is configured by the environment:

    GATEWAY_POLICIES    who may use how much; by default the policies.yaml beside this file. SIGHUP reads it again
    GATEWAY_KEYS        API keys, their tenants, and a team where there is one: "sk-1=acme,sk-2=globex/research"
    GATEWAY_PROVIDERS   whom to ask, in order: "main=https://api.openai.com,spare=http://10.0.0.7:8000"
    GATEWAY_PROVIDER_KEY  what the providers are sent in place of the client's key
    GATEWAY_REDIS       where several processes keep their limits; by default each process has its own

`/live` says that the process answers, `/health` whether its limits are shared at this moment.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse

from earmark import Limiter, Limits, RedisBackend, Scope, ask_for_usage
from earmark.contrib.asgi import answer_refusals, style_of
from earmark.contrib.relay import relay
from earmark.estimates import estimate
from earmark.policies import Policies, PolicyError


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
    dims=["team"],  # what a request tells beside tenant and model: limits can be by nothing else
)
KEYS: Final = pairs("GATEWAY_KEYS", "sk-demo=acme")
# A provider's own scope carries what is asked of it, whoever asks: at most so many requests at a time.
PROVIDERS: Final = [
    (Scope(f"provider:{name}", Limits(concurrency=500)), url)
    for name, url in pairs("GATEWAY_PROVIDERS", "main=http://127.0.0.1:8001").items()
]
PROVIDER_KEY: Final = os.environ.get("GATEWAY_PROVIDER_KEY", "none")
REDIS: Final = os.environ.get("GATEWAY_REDIS")

logger = logging.getLogger("uvicorn.error")
limiter = Limiter(RedisBackend.from_url(REDIS) if REDIS else None)
upstream = httpx.AsyncClient(
    timeout=httpx.Timeout(600, connect=5),
    limits=httpx.Limits(max_connections=None),  # the scopes say how many
    trust_env=False,
)


def reload() -> None:
    """Take the policies as the file has them now, whole or not at all; what was used stays used."""
    try:
        POLICIES.reload()
    except PolicyError:
        logger.exception("the policies stay as they were")


@asynccontextmanager
async def life(_: FastAPI) -> AsyncIterator[None]:
    """What is owed to the store is delivered before the process ends."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, loop.run_in_executor, None, reload)
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
async def complete(path: str, request: Request) -> Response:
    """Whatever can fail without a provider comes first; then the reservation, before a byte goes upstream."""
    tenant, _, team = owner_of(request).partition("/")
    if ".." in path.split("/"):
        raise HTTPException(404, "A path leads to what is below /v1 of a provider.")
    try:
        asked: dict[str, Any] = json.loads(await request.body())
        asked["model"] = POLICIES.resolve(asked["model"])  # it may be an alias
        scopes = POLICIES.scopes(tenant=tenant, model=asked["model"], team=team)
        targets = [
            (scope, outgoing(f"{url}/v1/{quote(path)}", asked, request)) for scope, url in PROVIDERS
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise HTTPException(400, "The body is no JSON object with a model.") from error
    async with limiter.once(*scopes, tokens=estimate(asked, scopes=scopes)) as once:
        return await relay(once, upstream, targets, asked, style=style_of(request))


def owner_of(request: Request) -> str:
    """Whose API key a request has, in OpenAI's header or in Anthropic's: a tenant, and a team where there is one."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""  # schemes have no case (RFC 9110)
    owner = KEYS.get(request.headers.get("x-api-key", bearer))
    if owner is None:
        raise HTTPException(401, "This API key is not known here.")
    return owner


def outgoing(url: str, asked: dict[str, Any], request: Request) -> httpx.Request:
    """The request as a provider gets it: it asks for usage, and for a body that can be read."""
    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    if style_of(request) == "anthropic":
        headers |= {"x-api-key": PROVIDER_KEY, "anthropic-version": "2023-06-01"}
    else:
        headers["authorization"] = f"Bearer {PROVIDER_KEY}"
    content = ask_for_usage(json.dumps(asked).encode())
    return upstream.build_request("POST", url, content=content, headers=headers)
