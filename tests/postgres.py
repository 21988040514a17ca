"""A PostgreSQL server that tests start, kill and start again themselves, on a free loopback port.

It refuses to run as root, so that as root it runs as nobody. A test that needs it fails where it is missing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from tests.servers import HOST, eventually, free_port

USER = "earmark"


def _program(name: str) -> str:
    """A program of PostgreSQL's, which Debian keeps off the PATH."""
    found = shutil.which(name)
    if found is None:
        places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
        if not places:
            pytest.fail("PostgreSQL is missing: sudo apt install postgresql (`make test` does)")
        found = str(places[-1])
    return found


class PostgresServer:
    """One server with a folder of its own.

    Args:
        settings: of its configuration: `"fsync=on"`.
    """

    def __init__(self, *settings: str) -> None:
        self._settings = settings
        self._folder = tempfile.TemporaryDirectory(prefix="earmark-postgres-")
        self._data = Path(self._folder.name) / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._as_nobody: tuple[str, ...] = ()
        self.port = free_port()
        if os.getuid() == 0:
            self._as_nobody = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
            shutil.chown(self._folder.name, "nobody", "nogroup")
        self._run("initdb", "-D", str(self._data), "-U", USER, "-A", "trust", "-E", "UTF8", "-N")

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"postgresql+asyncpg://{USER}@{HOST}:{self.port}/postgres"

    def start(self) -> Self:
        """Start it, also once more after it was killed, and wait until it answers."""
        settings = ("fsync=off", "synchronous_commit=off", "max_connections=200", *self._settings)
        self._process = subprocess.Popen(
            [
                *self._as_nobody,
                *(_program("postgres"), "-D", str(self._data), "-p", str(self.port)),
                *("-h", HOST, "-k", self._folder.name),
                *(word for setting in settings for word in ("-c", setting)),
            ],
            cwd=self._folder.name,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually(self._answers, "PostgreSQL does not answer")
        return self

    def _answers(self) -> bool:
        command = [_program("pg_isready"), "-q", "-h", HOST, "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_nobody, _program(program), *arguments]
        done = subprocess.run(
            command, cwd=self._folder.name, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr

    def stop(self) -> None:
        """End it: clients lose their connections, and what was committed is kept."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()

    def kill(self) -> None:
        """End all of it where it stands: what was committed is on its disk."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        for leftover in ("postmaster.pid",):
            (self._data / leftover).unlink(missing_ok=True)

    def freeze(self) -> None:
        """Stop all of it where it stands."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            pid = self._process.pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
            for one in (str(pid), *children):
                os.kill(int(one), number)

    def close(self) -> None:
        """End it, whatever state it is in."""
        self.thaw()
        self.stop()
        if os.getuid() == 0:
            shutil.chown(self._folder.name, "root", "root")
        self._folder.cleanup()


@contextmanager
def postgres_server(*settings: str) -> Iterator[PostgresServer]:
    """A server of its own, for what would disturb others."""
    server = PostgresServer(*settings)
    try:
        yield server.start()
    finally:
        server.close()
