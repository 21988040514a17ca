"""A provider for SDKs to talk to, and a gateway before it: real HTTP on this machine.

Both run in a thread with a loop of its own, so that a client may run on asyncio or on trio. A request names the body
that it wants as its model. A silent body never ends, so the connection of a stream that is left does not come back
by itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any

import httpx
from anyio.from_thread import start_blocking_portal
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from earmark import Limiter, Scope

serving: Any = import_module("examples.gateway.serving").serving
Gateway: Any = import_module("examples.gateway.app").Gateway


class Provider:
    """Streams the bodies that it was given, each for a model of its own.

    Attributes:
        url: where it listens.
    """

    def __init__(self) -> None:
        self.url = ""
        self._bodies: list[tuple[bytes, bool]] = []

    def model(self, body: bytes, *, silent: bool = False) -> str:
        """The model that answers with this body, streamed or as JSON.

        A silent one then says nothing more until the client has gone.
        """
        self._bodies.append((body, silent))
        return f"model-{len(self._bodies) - 1}"

    def app(self) -> Starlette:
        """The ASGI application."""
        paths = ("/{version}/models/{model}:{verb}", "/{path:path}")
        return Starlette(routes=[Route(path, self._answer, methods=["POST"]) for path in paths])

    async def _answer(self, request: Request) -> Response:
        asked: Mapping[str, Any] = await request.json()
        model: str = request.path_params.get("model") or asked["model"]
        body, silent = self._bodies[int(model.removeprefix("model-"))]
        if body.startswith(b"{"):
            return Response(body, media_type="application/json")
        sent = _sent(body, request if silent else None)
        return StreamingResponse(sent, media_type="text/event-stream")


async def _sent(body: bytes, silent: Request | None) -> AsyncIterator[bytes]:
    """The body in two pieces, cut within an event."""
    half = len(body) // 2
    for piece in (body[:half], body[half:]):
        yield piece
    while silent is not None and (await silent.receive())["type"] != "http.disconnect":
        pass


@contextmanager
def served(provider: Provider) -> Generator[Provider, None, None]:
    """Serve a provider."""
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(serving(provider.app())) as url,
    ):
        provider.url = url
        yield provider


@contextmanager
def gateway(
    limiter: Limiter, keys: Mapping[str, Scope], provider: Provider
) -> Generator[str, None, None]:
    """Serve the gateway of the examples before a provider; yields its URL."""
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(_gateway(limiter, keys, provider)) as url,
    ):
        yield url


@asynccontextmanager
async def _gateway(
    limiter: Limiter, keys: Mapping[str, Scope], provider: Provider
) -> AsyncGenerator[str, None]:
    async with AsyncExitStack() as stack:
        client = httpx.AsyncClient(base_url=provider.url, trust_env=False)
        upstream = await stack.enter_async_context(client)
        app = Gateway(limiter, keys, upstream).app()
        url: str = await stack.enter_async_context(serving(app))
        yield url
