"""The processes of the libraries, as whoever orders measurements sees them."""

from __future__ import annotations

import json
import os
import platform
import selectors
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from tests.benchmarks.libraries import LIBRARIES

ROOT: Final = Path(__file__).parents[2]
ENVIRONMENTS: Final = ROOT / ".venv"
FAST: Final = "fast"  # where uvloop and hiredis are, apart: redis-py uses hiredis where it finds it
PATIENCE: Final = 180.0  # seconds for an answer: LiteLLM's proxy takes long to import


class Absent(Exception):
    """A library cannot be measured here, and why."""


class Worker:
    """One process.

    Args:
        name: the library.
        python: the interpreter that has it; by default that of its environment.
        fast: with uvloop and hiredis.
    """

    def __init__(self, name: str, python: str | None = None, *, fast: bool = False) -> None:
        environment = LIBRARIES[name].environment
        interpreter = python or str(ENVIRONMENTS / environment / "bin" / "python")
        if not Path(interpreter).exists():
            message = f"there is no .venv/{environment}"
            raise Absent(message)
        path = [ROOT, ROOT / "src"]
        if fast:
            own = ENVIRONMENTS / environment / FAST
            path.append(own if own.exists() else ENVIRONMENTS / "bench" / FAST)
        self._process = subprocess.Popen(
            [interpreter, "-m", "tests.benchmarks.worker", name, *(["--fast"] if fast else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if "-v" in sys.argv else subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))},
            cwd=ROOT,
        )

    def send(self, **order: Any) -> Self:
        """Order something."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: there will be no answer
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        return self

    def receive(self) -> dict[str, Any]:
        """What it answers."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(PATIENCE) else b""
        if not line:
            # Who is late would answer the next question with this one's answer, and be waited for at each.
            self._process.kill()
            return {"error": "its process does not answer"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, **order: Any) -> dict[str, Any]:
        """Order something and wait for the answer."""
        return self.send(**order).receive()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def abreast(workers: Sequence[Worker], **order: Any) -> list[dict[str, Any]]:
    """Order the same of several, which begin when all are ready."""
    for worker in workers:
        worker.send(**order)
    answers = [worker.receive() for worker in workers]
    ready = [worker for worker, answer in zip(workers, answers, strict=True) if "ready" in answer]
    for worker in ready:
        worker.send()
    failed = [answer for answer in answers if "error" in answer]
    return failed + [worker.receive() for worker in ready]


class Company:
    """The workers of the libraries that are here, and why the others are not.

    Attributes:
        versions: of those that are here, and of Python where that is not this one's.
        absent: the others, and why.
    """

    def __init__(self) -> None:
        self._workers: dict[str, list[Worker]] = {}
        self.versions: dict[str, str] = {}
        self.absent: dict[str, str] = {}

    def of(self, name: str) -> Worker:
        """The first worker of a library."""
        return self._workers[name][0]

    def both(self, name: str) -> list[Worker]:
        """Its two."""
        return self._workers[name]

    def greet(self, name: str, workers: list[Worker]) -> None:
        """Wait until the workers of a library have imported it."""
        answers = [worker.receive() for worker in workers]
        errors = [told["error"] for told in answers if "error" in told]
        if errors:
            self.absent[name] = errors[0]
        else:
            told, own = answers[0], platform.python_version()
            other = "" if told["python"] == own else f", Python {told['python']}"
            self.versions[name] = told["version"] + other
            self._workers[name] = workers


@contextmanager
def company(
    names: Sequence[str], url: str, *, python: str | None = None, fast: bool = False
) -> Iterator[Company]:
    """Two workers for each library."""
    found = Company()
    started: dict[str, list[Worker]] = {}
    with ExitStack() as stack:
        for name in names:
            try:
                workers = [Worker(name, python, fast=fast) for _ in range(2)]
            except Absent as absent:
                found.absent[name] = str(absent)
                continue
            started[name] = workers
            for worker in workers:
                stack.callback(worker.close)
                worker.send(do="hello", url=url if "redis" in LIBRARIES[name].stores else None)
        for name, workers in started.items():
            found.greet(name, workers)
        yield found
