"""Faults of numbers and keys that only the memory of the process shows, each named by its case (C67)."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from earmark import Limiter, Limits, MemoryBackend, Scope
from earmark.testing import ManualClock
from tests.doubles import reachable_bytes
from tests.rows import C, R, Table, Z, key

pytestmark = pytest.mark.anyio

ALGORITHMS = ["fixed_window", "sliding_window", "token_bucket"]


async def flood(limits: Limits, keys: int) -> None:
    """Use each of so many keys once; two windows later nothing of it must be left."""
    clock = ManualClock()
    backend = MemoryBackend(clock=clock)
    limiter = Limiter(backend)
    traffic = Scope("traffic", limits)

    async def use(*scopes: Scope) -> None:
        await (await limiter.pre_commit(*scopes, tokens=5)).close_reserved_only()

    await use(traffic)
    gc.collect()
    held, blocks = reachable_bytes(limiter), sys.getallocatedblocks()
    for n in range(0, keys, 20):
        await use(*(Scope(f"user:{n + one}", limits) for one in range(20)))
    assert backend.size() >= keys
    for window in (1, 2):
        clock.set(60 * window)
        await use(traffic)
    gc.collect()
    assert reachable_bytes(limiter) - held < 10_000
    assert sys.getallocatedblocks() - blocks < 10_000
    clock.set(300)
    assert backend.size() == MemoryBackend().size()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_c67_a_million_keys_once_each_leave_nothing() -> None:
    """C67, R14: a million keys, each used once; two windows later, memory is back to what it was before."""
    await flood(Limits(tpm=1_000), 1_000_000)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_c67_no_kind_of_limit_keeps_a_key_that_is_over(algorithm: Any) -> None:
    """C67, R14: the same for every algorithm, and for several limits and a slot of one key."""
    await flood(Limits(rpm=60, tpm=1_000, concurrency=2, algorithm=algorithm), 5_000)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_c67_what_is_reset_again_and_again_grows_nothing(algorithm: str) -> None:
    """R14: a thousand resets of one key in use keep as much as one."""
    scope = key(tpm=1_000, algorithm=algorithm)
    once = (R("r", scope, tok=5), C("r"), Z(scope))
    async with Table() as table:
        await table.play(*once, *once)
        table.events.clear()
        held = reachable_bytes(table.backend)
        for _ in range(500):
            await table.play(*once)
        assert reachable_bytes(table.backend) - held < 1_000
