"""What is said of a refusal, and the bodies that say it: OpenAI's, Anthropic's, and a problem of RFC 9457."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal

from earmark.answers import Denial
from earmark.errors import RateLimited, Refused
from earmark.http.fields import Fields, policy_name, whole
from earmark.limits import CONCURRENCY, REQUESTS, spelled
from earmark.usage import TOKEN_METRICS

Style = Literal["openai", "anthropic", "problem"]
"""Whose words a body uses."""

FIELDS_OF: Final[Mapping[Style, Fields]] = {
    "openai": "openai",
    "anthropic": "anthropic",
    "problem": "ietf",
}
"""The rate-limit headers that go with a style."""

_PERIODS: Final = {1: "second", 60: "minute", 3_600: "hour", 86_400: "day"}

_QUOTA_EXCEEDED: Final = "https://iana.org/assignments/http-problem-types#quota-exceeded"


def longest(denial: Denial) -> float:
    """How long a limit refuses: for ever, for so many seconds, or until somebody lets go of a slot."""
    return (denial.retry_after or 0.0) if denial.retryable else math.inf


@dataclass(frozen=True, slots=True)
class Said:
    """What a body has to say.

    Attributes:
        kind: OpenAI's `type`.
        violated: the policies that refused, as the IETF's problem names them.
        more: further members of a problem.
    """

    status: int
    message: str
    code: str
    kind: str = ""
    violated: tuple[str, ...] = ()
    more: Mapping[str, Any] | None = None


def said_by_limits(refusal: RateLimited, *, details: bool) -> Said:
    """What limits say, by the one that refuses the longest."""
    denial = max(refusal.denials, key=longest)
    metric = denial.limit.metric
    message = _sentence(denial, refusal)
    more: Mapping[str, Any] | None = None
    if details:
        message = f"{message} ({refusal})"
        more = {"denials": [_figures(denial) for denial in refusal.denials]}
    kind = "tokens" if metric in TOKEN_METRICS else "requests"
    known = metric in TOKEN_METRICS or metric in {REQUESTS, CONCURRENCY}
    violated = dict.fromkeys(
        policy_name(one.limit) for one in refusal.denials if one.limit.metric != CONCURRENCY
    )
    code = "rate_limit_exceeded"
    return Said(429, message, code, kind if known else code, tuple(violated), more)


def _sentence(denial: Denial, refusal: RateLimited) -> str:
    limit = denial.limit
    metric = limit.metric.replace("_", " ")
    if limit.window is None:
        hint = " Please try again when one of them has ended." if denial.retryable else ""
        return f"Rate limit reached: at most {limit.capacity} requests at a time.{hint}"
    period = _PERIODS.get(limit.window) if isinstance(limit.window, int) else None
    most = f"at most {limit.capacity} {metric} per {period or f'{spelled(limit.window)} s'}"
    if not denial.retryable:
        return f"Request too large: it asks for {max(denial.asked, 1)} {metric}, and {most} are granted."
    if refusal.retry_after is None:
        return f"Rate limit reached: {most}."
    return (
        f"Rate limit reached: {most}. Please try again in {whole(refusal.retry_after, least=1)} s."
    )


def _figures(denial: Denial) -> dict[str, Any]:
    return {
        "key": denial.key,
        "metric": denial.limit.metric,
        "limit": denial.limit.capacity,
        "window": denial.limit.window,
        "used": denial.used,
        "asked": denial.asked,
        "retry_after": denial.retry_after,
    }


def said_by_budget(refusal: Refused, status: int, *, details: bool) -> Said:
    """What a budget says: when the next period begins, if it does."""
    message = "The budget for these requests is spent."
    if refusal.retry_after is not None:
        message += f" Please try again in {whole(refusal.retry_after, least=1)} s."
    if details:
        message = f"{message} ({refusal})"
    return Said(status, message, "insufficient_quota")


def _openai_body(said: Said) -> dict[str, Any]:
    kind = (
        "server_error"
        if said.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        else said.kind or said.code
    )
    error = {"message": said.message, "type": kind, "param": None, "code": said.code}
    return {"error": error}


_ANTHROPIC_TYPES: Final = {
    402: "billing_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "api_error",
}


def _anthropic_body(said: Said) -> dict[str, Any]:
    error = {"type": _ANTHROPIC_TYPES[said.status], "message": said.message}
    return {"type": "error", "error": error}


def _problem_body(said: Said) -> dict[str, Any]:
    body: dict[str, Any] = {
        "type": _QUOTA_EXCEEDED if said.code == "rate_limit_exceeded" else "about:blank",
        "title": HTTPStatus(said.status).phrase,
        "status": said.status,
        "detail": said.message,
    }
    if said.violated:
        body["violated-policies"] = list(said.violated)
    return {**body, **(said.more or {})}


BODIES: Final = {
    "openai": _openai_body,
    "anthropic": _anthropic_body,
    "problem": _problem_body,
}
