"""An event above the limit, of which two ends are kept, is put together again as far as they go."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earmark.streams.kept import HEAD, TAIL, Kept
from earmark.streams.salvage import CUT, salvage
from earmark.testing.streams.bodies.others import metrics
from earmark.usage import Usage
from tests.scale import examples
from tests.streams.toys import run_now, sse

LONG: Final = 'x\\"{}[],:' * 12_000
USAGE: Final = {"input_tokens": 5, "output_tokens": 6}
COUNTS: Final = {"prompt_tokens": 5, "completion_tokens": 6}
OPENAI: Final = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}


def finishing(**more: Any) -> dict[str, Any]:
    """A choice of which the text is what is long."""
    return {"index": 0, "delta": {"content": LONG}, "finish_reason": "stop", **more}


# Each dialect's last event, long in its middle: what comes before it, the event, what was used, an error.
LAST: dict[str, tuple[list[Any], Any, Usage, str]] = {
    "openai-compatible: above": ([], {"choices": [finishing()], "usage": COUNTS}, Usage(5, 6), ""),
    "openai-compatible: within the choice": (
        [],
        {"choices": [finishing(usage=COUNTS)]},
        Usage(5, 6),
        "",
    ),
    "openai-compatible: x_groq": (
        [],
        {"choices": [finishing()], "x_groq": {"usage": COUNTS}},
        Usage(5, 6),
        "",
    ),
    "openai-responses": (
        [],
        {
            "type": "response.completed",
            "response": {"status": "completed", "output": [{"text": LONG}], "usage": USAGE},
        },
        Usage(5, 6),
        "",
    ),
    "openai-responses: in the beginning": (
        [],
        {"type": "response.completed", "response": {"usage": USAGE, "output": LONG}},
        Usage(5, 6),
        "",
    ),
    "openai-assistants": (
        [],
        {"object": "thread.run", "status": "completed", "instructions": LONG, "usage": COUNTS},
        Usage(5, 6),
        "",
    ),
    "anthropic": (
        [],
        {"type": "message", "content": [{"text": LONG}], "stop_reason": "end", "usage": USAGE},
        Usage(5, 6),
        "",
    ),
    "gemini": (
        [],
        {
            "candidates": [
                {"content": {"parts": [{"inlineData": {"data": LONG}}]}, "finishReason": "STOP"}
            ],
            "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 6},
        },
        Usage(5, 6),
        "",
    ),
    "gemini-interactions": (
        [{"event_type": "interaction.created", "interaction": {"status": "in_progress"}}],
        {
            "event_type": "interaction.completed",
            "interaction": {
                "status": "completed",
                "outputs": [{"type": "image", "data": LONG}],
                "usage": {"total_input_tokens": 5, "total_output_tokens": 6},
            },
        },
        Usage(5, 6),
        "",
    ),
    "bedrock": (
        [{"messageStart": {}}],
        {"messageStop": {"x": LONG}, "metadata": {"usage": {"inputTokens": 5, "outputTokens": 6}}},
        Usage(5, 6),
        "",
    ),
    "bedrock: metrics": (
        [],
        {"chunk": {"generation": LONG, "stop_reason": "stop", **metrics(5, 6)}},
        Usage(5, 6),
        "",
    ),
    "cohere": (
        [],
        {"type": "message-end", "delta": {"x": LONG, "usage": {"tokens": USAGE}}},
        Usage(5, 6),
        "",
    ),
    "ollama": (
        [{"model": "m", "response": "a", "done": False}],
        {
            "model": "m",
            "context": list(range(20_000)),
            "done": True,
            "prompt_eval_count": 5,
            "eval_count": 6,
        },
        Usage(5, 6, 0, 0),
        "",
    ),
    "watsonx": (
        [],
        {
            "results": [
                {
                    "generated_text": LONG,
                    "input_token_count": 5,
                    "generated_token_count": 6,
                    "stop_reason": "eos_token",
                }
            ]
        },
        Usage(5, 6, 0, 0),
        "",
    ),
    "openai-responses: failed, no usage": (
        [],
        {
            "type": "response.failed",
            "response": {
                "status": "failed",
                "output": LONG,
                "error": {"message": "quota"},
                "usage": None,
            },
        },
        Usage(),
        "quota",
    ),
    "openai-responses: the usage in the middle": (
        [],
        {
            "type": "response.completed",
            "response": {"output": LONG, "usage": USAGE, "x": LONG},
        },
        Usage(),
        "",
    ),
}


@pytest.mark.parametrize("case", LAST)
@pytest.mark.parametrize("indent", [None, 1])
def test_the_end_of_a_too_long_event_is_read_in_every_dialect(
    case: str, indent: int | None
) -> None:
    """Parts 1 and 4 of streams: what ends the stream and what it used are told as of a short event."""
    before, last, usage, error = LAST[case]
    raw = "".join(f"data: {line}\n" for line in json.dumps(last, indent=indent).split("\n"))
    seen = run_now([*map(sse, before), raw.encode() + b"\n"], None, max_event=5_000)
    told = Usage() if seen.usage is None else seen.usage
    assert (told, seen.outcome) == (usage, "error" if error else "end")
    assert seen.error == (error or None)
    assert seen.authoritative is (usage != Usage())
    assert seen.dialect == case.partition(":")[0]


def test_every_dialect_with_reports_has_a_row() -> None:
    """A dialect that is added is added here: one that never reports has nothing to salvage."""
    from tests.streams.test_dialects_fuzz import NAMES

    rows = {case.partition(":")[0] for case in LAST}
    assert rows == {*NAMES} - {"openai", "replicate"}


ROWS: list[tuple[str, str, str, Any]] = [
    ("the middle of a text", '{"a": "x', 'y", "b": 1}', {"a": CUT, "b": 1}),
    ("a name that was cut", '{"a": 1, "b', '": 2, "c": 3}', {"a": 1, "c": 3}),
    ("a value that was cut", '{"a": 1, "b": 12', '34, "c": 3}', {"a": 1, "b": CUT, "c": 3}),
    ("a text is no structure", '{"a": "', r'}]\"b\": 2, ", "c": 3}', {"a": CUT, "c": 3}),
    ("half an escape", '{"a": "\\', '", "b": 2", "c": 3}', {"a": CUT, "c": 3}),
    ("an end that is no JSON", '{"a": "', 'x", "b": 1, x}', {"a": CUT}),
    ("a deeper one", '{"a": {"b": [{"c": "', '", "d": 1}], "e": 2}}', None),
    ("another kind", '{"a": [1, ', '2, "b": 3}, "c": 4}', {"a": [1], "c": 4}),
    ("two names twice", '{"a": 1, "b": [], "a": {"c": {"', '"}}, "d": 3}', {"b": [], "d": 3}),
    ("a name twice", '{"a": 1, "b": 2, "a": {"c": "', '"}, "d": 3}', {"b": 2, "d": 3}),
]


@pytest.mark.parametrize(
    ("head", "tail", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_two_ends_are_put_together(head: str, tail: str, expected: Any) -> None:
    """What an end has goes back into the container that was open at that depth."""
    payload = dict(salvage(head.encode(), tail.encode()) or {})
    if expected is None:
        assert payload["a"]["b"][0] == {"": CUT, "c": CUT, "d": 1}
        assert payload["a"]["e"] == 2
        return
    assert payload.pop("") is CUT
    if isinstance(payload.get("a"), dict):
        del payload["a"]
    assert payload == expected


@pytest.mark.parametrize("head", ["plain text", "[1, 2, ", "", "12"])
def test_what_is_no_object_is_nothing(head: str) -> None:
    """Only an object is an event."""
    assert salvage(head.encode(), b'", "a": 1}') is None


TEXTS = st.text('\\"{}[],:x é', max_size=60)


@settings(max_examples=examples(300))
@given(TEXTS, TEXTS, st.integers(25, 400), st.integers(1, 400))
def test_wherever_it_is_cut_nothing_is_made_up(one: str, two: str, start: int, end: int) -> None:
    """Whatever the texts hold and wherever the ends begin: what is salvaged was there."""
    event = {"type": "a", "r": {"s": one, "o": [{"t": two}], "k": two, "usage": {"n": 5}}, "z": 1}
    body = json.dumps(event).encode()
    end = min(end, max(len(body) - start, 1))
    payload = salvage(body[:start], body[-end:])
    assert payload is not None
    assert payload["type"] == "a"
    if end >= len(', "z": 1}'):
        assert payload["z"] == 1
    if end >= len(', "usage": {"n": 5}}, "z": 1}'):
        assert payload["r"]["usage"] == {"n": 5}
    _check_part(payload, event)


def _check_part(part: Any, whole: Any) -> None:
    if part is CUT:
        return
    if isinstance(part, dict):
        for name, value in part.items():
            if name:
                assert name in whole
                _check_part(value, whole[name])
            else:
                assert value is CUT
    elif isinstance(part, list):
        assert len(part) <= len(whole)
    else:
        assert part == whole


def test_what_is_kept_are_the_first_4_and_the_last_64_kib() -> None:
    """Part 1 of streams: the two ends do not overlap, however short the middle is."""
    body = bytes(range(256)) * 600
    for length in (HEAD + 1, HEAD + TAIL - 1, HEAD + TAIL, HEAD + TAIL + 1, len(body)):
        for size in (1000, length):
            kept = Kept(HEAD)
            for at in range(0, length, size):
                kept.add(body[at : min(at + size, length)])
            name, head, tail = kept.event("x")
            assert (name, head) == ("x", body[: 4 * 1024])
            assert tail == body[max(4 * 1024, length - 64 * 1024) : length]
