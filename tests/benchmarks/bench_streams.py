"""What observing a stream costs per item, over iterating the bare async generator and a pass-through class.

Pieces of 256 or 1400 bytes are cut with no regard to the events, as a network cuts them. One of 256 bytes is about one
event, and may cost what an event may; one of 1400 bytes has between five and six, each of which is looked at, and may
cost more than twice as much. Where every chunk is parsed most of it is the parsing: the last case is that alone. The
second table takes a stream ten times as long: the cost per item must not grow with the length.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from earmark.streams import Observed, observe_stream
from earmark.usage import Usage
from tests.benchmarks.figures import Cell, Effort, Table

# The most that an item may cost more than in the bare generator, in microseconds: 3 for an event in bytes, 2 for a
# parsed one, 10 where its text is measured.
TARGETS: Final = {
    "bytes": 3.0,
    "mappings": 2.0,
    "estimated": 10.0,
    "text": 3.0,
    "CRLF": 3.0,
    "id: lines": 3.0,
    "named": 3.0,
    "256 bytes": 3.0,
    "1400 bytes": 7.0,
    "json.loads": math.inf,
}

Wrap = Callable[[AsyncIterator[Any]], AsyncIterator[Any]]


class PassThrough:
    """The least that a wrapper in form of a class can be."""

    def __init__(self, source: AsyncIterator[Any]) -> None:
        self._advance = source.__anext__

    def __aiter__(self) -> PassThrough:
        return self

    async def __anext__(self) -> Any:
        return await self._advance()


class Parsing(PassThrough):
    """The pass-through class with the parsing of JSON, and nothing made of it."""

    async def __anext__(self) -> Any:
        item = await self._advance()
        json.loads(item[6:])
        return item


def chunk(number: int) -> dict[str, Any]:
    """A chunk of a chat completion as OpenAI sends it with `include_usage`, about 250 bytes."""
    delta = {"content": f" word{number % 1000}"}
    return {
        "id": "chatcmpl-C2P2HtMJhPkWjQ2adKerkdVilXmRL",
        "object": "chat.completion.chunk",
        "created": 1754688929,
        "model": "gpt-4o-2024-08-06",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}],
        "usage": None,
    }


def as_sse(payload: dict[str, Any]) -> bytes:
    """One event in the bytes of a body."""
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"


async def source(items: Sequence[Any], times: int) -> AsyncIterator[Any]:
    """The bare generator. It repeats the same items: what is measured is not how fast memory is."""
    for _ in range(times):
        for item in items:
            yield item


def nothing(_: Observed) -> None:
    """What is done at the end is not what is measured."""


def guess(observed: Observed) -> Usage:
    """An estimator: four characters to a token."""
    return Usage(input_tokens=10, output_tokens=(observed.text_length or 0) // 4)


def observed(items: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The stream as it is wrapped where nothing is asked for."""
    return observe_stream(items, on_complete=nothing)


def pieces(body: bytes, size: int) -> list[bytes]:
    """The body in pieces of this size."""
    return [body[at : at + size] for at in range(0, len(body), size)]


def cases(count: int) -> dict[str, tuple[Sequence[Any], Wrap]]:
    """The items and the wrapper of each case."""
    payloads = [chunk(number) for number in range(count)]
    body = [as_sse(payload) for payload in payloads]
    whole = b"".join(body)
    plain: dict[str, Sequence[Any]] = {
        "bytes": body,
        "mappings": payloads,
        "text": [event.decode() for event in body],
        "CRLF": [event.replace(b"\n", b"\r\n") for event in body],
        "id: lines": [b"id: 12\n" + event for event in body],
        "named": [b"event: chunk\n" + event for event in body],
        "256 bytes": pieces(whole, 256),
        "1400 bytes": pieces(whole, 1400),
    }
    return {
        **{name: (items, observed) for name, items in plain.items()},
        "estimated": (
            body,
            lambda items: observe_stream(items, on_complete=nothing, estimate=guess),
        ),
        "json.loads": (body, Parsing),
    }


async def once(items: Sequence[Any], wrap: Wrap, times: int = 1) -> float:
    """Microseconds of the processor per item."""
    stream = wrap(source(items, times))
    begin = time.thread_time()
    async for _ in stream:
        pass
    return (time.thread_time() - begin) / (len(items) * times) * 1e6


async def measure(count: int, rounds: int, times: int) -> dict[str, tuple[float, float, float]]:
    """For each case: bare, through the pass-through class, observed."""
    table = cases(count)
    best = dict.fromkeys(table, (math.inf, math.inf, math.inf))
    for _ in range(rounds):
        for name, (items, wrap) in table.items():
            bare, through, wrapped = best[name]
            best[name] = (
                min(bare, await once(items, lambda stream: stream, times)),
                min(through, await once(items, PassThrough, times)),
                min(wrapped, await once(items, wrap, times)),
            )
    return best


def report(title: str, count: int, figures: dict[str, tuple[float, float, float]]) -> Table:
    """A row for each case."""
    rows: list[tuple[Cell, ...]] = []
    for name, (bare, through, wrapped) in figures.items():
        most = TARGETS[name] if math.isfinite(TARGETS[name]) else None
        rows.append((name, bare, through, wrapped, wrapped - bare, most))
    return Table(
        title,
        ("", "bare", "pass-through", "observed", "over bare", "at most"),
        tuple(rows),
        f"{count:,} items a stream.",
    )


async def tables(effort: Effort) -> AsyncIterator[Table]:
    """A table for a stream, and one for a stream ten times as long."""
    count = effort.of(10_000)
    long = max(effort.rounds // 2, 1)
    yield report(
        "Streams: microseconds per item", count, await measure(count, 2 * effort.rounds, 1)
    )
    yield report(
        "Streams: microseconds per item, ten times as long",
        10 * count,
        await measure(count, long, 10),
    )
