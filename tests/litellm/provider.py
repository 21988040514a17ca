"""A stand-in for two providers, in a thread: OpenAI's chat completions and embeddings, and Anthropic's messages.

What the request's last message says is what becomes of it: "refuse 400" is refused, "hold" waits in the middle of the
answer until the test lets it go on.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

OPENAI_USAGE: Final = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
ANTHROPIC_USAGE: Final = {"input_tokens": 9, "output_tokens": 3}
WAIT_SECONDS: Final = 30


class Provider:
    """What the test and the server share.

    Attributes:
        url: where it answers.
        asked: the bodies of all requests.
        go_on: lets the answers go on that hold.
        holding: set while one holds.
    """

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.go_on = threading.Event()
        self.holding = threading.Event()


@contextmanager
def serving() -> Iterator[Provider]:
    """Serve until the block ends."""
    provider = Provider()
    handler = type("Handler", (_Handler,), {"provider": provider})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        provider.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield provider
        server.shutdown()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    provider: Provider
    protocol_version = "HTTP/1.0"  # a body ends where the connection does

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name
        """Say nothing."""

    def do_POST(self) -> None:
        """Answer."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.provider.asked.append(body)
        said = _said(body)
        if "refuse" in said:
            statuses = said.split("refuse ")[
                1
            ].split()  # one after the other, then the last one on and on
            times = sum(_said(one) == said for one in self.provider.asked)
            status = int(statuses[min(times, len(statuses)) - 1])
            self._json(status, {"error": {"message": "refused", "type": "invalid_request_error"}})
        elif self.path.endswith("/embeddings"):
            data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
            usage = {"prompt_tokens": 9, "total_tokens": 9}
            self._json(200, {"object": "list", "model": "e", "data": data, "usage": usage})
        elif body.get("stream"):
            events = _anthropic() if "messages" in self.path else _openai(body)
            self._stream(events, hold="hold" in said)
        elif "messages" in self.path:
            self._json(200, _MESSAGE | {"usage": ANTHROPIC_USAGE})
        else:
            message = {"role": "assistant", "content": "Hi"}
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
            self._json(200, _CHAT | {"choices": choices, "usage": OPENAI_USAGE})

    def _json(self, status: int, body: object) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def _stream(self, events: list[bytes], *, hold: bool) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        middle = len(events) // 2
        try:
            for number, event in enumerate(events):
                if hold and number == middle:
                    self.provider.holding.set()
                    self.provider.go_on.wait(WAIT_SECONDS)
                self.wfile.write(event)
        except OSError:
            return  # whoever listened has gone


def _said(body: dict[str, Any]) -> str:
    return str(body.get("messages", [{}])[-1].get("content"))


_CHAT: Final = {"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-4o"}
_CHUNK: Final = _CHAT | {"object": "chat.completion.chunk"}
_MESSAGE: Final = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "Hi"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
}


def _openai(body: dict[str, Any]) -> list[bytes]:
    """The events of a chat completion, with usage where it was asked for."""
    deltas: list[tuple[dict[str, Any], str | None]] = [
        ({"role": "assistant", "content": "Hi"}, None),
        ({"content": " there"}, None),
        ({"content": "!"}, None),
        ({}, "stop"),
    ]
    chunks: list[dict[str, Any]] = [
        _CHUNK | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        for delta, reason in deltas
    ]
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append(_CHUNK | {"choices": [], "usage": OPENAI_USAGE})
    return [b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks] + [
        b"data: [DONE]\n\n"
    ]


def _anthropic() -> list[bytes]:
    """The events of a message."""
    start = _MESSAGE | {"content": [], "stop_reason": None}
    events: list[dict[str, Any]] = [
        {
            "type": "message_start",
            "message": start | {"usage": {"input_tokens": 9, "output_tokens": 1}},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 3},
        },
        {"type": "message_stop"},
    ]
    return [
        b"event: %s\ndata: %s\n\n" % (str(event["type"]).encode(), json.dumps(event).encode())
        for event in events
    ]
