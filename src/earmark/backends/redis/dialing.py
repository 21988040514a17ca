"""Making connections: from the settings of redis-py's client, and checked before they are used.

Only the settings are taken from the client, its pool's connections are not: a line uses one of its own, without
redis-py's retries and timeouts, which would stand in the way of the line's. The client of a cluster makes no
connection at all: which node has which slot is asked here.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from redis import exceptions
from redis.asyncio import RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from earmark.backends.redis.chart import Address, Range
from earmark.backends.redis.client import Client
from earmark.backends.redis.connection import Dialed, load
from earmark.backends.redis.failures import StoreError, is_outage
from earmark.backends.redis.scripts import COMMANDS, Scripts, scripts
from earmark.backends.redis.wire import Wire, command, wire_of
from earmark.logs import about

logger = logging.getLogger("earmark.redis")

# The script's clock may be read this much later than the server's, in seconds.
_CLOCK_SLACK: Final = 5

_PART_OF_A_CLUSTER: Final = (
    "the server is part of a cluster: RedisBackend.from_url(url, cluster=True), or RedisBackend(client) with a"
    " RedisCluster of redis.asyncio"
)

_FLAGGED: Final = "#!lua flags=allow-oom\nreturn 1"
_CLOCK: Final = "return redis.call('TIME')"


class Dialer:
    """Makes the connections of one loop.

    Args:
        client: whose settings are used: address, TLS, user, database, Sentinel.
        check_clock: whether the server's clock will be used.
        probe: a key that may be lost, by which the user's rights are checked; None: they are not.
        said: the eviction policies that were warned of; shared by the dialers of all loops.
        node: of which node of a cluster, where the client is a cluster's.
    """

    def __init__(
        self,
        client: Client,
        *,
        check_clock: bool,
        probe: str | None = None,
        said: set[str] | None = None,
        node: Address | None = None,
    ) -> None:
        self.client = client
        self._check_clock = check_clock
        self._probe = probe
        self._said = set[str]() if said is None else said
        self._node = node

    async def dial(self) -> Dialed:
        """Connect, and look at the server.

        Raises:
            StoreError: the server cannot be used as it is.
            redis.RedisError, OSError: it cannot be reached.
        """
        wire = await _connect(self.client, self._node)
        try:
            facts = await _facts(wire)
            if self._node is None:
                _check_alone(facts)
            flags = _version(facts) >= (7,) if facts else await _knows_flags(wire)
            if self._check_clock:
                await _check_clock(wire)
            if self._probe is not None:
                known, clustered = scripts(allow_oom=flags), self._node is not None
                await _check_rights(wire, known, self._probe, clustered=clustered)
        except BaseException:
            await wire.close(at_once=True)
            raise
        _warn_of_eviction(facts, self._said)
        return Dialed(wire, scripts(allow_oom=flags))


async def _connect(client: Any, node: Address | None) -> Wire:  # noqa: ANN401 - redis-py's
    connection = _connection(client, node)
    try:
        await connection.connect()
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return wire_of(connection)


def _connection(client: Any, node: Address | None) -> Any:  # noqa: ANN401 - redis-py's, which says little
    """A connection that is not made yet, by the client's settings."""
    home: Any = client.connection_pool if node is None else _node(client, node)
    settings: dict[str, Any] = {
        **home.connection_kwargs,
        "socket_timeout": None,
        "health_check_interval": 0,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "decode_responses": False,
        "encoding": "utf-8",
        "encoding_errors": "strict",
    }
    return home.connection_class(**settings)


def _node(client: Any, node: Address) -> ClusterNode:  # noqa: ANN401 - a cluster's
    """What redis-py knows of a node, which has taken the settings of a connection out of the client's."""
    return ClusterNode(*node, **client.connection_kwargs)


async def slots_of(client: RedisCluster, node: Address) -> list[Range]:
    """Ask one node of a cluster which of them has which slot.

    Raises:
        StoreError, redis.RedisError, OSError: it cannot tell.
    """
    wire = await _connect(client, node)
    try:
        told = await command(wire, "CLUSTER", "SLOTS")
    finally:
        await wire.close(at_once=True)
    if not told:
        msg = "the nodes of the cluster have no slots"
        raise StoreError(msg)
    return [
        Range(
            first,
            last,
            [
                address_of(client, node, (host or b"").decode(), int(port))
                for host, port, *_ in nodes
            ],
        )
        for first, last, *nodes in told
    ]


def address_of(client: RedisCluster, told_by: Address, host: str, port: int) -> Address:
    """Where a node is that another one tells of, by the client's `address_remap` if it has one.

    Args:
        client: the client.
        told_by: who tells of it.
        host: as it was told; nothing, or `?`, where it is that of whoever tells.
        port: as it was told.
    """
    manager: Any = client.nodes_manager
    address: Address = manager.remap_host_port(told_by[0] if host in {"", "?"} else host, port)
    return address


async def _facts(wire: Wire) -> dict[str, str]:
    """What the server says about itself; nothing, where that is not allowed."""
    try:
        told = await command(wire, "INFO")
    except exceptions.ResponseError as error:
        if is_outage(error):
            raise
        return {}
    text = told.decode() if isinstance(told, bytes) else str(told)
    return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)


def _check_alone(facts: dict[str, str]) -> None:
    if facts.get("redis_mode") == "cluster":
        raise StoreError(_PART_OF_A_CLUSTER)


async def _knows_flags(wire: Wire) -> bool:
    """Whether scripts may have flags, on a server that does not tell its version."""
    try:
        await command(wire, "EVAL", _FLAGGED, "0")
    except exceptions.ResponseError as error:
        if is_outage(error):
            raise
        return False
    return True


def _version(facts: dict[str, str]) -> tuple[int, ...]:
    text = facts.get("redis_version", "0")
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


async def _check_clock(wire: Wire) -> None:
    """See that scripts read the server's clock: on some servers theirs stands still, or at zero (C59)."""
    inside = await command(wire, "EVAL", _CLOCK, "0")
    outside = await command(wire, "TIME")
    apart = abs(int(outside[0]) - int(inside[0]))
    if apart > _CLOCK_SLACK:
        msg = (
            f"the clock of the server's scripts is {apart} s apart from the server's: no window would ever end. Give"
            " RedisBackend a clock of your own (clock=time.time), on hosts whose clocks agree"
        )
        raise StoreError(msg)


async def _check_rights(wire: Wire, scripts: Scripts, probe: str, *, clustered: bool) -> None:
    """See that this user's scripts may run every command: one that is denied half-way would leave things half done."""
    keys = (str(len(COMMANDS)), *[probe] * len(COMMANDS))
    messages = [f"1 0 0 rights {name} {name}" for name in COMMANDS]
    call = ("EVALSHA", scripts["rights"].sha, *keys, *("0", "0", "0", "0"), *messages)
    try:
        try:
            told = await command(wire, *call)
        except exceptions.NoScriptError:
            await load(wire, scripts)
            told = await command(wire, *call)
    except exceptions.NoScriptError:
        return  # it was forgotten again meanwhile, and what is missing shows with the first message that needs it
    except exceptions.ResponseError as error:
        if not clustered and isinstance(error, exceptions.MovedError):
            raise StoreError(_PART_OF_A_CLUSTER) from error
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
            extra=about("store_evicts", policy=policy),
        )
