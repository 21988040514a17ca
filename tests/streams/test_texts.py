"""How much text a model generated, of every dialect and every kind of text, and where nobody can tell."""

from __future__ import annotations

import gzip
import json
from typing import Any, Final, Literal

import pytest

from earmark.streams import Observed
from earmark.streams.detect import factory
from earmark.testing.streams.bodies import ALL
from earmark.testing.streams.bodies.others import chunk
from earmark.testing.streams.bodies.shape import Event, Stream
from earmark.usage import Usage
from tests.streams.reading import read
from tests.streams.test_dialects_fuzz import NAMES
from tests.streams.toys import DONE, run_now, sse

Kind = Literal["text", "reasoning", "arguments"]
ARGUMENTS: Final = {"q": "é", "n": [1, {}]}
JSON: Final = '{"q":"é","n":[1,{}]}'
# A kind of text that this dialect does not have.
NONE: Final = None


def delta(**said: Any) -> Event:
    """A chunk of OpenAI's shape."""
    return None, {"choices": [{"index": 0, "delta": said, "finish_reason": None}]}


def part(part: dict[str, Any]) -> Event:
    """A chunk of Gemini's."""
    return None, {"candidates": [{"content": {"parts": [part], "role": "model"}}]}


def typed(kind: str, **members: Any) -> Event:
    """An event that says its type."""
    return None, {"type": kind, **members}


def block(**said: Any) -> Event:
    """A delta of Anthropic's."""
    return typed("content_block_delta", index=0, delta={"type": "x_delta", **said})


def converse(**said: Any) -> Event:
    """A delta of Converse's."""
    return None, {"contentBlockDelta": {"contentBlockIndex": 0, "delta": said}}


def invoked(event: Event, how: str = "parsed") -> Event:
    """A native event in an envelope of InvokeModel's."""
    native = event[1]
    assert not isinstance(native, str)
    return chunk(native, how)


def chat(**said: Any) -> Event:
    """A delta of Cohere's."""
    return typed("content-delta", index=0, delta={"message": said})


def step(**said: Any) -> Event:
    """A step of an interaction."""
    return None, {"event_type": "step.delta", "index": 0, "delta": said}


def lines(**members: Any) -> Event:
    """An object of Ollama's."""
    return None, {"model": "m", "created_at": "2026-01-01", "done": False, **members}


CALL: Final = {"id": "call_1", "function": {"name": "f", "arguments": JSON}, "type": "function"}
OPENAI: Final[dict[Kind, list[Event]]] = {
    "text": [
        delta(role="assistant", content=JSON),
        delta(refusal=JSON),
        delta(content=[{"type": "text", "text": JSON}]),
        (None, {"choices": [{"index": 0, "text": JSON}]}),
        (None, {"choices": [{"delta": {"content": JSON[:4]}, "text": JSON[4:]}]}),
        (None, {"choices": [{"delta": {"content": JSON}, "message": {"content": JSON * 3}}]}),
        (None, {"choices": [{"message": {"content": JSON}, "logprobs": {"content": ["x"]}}]}),
        delta(content=JSON, annotations=[{"url_citation": {"title": "x", "content": "x" * 99}}]),
        delta(audio={"id": "x", "data": "AAAA", "transcript": JSON}),
    ],
    "reasoning": [
        delta(reasoning_content=JSON),
        delta(content=None, reasoning=JSON, reasoning_content=JSON),
        delta(content="", reasoning=JSON, reasoning_details=[{"type": "x", "text": JSON}]),
        delta(reasoning_details=[{"type": "reasoning.summary", "summary": JSON, "format": "x"}]),
        delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": JSON}]}]),
        delta(reasoning_details=[{"type": "reasoning.encrypted", "data": "AA"}], reasoning=JSON),
    ],
    "arguments": [
        delta(tool_calls=[{"index": 0, **CALL}]),
        delta(tool_calls=[{"function": {"name": "f", "arguments": ARGUMENTS}}]),
        delta(function_call={"name": "f", "arguments": JSON}),
        delta(tool_calls=[{"type": "custom", "custom": {"name": "f", "input": JSON}}]),
    ],
}
# Each event has as many characters as JSON, in this kind of text.
TABLE: dict[str, dict[Kind, list[Event] | None]] = {
    "openai": dict(OPENAI),
    "openai-compatible": dict(OPENAI),
    "openai-responses": {
        "text": [
            typed("response.output_text.delta", delta=JSON, item_id="x", logprobs=[]),
            typed("response.refusal.delta", delta=JSON),
            typed("response.audio.transcript.delta", delta=JSON),
        ],
        "reasoning": [
            typed("response.reasoning_text.delta", delta=JSON),
            typed("response.reasoning_summary_text.delta", delta=JSON),
        ],
        "arguments": [
            typed("response.function_call_arguments.delta", delta=JSON),
            typed("response.custom_tool_call_input.delta", delta=JSON),
            typed("response.code_interpreter_call_code.delta", delta=JSON),
            typed("response.mcp_call_arguments.delta", delta=JSON),
            ("response.output_text.delta", {"delta": JSON}),
        ],
    },
    "openai-assistants": {
        "text": [
            (
                None,
                {
                    "object": "thread.message.delta",
                    "id": "x",
                    "delta": {
                        "content": [
                            {"index": 0, "type": "text", "text": {"value": JSON, "annotations": []}}
                        ]
                    },
                },
            )
        ],
        "reasoning": NONE,
        "arguments": [
            (
                None,
                {
                    "object": "thread.run.step.delta",
                    "delta": {"step_details": {"type": "tool_calls", "tool_calls": [call]}},
                },
            )
            for call in (CALL, {"code_interpreter": {"input": JSON, "outputs": [{"logs": "x"}]}})
        ],
    },
    "anthropic": {
        "text": [
            block(text=JSON),
            typed("completion", completion=JSON),
            typed("message", content=[{"type": "text", "text": JSON}]),
        ],
        "reasoning": [
            block(thinking=JSON),
            typed("message", content=[{"type": "thinking", "thinking": JSON, "signature": "x"}]),
        ],
        "arguments": [
            block(partial_json=JSON),
            typed("message", content=[{"type": "tool_use", "id": "x", "input": ARGUMENTS}]),
        ],
    },
    "gemini": {
        "text": [
            part({"text": JSON}),
            (
                None,
                {"candidates": [{"content": {"parts": [{"text": JSON[:3]}, {"text": JSON[3:]}]}}]},
            ),
            (None, {"response": {"candidates": [{"content": {"parts": [{"text": JSON}]}}]}}),
        ],
        "reasoning": [part({"text": JSON, "thought": True, "thoughtSignature": "x" * 99})],
        "arguments": [
            part({"functionCall": {"id": "x", "name": "f", "args": ARGUMENTS}}),
            part({"function_call": {"name": "f", "args": ARGUMENTS}}),
            part({"executableCode": {"language": "PYTHON", "code": JSON}}),
        ],
    },
    "gemini-interactions": {
        "text": [step(type="text", text=JSON)],
        "reasoning": [step(type="thought_summary", content={"type": "text", "text": JSON})],
        "arguments": [
            step(type="function_call", name="f", arguments=ARGUMENTS),
            step(type="arguments_delta", arguments=JSON),
        ],
    },
    "bedrock": {
        "text": [
            converse(text=JSON),
            invoked(block(text=JSON), "base64"),
            invoked(delta(content=JSON), "bytes"),
            chunk({"generation": JSON}),
            chunk({"outputText": JSON, "index": 0, "inputTextTokenCount": 3}),
            (None, {"inputTextTokenCount": 3, "results": [{"outputText": JSON}]}),
            (None, {"output": {"message": {"role": "assistant", "content": [{"text": JSON}]}}}),
        ],
        "reasoning": [
            converse(reasoningContent={"text": JSON}),
            invoked(block(thinking=JSON), "bytes"),
        ],
        "arguments": [
            converse(toolUse={"input": JSON}),
            invoked(block(partial_json=JSON)),
        ],
    },
    "cohere": {
        "text": [
            chat(content={"type": "text", "text": JSON}),
            (None, {"event_type": "text-generation", "text": JSON, "is_finished": False}),
            chat(tool_plan=JSON),
        ],
        "reasoning": [chat(content={"type": "thinking", "thinking": JSON})],
        "arguments": [
            typed("tool-call-delta", delta={"message": {"tool_calls": CALL}}),
            (None, {"event_type": "tool-calls-chunk", "tool_call_delta": {"parameters": JSON}}),
        ],
    },
    "ollama": {
        "text": [lines(message={"role": "assistant", "content": JSON}), lines(response=JSON)],
        "reasoning": [lines(message={"content": "", "thinking": JSON}), lines(thinking=JSON)],
        "arguments": [
            lines(message={"tool_calls": [{"function": {"name": "f", "arguments": ARGUMENTS}}]})
        ],
    },
    "watsonx": {
        "text": [(None, {"model_id": "m", "results": [{"generated_text": JSON}]})],
        "reasoning": NONE,
        "arguments": NONE,
    },
    "replicate": {
        "text": [
            ("output", JSON),
            ("output", json.loads(JSON)),
            (None, {"id": "x", "status": "succeeded", "output": [JSON[:4], JSON[4:]]}),
        ],
        "reasoning": NONE,
        "arguments": NONE,
    },
}
CELLS: Final = [
    (name, kind, event)
    for name, row in TABLE.items()
    for kind, events in row.items()
    for event in events or ()
]


def test_the_table_has_every_dialect_and_every_kind() -> None:
    """A dialect that is added says where its text, its reasoning and its tools' arguments are."""
    assert {*TABLE} == {*NAMES}
    assert all({*row} == {"text", "reasoning", "arguments"} for row in TABLE.values())
    assert all(events is NONE or events for row in TABLE.values() for events in row.values())


@pytest.mark.parametrize(("name", "kind", "event"), CELLS)
def test_what_a_model_generated_is_measured_once(name: str, kind: Kind, event: Event) -> None:
    """B34, B62: reasoning and tool arguments are output as well; names, signatures and citations are not."""
    assert read(factory(name)(1), [event]).text_length(*event) == len(JSON), kind


NO_TEXT: list[tuple[str, Event]] = [
    ("openai", (None, "[DONE]")),
    ("openai", ("error", "out of memory")),
    ("openai", (None, {"error": {"message": "no", "content": "x"}})),
    ("openai", (None, {"choices": [], "prompt_filter_results": [{"content": "x"}]})),
    ("openai-responses", typed("response.audio.delta", delta="AAAA")),
    ("openai-responses", typed("response.output_text.done", text=JSON)),
    ("openai-responses", typed("response.completed", response={"output": [{"text": JSON}]})),
    ("openai-assistants", (None, {"object": "thread.message", "content": [{"text": JSON}]})),
    ("anthropic", typed("content_block_start", content_block={"type": "tool_use", "input": {}})),
    ("anthropic", block(citation={"cited_text": "x", "title": "x", "text": "x"})),
    ("anthropic", block(signature="x" * 99)),
    ("anthropic", typed("ping")),
    ("gemini", part({"inlineData": {"mimeType": "image/png", "data": "AAAA"}})),
    ("gemini", part({"functionCall": {"name": "f", "args": {}}})),
    ("gemini-interactions", step(type="image", data="AAAA", mime_type="image/png")),
    ("bedrock", (None, {"error": {"message": "no", "text": "x"}})),
    ("bedrock", (None, {"modelStreamErrorException": {"message": "gone"}})),
    ("cohere", (None, {"event_type": "stream-end", "response": {"text": JSON}})),
    ("replicate", ("error", "out of memory")),
    ("replicate", ("done", {})),
    ("replicate", ("logs", "x")),
]


@pytest.mark.parametrize(("name", "event"), NO_TEXT)
def test_what_was_not_generated_is_not_measured(name: str, event: Event) -> None:
    """Repeated text, encoded bytes, quotations, errors (C44) and the events round the text."""
    assert read(factory(name)(1), [event]).text_length(*event) == 0


def estimated(items: list[Any], dialect: str | None = None) -> tuple[list[int | None], Observed]:
    """What an estimator is told, and what comes of it: it says nothing where it knows nothing."""
    asked: list[int | None] = []

    def estimate(observed: Observed) -> Usage:
        asked.append(observed.text_length)
        return Usage(10, 7)

    return asked, run_now(items, dialect, estimate=estimate)


class Broken:
    """An object of an SDK's that cannot be dumped."""

    def model_dump(self, **_: object) -> object:
        raise RuntimeError


SAID: Final = sse({"choices": [{"index": 0, "delta": {"content": "abc"}}]})
LONG: Final = sse({"choices": [{"index": 0, "delta": {"content": "x" * 99_000}}]})
UNKNOWN: dict[str, tuple[str | None, list[Any]]] = {
    "compressed": (None, [gzip.compress(SAID)]),
    "compressed, named": ("openai", [gzip.compress(SAID)]),
    "text": (None, [sse("hello there"), sse("world")]),
    "text in a stream of chunks": (None, [SAID, sse("hello there")]),
    "text, then the end": (None, [sse("hello there"), DONE]),
    "objects of nobody": (None, [sse({"token": {"text": "hello"}})]),
    "broken": ("openai", [SAID, b'data: {"choices": [{"delta": {"content": "x"}\n\n', SAID]),
    "an item of no kind": ("openai", [SAID, object()]),
    "an item that cannot be read": ("openai", [SAID, Broken()]),
    "a model of nobody's": ("bedrock", [{"chunk": {"outputs": [{"text": "x"}]}}]),
    "a chunk that cannot be decoded": ("bedrock", [{"chunk": {"bytes": b"\xff"}}]),
    "arguments that are no JSON": ("ollama", [lines(message={"arguments": {"a": b"x"}})[1]]),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_cannot_be_measured_is_unknown(case: str) -> None:
    """B62, C69: an estimator is told None and not 0, and what it says of the output stands."""
    dialect, items = UNKNOWN[case]
    asked, seen = estimated(items, dialect)
    assert (asked, seen.text_length) == ([None], None)
    assert seen.usage == Usage(10, 7)


def test_of_a_cut_event_it_is_unknown_and_of_its_end_it_is_not() -> None:
    """An event above the limit has lost its text; what repeats text in the end has not."""

    def measured(items: list[Any]) -> int | None:
        return run_now(items, None, max_event=5_000, estimate=lambda _: None).text_length

    assert measured([SAID, LONG]) is None
    assert measured([b"event: output\ndata: " + b"x" * 99_000 + b"\n\n"]) is None
    body = {"type": "response.completed", "response": {"output": "x" * 99_000}}
    assert measured([sse({"type": "response.output_text.delta", "delta": "abc"}), sse(body)]) == 3


@pytest.mark.parametrize("cut", range(1, len(SAID) - 2, 5))
def test_what_was_delivered_whole_is_known(cut: int) -> None:
    """A stream that breaks off within an event: nobody could read that one, so it has no text."""
    asked, seen = estimated([SAID, SAID[:cut]])
    assert (asked, seen.text_length) == ([3], 3)


@pytest.mark.parametrize("text", ['{"a', "{", "[1", '{"a": 1}', "12", "null", " x"])
def test_a_text_may_look_like_json(text: str) -> None:
    """Replicate's text is what it is, whatever it begins with."""
    body = f"event: output\ndata: {text}\n\n".encode()
    asked, seen = estimated([body, b"event: done\ndata: {}\n\n"])
    assert asked == [len(text.replace(" ", "") if text.startswith('{"a":') else text)]
    assert seen.dialect == "replicate"


def test_an_error_after_unknown_text_leaves_the_estimate() -> None:
    """C44: only where it is known that nothing came out is nothing estimated."""
    error = sse({"error": {"message": "no"}})
    assert estimated([error])[1].usage == Usage(10, 0)
    assert estimated([sse("hello"), error])[1].usage == Usage(10, 7)
    assert estimated([b"event: output\ndata: Once\n\n", b"event: error\ndata: no\n\n"])[
        1
    ].usage == (Usage(10, 7))


@pytest.mark.parametrize("stream", ALL, ids=lambda stream: stream.name)
def test_the_text_of_a_whole_stream_is_known(stream: Stream) -> None:
    """Whatever a stream holds, in its own dialect its text can be measured; also where it has to be found out."""
    items = [
        {"event": name, "data": data} if name or isinstance(data, str) else data
        for name, data in stream.events
    ]
    lengths = [
        run_now(items, dialect, expected_choices=stream.n, estimate=lambda _: None).text_length
        for dialect in (stream.dialect, None)
    ]
    assert lengths[0] is not None
    assert lengths[0] == lengths[1]
