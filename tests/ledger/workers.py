"""What other processes do in the tests of races: run as a script, with what to do as JSON.

python tests/ledger/workers.py '{"act": "spend", "url": …, "prefix": …, …}'
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from decimal import Decimal
from typing import Any

from earmark import BudgetExceeded, Limiter
from earmark.ledger import Budget, Ledger, Spend


def say(what: dict[str, Any]) -> None:
    """Tell the test."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def budgets(told: dict[str, Any]) -> tuple[Budget, ...]:
    """The budgets of one task: one that all share, and others in an order of its own."""
    return tuple(
        Budget(key, None if limit is None else Decimal(limit), period)
        for key, limit, period in told["budgets"]
    )


async def spend(limiter: Limiter, told: dict[str, Any]) -> dict[str, Any]:
    """Many tasks at once ask, settle and give back; returns what they were told."""
    admitted: dict[str, str] = {}
    refused = 0

    async def task(number: int) -> None:
        nonlocal refused
        mine = budgets(told)
        if number % 2:
            mine = mine[::-1]
        for turn in range(told["turns"]):
            name = f"{told['name']}-{number}-{turn}"
            try:
                reservation = await limiter.pre_commit(
                    request_id=name, spend=Spend(mine, estimate=Decimal(told["estimate"]))
                )
            except BudgetExceeded:
                refused += 1
                continue
            if (number + turn) % 5 == 4:
                assert await reservation.cancel()
            else:
                assert await reservation.settle_success(1, cost=Decimal(told["cost"]))
                admitted[name] = told["cost"]

    await asyncio.gather(*(task(number) for number in range(told["tasks"])))
    return {"admitted": admitted, "refused": refused}


async def die(limiter: Limiter, told: dict[str, Any]) -> dict[str, Any]:
    """Settle one request, send another upstream, and be killed before that one is settled."""
    mine = budgets(told)
    first = await limiter.pre_commit(request_id="told", spend=Spend(mine, estimate=Decimal(1)))
    assert await first.settle_success(1, cost=Decimal("0.25"))
    second = await limiter.pre_commit(request_id="untold", spend=Spend(mine, estimate=Decimal(1)))
    say({"held": second.request_id})
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


async def main(told: dict[str, Any]) -> None:
    """Do it, and print what came of it."""
    # A machine may be busy; and it is noon for everybody, so that no day ends meanwhile.
    noon: float | None = told.get("noon")
    clock = None if noon is None else (lambda: noon)
    ledger = Ledger(told["url"], prefix=told["prefix"], timeout=60, clock=clock)
    async with Limiter(ledger=ledger) as limiter:
        done = await {"spend": spend, "die": die}[told["act"]](limiter, told)
    say(done)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
