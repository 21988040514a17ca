"""The benchmarks run: each in its least form, without other libraries, so that none rots until it is wanted.

What they measure is not looked at here: a figure is no promise on a machine that does something else as well.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import uuid
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.benchmarks import side_by_side
from tests.benchmarks.__main__ import BEGIN, END, MODULES, put
from tests.benchmarks.correctness import RIGHT
from tests.benchmarks.figures import LEAST, Table
from tests.benchmarks.workers import Absent, Worker
from tests.servers import RedisServer, redis_server

DOCS = Path(__file__).parent.parent / "docs"
ADAPTER = Path(__file__).parent / "benchmarks" / "shared_bench_adapter.py"


def look(tables: Iterable[Table]) -> dict[str, Table]:
    """Tables by title: each is whole, and can be shown."""
    found = {table.title: table for table in tables}
    assert found
    for table in found.values():
        assert table.rows
        for row in table.rows:
            assert len(row) == len(table.columns)
            assert all(math.isfinite(cell) for cell in row if isinstance(cell, int | float))
        assert table.title in table.text()
        assert table.title in table.markdown()
    return found


@pytest.fixture
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize("name", MODULES)
async def test_a_benchmark_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Each module of what earmark costs by itself."""
    module = importlib.import_module(f"tests.benchmarks.bench_{name}")
    if name == "ledger":  # to make a database takes longer than all of this
        shared = request.getfixturevalue("shared_postgres")
        monkeypatch.setattr(module, "postgres_server", lambda *_: nullcontext(shared))
    look([table async for table in module.tables(LEAST)])


def test_what_is_measured_side_by_side_runs() -> None:
    """Earmark and the floor in processes of their own. earmark counts right; who is absent is named in every table."""
    names = ("earmark", "floor", "PyrateLimiter")
    with redis_server() as server:
        found = look(side_by_side.tables(LEAST, server, names=names, python=sys.executable))
    counted, aims = found.pop("What is counted"), found.pop("Aims")
    assert [row[3] for row in aims.rows if "limits" in str(row[0])] == ["not measured"] * 2
    assert {row[0]: row[2] for row in aims.rows}["Redis: round trips of a life cycle"] == 2
    for name, *answers in counted.rows:
        if str(name).startswith("earmark"):
            assert set(answers) <= {RIGHT, None}, name
    assert [cell for cell in counted.rows[-1] if cell] == ["floor, redis", *answers_of_the_floor()]
    for table in found.values():
        assert [row[0] for row in table.rows] == list(names), table.title
        assert any("absent" in str(cell) for cell in table.rows[-1])
    (alone,) = (table for title, table in found.items() if title.endswith("one caller"))
    trips = alone.columns.index("round trips")
    assert [row[trips] for row in alone.rows] == [2.0, 2.0, None]


def answers_of_the_floor() -> list[str]:
    """It remembers no reservation, so that whoever settles twice is given back twice."""
    return [RIGHT] * 5 + ["gives back twice", RIGHT]


def test_results_go_into_a_document() -> None:
    """In the place of those that were there; docs/performance.md has that place."""
    text = f"above {BEGIN} old {END} below"
    assert put(text, "new\n") == f"above {BEGIN}\n\nnew\n\n{END} below"
    with pytest.raises(ValueError, match="no place"):
        put("above", "new")
    assert "new" in put((DOCS / "performance.md").read_text(encoding="utf-8"), "new")


def test_a_library_without_its_environment_is_absent(tmp_path: Path) -> None:
    """That is told from what went wrong while it was measured."""
    with pytest.raises(Absent):
        Worker("limits", str(tmp_path / "python"))


@pytest.mark.anyio
@pytest.mark.parametrize("backend", ["memory", "redis"])
async def test_the_adapter_for_another_benchmark(
    backend: str, shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A life cycle and a refusal as that benchmark asks for them; the benchmark itself is no part of the project."""
    bench: Any = ModuleType("bench")
    bench.Adapter, bench.register = object, lambda adapter: adapter
    monkeypatch.setitem(sys.modules, "bench", bench)
    spec = importlib.util.spec_from_file_location("adapter", ADAPTER)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    adapter, key = module.Earmark(), f"adapter-{uuid.uuid4()}"
    await adapter.open(backend, 10**9, 1_000, shared_redis.url)
    held = await adapter.reserve(key, 600)
    assert held is not None
    assert await adapter.reserve(key, 600) is None
    await adapter.settle(key, held, 100)
    assert await adapter.check(key)
    again = await adapter.reserve(key, 600)
    await adapter.settle(key, again, 600)
    assert await adapter.reserve(key, 600) is None
    await adapter.close()
