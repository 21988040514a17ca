"""The users in front of the gateway: each asks with a key of their own, and may read a stream piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

import httpx

from earmark import Scope

from .app import COMPLETIONS
from .provider import MODEL

PROMPT: Final = "Please say hello to the whole wide world"
MAX_TOKENS: Final = 190
HOLD: Final = 200
"""What the gateway holds for it: 10 tokens, a token for four characters, and all the output it may have."""


class Reading:
    """A streamed answer as it is read."""

    def __init__(self, response: httpx.Response) -> None:
        self.answer = shown(response)
        self.body = b""
        self._pieces = response.aiter_raw()

    async def up_to(self, size: int) -> None:
        """Read until that many bytes of the body are here, or it ends."""
        while len(self.body) < size:
            piece = await anext(self._pieces, None)
            if piece is None:
                return
            self.body += piece

    async def to_the_end(self) -> None:
        """Read what is left."""
        async for piece in self._pieces:
            self.body += piece


class User:
    """Somebody with an API key.

    Args:
        http: a client whose base URL is the gateway's.
        key: the API key.
        scope: what the gateway limits the key by; only the table looks at it.
    """

    def __init__(self, http: httpx.AsyncClient, key: str, scope: Scope) -> None:
        self._http = http
        self._headers = {"authorization": f"Bearer {key}"}
        self.scope = scope

    async def ask(self, *, stream: bool = True, model: str = MODEL) -> str:
        """Ask, read the whole answer, and return it as the table shows it."""
        body = _body(stream=stream, model=model)
        return shown(await self._http.post(COMPLETIONS, json=body, headers=self._headers))

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Reading]:
        """Ask, and read piece by piece; whoever leaves the block before the end disconnects."""
        body = _body(stream=True, model=MODEL)
        async with self._http.stream(
            "POST", COMPLETIONS, json=body, headers=self._headers
        ) as response:
            yield Reading(response)


def _body(*, stream: bool, model: str) -> dict[str, object]:
    messages = [{"role": "user", "content": PROMPT}]
    return {"model": model, "messages": messages, "max_tokens": MAX_TOKENS, "stream": stream}


def shown(response: httpx.Response) -> str:
    """An answer in few words: its status and, of a refusal, when to come back."""
    if response.status_code != HTTPStatus.TOO_MANY_REQUESTS:
        return str(response.status_code)
    wait = response.headers.get("retry-after")
    return "429, no Retry-After" if wait is None else f"429, Retry-After {wait}"
