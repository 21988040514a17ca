"""What providers send once in a while, and what is made of it: fields in odd forms, reports in odd places."""

from __future__ import annotations

import json
from typing import Any

import pytest

from earmark.streams.anthropic import Anthropic
from earmark.usage import Usage
from tests.streams.toys import run_now, sse

USAGE = {"prompt_tokens": 9, "completion_tokens": 3}
ITERATION = {"input_tokens": 5, "output_tokens": 7}


@pytest.mark.parametrize("index", [None, "0", "a", 0.0, [], False, 0], ids=repr)
@pytest.mark.parametrize("dialect", [None, "openai", "gemini"])
def test_an_index_that_is_none_is_its_place(index: Any, dialect: str | None) -> None:
    """A choice says which it is with an integer; whatever else it says counts as if it said nothing."""
    if dialect == "gemini":
        choice = {"index": index, "finishReason": "STOP"}
        report = {"promptTokenCount": 9, "candidatesTokenCount": 3}
        payload = {"candidates": [choice], "usageMetadata": report}
    else:
        choice = {"index": index, "delta": {}, "finish_reason": "stop"}
        payload = {"choices": [choice], "usage": USAGE}
    seen = run_now([sse(payload)], dialect)
    assert (seen.usage, seen.authoritative, seen.outcome) == (Usage(9, 3), True, "end")


def test_the_places_of_two_choices_are_two() -> None:
    """Each of a chunk's choices without an index is one of its own."""
    choices: list[Any] = [{"index": None, "delta": {}, "finish_reason": "stop"} for _ in range(2)]
    seen = run_now([sse({"choices": choices, "usage": USAGE})], "openai", expected_choices=2)
    assert (seen.usage, seen.authoritative) == (Usage(9, 3), True)


def delta(usage: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    """An event of Anthropic's with a report."""
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


@pytest.mark.parametrize(
    ("later", "usage"),
    [
        ({"input_tokens": 50, "output_tokens": 70}, Usage(50, 70)),
        ({"input_tokens": 50}, Usage(50, 7)),
        ({"input_tokens": 2, "output_tokens": 3}, Usage(5, 7)),
        ({}, Usage(5, 7)),
        ({"output_tokens": 70, "iterations": [ITERATION, ITERATION]}, Usage(10, 14)),
    ],
    ids=["more", "more input", "less", "nothing", "iterations"],
)
def test_iterations_of_an_earlier_report_give_way_to_more(
    later: dict[str, Any], usage: Usage
) -> None:
    """B65: they count beside the report that they came with, and beside later ones that come to less."""
    dialect = Anthropic()
    dialect.observe(None, delta({"output_tokens": 7, "iterations": [ITERATION]}))
    dialect.observe(None, delta(later, "end_turn"))
    found = dialect.usage
    assert found is not None
    assert (found.input_tokens, found.output_tokens) == (usage.input_tokens, usage.output_tokens)
    assert dialect.final(complete=True)


LARGE = "A" * 200_000
OVERSIZE: list[tuple[str, dict[str, Any]]] = [
    (
        "gemini",
        {
            "candidates": [
                {
                    "content": {"parts": [{"inlineData": {"data": LARGE}}]},
                    "finishReason": "STOP",
                    "index": 0,
                }
            ],
            "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 3},
        },
    ),
    (
        "openai",
        {
            "object": "chat.completion",
            "choices": [
                {"index": 0, "message": {"content": LARGE}, "finish_reason": "stop"},
                {"index": 1, "message": {"content": "b"}, "finish_reason": "length"},
            ],
            "usage": USAGE,
        },
    ),
    (
        "anthropic",
        {
            "type": "message",
            "content": [{"type": "text", "text": LARGE}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 9, "output_tokens": 3},
        },
    ),
]


@pytest.mark.parametrize(("dialect", "payload"), OVERSIZE, ids=[name for name, _ in OVERSIZE])
@pytest.mark.parametrize("framing", ["sse", "json"])
@pytest.mark.parametrize("size", [1000, 10**6])
def test_an_event_above_the_limit_has_its_reason_of_finishing(
    dialect: str, payload: dict[str, Any], framing: str, size: int
) -> None:
    """Its end is kept, and there the reason stands as well as the usage: an image in base64 hides neither."""
    body = sse(payload) if framing == "sse" else json.dumps(payload).encode()
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    n = len(payload.get("choices", [None]))
    seen = run_now(pieces, dialect, max_event=50_000, expected_choices=n)
    assert seen.usage is not None
    assert (seen.usage.input_tokens, seen.usage.output_tokens) == (9, 3)
    assert (seen.authoritative, seen.outcome) == (True, "end")
