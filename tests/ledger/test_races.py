"""Several processes on one budget, and processes that are killed: what the log says is what callers were told."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest

from earmark import Limiter
from earmark.ledger import Budget, Spend
from tests.ledgers import NOON, Database, adds_up, opened, usd

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

WORKER: Final = Path(__file__).parent / "workers.py"


def start(database: Database, **told: Any) -> subprocess.Popen[str]:
    """Another process at work."""
    told |= {"url": database.url, "prefix": database.prefix}
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(WORKER), json.dumps(told)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def test_c31_many_tasks_in_several_processes_on_one_budget(database: Database) -> None:
    """C31, R5: never over by more than what single requests overran their estimates; no deadlock; nothing twice."""
    few = database.name == "sqlite"  # one writer at a time: each commit waits for the disk
    processes, tasks, turns = (2, 10, 2) if few else (4, 50, 2)
    limit, estimate, cost = Decimal("1.5" if few else 15), Decimal("0.1"), Decimal("0.11")
    ledger = database.ledger(clock=lambda: NOON)
    await ledger.create()
    # The first of them all begin these keys, and their periods, at the same moment.
    periods: list[tuple[str, str | None, Any]] = [
        ("shared", str(limit), "daily"),
        ("team", None, "monthly"),
        ("model", "1000", "weekly"),
    ]
    workers = [
        start(
            database,
            act="spend",
            name=f"p{number}",
            tasks=tasks,
            turns=turns,
            noon=NOON,
            budgets=periods,
            estimate=str(estimate),
            cost=str(cost),
        )
        for number in range(processes)
    ]
    admitted: dict[str, str] = {}
    refused = 0
    for worker in workers:
        out, errors = worker.communicate(timeout=120)
        assert (worker.returncode, errors) == (0, "")
        told = json.loads(out)
        admitted |= told["admitted"]
        refused += told["refused"]
    assert refused
    rows = await ledger.rows(limit=10_000)
    assert {row.request_id: str(row.cost) for row in rows} == admitted
    spent = len(admitted) * cost
    for key, _, period in periods:
        assert await ledger.spent(Budget(key, None, "total")) == spent
        assert await ledger.spent(Budget(key, None, period)) == spent
    # The last that was admitted fitted with its estimate; those before it overran theirs.
    assert spent <= limit + len(admitted) * (cost - estimate)
    assert spent > limit / 2  # what others held for a while was refused meanwhile
    await adds_up(ledger)
    await ledger.aclose()


async def test_a_process_killed_between_success_and_settlement(database: Database) -> None:
    """C24, R10: what it was told stands; what it held is posted as it stands, once, until a bill corrects it."""
    ledger = database.ledger(expiry=1)
    await ledger.create()
    dead = start(database, act="die", budgets=[["k", "10", "total"]])
    out, errors = dead.communicate(timeout=60)
    assert (json.loads(out), dead.returncode, errors) == ({"held": "untold"}, -9, "")
    budget = Budget("k", usd(10), "total")
    standing = await ledger.standing(budget)
    assert (standing.spent, standing.pending) == (usd("0.25"), usd(1))
    later = database.ledger(clock=lambda: ledger.now() / 1e6 + 3_601)
    async with Limiter(ledger=later) as limiter:
        # Whoever comes later notices: there is no daemon.
        async with await limiter.pre_commit(spend=Spend((budget,), estimate=usd(1))):
            standing = await later.standing(budget)
            assert (standing.spent, standing.pending) == (usd("1.25"), usd(1))
        rows = await later.rows()
        assert [(row.request_id, row.outcome, row.cost, row.unsettled) for row in rows] == [
            ("told", "settled", usd("0.25"), False),
            ("untold", "expired", usd(1), True),
            (rows[-1].request_id, "closed", usd(1), False),
        ]
        assert await later.correct("untold", usd("0.5"))
        assert not await later.correct("untold", usd("0.5"))
        assert await later.spent(budget) == usd("1.75")
        with pytest.raises(ValueError, match="no usage row"):
            await later.correct("nobody's", usd(1))
        await adds_up(later)
    await ledger.aclose()


async def test_c24_an_expiry_that_races_a_settlement(database: Database) -> None:
    """C24: another process posts what has expired while its holder settles: whoever is first, it costs what it cost."""
    budget = Budget("k", None, "total")
    async with opened(database) as (limiter, ledger, clock):
        held = [await limiter.pre_commit(spend=Spend((budget,), None, usd(1))) for _ in range(12)]
        clock.advance(3_600)
        others = [database.ledger(clock=clock, timeout=60) for _ in range(2)]
        told = await asyncio.gather(
            *(other.rows() for other in others),
            *(one.settle_success(1, cost=usd("0.3")) for one in held),
        )
        assert told[2:] == [True] * 12
        assert not any(await asyncio.gather(*(one.abandon() for one in held)))
        assert await ledger.spent(budget) == usd("0.3") * 12
        (line,) = await ledger.summary(by=())
        assert (line.requests, line.cost) == (12, usd("0.3") * 12)
        await adds_up(ledger)
        for other in others:
            await other.aclose()
