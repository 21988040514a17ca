"""One answer, "Good day", as four APIs stream it: complete in all that their SDKs want to see of it."""

from __future__ import annotations

from typing import Any, Final

from earmark.testing.streams.bodies.chunks import bare, chat, counts, details
from earmark.testing.streams.bodies.gemini import gemini, tokens
from earmark.testing.streams.bodies.shape import DONE, Stream, named
from earmark.usage import Usage

CHAT: Final = Stream(
    "chat",
    "openai-compatible",
    (
        chat("Good", usage=None),
        chat(" day", usage=None),
        chat(finish="stop", usage=None),
        bare(counts(14, 8, **details(4, 3))),
        DONE,
    ),
    Usage(14, 8, 4, None, 3, 22),
)
_RESPONSE: Final[dict[str, Any]] = {
    "id": "resp_1",
    "object": "response",
    "model": "m",
    "output": [],
}
_TEXT: Final[dict[str, Any]] = {"type": "output_text", "text": "Good day", "annotations": []}
_ITEM: Final[dict[str, Any]] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": [_TEXT],
}
_PART: Final = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
RESPONSE: Final = Stream(
    "response",
    "openai-responses",
    named(
        {"type": "response.created", "response": {**_RESPONSE, "status": "in_progress"}},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**_ITEM, "content": []},
        },
        {
            "type": "response.content_part.added",
            "part": {**_TEXT, "text": ""},
            **_PART,
        },
        {"type": "response.output_text.delta", "delta": "Good", **_PART},
        {"type": "response.output_text.delta", "delta": " day", **_PART},
        {"type": "response.output_text.done", "text": "Good day", **_PART},
        {"type": "response.content_part.done", "part": _TEXT, **_PART},
        {"type": "response.output_item.done", "output_index": 0, "item": _ITEM},
        {
            "type": "response.completed",
            "response": {
                **_RESPONSE,
                "status": "completed",
                "output": [_ITEM],
                "usage": {"input_tokens": 14, "output_tokens": 8, "total_tokens": 22},
            },
        },
    ),
    Usage(14, 8, None, None, None, 22),
)
MESSAGE: Final = Stream(
    "message",
    "anthropic",
    named(
        {
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "m",
                "content": [],
                "usage": {
                    "input_tokens": 40,
                    "cache_read_input_tokens": 600,
                    "output_tokens": 1,
                },
            },
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "Good"},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": " day"},
        },
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 8},
        },
        {"type": "message_stop"},
    ),
    Usage(640, 8, 600),
)
CONTENT: Final = Stream(
    "content",
    "gemini",
    (
        gemini(tokens(640, 1, 60, 701), text="Good"),
        gemini(tokens(640, 8, 60, 708), "STOP", text=" day"),
    ),
    Usage(640, 68, None, None, 60, 708),
)
