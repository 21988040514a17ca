"""Responses, and runs of Assistants."""

from __future__ import annotations

from typing import Any, Final

from earmark.testing.streams.bodies.chunks import counts
from earmark.testing.streams.bodies.shape import DONE, Event, Stream, ending, named, unnamed
from earmark.usage import Usage


def _response(kind: str, status: str, usage: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "response": {"object": "response", "status": status, "usage": usage, **more},
    }


_RESPONSE_USAGE: Final = {
    "input_tokens": 53,
    "input_tokens_details": {"cached_tokens": 32, "cache_write_tokens": 6},
    "output_tokens": 469,
    "output_tokens_details": {"reasoning_tokens": 448},
    "total_tokens": 522,
}
_RESPONSES: Final = (
    Stream(
        "responses: completed",
        "openai-responses",
        named(
            _response("response.created", "in_progress"),
            _response("response.in_progress", "in_progress"),
            {"type": "response.output_text.delta", "delta": "hi"},
            _response("response.completed", "completed", _RESPONSE_USAGE),
        ),
        Usage(53, 469, 32, 6, 448, 522),
        reasons={0: "completed"},
    ),
    Stream(
        "responses: incomplete, its events without names, and a [DONE] that somebody added",
        "openai-responses",
        (
            *unnamed(
                _response("response.created", "in_progress"),
                _response("response.incomplete", "incomplete", _RESPONSE_USAGE),
            ),
            DONE,
        ),
        Usage(53, 469, 32, 6, 448, 522),
        reasons={0: "incomplete"},
    ),
    Stream(
        "responses: a usage of zeros on the terminal event is the report",
        "openai-responses",
        named(
            _response("response.created", "in_progress"),
            _response(
                "response.completed",
                "completed",
                {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0},
            ),
        ),
        Usage(0, 0, None, None, None, 0),
        reasons={0: "completed"},
    ),
    Stream(
        "responses: failed, with a usage all the same",
        "openai-responses",
        named(
            _response("response.created", "in_progress"),
            _response(
                "response.failed", "failed", _RESPONSE_USAGE, error={"message": "out of memory"}
            ),
        ),
        Usage(53, 469, 32, 6, 448, 522),
        outcome="error",
        reasons={0: "failed"},
    ),
)


def _run(status: str, usage: Any = None, **more: Any) -> Event:
    return f"thread.run.{status}", {
        "id": "r",
        "object": "thread.run",
        "status": status,
        "usage": usage,
        **more,
    }


def _step(step: str, prompt: int, completion: int) -> Event:
    usage = counts(prompt, completion, prompt_token_details={"cached_tokens": 0})
    return "thread.run.step.completed", {"id": step, "object": "thread.run.step", "usage": usage}


_ASSISTANTS: Final = (
    Stream(
        "assistants: steps, and their sum on the run",
        "openai-assistants",
        (
            _run("queued"),
            _step("a", 227, 26),
            _step("b", 154, 62),
            _run("completed", counts(381, 88, prompt_token_details={"cached_tokens": 0})),
            ("done", "[DONE]"),
        ),
        Usage(381, 88, 0, None, None, 469),
        reasons={0: "completed"},
    ),
)

STREAMS: Final = (*_RESPONSES, *_ASSISTANTS)
ENDINGS: Final = (
    ending(
        "responses: an error, then failed without usage",
        "openai-responses",
        named(
            _response("response.created", "in_progress"),
            {"type": "error", "error": {"message": "quota", "code": "insufficient_quota"}},
            _response("response.failed", "failed", None, error={"message": "quota"}),
        ),
        outcome="error",
        reasons={0: "failed"},
    ),
    ending(
        "responses: cut in the text",
        "openai-responses",
        named(
            _response("response.created", "in_progress"),
            {"type": "response.output_text.delta", "delta": "hi"},
        ),
    ),
    ending(
        "responses: a count on the way is no last word",
        "openai-responses",
        named(
            _response("response.created", "in_progress"),
            _response(
                "response.in_progress", "in_progress", {"input_tokens": 5, "output_tokens": 1}
            ),
        ),
        Usage(5, 1),
    ),
    ending(
        "B38: responses, completed with a report about the input alone",
        "openai-responses",
        named(
            _response("response.created", "in_progress"),
            _response("response.completed", "completed", {"input_tokens": 5, "total_tokens": 5}),
        ),
        Usage(5, reported_total=5),
        outcome="end",
        reasons={0: "completed"},
    ),
    ending(
        "responses: completed without usage",
        "openai-responses",
        named(
            _response("response.created", "in_progress"),
            _response("response.completed", "completed"),
        ),
        outcome="end",
        reasons={0: "completed"},
    ),
    ending(
        "assistants: cut after two steps, which are parts of one run",
        "openai-assistants",
        (_run("queued"), _step("a", 227, 26), _step("b", 154, 62), _step("b", 154, 62)),
        Usage(381, 88, 0, None, None, 469),
    ),
    ending(
        "assistants: the run failed",
        "openai-assistants",
        (_run("queued"), _run("failed", None, last_error={"code": "x", "message": "no"})),
        outcome="error",
        reasons={0: "failed"},
    ),
)
