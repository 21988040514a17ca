"""Faults of slots and of refusals that such systems had, each named by its case (C1–C16).

Windows are 60 s from t = 0. Each docstring says what the faulty system did.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import pytest

from earmark import Limiter
from tests.doubles import Stalling
from tests.rows import P, R, Table, key, used

pytestmark = pytest.mark.anyio

ALGORITHMS = ["fixed_window", "sliding_window", "token_bucket"]


# Concurrency slots


async def test_c06_a_stream_keeps_its_slot_and_settles_after_the_handler_returned() -> None:
    """C6: the handler returns before the body is sent: the slot stays taken, the tokens are counted."""
    scope = key(concurrency=1, tpm=100)

    async def body() -> AsyncIterator[dict[str, Any]]:
        yield {
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": {"content": "hi"}}],
        }
        yield {
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
        }
        yield {
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": {"prompt_tokens": 20, "completion_tokens": 100, "total_tokens": 120},
        }

    async with Table() as table:

        async def handler() -> Any:
            async with await table.limiter.pre_commit(scope) as reservation:
                return reservation.stream(body())

        stream = await handler()
        await table.play(R("r2", scope, at=1, deny="key.conc"))
        items = [item async for item in stream]
        assert len(items) == 3
        await table.play(
            used("key.tpm", 120),
            used("key.conc", 0),
            R("r3", scope, at=6, deny="key.tpm", after=54),
            R("r4", scope, at=60),
        )


# Rejection and rollback


@pytest.mark.parametrize("where", ["before", "after"])
async def test_c14_a_cancelled_pre_commit_gives_back_what_it_took_and_no_more(where: str) -> None:
    """C14: cancelled between "listed as applied" and "done", it gave back what it had never taken: used 10."""
    scope = key(tpm=100, concurrency=2)
    async with Table() as table:
        await table.play(P(scope, 40))
        backend: Any = Stalling(table.backend, where)
        limiter = Limiter(backend, observers=(table.events.append,))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(limiter.pre_commit, scope, tokens=30, request_id="x"))
            await backend.stalled.wait()
            tasks.cancel_scope.cancel()
        await table.play(
            used("key.tpm", 40), used("key.conc", 0), R("x", scope, tok=60, request_id="x")
        )
        assert "admitted" not in table.kinds()[:-1]
