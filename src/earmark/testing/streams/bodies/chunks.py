"""Chunks of OpenAI's shape."""

from __future__ import annotations

from typing import Any

from earmark.testing.streams.bodies.shape import ABSENT, Event


def chat(
    text: str = "",
    finish: str | None = None,
    usage: Any = ABSENT,
    index: int = 0,
    **more: Any,
) -> Event:
    """A chunk of a chat completion with one choice."""
    choice = {"index": index, "delta": {"content": text}, "finish_reason": finish}
    chunk = {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [choice],
        **more,
    }
    return None, chunk if usage is ABSENT else {**chunk, "usage": usage}


def bare(usage: Any = ABSENT, **more: Any) -> Event:
    """A chunk of a chat completion without choices."""
    chunk: dict[str, Any] = {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [],
        **more,
    }
    return None, chunk if usage is ABSENT else {**chunk, "usage": usage}


def counts(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    """A usage object of OpenAI's shape."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        **more,
    }


def details(cached: int, reasoning: int) -> dict[str, Any]:
    """OpenAI's details of a usage object."""
    return {
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
