"""Commands to a server and its replies, without a task in between.

redis-py makes the connection: TLS, users, Sentinel, sockets of whatever kind. Once it stands its stream is left alone:
commands are written to its transport, and replies are read where the event loop hands them over. Through redis-py's own
methods a round trip takes nearly three times as much of the processor.

A connection that has no such transport, as the ones of fakeredis have none, is used by redis-py's methods.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final, Protocol, cast

from redis import exceptions
from redis.asyncio.connection import AbstractConnection, DefaultParser

from earmark.backends.redis.loops import OURS

Replies = Sequence[object] | Exception
"""One for each command, those that are errors as exceptions; or what the connection has failed at."""

LOST: Final = "the server has closed the connection"


class Connection(Protocol):
    """What is used of redis-py's connections."""

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: ANN401, FBT001, FBT002
        """Write."""
        ...

    async def read_response(self) -> Any:  # noqa: ANN401 - whatever a server answers
        """Read one reply."""
        ...

    async def disconnect(self, nowait: bool = False) -> None:  # noqa: FBT001, FBT002
        """Close."""
        ...


class Wire(Protocol):
    """Round trips, which are answered in the order of the calls."""

    @property
    def free(self) -> bool:
        """Whether the server is there, as far as is known, and no reply is to come."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether it may be called: the server is there, as far as is known, and other replies are not in the way."""
        ...

    def call(
        self, commands: Iterable[bytes], count: int, done: Callable[[Replies], object]
    ) -> None:
        """Write commands, and have `done` told of their replies, unless the wire is closed before: then nobody is."""
        ...

    async def close(self, *, at_once: bool) -> None:
        """Close, and wait until that is done, unless at once."""
        ...


def wire_of(connection: Any) -> Wire:  # noqa: ANN401 - redis-py's, whose streams are not in its types
    """What uses a connection that stands, and on which no reply is to come."""
    writer = getattr(connection, "_writer", None)
    if isinstance(writer, asyncio.StreamWriter) and _is_redis_pys(type(connection)):
        return StreamWire(connection, writer)
    return MethodsWire(connection)


def _is_redis_pys(kind: Any) -> bool:  # noqa: ANN401 - a class
    """Whether a class reads and writes as redis-py does: what a user's own does besides is not passed over."""
    own: Any = AbstractConnection
    return (
        kind.read_response is own.read_response
        and kind.send_packed_command is own.send_packed_command
    )


async def ask(wire: Wire, *commands: bytes) -> Sequence[object]:
    """The replies to some commands, errors among them.

    Raises:
        redis.ConnectionError: the connection has broken.
    """
    answer: asyncio.Future[Sequence[object]] = asyncio.get_running_loop().create_future()

    def done(replies: Replies) -> None:
        if answer.done():
            return
        if isinstance(replies, Exception):
            answer.set_exception(replies)
        else:
            answer.set_result(replies)

    wire.call(commands, len(commands), done)
    return await answer


async def command(wire: Wire, *arguments: str) -> Any:  # noqa: ANN401 - whatever a server answers
    """Send one command and return its reply.

    Raises:
        redis.RedisError: the reply is an error, or the connection has broken.
    """
    (reply,) = await ask(wire, pack(*arguments))
    if isinstance(reply, Exception):
        raise reply
    return reply


def pack(*arguments: str) -> bytes:
    """Encode a command: how many arguments, and each with its length in front (RESP)."""
    text = "".join([f"${len(argument)}\r\n{argument}\r\n" for argument in arguments])
    if text.isascii():  # else a length in bytes is another
        return f"*{len(arguments)}\r\n{text}".encode()
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        data = argument.encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class StreamWire(asyncio.Protocol):
    """Takes the place of the stream that redis-py reads from; that is told what it needs to close.

    Args:
        connection: stands, and has no reply to come.
        writer: its own.
    """

    def __init__(self, connection: Connection, writer: asyncio.StreamWriter) -> None:
        self._connection = connection  # it closes itself when nobody has it
        self._transport = writer.transport
        self._stream = self._transport.get_protocol()
        self._read = bytearray()
        self._replies: list[object] = []
        self._calls: deque[tuple[int, Callable[[Replies], object]]] = deque()
        self._count = 0  # of the replies that are to come
        self._ended = False
        self._context = Context()  # none of a caller's
        self._transport.set_protocol(self)

    @property
    def free(self) -> bool:
        """See `Wire`. A transport may know that the server has gone and not have told yet, or wait for it with TLS."""
        return not self._calls and self.has_room

    @property
    def has_room(self) -> bool:
        """See `Wire`."""
        return not (self._ended or self._transport.is_closing())

    def call(
        self, commands: Iterable[bytes], count: int, done: Callable[[Replies], object]
    ) -> None:
        """See `Wire`."""
        has_room = self.has_room
        self._calls.append((count, done))
        if has_room:
            self._count += count
            # Not `writelines`: in Python 3.12 that does not look whether the transport has lost its connection.
            self._transport.write(b"".join(commands))
        else:
            asyncio.get_running_loop().call_soon(self._fail, None, context=self._context)

    async def close(self, *, at_once: bool) -> None:
        """See `Wire`."""
        self._calls.clear()
        try:
            await self._connection.disconnect(nowait=at_once)
        finally:
            self._transport.abort()  # with TLS it would wait for a server that may never answer

    def data_received(self, data: bytes) -> None:
        """Some of what the server has answered."""
        self._read += data
        try:
            self._take_replies()
        except Exception as error:  # noqa: BLE001 - whatever a server sends that is no reply
            self._transport.abort()
            self._fail(error)
            return
        while self._calls and len(self._replies) >= self._calls[0][0]:
            count, done = self._calls.popleft()
            replies, self._replies = self._replies[:count], self._replies[count:]
            self._count -= count
            done(replies)

    def _take_replies(self) -> None:
        """Everything that is whole by now.

        Raises:
            ValueError: there is no reply, or one that nobody asked for: the next one would be taken for another's.
        """
        at = 0
        while (found := reply_at(self._read, at)) is not None:
            reply, at = found
            if reply is not PUSH:
                self._replies.append(reply)
        del self._read[:at]
        begun = bool(self._read) and self._read[0] != _PUSH
        if len(self._replies) + begun > self._count:
            msg = "the server has sent what nobody asked for"
            raise ValueError(msg)

    def eof_received(self) -> None:
        """The server says nothing more."""
        self._ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits, and whoever closes."""
        self._ended = True
        self._stream.connection_lost(exc)
        self._fail(exc)

    def _fail(self, error: Exception | None) -> None:
        while self._calls:
            _, done = self._calls.popleft()
            done(exceptions.ConnectionError(str(error) if error else LOST))

    def pause_writing(self) -> None:
        """What is under way is bounded, and the next round trip waits for it."""

    def resume_writing(self) -> None:
        """It never waited."""


class MethodsWire:
    """Uses the methods of a connection, in a task for each round trip.

    Args:
        connection: stands, and has no reply to come.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._task: asyncio.Task[list[object]] | None = None

    @property
    def free(self) -> bool:
        """See `Wire`."""
        return self._task is None

    @property
    def has_room(self) -> bool:
        """See `Wire`."""
        return self.free

    def call(
        self, commands: Iterable[bytes], count: int, done: Callable[[Replies], object]
    ) -> None:
        """See `Wire`."""
        self._task = asyncio.get_running_loop().create_task(
            self._replies(list(commands), count), name=f"{OURS}.wire", context=Context()
        )
        # Not in the task, which never begins where it is cancelled before.
        self._task.add_done_callback(partial(self._landed, done), context=Context())

    def _landed(self, done: Callable[[Replies], object], task: asyncio.Task[list[object]]) -> None:
        error = None if task.cancelled() else task.exception()
        if task is not self._task:  # it was closed
            return
        self._task = None
        if task.cancelled():
            done(exceptions.ConnectionError("the round trip was cancelled"))
        elif error is None:
            done(task.result())
        else:
            done(error if isinstance(error, Exception) else exceptions.ConnectionError(str(error)))

    async def _replies(self, commands: list[bytes], count: int) -> list[object]:
        replies: list[object] = []
        await self._connection.send_packed_command(commands, check_health=False)
        for _ in range(count):
            try:
                replies.append(await self._connection.read_response())
            except exceptions.ResponseError as error:
                replies.append(error)
        return replies

    async def close(self, *, at_once: bool) -> None:
        """See `Wire`."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        await self._connection.disconnect(nowait=at_once)


PUSH: Final = object()
"""Stands for what a server sends without being asked."""

_BULKS: Final = frozenset(b"$=!")
_TEXTS: Final = frozenset(b"+,#(")
_PUSH: Final = ord(">")
_LISTS: Final = {ord("*"): 1, ord("~"): 1, _PUSH: 1, ord("%"): 2}


def reply_at(read: bytearray, at: int) -> tuple[object, int] | None:
    """The reply that begins there, and where the next one does; None: it is not whole yet.

    Texts are bytes, errors the exceptions that redis-py makes of them, and maps lists of keys and values by turns.
    (https://redis.io/docs/latest/develop/reference/protocol-spec/)

    Raises:
        ValueError: there is no reply.
    """
    end = read.find(b"\r\n", at)
    if end < 0:
        return None
    kind, line, start = read[at], bytes(read[at + 1 : end]), end + 2
    if kind in _BULKS:
        return _bulk_at(read, kind, int(line), start)
    if kind in _LISTS:
        return _list_at(read, kind, int(line), start)
    return _line(kind, line), start


def _line(kind: int, line: bytes) -> object:
    if kind == ord("-"):
        return _error(line)
    if kind == ord(":"):
        return int(line)
    if kind == ord("_"):
        return None
    if kind not in _TEXTS:
        msg = f"the server has sent no reply: {bytes([kind]) + line[:20]!r}"
        raise ValueError(msg)
    return line


def _bulk_at(read: bytearray, kind: int, size: int, start: int) -> tuple[object, int] | None:
    if size < 0:
        return None, start
    if len(read) < start + size + 2:
        return None
    data = bytes(read[start : start + size])
    value: object = _error(data) if kind == ord("!") else data[4:] if kind == ord("=") else data
    return value, start + size + 2


def _list_at(read: bytearray, kind: int, size: int, start: int) -> tuple[object, int] | None:
    if size < 0:
        return None, start
    items: list[object] = []
    for _ in range(size * _LISTS[kind]):
        found = reply_at(read, start)
        if found is None:
            return None
        item, start = found
        items.append(item)
    return PUSH if kind == _PUSH else items, start


def _error(text: bytes) -> Exception:
    parser = cast("Any", DefaultParser)  # it is untyped
    return cast("Exception", parser.parse_error(text.decode(errors="replace")))
