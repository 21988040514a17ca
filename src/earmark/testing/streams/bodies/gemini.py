"""Gemini's generateContent, and its Interactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from earmark.testing.streams.bodies.shape import ABSENT, Event, Stream, ending, unnamed
from earmark.usage import Usage


def gemini(
    usage: Any = ABSENT, finish: str | None = None, text: str = "hi", index: int = 0
) -> Event:
    """A chunk of generateContent with one candidate."""
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": [{"text": text}]}}
    if index:
        candidate["index"] = index
    if finish is not None:
        candidate["finishReason"] = finish
    chunk = {"candidates": [candidate], "modelVersion": "gemini"}
    return None, chunk if usage is ABSENT else {**chunk, "usageMetadata": usage}


def tokens(
    prompt: int | None = None,
    candidates: int | None = None,
    thoughts: int | None = None,
    total: int | None = None,
    **more: int,
) -> dict[str, int]:
    """Gemini's usage object, without what is None."""
    fields = {
        "promptTokenCount": prompt,
        "candidatesTokenCount": candidates,
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": total,
        **more,
    }
    return {name: count for name, count in fields.items() if count is not None}


def _gemini(name: str, *events: Event, usage: Usage, n: int = 1) -> Stream:
    reasons = dict.fromkeys(range(n), "STOP")
    return Stream(f"gemini: {name}", "gemini", events, usage, reasons=reasons, n=n)


_GEMINI: Final = (
    _gemini(
        "C39, running totals",
        gemini(tokens(4, 6, total=10)),
        gemini(tokens(4, 16, total=20)),
        gemini(tokens(4, 26, total=30), "STOP"),
        usage=Usage(4, 26, None, None, None, 30),
    ),
    _gemini(
        "C39, thoughts are apart from candidates",
        gemini(tokens(20, 6, 190, 216), "STOP"),
        usage=Usage(20, 196, None, None, 190, 216),
    ),
    _gemini(
        "the prompt of tool use is apart from the prompt, cached content inside it",
        gemini(
            tokens(32, 25, 37, 4704, toolUsePromptTokenCount=4610, cachedContentTokenCount=16),
            "STOP",
        ),
        usage=Usage(4642, 62, 16, None, 37, 4704),
    ),
    _gemini(
        "counts that fall and begin anew with each round",
        gemini(tokens(169, 51, 101, 321)),
        gemini(tokens(46, total=46)),
        gemini(tokens(46, 57, 67, 170)),
        gemini(tokens(79, 58, 68, 205), "STOP"),
        usage=Usage(79, 126, None, None, 68, 205),
    ),
    _gemini(
        "the last snapshot drops the candidates: the output is unknown",
        gemini(tokens(9, 15, 78, 102)),
        gemini(tokens(87, None, 78, 165), "STOP"),
        usage=Usage(87, None, None, None, 78, 165),
    ),
    _gemini(
        "the last snapshot has no prompt: the input is unknown",
        gemini(tokens(None, 23, 67), "STOP"),
        usage=Usage(None, 90, None, None, 67),
    ),
    _gemini(
        "a usage object without counts is no report",
        gemini({"trafficType": "ON_DEMAND"}),
        gemini(tokens(8, 257, 1257, 1522), "STOP"),
        gemini({"trafficType": "ON_DEMAND"}),
        usage=Usage(8, 1514, None, None, 1257, 1522),
    ),
    _gemini(
        "1.0 finishes with every chunk",
        gemini(tokens(3, 1, total=4), "STOP"),
        gemini(tokens(3, 5, total=8), "STOP"),
        usage=Usage(3, 5, None, None, None, 8),
    ),
    _gemini(
        "two candidates share one report",
        gemini(tokens(5, 2, total=7), "STOP"),
        gemini(tokens(5, 9, total=14), "STOP", index=1),
        usage=Usage(5, 9, None, None, None, 14),
        n=2,
    ),
    Stream(
        "gemini: the names of the SDK",
        "gemini",
        unnamed(
            {
                "candidates": [{"content": {"parts": []}, "finish_reason": "STOP"}],
                "usage_metadata": {
                    "prompt_token_count": 6,
                    "candidates_token_count": 2,
                    "total_token_count": 8,
                },
            }
        ),
        Usage(6, 2, None, None, None, 8),
        reasons={0: "STOP"},
    ),
)


def _interaction(kind: str, usage: Mapping[str, int] | None = None, **more: Any) -> Event:
    interaction = {"object": "interaction", **more}
    if usage is not None:
        interaction["usage"] = usage
    return kind, {"event_type": kind, "interaction": interaction}


_INTERACTIONS: Final = (
    Stream(
        "interactions: running counts, then the interaction's own",
        "gemini-interactions",
        (
            _interaction("interaction.created", status="in_progress"),
            (
                "step.delta",
                {
                    "event_type": "step.delta",
                    "delta": {"type": "text", "text": "hi"},
                    "metadata": {"usage": {"total_input_tokens": 11, "total_output_tokens": 40}},
                },
            ),
            _interaction(
                "interaction.completed",
                {
                    "total_tokens": 182,
                    "total_input_tokens": 11,
                    "total_cached_tokens": 0,
                    "total_output_tokens": 42,
                    "total_tool_use_tokens": 3,
                    "total_thought_tokens": 126,
                },
                status="completed",
            ),
            ("done", "[DONE]"),
        ),
        Usage(14, 168, 0, None, 126, 182),
        reasons={0: "completed"},
    ),
)

STREAMS: Final = (*_GEMINI, *_INTERACTIONS)
ENDINGS: Final = (
    ending(
        "gemini: cut, with a running report",
        "gemini",
        (gemini(tokens(4, 6, total=10)),),
        Usage(4, 6, None, None, None, 10),
    ),
    ending(
        "gemini: finished without a report of its own",
        "gemini",
        (gemini(tokens(4, 6, total=10)), gemini(finish="STOP")),
        Usage(4, 6, None, None, None, 10),
        outcome="end",
        reasons={0: "STOP"},
    ),
    ending(
        "gemini: finished, and reported the prompt alone",
        "gemini",
        (gemini(tokens(9, total=9), "STOP"),),
        Usage(9, None, None, None, None, 9),
        outcome="end",
        reasons={0: "STOP"},
    ),
    ending(
        "gemini: the prompt was blocked",
        "gemini",
        ((None, {"promptFeedback": {"blockReason": "SAFETY"}}),),
        outcome="end",
    ),
    ending(
        "vertex: an error after the first candidate",
        "gemini",
        (gemini(finish="STOP"), (None, {"error": {"code": 499, "status": "CANCELLED"}})),
        outcome="error",
        reasons={0: "STOP"},
    ),
    ending(
        "interactions: failed, and the interaction says why",
        "gemini-interactions",
        unnamed(
            {"event_type": "interaction.created", "interaction": {"status": "in_progress"}},
            {
                "event_type": "interaction.completed",
                "interaction": {"status": "failed", "error": {"message": "no quota left"}},
            },
        ),
        outcome="error",
        reasons={0: "failed"},
    ),
    ending(
        "interactions: cut, with a running report",
        "gemini-interactions",
        (
            (
                "interaction.created",
                {
                    "event_type": "interaction.created",
                    "interaction": {"object": "interaction", "status": "in_progress"},
                    "metadata": {"usage": {"total_input_tokens": 11, "total_output_tokens": 0}},
                },
            ),
        ),
        Usage(11, 0),
    ),
)
