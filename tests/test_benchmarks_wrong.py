"""What the benchmarks do where a library counts wrong or fails, a document takes no results, or a run is ended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.benchmarks import workers
from tests.benchmarks.__main__ import arguments, printed
from tests.benchmarks.aims import Aim
from tests.benchmarks.correctness import QUESTIONS, RIGHT, answers
from tests.benchmarks.figures import Table
from tests.benchmarks.libraries.base import PLENTY
from tests.benchmarks.libraries.floor import Floor
from tests.benchmarks.side_by_side import together
from tests.benchmarks.workers import ROOT, Worker


class Right(Floor):
    """The floor, which remembers in addition what was settled."""

    async def open(self) -> None:
        await super().open()
        self.settled: set[int] = set()
        self.holds: list[Any] = []

    async def reserve(self, key: str, tokens: int) -> Any:
        hold = await super().reserve(key, tokens)
        self.holds.append(hold)  # so that no other has its identity
        return hold

    async def settle(self, hold: Any, tokens: int) -> None:
        if id(hold) not in self.settled:
            self.settled.add(id(hold))
            await super().settle(hold, tokens)


class Unlimited(Right):
    """It admits whatever comes."""

    async def open(self) -> None:
        await super().open()
        self.requests = self._most = 2 * PLENTY


class WithoutRequests(Right):
    """It limits tokens alone."""

    async def open(self) -> None:
        await super().open()
        self.requests = PLENTY


class Racing(Right):
    """Somebody else may be judged between what it reads and what it writes."""

    async def reserve(self, key: str, tokens: int) -> Any:
        counts = self._counts.get(key, [0, 0, 0])
        fits = counts[1] + 1 <= self.requests and counts[2] + tokens <= self._most
        await asyncio.sleep(0)
        if not fits:
            return None
        limits, self.requests, self._most = (self.requests, self._most), PLENTY, PLENTY
        hold = await super().reserve(key, tokens)
        self.requests, self._most = limits
        return hold


class ChargesTokens(Right):
    """A refusal takes the tokens that it refuses."""

    async def reserve(self, key: str, tokens: int) -> Any:
        hold = await super().reserve(key, tokens)
        if hold is None:
            self._counts[key][2] += tokens
        return hold


class ChargesRequests(Right):
    """A refusal takes a request."""

    async def reserve(self, key: str, tokens: int) -> Any:
        hold = await super().reserve(key, tokens)
        if hold is None:
            self._counts[key][1] += 1
        return hold


class KeepsHolds(Right):
    """It charges what was held, whatever was used."""

    async def settle(self, hold: Any, tokens: int) -> None:
        await super().settle(hold, hold[1])


class NeverMoreThanHeld(Right):
    """What was used beyond the hold is not charged."""

    async def settle(self, hold: Any, tokens: int) -> None:
        await super().settle(hold, min(tokens, hold[1]))


class ChargesTwice(Right):
    """Who settles a second time is charged a second time."""

    async def settle(self, hold: Any, tokens: int) -> None:
        if id(hold) in self.settled:
            self._counts[hold[0]][2] += tokens
        await super().settle(hold, tokens)


class Raising(Right):
    """It gives no answer."""

    async def reserve(self, key: str, tokens: int) -> Any:
        raise ConnectionError(key)


NO_ANSWER: Final = dict.fromkeys(QUESTIONS, "ConnectionError")


@pytest.mark.parametrize(
    ("library", "wrong"),
    [
        (Right, {}),
        (Floor, {"settle twice": "gives back twice"}),
        (
            Unlimited,
            {
                "burst": "200 of 100",
                "refund": "20 of 9 admitted",
                "overrun": "20 admitted, not 4",
                "cost of a refusal": "admits too much",
                "request leak": "admits too much",
                "settle twice": "gives back twice",
            },
        ),
        (WithoutRequests, {"request leak": "admits too much"}),
        (Racing, {"burst": "200 of 100"}),
        (ChargesTokens, {"cost of a refusal": "costs tokens", "request leak": "costs requests"}),
        (ChargesRequests, {"request leak": "costs requests"}),
        (
            KeepsHolds,
            {
                "refund": "6 of 9 admitted",
                "overrun": "6 admitted, not 4",
                "settle twice": "680 are not free",
            },
        ),
        (NeverMoreThanHeld, {"overrun": "6 admitted, not 4"}),
        (ChargesTwice, {"settle twice": "680 are not free"}),
        (Raising, {"burst": "0 of 100, 200 ConnectionError"} | NO_ANSWER),
    ],
)
def test_a_library_that_counts_wrong_is_shown(library: type[Floor], wrong: dict[str, str]) -> None:
    """Each question tells one fault from right, and from another's."""
    told = asyncio.run(answers(lambda **limits: library(None, **limits), "asked"))
    assert told == dict.fromkeys(("burst", *QUESTIONS), RIGHT) | wrong


def worked(rate: float, **failures: int) -> dict[str, Any]:
    """What a process says that had the server do something for 20 microseconds in each life cycle."""
    return {
        "rate": rate,
        "p50": 2.0,
        "p99": 3.0,
        "client": 30.0,
        "server": 20.0,
        "failures": failures,
    }


NOTHING: Final = {"rate": 0.0, "failures": {"RuntimeError": 100}}


def test_of_two_processes_one_may_get_nothing_done() -> None:
    """What the other does counts, and the failures of both do."""
    both = together([worked(100.0, TimeoutError=1), NOTHING])
    assert both == worked(100.0, TimeoutError=1, RuntimeError=100)
    assert together([NOTHING, NOTHING]) == {"rate": 0.0, "failures": {"RuntimeError": 200}}
    assert together([{"error": "x"}, worked(1.0)]) == {"error": "x"}
    assert together([worked(300.0), worked(100.0)])["rate"] == 400.0


def test_an_aim_says_by_how_much_it_is_missed() -> None:
    """What is above the bound by less than what is shown of it, too; who was absent or did nothing misses none."""
    aim = Aim("", "work", "us", "floor", "at most", 1.25)
    said = [
        aim.row({"work": {"earmark": {"us": ours}, "floor": {"us": theirs}}})[2:]
        for ours, theirs in ((1.25, 1.0), (1.253, 1.0), (1.5, 1.0), (1.0, 0.0))
    ]
    assert said == [
        (1.25, "met"),
        (1.253, "not met, by 0.2%"),
        (1.5, "not met, by 20.0%"),
        (None, "not measured"),
    ]


@contextmanager
def worker_that(does: str, folder: Path) -> Iterator[Worker]:
    """One whose interpreter is a script of the shell."""
    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
    script.chmod(0o755)
    worker = Worker("floor", str(script))
    try:
        yield worker
    finally:
        worker.close()


SILENT: Final = {"error": "its process does not answer"}


def test_a_library_that_does_not_answer_in_time_is_asked_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says late to one question is no answer to the next, and nobody waits for it once more."""
    monkeypatch.setattr(workers, "PATIENCE", 0.0)
    with worker_that("exec cat", tmp_path) as worker:
        assert worker.receive() == SILENT
        monkeypatch.setattr(workers, "PATIENCE", 600.0)
        assert worker.ask(do="alone") == SILENT


def test_a_library_whose_process_ends_does_not_end_the_run(tmp_path: Path) -> None:
    """Whatever is asked of it afterwards."""
    with worker_that("exit 3", tmp_path) as worker:
        assert [worker.ask(do="alone"), worker.ask(do="refused")] == [SILENT, SILENT]


@pytest.mark.parametrize(
    ("library", "fast", "missing"),
    [("token-throttle", False, "token_throttle"), ("floor", True, "hiredis")],
)
def test_what_is_not_installed_is_named(
    library: str, fast: bool, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library, or what it is to be measured with."""
    monkeypatch.setattr(workers, "FAST", "nowhere")
    worker = Worker(library, sys.executable, fast=fast)
    try:
        assert worker.ask(do="hello", url=None) == {"error": f"{missing} is not installed here"}
    finally:
        worker.close()


@pytest.mark.parametrize("text", [None, "no place for results"])
def test_a_document_is_looked_at_before_anything_is_measured(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run takes long: what it finds must have somewhere to go."""
    path = tmp_path / "page.md"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        arguments(["http", "--into", str(path)])
    assert ended.value.code == 2
    assert str(path) in capsys.readouterr().err


def test_where_a_server_is_missing_what_was_measured_is_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A machine without PostgreSQL has the figures of SQLite, and those of the benchmarks that follow."""

    async def tables() -> AsyncIterator[Table]:
        yield Table("there", ("", "us"), (("a row", 1.0),))
        pytest.fail("PostgreSQL is missing")

    (kept,) = asyncio.run(printed(tables(), Table.text))
    said = capsys.readouterr()
    assert kept.startswith("# there")
    assert (said.out, said.err) == (f"{kept}\n", "absent: PostgreSQL is missing\n")


RUN: Final = """
import sys
from tests.benchmarks import __main__ as bench
from tests.benchmarks.workers import company
from tests.servers import redis_server

def measure(_):
    with redis_server() as server, company(["floor"], server.url, python=sys.executable) as libraries:
        process = libraries.of("floor")._process
        print(server.port, process.pid, flush=True)
        process.wait()

bench.measure = measure
bench.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_ends_a_run_ends_its_servers_and_workers(number: signal.Signals) -> None:
    """Nothing stays that would slow down what is measured next."""
    run = subprocess.Popen(
        [sys.executable, "-c", RUN],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    port, worker = map(int, run.stdout.readline().split())
    run.send_signal(number)
    _, said = run.communicate(timeout=60)
    assert (run.returncode, said) == (128 + number, "")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
