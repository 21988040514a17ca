"""Choices: estimators, dialects found and named, bad arguments, and several streams or consumers at once."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from earmark.streams import Dialect, Observed, observe_stream
from earmark.usage import Usage
from tests.streams.toys import (
    DONE,
    FAILED,
    SAY,
    USAGE,
    Source,
    Told,
    ToldLater,
    Toy,
    generate,
    run,
    run_now,
    sse,
    take,
)

pytestmark = pytest.mark.anyio

# ---------------------------------------------------------------- estimating: B34, B36, C40, C44

GUESS = Usage(input_tokens=20, output_tokens=7)
PARTIAL = sse({"usage": {"in": 25}})

ESTIMATES: list[tuple[str, list[bytes], Usage | None, bool, int]] = [
    ("B34: no usage", [SAY], GUESS, True, 5),
    ("the provider's last word", [SAY, USAGE], Usage(9, 3), False, 5),
    ("C40: the reported part is larger", [PARTIAL, SAY, SAY], Usage(25, 7), True, 10),
    ("C44: an error body is no output", [FAILED], Usage(20, 0), True, 0),
    ("C44: an error after output", [SAY, FAILED], GUESS, True, 5),
    ("B36: nothing delivered", [], Usage(20, 0), True, 0),
]


@pytest.mark.parametrize(
    ("items", "usage", "estimated", "length"),
    [row[1:] for row in ESTIMATES],
    ids=[row[0] for row in ESTIMATES],
)
async def test_estimates(
    items: list[bytes], usage: Usage | None, *, estimated: bool, length: int
) -> None:
    """Asked where the last word is missing, with the length of the text, of which an error body has none."""
    asked = Told()

    def estimate(observed: Observed) -> Usage:
        asked(observed)
        return GUESS

    seen = await run(items, estimate=estimate)
    assert (seen.usage, seen.estimated, seen.text_length) == (usage, estimated, length)
    assert [one.text_length for one in asked] == ([length] if estimated else [])


async def test_an_estimator_that_has_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    """One that returns None or fails leaves what was reported."""

    def fails(_: Observed) -> Usage:
        raise KeyError

    for estimate in (fails, lambda _: None, lambda _: 7):
        seen = await run([PARTIAL], estimate=estimate)
        assert (seen.usage, seen.estimated) == (Usage(25), False)
    assert caplog.text.count("an estimator has failed") == 2


async def test_without_an_estimator_the_text_is_not_measured() -> None:
    """`text_length` is None where nobody asked for it."""
    assert (await run([SAY])).text_length is None


async def test_an_item_in_hand_counts_as_delivered() -> None:
    """B36: closed with one item taken, the estimate of the output stands."""
    told = Told()
    stream = observe_stream(Source([SAY]), on_complete=told, dialect=Toy, estimate=lambda _: GUESS)
    await anext(stream)
    await stream.aclose()
    assert told.only.usage == GUESS


# ---------------------------------------------------------------- dialects

OPENAI = [
    sse(
        {
            "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}],
            "usage": None,
        }
    ),
    sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": None}),
    sse({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}}),
    DONE,
]


@pytest.mark.parametrize(
    "before",
    [
        [],
        [sse({"type": "ping"})],
        [sse({"type": "ping"})] * 300,
        [b"event: heartbeat\ndata: ok\n\n"] * 300,
        [sse({})] * 300,
        [sse({"x": 1})] * 300,
        [sse("x" * 30_000)] * 60,
        [sse("hello")],
    ],
    ids=["", "ping", "pings", "heartbeats", "nothing", "many", "long", "text"],
)
@pytest.mark.parametrize("dialect", [None, "openai"])
async def test_a_dialect_is_found_or_named(dialect: Any, before: list[bytes]) -> None:
    """Without a name the first events that tell do, however late they come: a provider that is busy sends pings."""
    seen = await run([*before, *OPENAI], dialect)
    assert (seen.usage and seen.usage.total, seen.outcome) == (12, "end")
    assert (seen.dialect or "").startswith("openai")


@pytest.mark.parametrize(
    ("items", "outcome"),
    [
        ([sse({"x": 1})], "truncated"),
        ([sse({"x": 1}), DONE, SAY], "end"),
        ([sse({"error": {"message": "no"}})], "error"),
        ([sse({"x": 1})] * 40, "truncated"),
        ([sse("x" * 600_000)] * 2, "truncated"),
        ([], "truncated"),
        ([b": hi\n\n"], "truncated"),
    ],
)
async def test_a_stream_that_never_says_what_it_is(items: list[bytes], outcome: str) -> None:
    """It is read as the shape that most have in common: `[DONE]` ends it and an error is one."""
    seen = await run(items, None)
    assert (seen.usage, seen.outcome) == (None, outcome)


async def test_the_end_of_an_unknown_stream_is_told_before_it_is_delivered() -> None:
    """B32: `[DONE]` is understood when it comes, also where nothing before it told the dialect."""
    told = Told()
    async for item in observe_stream(generate([sse({"x": 1}), DONE]), on_complete=told):
        assert bool(told) == (item is DONE)


async def test_c38_pings_before_the_first_event_lose_no_input() -> None:
    """An input that is told once, at the start, is counted however long the queue was (C38, B33)."""
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 1000}}}
    end = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": 500},
    }
    items = [sse({"type": "ping"})] * 100 + [sse(start), sse(end), sse({"type": "message_stop"})]
    seen = await run(items, None)
    assert (seen.dialect, seen.tokens, seen.authoritative) == ("anthropic", 1500, True)


@pytest.mark.parametrize("told_first", [True, False])
async def test_what_a_stream_that_never_says_what_it_is_reports_is_read(
    *, told_first: bool
) -> None:
    """Its reports count as most streams' do, also those that came too early to be kept to the end."""
    report = sse({"usage": {"total_tokens": 12}})
    nothing = [sse({"x": 1})] * 100
    seen = await run([report, *nothing] if told_first else [*nothing, report], None)
    assert (seen.dialect, seen.tokens) == ("openai-compatible", 12)


def test_the_expected_choices_reach_the_dialect() -> None:
    """How many choices to expect is the dialect's to know."""
    made: list[Toy] = []

    def make(choices: int) -> Dialect:
        made.append(Toy(choices))
        return made[-1]

    run_now([], make, expected_choices=3)
    assert [toy.expected_choices for toy in made] == [3]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"expected_choices": 0}, ValueError, "expected_choices"),
        ({"expected_choices": True}, ValueError, "True"),
        ({"max_event": 1.5}, ValueError, "max_event"),
        ({"complete_timeout": 0}, ValueError, "complete_timeout"),
        ({"complete_timeout": float("nan")}, ValueError, "nan"),
        ({"complete_timeout": True}, ValueError, "True"),
        ({"complete_timeout": "5"}, ValueError, "'5'"),
        ({"dialect": "nobody's"}, ValueError, "openai"),
        ({"on_complete": None}, TypeError, "on_complete"),
        ({"source": [SAY]}, TypeError, "list"),
        ({"source": None}, TypeError, "async for"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], words: str) -> None:
    """Each says what was given and what would be right, and nothing is told of a stream that was never made."""
    told = Told()
    given: dict[str, Any] = {"source": Source([]), "on_complete": told, **options}
    with pytest.raises(error, match=words):
        observe_stream(given.pop("source"), **given)
    assert told == []


# ---------------------------------------------------------------- several at once


async def test_one_consumer_at_a_time() -> None:
    """A second concurrent `__anext__` is refused, and the first is not disturbed."""
    source, told = Source([], "wait"), Told()
    stream = observe_stream(source, on_complete=told, dialect=Toy)
    async with anyio.create_task_group() as group:
        group.start_soon(take, stream)
        await source.waiting.wait()
        with pytest.raises(RuntimeError, match="another task"):
            await anext(stream)
        assert told == []
        group.cancel_scope.cancel()
    assert told.only.outcome == "cancelled"


@pytest.mark.parametrize("inner_by", [Told, ToldLater])
@pytest.mark.parametrize("taken", [None, 0, 1, 3])
async def test_wrapped_twice(inner_by: type[Told], taken: int | None) -> None:
    """C41: each callback is called once, whichever way the outer one ends."""
    source, inner, outer = Source([SAY, USAGE, DONE]), inner_by(), Told()
    stream = observe_stream(
        observe_stream(source, on_complete=inner, dialect=Toy), on_complete=outer, dialect=Toy
    )
    if taken is None:
        assert [item async for item in stream] == source.items
    else:
        for _ in range(taken):
            await anext(stream)
        await stream.aclose()
    assert inner.only == outer.only
    assert inner.only.outcome == ("closed" if taken in (0, 1) else "end")
    assert source.closed == 1


async def test_wrapped_twice_and_dropped() -> None:
    """C41, C42c: each callback is called once when the outer stream is dropped."""
    source, inner, outer = Source([SAY]), Told(), Told()
    stream = observe_stream(observe_stream(source, on_complete=inner), on_complete=outer)
    del stream
    with anyio.fail_after(5):
        while not source.closed:
            await anyio.lowlevel.checkpoint()
    assert (outer.only.outcome, inner.only.items) == ("dropped", 0)
