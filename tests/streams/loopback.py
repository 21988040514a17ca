"""The SDKs of OpenAI, Anthropic and Google, a provider for them to talk to, and a gateway: real HTTP on this machine.

The servers run in a thread with a loop of its own, so that a client may run on asyncio or on trio. A request names the
body that it wants as its model. A silent body never ends: the connection of a stream that is left cannot come back by
itself. An SDK is imported by the first test that wants it, since each takes seconds to import.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import cached_property
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


class Sdks:
    """A client of each SDK, and each way in which it opens a stream.

    Args:
        url: the provider's.
        http: the HTTP client that all of them use.
    """

    def __init__(self, url: str, http: Any) -> None:
        self._url = url
        self._http = http
        self._responses: list[Any] = []
        http.event_hooks = {"response": [self._remember]}

    async def _remember(self, response: Any) -> None:
        self._responses.append(response)

    async def close_response(self) -> None:
        """Close the latest response, of an SDK that does not do it itself."""
        while self._responses:
            await self._responses.pop().aclose()

    @cached_property
    def openai(self) -> Any:
        from openai import AsyncOpenAI

        url = f"{self._url}/v1"
        return AsyncOpenAI(base_url=url, api_key="k", max_retries=0, http_client=self._http)

    @cached_property
    def anthropic(self) -> Any:
        from anthropic import AsyncAnthropic

        url = self._url
        return AsyncAnthropic(base_url=url, api_key="k", max_retries=0, http_client=self._http)

    @cached_property
    def google(self) -> Any:
        from google.genai import Client
        from google.genai.types import HttpOptions

        options = HttpOptions(base_url=self._url, httpx_async_client=self._http)
        return Client(api_key="k", http_options=options).aio

    async def chat(self, model: str) -> Any:
        """Chat completions."""
        return await self.openai.chat.completions.create(model=model, messages=[], stream=True)

    async def chat_events(self, model: str) -> Any:
        """Chat completions, by the helper whose events have the chunks inside."""
        return await _entered(self.openai.chat.completions.stream(model=model, messages=[]))

    async def response(self, model: str) -> Any:
        """Responses."""
        return await self.openai.responses.create(model=model, input="hi", stream=True)

    async def response_events(self, model: str) -> Any:
        """Responses, by the helper."""
        return await _entered(self.openai.responses.stream(model=model, input="hi"))

    async def message(self, model: str) -> Any:
        """Messages."""
        create = self.anthropic.messages.create
        return await create(model=model, messages=[], max_tokens=9, stream=True)

    async def message_events(self, model: str) -> Any:
        """Messages, by the helper that adds events of its own."""
        return await _entered(
            self.anthropic.messages.stream(model=model, messages=[], max_tokens=9)
        )

    async def content(self, model: str) -> Any:
        """Content of Gemini's."""
        return await self.google.models.generate_content_stream(model=model, contents="hi")


async def _entered(manager: Any) -> Any:
    """The stream of a helper, which nobody but its observer will close."""
    return await type(manager).__aenter__(manager)


class Provider:
    """Streams the bodies that it was given, each for a model of its own.

    Attributes:
        url: where it listens.
    """

    def __init__(self) -> None:
        self.url = ""
        self._bodies: list[tuple[bytes, bool]] = []

    def model(self, body: bytes, *, silent: bool = False) -> str:
        """The model that answers with this body; a silent one then says nothing more until the client has gone."""
        self._bodies.append((body, silent))
        return f"model-{len(self._bodies) - 1}"

    def app(self) -> Starlette:
        """The ASGI application."""
        paths = ("/{version}/models/{model}:streamGenerateContent", "/{path:path}")
        return Starlette(routes=[Route(path, self._answer, methods=["POST"]) for path in paths])

    async def _answer(self, request: Request) -> Response:
        asked: Mapping[str, Any] = await request.json()
        model: str = request.path_params.get("model") or asked["model"]
        body, silent = self._bodies[int(model.removeprefix("model-"))]
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
