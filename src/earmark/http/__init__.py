"""What a gateway says over HTTP: the answer to a refusal, and the headers of an admission.

Nothing here knows a framework: an answer is a status, headers and a body, in the words that a client's SDK reads.

* OpenAI's: `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, the reset as a duration of Go's ("6m0s",
  "20ms"), and `{"error": {"message", "type", "param", "code"}}`;
* Anthropic's: `anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}`, the reset as
  a time of RFC 3339, and `{"type": "error", "error": {"type", "message"}}`;
* plain: `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-10, lists of structured fields
  (RFC 9651), and a problem of RFC 9457 with that draft's type `quota-exceeded`.

`Retry-After` is of RFC 9110, in whole seconds, rounded up and at least 1. `retry-after-ms` and `x-should-retry` are
read by OpenAI's and Anthropic's SDKs before it.

The binding limit speaks in all of them: of a refusal the one that refuses
the longest, of an admission, for each metric, the one with the least that remains. A scope that is not enforced binds
nobody and is not shown. A body names metric and limit, and neither a scope's key nor what others have used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, cast

from earmark.answers import Denial, LimitStatus, ScopeStatus
from earmark.core.admission import keep_tightest
from earmark.errors import BackendUnavailable, RateLimited, Refused
from earmark.http.bodies import (
    BODIES,
    FIELDS_OF,
    Said,
    Style,
    longest,
    said_by_budget,
    said_by_limits,
)
from earmark.http.fields import Fields, go_duration, policy_name, rate_limit_fields, whole
from earmark.http.passing import passed_on
from earmark.limits import CONCURRENCY

__all__ = [
    "Admission",
    "Answer",
    "BudgetStatus",
    "Fields",
    "Style",
    "answer_to",
    "go_duration",
    "policy_name",
    "rate_limit_headers",
    "retry_headers",
    "upstream_retry_headers",
]

BudgetStatus = Literal[402, 403, 429]
"""What a budget's refusal is: payment required, forbidden, or too many requests."""

_PASSED_ON: Final = ("retry-after", "retry-after-ms", "x-should-retry")


class Admission(Protocol):
    """What was admitted: a `Reservation`, or an attempt of a `once`."""

    @property
    def binding(self) -> Mapping[str, LimitStatus]:
        """By metric, the limit of an enforcing scope that has the least left."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What is to be sent.

    Attributes:
        status: the HTTP status.
        headers: by their names in lower case; `content-type` among them.
        body: what becomes JSON.
    """

    status: int
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def content(self) -> bytes:
        """The body's bytes."""
        return json.dumps(self.body, ensure_ascii=False, separators=(",", ":")).encode()


def answer_to(
    error: Refused | BackendUnavailable,
    style: Style = "openai",
    *,
    fields: Iterable[Fields] | None = None,
    budget_status: BudgetStatus = 429,
    details: bool = False,
) -> Answer:
    """The answer to a request that was refused: 429, or for a budget what is chosen, or 503 without a decision.

    Args:
        error: a `RateLimited`, a refusal by a budget, or a `BackendUnavailable`.
        style: whose words the body uses.
        fields: whose rate-limit headers; by default those that go with the style.
        budget_status: the status of a refusal by a budget.
        details: have the body name scopes and figures, which may be other tenants': for a gateway whose users are
            its own operators.

    Raises:
        ValueError: another style, header family or status.
    """
    if style not in FIELDS_OF:
        msg = f"style must be one of {', '.join(FIELDS_OF)}, not {style!r}"
        raise ValueError(msg)
    if budget_status not in {402, 403, 429}:
        msg = f"budget_status must be 402, 403 or 429, not {budget_status!r}"
        raise ValueError(msg)
    if isinstance(error, RateLimited):
        said = said_by_limits(error, details=details)
    elif isinstance(error, BackendUnavailable):
        said = Said(
            503, "Nobody can tell at the moment whether a limit is reached.", "limits_unavailable"
        )
    else:
        said = said_by_budget(error, budget_status, details=details)
    families = (FIELDS_OF[style],) if fields is None else tuple(fields)
    media_type = "application/problem+json" if style == "problem" else "application/json"
    headers = {"content-type": media_type, **retry_headers(error)}
    headers.update(rate_limit_fields(_binding_denials(error), families))
    return Answer(said.status, headers, BODIES[style](said))


def retry_headers(error: Refused | BackendUnavailable) -> dict[str, str]:
    """When to come back: `retry-after` and `retry-after-ms`, or `x-should-retry: false` where it never helps (R3).

    Empty where no time can be named: a slot is free when somebody lets go of it.
    """
    if isinstance(error, BackendUnavailable):
        return {"retry-after": "1"}
    if not error.retryable:
        return {"x-should-retry": "false"}
    seconds = error.retry_after
    if seconds is None:
        return {}
    return {
        "retry-after": str(whole(seconds, least=1)),
        "retry-after-ms": str(whole(seconds * 1_000, least=1)),
    }


def upstream_retry_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """What of a provider's own refusal is passed on to the client: when it may come back, and whether.

    A value that is no printable ASCII says neither, and is left out: many a server cannot send it.

    Args:
        headers: the provider's, of any case.
    """
    return passed_on(headers, _PASSED_ON)


def rate_limit_headers(
    admission: Admission | Iterable[ScopeStatus], *fields: Fields, now: float | None = None
) -> dict[str, str]:
    """The rate-limit headers of a response: for each metric the limit with the least that remains.

    They show the limits as this request left them, its own hold counted (B56); concurrency has no headers.

    Args:
        admission: a reservation or an attempt; or statuses, where only some of them are to speak.
        fields: whose headers, by default OpenAI's.
        now: seconds since the epoch, for Anthropic's reset times; by default the wall clock's.

    Raises:
        ValueError: another header family.
    """
    bound: Mapping[str, LimitStatus] | None = getattr(admission, "binding", None)
    if bound is None:
        bound = _binding(cast("Iterable[ScopeStatus]", admission))
    return rate_limit_fields(bound, fields or ("openai",), now)


def _binding(statuses: Iterable[ScopeStatus]) -> dict[str, LimitStatus]:
    binding: dict[str, LimitStatus] = {}
    for status in statuses:
        for one in status.limits:
            keep_tightest(binding, one)
    binding.pop(CONCURRENCY, None)
    return binding


def _binding_denials(error: Refused | BackendUnavailable) -> dict[str, LimitStatus]:
    """By metric the denial that refuses the longest, as a status."""
    binding: dict[str, Denial] = {}
    if isinstance(error, RateLimited):
        for denial in error.denials:
            metric = denial.limit.metric
            if metric != CONCURRENCY and (
                metric not in binding or longest(denial) > longest(binding[metric])
            ):
                binding[metric] = denial
    return {metric: _as_status(denial) for metric, denial in binding.items()}


def _as_status(denial: Denial) -> LimitStatus:
    remaining = max(denial.limit.capacity - denial.used, 0)
    return LimitStatus(denial.limit, denial.used, remaining, denial.reset_after, would_refuse=True)
