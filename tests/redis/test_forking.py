"""A forked child goes on from its parent's limiter, and not from what its parent has under way."""

from __future__ import annotations

import subprocess
import sys

from tests.servers import RedisServer

CODE = """
import asyncio, os, sys
from earmark import Limiter, Limits, RedisBackend, Scope
from earmark.backends.queues import Queues

url, namespace = sys.argv[1:]
KEY = Scope("key", Limits(rpd=1_000, tpd=10_000))
limiter = Limiter(RedisBackend.from_url(url, namespace=namespace, timeout=20))
backend = limiter._backend

async def go_down():
    held = await limiter.pre_commit(KEY, tokens=10)
    backend._lines.here().line._dial = refuse
    await backend._lines.here().line._hang_up()
    assert await held.settle_success(1) is True
    health = limiter.health()
    assert (health.available, health.owed) == (False, 1), health
    backend.desk.queues.join(frozenset({"key"}), lambda: None)
    child = os.fork()
    if child == 0:
        loop_of_parent()
    _, status = os.waitpid(child, 0)
    health = limiter.health()
    assert (status, health.available, health.owed) == (0, False, 1), (status, health)

async def refuse():
    raise ConnectionError("refused")

def loop_of_parent():
    import threading
    code = []
    thread = threading.Thread(target=lambda: code.append(asyncio.run(child_goes_on())))
    thread.start()
    thread.join()
    os._exit(0 if code == [None] else 1)

async def child_goes_on():
    assert not backend.desk.queues
    health = limiter.health()
    assert (health.available, health.owed, health.reason) == (True, 0, None), health
    reservation = await limiter.pre_commit(KEY, tokens=100)
    assert not reservation.degraded
    assert await reservation.settle_success(40) is True
    await limiter.aclose()
    assert limiter.health().owed == 0

asyncio.run(go_down())
"""


def test_a_child_that_is_forked_in_an_outage_reaches_the_store(
    shared_redis: RedisServer, namespace: str
) -> None:
    """Its health is its own: it is available, owes nothing, and nobody waits in front of it (R18)."""
    command = [sys.executable, "-c", CODE, shared_redis.url, namespace]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
