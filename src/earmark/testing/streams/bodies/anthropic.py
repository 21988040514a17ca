"""Messages of Anthropic, and its legacy completions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from earmark.testing.streams.bodies.shape import Stream, ending, named, unnamed
from earmark.usage import Usage


def start(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Anthropic's first event."""
    return {
        "type": "message_start",
        "message": {"role": "assistant", "content": [], "usage": usage},
    }


def delta(usage: Mapping[str, Any] | None, reason: str | None = "end_turn") -> dict[str, Any]:
    """Anthropic's event before the last."""
    event = {"type": "message_delta", "delta": {"stop_reason": reason}}
    return event if usage is None else {**event, "usage": usage}


TEXT: Final = {
    "type": "content_block_delta",
    "index": 0,
    "delta": {"type": "text_delta", "text": "hi"},
}
STOP: Final = {"type": "message_stop"}


def _anthropic(
    name: str,
    events: Iterable[Mapping[str, Any]],
    usage: Usage | None,
    reason: str = "end_turn",
) -> Stream:
    return Stream(f"anthropic: {name}", "anthropic", named(*events), usage, reasons={0: reason})


STREAMS: Final = (
    _anthropic(
        "C38, the output is cumulative",
        (
            start({"input_tokens": 25, "output_tokens": 1}),
            {"type": "ping"},
            TEXT,
            delta({"output_tokens": 15}),
            STOP,
        ),
        Usage(25, 15),
    ),
    _anthropic(
        "C38, several deltas are cumulative",
        (
            start({"input_tokens": 25, "output_tokens": 1}),
            TEXT,
            delta({"output_tokens": 15}, None),
            delta({"output_tokens": 30}),
            STOP,
        ),
        Usage(25, 30),
    ),
    _anthropic(
        "C38, the delta repeats the input",
        (
            start({"input_tokens": 27, "output_tokens": 1}),
            delta({"input_tokens": 27, "output_tokens": 47}),
            STOP,
        ),
        Usage(27, 47),
    ),
    _anthropic(
        "C38, server tools raise the input",
        (
            start({"input_tokens": 27, "output_tokens": 1}),
            delta({"input_tokens": 90, "output_tokens": 47, "server_tool_use": {"web": 1}}),
            STOP,
        ),
        Usage(90, 47),
    ),
    _anthropic(
        "C38, a proxy knows the truth only at the end",
        (
            start({"input_tokens": 0, "output_tokens": 0}),
            delta({"input_tokens": 120, "output_tokens": 9}),
            STOP,
        ),
        Usage(120, 9),
    ),
    _anthropic(
        "C46, caches are apart from the input",
        (
            start(
                {
                    "input_tokens": 100,
                    "cache_read_input_tokens": 8000,
                    "cache_creation_input_tokens": 500,
                    "output_tokens": 1,
                }
            ),
            TEXT,
            delta({"output_tokens": 50}),
            STOP,
        ),
        Usage(8600, 50, 8000, 500),
    ),
    _anthropic(
        "a null in the delta erases nothing, a zero does",
        (
            start(
                {
                    "input_tokens": 10,
                    "cache_read_input_tokens": 70,
                    "cache_creation_input_tokens": 3,
                    "output_tokens": 1,
                }
            ),
            delta({"input_tokens": None, "cache_read_input_tokens": 0, "output_tokens": 5}),
            STOP,
        ),
        Usage(13, 5, 0, 3),
    ),
    _anthropic(
        "iterations are summed, the top level leaves them out",
        (
            start({"input_tokens": 100, "cache_read_input_tokens": 55096, "output_tokens": 7}),
            delta(
                {
                    "input_tokens": 181,
                    "cache_read_input_tokens": 0,
                    "output_tokens": 8,
                    "iterations": [
                        {
                            "type": "compaction",
                            "input_tokens": 100,
                            "output_tokens": 83,
                            "cache_read_input_tokens": 55096,
                            "cache_creation_input_tokens": 2,
                        },
                        {"type": "message", "input_tokens": 181, "output_tokens": 8},
                    ],
                }
            ),
            STOP,
        ),
        Usage(55379, 91, 55096, 2),
    ),
    _anthropic(
        "thinking is inside the output",
        (
            start({"input_tokens": 80, "output_tokens": 4}),
            delta({"output_tokens": 638, "output_tokens_details": {"thinking_tokens": 353}}),
            STOP,
        ),
        Usage(80, 638, None, None, 353),
    ),
    _anthropic(
        "a refusal is an answer",
        (
            start({"input_tokens": 12, "output_tokens": 1}),
            delta({"output_tokens": 2}, "refusal"),
            STOP,
        ),
        Usage(12, 2),
        "refusal",
    ),
    _anthropic(
        "a second message forgets the first",
        (
            start({"input_tokens": 500, "cache_read_input_tokens": 9, "output_tokens": 1}),
            start({"input_tokens": 6, "output_tokens": 1}),
            delta({"output_tokens": 3}),
            STOP,
        ),
        Usage(6, 3),
    ),
    Stream(
        "anthropic: the type within the event decides, not its name",
        "anthropic",
        unnamed(
            start({"input_tokens": 5, "output_tokens": 1}), TEXT, delta({"output_tokens": 4}), STOP
        ),
        Usage(5, 4),
        reasons={0: "end_turn"},
    ),
)
ENDINGS: Final = (
    ending(
        "C38: anthropic, cut after the start",
        "anthropic",
        named(start({"input_tokens": 25, "output_tokens": 1}), TEXT),
        Usage(25, 1),
    ),
    ending(
        "anthropic: cut after a delta without a reason to stop",
        "anthropic",
        named(start({"input_tokens": 25, "output_tokens": 1}), delta({"output_tokens": 9}, None)),
        Usage(25, 9),
    ),
    ending(
        "anthropic: the end without a report, as some proxies have it",
        "anthropic",
        named(start({"input_tokens": 25, "output_tokens": 1}), delta(None), STOP),
        Usage(25, 1),
        outcome="end",
        reasons={0: "end_turn"},
    ),
    ending(
        "anthropic: overloaded after HTTP 200",
        "anthropic",
        named(
            start({"input_tokens": 21, "output_tokens": 7}),
            TEXT,
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        ),
        Usage(21, 7),
        outcome="error",
    ),
    ending(
        "anthropic: legacy complete never reports",
        "anthropic",
        named(
            {"type": "completion", "completion": "hi", "stop_reason": None},
            {"type": "completion", "completion": "", "stop_reason": "stop_sequence"},
        ),
        outcome="end",
        reasons={0: "stop_sequence"},
    ),
)
