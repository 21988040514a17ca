"""`earmark.contrib.otel`: what OpenTelemetry is told of events and of health, and that it stays bounded."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from earmark import (
    BudgetExceeded,
    Event,
    Limit,
    Limiter,
    Limits,
    MemoryBackend,
    RateLimited,
    RedisBackend,
    Scope,
    Usage,
)
from earmark.backends.health import Health
from earmark.contrib.otel import Telemetry
from earmark.contrib.otel.bounded import MOST_NAMES
from earmark.contrib.otel.openings import Openings
from earmark.ledger import Budget, Ledger, Spend
from earmark.testing import ManualClock
from tests.servers import RedisServer

pytestmark = pytest.mark.anyio

ALICE: Final = Scope("tenant:alice", Limits(rpm=3, tpm=1_000, concurrency=2))


class Collected:
    """A reader of its own, and what it has read: the value of a metric by its attributes."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self._reader])

    def names(self) -> list[str]:
        """The metrics of which there is anything."""
        data = self._reader.get_metrics_data()
        return [
            metric.name
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]

    def points(self, name: str) -> list[Any]:
        """The points of a metric, as they are now."""
        data = self._reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def values(self, name: str, *attributes: str) -> dict[Any, Any]:
        """By some of its attributes, or one of them by itself."""
        found: dict[Any, Any] = {}
        for point in self.points(name):
            key = tuple(point.attributes.get(f"earmark.{each}") for each in attributes)
            key = key[0] if len(key) == 1 else key
            assert key not in found
            found[key] = point.value
        return found


@pytest.fixture
def collected() -> Iterator[Collected]:
    """A provider that no other test has."""
    one = Collected()
    yield one
    one.provider.shutdown()


class World:
    """A limiter that is watched, on a clock of its own."""

    def __init__(self, collected: Collected, **options: Any) -> None:
        self.clock = ManualClock()
        self.now = 0.0
        self.telemetry = Telemetry(
            meter_provider=collected.provider, clock=lambda: self.now, **options
        )
        self.limiter = Limiter(MemoryBackend(clock=self.clock), observers=[self._tell])
        self.telemetry.watch(self.limiter)

    def _tell(self, event: Event) -> None:
        self.telemetry(replace(event, time=self.now))


async def test_every_way_a_request_can_go_is_counted(collected: Collected) -> None:
    """Admitted, refused by limit and kind of scope, asked, used, and how each reservation ended."""
    world = World(collected)
    limiter = world.limiter
    first = await limiter.pre_commit(ALICE, tokens=400)
    second = await limiter.pre_commit(ALICE, tokens=200)
    for tokens in (900, 1_001):
        with pytest.raises(RateLimited):
            await limiter.pre_commit(ALICE, tokens=tokens)
    await first.settle_success(Usage(90, 10))
    await second.cancel()
    await (await limiter.pre_commit(ALICE)).close_reserved_only()
    await (await limiter.pre_commit(ALICE)).abandon()
    await limiter.add_tokens_post_stream(ALICE, 7)
    assert collected.values("earmark.admitted") == {(): 4}
    assert collected.values("earmark.refused", "reason") == {"limit": 2}
    assert collected.values("earmark.denials", "scope.kind", "metric", "window", "retryable") == {
        ("tenant", "tokens", "60s", True): 1,
        ("tenant", "tokens", "60s", False): 1,
        ("tenant", "concurrency", "none", True): 2,
    }
    assert collected.values("earmark.resolved", "outcome") == {
        "settled": 1,
        "cancelled": 1,
        "closed": 1,
        "abandoned": 1,
    }
    assert collected.values("earmark.asked", "metric") == {"tokens": 600}
    settled = collected.values("earmark.settled", "metric")
    assert (settled["tokens"], settled["input_tokens"]) == (107, 90)


async def test_what_is_open_is_told_by_age_and_by_what_it_holds(collected: Collected) -> None:
    """Open reservations by age, and the units that they hold; nothing is left once they are resolved."""
    world = World(collected)
    open_ones = []
    scope = Scope("tenant:a", Limits(tpd=10_000))
    for began in (0, 3_595, 3_598.5):
        world.now = began
        open_ones.append(await world.limiter.pre_commit(scope, tokens=100))
    world.now = 3_599.5
    assert collected.values("earmark.open", "age") == {
        "0-1s": 0,
        "1-10s": 2,
        "10-60s": 0,
        "1-10min": 0,
        "10min-": 1,
    }
    assert collected.values("earmark.held", "metric") == {"tokens": 300}
    world.now = 3_640
    open_ones.append(await world.limiter.pre_commit(scope, tokens=100))
    world.now = 3_640.5
    assert collected.values("earmark.open", "age") == {
        "0-1s": 1,
        "1-10s": 0,
        "10-60s": 2,
        "1-10min": 0,
        "10min-": 0,  # the first has been given up by now, or another process has resolved it
    }
    assert collected.values("earmark.held", "metric") == {"tokens": 300}
    for reservation in open_ones:
        await reservation.cancel()
    assert sum(collected.values("earmark.open", "age").values()) == 0
    assert collected.values("earmark.held", "metric") == {}


async def test_an_exact_estimate_is_one(collected: Collected) -> None:
    """The histogram is of what was used to what was asked; where nothing was asked there is no estimate."""
    world = World(collected)
    scope = Scope("tenant:a", Limits(tpd=10_000))
    for asked, used in ((100, 100), (100, 30), (100, 250), (0, 10)):
        await (await world.limiter.pre_commit(scope, tokens=asked)).settle_success(used)
    (point,) = collected.points("earmark.estimate.ratio")
    assert (point.count, point.sum, point.min, point.max) == (3, 3.8, 0.3, 2.5)
    bounds = dict(zip(point.explicit_bounds, point.bucket_counts, strict=False))
    assert [bound for bound, count in bounds.items() if count] == [0.5, 1.0, 4.0]


async def test_nothing_that_clients_send_makes_a_series(collected: Collected) -> None:
    """Keys, ids and names are bounded: kinds that nobody listed, and metrics and windows beyond many, are "other"."""
    world = World(collected, kinds={"tenant"})
    for number in range(3 * MOST_NAMES):
        metric = f"metric{number}"
        scope = Scope(f"user{number}:secret", Limits(also=[Limit(metric, 0, 1 + number)]))
        with pytest.raises(RateLimited):
            await world.limiter.pre_commit(
                scope, amounts={metric: 1}, request_id=f"secret-{number}"
            )
        tenant = Scope(f"tenant:secret{number}", Limits(tpd=10))
        await (await world.limiter.pre_commit(tenant, amounts={metric: 1})).settle_success(
            {metric: 1}
        )
    for name in ("denials", "asked", "settled", "estimate.ratio", "held"):
        points = collected.points(f"earmark.{name}")
        assert len(points) <= MOST_NAMES + 2, name
        told = [str(value) for point in points for value in point.attributes.values()]
        assert not [value for value in told if "secret" in value], name
        assert name == "held" or "other" in told, name
    kinds = {
        point.attributes["earmark.scope.kind"] for point in collected.points("earmark.denials")
    }
    assert kinds == {"other"}


async def test_keys_are_told_where_they_are_asked_for(collected: Collected) -> None:
    """`keys=True` names the scope that refuses."""
    world = World(collected, keys=True)
    with pytest.raises(RateLimited):
        await world.limiter.pre_commit(Scope("tenant:alice", Limits(rpm=0)))
    assert collected.values("earmark.denials", "scope.key") == {"tenant:alice": 1}


def spans() -> tuple[trace.Tracer, InMemorySpanExporter]:
    """A tracer of its own, and what it has exported."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("test"), exporter


def told(exporter: InMemorySpanExporter) -> list[tuple[str, Mapping[str, Any]]]:
    """The events of the one span that has ended."""
    (span,) = exporter.get_finished_spans()
    return [(event.name, dict(event.attributes or {})) for event in span.events]


@pytest.mark.parametrize("keys", [False, True])
async def test_a_span_is_told_what_happens_in_it(collected: Collected, keys: bool) -> None:
    """An event of the current span for each of the library's, with keys and ids only where they are asked for."""
    world = World(collected, keys=keys)
    tracer, exporter = spans()
    with tracer.start_as_current_span("request"):
        made = await world.limiter.pre_commit(ALICE, tokens=900, request_id="r-1")
        with pytest.raises(RateLimited):
            await world.limiter.pre_commit(ALICE, tokens=200)
        await made.settle_success(500)
    more = {"earmark.scope.keys": ("tenant:alice",)} if keys else {}
    own = {**more, "earmark.request_id": "r-1"} if keys else {}
    kinds = {"earmark.scope.kinds": ("tenant",)}
    assert told(exporter) == [
        ("earmark.admitted", {**kinds, "earmark.asked.tokens": 900, **own}),
        (
            "earmark.refused",
            {
                **kinds,
                "earmark.asked.tokens": 200,
                "earmark.denied_by": ("tenant: tokens 60s",),
                "earmark.retry_after": 60.0,
                **more,
            },
        ),
        (
            "earmark.settled",
            {**kinds, "earmark.asked.tokens": 900, "earmark.used.tokens": 500, **own},
        ),
    ]


async def test_a_span_has_the_sum_of_what_is_other(collected: Collected) -> None:
    """Metrics beyond those that are told apart are one attribute: none of them hides another."""
    world = World(collected)
    tracer, exporter = spans()
    many = {f"metric{number}": 1 for number in range(MOST_NAMES + 5)}
    with tracer.start_as_current_span("request"):
        made = await world.limiter.pre_commit(ALICE, amounts=many)
    ((_, noted),) = told(exporter)
    amounts = [amount for name, amount in noted.items() if name.startswith("earmark.asked.")]
    assert (sum(amounts), len(amounts)) == (len(many), MOST_NAMES + 1)
    await made.cancel()


async def test_a_store_in_memory_is_always_there(collected: Collected) -> None:
    """What is watched is told of; what is gone no more."""
    limiter = Limiter()
    telemetry = Telemetry(meter_provider=collected.provider)
    telemetry.watch(limiter)
    assert collected.values("earmark.store.down", "store") == {"limits": 0}
    assert collected.values("earmark.store.round_trips", "store") == {"limits": 0}
    del limiter
    gc.collect()
    assert collected.values("earmark.store.down", "store") == {}


class Served:
    """What a limiter is that has made so many round trips."""

    def __init__(self, trips: int) -> None:
        self.trips = trips

    def health(self) -> Health:
        return Health(round_trips=self.trips)


def test_what_has_gone_takes_nothing_of_a_counter_with_it(collected: Collected) -> None:
    """A counter that falls is taken for one that begins anew."""
    telemetry = Telemetry(meter_provider=collected.provider)
    one, other = Served(1_000), Served(500)
    telemetry.watch(one)
    telemetry.watch(other)
    assert collected.values("earmark.store.round_trips", "store") == {"limits": 1_500}
    del one
    gc.collect()
    assert collected.values("earmark.store.round_trips", "store") == {"limits": 1_500}
    other.trips = 700
    assert collected.values("earmark.store.round_trips", "store") == {"limits": 1_700}
    assert collected.values("earmark.store.down", "store") == {"limits": 0}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_outage_is_told(
    collected: Collected, shared_redis: RedisServer, namespace: str, anyio_backend: str
) -> None:
    """Round trips while the store answers; degraded, down and owed while it does not."""
    scope = Scope("tenant:a", Limits(rpd=9, concurrency=9))
    async with Limiter(
        RedisBackend.from_url(shared_redis.url, namespace=namespace, timeout=20)
    ) as limiter:
        telemetry = Telemetry(meter_provider=collected.provider)
        telemetry.watch(limiter)
        made = await limiter.pre_commit(scope)
        assert collected.values("earmark.store.round_trips", "store") == {"limits": 1}
        await made.cancel()
        assert collected.values("earmark.store.round_trips", "store") == {"limits": 2}
        (seconds,) = collected.values("earmark.store.round_trip_time").values()
        assert 0 < seconds < 40
    away = Limiter(RedisBackend.from_url("redis://127.0.0.1:1", on_outage="open"))
    telemetry.watch(away)
    made = await away.pre_commit(scope)
    await away.add_tokens_post_stream(Scope("tenant:a", Limits(tpd=9)), 3)
    await made.cancel()
    assert collected.values("earmark.store.degraded", "store") == {"limits": 1}
    assert collected.values("earmark.store.down", "store") == {"limits": 1}
    assert collected.values("earmark.store.outbox", "store") == {"limits": 1}
    assert collected.values("earmark.store.lost", "store") == {"limits": 0}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_budget_refuses_as_well(collected: Collected, anyio_backend: str) -> None:
    """B57: a refusal by a budget is told apart from one by limits, and a ledger's health from a store's."""
    ledger = Ledger("sqlite://")
    await ledger.create()
    telemetry = Telemetry(meter_provider=collected.provider)
    async with Limiter(ledger=ledger, observers=[telemetry]) as limiter:
        telemetry.watch(limiter)
        telemetry.watch(ledger)
        with pytest.raises(BudgetExceeded):
            await limiter.pre_commit(spend=Spend((Budget("tenant:a", Decimal(0), "daily"),)))
        assert collected.values("earmark.refused", "reason") == {"budget": 1}
        assert collected.values("earmark.store.outbox", "store") == {"limits": 0, "ledger": 0}
        assert collected.values("earmark.store.degraded", "store") == {"limits": 0}


def test_the_api_is_all_that_it_needs() -> None:
    """Neither an SDK nor SQLAlchemy nor redis has to be there."""
    code = """import sys
for name in ("opentelemetry.sdk", "redis", "sqlalchemy"):
    sys.modules[name] = None
import earmark.contrib.otel"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


async def test_without_an_sdk_nothing_happens() -> None:
    """The API alone counts nothing and fails nobody."""
    assert not isinstance(metrics.get_meter_provider(), MeterProvider)
    limiter = Limiter(observers=[Telemetry()])
    await (await limiter.pre_commit(ALICE, tokens=1)).settle_success(1)


async def test_the_docs_list_every_metric(collected: Collected) -> None:
    """docs/observability.md names each, and no other."""
    world = World(collected)
    made = await world.limiter.pre_commit(ALICE, tokens=1)
    with pytest.raises(RateLimited):
        await world.limiter.pre_commit(ALICE, tokens=1_001)
    await made.settle_success(1)
    made = await world.limiter.pre_commit(ALICE, tokens=1)
    text = (Path(__file__).parent.parent / "docs" / "observability.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(earmark\.[a-z_.]+)` \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(collected.names())
    await made.cancel()


def test_what_is_known_of_open_reservations_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are never heard of again, the oldest are left out."""
    most = 100
    monkeypatch.setattr("earmark.contrib.otel.openings.MOST", most)
    openings = Openings(lambda: 0.0)
    for number in range(most + 5):
        openings.begin(Event("admitted", str(number), (), {"tokens": 1}, time=0.0))
    assert sum(openings.ages()) == most
    openings.end(Event("settled", "0", ()))
    assert openings.held() == {"tokens": most}
    openings.end(Event("settled", str(most), ()))
    assert openings.held() == {"tokens": most - 1}


def test_threads_tell_while_another_collects() -> None:
    """R19: events come from several threads while a reader collects in its own."""
    openings = Openings(lambda: 0.0)
    errors: list[BaseException] = []

    def tell(thread: int) -> None:
        try:
            for number in range(2_000):
                name = f"{thread}-{number}"
                openings.begin(Event("admitted", name, (), {"tokens": 1}, time=0.0))
                if number % 2:
                    openings.end(Event("settled", name, ()))
                if number % 50 == 0:
                    openings.held()
        except BaseException as error:  # noqa: BLE001 - it is looked at below
            errors.append(error)

    threads = [threading.Thread(target=tell, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert openings.held() == {"tokens": 3_000}
