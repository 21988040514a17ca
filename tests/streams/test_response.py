"""Whole responses: the same usage as the stream of the same exchange, by the same rules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from earmark.streams.detect import detect, factory
from earmark.streams.response import usage_from_response
from earmark.testing.streams.bodies import STREAMS
from earmark.testing.streams.bodies.chunks import counts, details
from earmark.testing.streams.bodies.gemini import tokens
from earmark.testing.streams.bodies.shape import Stream
from earmark.usage import Usage
from tests.streams.reading import read

# The whole answer to the request of each of these streams.
TWINS: dict[str, dict[str, Any]] = {
    "openai: null on every chunk, then a chunk without choices": {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}],
        "usage": counts(14, 8, **details(4, 3)),
    },
    "mistral: on the finish chunk, unasked": {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}],
        "usage": counts(26, 4, num_cached_tokens=16),
    },
    "deepseek: cache hits beside the prompt": {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}],
        "usage": counts(451, 21, prompt_cache_hit_tokens=384, prompt_cache_miss_tokens=67),
    },
    "groq: three copies of one report": {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {}, "finish_reason": "tool_calls"}],
        "usage": counts(201, 58),
        "x_groq": {"id": "r"},
    },
    "perplexity: running on every chunk, reasoning beside the completion, no [DONE]": {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {}, "finish_reason": "stop"}],
        "usage": counts(8, 3, reasoning_tokens=40),
    },
    "xai: reasoning outside the completion, inside the total": {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {}, "finish_reason": "stop"}],
        "usage": {**counts(654, 25, **details(602, 52)), "total_tokens": 731},
    },
    "vercel with gemini: reasoning outside the completion and the total": {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {}, "finish_reason": "stop"}],
        "usage": counts(57, 10, completion_tokens_details={"reasoning_tokens": 37}),
        "generationId": "gen_1",
    },
    "legacy completions with usage": {
        "object": "text_completion",
        "choices": [{"index": 0, "text": "hi", "finish_reason": "length"}],
        "usage": counts(4, 16),
    },
    "n = 2: one report for both choices": {
        "object": "chat.completion",
        "choices": [
            {"index": 0, "message": {}, "finish_reason": "length"},
            {"index": 1, "message": {}, "finish_reason": "stop"},
        ],
        "usage": counts(26, 104),
    },
    "B37: n = 2, a report for each choice": {
        "object": "chat.completion",
        "choices": [
            {"index": 0, "finish_reason": "stop", "usage": counts(10, 4, **details(8, 1))},
            {"index": 1, "finish_reason": "stop", "usage": counts(10, 6, **details(8, 2))},
        ],
    },
    "responses: completed": {
        "object": "response",
        "status": "completed",
        "error": None,
        "usage": {
            "input_tokens": 53,
            "input_tokens_details": {"cached_tokens": 32, "cache_write_tokens": 6},
            "output_tokens": 469,
            "output_tokens_details": {"reasoning_tokens": 448},
            "total_tokens": 522,
        },
    },
    "assistants: steps, and their sum on the run": {
        "object": "thread.run",
        "status": "completed",
        "usage": counts(381, 88, prompt_token_details={"cached_tokens": 0}),
    },
    "anthropic: C46, caches are apart from the input": {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn",
        "usage": {
            "input_tokens": 100,
            "cache_read_input_tokens": 8000,
            "cache_creation_input_tokens": 500,
            "output_tokens": 50,
        },
    },
    "anthropic: iterations are summed, the top level leaves them out": {
        "type": "message",
        "stop_reason": "end_turn",
        "usage": {
            "input_tokens": 181,
            "cache_read_input_tokens": 0,
            "output_tokens": 8,
            "iterations": [
                {
                    "input_tokens": 100,
                    "output_tokens": 83,
                    "cache_read_input_tokens": 55096,
                    "cache_creation_input_tokens": 2,
                },
                {"input_tokens": 181, "output_tokens": 8},
            ],
        },
    },
    "gemini: the prompt of tool use is apart from the prompt, cached content inside it": {
        "candidates": [{"content": {"parts": []}, "finishReason": "STOP"}],
        "usageMetadata": tokens(
            32, 25, 37, 4704, toolUsePromptTokenCount=4610, cachedContentTokenCount=16
        ),
    },
    "gemini: the last snapshot has no prompt: the input is unknown": {
        "candidates": [{"finishReason": "STOP"}],
        "usageMetadata": tokens(None, 23, 67),
    },
    "interactions: running counts, then the interaction's own": {
        "object": "interaction",
        "status": "completed",
        "usage": {
            "total_tokens": 182,
            "total_input_tokens": 11,
            "total_cached_tokens": 0,
            "total_output_tokens": 42,
            "total_tool_use_tokens": 3,
            "total_thought_tokens": 126,
        },
    },
    "converse: the report comes after messageStop, caches are apart from the input": {
        "output": {"message": {"role": "assistant", "content": []}},
        "stopReason": "end_turn",
        "usage": {
            "inputTokens": 13,
            "outputTokens": 82,
            "totalTokens": 135,
            "cacheReadInputTokens": 30,
            "cacheWriteInputTokens": 10,
        },
    },
    "invoke, llama: counters of its own": {
        "generation": "hi",
        "prompt_token_count": 9,
        "generation_token_count": 3,
        "stop_reason": "stop",
    },
    "cohere: what was processed, not what is billed": {
        "id": "x",
        "finish_reason": "COMPLETE",
        "message": {"role": "assistant", "content": []},
        "usage": {
            "billed_units": {"input_tokens": 65, "output_tokens": 63},
            "tokens": {"input_tokens": 508, "output_tokens": 86, "reasoning_tokens": 28},
            "cached_tokens": 144,
        },
    },
    "ollama: on the object that is done": {
        "model": "m",
        "message": {"content": "hi"},
        "done": True,
        "done_reason": "length",
        "prompt_eval_count": 17,
        "eval_count": 50,
    },
    "watsonx: the input on the first event alone": {
        "model_id": "m",
        "results": [
            {
                "generated_text": "hi",
                "input_token_count": 8,
                "generated_token_count": 11,
                "stop_reason": "eos_token",
            }
        ],
    },
}


class Model:
    """An object of an SDK: it dumps itself under the names of the wire."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = body

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return self._body


@pytest.mark.parametrize("stream", [s for s in STREAMS if s.name in TWINS], ids=lambda s: s.name)
def test_streamed_or_whole_the_usage_is_the_same(stream: Stream) -> None:
    """B39: whichever way the answer came, in whatever form it is handed over."""
    body = TWINS[stream.name]
    text = json.dumps(body)
    for form in (
        body,
        text,
        text.encode(),
        bytearray(text.encode()),
        [body],
        Model(body),
        [Model(body)],
    ):
        assert usage_from_response(form) == stream.usage
    assert usage_from_response(body, dialect=stream.dialect) == stream.usage


@pytest.mark.parametrize("name", TWINS)
def test_a_whole_response_tells_its_dialect(name: str) -> None:
    """Finding out works on whole bodies as it does on the first event of a stream."""
    (stream,) = (stream for stream in STREAMS if stream.name == name)
    made = detect(None, TWINS[name])
    assert made is not None
    assert made(1).name == stream.dialect


@pytest.mark.parametrize("name", TWINS)
def test_a_whole_response_is_final(name: str) -> None:
    """B38 holds for whole bodies too: the one report is the last word."""
    (stream,) = (stream for stream in STREAMS if stream.name == name)
    dialect = read(factory(stream.dialect)(stream.n), [(None, TWINS[name])])
    assert dialect.final(complete=True)
    assert dialect.finished


OTHERS: dict[str, tuple[Any, Usage | None]] = {
    "embeddings: nothing is generated": (
        {"object": "list", "data": [{}], "usage": {"prompt_tokens": 8, "total_tokens": 8}},
        Usage(8, 0, reported_total=8),
    ),
    "images": (
        {
            "created": 1,
            "data": [],
            "usage": {"input_tokens": 5, "output_tokens": 90, "total_tokens": 95},
        },
        Usage(5, 90, reported_total=95),
    ),
    "a prediction of Replicate": (
        {"status": "succeeded", "metrics": {"input_token_count": 4, "output_token_count": 6}},
        Usage(4, 6, 0, 0),
    ),
    "cohere v1": (
        {"text": "hi", "meta": {"billed_units": {"input_tokens": 7, "output_tokens": 4}}},
        None,
    ),
    "titan": (
        {
            "inputTextTokenCount": 5,
            "results": [{"tokenCount": 7, "outputText": "hi", "completionReason": "FINISH"}],
        },
        Usage(5, 7, 0, 0),
    ),
    "a JSON array of chunks, read to its end": (
        [
            {"candidates": [{}], "usageMetadata": tokens(4, 6, total=10)},
            {"candidates": [{"finishReason": "STOP"}], "usageMetadata": tokens(4, 9, total=13)},
        ],
        Usage(4, 9, reported_total=13),
    ),
    "no usage": ({"object": "chat.completion", "choices": []}, None),
    "usage null": ({"object": "chat.completion", "choices": [], "usage": None}, None),
    "an error": ({"error": {"message": "no such model"}}, None),
    "anthropic's error": ({"type": "error", "error": {"type": "overloaded_error"}}, None),
    "an empty object": ({}, None),
    "an empty list": ([], None),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_bodies(case: str) -> None:
    """B62: what nobody reports is None, never a 0."""
    body, usage = OTHERS[case]
    assert usage_from_response(body) == usage
    assert usage_from_response(json.dumps(body)) == usage


def test_a_body_that_does_not_tell_can_be_named() -> None:
    """Cohere's first API has nothing of its own in a whole body, so its name says it."""
    body, _ = OTHERS["cohere v1"]
    assert usage_from_response(body, dialect="cohere") == Usage(7, 4)


BARE: dict[str, tuple[dict[str, Any], Usage]] = {
    "openai": (counts(9, 4, **details(3, 1)), Usage(9, 4, 3, None, 1, 13)),
    "responses": (
        {"input_tokens": 9, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 3}},
        Usage(9, 4, 3),
    ),
    "anthropic": (
        {"input_tokens": 9, "output_tokens": 4, "cache_read_input_tokens": 30},
        Usage(39, 4, 30),
    ),
    "gemini": (tokens(9, 4, 2, 15), Usage(9, 6, None, None, 2, 15)),
    "gemini's SDK": (
        {"prompt_token_count": 9, "candidates_token_count": 4},
        Usage(9, 4),
    ),
    "bedrock": (
        {"inputTokens": 9, "outputTokens": 4, "cacheReadInputTokens": 1},
        Usage(10, 4, 1),
    ),
    "cohere": ({"billed_units": {"input_tokens": 2, "output_tokens": 3}}, Usage(2, 3)),
    "interactions": ({"total_input_tokens": 9, "total_output_tokens": 4}, Usage(9, 4)),
}


@pytest.mark.parametrize("case", BARE)
def test_the_usage_object_alone_is_enough(case: str) -> None:
    """R6: who has only `response.usage` in hand comes here as well."""
    body, usage = BARE[case]
    assert usage_from_response(body) == usage
    assert usage_from_response(Model(body)) == usage
    assert usage_from_response(json.dumps(body)) == usage


@pytest.mark.parametrize(
    "body", [b"", b"not json", "data: {}\n\n", b"\xff\xfe", "[" * 100_000, "7", "null", '"x"']
)
def test_what_is_no_json_object_has_no_usage(body: bytes | str) -> None:
    """A gateway may get anything with a 200: it is unknown what that used, and nothing raises."""
    assert usage_from_response(body) is None


@pytest.mark.parametrize("body", [None, 7, object(), 1.5])
def test_what_is_no_response_is_an_error(body: object) -> None:
    """An object of a wrong type altogether is the caller's mistake."""
    with pytest.raises(TypeError, match="response"):
        usage_from_response(body)


def test_an_unknown_dialect_is_an_error() -> None:
    """A misspelt name is the caller's mistake too."""
    with pytest.raises(ValueError, match="no dialect"):
        usage_from_response({}, dialect="opnai")
