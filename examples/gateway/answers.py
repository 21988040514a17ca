"""What the gateway itself says: errors in OpenAI's shape."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from earmark import RateLimited
from earmark.http import answer_to


def failed(status: int, code: str, message: str) -> JSONResponse:
    """An error whose body has OpenAI's shape."""
    error = {"message": message, "type": code, "param": None, "code": code}
    return JSONResponse({"error": error}, status)


def rate_limited(refusal: RateLimited) -> Response:
    """A 429 that says which limit refused, and when to come back where a time can be named."""
    answer = answer_to(refusal)
    return Response(answer.content, answer.status, answer.headers)
