"""Real servers that tests start, stop, kill and freeze themselves, each on a free loopback port.

A test that needs one fails where it is missing: a machine without `redis-server` has not been set up (`make test` does
that), and a skipped proof proves nothing.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

HOST = "127.0.0.1"
STARTUP_SECONDS = 20
_PAUSE = 0.02

# A replica need not wait for others that might begin to follow as well.
AT_ONCE: Final = ("--repl-diskless-sync-delay", "0")

SLOTS = 16_384
_BUS = 10_000  # a node of a cluster listens to the others so many ports above its own


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """One redis-server with a folder of its own.

    Args:
        settings: lines of its configuration, as arguments: `"--maxmemory", "10mb"`.
        program: the server; by default the machine's own.
    """

    def __init__(self, *settings: str, program: str | None = None) -> None:
        program = program or shutil.which("redis-server")
        if program is None:
            pytest.fail("redis-server is missing: sudo apt install redis-server (`make test` does)")
        self._program = program
        self._settings = settings
        self._folder = tempfile.TemporaryDirectory(prefix="earmark-redis-")
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"redis://{HOST}:{self.port}/0"

    def start(self, *settings: str) -> Self:
        """Start it, also once more after it was stopped, and wait until it answers; `settings`: for this time alone."""
        self._process = subprocess.Popen(
            [
                self._program,
                *("--port", str(self.port), "--bind", HOST, "--dir", self._folder.name),
                *("--save", "", "--appendonly", "no"),
                *self._settings,
                *settings,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        patience = Retry(ConstantBackoff(_PAUSE), int(STARTUP_SECONDS / _PAUSE))
        try:
            with self.client(retry=patience, retry_on_error=[redis.ConnectionError]) as client:
                client.ping()  # it is told of a server that reads its files still
                found: Any = client.info("server")
        except redis.RedisError as error:
            pytest.fail(f"redis-server does not answer: {error}")
        if found["process_id"] != self._process.pid:  # which a benchmark would empty
            pytest.fail(f"port {self.port} has been taken by another server meanwhile")
        return self

    def watch(self, *settings: str) -> Self:
        """Start it as a sentinel, with these lines of its configuration."""
        file = self.folder / "sentinel.conf"
        lines = (f"port {self.port}", f"bind {HOST}", f"dir {self.folder}", *settings)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._process = subprocess.Popen(
            [self._program, str(file), "--sentinel"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return self

    def client(self, **options: Any) -> redis.Redis:
        """A plain client, for looking and for breaking things."""
        return redis.Redis(host=HOST, port=self.port, protocol=2, **options)

    def kill(self) -> None:
        """Kill it: nothing is said to anybody, and nothing is saved."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def freeze(self) -> None:
        """Stop it where it stands."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self.kill()
        self._folder.cleanup()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return Path(self._folder.name)


@contextmanager
def redis_server(*settings: str, program: str | None = None) -> Iterator[RedisServer]:
    """A server of its own, for what would disturb others, or of another version."""
    server = RedisServer(*settings, program=program)
    try:
        yield server.start()
    finally:
        server.close()


class Sentinel:
    """A master, a replica, and a sentinel that watches them.

    Args:
        program: the server of each; by default the machine's own.

    Attributes:
        name: what the sentinel calls the master.
        master: who has that place now.
        replica: who follows it, or did.
    """

    name = "watched"

    def __init__(self, program: str | None = None) -> None:
        self.master = RedisServer(*AT_ONCE, program=program)
        self.replica = RedisServer(*AT_ONCE, program=program)
        self._watcher = RedisServer(program=program)
        self.port = self._watcher.port

    def start(self) -> Self:
        """Start all three, and wait until the sentinel knows the replica."""
        self.master.start()
        self.replica.start("--replicaof", HOST, str(self.master.port))
        self._watcher.watch(
            f"sentinel monitor {self.name} {HOST} {self.master.port} 1",
            f"sentinel down-after-milliseconds {self.name} 300",
            f"sentinel failover-timeout {self.name} 500",
        )
        self._settle()
        return self

    def _settle(self) -> None:
        eventually(self._knows_replica, "the sentinel knows no replica that is well")
        eventually(lambda: follows(self.replica), "the replica does not follow")

    def replicate(self) -> None:
        """Wait until the replica has all that was written so far."""
        replicate(self.master)

    def cut(self) -> None:
        """Let the replica hear no more of the master."""
        cut_replication(self.master, self.replica)

    def fail_over(self) -> None:
        """Kill the master, and wait until the replica has its place."""
        self.master.kill()
        self.master, self.replica = self.replica, self.master
        eventually(self._knows_master, "the sentinel has made no other master")

    def rejoin(self) -> None:
        """Have the one that was killed follow the one that has its place."""
        self.replica.start("--replicaof", HOST, str(self.master.port))
        self._settle()

    def _knows_master(self) -> bool:
        """Whether clients are told of it: of one that is down still they are not."""
        known = [(one[b"port"], one[b"flags"]) for one in self._told("masters")]
        return known == [(str(self.master.port).encode(), b"master")]

    def _knows_replica(self) -> bool:
        known = [
            (one[b"flags"], one[b"master-link-status"]) for one in self._told("replicas", self.name)
        ]
        return known == [(b"slave", b"ok")]

    def _told(self, *question: str) -> list[dict[bytes, bytes]]:
        answer: list[list[bytes]] = []
        with suppress(redis.RedisError):
            answer = told(self._watcher, "SENTINEL", *question)
        return [dict(zip(one[::2], one[1::2], strict=True)) for one in answer]

    def close(self) -> None:
        """End all three."""
        for server in (self._watcher, self.replica, self.master):
            server.close()


def follows(replica: RedisServer) -> bool:
    """Whether a replica hears of its master."""
    with replica.client() as client:
        link: Any = client.info("replication")["master_link_status"]
        return bool(link == "up")


def replicate(master: RedisServer) -> None:
    """Wait until a replica has all that was written so far."""
    with master.client(single_connection_client=True) as client:
        client.set("written-last", "", px=1)
        assert client.wait(1, STARTUP_SECONDS * 1_000) == 1


def cut_replication(master: RedisServer, replica: RedisServer) -> None:
    """Let a replica hear no more of its master; everybody else still reaches both."""
    told(master, "ACL", "SETUSER", "default", "-psync", "-sync")
    told(master, "CLIENT", "KILL", "TYPE", "replica")
    eventually(lambda: not follows(replica), "the replica follows still")


def eventually(condition: Callable[[], bool], otherwise: str) -> None:
    """Wait until something is so; it is asked again and again, for a bounded time."""
    patience = Retry(ConstantBackoff(_PAUSE), int(STARTUP_SECONDS / _PAUSE), (AssertionError,))

    def ask() -> None:
        assert condition(), otherwise

    patience.call_with_retry(ask, lambda _: None)


@contextmanager
def sentinel(program: str | None = None) -> Iterator[Sentinel]:
    """A watched pair of its own."""
    group = Sentinel(program)
    try:
        yield group.start()
    finally:
        group.close()


class RedisCluster:
    """Masters that share the slots, in equal parts, side by side.

    Args:
        count: so many.
        program: the server of each; by default the machine's own.
    """

    def __init__(self, count: int = 3, program: str | None = None) -> None:
        self._program = program
        # Where one is lost, the others serve what they have.
        self._settings = (
            *("--cluster-enabled", "yes", "--cluster-node-timeout", "2000"),
            *("--cluster-require-full-coverage", "no"),
        )
        self.masters = [self.node() for _ in range(count)]
        self._others: list[RedisServer] = []

    def node(self) -> RedisServer:
        """One more node, which knows nobody."""
        server = RedisServer(*self._settings, program=self._program)
        while not _is_free(server.port + _BUS):
            server.port = free_port()
        return server

    @property
    def url(self) -> str:
        """Where one of them listens."""
        return self.masters[0].url

    def start(self) -> Self:
        """Start all, give each its slots, and wait until every one knows of all."""
        for server in self.masters:
            server.start()
        share = -(-SLOTS // len(self.masters))
        for number, server in enumerate(self.masters):
            slots = range(number * share, min((number + 1) * share, SLOTS))
            told(server, "CLUSTER", "ADDSLOTS", *slots)
            told(server, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in self.masters[1:]:
            self.introduce(server)
        eventually(self._agrees, "the masters do not agree")
        return self

    def introduce(self, server: RedisServer) -> None:
        """Have a node become one of them."""
        told(server, "CLUSTER", "MEET", HOST, self.masters[0].port)

    def add(self, server: RedisServer) -> RedisServer:
        """Start one more node, and have all know it."""
        self._others.append(server)
        server.start()
        self.introduce(server)
        eventually(self._agrees, "the nodes do not know each other")
        return server

    def _agrees(self) -> bool:
        nodes = [*self.masters, *self._others]
        count = len(nodes)
        return all(
            b"cluster_state:ok" in (info := told(node, "CLUSTER", "INFO"))
            and b"cluster_slots_assigned:16384" in info
            and f"cluster_known_nodes:{count}\r".encode() in info
            and told(node, "CLUSTER", "NODES").count(b" connected") == count
            for node in nodes
        )

    def owner(self, slot: int) -> RedisServer:
        """Who has a slot, as the first one that answers says."""
        answer = next(self._slots())
        (port,) = (found[2][1] for found in answer if found[0] <= slot <= found[1])
        return next(one for one in [*self.masters, *self._others] if one.port == port)

    def _slots(self) -> Iterator[Any]:
        for server in [*self.masters, *self._others]:
            with suppress(redis.ConnectionError):
                yield told(server, "CLUSTER", "SLOTS")

    def begin_move(self, slot: int, target: RedisServer) -> RedisServer:
        """Let a slot be on its way: its keys are where they were. Returns who has it."""
        source = self.owner(slot)
        told(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", told(source, "CLUSTER", "MYID"))
        told(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", told(target, "CLUSTER", "MYID"))
        return source

    @staticmethod
    def move_keys(slot: int, source: RedisServer, target: RedisServer, count: int = 10_000) -> int:
        """Bring over so many of its keys."""
        keys = told(source, "CLUSTER", "GETKEYSINSLOT", slot, count)
        if keys:
            told(source, "MIGRATE", HOST, target.port, "", 0, 5_000, "KEYS", *keys)
        return len(keys)

    def end_move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """The slot is there."""
        while self.move_keys(slot, source, target):
            pass
        name = told(target, "CLUSTER", "MYID")
        for server in (target, source):
            told(server, "CLUSTER", "SETSLOT", slot, "NODE", name)

    def flush(self) -> None:
        """Drop everything."""
        for server in self.masters:
            told(server, "FLUSHALL")

    def close(self) -> None:
        """End all, whatever state they are in."""
        for server in [*self.masters, *self._others]:
            server.close()


def told(server: RedisServer, *command: Any) -> Any:
    """What a server answers to one command."""
    with server.client(single_connection_client=True) as client:
        connection: Any = client.connection
        connection.send_command(*command)
        return connection.read_response()


def _is_free(port: int) -> bool:
    if port >= 2**16:
        return False
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


@contextmanager
def redis_cluster(count: int = 3, program: str | None = None) -> Iterator[RedisCluster]:
    """A cluster of its own."""
    cluster = RedisCluster(count, program)
    try:
        yield cluster.start()
    finally:
        cluster.close()
