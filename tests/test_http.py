"""What is said over HTTP (B4, B55, B56, R3): status, headers and bodies, in three families of words.

The IETF's fields are read back by a parser of structured fields that is not ours; durations by what Go's parser does.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earmark import (
    BackendUnavailable,
    Denial,
    Limit,
    Limiter,
    Limits,
    LimitStatus,
    MemoryBackend,
    RateLimited,
    Refused,
    Reservation,
    Scope,
    ScopeStatus,
)
from earmark.http import (
    Answer,
    Style,
    answer_to,
    go_duration,
    policy_name,
    rate_limit_headers,
    retry_headers,
    upstream_retry_headers,
)
from earmark.testing import ManualClock

pytestmark = pytest.mark.anyio

KEY: Final = "api_key:alice"
RETRY: Final = ("retry-after", "retry-after-ms", "x-should-retry")


STATUSES: Final = (
    ScopeStatus(KEY, (LimitStatus(Limit("requests", 5, 60), 1, 4, 3.5, would_refuse=False),)),
)


class Spent(Refused):
    """A refusal by a budget, as a ledger raises it."""

    def __init__(self, seconds: float | None, *, retryable: bool = True) -> None:
        super().__init__("budget of org-7: 10.00 USD, 10.00 spent")
        self._seconds = seconds
        self._retryable = retryable

    @property
    def retry_after(self) -> float | None:
        return self._seconds

    @property
    def retryable(self) -> bool:
        return self._retryable


async def refusal(
    limits: Limits, *, now: float = 20.0, first: int = 0, tokens: int = 0
) -> RateLimited:
    """How the second request of a key is refused."""
    limiter = Limiter(MemoryBackend(clock=ManualClock(now)))
    scope = Scope(KEY, limits)
    async with await limiter.pre_commit(scope, tokens=first):
        with pytest.raises(RateLimited) as refused:
            await limiter.pre_commit(scope, tokens=tokens)
    return refused.value


# Limits, the clock, tokens of the first request and of the second; the retry headers; what the message says.
TOO_SOON: Final[Sequence[tuple[Limits, float, int, int, dict[str, str], str]]] = (
    # B3, B4: whole seconds, rounded up, never 0; the milliseconds beside them.
    (
        Limits(rpm=1),
        20.0,
        0,
        0,
        {"retry-after": "40", "retry-after-ms": "40000"},
        "1 requests per minute",
    ),
    (Limits(rpm=1), 20.5, 0, 0, {"retry-after": "40", "retry-after-ms": "39500"}, "again in 40 s"),
    (Limits(rpm=1), 59.99, 0, 0, {"retry-after": "1", "retry-after-ms": "10"}, "again in 1 s"),
    (Limits(rpm=1), 59.9999, 0, 0, {"retry-after": "1", "retry-after-ms": "1"}, "again in 1 s"),
    # B20: the limit that refuses the longest speaks.
    (
        Limits(rph=1, tpm=100),
        20.0,
        50,
        60,
        {"retry-after": "3580", "retry-after-ms": "3580000"},
        "1 requests per hour",
    ),
    # B55: no time can be named.
    (Limits(concurrency=1), 20.0, 0, 0, {}, "1 requests at a time"),
    # B19, R3: never.
    (
        Limits(rpm=1, tpm=80),
        20.0,
        0,
        90,
        {"x-should-retry": "false"},
        "90 tokens, and at most 80 tokens per minute",
    ),
    (
        Limits(also=[Limit("tokens", 10, 90)]),
        20.0,
        10,
        5,
        {"retry-after": "70", "retry-after-ms": "70000"},
        "per 90 s",
    ),
    # A month has more digits than a float is written with.
    (
        Limits(also=[Limit("tokens", 10, 30 * 86_400)]),
        20.0,
        10,
        5,
        {"retry-after": "2591980", "retry-after-ms": "2591980000"},
        "per 2592000 s. Please try again in 2591980 s",
    ),
)


@pytest.mark.parametrize(("limits", "now", "first", "tokens", "headers", "words"), TOO_SOON)
async def test_b55_a_refusal_in_openais_words(
    limits: Limits, now: float, first: int, tokens: int, headers: dict[str, str], words: str
) -> None:
    """B4, B55, R3: 429, when to come back, OpenAI's body, and nobody's key."""
    refused = await refusal(limits, now=now, first=first, tokens=tokens)
    answer = answer_to(refused)
    assert answer.status == 429
    assert {name: answer.headers[name] for name in RETRY if name in answer.headers} == headers
    assert retry_headers(refused) == headers
    body = json.loads(answer.content)
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["code"] == "rate_limit_exceeded"
    assert words in body["error"]["message"]
    assert "alice" not in answer.content.decode()
    assert answer.headers["content-type"] == "application/json"


async def test_r3_nobody_is_told_to_come_back_where_it_never_helps() -> None:
    """R3: a limit of no slots at all frees none; the body says nothing else than `x-should-retry: false`."""
    limiter = Limiter()
    with pytest.raises(RateLimited) as refused:
        await limiter.pre_commit(Scope(KEY, Limits(concurrency=0)))
    answer = answer_to(refused.value)
    assert answer.headers["x-should-retry"] == "false"
    assert answer.body["error"]["message"] == "Rate limit reached: at most 0 requests at a time."


@pytest.mark.parametrize(
    ("window", "text"),
    [
        (60, "60"),
        (90.0, "90"),
        (0.5, "0.5"),
        (1 / 3, "0.333333"),
        (1e-6, "0.000001"),
        (1_234_567, "1234567"),
        (2_592_000.25, "2592000.25"),
        (10_000_000, "10000000"),
    ],
)
def test_a_window_is_written_exactly(window: float, text: str) -> None:
    """Two windows have two names, in headers, bodies, errors and labels of metrics alike."""
    limit = Limit("tokens", 10, window)
    assert policy_name(limit) == f"tokens-{text}s"
    assert f"tokens per {text} s" in str(Denial(KEY, limit, 10, 1, 1.0, 1.0))


async def test_b55_the_strict_anthropic_body() -> None:
    """B55: exactly the members that Anthropic's has, and its headers."""
    refused = await refusal(Limits(rpm=1, itpm=10))
    answer = answer_to(refused, "anthropic")
    message = "Rate limit reached: at most 1 requests per minute. Please try again in 40 s."
    assert json.loads(answer.content) == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": message},
    }
    assert answer.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert answer.headers["retry-after"] == "40"
    assert not any(name.startswith("x-ratelimit") for name in answer.headers)


async def test_b55_a_problem() -> None:
    """RFC 9457, with the draft's type and the policies that were violated, as the headers name them."""
    refused = await refusal(Limits(rpm=1, tpm=100, concurrency=1), first=60, tokens=60)
    answer = answer_to(refused, "problem")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.body == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too Many Requests",
        "status": 429,
        "detail": "Rate limit reached: at most 1 requests per minute. Please try again in 40 s.",
        "violated-policies": ["requests-60s", "tokens-60s"],
    }
    policies = parsed(answer.headers["ratelimit-policy"])
    assert [name for name, _ in policies] == answer.body["violated-policies"]


async def test_c17_the_headers_are_of_the_limit_that_refused() -> None:
    """C17: headers described another metric than the one that tripped; here the binding one of each metric speaks."""
    refused = await refusal(Limits(rpm=1, rpd=1, tpm=1_000))
    answer = answer_to(refused, fields=["openai", "ietf"])
    assert answer.headers["x-ratelimit-limit-requests"] == "1"
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert answer.headers["x-ratelimit-reset-requests"] == "23h59m40s"
    assert "x-ratelimit-limit-tokens" not in answer.headers
    assert parsed(answer.headers["ratelimit"]) == [("requests-86400s", {"r": 0, "t": 86_380})]


@pytest.mark.parametrize("style", ["openai", "anthropic", "problem"])
async def test_details_only_where_they_are_asked_for(style: Any) -> None:
    """No scope key and no figures of others in a body, unless asked."""
    refused = await refusal(Limits(rpm=7_001, tpm=90), first=81, tokens=17)
    plain, told = answer_to(refused, style), answer_to(refused, style, details=True)
    assert not re.search("alice|81", plain.content.decode())
    assert "alice" in told.content.decode()
    assert "81" in told.content.decode()
    assert plain.headers == told.headers


@pytest.mark.parametrize(
    ("style", "status", "kind"),
    [
        ("openai", 429, "insufficient_quota"),
        ("openai", 402, "insufficient_quota"),
        ("openai", 403, "insufficient_quota"),
        ("anthropic", 429, "rate_limit_error"),
        ("anthropic", 402, "billing_error"),
        ("anthropic", 403, "permission_error"),
        ("problem", 402, "about:blank"),
    ],
)
def test_a_budget_refuses_by_choice(style: Any, status: Any, kind: str) -> None:
    """A budget is 402, 403 or 429; what it is and who has spent it is nobody's business."""
    answer = answer_to(Spent(3_600.0), style, budget_status=status)
    body: Any = answer.body
    assert answer.status == status
    assert body.get("error", body)["type"] == kind
    assert answer.headers["retry-after"] == "3600"
    assert "org-7" not in answer.content.decode()
    assert "org-7" in answer_to(Spent(None), style, details=True).content.decode()
    never = answer_to(Spent(None, retryable=False), style, budget_status=status)
    assert never.headers["x-should-retry"] == "false"
    assert "retry-after" not in never.headers


@pytest.mark.parametrize(
    ("style", "kind"),
    [("openai", "server_error"), ("anthropic", "api_error"), ("problem", "about:blank")],
)
def test_without_a_decision(style: Any, kind: str) -> None:
    """`on_outage="closed"`: 503, which is no quota (C57)."""
    answer = answer_to(BackendUnavailable("redis://secret cannot be reached"), style)
    body: Any = answer.body
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert body.get("error", body)["type"] == kind
    assert "secret" not in answer.content.decode()


def test_an_upstreams_refusal_is_passed_on() -> None:
    """A provider's own 429: when the client may come back, whatever the case of the headers, and nothing else."""
    theirs = {
        "Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT",
        "Retry-After-Ms": "1500",
        "X-Should-Retry": "false",
        "x-ratelimit-remaining-tokens": "0",
        "set-cookie": "a=b",
    }
    assert upstream_retry_headers(theirs) == {
        "retry-after": "Wed, 21 Oct 2026 07:28:00 GMT",
        "retry-after-ms": "1500",
        "x-should-retry": "false",
    }
    assert upstream_retry_headers({}) == {}
    # What a server could not send, or what would be two headers, is nobody's word.
    odd = {
        "retry-after": "später €",
        "retry-after-ms": "1\r\nset-cookie: a=b",
        "x-should-retry": "",
    }
    assert upstream_retry_headers(odd) == {}


@pytest.mark.parametrize(
    "call",
    [
        lambda: answer_to(Spent(1.0), "soap"),  # type: ignore[arg-type]
        lambda: answer_to(Spent(1.0), budget_status=500),  # type: ignore[arg-type]
        lambda: rate_limit_headers(STATUSES, "soap"),  # type: ignore[arg-type]
    ],
)
def test_another_style_is_an_error(call: Any) -> None:
    """A misspelt style does not silently become another."""
    with pytest.raises(ValueError, match="must be"):
        call()


async def admitted(*scopes: Scope, tokens: int = 0, now: float = 20.0) -> Reservation:
    limiter = Limiter(MemoryBackend(clock=ManualClock(now)))
    return await limiter.pre_commit(*scopes, tokens=tokens)


async def test_b56_an_admission_in_openais_words() -> None:
    """B56: for configured limits only, and remaining already counts this request: 99 after the first of 100."""
    async with await admitted(Scope(KEY, Limits(rpm=100, concurrency=3))) as reservation:
        assert rate_limit_headers(reservation) == {
            "x-ratelimit-limit-requests": "100",
            "x-ratelimit-remaining-requests": "99",
            "x-ratelimit-reset-requests": "40s",
        }
    async with await admitted(Scope(KEY, Limits())) as reservation:
        assert rate_limit_headers(reservation, "openai", "anthropic", "ietf") == {}


async def test_b56_the_tightest_of_each_metric_speaks() -> None:
    """The binding limit of all scopes; one that is not enforced binds nobody."""
    alice = Scope(KEY, Limits(rpm=100, rph=50, tpm=90_000, itpm=70))
    model = Scope("model", Limits(tpm=2_000))
    shadow = Scope("shadow", Limits(rpm=1, tpm=10), enforce=False)
    async with await admitted(alice, model, shadow, tokens=500) as reservation:
        assert rate_limit_headers(reservation, "openai", "anthropic", "ietf", now=1_000.25) == {
            "x-ratelimit-limit-requests": "50",
            "x-ratelimit-remaining-requests": "49",
            "x-ratelimit-reset-requests": "59m40s",
            "x-ratelimit-limit-tokens": "2000",
            "x-ratelimit-remaining-tokens": "1500",
            "x-ratelimit-reset-tokens": "40s",
            "anthropic-ratelimit-requests-limit": "50",
            "anthropic-ratelimit-requests-remaining": "49",
            "anthropic-ratelimit-requests-reset": "1970-01-01T01:16:21Z",
            "anthropic-ratelimit-tokens-limit": "2000",
            "anthropic-ratelimit-tokens-remaining": "1500",
            "anthropic-ratelimit-tokens-reset": "1970-01-01T00:17:21Z",
            "anthropic-ratelimit-input-tokens-limit": "70",
            "anthropic-ratelimit-input-tokens-remaining": "70",
            "anthropic-ratelimit-input-tokens-reset": "1970-01-01T00:17:21Z",
            "ratelimit-policy": '"requests-3600s";q=50;w=3600, "tokens-60s";q=2000;qu="tokens";w=60, '
            '"input_tokens-60s";q=70;qu="input_tokens";w=60',
            "ratelimit": '"requests-3600s";r=49;t=3580, "tokens-60s";r=1500;t=40, '
            '"input_tokens-60s";r=70;t=40',
        }
        only_alice = rate_limit_headers(reservation.statuses[:1])
        assert only_alice["x-ratelimit-limit-tokens"] == "90000"


async def test_b56_an_attempt_shows_the_request_and_its_target() -> None:
    """An attempt of a `once` is an admission, too."""
    limiter = Limiter(MemoryBackend(clock=ManualClock()))
    async with limiter.once(Scope(KEY, Limits(rpm=9)), tokens=4) as once:
        attempt = await once.attempt(Scope("p1", Limits(tpm=10)))
        headers = rate_limit_headers(attempt)
    assert headers["x-ratelimit-remaining-requests"] == "8"
    assert headers["x-ratelimit-remaining-tokens"] == "6"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.0001, "1ms"),
        (0.02, "20ms"),
        (0.9991, "1s"),
        (1.0, "1s"),
        (1.5, "1.5s"),
        (59.92, "59.92s"),
        (60.0, "1m0s"),
        (90.951, "1m30.951s"),
        (360.0, "6m0s"),
        (3_600.0, "1h0m0s"),
        (10_368.0, "2h52m48s"),
        (86_400.0, "24h0m0s"),
    ],
)
def test_a_duration_is_gos(seconds: float, text: str) -> None:
    """The format of `x-ratelimit-reset-*`."""
    assert go_duration(seconds) == text


@given(st.integers(0, 10**12))
def test_a_duration_is_read_back(microseconds: int) -> None:
    """Never early, and never late by a millisecond."""
    found = re.fullmatch(
        r"(?:(\d+)h)?(?:(\d+)m)?(\d+(?:\.\d{1,3})?)s|(\d+)ms", go_duration(microseconds / 1e6)
    )
    assert found
    hours, minutes, seconds, milliseconds = found.groups()
    if milliseconds:
        total = float(milliseconds)
    else:
        total = 1e3 * (3_600 * int(hours or 0) + 60 * int(minutes or 0) + float(seconds))
    assert round(total) == math.ceil(microseconds / 1_000)


limits = st.builds(
    Limit,
    st.sampled_from(["requests", "tokens", "input_tokens", "images"])
    | st.text(min_size=1, max_size=9),
    st.integers(0, 2**53 - 1),
    st.floats(0.001, 1e9) | st.integers(1, 10**6),
).filter(lambda limit: limit.metric != "concurrency")


@given(limits, st.integers(0, 2**53 - 1), st.none() | st.floats(0, 1e9))
def test_the_ietf_fields_are_structured_fields(
    limit: Limit, remaining: int, reset: float | None
) -> None:
    """draft-ietf-httpapi-ratelimit-headers-10: strings with integer parameters, whatever a metric is called."""
    status = ScopeStatus(KEY, (LimitStatus(limit, 0, remaining, reset, would_refuse=False),))
    headers = rate_limit_headers([status], "ietf")
    ((policy, described),) = parsed(headers["ratelimit-policy"])
    ((name, state),) = parsed(headers["ratelimit"])
    assert policy == name
    assert described["q"] == min(limit.amount, 10**15 - 1)
    assert described["w"] >= limit.window if limit.window else True
    assert set(described) == {"q", "w"} | ({"qu"} if limit.metric != "requests" else set())
    assert state["r"] == min(remaining, 10**15 - 1)
    assert ("t" in state) == (reset is not None)
    assert reset is None or state["t"] >= round(reset, 6) > state["t"] - 1


def parsed(value: str) -> Any:
    """A list of structured fields, by an independent parser."""
    return http_sf.parse(value.encode(), tltype="list")


@given(st.floats(0, 1e9), st.floats(0, 4e9))
def test_anthropics_reset_is_a_time_of_rfc_3339(reset: float, now: float) -> None:
    """In whole seconds, never early."""
    status = ScopeStatus(
        KEY, (LimitStatus(Limit("requests", 5, 60), 1, 4, reset, would_refuse=False),)
    )
    text = rate_limit_headers([status], "anthropic", now=now)["anthropic-ratelimit-requests-reset"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text)
    late = datetime.fromisoformat(text).timestamp() - (now + reset)
    assert -1e-6 < late <= 1


@pytest.mark.parametrize("style", ["openai", "anthropic", "problem"])
async def test_r12_a_debt_of_a_hundred_thousand_years_is_a_refusal_like_others(
    style: Style,
) -> None:
    """R12: what an absurd count has left of a bucket still has an answer, in dates that RFC 3339 has no name for."""
    limiter = Limiter(MemoryBackend(clock=ManualClock()))
    scope = Scope(KEY, Limits(tpm=90_000, algorithm="token_bucket"))
    await (await limiter.pre_commit(scope)).settle_success(2**53 - 1)
    with pytest.raises(RateLimited) as refused:
        await limiter.pre_commit(scope)
    answer = answer_to(refused.value, style)
    assert int(answer.headers["retry-after"]) > 6e12
    if style == "anthropic":
        assert answer.headers["anthropic-ratelimit-tokens-reset"] == "9999-12-31T23:59:59Z"


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=4))
def test_b4_retry_after_is_never_early_and_never_0(waits: list[float]) -> None:
    """B4: whole seconds and whole milliseconds, rounded up, of the longest wait."""
    waits = [round(wait, 6) for wait in waits]
    found = retry_headers(
        RateLimited(
            [
                Denial(KEY, Limit("requests", 5, 60 + at), 5, 1, wait, wait)
                for at, wait in enumerate(waits)
            ]
        )
    )
    longest = max(waits)
    assert int(found["retry-after"]) == max(math.ceil(longest), 1)
    assert 0 <= int(found["retry-after-ms"]) / 1e3 - longest < 0.001 + 1e-9


def test_an_answer_is_bytes() -> None:
    """JSON in UTF-8."""
    answer = Answer(429, {}, {"a": "é"})
    assert answer.content == '{"a":"é"}'.encode()
