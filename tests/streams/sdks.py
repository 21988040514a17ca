"""The SDKs of OpenAI, Anthropic and Google: a client of each, and the ways in which it opens a stream.

An SDK is imported by the first test that wants it, since each takes seconds to import.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pytest

from earmark.testing.streams.bodies.good_day import CHAT, CONTENT, MESSAGE, RESPONSE
from earmark.testing.streams.bodies.shape import Stream


class Sdks:
    """A client of each SDK, and each way in which it opens a stream.

    Args:
        url: the provider's.
        http: the HTTP client that all of them use.
    """

    def __init__(self, url: str, http: Any) -> None:
        self._url = url
        self.http = http
        self._responses: list[Any] = []
        http.event_hooks = {"response": [self._remember]}

    async def _remember(self, response: Any) -> None:
        self._responses.append(response)

    async def close_response(self) -> None:
        """Close the responses that there were, for an SDK that does not do it itself."""
        while self._responses:
            await self._responses.pop().aclose()

    @cached_property
    def openai(self) -> Any:
        from openai import AsyncOpenAI

        url = f"{self._url}/v1"
        return AsyncOpenAI(base_url=url, api_key="k", max_retries=0, http_client=self.http)

    @cached_property
    def anthropic(self) -> Any:
        from anthropic import AsyncAnthropic

        url = self._url
        return AsyncAnthropic(base_url=url, api_key="k", max_retries=0, http_client=self.http)

    @cached_property
    def google(self) -> Any:
        from google.genai import Client
        from google.genai.types import HttpOptions

        options = HttpOptions(base_url=self._url, httpx_async_client=self.http)
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


@dataclass(frozen=True)
class Call:
    """A way in which an SDK opens a stream.

    Attributes:
        open: opens the stream of a model.
        body: a whole one, which says "Good day".
        marked: the SDK gives an item that ends the stream, and the tokens are settled before it.
        reported: the tokens that are reported in what a silent provider sends, its first event.
        backends: the event loops that the SDK runs on.
    """

    open: Callable[[Sdks, str], Awaitable[Any]]
    body: Stream
    marked: bool
    reported: int = 0
    backends: tuple[str, ...] = ("asyncio", "trio")

    def begun(self) -> bytes:
        """The first event."""
        return Stream("", "", self.body.events[:1], None).sse()


CHUNKS: Final = Call(Sdks.chat, CHAT, marked=False)
RESPONSES: Final = Call(Sdks.response, RESPONSE, marked=True)
MESSAGES: Final = Call(Sdks.message, MESSAGE, marked=True, reported=641)
CONTENTS: Final = Call(Sdks.content, CONTENT, marked=False, reported=701, backends=("asyncio",))
CALLS: Final = (
    CHUNKS,
    Call(Sdks.chat_events, CHAT, marked=False),
    RESPONSES,
    Call(Sdks.response_events, RESPONSE, marked=True),
    MESSAGES,
    Call(Sdks.message_events, MESSAGE, marked=True, reported=641),
    CONTENTS,
)

each_call = pytest.mark.parametrize(
    ("anyio_backend", "call"),
    [
        pytest.param(backend, call, id=f"{call.open.__name__}-{backend}")
        for call in CALLS
        for backend in call.backends
    ],
)
