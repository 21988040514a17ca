"""What it costs to ask policies which limits apply, with 10,000 tenants.

A round asks for a thousand of them, another thousand each time. The loop itself is measured beside them, by asking a
dict for the same answers, and is taken off.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from earmark import Scope
from earmark.policies import Policies
from tests.benchmarks.figures import Effort, Measure, Table, least

TENANTS: Final = 10_000

Ask = Callable[[str], object]


def many(tenants: int) -> dict[str, Any]:
    """So many tenants with rules of their own, a limit per team, and one for a model."""
    rules = [
        {"match": "gpt-4o", "limits": {"tpm": 100_000}},
        {"match": "claude-*", "limits": {"rpm": 100}},
    ]
    return {
        "default": {"limits": {"rpm": 20}},
        "tenants": [
            {"key": f"tenant-{number}", "limits": {"rpm": 600, "tpm": number}, "models": rules}
            for number in range(tenants)
        ],
        "scopes": [
            {"id": "team", "by": "team", "limits": {"tpd": 5_000_000}},
            {"id": "gpt-4o", "match": "gpt-4o*", "limits": {"tpm": 2_000_000}},
        ],
        "aliases": {"fast": "gpt-4o-mini"},
    }


def asking(ask: Ask, tenants: int) -> Measure:
    """Measures the microseconds of one question, the loop included, over a tenth of the tenants."""
    names = [f"tenant-{number}" for number in range(tenants)]
    times = max(tenants // 10, 1)
    begin = 0

    async def measure() -> float:
        nonlocal begin
        asked, begin = names[begin : begin + times], (begin + times) % tenants
        for tenant in asked:
            ask(tenant)  # the first time makes the answer
        began = time.perf_counter_ns()
        for tenant in asked:
            ask(tenant)
        return (time.perf_counter_ns() - began) / times / 1_000

    return measure


def bytes_a_tenant(tenants: int) -> float:
    """What is kept of each tenant in memory, before anybody asks."""
    written = many(tenants)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    policies = Policies(written)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    del policies
    return grown / tenants


async def tables(effort: Effort) -> AsyncIterator[Table]:
    """One table."""
    tenants = effort.of(TENANTS)
    size = bytes_a_tenant(max(tenants // 10, 1))
    began = time.process_time()
    policies = Policies(many(tenants))
    seconds = time.process_time() - began
    answers: dict[str, tuple[Scope, ...]] = {}
    asks: dict[str, Ask] = {
        "a dict of answers": answers.get,
        "a tenant alone": lambda tenant: policies.scopes(tenant=tenant),
        "a tenant and a model": lambda tenant: policies.scopes(tenant=tenant, model="gpt-4o"),
        "… and a team": lambda tenant: policies.scopes(tenant=tenant, model="gpt-4o", team="red"),
        "an alias": lambda tenant: policies.scopes(tenant=tenant, model="fast"),
        "an unlisted model": lambda tenant: policies.scopes(tenant=tenant, model="o1"),
        "an unlisted tenant": lambda tenant: policies.scopes(tenant="?" + tenant),
        "one that no cache knows": lambda tenant: policies._book.find(tenant + "?", "o1", {}),
    }
    found = await least(
        {name: asking(ask, tenants) for name, ask in asks.items()}, 6 * effort.rounds
    )
    loop = found.pop("a dict of answers")
    rows = tuple((name, figure - loop) for name, figure in found.items())
    yield Table(
        "Policies: which limits apply",
        ("", "µs"),
        rows,
        f"Reading {tenants:,} tenants takes {seconds:.2f} s of the processor, and each is kept in {size:,.0f} bytes.",
    )
