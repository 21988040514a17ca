"""What examples/llm_gateway.py makes of bodies that no SDK sends, and of providers that break off.

Whatever a client sends is its own mistake, or the provider's to refuse: never an error of the gateway's, which
would keep the provider's connection (a response that is neither read nor closed), and the client's tokens.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx
import pytest

from tests.test_llm_gateway import PATH, Load, World, anyio_backend, load

__all__ = ["anyio_backend", "load"]

pytestmark = pytest.mark.anyio

SAID: Final = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)


class Said(httpx.AsyncByteStream):
    """The body of a provider's answer, which may break off, and knows whether it was closed."""

    def __init__(self, *, breaks: bool) -> None:
        self._breaks = breaks
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield SAID
        if self._breaks:
            message = "the connection broke"
            raise httpx.ReadError(message)

    async def aclose(self) -> None:
        self.closed = True


class Answering(World):
    """A gateway whose providers answer every body there is."""

    def __init__(self, load: Load, *, breaks: bool = False, retry_after: bytes = b"1") -> None:
        super().__init__(load)
        self.said: list[Said] = []
        self.urls: list[httpx.URL] = []
        self._breaks = breaks
        self._headers = [(b"retry-after", retry_after)]

    def _provider(self, request: httpx.Request) -> httpx.Response:
        said = Said(breaks=self._breaks)
        self.said.append(said)
        self.urls.append(request.url)
        return httpx.Response(200, headers=self._headers, stream=said)

    async def send(self, content: bytes) -> int:
        """The status of an answer, once its provider was let go."""
        headers = {"authorization": "Bearer sk-demo"}
        answer = await self.client.post(PATH, content=content, headers=headers)
        assert all(said.closed for said in self.said)
        await self.used()
        return answer.status_code


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"model": 5}, 400),
        ({"model": True}, 400),
        ({"model": ["a"]}, 400),
        ({"model": "\ud800"}, 400),
        ({"model": "x" * 2_000}, 400),
        ({"model": None}, 200),
        ({"stream": "yes"}, 200),
        ({"n": "2"}, 200),
        ({"n": 2.0}, 200),
        ({"n": -1}, 200),
        ({"n": True}, 200),
        ({"n": [1]}, 200),
        ({"n": 10**30}, 200),
        ({"stream_options": "x"}, 200),
        ({"stream_options": [1]}, 200),
        ({"stream_options": {"include_usage": "x"}}, 200),
        ({"messages": "x", "max_tokens": "many"}, 200),
    ],
)
async def test_c32_fields_of_the_wrong_types_are_no_error_of_the_gateway(
    load: Load, more: dict[str, Any], status: int
) -> None:
    """C32, C1: a model that is no key is a 400; what a provider may refuse is sent, and the provider let go."""
    world = Answering(load)
    body = {"model": "m", "messages": [], "stream": True, **more}
    assert await world.send(json.dumps(body).encode()) == status
    assert len(world.said) == (status == 200)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"null", b'"m"', b"[]", b"{}", b"[" * 100_000, b'{"model":' * 100_000],
    ids=["empty", "bytes", "null", "text", "list", "no model", "deep", "deep object"],
)
async def test_b9_what_is_no_request_is_a_400(load: Load, content: bytes) -> None:
    """B9: it never gets as far as the limiter, however deep it is nested."""
    world = Answering(load)
    assert await world.send(content) == 400
    assert await world.used() == (False, 0)


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("chat/completions", "/v1/chat/completions"),
        ("..%2F..%2Fadmin", None),
        ("%2e%2e/admin", None),
        ("chat%2F..%2F..%2Fadmin", None),
        ("chat%3Fadmin=1", "/v1/chat%3Fadmin%3D1"),
        ("chat%23/completions", "/v1/chat%23/completions"),
        ("chat%00", "/v1/chat%00"),
        ("%252e%252e/admin", "/v1/%252e%252e/admin"),
        ("gr%C3%BC%C3%9Fe", "/v1/gr%C3%BC%C3%9Fe"),
    ],
)
async def test_a_path_leads_to_nothing_else_of_a_provider(
    load: Load, path: str, sent: str | None
) -> None:
    """Whoever has a key of the gateway's asks for what is below /v1 with the provider's, and for nothing else."""
    world = Answering(load)
    headers = {"authorization": "Bearer sk-demo"}
    target = httpx.URL("http://gateway").copy_with(raw_path=f"/v1/{path}".encode())
    answer = await world.client.post(target, content=b'{"model": "m"}', headers=headers)
    assert answer.status_code == (404 if sent is None else 200)
    assert [url.raw_path.decode() for url in world.urls] == ([] if sent is None else [sent])


async def test_c44_a_whole_answer_that_breaks_off_is_a_502_and_keeps_its_debit(load: Load) -> None:
    """C44: every provider has begun to answer, and may bill it; the client hears it in the gateway's own words."""
    world = Answering(load, breaks=True)
    assert await world.send(b'{"model": "m", "messages": [], "max_tokens": 3000}') == 502
    assert len(world.said) == 2
    assert await world.used() == (True, 1)


async def test_a_providers_header_that_cannot_be_sent_is_left_out(load: Load) -> None:
    """`retry-after` in somebody's own words, beyond ASCII, is passed on by nobody."""
    world = Answering(load, retry_after="später €".encode())
    assert await world.send(b'{"model": "m", "messages": []}') == 200
