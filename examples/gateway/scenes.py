"""What happens in the demo, scene by scene; each step is one row of the table."""

from __future__ import annotations

import asyncio

from earmark import Event
from earmark.testing import ManualClock
from earmark.testing.provider import Provider

from .client import HOLD, User
from .script import Script
from .table import Table


async def settled_then_refused(
    table: Table, alice: User, provider: Provider, script: Script, clock: ManualClock
) -> None:
    """A stream is settled before its end is seen; the next request finds the limit used up, for so long."""
    table.about(alice.scope)
    content, owed = script.body.content, script.owed
    whole = len(content)
    pause = provider.pause(script.half, whole) if script.marked else provider.pause(script.half)
    async with alice.reading() as reading:
        await reading.up_to(script.half)
        step = "asks; half of the stream is here"
        await table.row(step, reading.answer, "200", requests=1, tokens=HOLD)
        pause.go_on()
        if script.marked:
            await reading.up_to(whole)
            mark = "[DONE]" if b"[DONE]" in content else "the end mark"
            step = f"{mark} is here, body still open"
        else:
            await reading.to_the_end()
            step = "the body ended without an end mark"
        came = "the same bytes" if reading.body == content else "other bytes"
        await table.row(step, came, "the same bytes", requests=1, tokens=owed)
        pause.go_on()
        await reading.to_the_end()
    answer = await alice.ask()
    await table.row("asks again", answer, "429, Retry-After 40", requests=1, tokens=owed)
    clock.advance(39)
    answer = await alice.ask()
    await table.row("asks again, 39 s later", answer, "429, Retry-After 1", requests=1, tokens=owed)
    clock.advance(1)
    answer = await alice.ask()
    await table.row("asks again, 1 s later", answer, "200", requests=1, tokens=owed)


async def one_at_a_time(
    table: Table, bob: User, provider: Provider, script: Script, events: asyncio.Queue[Event]
) -> None:
    """A stream holds its slot until it ends; a client that leaves frees it, and pays at least its hold."""
    table.about(bob.scope)
    pause = provider.pause(script.half)
    async with bob.reading() as reading:
        await reading.up_to(script.half)
        step = "asks; half of the stream is here"
        await table.row(step, reading.answer, "200", tokens=HOLD, slots=1)
        answer = await bob.ask()
        await table.row("asks meanwhile", answer, "429, no Retry-After", tokens=HOLD, slots=1)
    ending = await _resolved(events, bob)
    await pause.ended.wait()  # the provider has noticed too
    left = script.owed_half
    await table.row("disconnects in mid-stream", ending, "abandoned", tokens=left, slots=0)
    answer = await bob.ask()
    await table.row("asks again", answer, "200", tokens=left + script.owed, slots=0)


async def not_streamed(table: Table, carol: User) -> None:
    """What the provider refuses unbilled costs no tokens; a whole answer costs what it says."""
    table.about(carol.scope)
    answer = await carol.ask(model="unknown")
    await table.row("asks for a model that nobody has", answer, "404", requests=1, tokens=0)
    answer = await carol.ask(stream=False)
    await table.row("asks for an answer in one piece", answer, "200", requests=2, tokens=30)


async def never_sent(table: Table, carol: User) -> None:
    """What was never sent costs nothing, not even the request."""
    answer = await carol.ask()
    await table.row("asks while the provider is down", answer, "502", requests=2, tokens=30)


async def _resolved(events: asyncio.Queue[Event], user: User) -> str:
    """Wait until the gateway has resolved the user's reservation; returns how."""
    while True:
        event = await events.get()
        if user.scope.key in event.keys and event.kind not in {"admitted", "refused"}:
            return event.kind
