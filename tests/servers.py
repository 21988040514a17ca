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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

HOST = "127.0.0.1"
STARTUP_SECONDS = 20
_PAUSE = 0.02


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
    """

    def __init__(self, *settings: str) -> None:
        program = shutil.which("redis-server")
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

    def start(self) -> Self:
        """Start it, also once more after it was stopped, and wait until it answers."""
        self._process = subprocess.Popen(
            [
                self._program,
                *("--port", str(self.port), "--bind", HOST, "--dir", self._folder.name),
                *("--save", "", "--appendonly", "no"),
                *self._settings,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        patience = Retry(ConstantBackoff(_PAUSE), int(STARTUP_SECONDS / _PAUSE))
        try:
            with self.client(retry=patience, retry_on_error=[redis.ConnectionError]) as client:
                client.ping()
        except redis.RedisError as error:
            pytest.fail(f"redis-server does not answer: {error}")
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
def redis_server(*settings: str) -> Iterator[RedisServer]:
    """A server of its own, for what would disturb others."""
    server = RedisServer(*settings)
    try:
        yield server.start()
    finally:
        server.close()
