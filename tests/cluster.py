"""A cluster under test: limiters on it, and a look at all of its masters past the library."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, Final

import redis
import redis.asyncio
from redis.crc import key_slot

from earmark.backends.redis.keys import tag_of
from tests.servers import HOST, SLOTS, RedisCluster, RedisServer
from tests.stores import Measured, Store

KEYLESS: Final = {"time"}


class Look:
    """A plain client of all masters: a command goes to where its key was when the cluster was started."""

    def __init__(self, cluster: RedisCluster) -> None:
        self.clients = [server.client() for server in cluster.masters]

    def at(self, key: str | bytes) -> redis.Redis:
        """The client of the master that has a key."""
        text = key.encode() if isinstance(key, str) else key
        share = -(-SLOTS // len(self.clients))
        return self.clients[key_slot(text) // share]

    def pipeline(self, *, transaction: bool) -> _Pipeline:
        assert not transaction
        return _Pipeline(self)

    def scan_iter(self, match: str | None = None, count: int | None = None) -> Iterator[bytes]:
        for client in self.clients:
            yield from client.scan_iter(match, count)

    def flushdb(self) -> None:
        for client in self.clients:
            client.flushdb()

    def eval(self, script: str, count: int) -> list[bytes]:
        """On every master; what all of them return."""
        told: list[Any] = [client.eval(script, count) for client in self.clients]
        return [*itertools.chain.from_iterable(told)]

    def __getattr__(self, command: str) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            client = self.clients[0] if command in KEYLESS else self.at(arguments[0])
            return getattr(client, command)(*arguments, **options)

        return run


class _Pipeline:
    def __init__(self, look: Look) -> None:
        self._look = look
        self._asked: list[tuple[str, str]] = []

    def __getattr__(self, command: str) -> Any:
        return lambda key: self._asked.append((command, key))

    def execute(self) -> list[Any]:
        pipelines: dict[int, Any] = {}
        for command, key in self._asked:
            client = self._look.at(key)
            pipeline = pipelines.setdefault(id(client), client.pipeline(transaction=False))
            getattr(pipeline, command)(key)
        answers = {one: iter(pipeline.execute()) for one, pipeline in pipelines.items()}
        return [next(answers[id(self._look.at(key))]) for _, key in self._asked]


def client(cluster: RedisCluster, **options: Any) -> redis.asyncio.RedisCluster:
    """A client of redis-py's, as users have it."""
    return redis.asyncio.RedisCluster(host=HOST, port=cluster.masters[0].port, **options)


class MeasuredCluster(Measured):
    """Counts that were given back before a refusal was told are nothing that counts."""

    def size(self) -> int:
        now = self._now_ms()
        alive = [key for key, (_, end) in self._ends.items() if end > now + 1]
        return sum(not self._is_empty(key) for key in alive)

    def _is_empty(self, key: str) -> bool:
        if ":c:" not in key:
            return False
        _, *counts = json.loads(self._look.get(key) or "[0]")
        names = [at for at, one in enumerate(counts) if isinstance(one, str)]
        used = {"f": slice(1, 2), "s": slice(1, 3), "b": slice(0, 1)}
        states = [(counts[at][0], counts[at + 1 : at + 4]) for at in names]
        resets = counts and names[:1] != [0]
        return not resets and not any(any(state[used[kind]]) for kind, state in states)


class ClusterStore(Store):
    """All of a cluster as one store."""

    def measured(self, **options: Any) -> Measured:
        return MeasuredCluster(self.look, self.client, timeout=30.0, on_outage="closed", **options)


def store(cluster: RedisCluster) -> Store:
    """All of a cluster as one store."""
    return ClusterStore(client(cluster), Look(cluster))


def slot_of(key: str) -> int:
    """The slot of what earmark keeps about a scope of this key, or under a reservation of this name."""
    return int(key_slot(tag_of(key).encode()))


def keys_on(cluster: RedisCluster, prefix: str = "k") -> Iterator[tuple[str, RedisServer]]:
    """Keys without end, and who has each."""
    for number in itertools.count():
        key = f"{prefix}{number}"
        yield key, cluster.owner(slot_of(key))


def spread(cluster: RedisCluster, prefix: str = "k") -> list[str]:
    """One key on each master, in the order of the masters."""
    found: dict[int, str] = {}
    for key, server in keys_on(cluster, prefix):
        found.setdefault(server.port, key)
        if len(found) == len(cluster.masters):
            return [found[server.port] for server in cluster.masters]
    raise AssertionError
