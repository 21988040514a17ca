"""A proxy that passes a provider's stream on byte for byte, and settles what it used.

Whose stream it is, is found out from its first events: one proxy serves every provider. OpenAI has to be asked for the
usage; where the client did not ask, the proxy does, and takes out the one event that is there for the usage alone.
What else a gateway has to do (keys, errors, answers that are not streamed) is shown in `gateway`.

    python examples/stream_proxy.py
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httpx
from gateway.answers import rate_limited
from gateway.serving import serving
from loopback import provider, streamed
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from earmark import Event, Limiter, Limits, RateLimited, Scope, ask_for_usage
from earmark.contrib.asgi import ReservedStream

ALICE: Final = Scope("api_key:alice", Limits(rpm=60, tpm=2_000, concurrency=4))
HOLD: Final = 300

CHAT: Final = {"messages": [], "stream": True}
REQUESTS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", CHAT),
    ("/v1/messages", {**CHAT, "system": "Be brief."}),
    ("/v1/models/stand-in-1:streamGenerateContent", {"contents": []}),
)


def show(event: Event) -> None:
    """Print what became of a request."""
    if event.kind == "settled":
        print(f"{event.asked['tokens']} tokens held, {event.used['tokens']} used: ", end="")


class Proxy:
    """Passes every request on to one provider, under one scope's limits."""

    def __init__(self, limiter: Limiter, upstream: httpx.AsyncClient) -> None:
        self._limiter = limiter
        self._upstream = upstream

    async def forward(self, request: Request) -> Response:
        """Answer one request with the provider's own bytes."""
        body = await request.body()
        asking = ask_for_usage(body)
        try:
            reservation = await self._limiter.pre_commit(ALICE, tokens=HOLD)
        except RateLimited as refusal:
            return rate_limited(refusal)
        async with reservation:
            outgoing = self._upstream.build_request(
                "POST", request.url.path, content=asking, headers={"accept-encoding": "identity"}
            )
            response = await self._upstream.send(outgoing, stream=True)
            stream = reservation.stream(
                response.aiter_raw(), aclose=response.aclose, hide_usage=asking is not body
            )
            return ReservedStream(stream, media_type=response.headers["content-type"])


async def main() -> None:
    limiter = Limiter(observers=[show])
    async with provider() as url, httpx.AsyncClient(base_url=url) as upstream:
        forward = Route("/{path:path}", Proxy(limiter, upstream).forward, methods=["POST"])
        async with (
            serving(Starlette(routes=[forward])) as proxy_url,
            httpx.AsyncClient(base_url=proxy_url) as client,
        ):
            for path, body in REQUESTS:
                answer = await client.post(path, json=body)
                events = streamed(path)
                came = [event for event in events if event in answer.content]
                untouched = answer.content == b"".join(came)
                print(f"{len(came)} of {len(events)} events of {path}, untouched: {untouched}")


asyncio.run(main())
