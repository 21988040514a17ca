"""Every dialect reads its own streams: usage, finality, reasons and ending, whatever way the events come in."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from earmark.streams import observe_stream
from earmark.streams.detect import UNKNOWN, detect, factory
from earmark.streams.dialect import Dialect
from earmark.testing.streams.bodies import ALL, STREAMS
from earmark.testing.streams.bodies.chunks import bare, chat, counts
from earmark.testing.streams.bodies.shape import DONE, Event, Stream
from earmark.usage import Usage
from tests.scale import examples
from tests.streams.reading import read
from tests.streams.toys import Told, cut, generate

by_name = pytest.mark.parametrize("stream", ALL, ids=lambda stream: stream.name)


def outcome(dialect: Dialect) -> str:
    """How a source that stops now has ended."""
    if dialect.error is not None:
        return "error"
    return "end" if dialect.finished else "truncated"


def said(dialect: Dialect) -> tuple[Usage | None, bool, str, Mapping[int, str]]:
    """What a dialect makes of a stream."""
    reasons: Mapping[int, str] = getattr(dialect, "reasons")  # noqa: B009 - the protocol has no reasons
    return dialect.usage, dialect.final(complete=True), outcome(dialect), reasons


def expected(stream: Stream) -> tuple[Usage | None, bool, str, Mapping[int, str]]:
    """What is true of a stream."""
    return stream.usage, stream.authoritative, stream.outcome, stream.reasons


def found(stream: Stream) -> str:
    """The dialect that the events lead to."""
    makers = (detect(event, data) for event, data in stream.events)
    return next((maker for maker in makers if maker is not None), UNKNOWN)(1).name


@by_name
def test_each_stream_is_read_by_the_rules_of_its_dialect(stream: Stream) -> None:
    """B33, B37, B38, C38, C39, C40, C46: reports are combined as the provider means them."""
    assert said(read(factory(stream.dialect)(stream.n), stream.events, stream.n)) == expected(
        stream
    )


@by_name
def test_what_the_trigger_skips_cannot_matter(stream: Stream) -> None:
    """An event in whose bytes the trigger finds nothing changes nothing that is read from the stream."""
    dialect = factory(stream.dialect)(stream.n)
    assert said(read(dialect, stream.events, stream.n, skipping=True)) == expected(stream)


@by_name
def test_the_dialect_is_found_out(stream: Stream) -> None:
    """The first events that say anything lead to the right dialect."""
    assert found(stream) == stream.dialect


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.name)
def test_the_end_is_never_seen_before_the_final_report(stream: Stream) -> None:
    """B32: who completes at the event that ends the stream has the final usage by then."""
    dialect = factory(stream.dialect)(stream.n)
    for event in stream.events:
        dialect = read(dialect, [event], stream.n)
        if dialect.ended:
            assert (dialect.usage, dialect.final(complete=True)) == (
                stream.usage,
                stream.authoritative,
            )


async def observe(stream: Stream, items: Iterable[Any], dialect: str | None) -> tuple[Any, ...]:
    """What an observer tells about a stream that comes in these items, which pass through untouched."""
    told = Told()
    given = list(items)
    wrapped = observe_stream(
        generate(given), on_complete=told, dialect=dialect, expected_choices=stream.n
    )
    out = [item async for item in wrapped]
    assert len(out) == len(given)
    assert all(one is other for one, other in zip(out, given, strict=True))
    observed = told.only
    return observed.usage, observed.authoritative, observed.outcome


@pytest.mark.parametrize("dialect", ["found", "named"])
@pytest.mark.anyio
@by_name
async def test_any_cutting_of_the_bytes_gives_the_same(stream: Stream, dialect: str) -> None:
    """Whole, byte by byte or cut anywhere, in any framing: the observation is that of the events."""
    bodies = stream.framings()
    name = stream.dialect if dialect == "named" else None
    rng = random.Random(stream.name)
    for body in bodies:
        cuts = [[], range(len(body))]
        cuts += [
            [rng.randrange(len(body)) for _ in range(rng.randrange(9))] for _ in range(examples(4))
        ]
        for places in cuts:
            pieces = cut(body, places)
            assert await observe(stream, pieces, name) == expected(stream)[:3], pieces
    if not bodies:
        assert await observe(stream, stream.payloads(), name) == expected(stream)[:3]


@pytest.mark.anyio
@by_name
async def test_parsed_payloads_give_the_same(stream: Stream) -> None:
    """An SDK's events have neither names nor `[DONE]`: what they can tell, they tell alike."""
    payloads = stream.payloads()
    usage, authoritative, ending = await observe(stream, payloads, stream.dialect)
    assert (usage, authoritative) == expected(stream)[:2]
    assert (ending == stream.outcome) == stream.parsed


WORDS = {
    "openai: an error in a payload": "overloaded",
    "groq: an event named error": "bad tool call",
    "gpustack: an error that names itself in text": "failed to decode",
    "vllm: an object that is an error": "too long",
    "an event named error, whatever is in it": "gone",
    "openrouter: an error within a choice, then the end": "bad",
    "openrouter: an error and a usage in one chunk": "limit",
    "responses: an error, then failed without usage": "quota",
    "assistants: the run failed": "no",
    "anthropic: overloaded after HTTP 200": "Overloaded",
    "vertex: an error after the first candidate": "CANCELLED",
    "interactions: failed, and the interaction says why": "no quota left",
    "converse: an exception in the stream": "gone",
    "cohere: finished with an error": "broken",
    "ollama: an error": "out of memory",
    "watsonx: an error": "gone",
    "replicate: an error": "out of memory",
    "nothing but an error": "no such model",
}


@pytest.mark.parametrize("name", WORDS)
def test_an_error_is_told_in_the_provider_s_words(name: str) -> None:
    """C43: an in-band error after HTTP 200 is seen, wherever it stands, and the first one is kept."""
    (stream,) = (stream for stream in ALL if stream.name == name)
    assert read(factory(stream.dialect)(stream.n), stream.events).error == WORDS[name]


def test_every_failing_stream_has_its_words() -> None:
    """The table above leaves none out."""
    failed = {stream.name for stream in ALL if stream.outcome == "error"}
    assert failed == {*WORDS, "responses: failed, with a usage all the same"}


def test_an_unknown_stream_follows_the_largest_total() -> None:
    """B33: several reports are never added up; who only has OpenAI's shape is taken at the most it said."""
    events = [
        chat("a", usage=counts(10, 1)),
        chat("b", usage=counts(10, 20)),
        chat(finish="stop", usage=counts(10, 5)),
        DONE,
    ]
    assert read(UNKNOWN(1), events).usage == Usage(10, 20, reported_total=30)
    assert read(factory("openai")(1), events).usage == Usage(10, 5, reported_total=15)


def test_equal_reports_keep_what_the_fuller_one_knows() -> None:
    """A copy of the report without its details does not make what was known unknown."""
    events = [chat(finish="stop", usage=counts(10, 5, prompt_tokens_details={"cached_tokens": 3}))]
    events += [bare(counts(10, 5)), DONE]
    assert read(UNKNOWN(1), events).usage == Usage(10, 5, 3, reported_total=15)


@pytest.mark.parametrize(
    ("event", "only"),
    [
        (bare(counts(1, 2)), True),
        (bare(counts(1, 2), service_tier="default"), True),
        (bare(), False),
        (bare(None), False),
        (chat(usage=counts(1, 2)), False),
        (bare(counts(1, 2), error={"message": "no"}), False),
        ((None, {"usage": counts(1, 2)}), False),
    ],
)
def test_only_the_chunk_that_was_asked_for_is_the_usage_alone(event: Event, *, only: bool) -> None:
    """B64: what may be hidden is the chunk without choices that has a report, and no other."""
    name, payload = event
    assert not isinstance(payload, str)
    assert factory("openai")(1).only_usage(name, payload) is only
    assert factory("anthropic")(1).only_usage(name, payload) is False
