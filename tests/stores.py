"""Stores under test: what a test needs of a Redis server, or of fakeredis in its place."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import fakeredis
from redis.asyncio import Redis

from earmark import RedisBackend
from earmark.backends.redis.client import Client
from earmark.backends.redis.messages import Message
from earmark.clock import Clock
from tests.servers import HOST, RedisServer

_GRACE_MS = 86_400_000  # of a TTL under an injected clock


_CLEAR = """
local immortal = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  if redis.call('PTTL', key) == -1 then
    immortal[#immortal + 1] = key
  end
end
redis.call('FLUSHDB')
return immortal
"""


class _Tap:
    """A line whose answers are told to `heard`."""

    def __init__(self, line: Any, heard: Any) -> None:
        self._line = line
        self._heard = heard

    def ask(self, message: Message, *, again: bool = False) -> Any:
        return self.place(message, again=again).answer

    def place(self, message: Message, *, again: bool = False) -> Any:
        return _Tapped(self._line.place(message, again=again), self._heard)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._line, name)


class _Tapped:
    """A message whose answer is told, whichever future its caller waits for."""

    def __init__(self, asked: Any, heard: Any) -> None:
        self._asked = asked
        self._heard = heard
        self._tap(asked.answer)

    def stays(self) -> Any:
        before = self._asked.answer
        answer = self._asked.stays()
        if answer is not before:
            self._tap(answer)
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._asked, name)

    def _tap(self, answer: Any) -> None:
        message = self._asked.message
        answer.add_done_callback(lambda done: self._heard(message, done))


class Sent(NamedTuple):
    """A message that was answered.

    Attributes:
        at: the instant at which it was sent, in microseconds.
        turn: the step that sent it.
    """

    message: Message
    answer: str
    at: int
    turn: int


class Recording(RedisBackend):
    """Remembers the messages that change something, so that they can be sent once more."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.sent: list[Sent] = []
        self.now = 0
        self.turn = 0

    def _line(self) -> Any:
        return _Tap(super()._line(), self._measured)

    def _measured(self, message: Message, done: Any) -> None:
        if message.verb not in {"peek", "renew"}:
            self.sent.append(Sent(message, done.result(), self.now, self.turn))

    async def again(self, message: Message) -> str:
        """Send a message once more."""
        answer: str = await super()._line().ask(message, again=True)
        return answer


class Measured(RedisBackend):
    """Knows when each of its keys ends by the injected clock, by the TTL that it got when it was written.

    Args:
        look: a client to look with, past the library.
    """

    def __init__(self, look: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._look = look
        self._ends: dict[str, tuple[int, float]] = {}

    def _line(self) -> Any:
        return _Tap(super()._line(), self._measured)

    def _measured(self, message: Message, done: Any) -> None:
        pipeline = self._look.pipeline(transaction=False)
        for key in message.keys:
            pipeline.pexpiretime(key)
        for key, end in zip(message.keys, pipeline.execute(), strict=True):
            assert end != -1, f"{key!r} never ends (R14)"
            known = self._ends.get(key, (0, 0.0))
            if end < 0:
                self._ends.pop(key, None)
            elif known[0] != end:  # it was written
                left = end - time.time() * 1_000 - _GRACE_MS
                self._ends[key] = (end, self._now_ms() + left)

    def _now_ms(self) -> float:
        return self._reading.nanoseconds() / 1_000_000

    def size(self) -> int:
        """How many keys there would be if the server's clock were the injected one."""
        now = self._now_ms()
        return sum(end > now + 1 for _, end in self._ends.values())


class Store(NamedTuple):
    """A database of its own on a server.

    Attributes:
        client: whose settings the backends use.
        look: looks at it, past the library.
    """

    client: Client
    look: Any

    def recording(self, clock: Clock) -> Recording:
        return Recording(self.client, clock=clock, timeout=15.0, on_outage="closed")

    def measured(self, **options: Any) -> Measured:
        return Measured(self.look, self.client, timeout=15.0, on_outage="closed", **options)

    def now(self) -> int:
        """The server's clock, in microseconds."""
        seconds, microseconds = self.look.time()
        return int(seconds) * 1_000_000 + int(microseconds)

    def clear(self) -> list[bytes]:
        """Drop everything; return the keys that would never have ended (R14)."""
        immortal: list[bytes] = self.look.eval(_CLEAR, 0)
        return immortal

    def ttls(self) -> dict[bytes, int]:
        """Every key, and for how many milliseconds it lives."""
        keys = sorted(self.look.scan_iter(count=1_000))
        pipeline = self.look.pipeline(transaction=False)
        for key in keys:
            pipeline.pttl(key)
        return dict(zip(keys, pipeline.execute() if keys else (), strict=True))

    def contents(self) -> dict[bytes, object]:
        """Every key, and what is under it."""
        found: dict[bytes, object] = {}
        for key in self.ttls():
            slots = self.look.type(key) == b"zset"
            found[key] = (
                self.look.zrange(key, 0, -1, withscores=True) if slots else self.look.get(key)
            )
        return found


def real(server: RedisServer, db: int = 1) -> Store:
    """A database of a real server."""
    return Store(Redis(host=HOST, port=server.port, db=db, protocol=2), server.client(db=db))


def fake() -> Store:
    """A database of fakeredis."""
    server = fakeredis.FakeServer()
    return Store(fakeredis.FakeAsyncRedis(server=server), fakeredis.FakeRedis(server=server))
