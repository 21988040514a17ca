"""A gateway with limits at work, over real HTTP: users, the gateway, and a provider stand-in that streams.

Prints a table with a row for each step: what was done, what the gateway answered, what the limiter should have
counted, and what `peek` says. Exits with 0 if every row holds, else with 1.

    python examples/gateway_demo.py
    python examples/gateway_demo.py --recording answer.sse    # streams a recorded body instead
    python examples/gateway_demo.py --redis redis://localhost:6379    # keeps the limits there, not in memory
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import httpx
from gateway import scenes
from gateway.app import Gateway
from gateway.client import HOLD, User
from gateway.prices import BUDGET, PRICES
from gateway.provider import stand_in
from gateway.script import Script, built_in, recording
from gateway.serving import serving
from gateway.stores import memory, redis
from gateway.table import Table
from redis import RedisError

from earmark import EarmarkError, Event, Limiter, Limits, Scope
from earmark.backends import Backend
from earmark.ledger import Ledger
from earmark.testing import ManualClock

START: Final = 20.0  # seconds into a minute
PATIENCE: Final = 60.0  # seconds after which the demo gives up


async def play(script: Script, title: str, backend: Backend, clock: ManualClock) -> int:
    """Start both servers and play every scene; returns the exit code."""
    events: asyncio.Queue[Event] = asyncio.Queue()
    ledger = Ledger("sqlite://", clock=clock)  # in memory: a demo keeps nothing
    await ledger.create()
    limiter = Limiter(backend, ledger=ledger, prices=PRICES, observers=[events.put_nowait])
    table = Table(limiter, ledger)
    provider = stand_in(script.body)
    scopes = {
        "sk-alice": Scope("api_key:alice", script.limits),
        "sk-bob": Scope("api_key:bob", Limits(tpm=1_000_000, concurrency=1)),
        "sk-carol": Scope("api_key:carol", Limits(rpm=60, tpm=1_000)),
        "sk-dave": Scope(BUDGET.key, Limits(rpm=60)),
    }
    async with AsyncExitStack() as stack, AsyncExitStack() as provider_stack:
        provider_url = await provider_stack.enter_async_context(serving(provider))
        upstream = await stack.enter_async_context(_client(provider_url))
        app = Gateway(limiter, scopes, upstream, {BUDGET.key: BUDGET}).app()
        gateway_url = await stack.enter_async_context(serving(app))
        http = await stack.enter_async_context(_client(gateway_url))
        alice, bob, carol, dave = (User(http, key, scope) for key, scope in scopes.items())
        size = f"{len(script.body.content):,} bytes, leaves {script.owed:,} tokens debited"
        print(f"gateway   {gateway_url}")
        print(f"provider  {provider_url}, streams {title} ({size})")
        print(f"limits    kept {'in memory' if backend.instant else 'on a Redis server'}")
        print(f"clock     injected, {START:g} s into a minute; nothing but the steps moves it")
        print(f"request   holds {HOLD} tokens: 10 for its prompt, 190 for all its output")
        await scenes.settled_then_refused(table, alice, provider, script, clock)
        await scenes.one_at_a_time(table, bob, provider, script, events)
        await scenes.on_a_budget(table, dave, clock, BUDGET)
        await scenes.not_streamed(table, carol)
        await provider_stack.aclose()
        await scenes.never_sent(table, carol)
        await table.summary()
        await ledger.aclose()
    return table.verdict()


def _client(base_url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=base_url, timeout=PATIENCE, trust_env=False)


async def run(script: Script, title: str, redis_url: str | None) -> int:
    """Play, but not for ever; returns the exit code.

    Raises:
        EarmarkError, RedisError, ValueError: the Redis server cannot be used.
    """
    clock = ManualClock(START)
    store = memory(clock) if redis_url is None else redis(redis_url, clock)
    try:
        async with asyncio.timeout(PATIENCE), store as backend:
            return await play(script, title, backend, clock)
    except TimeoutError:
        print(f"FAILED: the next step did not end within {PATIENCE:g} s.")
        return 1


def main(arguments: list[str] | None = None) -> int:
    """Run the demo on the built-in stream or a recorded one; returns the exit code."""
    parser = argparse.ArgumentParser(description="A gateway with limits at work.")
    parser.add_argument(
        "--recording",
        type=Path,
        metavar="PATH",
        help="a recorded body to stream: .sse, .ndjson, .json (an array), .jsonl (a payload a line)",
    )
    parser.add_argument(
        "--redis",
        metavar="URL",
        help="a Redis server to keep the limits on: redis://, rediss:// (TLS) or unix://",
    )
    given = parser.parse_args(arguments)
    path: Path | None = given.recording
    try:
        script = asyncio.run(built_in(HOLD) if path is None else recording(path, HOLD))
        title = "a body of its own" if path is None else path.name
        return asyncio.run(run(script, title, given.redis))
    except (OSError, ValueError, EarmarkError, RedisError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
