"""What the three providers stream: the events of one short answer each, as they come over the wire.

Each reports what it used in its own way: OpenAI in a chunk of its own at the end, Anthropic in two parts, with caches
apart from the input, and Gemini in every chunk, with thoughts apart from the output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final


def _sse(*payloads: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Server-sent events, named after their type where they have one."""
    return tuple(
        (f"event: {payload['type']}\n" if "type" in payload else "").encode()
        + f"data: {json.dumps(payload)}\n\n".encode()
        for payload in payloads
    )


def _chunk(*choices: Mapping[str, Any], usage: Mapping[str, Any] | None = None) -> dict[str, Any]:
    head = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "stand-in-1",
    }
    return {**head, "choices": choices, "usage": usage}


def _said(text: str) -> dict[str, Any]:
    return {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}


_OPENAI_USAGE: Final = {
    "prompt_tokens": 14,
    "completion_tokens": 9,
    "total_tokens": 23,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0},
}
OPENAI: Final = (
    *_sse(
        _chunk(_said("Hello")),
        _chunk(_said(" from the loopback.")),
        _chunk({"index": 0, "delta": {}, "finish_reason": "stop"}),
        _chunk(usage=_OPENAI_USAGE),
    ),
    b"data: [DONE]\n\n",
)


_MESSAGE: Final[Mapping[str, Any]] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "stand-in-1",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {
        "input_tokens": 20,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 400,
        "output_tokens": 1,
    },
}


def _text(text: str) -> dict[str, Any]:
    delta = {"type": "text_delta", "text": text}
    return {"type": "content_block_delta", "index": 0, "delta": delta}


ANTHROPIC: Final = _sse(
    {"type": "message_start", "message": _MESSAGE},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    _text("Hello"),
    _text(" from the loopback."),
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 9},
    },
    {"type": "message_stop"},
)


def _snapshot(text: str, output: int, finish: str | None = None) -> dict[str, Any]:
    counts = {"promptTokenCount": 12, "candidatesTokenCount": output, "thoughtsTokenCount": 60}
    candidate = {"index": 0, "content": {"role": "model", "parts": [{"text": text}]}}
    return {
        "candidates": [candidate if finish is None else {**candidate, "finishReason": finish}],
        "usageMetadata": {**counts, "totalTokenCount": 72 + output},
        "modelVersion": "stand-in-1",
    }


GEMINI: Final = _sse(_snapshot("Hello", 1), _snapshot(" from the loopback.", 9, "STOP"))
