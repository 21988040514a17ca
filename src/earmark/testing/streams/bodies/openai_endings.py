"""Streams of OpenAI's shape that are cut, fail, or do not say what they used."""

from __future__ import annotations

from typing import Final

from earmark.testing.streams.bodies.chunks import bare, chat, counts
from earmark.testing.streams.bodies.shape import DONE, Stream, ending
from earmark.usage import Usage

STOPPED: Final = {0: "stop"}
ENDINGS: Final = (
    ending("openai: cut in the text", "openai-compatible", (chat("hi"), chat("ho"))),
    ending(
        "a finish reason that is the word null, then cut",
        "openai-compatible",
        (chat("a", finish="null"), chat("b", finish="")),
    ),
    ending(
        "openai: cut before the usage that a null announced",
        "openai-compatible",
        (chat("hi", usage=None), chat(finish="stop", usage=None)),
        reasons=STOPPED,
    ),
    ending(
        "openai: nobody asked for usage",
        "openai-compatible",
        (chat("hi"), chat(finish="stop"), DONE),
        outcome="end",
        reasons=STOPPED,
    ),
    ending(
        "openai: nobody asked for usage, and the SDK swallowed the end",
        "openai-compatible",
        (chat("hi"), chat(finish="stop")),
        outcome="end",
        reasons=STOPPED,
    ),
    ending(
        "vllm: legacy completions send null and nothing else",
        "openai-compatible",
        (
            (
                None,
                {
                    "object": "text_completion",
                    "choices": [{"index": 0, "text": "hi", "finish_reason": "length"}],
                    "usage": None,
                },
            ),
        ),
        outcome="end",
        reasons={0: "length"},
    ),
    ending(
        "openai: a running report is not the last word",
        "openai-compatible",
        (chat("a", usage=counts(24, 1)), chat("b", usage=counts(24, 2))),
        Usage(24, 2, None, None, None, 26),
    ),
    ending(
        "B38: a report about the input alone",
        "openai-compatible",
        (
            chat("hi"),
            chat(finish="stop"),
            bare({"prompt_tokens": 10, "total_tokens": 10}),
            DONE,
        ),
        Usage(10, None, None, None, None, 10),
        outcome="end",
        reasons=STOPPED,
    ),
    ending(
        "B38: the input at the start, with a zero for what is to come",
        "openai-compatible",
        (bare(counts(10, 0)), chat("hi"), chat(finish="stop"), DONE),
        Usage(10, 0, None, None, None, 10),
        outcome="end",
        reasons=STOPPED,
    ),
    ending(
        "B38: n = 2, one choice finished, at a clean end",
        "openai-compatible",
        (chat(finish="stop"), chat("b", index=1), bare(counts(10, 9)), DONE),
        Usage(10, 9, None, None, None, 19),
        outcome="end",
        reasons=STOPPED,
        n=2,
        parsed=False,
    ),
    ending(
        "n = 2: one choice finished, then cut",
        "openai-compatible",
        (chat("a"), chat("b", index=1), chat(finish="stop")),
        reasons=STOPPED,
        n=2,
    ),
    ending(
        "openai: an error in a payload",
        "openai-compatible",
        (chat("hi"), (None, {"error": {"message": "overloaded", "type": "server_error"}})),
        outcome="error",
    ),
    ending(
        "groq: an event named error",
        "openai-compatible",
        (chat("hi"), ("error", {"error": {"message": "bad tool call", "status_code": 400}})),
        outcome="error",
    ),
    ending(
        "vllm: an object that is an error",
        "openai-compatible",
        (chat("hi"), (None, {"object": "error", "message": "too long", "code": 400})),
        outcome="error",
    ),
    ending(
        "an event named error, whatever is in it",
        "openai-compatible",
        (chat("hi"), ("error", {"detail": "gone"})),
        outcome="error",
        parsed=False,
    ),
    ending(
        "gpustack: an error that names itself in text",
        "openai-compatible",
        (chat("hi"), ("error", "failed to decode")),
        outcome="error",
        parsed=False,
    ),
    ending(
        "openrouter: an error within a choice, then the end",
        "openai-compatible",
        (
            chat("hi"),
            (
                None,
                {"choices": [{"index": 0, "delta": {}, "error": {"code": 502, "message": "bad"}}]},
            ),
            DONE,
        ),
        outcome="error",
    ),
    Stream(
        "openrouter: an error and a usage in one chunk",
        "openai-compatible",
        (
            chat("hi"),
            chat(finish="length"),
            chat(usage=counts(43, 10), error={"code": 400, "message": "limit"}),
            DONE,
        ),
        Usage(43, 10, None, None, None, 53),
        outcome="error",
        reasons={0: "length"},
    ),
    ending(
        "nothing but an error",
        "openai-compatible",
        ((None, {"error": {"message": "no such model"}}),),
        outcome="error",
    ),
    ending("nothing but the end", "openai-compatible", (DONE,), outcome="end", parsed=False),
)
