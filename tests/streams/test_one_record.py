"""One stream, one record: as bytes, as parsed events, as an SDK's objects, with an estimator and without.

Of bytes only the events are parsed in which the dialect's trigger finds something, of parsed events each is read,
and with an estimator every one is. Whatever is sent, that may make no difference.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earmark.streams import Observed
from earmark.testing.streams.bodies import ALL
from earmark.testing.streams.bodies.chunks import bare, chat, counts
from earmark.testing.streams.bodies.shape import DONE, Event, Stream
from tests.reached import Reached
from tests.scale import examples
from tests.streams.test_dialects_fuzz import NAMES
from tests.streams.toys import cut, run_now, sse


class Chunk(pydantic.BaseModel):
    """An SDK's object: it holds what it was given, and dumps it."""

    model_config = pydantic.ConfigDict(extra="allow")


def nothing(_: Observed) -> None:
    """An estimator that has no answer: with it, all is parsed."""


def forms(events: Sequence[Event]) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """The same events in every form that can hold them, and the options to read them with."""
    body = [b"" if name is None else f"event: {name}\n".encode() for name, _ in events]
    body = [head + sse(data) for head, (_, data) in zip(body, events, strict=True)]
    parsed = [
        data if name is None and not isinstance(data, str) else {"event": name, "data": data}
        for name, data in events
    ]
    yield "bytes", body, {}
    yield "one piece", [b"".join(body)], {}
    yield "bytes, estimated", body, {"estimate": nothing}
    yield "parsed", parsed, {}
    yield "parsed, estimated", parsed, {"estimate": nothing}
    if all(name is None and isinstance(data, dict) for name, data in events):
        yield "objects", [Chunk.model_validate(data) for _, data in events], {}
        yield "lines", [f"{json.dumps(data)}\n" for _, data in events], {}


def records(events: Sequence[Event], dialect: str | None, n: int) -> dict[str, tuple[Any, ...]]:
    """What is observed of each form."""
    found = {}
    for form, items, options in forms(events):
        seen = run_now(items, dialect, expected_choices=n, **options)
        found[form] = (seen.outcome, seen.usage, seen.authoritative, seen.error, seen.dialect)
    return found


def agree(events: Sequence[Event], dialect: str | None, n: int = 1) -> tuple[Any, ...]:
    """The one record that all forms have."""
    found = records(events, dialect, n)
    assert len(set(found.values())) == 1, (events, found)
    return found["bytes"]


NULLS: dict[str, tuple[list[Event], str]] = {
    "a null before any choice": (
        [bare(None), chat("a"), chat(finish="stop"), DONE],
        "end",
    ),
    "a null before any choice, and no end": ([bare(None), chat("a"), chat(finish="stop")], "end"),
    "a null beside two choices": (
        [
            (None, {"choices": [{"index": 0}, {"index": 1}], "usage": None}),
            chat(finish="stop"),
        ],
        "end",
    ),
    "a null on the chunk that finishes": ([chat("a", usage=None), chat(finish="stop", usage=None)], "truncated"),
    "a null on that chunk, and the report": (
        [chat(finish="stop", usage=None), bare(counts(1, 2))],
        "end",
    ),
    "a null on a named event": ([("x", dict(chat("a", usage=None)[1])), chat(finish="stop")], "end"),  # type: ignore[arg-type]
    "a null beside an error that is none": ([chat("a", usage=None, error=None), chat(finish="stop")], "end"),
    "the last object of Perplexity, without its report": (
        [chat("a"), (None, {"object": "chat.completion.done", "choices": []})],
        "truncated",
    ),
}  # fmt: skip


@pytest.mark.parametrize("dialect", [None, "openai"])
@pytest.mark.parametrize("case", NULLS)
def test_a_usage_that_is_null(case: str, dialect: str | None) -> None:
    """A null announces a report where a choice finishes, and says nothing anywhere else."""
    events, outcome = NULLS[case]
    assert agree(events, dialect)[0] == outcome


def plain(stream: Stream) -> bool:
    """Whether the events can be had as bytes."""
    return not any(
        isinstance(data.get("chunk", {}).get("bytes"), bytes) for data in stream.payloads()
    )


STREAMS = [stream for stream in ALL if plain(stream)]


@pytest.mark.parametrize("dialect", ["found", "named"])
@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.name)
def test_every_form_of_a_stream_gives_the_same_record(stream: Stream, dialect: str) -> None:
    """B33: outcome, usage, finality and error are those of the stream, not of the way in which it came."""
    found = agree(stream.events, stream.dialect if dialect == "named" else None, stream.n)
    assert found[:3] == (stream.outcome, stream.usage, stream.authoritative)


BODIES = {
    "LF": lambda stream: stream.sse(),
    "CRLF": lambda stream: stream.sse("\r\n"),
    "CR": lambda stream: stream.sse("\r"),
    "numbered": lambda stream: stream.sse().replace(b"data: {", b"id: 7\n: c\ndata: {"),
    "lines": Stream.ndjson,
    "array": Stream.array,
}
AS_SSE = ("LF", "CRLF", "CR", "numbered")
# A multiple of this many characters is where a chunk of an HTTP client's ends.
CHUNKS = st.sampled_from([1, 2, 3, 5, 16, 64, 100, 256, 1400])
cut_up = Reached("cutting")


WAYS: Final = ("found", "named", "estimated", "text")
DIALECTS: Final = sorted({stream.dialect for stream in STREAMS})


def _cut(stream: Stream, form: str, places: list[int] | int, how: str) -> None:
    if form not in AS_SSE and any(name or isinstance(data, str) for name, data in stream.events):
        form = "LF"
    body = BODIES[form](stream)
    options: dict[str, Any] = {"dialect": None if how == "found" else stream.dialect}
    options["expected_choices"] = stream.n
    if how == "estimated":
        options["estimate"] = nothing
    if isinstance(places, int):
        places = list(range(places, len(body), places))
    pieces: list[Any] = cut(body, places)
    if how == "text" and body.isascii():
        pieces = [piece.decode() for piece in pieces]
    seen = run_now(pieces, **options)
    whole = run_now([body], **options)
    # What is told is told with the item that completes the end: those after it are not counted.
    assert replace(seen, items=0, bytes=0) == replace(whole, items=0, bytes=0)
    assert (seen.usage, seen.authoritative) == (stream.usage, stream.authoritative)
    assert seen.outcome == stream.outcome
    cut_up.history({stream.dialect, form, how})


def test_any_cutting_of_any_dialect_gives_the_same_record() -> None:
    """B33: wherever the bytes of any stream are cut, what is observed is that of the whole, field by field."""
    for dialect in DIALECTS:  # each has its share, which chance does not decide
        drawn = given(
            st.sampled_from([stream for stream in STREAMS if stream.dialect == dialect]),
            st.sampled_from(sorted(BODIES)),
            st.lists(st.integers(0, 5000), max_size=12) | CHUNKS,
            st.sampled_from(WAYS),
        )
        settings(max_examples=examples(1500) // len(DIALECTS) + 1)(drawn(_cut))()
    cut_up.require(0.01, {*BODIES, *WAYS})


VALUES: tuple[Any, ...] = (
    None,
    None,
    None,
    "",
    "null",
    0,
    {},
    [],
    [None],
    [{}],
    False,
    True,
    7,
    "stop",
)
PAYLOADS = [data for stream in STREAMS for data in stream.payloads()]
MEMBERS: list[tuple[str, Any]] = [member for data in PAYLOADS for member in data.items()]
# What only whole answers have, and what stands in other places than it should.
STRANGERS: list[tuple[str, Any]] = [
    ("type", "message"),
    ("object", "response"),
    ("object", "interaction"),
    ("object", "chat.completion.done"),
    ("status", "completed"),
    ("interaction", {"status": "failed"}),
    ("response", {"status": "completed"}),
    ("finish_reason", "COMPLETE"),
    ("stop_reason", "end_turn"),
    ("stopReason", "end_turn"),
    ("meta", {"tokens": {"input_tokens": 5, "output_tokens": 6}}),
    ("usage", {"input_tokens": 7, "output_tokens": 8}),
    ("done", True),
]


def altered(value: Any, rng: random.Random) -> Any:
    """The value with one thing in it nulled, emptied, left out, or taken from another stream."""
    if isinstance(value, list) and value:
        at = rng.randrange(len(value))
        return [*value[:at], altered(value[at], rng), *value[at + 1 :]]
    if not isinstance(value, Mapping) or not value or rng.random() < 0.1:
        return rng.choice(VALUES)
    name = rng.choice(list(value))
    how = rng.random()
    if how < 0.15:
        return {key: inner for key, inner in value.items() if key != name}
    if how < 0.3:
        key, inner = rng.choice(MEMBERS if rng.random() < 0.7 else STRANGERS)
        return {**value, key: inner}
    if how < 0.5:
        return {
            **value,
            rng.choice(("usage", "error", "finish_reason", "usageMetadata")): rng.choice(VALUES),
        }
    return {**value, name: altered(value[name], rng)}


# Whose native events Bedrock's are, the first one tells: of a stream of another dialect that is anybody's guess.
OTHERS = [name for name in NAMES if name != "bedrock"]

reached = Reached("one record")


@settings(max_examples=examples(400))
@given(st.integers(0, 2**64 - 1))
def _alter(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        stream = rng.choice(STREAMS)
        events = [
            (
                name
                if isinstance(data, str) or rng.random() < 0.97
                else rng.choice((None, "error", "message")),
                data if isinstance(data, str) or rng.random() < 0.6 else altered(data, rng),
            )
            for name, data in stream.events
            if rng.random() < 0.95
        ]
        events = [(name, data if isinstance(data, (dict, str)) else {}) for name, data in events]
        name = rng.choice(OTHERS) if rng.random() < 0.2 else stream.dialect
        outcome, usage, final, error, _ = agree(events, name, stream.n)
        marks = {outcome, name}
        marks |= {"usage"} if usage else set()
        marks |= {"final"} if final else set()
        marks |= {"failed"} if error else set()
        reached.history(marks)


def test_every_form_of_an_altered_stream_gives_the_same_record() -> None:
    """Nulls, blanks and strangers in any place make no form of a stream differ from another."""
    _alter()
    reached.require(0.002, {*NAMES, "end", "truncated", "error", "usage", "final", "failed"})
