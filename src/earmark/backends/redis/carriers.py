"""What a backend has of one topology or the other: one server, found by whatever way the client finds it, or a cluster.

They differ in the names of the keys, in how what is owed is kept, and in what carries messages. All else of a backend
knows nothing of servers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from redis.asyncio import Redis, RedisCluster

from earmark.backends.redis.carrier import Carrier
from earmark.backends.redis.chart import Address, Chart
from earmark.backends.redis.client import Client
from earmark.backends.redis.connection import Dialed
from earmark.backends.redis.dialing import Dialer, address_of, slots_of
from earmark.backends.redis.fleet import Fleet
from earmark.backends.redis.keys import Keys, TaggedKeys
from earmark.backends.redis.line import Line
from earmark.backends.redis.messages import Message
from earmark.backends.redis.node import Node
from earmark.backends.redis.owed import Outbox
from earmark.backends.redis.rack import Rack
from earmark.backends.redis.standing import Standing

Header = Callable[[], tuple[str, ...]]


class OneLine(Line):
    """All there is to carry messages to one server."""

    def trouble(self, message: Message) -> Exception | None:
        """Why no message can be asked now, or None."""
        return self.down


class ToServer:
    """Everything on one server.

    Args:
        namespace: what every key begins with.
        owed: how many messages are kept for it.
        check_clock: whether its clock will be used.
        timeout: seconds for which an answer is waited for.
    """

    is_clustered = False

    def __init__(self, namespace: str, owed: int, timeout: float, *, check_clock: bool) -> None:
        self.keys = Keys(namespace)
        self.outbox = Outbox(owed)
        self._timeout = timeout
        self._check_clock = check_clock
        self._said = set[str]()  # the eviction policies that were warned of

    def carrier(
        self, client: Client, header: Header, standing: Standing, *, brief: bool
    ) -> Carrier:
        """What carries messages from the loop that runs."""
        probe = self.keys.probe
        dialer = Dialer(client, check_clock=self._check_clock, probe=probe, said=self._said)
        return OneLine(
            dialer.dial, header, self._timeout, self.outbox, probe, standing, brief=brief
        )


class ToCluster:
    """Spread over the masters of a cluster.

    Args:
        client: knows the nodes that are asked first.
        namespace: what every key begins with.
        owed: how many messages are kept for all masters.
        check_clock: whether their clocks will be used.
        timeout: seconds for which an answer is waited for.
    """

    is_clustered = True

    def __init__(
        self,
        client: RedisCluster,
        namespace: str,
        owed: int,
        timeout: float,
        *,
        check_clock: bool,
    ) -> None:
        self.keys = TaggedKeys(namespace)
        nodes = getattr(client, "startup_nodes", None)
        if nodes is None:
            msg = "a Redis Cluster needs redis-py 7.1 or later"
            raise TypeError(msg)
        self._chart = Chart((str(node.host), int(node.port)) for node in nodes)
        self.outbox = Rack(owed, self._chart.address_of)
        self._timeout = timeout
        self._check_clock = check_clock
        self._said = set[str]()

    def carrier(
        self, client: Client, header: Header, standing: Standing, *, brief: bool
    ) -> Carrier:
        """What carries messages from the loop that runs."""
        of_cluster = cast("RedisCluster", client)

        def make(address: Address, fleet: Fleet, standing: Standing, *, brief: bool) -> Node:
            async def dial() -> Dialed:
                probe = fleet.probe_at(address)
                dialer = Dialer(
                    client,
                    check_clock=self._check_clock,
                    probe=probe,
                    said=self._said,
                    node=address,
                )
                return await dialer.dial()

            tray = self.outbox.tray(address)
            node = Node(dial, header, self._timeout, tray, "", standing, brief=brief)
            node.fleet, node.address = fleet, address
            return node

        def probe(tag: str) -> str:
            return self.keys.at(tag).probe

        return Fleet(
            self._chart,
            partial(slots_of, of_cluster),
            partial(address_of, of_cluster),
            make,
            self.outbox,
            probe,
            standing,
            self._timeout,
            brief=brief,
        )


def topology(
    client: Client, namespace: str, owed: int, timeout: float, *, check_clock: bool
) -> ToServer | ToCluster:
    """What a backend has of the topology that this client is for.

    Raises:
        TypeError: another kind of client.
    """
    if isinstance(client, RedisCluster):
        return ToCluster(client, namespace, owed, timeout, check_clock=check_clock)
    if isinstance(client, Redis):
        return ToServer(namespace, owed, timeout, check_clock=check_clock)
    msg = f"expected a client of redis.asyncio, not {client!r}: RedisBackend.from_url takes a URL"
    raise TypeError(msg)
