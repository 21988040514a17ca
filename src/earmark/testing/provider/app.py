"""The stand-in as an ASGI application, with a path of its own by which other processes write its script.

`POST /script` takes a list of acts for the requests that come next, `GET /seen` tells what was asked so far.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    MutableMapping,
)
from dataclasses import asdict, dataclass
from typing import Any, Final

import anyio

from earmark.testing.provider.acts import Act
from earmark.testing.provider.dialects import Api, api_of
from earmark.testing.provider.recorded import Pause, Recorded

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_OK: Final = 200
_FIRST_ERROR: Final = 400
_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True)
class Seen:
    """One request that was made of the stand-in.

    Attributes:
        path: what was asked.
        headers: by their names in lower case.
        body: its JSON, or None.
    """

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any] | None


class _Broken(Exception):
    """The connection is to break: a server that meets an error in the midst of a body closes it."""


class Provider:
    """An ASGI application.

    Args:
        default: what a request gets that no script is about.
        recorded: what is streamed in place of the acts' own events.
        models: those that there are; any other is a 404. By default any name will do.

    Attributes:
        seen: what was asked so far.
        streaming: how many streams are under way.
    """

    def __init__(
        self,
        default: Act | None = None,
        *,
        recorded: Recorded | None = None,
        models: Collection[str] | None = None,
    ) -> None:
        self._default = default or Act()
        self._recorded = recorded
        self._models = models
        self._acts: deque[Act] = deque()
        self._pauses: deque[Pause] = deque()
        self.seen: list[Seen] = []
        self.streaming = 0

    def script(self, *acts: Act) -> None:
        """Say what the requests get that come next, one each."""
        self._acts.extend(acts)

    def pause(self, *sizes: int) -> Pause:
        """Have the next recorded stream wait once it has sent so many bytes."""
        pause = Pause(*sizes)
        self._pauses.append(pause)
        return pause

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        body = await _read(receive)
        path: str = scope["path"]
        asked = _parsed(body)
        if path == "/script":
            self.script(*map(Act.from_json, json.loads(body)))
            await _send_json(send, _OK, {"acts": len(self._acts)})
        elif path == "/seen":
            told = {"seen": [asdict(one) for one in self.seen], "streaming": self.streaming}
            await _send_json(send, _OK, told)
        elif (api := api_of(path)) is None or asked is None:
            await _send_json(
                send, _NOT_FOUND, {"error": {"message": f"there is nothing at {path}"}}
            )
        else:
            headers = {
                name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]
            }
            self.seen.append(Seen(path, headers, asked))
            await self._answer(api, path, asked, receive, send)

    async def _answer(
        self, api: Api, path: str, asked: Mapping[str, Any], receive: Receive, send: Send
    ) -> None:
        act = self._acts.popleft() if self._acts else self._default
        if self._models is not None and asked.get("model") not in self._models:
            act = Act(status=_NOT_FOUND)
        await anyio.sleep(act.delay)
        if act.status >= _FIRST_ERROR:
            await _send_json(send, act.status, api.error(act.status), act.headers)
        elif asked.get("stream") or "streamGenerateContent" in path:
            await self._stream(api, act, asked, receive, send)
        else:
            content = json.dumps(api.whole(act, asked)).encode()
            await _start(send, act.status, "application/json", act.headers, length=len(content))
            if act.cut is not None:
                await send({"type": "http.response.body", "body": content[:20], "more_body": True})
                raise _Broken
            await send({"type": "http.response.body", "body": content})

    async def _stream(
        self, api: Api, act: Act, asked: Mapping[str, Any], receive: Receive, send: Send
    ) -> None:
        recorded = self._recorded
        media_type = "text/event-stream; charset=utf-8" if recorded is None else recorded.media_type
        await _start(send, act.status, media_type, act.headers)
        pause = self._pauses.popleft() if self._pauses and recorded else Pause()
        self.streaming += 1
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
                if recorded is None:
                    await self._send_events(api, act, asked, send)
                else:
                    await _replay(pause.pieces(recorded.asked_for(asked), recorded.piece), send)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self.streaming -= 1
            pause.ended.set()

    async def _send_events(self, api: Api, act: Act, asked: Mapping[str, Any], send: Send) -> None:
        for sent, event in enumerate(api.events(act, asked)):
            if sent == act.cut:
                raise _Broken
            if sent == act.hang:
                await anyio.sleep_forever()
            if sent == act.fail:
                await send({"type": "http.response.body", "body": api.failure()})
                return
            if act.pace:
                await anyio.sleep(act.pace)
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _replay(pieces: AsyncIterator[bytes], send: Send) -> None:
    async for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    """A client that goes ends its stream."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _live(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def _read(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        piece: bytes = message.get("body", b"")
        body += piece
        if not message.get("more_body"):
            return body


def _parsed(body: bytes) -> Mapping[str, Any] | None:
    try:
        asked: Any = json.loads(body)
    except ValueError:
        return None
    return asked if isinstance(asked, dict) else None  # pyright: ignore[reportUnknownVariableType]


async def _start(
    send: Send,
    status: int,
    media_type: str,
    headers: Mapping[str, str],
    *,
    length: int | None = None,
) -> None:
    lines = {"content-type": media_type, **headers}
    if length is not None:
        lines["content-length"] = str(length)
    pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in lines.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})


async def _send_json(
    send: Send, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> None:
    content = json.dumps(body).encode()
    await _start(send, status, "application/json", headers or {}, length=len(content))
    await send({"type": "http.response.body", "body": content})
