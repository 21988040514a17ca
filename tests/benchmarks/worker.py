"""A process that measures one library: `python -m tests.benchmarks.worker NAME`.

It takes orders as lines of JSON on its standard input, and answers each with a line: every library has a process, and
may have an environment, of its own. What a library prints goes to the standard error.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import platform
import sys
import warnings
from functools import partial
from importlib.metadata import version
from typing import Any, TextIO

from tests.benchmarks import correctness, workloads
from tests.benchmarks.libraries import LIBRARIES


class Worker:
    """What can be ordered is a method; the order's other fields are its arguments."""

    def __init__(self, name: str, answers: TextIO) -> None:
        self._library = LIBRARIES[name]
        self._answers = answers

    def tell(self, answer: dict[str, Any]) -> None:
        """Write a line."""
        print(json.dumps(answer), file=self._answers, flush=True)

    def _pause(self) -> None:
        """Say that all is ready, and wait for the word: so two processes begin together."""
        self.tell({"ready": True})
        sys.stdin.readline()

    async def hello(self, url: str | None) -> dict[str, Any]:
        """Import everything that a measurement imports."""
        library = self._library(url)
        await library.open()
        await library.aclose()
        gc.collect()
        gc.freeze()
        return {"version": version(library.package), "python": platform.python_version()}

    async def alone(self, keys: int, seconds: float) -> dict[str, Any]:
        return await workloads.alone(partial(self._library, None), keys, seconds)

    async def refused(self, seconds: float) -> dict[str, Any]:
        return await workloads.refused(partial(self._library, None), seconds)

    async def bytes_a_key(self, keys: int) -> dict[str, Any]:
        return await workloads.bytes_a_key(partial(self._library, None), keys)

    async def together(
        self, url: str, callers: int, keys: int, seconds: float, *, paused: bool = False
    ) -> dict[str, Any]:
        make = partial(self._library, url)
        ready = self._pause if paused else lambda: None
        return await workloads.together(make, callers, keys, seconds, ready)

    async def answers(self, url: str | None, prefix: str) -> dict[str, Any]:
        return await correctness.answers(partial(self._library, url), prefix)

    async def burst(self, url: str, key: str, callers: int) -> dict[str, Any]:
        self._pause()
        return await correctness.burst(partial(self._library, url), key, callers)


def not_here(error: ModuleNotFoundError) -> dict[str, Any]:
    """What is told where something is not installed: the library itself, or what it needs."""
    return {"error": f"{error.name} is not installed here"}


def runner_of(worker: Worker) -> asyncio.Runner:
    """A loop of asyncio's, or one of uvloop's where that was asked for; redis-py takes hiredis wherever it is."""
    if "--fast" not in sys.argv:
        return asyncio.Runner()
    try:
        importlib.import_module("hiredis")
        return asyncio.Runner(loop_factory=importlib.import_module("uvloop").new_event_loop)
    except ModuleNotFoundError as error:
        sys.stdin.readline()
        worker.tell(not_here(error))
        sys.exit(1)


def main() -> None:
    """Do what is ordered until nobody orders any more."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker(sys.argv[1], answers)
    with runner_of(worker) as runner:
        for line in sys.stdin:
            order: dict[str, Any] = json.loads(line)
            do = getattr(worker, order.pop("do"))
            try:
                worker.tell(runner.run(do(**order)))
            except ModuleNotFoundError as error:
                worker.tell(not_here(error))
            except Exception as error:  # noqa: BLE001 - whoever has ordered it is told
                worker.tell({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
