"""Issue 5: in which order a round trip applies what its callers have asked for, as docs/redis.md states it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final

import pytest

from earmark import Limiter, Limits, RateLimited, RedisBackend, Scope
from earmark.backends.redis.scripts import FREES, TAKES
from tests.redis.wire import Wires, wires
from tests.servers import RedisServer

__all__ = ["wires"]

pytestmark = pytest.mark.anyio

DOCUMENT: Final = Path(__file__).parent.parent.parent / "docs" / "redis.md"
OF_ITS_OWN: Final = {"rights", "present"}  # what a backend asks by itself


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


def test_the_order_is_the_documented_one() -> None:
    """Every message of a caller has its place in it."""
    (sentence,) = re.findall(r"In a round trip come first (.*?)\.", DOCUMENT.read_text(), re.DOTALL)
    verbs = [verb for verb in (*FREES, *TAKES) if verb not in OF_ITS_OWN]
    assert re.findall(r"`(\w+)`", sentence) == verbs


async def test_what_frees_comes_first_and_of_one_kind_who_came_first(
    shared_redis: RedisServer, namespace: str, wires: Wires
) -> None:
    """An addition, two reserves and a settlement that ask in this order share a round trip, and are applied so."""
    scope = Scope("alice", Limits(tpd=10))
    backend = RedisBackend.from_url(shared_redis.url, namespace=namespace, timeout=20)
    async with Limiter(backend) as limiter:
        held = await limiter.pre_commit(scope, tokens=10)
        # The server has the scripts by now, and nobody is alone.
        await asyncio.gather(limiter.add_tokens_post_stream(scope, 1), limiter.peek(scope))
        before = wires.sent.copy()
        _, first, second, settled = await asyncio.gather(
            limiter.add_tokens_post_stream(scope, 4),
            limiter.pre_commit(scope, tokens=6),
            limiter.pre_commit(scope, tokens=4),
            held.settle_success(0),
            return_exceptions=True,
        )
        assert (wires.sent - before)["round trips"] == 1
        assert settled is True  # first, or nobody would have been admitted
        assert not isinstance(first, BaseException)  # before the addition, which came before it
        assert isinstance(second, RateLimited)  # behind the first
        (status,) = await limiter.peek(scope)
        assert status["tokens"].used == 1 + 6 + 4
        assert await first.cancel() is True
