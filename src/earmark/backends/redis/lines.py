"""Every event loop has a line of its own, since redis-py's connections belong to the loop that opened them (R19)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from redis.asyncio import Redis

from earmark.backends.redis.line import Line
from earmark.backends.redis.renewal import Renewal
from earmark.core.hold import Hold
from earmark.shielding import in_trio


class Post(NamedTuple):
    """What one loop has."""

    line: Line
    renewal: Renewal


class Lines:
    """The lines of all loops.

    Args:
        client_of_loop: a client for the loop that runs.
        make: makes a line and its renewal for the loop that runs.
    """

    def __init__(self, client_of_loop: Callable[[], Redis], make: Callable[[Redis], Post]) -> None:
        self._client_of_loop = client_of_loop
        self._make = make
        self._posts: dict[asyncio.AbstractEventLoop, Post] = {}
        self._lock = threading.Lock()

    def here(self) -> Post:
        """Return what the running loop has; made when it is first asked for.

        Raises:
            RuntimeError: trio runs, or no loop does, or the backend was made from a client that serves another.
        """
        if in_trio():
            msg = "RedisBackend needs asyncio: redis-py does not run on trio"
            raise RuntimeError(msg)
        loop = asyncio.get_running_loop()
        return self._posts.get(loop) or self._open(loop)

    def _open(self, loop: asyncio.AbstractEventLoop) -> Post:
        post = self._make(self._client_of_loop())
        with self._lock:
            for other in [other for other in self._posts if other.is_closed()]:
                del self._posts[other]
            self._posts[loop] = post
        return post

    def drop(self, hold: Hold) -> None:
        """Renew a reservation no longer, whichever loop did."""
        for post in tuple(self._posts.values()):
            post.renewal.drop(hold)

    def wake(self) -> None:
        """Have what is owed delivered. From anywhere, also where no loop runs any more."""
        for loop, post in tuple(self._posts.items()):
            with suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(post.line.wake)

    async def close(self, seconds: float) -> None:
        """Close what the running loop has, once it has delivered what is owed, or so many seconds have passed."""
        with self._lock:
            post = self._posts.pop(asyncio.get_running_loop(), None)
        if post is not None:
            post.renewal.close()
            await post.line.aclose(seconds)


def of_one_loop(client: Redis) -> Callable[[], Redis]:
    """A client that was handed in serves the loop that uses it first."""
    loops: list[asyncio.AbstractEventLoop] = []

    def client_of_loop() -> Redis:
        loop = asyncio.get_running_loop()
        if not loops or loops[0].is_closed():
            loops[:] = [loop]
        if loops[0] is not loop:
            msg = (
                "this RedisBackend was made from a client, whose connections belong to another event loop:"
                " RedisBackend.from_url(url) serves every loop"
            )
            raise RuntimeError(msg)
        return client

    return client_of_loop


def of_every_loop(url: str, options: Mapping[str, Any]) -> Callable[[], Redis]:
    """A client for each loop."""
    from_url: Any = Redis.from_url  # pyright: ignore[reportUnknownMemberType] - redis-py leaves its options untyped
    return lambda: from_url(url, **options)
