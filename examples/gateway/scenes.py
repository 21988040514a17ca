"""What happens in the demo, scene by scene; each step is one row of the table."""

from __future__ import annotations

import asyncio

from earmark import Event
from earmark.testing import ManualClock

from .client import HOLD, User
from .provider import Provider
from .script import Script
from .table import Table


async def settled_then_refused(
    table: Table, alice: User, provider: Provider, script: Script, clock: ManualClock
) -> None:
    """A stream is settled at what it used before its end is seen; the next request finds the limit used up."""
    whole, owed = len(script.body.content), script.owed
    pause = provider.pause(script.half, whole) if script.marked else provider.pause(script.half)
    async with alice.reading() as reading:
        await reading.up_to(script.half)
        await table.row(
            "asks; half of the stream is here",
            alice.scope,
            ("200", reading.answer),
            requests=1,
            tokens=HOLD,
        )
        pause.go_on()
        if script.marked:
            await reading.up_to(whole)
            step = "its end mark is here, the body is open"
        else:
            await reading.to_the_end()
            step = "the body ended without an end mark"
        bytes_ = "the same bytes" if reading.body == script.body.content else "other bytes"
        await table.row(step, alice.scope, ("the same bytes", bytes_), requests=1, tokens=owed)
        pause.go_on()
        await reading.to_the_end()
    await table.row(
        "asks again",
        alice.scope,
        ("429, Retry-After 40", await alice.ask()),
        requests=1,
        tokens=owed,
    )
    clock.advance(39)
    await table.row(
        "asks again 39 s later",
        alice.scope,
        ("429, Retry-After 1", await alice.ask()),
        requests=1,
        tokens=owed,
    )
    clock.advance(1)
    await table.row(
        "asks again 1 s later, in a new minute",
        alice.scope,
        ("200", await alice.ask()),
        requests=1,
        tokens=owed,
    )


async def one_at_a_time(
    table: Table, bob: User, provider: Provider, script: Script, events: asyncio.Queue[Event]
) -> None:
    """A slot is held for as long as a stream runs; a client that leaves frees it, and pays its hold."""
    pause = provider.pause(script.half)
    async with bob.reading() as reading:
        await reading.up_to(script.half)
        await table.row(
            "asks; half of the stream is here",
            bob.scope,
            ("200", reading.answer),
            tokens=HOLD,
            slots=1,
        )
        await table.row(
            "asks at the same time",
            bob.scope,
            ("429, no Retry-After", await bob.ask()),
            tokens=HOLD,
            slots=1,
        )
    ending = await _resolved(events, bob)
    await pause.ended.wait()  # the provider has noticed too
    await table.row(
        "disconnects in mid-stream",
        bob.scope,
        ("abandoned", ending),
        tokens=script.owed_half,
        slots=0,
    )
    await table.row(
        "asks again",
        bob.scope,
        ("200", await bob.ask()),
        tokens=script.owed_half + script.owed,
        slots=0,
    )


async def not_streamed(table: Table, carol: User) -> None:
    """What the provider refuses unbilled costs no tokens; a whole answer costs what it says."""
    refused = await carol.ask(model="unknown")
    await table.row(
        "asks for a model that nobody has",
        carol.scope,
        ("404", refused),
        requests=1,
        tokens=0,
    )
    whole = await carol.ask(stream=False)
    await table.row(
        "asks for an answer in one piece", carol.scope, ("200", whole), requests=2, tokens=30
    )


async def never_sent(table: Table, carol: User) -> None:
    """What was never sent costs nothing, not even the request."""
    await table.row(
        "asks while the provider is down",
        carol.scope,
        ("502", await carol.ask()),
        requests=2,
        tokens=30,
    )


async def _resolved(events: asyncio.Queue[Event], user: User) -> str:
    """Wait until the gateway has resolved the user's reservation; returns how."""
    while True:
        event = await events.get()
        if user.scope.key in event.keys and event.kind not in {"admitted", "refused"}:
            return event.kind
