"""A stream that is left before its source has ended never comes to less than one that is read to its end."""

from __future__ import annotations

from typing import Any, Final

import anyio
import pytest

from earmark import Limiter, Limits, MemoryBackend, Scope
from earmark.streams import ObservedStream, observe_stream
from earmark.testing import ManualClock
from earmark.testing.streams.bodies import ALL
from earmark.testing.streams.bodies.gemini import gemini, tokens
from earmark.testing.streams.bodies.others import chunk
from earmark.testing.streams.bodies.shape import Event, Stream
from earmark.usage import Usage
from tests.streams.toys import DONE, Source, Told, Toy, consume, sse, take

pytestmark = pytest.mark.anyio

# Gemini 1.0: every chunk says that it has finished, and how much there is so far.
FIRST: Final = [gemini(tokens(4, count, total=4 + count), "STOP") for count in (6, 16, 26)]
# What came later: the reason is on the last chunk alone.
LATER: Final = [
    gemini(tokens(4, 6, total=10)),
    gemini(tokens(4, 16, total=20)),
    gemini(tokens(4, 26, total=30), "STOP"),
]
# Vertex: counts on the last chunk alone, and on the others a usage without any, or none at all.
VERTEX: Final = [
    gemini({"trafficType": "ON_DEMAND"}),
    gemini(tokens(4, 26, total=30), "STOP"),
]
SILENT: Final = [gemini(), gemini(tokens(4, 26, total=30), "STOP")]
WHOLE: Final = Usage(4, 26, reported_total=30)


def items_of(events: list[Event], form: str) -> list[Any]:
    """The items of a source: bytes, or parsed."""
    return [sse(data) if form == "bytes" else data for _, data in events]


async def left(way: str, items: list[Any], taken: int, dialect: Any = None) -> Told:
    """Take so many items and leave in that way, or be left by the provider: it fails, or says that it has failed."""
    told = Told()
    in_band = way.startswith("in-band")
    ending: Any = OSError("reset") if way == "error" else "stop" if in_band else "wait"
    failure = {"error": {"code": 503, "message": "overloaded"}}
    said: list[Any] = [failure, {"data": "[DONE]"}][: in_band + way.endswith("[DONE]")]
    if type(items[0]) is bytes:
        said = [sse(failure), DONE][: len(said)]
    source = Source([*items[:taken], *said], ending)
    stream: list[ObservedStream[Any]] = [observe_stream(source, on_complete=told, dialect=dialect)]
    for _ in range(taken):
        await anext(stream[0])
    looked = stream[0].observed
    if way == "closed":
        await stream[0].aclose()
    elif way == "cancelled":
        async with anyio.create_task_group() as group:
            group.start_soon(take, stream[0])
            await source.waiting.wait()
            group.cancel_scope.cancel()
    elif way == "error":
        assert (await consume(stream[0]))[1] is ending
    elif in_band:
        assert (await consume(stream[0]))[0] == said
    stream.clear()
    assert told.only.outcome == ("error" if in_band else way)
    assert (told.only.usage, told.only.authoritative) == (looked.usage, looked.authoritative)
    return told


WAYS = pytest.mark.parametrize(
    "way", ["closed", "cancelled", "dropped", "error", "in-band", "in-band, then [DONE]"]
)
FORMS = pytest.mark.parametrize("form", ["bytes", "parsed"])


@WAYS
@FORMS
@pytest.mark.parametrize("taken", [1, 2, 3])
async def test_b65_a_finish_reason_on_every_chunk_finishes_nothing(
    way: str, form: str, taken: int
) -> None:
    """B65: more may always come, so what was reported is not the last word."""
    told = await left(way, items_of(FIRST, form), taken)
    assert told.only.usage == Usage(4, 10 * taken - 4, reported_total=10 * taken)
    assert not told.only.authoritative


@WAYS
@FORMS
@pytest.mark.parametrize(
    "events", [LATER, VERTEX, SILENT], ids=["ai studio", "vertex", "old vertex"]
)
@pytest.mark.parametrize("dialect", [None, "gemini"])
async def test_a_finish_reason_after_chunks_without_one_is_the_end(
    way: str, form: str, events: list[Event], dialect: str | None
) -> None:
    """Whoever leaves between the last chunk and the end of the source has the final report."""
    told = await left(way, items_of(events, form), len(events), dialect)
    assert (told.only.usage, told.only.authoritative) == (WHOLE, True)
    told = await left(way, items_of(events, form), len(events) - 1, dialect)
    assert not told.only.authoritative


@FORMS
@pytest.mark.parametrize("events", [FIRST, FIRST[2:], LATER, VERTEX, SILENT])
async def test_read_to_its_end_the_last_report_is_final(form: str, events: list[Event]) -> None:
    """The source itself says that no more comes."""
    told = Told()
    await consume(observe_stream(Source(items_of(events, form)), on_complete=told))
    assert (told.only.usage, told.only.authoritative, told.only.outcome) == (WHOLE, True, "end")


async def test_an_estimator_is_asked_where_the_stream_was_left() -> None:
    """B65: its word counts where the provider's last one is missing."""
    told = Told()
    stream = observe_stream(
        Source(items_of(FIRST, "bytes")), on_complete=told, estimate=lambda _: Usage(4, 99)
    )
    await anext(stream)
    await stream.aclose()
    assert told.only.usage is not None
    assert told.only.usage.output_tokens == 99


# ---------------------------------------------------------------- OpenAI's shape

DONE_EVENT: Final = (None, "[DONE]")


def openai(output: int | None, reason: str | None = None, *, choice: bool = True) -> Event:
    """A chunk with a report, or without; with a choice, or with none."""
    choices = [{"index": 0, "delta": {"content": "a"}, "finish_reason": reason}] if choice else []
    usage = None if output is None else {"prompt_tokens": 9, "completion_tokens": output}
    return (None, {"choices": choices, **({} if usage is None else {"usage": usage})})


# A running count on a chunk of its own, and a finish reason on every chunk: neither says what is the last.
RUNNING: Final = [openai(count, choice=False) for count in (1, 200, 500)]
FINISHING: Final = [openai(count, "stop") for count in (1, 200, 500)]
BOTH: Final = [openai(1, choice=False), openai(2, "stop"), openai(500, "stop")]
# Where a report came apart from a finish reason, that reason is the last word.
CONTINUOUS: Final = [openai(1), openai(200), openai(500, "stop")]
USUAL: Final = [openai(None), openai(None, "stop"), openai(500, choice=False)]


@WAYS
@FORMS
@pytest.mark.parametrize("dialect", [None, "openai"])
@pytest.mark.parametrize("events", [RUNNING, FINISHING, BOTH], ids=["running", "finishing", "both"])
@pytest.mark.parametrize("taken", [1, 2, 3])
async def test_b65_of_openai_s_shape_leaving_is_never_cheaper(
    way: str, form: str, dialect: str | None, events: list[Event], taken: int
) -> None:
    """B65: a report that may be followed by a larger one is not the last word, whatever it looks like."""
    told = await left(way, items_of(events, form), taken, dialect)
    assert not told.only.authoritative
    assert told.only.usage is not None


@WAYS
@FORMS
@pytest.mark.parametrize("events", [CONTINUOUS, USUAL], ids=["continuous", "usual"])
async def test_a_report_of_openai_s_shape_after_another_is_the_last(
    way: str, form: str, events: list[Event]
) -> None:
    """Whoever leaves between it and `[DONE]` has the final report."""
    told = await left(way, items_of(events, form), 3)
    assert (told.only.usage, told.only.authoritative) == (Usage(9, 500), True)


@pytest.mark.parametrize("end", [[], [DONE_EVENT]], ids=["stop", "[DONE]"])
@pytest.mark.parametrize("events", [RUNNING, FINISHING, BOTH, CONTINUOUS, USUAL])
async def test_of_openai_s_shape_the_end_makes_it_final(
    events: list[Event], end: list[Event]
) -> None:
    """`[DONE]`, or the source's own stop."""
    told = Told()
    await consume(observe_stream(Source(items_of(events + end, "bytes")), on_complete=told))
    assert (told.only.usage, told.only.authoritative) == (Usage(9, 500), True)


@pytest.mark.parametrize("fails", [False, True], ids=["left", "in-band"])
@pytest.mark.parametrize("events", [RUNNING, FINISHING], ids=["running", "finishing"])
@pytest.mark.parametrize("taken", [1, 2, 3])
async def test_b65_a_reservation_keeps_its_hold(
    events: list[Event], taken: int, *, fails: bool
) -> None:
    """B65: what is debited is the larger of the hold and of what was reported until then."""
    limiter, alice = Limiter(MemoryBackend(clock=ManualClock())), Scope("alice", Limits(tpm=10_000))
    reservation = await limiter.pre_commit(alice, tokens=300)
    items = items_of(events[:taken], "bytes")
    if fails:
        items.append(sse({"error": {"message": "overloaded"}}))
    stream = reservation.stream(Source(items, "stop" if fails else "wait"))
    for _ in items:
        await anext(stream)
    if fails:
        assert await consume(stream) == ([], None)
    await stream.aclose()
    (status,) = await limiter.peek(alice)
    assert (reservation.state, status["tokens"].used) == ("closed", 300 if taken < 3 else 509)


# ---------------------------------------------------------------- every dialect


WRAPPED: Final = {"running": RUNNING, "finishing": FINISHING, "usual": USUAL}


@WAYS
@pytest.mark.parametrize("how", ["parsed", "bytes", "base64"])
@pytest.mark.parametrize("events", WRAPPED)
@pytest.mark.parametrize("taken", [1, 2, 3])
async def test_b65_an_envelope_changes_nothing(way: str, how: str, events: str, taken: int) -> None:
    """B65: Bedrock's stream of a model's own events is left as those are without Bedrock."""
    bare = items_of(WRAPPED[events], "parsed")
    wrapped = [chunk(native, how)[1] for native in bare]
    one, other = await left(way, bare, taken, "openai"), await left(way, wrapped, taken)
    assert (other.only.usage, other.only.authoritative) == (one.only.usage, one.only.authoritative)
    assert other.only.dialect == "bedrock"


class Running(Toy):
    """A dialect of a user's own in which only the end makes a report final."""

    def final(self, *, complete: bool) -> bool:
        return complete and self.usage is not None


@WAYS
async def test_b65_a_dialect_of_one_s_own_says_what_the_end_is_for(way: str) -> None:
    """B65: the protocol has what the built-in ones have: a report that the end alone makes final."""
    items: list[Any] = [{"usage": {"in": 9, "out": 3}}]
    assert not (await left(way, items, 1, Running)).only.authoritative
    told = Told()
    await consume(observe_stream(Source(items), on_complete=told, dialect=Running))
    assert told.only.authoritative


@pytest.mark.parametrize("stream", ALL, ids=lambda stream: stream.name)
async def test_b65_no_stream_is_cheaper_when_it_is_left(stream: Stream) -> None:
    """B65: left after any event, what is then final is no less than what the whole stream comes to."""
    items = [
        {"event": name, "data": data} if name or isinstance(data, str) else data
        for name, data in stream.events
    ]
    whole = stream.usage.total if stream.usage is not None else None
    for taken in range(1, len(items)):
        told = Told()
        observed = observe_stream(
            Source(items[:taken], "wait"), on_complete=told, expected_choices=stream.n
        )
        for _ in range(taken):
            await anext(observed)
        await observed.aclose()
        if told.only.authoritative:
            assert stream.authoritative
            assert told.only.tokens >= (whole or 0)
