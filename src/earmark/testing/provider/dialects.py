"""How each API says it: a whole body, the events of a stream, and an error.

The shapes are those of the providers' references: OpenAI's chat completions, completions and responses, Anthropic's
messages, and Gemini's generateContent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from earmark.testing.provider.acts import Act

Body = dict[str, Any]


class Api(Protocol):
    """One API."""

    def whole(self, act: Act, asked: Mapping[str, Any]) -> Body:
        """The body of an answer that is not streamed."""
        ...

    def events(self, act: Act, asked: Mapping[str, Any]) -> Iterator[bytes]:
        """The events of a stream, each in its bytes."""
        ...

    def error(self, status: int) -> Body:
        """The body of a refusal."""
        ...

    def failure(self) -> bytes:
        """The event of a stream that fails in its midst."""
        ...


def _data(body: Mapping[str, Any], event: str | None = None) -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(body, separators=(',', ':'))}\n\n".encode()


def _words(act: Act) -> list[str]:
    return [f"word{number} " for number in range(act.chunks)]


def _wants_usage(act: Act, asked: Mapping[str, Any]) -> bool:
    options: Any = asked.get("stream_options")
    return act.usage and isinstance(options, dict) and bool(options.get("include_usage"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


# More than any provider gives: a client may ask for any number.
_MOST_CHOICES: Final = 128


def _choices(asked: Mapping[str, Any]) -> int:
    n = asked.get("n")
    return min(n, _MOST_CHOICES) if type(n) is int and n > 0 else 1


class _OpenAI:
    """What OpenAI's APIs have in common."""

    def error(self, status: int) -> Body:
        kinds = {429: "rate_limit_exceeded", 401: "invalid_api_key"}
        code = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")  # noqa: PLR2004
        return {
            "error": {
                "message": f"The stand-in says {status}.",
                "type": code,
                "param": None,
                "code": code,
            }
        }

    def failure(self) -> bytes:
        return _data(
            {"error": {"message": "The stand-in has failed.", "type": "server_error", "code": None}}
        )


class Chat(_OpenAI):
    """`/v1/chat/completions`."""

    object = "chat.completion"

    def whole(self, act: Act, asked: Mapping[str, Any]) -> Body:
        choices = [self._choice(index, act) for index in range(_choices(asked))]
        body = {**self._head(asked, self.object), "choices": choices}
        return {**body, "usage": self._usage(act, asked)} if act.usage else body

    def events(self, act: Act, asked: Mapping[str, Any]) -> Iterator[bytes]:
        head = self._head(asked, f"{self.object}.chunk")
        spare = {"usage": None} if _wants_usage(act, asked) else {}
        indexes = range(_choices(asked))
        for part in self._parts(act):
            for index in indexes:
                choice = {"index": index, **part, "finish_reason": None}
                yield _data({**head, "choices": [choice], **spare})
        for index in indexes:
            choice = {"index": index, **self._nothing(), "finish_reason": self._reason(act)}
            yield _data({**head, "choices": [choice], **spare})
        if spare:
            yield _data({**head, "choices": [], "usage": self._usage(act, asked)})
        yield b"data: [DONE]\n\n"

    def _head(self, asked: Mapping[str, Any], kind: str) -> Body:
        return {
            "id": "cmpl-standin",
            "object": kind,
            "created": 0,
            "model": asked.get("model", "stand-in"),
        }

    def _usage(self, act: Act, asked: Mapping[str, Any]) -> Body:
        output = act.output * _choices(asked)
        return {
            "prompt_tokens": act.input_tokens,
            "completion_tokens": output,
            "total_tokens": act.input_tokens + output,
            "prompt_tokens_details": {"cached_tokens": act.cached_tokens},
        }

    def _choice(self, index: int, act: Act) -> Body:
        message: Body = {"role": "assistant", "content": "".join(_words(act))}
        if act.tool:
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [_call(index, _arguments(act))],
            }
        return {"index": index, "message": message, "finish_reason": self._reason(act)}

    def _parts(self, act: Act) -> Iterator[Body]:
        if not act.tool:
            yield {"delta": {"role": "assistant", "content": ""}}
            yield from ({"delta": {"content": word}} for word in _words(act))
            return
        yield {
            "delta": {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"index": 0, **_call(0, "")}],
            }
        }
        for piece in _pieces(_arguments(act), act.chunks):
            yield {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}}

    def _nothing(self) -> Body:
        return {"delta": {}}

    def _reason(self, act: Act) -> str:
        return "tool_calls" if act.tool else "stop"


def _arguments(act: Act) -> str:
    return json.dumps({"place": "".join(_words(act))})


def _call(index: int, arguments: str) -> Body:
    return {
        "id": f"call_{index}",
        "type": "function",
        "function": {"name": "look", "arguments": arguments},
    }


def _pieces(text: str, count: int) -> Iterator[str]:
    size = max(len(text) // max(count, 1), 1)
    for start in range(0, len(text), size):
        yield text[start : start + size]


class Completions(Chat):
    """`/v1/completions`, the older API."""

    object = "text_completion"

    def _head(self, asked: Mapping[str, Any], kind: str) -> Body:
        return super()._head(asked, self.object)

    def _choice(self, index: int, act: Act) -> Body:
        return {"index": index, "text": "".join(_words(act)), "finish_reason": "stop"}

    def _parts(self, act: Act) -> Iterator[Body]:
        yield from ({"text": word} for word in _words(act))

    def _nothing(self) -> Body:
        return {"text": ""}


class Responses(_OpenAI):
    """`/v1/responses`."""

    def whole(self, act: Act, asked: Mapping[str, Any]) -> Body:
        return self._response(act, asked, "completed")

    def events(self, act: Act, asked: Mapping[str, Any]) -> Iterator[bytes]:
        for number, (kind, body) in enumerate(self._told(act, asked)):
            yield _data({"type": kind, "sequence_number": number, **body}, kind)

    def _told(self, act: Act, asked: Mapping[str, Any]) -> Iterator[tuple[str, Body]]:
        started: Body = {**self._response(act, asked, "in_progress"), "usage": None, "output": []}
        yield "response.created", {"response": started}
        place = {"item_id": "msg_standin", "output_index": 0, "content_index": 0}
        for word in _words(act):
            yield "response.output_text.delta", {**place, "delta": word, "logprobs": []}
        yield "response.completed", {"response": self._response(act, asked, "completed")}

    def _response(self, act: Act, asked: Mapping[str, Any], status: str) -> Body:
        text: Body = {
            "type": "output_text",
            "text": "".join(_words(act)),
            "annotations": [],
            "logprobs": [],
        }
        said: Body = {
            "type": "message",
            "id": "msg_standin",
            "role": "assistant",
            "status": status,
            "content": [text],
        }
        usage = {
            "input_tokens": act.input_tokens,
            "input_tokens_details": {"cached_tokens": act.cached_tokens},
            "output_tokens": act.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": act.input_tokens + act.output,
        }
        return {
            "id": "resp_standin",
            "object": "response",
            "created_at": 0,
            "status": status,
            "model": asked.get("model", "stand-in"),
            "output": [said],
            "error": None,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage if act.usage else None,
        }


class Messages:
    """Anthropic's `/v1/messages`."""

    def whole(self, act: Act, asked: Mapping[str, Any]) -> Body:
        block: Body = {"type": "text", "text": "".join(_words(act))}
        if act.tool:
            block = {**self._tool(), "input": json.loads(_arguments(act))}
        reason = "tool_use" if act.tool else "end_turn"
        usage = self._usage(act, act.output)
        return {**self._head(asked), "content": [block], "stop_reason": reason, "usage": usage}

    def events(self, act: Act, asked: Mapping[str, Any]) -> Iterator[bytes]:
        for body in self._told(act, asked):
            yield _data(body, body["type"])

    def _told(self, act: Act, asked: Mapping[str, Any]) -> Iterator[Body]:
        message: Body = {
            **self._head(asked),
            "content": [],
            "stop_reason": None,
            "usage": self._usage(act, 1),
        }
        yield {"type": "message_start", "message": message}
        block: Body = {**self._tool(), "input": {}} if act.tool else {"type": "text", "text": ""}
        yield {"type": "content_block_start", "index": 0, "content_block": block}
        if act.tool:
            deltas = [
                {"type": "input_json_delta", "partial_json": piece}
                for piece in _pieces(_arguments(act), act.chunks)
            ]
        else:
            deltas = [{"type": "text_delta", "text": word} for word in _words(act)]
        for delta in deltas:
            yield {"type": "content_block_delta", "index": 0, "delta": delta}
        yield {"type": "content_block_stop", "index": 0}
        end: Body = {"stop_reason": "tool_use" if act.tool else "end_turn", "stop_sequence": None}
        usage = {"output_tokens": act.output}
        yield {"type": "message_delta", "delta": end, "usage": usage}
        yield {"type": "message_stop"}

    def error(self, status: int) -> Body:
        kinds = {429: "rate_limit_error", 401: "authentication_error", 529: "overloaded_error"}
        kind = kinds.get(status, "api_error" if status >= 500 else "invalid_request_error")  # noqa: PLR2004
        return {"type": "error", "error": {"type": kind, "message": f"The stand-in says {status}."}}

    def failure(self) -> bytes:
        return _data(self.error(529), "error")

    def _head(self, asked: Mapping[str, Any]) -> Body:
        model = asked.get("model", "stand-in")
        return {
            "id": "msg_standin",
            "type": "message",
            "role": "assistant",
            "model": model,
            "stop_sequence": None,
        }

    def _tool(self) -> Body:
        return {"type": "tool_use", "id": "toolu_0", "name": "look"}

    def _usage(self, act: Act, output: int) -> Body:
        return {
            "input_tokens": act.input_tokens - act.cached_tokens,
            "cache_read_input_tokens": act.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": output,
        }


class Gemini:
    """`models/…:generateContent`, and `:streamGenerateContent` with `alt=sse`."""

    def whole(self, act: Act, asked: Mapping[str, Any]) -> Body:
        return self._said("".join(_words(act)), act, act.output, "STOP")

    def events(self, act: Act, asked: Mapping[str, Any]) -> Iterator[bytes]:
        for number, word in enumerate(_words(act), start=1):
            last = number == act.chunks
            told = act.output if last else min(number, act.output)
            yield _data(self._said(word, act, told, "STOP" if last else None))

    def error(self, status: int) -> Body:
        name = "RESOURCE_EXHAUSTED" if status == 429 else "INTERNAL"  # noqa: PLR2004
        return {
            "error": {"code": status, "message": f"The stand-in says {status}.", "status": name}
        }

    def failure(self) -> bytes:
        return _data(self.error(503))

    def _said(self, text: str, act: Act, output: int, reason: str | None) -> Body:
        said: Body = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}
        if reason:
            said["finishReason"] = reason
        body: Body = {"candidates": [said], "modelVersion": "stand-in"}
        if act.usage:
            body["usageMetadata"] = {
                "promptTokenCount": act.input_tokens,
                "cachedContentTokenCount": act.cached_tokens,
                "candidatesTokenCount": output,
                "totalTokenCount": act.input_tokens + output,
            }
        return body


APIS: dict[str, Api] = {
    "/chat/completions": Chat(),
    "/completions": Completions(),
    "/responses": Responses(),
    "/messages": Messages(),
    ":generateContent": Gemini(),
    ":streamGenerateContent": Gemini(),
}
"""By how the path ends that is asked; what stands before it depends on the SDK and its version."""


def api_of(path: str) -> Api | None:
    """The API that a path belongs to."""
    return next((api for ending, api in APIS.items() if path.endswith(ending)), None)
