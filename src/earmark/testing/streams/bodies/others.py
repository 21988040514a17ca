"""Bedrock, Cohere, Ollama, watsonx and Replicate."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from earmark.testing.streams.bodies.anthropic import STOP, TEXT, delta, start
from earmark.testing.streams.bodies.shape import Event, Stream, ending, named, unnamed
from earmark.usage import Usage

_CONVERSE_TEXT: Final = {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "hi"}}}


def chunk(native: Mapping[str, Any], how: str = "parsed") -> Event:
    """A model's event as InvokeModel sends it."""
    raw = json.dumps(native).encode()
    if how == "bytes":
        return None, {"chunk": {"bytes": raw}}
    if how == "base64":
        return None, {"chunk": {"bytes": base64.b64encode(raw).decode()}}
    return None, {"chunk": native}


def metrics(read: int, made: int, **more: int) -> dict[str, Any]:
    """What Bedrock adds to the last native event."""
    return {
        "amazon-bedrock-invocationMetrics": {
            "inputTokenCount": read,
            "outputTokenCount": made,
            **more,
        }
    }


_BEDROCK: Final = (
    Stream(
        "converse: the report comes after messageStop, caches are apart from the input",
        "bedrock",
        unnamed(
            {"messageStart": {"role": "assistant"}},
            _CONVERSE_TEXT,
            {"messageStop": {"stopReason": "end_turn"}},
            {
                "metadata": {
                    "usage": {
                        "inputTokens": 13,
                        "outputTokens": 82,
                        "totalTokens": 135,
                        "cacheReadInputTokens": 30,
                        "cacheWriteInputTokens": 10,
                    }
                }
            },
        ),
        Usage(53, 82, 30, 10, None, 135),
        reasons={0: "end_turn"},
    ),
    Stream(
        "invoke, claude: the native report before the metrics, never both",
        "bedrock",
        (
            chunk(start({"input_tokens": 392, "output_tokens": 8})),
            chunk(TEXT),
            chunk(delta({"output_tokens": 133}, "tool_use")),
            chunk({**STOP, **metrics(392, 97)}),
        ),
        Usage(392, 133),
        reasons={0: "tool_use"},
    ),
    Stream(
        "invoke, claude: the metrics where the native events have no final report",
        "bedrock",
        (
            chunk(start({"input_tokens": 392, "output_tokens": 8}), "base64"),
            chunk(TEXT, "base64"),
            chunk(
                {
                    **STOP,
                    **metrics(392, 97, cacheReadInputTokenCount=5, cacheWriteInputTokenCount=0),
                },
                "base64",
            ),
        ),
        Usage(397, 97, 5, 0),
        reasons={},
    ),
    Stream(
        "invoke, nova: events of Converse",
        "bedrock",
        (
            chunk({"messageStart": {"role": "assistant"}}, "bytes"),
            chunk(_CONVERSE_TEXT, "bytes"),
            chunk({"messageStop": {"stopReason": "max_tokens"}}, "bytes"),
            chunk(
                {
                    "metadata": {
                        "usage": {
                            "inputTokens": 5,
                            "outputTokens": 10,
                            "cacheReadInputTokenCount": 0,
                            "cacheWriteInputTokenCount": 0,
                        }
                    },
                    **metrics(5, 10),
                },
                "bytes",
            ),
        ),
        Usage(5, 10, 0, 0),
        reasons={0: "max_tokens"},
    ),
    Stream(
        "invoke, llama: counters of its own",
        "bedrock",
        (
            chunk({"generation": "h", "prompt_token_count": 9, "generation_token_count": 1}),
            chunk({"generation": "i", "prompt_token_count": None, "generation_token_count": 2}),
            chunk(
                {
                    "generation": "",
                    "generation_token_count": 3,
                    "stop_reason": "stop",
                    **metrics(9, 3),
                }
            ),
        ),
        Usage(9, 3, 0, 0),
    ),
)

_OTHERS: Final = (
    Stream(
        "cohere: what was processed, not what is billed",
        "cohere",
        named(
            {"type": "message-start", "id": "x", "delta": {"message": {"role": "assistant"}}},
            {"type": "content-delta", "delta": {"message": {"content": {"text": "hi"}}}},
            {
                "type": "message-end",
                "delta": {
                    "finish_reason": "COMPLETE",
                    "usage": {
                        "billed_units": {"input_tokens": 65, "output_tokens": 63},
                        "tokens": {
                            "input_tokens": 508,
                            "output_tokens": 86,
                            "reasoning_tokens": 28,
                        },
                        "cached_tokens": 144,
                    },
                },
            },
        ),
        Usage(508, 86, 144, None, 28),
        reasons={0: "COMPLETE"},
    ),
    Stream(
        "cohere v1: only billed units",
        "cohere",
        unnamed(
            {"event_type": "stream-start", "is_finished": False},
            {"event_type": "text-generation", "text": "hi", "is_finished": False},
            {
                "event_type": "stream-end",
                "is_finished": True,
                "finish_reason": "COMPLETE",
                "response": {"meta": {"billed_units": {"input_tokens": 7, "output_tokens": 4}}},
            },
        ),
        Usage(7, 4),
        reasons={0: "COMPLETE"},
    ),
    Stream(
        "ollama: on the object that is done",
        "ollama",
        unnamed(
            {"model": "m", "message": {"role": "assistant", "content": "hi"}, "done": False},
            {
                "model": "m",
                "message": {"content": ""},
                "done": True,
                "done_reason": "length",
                "prompt_eval_count": 17,
                "eval_count": 50,
            },
        ),
        Usage(17, 50, 0, 0),
        reasons={0: "length"},
    ),
    Stream(
        "ollama: without a count of the prompt, the input is unknown",
        "ollama",
        unnamed(
            {"model": "m", "response": "hi", "done": False},
            {"model": "m", "response": "", "done": True, "eval_count": 50},
        ),
        Usage(None, 50, 0, 0),
    ),
    Stream(
        "watsonx: the input on the first event alone",
        "watsonx",
        tuple(
            ("message", {"model_id": "m", "results": [{"generated_text": "hi", **result}]})
            for result in (
                {
                    "input_token_count": 8,
                    "generated_token_count": 0,
                    "stop_reason": "not_finished",
                },
                {
                    "input_token_count": 0,
                    "generated_token_count": 10,
                    "stop_reason": "not_finished",
                },
                {"input_token_count": 0, "generated_token_count": 11, "stop_reason": "eos_token"},
            )
        ),
        Usage(8, 11, 0, 0),
        reasons={0: "eos_token"},
    ),
)

STREAMS: Final = (*_BEDROCK, *_OTHERS)
ENDINGS: Final = (
    ending(
        "converse: stopped, and no metadata",
        "bedrock",
        unnamed(_CONVERSE_TEXT, {"messageStop": {"stopReason": "end_turn"}}),
        outcome="end",
        reasons={0: "end_turn"},
    ),
    ending("converse: cut in the text", "bedrock", unnamed(_CONVERSE_TEXT)),
    ending(
        "converse: an exception in the stream",
        "bedrock",
        unnamed(_CONVERSE_TEXT, {"modelStreamErrorException": {"message": "gone"}}),
        outcome="error",
    ),
    ending(
        "invoke: cut before the last event",
        "bedrock",
        (chunk(start({"input_tokens": 392, "output_tokens": 8})), chunk(TEXT)),
        Usage(392, 8),
    ),
    ending(
        "cohere: finished with an error",
        "cohere",
        named(
            {"type": "message-start", "id": "x"},
            {"type": "message-end", "delta": {"finish_reason": "ERROR", "error": "broken"}},
        ),
        outcome="error",
        reasons={0: "ERROR"},
    ),
    ending("ollama: cut", "ollama", unnamed({"model": "m", "response": "hi", "done": False})),
    ending(
        "ollama: an error",
        "ollama",
        unnamed({"model": "m", "response": "hi", "done": False}, {"error": "out of memory"}),
        outcome="error",
    ),
    ending(
        "watsonx: cut, with a running report",
        "watsonx",
        unnamed(
            {
                "results": [
                    {
                        "generated_text": "hi",
                        "input_token_count": 8,
                        "generated_token_count": 3,
                        "stop_reason": "not_finished",
                    }
                ]
            }
        ),
        Usage(8, 3, 0, 0),
    ),
    ending(
        "watsonx: an error",
        "watsonx",
        unnamed(
            {"results": [{"generated_text": "hi", "stop_reason": "not_finished"}]},
            {"errors": [{"code": "downstream_request_failed", "message": "gone"}]},
        ),
        outcome="error",
    ),
    ending(
        "replicate: text over several lines, and no usage",
        "replicate",
        (
            ("output", "Sure"),
            ("output", "\n\nWhy"),
            ("output", '{"usage": {"n": 1}}'),
            ("done", {}),
        ),
        outcome="end",
        reasons={0: "done"},
        parsed=False,
    ),
    ending(
        "replicate: an error",
        "replicate",
        (("output", "Sure"), ("error", "out of memory"), ("done", {"reason": "error"})),
        outcome="error",
        reasons={0: "error"},
        parsed=False,
    ),
)
