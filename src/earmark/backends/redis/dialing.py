"""Making connections: from the settings of redis-py's client, and checked before they are used.

Only the settings are taken from the client, its pool's connections are not: a line uses one of its own, without
redis-py's retries and timeouts, which would stand in the way of the line's.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from earmark.backends.redis.connection import Connection, Dialed, command, load
from earmark.backends.redis.failures import StoreError, is_outage
from earmark.backends.redis.scripts import COMMANDS, Scripts, scripts

logger = logging.getLogger("earmark.redis")

# The script's clock may be read this much later than the server's, in seconds.
_CLOCK_SLACK: Final = 5

_FLAGGED: Final = "#!lua flags=allow-oom\nreturn 1"
_CLOCK: Final = "return redis.call('TIME')"


class Dialer:
    """Makes the connections of one loop.

    Args:
        client: whose settings are used: address, TLS, user, database, Sentinel.
        check_clock: whether the server's clock will be used.
        probe: a key that may be lost, by which the user's rights are checked; None: they are not.
        said: the eviction policies that were warned of; shared by the dialers of all loops.
    """

    def __init__(
        self,
        client: Redis,
        *,
        check_clock: bool,
        probe: str | None = None,
        said: set[str] | None = None,
    ) -> None:
        self.client = client
        self._check_clock = check_clock
        self._probe = probe
        self._said = set[str]() if said is None else said

    async def dial(self) -> Dialed:
        """Connect, and look at the server.

        Raises:
            StoreError: the server cannot be used as it is.
            redis.RedisError, OSError: it cannot be reached.
        """
        pool: Any = self.client.connection_pool
        settings: dict[str, Any] = {
            **pool.connection_kwargs,
            "socket_timeout": None,
            "health_check_interval": 0,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_error": [],
            "decode_responses": False,
            "encoding": "utf-8",
            "encoding_errors": "strict",
        }
        connection: Any = pool.connection_class(**settings)
        try:
            await connection.connect()
            facts = await _facts(connection)
            flags = _version(facts) >= (7,) if facts else await _knows_flags(connection)
            if self._check_clock:
                await _check_clock(connection)
            if self._probe is not None:
                await _check_rights(connection, scripts(allow_oom=flags), self._probe)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        _warn_of_eviction(facts, self._said)
        return Dialed(connection, scripts(allow_oom=flags))


async def _facts(connection: Connection) -> dict[str, str]:
    """What the server says about itself; nothing, where that is not allowed."""
    try:
        told = await command(connection, "INFO")
    except exceptions.ResponseError as error:
        if is_outage(error):
            raise
        return {}
    text = told.decode() if isinstance(told, bytes) else str(told)
    return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)


async def _knows_flags(connection: Connection) -> bool:
    """Whether scripts may have flags, on a server that does not tell its version."""
    try:
        await command(connection, "EVAL", _FLAGGED, "0")
    except exceptions.ResponseError as error:
        if is_outage(error):
            raise
        return False
    return True


def _version(facts: dict[str, str]) -> tuple[int, ...]:
    text = facts.get("redis_version", "0")
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


async def _check_clock(connection: Connection) -> None:
    """See that scripts read the server's clock: on some servers theirs stands still, or at zero (C59)."""
    inside = await command(connection, "EVAL", _CLOCK, "0")
    outside = await command(connection, "TIME")
    apart = abs(int(outside[0]) - int(inside[0]))
    if apart > _CLOCK_SLACK:
        msg = (
            f"the clock of the server's scripts is {apart} s apart from the server's: no window would ever end. Give"
            " RedisBackend a clock of your own (clock=time.time), on hosts whose clocks agree"
        )
        raise StoreError(msg)


async def _check_rights(connection: Connection, scripts: Scripts, probe: str) -> None:
    """See that this user's scripts may run every command: one that is denied half-way would leave things half done."""
    keys = (str(len(COMMANDS)), *[probe] * len(COMMANDS))
    messages = [f"1 0 0 rights {name} {name}" for name in COMMANDS]
    call = ("EVALSHA", scripts["rights"].sha, *keys, *("0", "0", "0", "0"), *messages)
    try:
        try:
            told = await command(connection, *call)
        except exceptions.NoScriptError:
            await load(connection, scripts)
            told = await command(connection, *call)
    except exceptions.ResponseError as error:
        if is_outage(error):
            return  # a replica, or a server without enough of them, says so to everybody: that passes
        raise
    for answer in told.decode().split("\0"):
        name, _, text = answer.partition(" ")
        if text != "allowed" and not is_outage(StoreError(text)):
            msg = f"the scripts may not run {name}: {text.removeprefix('failed ')}"
            raise StoreError(msg)


def _warn_of_eviction(facts: dict[str, str], said: set[str]) -> None:
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy not in {"noeviction", *said} and facts.get("maxmemory", "0") != "0":
        said.add(policy)
        logger.warning(
            "the server's maxmemory-policy is %s: when its memory is full it drops limits that still count, and"
            " admits what they would refuse; use noeviction",
            policy,
        )
