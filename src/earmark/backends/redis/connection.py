"""A connection that is ready, and what a server has to know before it can answer."""

from __future__ import annotations

from typing import NamedTuple

from redis import exceptions

from earmark.backends.redis.scripts import Scripts
from earmark.backends.redis.wire import Wire, ask, pack


class Dialed(NamedTuple):
    """A connection that is ready, and the scripts that its server runs."""

    wire: Wire
    scripts: Scripts


async def load(wire: Wire, scripts: Scripts) -> None:
    """Make all scripts known to the server, in one round trip."""
    loads = [pack("SCRIPT", "LOAD", script.text) for script in scripts.values()]
    for reply in await ask(wire, *loads):
        if isinstance(reply, exceptions.RedisError):
            raise reply
