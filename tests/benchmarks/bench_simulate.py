"""What `python -m earmark simulate` takes: a million requests of a day, in under a minute or so."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from earmark.commands.simulation.plot import plot
from earmark.commands.simulation.replay import replay
from earmark.commands.simulation.tables import tables as told
from earmark.commands.simulation.trace import COLUMNS, read_trace
from earmark.policies import Policies
from tests.benchmarks import aims
from tests.benchmarks.figures import Effort, Table

REQUESTS: Final = 1_000_000
DAY: Final = 86_400

POLICIES: Final[dict[str, Any]] = {
    "default": {"limits": {"rpm": 60, "tpm": 150_000, "concurrency": 10}},
    "tenants": [{"key": "tenant-1", "limits": {"rpm": 300, "tpm": 900_000, "concurrency": 40}}],
    "scopes": [{"id": "gpt-4o", "match": "gpt-4o", "limits": {"tpm": 1_500_000}}],
}


def write_trace(path: Path, requests: int) -> None:
    """So many requests in one day, or in a part of it: a few tenants send most of them."""
    drawn = random.Random(1)
    now, pace = 1_775_001_600.0, REQUESTS / DAY
    models = ("gpt-4o", "gpt-4o-mini", "claude-sonnet-4")
    with path.open("w", encoding="utf-8") as file:
        file.write(",".join(COLUMNS) + "\n")
        for _ in range(requests):
            now += drawn.expovariate(pace)
            tenant, model = int(drawn.paretovariate(1.2)) % 500, drawn.choice(models)
            tokens = f"{drawn.randint(50, 4_000)},{drawn.randint(10, 900)}"
            seconds = drawn.uniform(0.2, 20)
            file.write(f"{now:.3f},tenant-{tenant},{model},{tokens},{seconds:.2f}\n")


def quiet(done: int, total: int) -> None:
    """Nobody sits before a terminal."""


async def simulated(requests: int) -> tuple[dict[str, float], str]:
    """The seconds of the processor of each part of it, and the first line that it tells."""
    policies = Policies(POLICIES)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        write_trace(path, requests)
        began = time.process_time()
        trace = read_trace(str(path), policies.dims, quiet)
        read = time.process_time()
    tally = await replay(trace, policies, quiet)
    replayed = time.process_time()
    first, *_ = (*told(tally), plot(tally))
    ended = time.process_time()
    parts = {
        "reading": read - began,
        "replaying": replayed - read,
        "tables and plot": ended - replayed,
    }
    return parts, first


async def tables(effort: Effort) -> AsyncIterator[Table]:
    """Its parts, and the aim."""
    requests = effort.of(REQUESTS)
    parts, first = await simulated(requests)
    total = sum(parts.values())
    rows = tuple(
        (name, seconds / requests * 1e6, requests / seconds if seconds else None)
        for name, seconds in {**parts, "all of it": total}.items()
    )
    yield Table(
        "Simulate: a trace under policies",
        ("", "µs of the processor a request", "requests a second of it"),
        rows,
        f"{first}. That took {total:.1f} s of the processor.",
    )
    yield aims.table({"simulate": {aims.OURS: {"rate": requests / total}}}, ": simulate")
