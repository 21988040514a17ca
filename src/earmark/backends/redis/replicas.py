"""How many processes share the limits, so that each of them gives out its part of every amount during an outage.

Each says that it is alive every third of a lease, under one key, as the holder of a slot does (R10). A server that has
come back knows of nobody at first: a count is believed at once where it is larger than the last, and else when a
lease has passed in which no such one was heard, since by then whoever is alive has been counted again. So one that has
gone counts for two leases more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Final

from earmark.backends.redis.carrier import Carrier
from earmark.backends.redis.failures import Outage, StoreError
from earmark.backends.redis.fallback import LocalShare
from earmark.backends.redis.loops import Lasting
from earmark.backends.redis.messages import Message
from earmark.logs import about

logger = logging.getLogger("earmark.redis")

# So many times in a lease a process says that it is alive, and where it was not heard, so many times.
_TIMES: Final = 3
_TIMES_UNHEARD: Final = 20


class Replicas:
    """The processes that are alive, as this one has last heard.

    Args:
        local: what gives out this process's part.
        lease: seconds for which a process counts that says nothing.
    """

    def __init__(self, local: LocalShare, lease: float) -> None:
        self._local = local
        self.lease: Final = lease
        self._alive = 1
        self._fewer_since: float | None = None
        self._lock = threading.Lock()  # each loop has a presence

    def counted(self, alive: int, now: float) -> None:
        """Take in what the store has counted at a moment."""
        with self._lock:
            if alive < self._alive:
                if self._fewer_since is None:
                    self._fewer_since = now
                if now - self._fewer_since < self.lease:
                    return
            self._alive, self._fewer_since = alive, None
            self._local.divide(alive)


class Presence:
    """Says from one event loop, as long as that runs, that the process is alive.

    Args:
        line: carries messages from the loop.
        message: what is said.
        replicas: told how many are alive.
        now: seconds, by the clock that `sleep` waits by.
        sleep: waits for so many seconds.
        brief: whether the loop may be ending: then it is said once it is seen to go on.
    """

    def __init__(
        self,
        line: Carrier,
        message: Message,
        replicas: Replicas,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]],
        *,
        brief: bool,
    ) -> None:
        self._line = line
        self._message = message
        self._replicas = replicas
        self._now = now
        self._sleep = sleep
        self._due = now() + (replicas.lease / _TIMES if brief else 0)
        self._task = Lasting(self._run, "presence", lambda: now() >= self._due)
        if brief:
            self._task.begin_later()
        else:
            self._task.begin()

    def close(self) -> None:
        """Say nothing any more."""
        self._task.stop()

    async def _run(self) -> None:
        while not self._line.over:
            times = _TIMES if await self._is_heard() else _TIMES_UNHEARD
            pause = self._replicas.lease / times
            self._due = self._now() + pause
            await self._sleep(pause)

    async def _is_heard(self) -> bool:
        try:
            answer = await self._line.ask(self._message)
        except Outage:
            return False
        except StoreError:
            if self._line.down is None:  # else it is logged there, once
                logger.exception(
                    "the processes that share the limits cannot be counted",
                    extra=about("replicas_uncounted"),
                )
            return False
        self._replicas.counted(int(answer.removeprefix("alive ")), self._now())
        return True
