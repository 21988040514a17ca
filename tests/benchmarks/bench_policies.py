"""What it costs to ask policies which limits apply, with 10,000 tenants.

    python tests/benchmarks/bench_policies.py

Each figure is the best of many short rounds, in turn; a round asks for a thousand tenants, another thousand each time.
The loop itself is measured beside them, by asking a dict for the same answers, and is taken off.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from earmark import Scope
from earmark.policies import Policies

TENANTS = 10_000
ROUNDS = 40
TIMES = 1_000

Work = Callable[[str], object]


def many() -> dict[str, Any]:
    """Ten thousand tenants with rules of their own, a limit per team, and one for a model."""
    rules = [
        {"match": "gpt-4o", "limits": {"tpm": 100_000}},
        {"match": "claude-*", "limits": {"rpm": 100}},
    ]
    return {
        "default": {"limits": {"rpm": 20}},
        "tenants": [
            {"key": f"tenant-{number}", "limits": {"rpm": 600, "tpm": number}, "models": rules}
            for number in range(TENANTS)
        ],
        "scopes": [
            {"id": "team", "by": "team", "limits": {"tpd": 5_000_000}},
            {"id": "gpt-4o", "match": "gpt-4o*", "limits": {"tpm": 2_000_000}},
        ],
        "aliases": {"fast": "gpt-4o-mini"},
    }


def best(works: dict[str, Work]) -> dict[str, float]:
    """Microseconds per question of each, without the loop."""
    names = [f"tenant-{number}" for number in range(TENANTS)]
    found = dict.fromkeys(works, float("inf"))
    for round_ in range(ROUNDS):
        begin = round_ * TIMES % TENANTS
        asked = names[begin : begin + TIMES]
        for name, work in works.items():
            for tenant in asked:
                work(tenant)  # the first time makes the answer
            start = time.perf_counter()
            for tenant in asked:
                work(tenant)
            found[name] = min(found[name], (time.perf_counter() - start) / TIMES * 1e6)
    return found


def main() -> None:
    """Measure and print."""
    start = time.process_time()
    policies = Policies(many())
    print(f"reading {TENANTS:,} tenants: {time.process_time() - start:.2f} s of CPU time")
    answers: dict[str, tuple[Scope, ...]] = {}
    found = best(
        {
            "a dict of answers": answers.get,
            "a tenant alone": lambda tenant: policies.scopes(tenant=tenant),
            "a tenant and a model": lambda tenant: policies.scopes(tenant=tenant, model="gpt-4o"),
            "… and a team": lambda tenant: policies.scopes(
                tenant=tenant, model="gpt-4o", team="red"
            ),
            "an alias": lambda tenant: policies.scopes(tenant=tenant, model="fast"),
            "an unlisted model": lambda tenant: policies.scopes(tenant=tenant, model="o1"),
            "an unlisted tenant": lambda tenant: policies.scopes(tenant="?" + tenant),
            "one that no cache knows": lambda tenant: policies._book.find(tenant + "?", "o1", {}),
        }
    )
    loop = found.pop("a dict of answers")
    for name, microseconds in found.items():
        print(f"{name:26} {microseconds - loop:6.2f} us")


if __name__ == "__main__":
    main()
