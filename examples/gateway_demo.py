"""A gateway with limits at work, over real HTTP: users, the gateway, and a provider stand-in that streams.

Prints a table with a row for each step: what was done, what the gateway answered, what the limiter should have
counted, and what `peek` says. Exits with 0 if every row holds, else with 1.

    python examples/gateway_demo.py
    python examples/gateway_demo.py --recording answer.sse    # streams a recorded body instead
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
from gateway.provider import Provider
from gateway.script import Script, built_in, recording
from gateway.serving import serving
from gateway.table import Table

from earmark import Event, Limiter, Limits, MemoryBackend, Scope
from earmark.testing import ManualClock

START: Final = 20.0  # seconds into a minute
PATIENCE: Final = 60.0  # seconds after which the demo gives up


async def play(script: Script, title: str) -> int:
    """Start both servers and play every scene; returns the exit code."""
    clock = ManualClock(START)
    events: asyncio.Queue[Event] = asyncio.Queue()
    limiter = Limiter(MemoryBackend(clock=clock), observers=[events.put_nowait])
    table = Table(limiter)
    provider = Provider(script.body)
    scopes = {
        "sk-alice": Scope("api_key:alice", script.limits),
        "sk-bob": Scope("api_key:bob", Limits(tpm=1_000_000, concurrency=1)),
        "sk-carol": Scope("api_key:carol", Limits(rpm=60, tpm=1_000)),
    }
    async with AsyncExitStack() as stack, AsyncExitStack() as provider_stack:
        provider_url = await provider_stack.enter_async_context(serving(provider.app()))
        upstream = await stack.enter_async_context(_client(provider_url))
        app = Gateway(limiter, scopes, upstream).app()
        gateway_url = await stack.enter_async_context(serving(app))
        http = await stack.enter_async_context(_client(gateway_url))
        alice, bob, carol = (User(http, key, scope) for key, scope in scopes.items())
        size = f"{len(script.body.content):,} bytes, leaves {script.owed:,} tokens debited"
        print(f"gateway   {gateway_url}")
        print(f"provider  {provider_url}, streams {title} ({size})")
        print(f"clock     injected, {START:g} s into a minute; nothing but the steps moves it")
        print(f"request   holds {HOLD} tokens: 10 for its prompt, 190 for all its output")
        await scenes.settled_then_refused(table, alice, provider, script, clock)
        await scenes.one_at_a_time(table, bob, provider, script, events)
        await scenes.not_streamed(table, carol)
        await provider_stack.aclose()
        await scenes.never_sent(table, carol)
    return table.verdict()


def _client(base_url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=base_url, timeout=PATIENCE, trust_env=False)


async def run(script: Script, title: str) -> int:
    """Play, but not for ever; returns the exit code."""
    try:
        async with asyncio.timeout(PATIENCE):
            return await play(script, title)
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
    path: Path | None = parser.parse_args(arguments).recording
    if path is None:
        return asyncio.run(run(built_in(HOLD), "a body of its own"))
    try:
        script = asyncio.run(recording(path, HOLD))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return asyncio.run(run(script, path.name))


if __name__ == "__main__":
    sys.exit(main())
