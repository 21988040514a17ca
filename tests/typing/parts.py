"""What type checkers see of the packages beside `earmark` itself: as public.py, never run.

Here are backends, streams, policies, estimates, HTTP and the integrations; money.py and kit.py have the others.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, assert_type

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

import earmark
from earmark import (
    BackendUnavailable,
    EarmarkError,
    Health,
    Limiter,
    MemoryBackend,
    RedisBackend,
    Refused,
    RequestIdConflict,
    Reservation,
    ReserveOnce,
    Scope,
    Usage,
    ask_for_usage,
)
from earmark.backends import Backend, Desk, Hold, Instant, Seen, Verb
from earmark.contrib.asgi import Asks, ReservedStream, answer_refusals, reserving, style_of
from earmark.contrib.litellm import ANONYMOUS, Dims, EarmarkHook, Key, dims_of, tenant_of
from earmark.contrib.relay import relay
from earmark.estimates import Counter, approximate, estimate, tiktoken_counter
from earmark.http import (
    Admission,
    Answer,
    BudgetStatus,
    Fields,
    Style,
    answer_to,
    go_duration,
    policy_name,
    rate_limit_headers,
    retry_headers,
    upstream_retry_headers,
)
from earmark.policies import Mistake, Policies, PolicyError, schema
from earmark.streams import (
    Dialect,
    DialectFactory,
    Observed,
    ObservedStream,
    observe_stream,
    register,
)


async def backends(backend: Backend, hold: Hold, verb: Verb, scope: Scope) -> None:
    """The protocol has six messages; each backend of the package is one."""
    assert_type(backend.desk, Desk)
    assert_type(backend.instant, Instant | None)
    assert_type(await backend.reserve(hold), Hold | None)
    assert_type(await backend.resolve(hold, verb, {"tokens": 1}, {}), bool)
    assert_type(await backend.add(scope, {"tokens": 1}, None), bool)
    assert_type(await backend.renew([hold]), Sequence[bool])
    seen = await backend.peek((scope,))
    assert_type(seen, Seen)
    assert_type(seen.at, int)
    assert_type(backend.health(), Health)
    await backend.resolve(hold, "forget", {}, {})  # type: ignore[arg-type]
    Limiter(MemoryBackend(lease=5.0))
    Limiter(RedisBackend.from_url("redis://localhost", on_outage="closed", local_share="auto"))
    RedisBackend.from_url("redis://localhost", on_outage="panic")  # type: ignore[arg-type]
    RedisBackend.from_url("redis://localhost", on_outages="open")  # type: ignore[call-arg]


class Own:
    """A dialect of somebody's own."""

    name: ClassVar[str] = "own"
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(rb'"used":')

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None: ...

    def observe_text(self, event: str | None, data: str) -> None: ...

    def text_length(self, event: str | None, data: Mapping[str, Any] | str) -> int | None: ...

    def only_usage(self, event: str | None, payload: Mapping[str, Any]) -> bool:
        return False

    @property
    def usage(self) -> Usage | None: ...

    def final(self, *, complete: bool) -> bool:
        return complete

    @property
    def ended(self) -> bool:
        return False

    @property
    def finished(self) -> bool:
        return False

    @property
    def error(self) -> str | None: ...


def streams(source: AsyncIterator[str]) -> None:
    """A dialect of one's own fits the protocol; a stream gives what its source gives."""

    def own(_: int) -> Dialect:
        return Own()

    def tell(observed: Observed) -> None:
        assert_type(observed.tokens, int)

    factory: DialectFactory = own
    register("own", factory)
    assert_type(observe_stream(source, on_complete=tell, dialect="own"), ObservedStream[str])
    assert_type(ask_for_usage(b"{}"), bytes)


def policies(error: PolicyError) -> None:
    """A mistake says where it is; a question has scopes for an answer."""
    found = Policies.load("policies.yaml", dims=["team"])
    assert_type(found, Policies)
    assert_type(found.scopes(tenant="acme", model=None, team="research"), tuple[Scope, ...])
    assert_type(found.resolve("fast"), str)
    assert_type(error.mistakes, tuple[Mistake, ...])
    assert_type(error.mistakes[0].line, int | None)
    assert_type(schema(), dict[str, Any])
    found.scopes(model="fast")  # type: ignore[call-arg]


def estimates(body: Mapping[str, Any]) -> None:
    """An estimate is a usage; a counter is any function of a text."""
    counter: Counter = approximate
    counter = tiktoken_counter("o200k_base")
    assert_type(counter("text"), int)
    assert_type(estimate(body, count=counter), Usage)


def answers(
    error: Refused, outage: BackendUnavailable, any_of_ours: EarmarkError, admission: Reservation
) -> None:
    """An answer is for any refusal, headers are for any admission."""
    style: Style = "problem"
    fields: Fields = "ietf"
    status: BudgetStatus = 402
    answer = answer_to(error, style, fields=[fields], budget_status=status)
    assert_type(answer, Answer)
    assert_type(answer.content, bytes)
    admitted: Admission = admission
    assert_type(rate_limit_headers(admitted, fields), dict[str, str])
    assert_type(rate_limit_headers(admission.statuses), dict[str, str])
    assert_type(retry_headers(outage), dict[str, str])
    assert_type(upstream_retry_headers({"Retry-After": "1"}), dict[str, str])
    assert_type(go_duration(1.5), str)
    assert_type(policy_name(admission.statuses[0].limits[0].limit), str)
    answer_to(any_of_ours)  # type: ignore[arg-type]
    answer_to(RequestIdConflict("a"))  # type: ignore[arg-type]


def frameworks(
    app: Starlette, request: Request, limiter: Limiter, key: Key, stream: ObservedStream[bytes]
) -> None:
    """The integrations take what their frameworks have."""

    async def asks(_: Request) -> Asks:
        return Asks((), tokens=Usage(1, 2))

    answer_refusals(app, style=style_of)
    assert callable(reserving(limiter, asks))
    assert_type(style_of(request), Style)
    assert_type(ReservedStream(stream, None), ReservedStream)
    tenant: Callable[[Key], str] = tenant_of
    dims: Callable[[Key], Dims] = dims_of
    EarmarkHook(limiter, Policies({}), tenant=tenant, dims=dims)
    assert_type(key.team_id, str | None)
    assert_type(ANONYMOUS, Literal["anonymous"])
    earmark.contrib.asgi.answer_refusal(app)  # type: ignore[attr-defined]


async def relaying(
    once: ReserveOnce, client: httpx.AsyncClient, scope: Scope, request: httpx.Request
) -> None:
    """A request goes to one provider after the other, each with its scope."""
    targets = [(scope, request)]
    assert_type(await relay(once, client, targets, {"stream": True}, style="anthropic"), Response)
    await relay(once, client, [request], {})  # type: ignore[list-item]
