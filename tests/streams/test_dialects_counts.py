"""What is no count is not counted, what is unknown is not zero, and what is too much does not overflow."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from earmark.amounts import MAX_AMOUNT
from earmark.streams.counts import Counts, says_output, whole
from earmark.streams.detect import factory
from earmark.streams.dialect import Dialect
from earmark.testing.streams.bodies.anthropic import delta, start
from earmark.testing.streams.bodies.chunks import bare, chat, counts
from earmark.testing.streams.bodies.gemini import gemini
from earmark.testing.streams.bodies.shape import DONE, Event
from earmark.usage import Usage
from tests.streams import reading

NO_COUNTS = [
    -1,
    1.0,
    12.5,
    math.nan,
    math.inf,
    True,
    False,
    "7",
    "",
    [],
    [7],
    {},
    2**53,
    10**30,
    10**5000,
]
IDS = [f"{type(value).__name__} {index}" for index, value in enumerate(NO_COUNTS)]


def read(name: str, *events: Event) -> Dialect:
    """The dialect after these events."""
    return reading.read(factory(name)(1), events)


@pytest.mark.parametrize("value", NO_COUNTS, ids=IDS)
def test_a_hostile_count_is_as_if_it_had_not_been_sent(value: Any) -> None:
    """Negative, float, bool, text, NaN, 10**30: the field is unknown, and the others still count."""
    usage = {"prompt_tokens": value, "completion_tokens": 7}
    assert read("openai", chat(finish="stop", usage=usage)).usage == Usage(None, 7)
    event = start({"input_tokens": 5, "cache_read_input_tokens": value, "output_tokens": 1})
    assert read("anthropic", (None, event)).usage == Usage(5, 1)
    snapshot = {"promptTokenCount": 5, "candidatesTokenCount": value, "totalTokenCount": 9}
    assert read("gemini", gemini(snapshot, "STOP")).usage == Usage(5, reported_total=9)


@pytest.mark.parametrize("value", NO_COUNTS, ids=IDS)
def test_a_hostile_count_never_replaces_one_that_was_good(value: Any) -> None:
    """Anthropic's fields overwrite each other: what is no count overwrites nothing."""
    events = (
        start({"input_tokens": 25, "output_tokens": 1}),
        delta({"input_tokens": value, "output_tokens": 9}),
    )
    assert read("anthropic", *((None, event) for event in events)).usage == Usage(25, 9)


def test_one_warning_a_stream(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of hostile counts are one line in the log, and a stream without any is none."""
    with caplog.at_level(logging.WARNING, logger="earmark.streams"):
        read(
            "openai",
            *(chat(usage={"prompt_tokens": -1, "completion_tokens": "x"}) for _ in range(50)),
        )
        assert len(caplog.records) == 1
        assert "openai" in caplog.text
        assert "prompt_tokens" in caplog.text
        read("openai", chat(finish="stop", usage=counts(1, 2)), bare(None), DONE)
        assert len(caplog.records) == 1
        read("openai", chat(usage={"prompt_tokens": 10**5000}))
        assert len(caplog.records) == 2


def test_a_hostile_count_falls_back_to_another_name_for_it() -> None:
    """The first name under which there is a count is read."""
    counts = Counts("x")
    assert counts.read({"a": -1, "b": 4}, "a", "b") == 4
    assert counts.read({"a": None, "b": 0}, "a", "b") == 0
    assert counts.read({}, "a", "b") is None


@pytest.mark.parametrize(
    ("base", "parts", "sum_of_all"),
    [
        (None, (5, 6), None),
        (0, (), 0),
        (4, (None, 3), 7),
        (MAX_AMOUNT, (1,), MAX_AMOUNT),
        (MAX_AMOUNT - 1, (MAX_AMOUNT, MAX_AMOUNT), MAX_AMOUNT),
    ],
)
def test_a_whole_with_parts(
    base: int | None, parts: tuple[int | None, ...], sum_of_all: int | None
) -> None:
    """C35: an unknown whole stays unknown, an unknown part adds nothing; R12: a sum saturates."""
    assert whole(base, *parts) == sum_of_all


@pytest.mark.parametrize(
    ("name", "event"),
    [
        (
            "anthropic",
            (
                None,
                start(
                    dict.fromkeys(
                        ("input_tokens", "cache_read_input_tokens", "output_tokens"), MAX_AMOUNT
                    )
                ),
            ),
        ),
        ("gemini", gemini({"promptTokenCount": MAX_AMOUNT, "toolUsePromptTokenCount": MAX_AMOUNT})),
        (
            "openai",
            chat(
                usage=counts(
                    MAX_AMOUNT, 5, completion_tokens_details={"reasoning_tokens": MAX_AMOUNT}
                )
            ),
        ),
        (
            "bedrock",
            (
                None,
                {
                    "metadata": {
                        "usage": {"inputTokens": MAX_AMOUNT, "cacheReadInputTokens": MAX_AMOUNT}
                    }
                },
            ),
        ),
    ],
)
def test_counts_at_the_bound_do_not_overflow(name: str, event: Event) -> None:
    """R12: what adds up to more than an amount can be is the largest amount, and nothing raises."""
    usage = read(name, event).usage
    assert usage is not None
    assert MAX_AMOUNT in (usage.input_tokens, usage.output_tokens)


@pytest.mark.parametrize(
    ("usage", "says"),
    [
        (Usage(), False),
        (Usage(10), False),
        (Usage(10, reported_total=10), False),
        (Usage(10, 0), True),
        (Usage(None, 5), True),
        (Usage(10, reported_total=11), True),
        (Usage(reported_total=11), True),
        (Usage(10, reasoning_tokens=3), True),
        (Usage(10, cached_input_tokens=4), False),
    ],
)
def test_a_report_about_the_input_alone(usage: Usage, *, says: bool) -> None:
    """B38: what a report must have in it to be the last word."""
    assert says_output(usage) is says


REASONING = {
    "inside, the total has it once": (counts(10, 30), 20, 30),
    "outside, the total has it too": ({**counts(10, 30), "total_tokens": 60}, 20, 50),
    "larger than the completion, and no total": (
        {"prompt_tokens": 1, "completion_tokens": 5},
        9,
        14,
    ),
    "as much as the completion, and no total": (
        {"prompt_tokens": 1, "completion_tokens": 9},
        9,
        9,
    ),
    "smaller than the completion, and no total": (
        {"prompt_tokens": 1, "completion_tokens": 9},
        5,
        9,
    ),
    "larger, but the total is that of the others": (counts(43, 10), 11, 10),
    "larger, and the total is of something else": ({**counts(43, 10), "total_tokens": 99}, 11, 21),
    "smaller, and the total is of something else": ({**counts(43, 10), "total_tokens": 99}, 9, 10),
    "none": (counts(43, 10), 0, 10),
}


@pytest.mark.parametrize("case", REASONING)
def test_reasoning_inside_or_outside_the_completion(case: str) -> None:
    """The total that a provider reports tells whether its completion includes the reasoning."""
    report, reasoning, output = REASONING[case]
    report = {**report, "completion_tokens_details": {"reasoning_tokens": reasoning}}
    usage = read("openai", chat(finish="stop", usage=report)).usage
    assert usage is not None
    assert (usage.output_tokens, usage.reasoning_tokens) == (output, reasoning)


def test_more_cached_than_read_is_kept_as_reported() -> None:
    """C46: some providers report it; only what is derived from it is clamped."""
    usage = read(
        "openai", chat(usage=counts(7, 5, prompt_tokens_details={"cached_tokens": 161}))
    ).usage
    assert usage == Usage(7, 5, 161, reported_total=12)
    assert usage is not None
    assert usage.uncached_input_tokens == 0


def test_the_two_ways_to_report_caches_come_to_the_same() -> None:
    """C46: Anthropic's caches are apart from the input, OpenAI's inside it."""
    apart = {
        "input_tokens": 100,
        "cache_read_input_tokens": 8000,
        "cache_creation_input_tokens": 500,
        "output_tokens": 50,
    }
    inside = counts(
        8600, 50, prompt_tokens_details={"cached_tokens": 8000, "cache_write_tokens": 500}
    )
    one = read("anthropic", (None, start(apart))).usage
    other = read("openai", chat(finish="stop", usage=inside)).usage
    assert one is not None
    assert other is not None
    assert one.determined() == other.determined()
    assert (one.uncached_input_tokens, one.total) == (600, 8650)


@pytest.mark.parametrize(
    "iterations",
    [
        [],
        None,
        "x",
        [{"input_tokens": 100}],
        [{"input_tokens": 100, "output_tokens": -1}],
        [{"input_tokens": 1, "output_tokens": 2}, None],
    ],
)
def test_iterations_that_do_not_tell_leave_the_top_level(iterations: Any) -> None:
    """A sum with an unknown part would pass for less than was used."""
    event = delta({"input_tokens": 181, "output_tokens": 8, "iterations": iterations})
    assert read("anthropic", (None, event)).usage == Usage(181, 8)
