"""Streams of OpenAI's shape: one for each place where somebody puts the usage."""

from __future__ import annotations

from typing import Final

from earmark.testing.streams.bodies.chunks import bare, chat, counts, details
from earmark.testing.streams.bodies.shape import DONE, Stream
from earmark.usage import Usage

STREAMS: Final = (
    Stream(
        "openai: null on every chunk, then a chunk without choices",
        "openai-compatible",
        (
            chat("Hel", usage=None),
            chat("lo", usage=None),
            chat(finish="stop", usage=None),
            bare(counts(14, 8, **details(4, 3))),
            DONE,
        ),
        Usage(14, 8, 4, None, 3, 22),
    ),
    Stream(
        "azure: the first chunk without choices is the filter's",
        "openai-compatible",
        (
            (None, {"choices": [], "id": "", "object": "", "prompt_filter_results": []}),
            chat("hi"),
            chat(finish="stop"),
            bare(counts(7, 5, prompt_tokens_details={"cached_tokens": 161})),
            DONE,
        ),
        Usage(7, 5, 161, None, None, 12),
    ),
    Stream(
        "mistral: on the finish chunk, unasked",
        "openai-compatible",
        (chat("hi"), chat(finish="stop", usage=counts(26, 4, num_cached_tokens=16)), DONE),
        Usage(26, 4, 16, None, None, 30),
    ),
    Stream(
        "deepseek: cache hits beside the prompt",
        "openai-compatible",
        (
            chat("hi", usage=None),
            chat(
                finish="stop",
                usage=counts(451, 21, prompt_cache_hit_tokens=384, prompt_cache_miss_tokens=67),
            ),
            DONE,
        ),
        Usage(451, 21, 384, None, None, 472),
    ),
    Stream(
        "groq: in x_groq alone",
        "openai-compatible",
        (
            chat("hi", x_groq={"id": "r"}),
            chat(finish="stop", x_groq={"id": "r", "usage": counts(12, 26, queue_time=0.01)}),
            DONE,
        ),
        Usage(12, 26, None, None, None, 38),
    ),
    Stream(
        "groq: three copies of one report",
        "openai-compatible",
        (
            chat("hi"),
            chat(finish="tool_calls", x_groq={"usage": counts(201, 58)}, usage=counts(201, 58)),
            bare(counts(201, 58)),
            DONE,
        ),
        Usage(201, 58, None, None, None, 259),
        reasons={0: "tool_calls"},
    ),
    Stream(
        "moonshot: within the choice",
        "openai-compatible",
        (
            chat("hi"),
            (
                None,
                {
                    "object": "chat.completion.chunk",
                    "choices": [
                        {
                            "index": 0,
                            "delta": {},
                            "finish_reason": "stop",
                            "usage": counts(8, 11, cached_tokens=8),
                        }
                    ],
                },
            ),
            DONE,
        ),
        Usage(8, 11, 8, None, None, 19),
    ),
    Stream(
        "perplexity: running on every chunk, reasoning beside the completion, no [DONE]",
        "openai-compatible",
        (
            chat("a", usage=counts(8, 1)),
            chat("b", usage=counts(8, 2)),
            chat(
                finish="stop",
                usage=counts(8, 3, reasoning_tokens=40),
                object="chat.completion.done",
            ),
        ),
        Usage(8, 43, None, None, 40, 11),
    ),
    Stream(
        "openrouter: on a second finish chunk",
        "openai-compatible",
        (
            chat("hi", provider="P"),
            chat(finish="stop"),
            chat(
                finish="stop",
                usage=counts(
                    50,
                    9,
                    prompt_tokens_details={"cached_tokens": 10, "cache_write_tokens": 5},
                    completion_tokens_details={"reasoning_tokens": 0},
                ),
            ),
            DONE,
        ),
        Usage(50, 9, 10, 5, 0, 59),
    ),
    Stream(
        "openrouter: more reasoning than completion, and a total that has neither twice",
        "openai-compatible",
        (
            chat("hi"),
            chat(finish="length"),
            bare(counts(43, 10, completion_tokens_details={"reasoning_tokens": 11})),
            DONE,
        ),
        Usage(43, 10, None, None, 11, 53),
        reasons={0: "length"},
    ),
    Stream(
        "xai: reasoning outside the completion, inside the total",
        "openai-compatible",
        (
            chat("hi"),
            chat(finish="stop"),
            bare({**counts(654, 25, **details(602, 52)), "total_tokens": 731}),
            DONE,
        ),
        Usage(654, 77, 602, None, 52, 731),
    ),
    Stream(
        "vercel with gemini: reasoning outside the completion and the total",
        "openai-compatible",
        (
            chat("hi"),
            chat(
                finish="stop",
                usage=counts(57, 10, completion_tokens_details={"reasoning_tokens": 37}),
                generationId="gen_1",
            ),
            DONE,
        ),
        Usage(57, 47, None, None, 37, 67),
    ),
    Stream(
        "vercel with gemini: less reasoning than completion, told by Gemini's own counts",
        "openai-compatible",
        (
            (
                None,
                {
                    "object": "chat.completion.chunk",
                    "generationId": "gen_1",
                    "choices": [
                        {
                            "index": 0,
                            "finish_reason": "stop",
                            "delta": {
                                "provider_metadata": {
                                    "google": {
                                        "usageMetadata": {
                                            "candidatesTokenCount": 100,
                                            "thoughtsTokenCount": 37,
                                        }
                                    }
                                }
                            },
                        }
                    ],
                    "usage": counts(57, 100, completion_tokens_details={"reasoning_tokens": 37}),
                },
            ),
            DONE,
        ),
        Usage(57, 137, None, None, 37, 157),
    ),
    Stream(
        "vllm: continuous usage, and once more at the end",
        "openai-compatible",
        (
            chat("a", usage=counts(24, 1)),
            chat("b", usage=counts(24, 2)),
            chat("c", finish="length", usage=counts(24, 3)),
            bare(counts(24, 3)),
            DONE,
        ),
        Usage(24, 3, None, None, None, 27),
        reasons={0: "length"},
    ),
    Stream(
        "snowflake: no finish reason ever",
        "openai-compatible",
        ((None, {"choices": [{"delta": {"content": "hi"}}]}), bare(counts(5, 7)), DONE),
        Usage(5, 7, None, None, None, 12),
        reasons={},
    ),
    Stream(
        "C40: the usage chunk is followed by one without",
        "openai-compatible",
        (chat("hi"), chat(finish="stop"), bare(counts(5, 7)), bare(None), DONE),
        Usage(5, 7, None, None, None, 12),
    ),
    Stream(
        "C40: only a completion count; the input stays unknown",
        "openai-compatible",
        (chat("hi"), chat(finish="stop"), bare({"completion_tokens": 25}), DONE),
        Usage(None, 25),
    ),
    Stream(
        "a report of zeros after the real one",
        "openai-compatible",
        (chat("hi"), chat(finish="stop", usage=counts(5, 7)), bare(counts(0, 0)), DONE),
        Usage(5, 7, None, None, None, 12),
    ),
    Stream(
        "a real zero",
        "openai-compatible",
        (chat(finish="content_filter"), bare(counts(9, 0)), DONE),
        Usage(9, 0, None, None, None, 9),
        reasons={0: "content_filter"},
    ),
    Stream(
        "gpustack: no [DONE]",
        "openai-compatible",
        (
            chat("hi", usage=None),
            chat(finish="stop", usage=counts(15, 171, **details(0, 160))),
        ),
        Usage(15, 171, 0, None, 160, 186),
    ),
    Stream(
        "finish reasons that are none: an empty text, the word null",
        "openai-compatible",
        (
            chat("a", finish=""),
            chat("b", finish="null"),
            chat(finish="stop", usage=counts(3, 2)),
            DONE,
        ),
        Usage(3, 2, None, None, None, 5),
    ),
    Stream(
        "legacy completions with usage",
        "openai-compatible",
        (
            (
                None,
                {
                    "object": "text_completion",
                    "choices": [{"text": "hi", "index": 0, "finish_reason": "length"}],
                    "usage": counts(4, 16),
                },
            ),
            DONE,
        ),
        Usage(4, 16, None, None, None, 20),
        reasons={0: "length"},
    ),
    Stream(
        "n = 2: one report for both choices",
        "openai-compatible",
        (
            chat("a", index=0, usage=None),
            chat("b", index=1, usage=None),
            chat(finish="stop", index=1, usage=None),
            chat(finish="length", index=0, usage=None),
            bare(counts(26, 104)),
            DONE,
        ),
        Usage(26, 104, None, None, None, 130),
        reasons={0: "length", 1: "stop"},
        n=2,
    ),
    Stream(
        "B37: n = 2, a report for each choice",
        "openai-compatible",
        (
            chat(finish="stop", index=0, usage=counts(10, 4, **details(8, 1))),
            chat(finish="stop", index=1, usage=counts(10, 6, **details(8, 2))),
            DONE,
        ),
        Usage(10, 10, 8, None, 3),
        reasons={0: "stop", 1: "stop"},
        n=2,
    ),
    Stream(
        "n = 2: running reports for each choice, then one for both",
        "openai-compatible",
        (
            chat("a", index=0, usage=counts(10, 1)),
            chat("b", index=1, usage=counts(10, 1)),
            chat("a", finish="stop", index=0, usage=counts(10, 2)),
            chat("b", finish="stop", index=1, usage=counts(10, 3)),
            bare(counts(10, 5)),
            DONE,
        ),
        Usage(10, 5, None, None, None, 15),
        reasons={0: "stop", 1: "stop"},
        n=2,
    ),
)
