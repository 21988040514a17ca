"""What stands between a backend and its server, and goes wrong when it is told to.

A `Proxy` passes bytes on. A fault is laid for the next request that contains some bytes, and is met once: its reply is
swallowed or held after the server has applied it, the request is held, or the connection is cut: before the request
reaches the server, after, or with the request still on its way.
Each fault tells by an event that it has happened, so that no test has to sleep.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Literal, Self

from earmark import Limiter, Limits, RedisBackend, Scope
from earmark.testing import ManualClock
from tests.servers import HOST, RedisServer

logger = logging.getLogger("tests.proxy")

Kind = Literal["swallow", "hold reply", "hold request", "cut before", "cut after", "cut and hold"]

LEASE: Final = 30.0
TIMEOUT: Final = 0.2
PATIENT: Final = 0.5  # where no outage may come of a busy machine

# Its windows outlast the lease and the horizon.
SCOPE: Final = Scope("alice", Limits(rpd=10, tpd=1_000, concurrency=2))

PATIENCE: Final = 20.0
"""Seconds after which a test that waits for something fails."""

_BYTES: Final = 1 << 20
_LOOK: Final = 0.002


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so, on the loop that may have to see to it.

    Raises:
        TimeoutError: it has not come true.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE):
        while not condition():
            turn = asyncio.Event()
            loop.call_later(_LOOK, turn.set)
            await turn.wait()


class Fault:
    """One thing that goes wrong once.

    Attributes:
        met: it has happened: the request has come, and where a reply is concerned, the server has answered it.
        reply: what the server has answered, if it was asked.
    """

    def __init__(self, kind: Kind, on: bytes) -> None:
        self.kind = kind
        self.on = on
        self.met = asyncio.Event()
        self.reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._released = asyncio.Event()

    def release(self) -> None:
        """Let go of what is held."""
        self._released.set()

    async def released(self) -> None:
        """Wait for that."""
        await self._released.wait()

    async def happened(self) -> None:
        """Wait until it has been met."""
        async with asyncio.timeout(PATIENCE):
            await self.met.wait()

    async def answered(self) -> bytes:
        """Wait until the server has answered it."""
        async with asyncio.timeout(PATIENCE):
            return await self.reply


class Proxy:
    """A listener on a free port that passes everything on to a server.

    Args:
        server: where to.

    Attributes:
        requests: all that was asked through it.
        connections: how many were made through it.
        most_at_once: of them.
        unreachable: whether connections are taken and cut at once.
    """

    def __init__(self, server: RedisServer) -> None:
        self._target = server.port
        self._faults: list[Fault] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._port = 0
        self.requests: list[bytes] = []
        self.connections = 0
        self.most_at_once = 0
        self.unreachable = False

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"redis://{HOST}:{self._port}/0"

    @property
    def port(self) -> int:
        """The same, as a number."""
        return self._port

    def fault(self, kind: Kind, on: bytes = b"EVALSHA") -> Fault:
        """Lay a fault for the next request that contains these bytes."""
        fault = Fault(kind, on)
        self._faults.append(fault)
        return fault

    def asked(self, what: bytes) -> int:
        """How often some bytes were part of a request."""
        return sum(request.count(what) for request in self.requests)

    def forget(self) -> None:
        """No fault is to come any more."""
        self._faults.clear()

    async def refuse(self) -> None:
        """Cut every connection, and take no more."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self.cut()

    async def cut(self) -> None:
        """Cut every connection."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def accept(self) -> None:
        """Take connections, at the same port as before."""
        self._listener = await asyncio.start_server(self._accepted, HOST, self._port)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.most_at_once = max(self.most_at_once, len(self._tasks))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.unreachable:
            await _close(writer)
            return
        try:
            there, back = await asyncio.open_connection(HOST, self._target)
            try:
                await self._pass_on(reader, writer, there, back)
            finally:
                await _close(back)
        except OSError:
            logger.debug("one of the two sides has gone", exc_info=True)
        finally:
            await _close(writer)

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        back: asyncio.StreamWriter,
    ) -> None:
        """One request and its replies after another, which is how the backend talks."""
        faulty: list[Fault] = []
        replies = asyncio.create_task(self._replies(there, writer, faulty))
        try:
            while request := await reader.read(_BYTES):
                self.requests.append(request)
                fault = next((fault for fault in self._faults if fault.on in request), None)
                if fault is not None:
                    self._faults.remove(fault)
                    if fault.kind == "cut before":
                        fault.met.set()
                        return
                    faulty.append(fault)
                    if fault.kind == "cut and hold":
                        writer.close()
                    if fault.kind in {"hold request", "cut and hold"}:
                        fault.met.set()
                        await fault.released()
                back.write(request)
                await back.drain()
            back.write_eof()
            await replies
        finally:
            replies.cancel()
            await asyncio.wait([replies])

    @staticmethod
    async def _replies(
        there: asyncio.StreamReader, writer: asyncio.StreamWriter, faulty: list[Fault]
    ) -> None:
        with suppress(OSError):
            while reply := await there.read(_BYTES):
                if faulty:
                    fault = faulty.pop()
                    fault.met.set()
                    fault.reply.set_result(reply)
                    if fault.kind == "swallow":
                        continue
                    if fault.kind == "cut after":
                        break
                    if fault.kind == "hold reply":
                        await fault.released()
                writer.write(reply)
                await writer.drain()
        writer.close()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


class Way:
    """A limiter that may lose its way, and another one that goes straight to the server.

    Args:
        server: where limits are kept.
        namespace: of the keys.
        url: the way of the first one; by default straight as well.
        options: those of its backend.

    Attributes:
        clock: of both.
    """

    proxy: Proxy

    def __init__(
        self, server: RedisServer, namespace: str, url: str | None = None, **options: Any
    ) -> None:
        self.server = server
        self.namespace = namespace
        self.clock = ManualClock(start=1_000_000.0)
        settings: dict[str, Any] = {"namespace": namespace, "clock": self.clock, "lease": LEASE}
        options.setdefault("timeout", TIMEOUT)
        self.backend = RedisBackend.from_url(url or server.url, **settings, **options)
        self.limiter = Limiter(self.backend)
        self.straight = Limiter(RedisBackend.from_url(server.url, timeout=30, **settings))

    async def used(self, scope: Scope = SCOPE) -> dict[str, int]:
        """What is used of every metric, by the server."""
        (status,) = await self.straight.peek(scope)
        return {limit.metric: status[limit.metric].used for limit in scope.limits}

    async def delivered(self) -> None:
        """Wait until the store can be reached and is owed nothing."""
        await until(lambda: self.limiter.health().available and not self.limiter.health().owed)

    def forget(self) -> None:
        """Let the server forget what it remembers for the horizon: the TTLs of graves are over."""
        with self.server.client() as client:
            names: list[Any] = list(client.scan_iter(f"{self.namespace}:r:*"))
            records: list[Any] = [client.get(name) for name in names]
            pairs = zip(names, records, strict=True)
            graves = [name for name, record in pairs if record and b"\n" not in record]
            assert client.delete(*graves)

    async def check(self, **used: int) -> None:
        """So much is used, nothing lives for ever, and one lease later no slot is held."""
        await self.delivered()
        assert await self.used() == {"requests": 0, "tokens": 0, "concurrency": 0, **used}
        assert self.limiter.health().lost == 0
        with self.server.client() as client:
            keys = list(client.scan_iter(f"{self.namespace}:*"))
            assert all(client.pttl(key) != -1 for key in keys)
        self.clock.advance(LEASE)
        assert (await self.used())["concurrency"] == 0

    async def __aenter__(self) -> Self:
        """Connect, and have the server know all scripts."""
        for limiter in (self.limiter, self.straight):
            reservation = await limiter.pre_commit(SCOPE)
            await reservation.cancel()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.limiter.aclose()
        await self.straight.aclose()


@asynccontextmanager
async def proxied(
    server: RedisServer, namespace: str, proxy: Proxy, **options: Any
) -> AsyncIterator[Way]:
    """A limiter whose every byte goes through a proxy."""
    async with Way(server, namespace, proxy.url, **options) as way:
        way.proxy = proxy
        yield way
