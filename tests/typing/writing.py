"""What type checkers see of what a backend is written with, and of what the kit draws: as public.py, never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, assert_type

from earmark import Denial, Limit, MemoryBackend, Scope, Usage
from earmark.backends import (
    CONCURRENCY,
    MICROSECONDS,
    Clock,
    Hold,
    Seen,
    TellsHeld,
    Verb,
    lease_microseconds,
    name_of,
)
from earmark.core import (
    Algorithm,
    Refundable,
    States,
    algorithm_of,
    at_window,
    counts_until,
    denials,
    divided,
    parts_of,
    used,
)
from earmark.testing import ManualClock
from earmark.testing.histories import (
    Add,
    Again,
    Amend,
    Bad,
    Enforce,
    Finish,
    Gateway,
    History,
    Line,
    Offer,
    Peek,
    PreCommit,
    Replay,
    Reset,
    Settle,
    Step,
    Wait,
    WaitFor,
    play,
)
from earmark.testing.streams import ALL, ENDINGS, STREAMS, Body, Ending, Piece, Stream, stream


def reserved(hold: Hold, limit: Limit, clock: Clock = time.time) -> States:
    """What `reserve` is made of."""
    now = round(clock() * MICROSECONDS)
    rules: Algorithm[Any] = algorithm_of(limit)
    states: States = [rules.unused()] if limit.metric != CONCURRENCY else [0]
    assert_type(denials(hold.scopes, hold.asks, states, now), Iterator[Denial])
    assert_type(divided(hold), Hold)
    assert_type(parts_of(hold), tuple[Hold, ...])
    assert_type(name_of(hold.id), str)
    assert_type(lease_microseconds(60.0), int)
    return states


def resolved(hold: Hold, verb: Verb, rules: Refundable[int], limit: Limit) -> int:
    """What `resolve` is made of."""
    assert_type(used(hold, verb, {"tokens": 1}, {}), Mapping[str, int])
    assert_type(counts_until((0.0, 0, 0), 60 * MICROSECONDS), int)
    assert_type(at_window((0, 0), 1), tuple[int, int])
    return rules.give_back(limit, 5, 3, 0, 0)


def told(scopes: tuple[Scope, ...], seen: Seen) -> States:
    """The memory backend tells what is held."""
    backend: TellsHeld = MemoryBackend()
    return backend.unheld(scopes, seen)


def sent(body: Body) -> AsyncIterator[Piece]:
    """A stream on its way, and what is true of it."""
    ending: Ending = body.ending
    assert_type(body.stream, Stream)
    assert_type(body.stream.usage, Usage | None)
    assert_type(body.complete, bool)
    assert_type(stream("ollama: cut"), Stream)
    known: tuple[Stream, ...] = (*ALL, *STREAMS, *ENDINGS)
    return Body(known[0], body.pieces, ending, whole=False).source()


def happened() -> History:
    """A history is a value."""
    bucket = Line("tokens", 5, MICROSECONDS, "token_bucket", burst=9)
    steps: tuple[Step, ...] = (
        *(PreCommit((0,), Usage(1, 2)), Again(), Settle(0, 3), Finish("cancel"), Add(0, 1)),
        *(
            Reset((0,)),
            Peek(),
            Wait(5),
            WaitFor("lease"),
            Amend(0, 0, 3),
            Enforce(0),
            Bad(),
            Replay(),
        ),
    )
    return History((Offer("a", (("rpm", 5),), also=(bucket,)),), steps)


def gateway(clock: ManualClock) -> Gateway:
    """What it is played on."""
    return Gateway(MemoryBackend(clock=clock))


def played() -> None:
    """It returns nothing."""
    assert_type(play(happened(), gateway), None)
