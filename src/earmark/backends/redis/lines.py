"""Every event loop has a line of its own, since redis-py's connections belong to the loop that opened them (R19)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, cast

from redis.asyncio import Redis, RedisCluster

from earmark.backends.redis.carrier import Carrier
from earmark.backends.redis.client import Client
from earmark.backends.redis.loops import is_ending
from earmark.backends.redis.renewal import Renewal
from earmark.backends.redis.replicas import Presence
from earmark.core.hold import Hold
from earmark.errors import EarmarkError
from earmark.forking import begins_anew
from earmark.shielding import in_trio


class Post(NamedTuple):
    """What one loop has."""

    line: Carrier
    renewal: Renewal
    presence: Presence | None = None


class Maker(Protocol):
    """Makes a line and its renewal for the loop that runs."""

    def __call__(self, client: Client, before: Post | None, *, brief: bool) -> Post:
        """`before`: what the loop had, whose line is over; `brief`: the line ends as soon as there is nothing to do."""
        ...


class WrongLoop(EarmarkError, RuntimeError):
    """The backend cannot be used here: nothing was sent."""


class Lines:
    """The lines of all loops.

    Args:
        client_of_loop: a client for the loop that runs.
        make: makes what a loop has.
    """

    def __init__(self, client_of_loop: Callable[[], Client], make: Maker) -> None:
        self._client_of_loop = client_of_loop
        self._make = make
        # Replaced, never changed: other threads may be reading it.
        self._posts: Mapping[asyncio.AbstractEventLoop, Post] = {}
        self.begin_anew()
        begins_anew(self)

    def begin_anew(self) -> None:
        """What there is belongs to the loops of the parent: to close it would take it from them."""
        self._lock = threading.Lock()

    def here(self) -> Post:
        """Return what the running loop has; made when it is first asked for.

        Raises:
            WrongLoop: no loop of asyncio's runs, or the backend was made from a client that serves another.
        """
        loop = _running_loop()
        post = self._posts.get(loop)
        return self._open(loop) if post is None or post.line.over else post

    def _open(self, loop: asyncio.AbstractEventLoop) -> Post:
        with self._lock:
            client = self._client_of_loop()
            posts = {other: post for other, post in self._posts.items() if not other.is_closed()}
            # Of a loop that is ending nothing is to be left behind.
            post = posts[loop] = self._make(client, posts.get(loop), brief=is_ending())
            self._posts = posts
        return post

    def drop(self, hold: Hold) -> None:
        """Renew a reservation no longer, whichever loop did."""
        for post in self._posts.values():
            post.renewal.drop(hold)

    def wake(self) -> None:
        """Have what is owed delivered. From anywhere, also where no loop runs any more."""
        for loop, post in self._posts.items():
            with suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(post.line.wake)

    async def close(self, seconds: float, *, owed: bool) -> None:
        """Close what the running loop has, once all is answered and delivered, or so many seconds have passed.

        Whoever asks meanwhile gets another line, which is closed as well. A loop that has no line gets one where
        anything is owed, unless it cannot have one.
        """
        loop = _running_loop()
        if owed:
            with suppress(WrongLoop):
                self.here()
        end = loop.time() + seconds
        while (post := self._take_out(loop)) is not None:
            post.renewal.close()
            if post.presence is not None:
                post.presence.close()
            await post.line.aclose(max(end - loop.time(), 0))

    def _take_out(self, loop: asyncio.AbstractEventLoop) -> Post | None:
        with self._lock:
            posts = dict(self._posts)
            post = posts.pop(loop, None)
            self._posts = posts
        return post


def _running_loop() -> asyncio.AbstractEventLoop:
    if in_trio():
        msg = "RedisBackend needs asyncio: redis-py does not run on trio"
        raise WrongLoop(msg)
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        msg = "RedisBackend needs a running event loop of asyncio's"
        raise WrongLoop(msg) from error


def of_one_loop(client: Client) -> Callable[[], Client]:
    """A client that was handed in serves the loop that uses it first."""
    loops: list[asyncio.AbstractEventLoop] = []

    def client_of_loop() -> Client:
        loop = _running_loop()
        if not loops or loops[0].is_closed():
            loops[:] = [loop]
        if loops[0] is not loop:
            msg = (
                "this RedisBackend was made from a client, whose connections belong to another event loop:"
                " RedisBackend.from_url(url) serves every loop"
            )
            raise WrongLoop(msg)
        return client

    return client_of_loop


def of_every_loop(url: str, options: Mapping[str, Any], *, cluster: bool) -> Callable[[], Client]:
    """A client for each loop."""
    from_url = cast("Any", RedisCluster if cluster else Redis).from_url  # its options are untyped
    return lambda: from_url(url, **options)
