"""What the gateway itself says: a stream that is closed in any case, and errors in OpenAI's shape."""

from __future__ import annotations

import math
from collections.abc import Mapping

from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from earmark import BudgetExceeded, Denial, ObservedStream, RateLimited, Refused


class Streamed(StreamingResponse):
    """Passes an observed stream on, and closes it however the client goes."""

    def __init__(self, stream: ObservedStream[bytes], media_type: str | None) -> None:
        super().__init__(stream, media_type=media_type)
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; when the client leaves, some servers cancel this, with others `send` raises."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stream.aclose()


def failed(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """An error whose body has OpenAI's shape."""
    error = {"message": message, "type": code, "param": None, "code": code}
    return JSONResponse({"error": error}, status, headers)


def refused(refusal: Refused) -> JSONResponse:
    """A 429 that says why."""
    if isinstance(refusal, RateLimited):
        return rate_limited(refusal)
    if isinstance(refusal, BudgetExceeded):
        return over_budget(refusal)
    return failed(429, "refused", str(refusal))


def rate_limited(refusal: RateLimited) -> JSONResponse:
    """A 429 that says which limit refused, and when to come back where a time can be named."""
    message = f"Rate limit reached for {_limit(max(refusal.denials, key=_wait))}."
    headers = {}
    if not refusal.retryable:
        message += " This request can never fit into it."
        headers["x-should-retry"] = "false"  # OpenAI's and Anthropic's SDKs obey it
    elif refusal.retry_after is None:
        message += " Please try again when one of your requests has ended."
    else:
        seconds = max(1, math.ceil(refusal.retry_after))
        message += f" Please try again in {seconds} s."
        headers["retry-after"] = str(seconds)
    return failed(429, "rate_limit_exceeded", message, headers)


def over_budget(refusal: BudgetExceeded) -> JSONResponse:
    """A 429 as OpenAI has it for a quota; what others have spent of the budget is none of the client's business."""
    budget = refusal.budget
    message = f"The {budget.period} budget of {refusal.limit} {budget.currency} is spent."
    headers = {}
    if refusal.retry_after is None:
        headers["x-should-retry"] = "false"
    else:
        headers["retry-after"] = str(max(1, math.ceil(refusal.retry_after)))
    return failed(429, "insufficient_quota", message, headers)


def _wait(denial: Denial) -> float:
    """How long a limit refuses: for ever, for so many seconds, or until somebody frees a slot."""
    return (denial.retry_after or 0.0) if denial.retryable else math.inf


def _limit(denial: Denial) -> str:
    """A limit in words, without the scope's key and without what others have used: a client reads it."""
    limit = denial.limit
    if limit.window is None:
        return f"requests: {limit.amount:,} at a time"
    return f"{limit.metric}: {limit.amount:,} in {limit.window:g} seconds"
