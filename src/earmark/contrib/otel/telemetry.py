"""The observer: events become metrics and events of spans, and what is watched is asked when a reader collects."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, Protocol

from opentelemetry import trace
from opentelemetry.metrics import (
    CallbackOptions,
    MeterProvider,
    Observation,
    get_meter_provider,
)

from earmark.answers import Denial
from earmark.backends.health import Health
from earmark.contrib.otel.bounded import KINDS, OTHER, Few
from earmark.contrib.otel.openings import AGES, Openings
from earmark.errors import RateLimited
from earmark.events import Event
from earmark.ledger.answers import LedgerHealth
from earmark.limits import Limit, spelled

# Of what was used to what was asked: 1 is an estimate that was exact, and below it too much was held.
_RATIOS: Final = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)

_ENDS: Final = frozenset({"settled", "closed", "abandoned", "cancelled", "expired"})

_Health = Health | LedgerHealth

# What is told of the health of every store that is watched: name, figure, unit, meaning. Sums over those of one kind.
_GAUGES: Final[tuple[tuple[str, Callable[[_Health], float | None], str, str], ...]] = (
    (
        "earmark.store.down",
        lambda health: not health.available,
        "{store}",
        "Stores that cannot be reached",
    ),
    (
        "earmark.store.outbox",
        lambda health: health.owed,
        "{message}",
        "Messages that are kept for a store",
    ),
)
_COUNTERS: Final[tuple[tuple[str, Callable[[_Health], float | None], str, str], ...]] = (
    (
        "earmark.store.lost",
        lambda health: health.lost,
        "{message}",
        "Messages that could not be kept, or not be delivered in time",
    ),
    (
        "earmark.store.degraded",
        lambda health: getattr(health, "admitted_without_store", None),
        "{request}",
        "Requests that were admitted while the store could not be reached",
    ),
    (
        "earmark.store.round_trips",
        lambda health: getattr(health, "round_trips", None),
        "{round_trip}",
        "Round trips to the store that brought answers",
    ),
    (
        "earmark.store.round_trip_time",
        lambda health: getattr(health, "round_trip_seconds", None),
        "s",
        "How long all round trips took together",
    ),
)

Attributes = dict[str, str | bool | int | float | list[str]]


class Watched(Protocol):
    """A limiter or a ledger."""

    def health(self) -> _Health:
        """How its store is doing."""
        ...


class Telemetry:
    """An observer that tells OpenTelemetry of everything. One serves one limiter.

    Args:
        meter_provider: by default the global one.
        kinds: the kinds of scopes that are told apart; a key of any other is "other".
        keys: tell the keys of scopes that refuse, and on spans those of all scopes and request ids: as many time series
            as there are keys, and whatever of your users is in them.
        clock: the clock of ages, by default the one that events are stamped with.
    """

    def __init__(
        self,
        *,
        meter_provider: MeterProvider | None = None,
        kinds: Collection[str] = KINDS,
        keys: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._kinds = frozenset(kinds)
        self._keys = keys
        self._metric, self._window = Few(), Few()
        self._open = Openings(clock)
        self._watched: weakref.WeakSet[Watched] = weakref.WeakSet()
        meter = (meter_provider or get_meter_provider()).get_meter("earmark")
        self._admitted = meter.create_counter(
            "earmark.admitted", "{request}", "Requests that were admitted"
        )
        self._refused = meter.create_counter(
            "earmark.refused", "{request}", "Requests that were refused, by limits or by a budget"
        )
        self._denials = meter.create_counter(
            "earmark.denials", "{denial}", "Limits that refused; a request may meet several"
        )
        self._resolved = meter.create_counter(
            "earmark.resolved", "{reservation}", "Reservations, by how they ended"
        )
        self._asked = meter.create_counter(
            "earmark.asked", "{unit}", "Units that admitted requests asked for, by metric"
        )
        self._settled = meter.create_counter(
            "earmark.settled", "{unit}", "Units that are known to have been used, by metric"
        )
        self._ratio = meter.create_histogram(
            "earmark.estimate.ratio",
            "1",
            "What was used to what was asked: 1 is an exact estimate, below it too much was held",
            explicit_bucket_boundaries_advisory=_RATIOS,
        )
        meter.create_observable_gauge(
            "earmark.held", [self._held], "{unit}", "Units that open reservations hold, by metric"
        )
        meter.create_observable_gauge(
            "earmark.open",
            [self._ages],
            "{reservation}",
            "Reservations that are open, by their age",
        )
        for name, of, unit, said in _GAUGES:
            meter.create_observable_gauge(name, [self._of_health(of)], unit, said)
        for name, of, unit, said in _COUNTERS:
            meter.create_observable_counter(name, [self._counted(of)], unit, said)

    def watch(self, watched: Watched) -> None:
        """Tell of the health of a limiter or a ledger as well, as long as it lives."""
        self._watched.add(watched)

    def __call__(self, event: Event) -> None:
        """Count an event, and note it on the span that is current."""
        if event.kind == "admitted":
            self._admit(event)
        elif event.kind == "refused":
            self._refuse(event)
        else:
            self._resolve(event)
        span = trace.get_current_span()
        if span.is_recording():
            span.add_event(f"earmark.{event.kind}", self._noted(event))

    def _admit(self, event: Event) -> None:
        self._admitted.add(1)
        for metric, amount in event.asked.items():
            self._asked.add(amount, self._of_metric(metric))
        self._open.begin(event)

    def _refuse(self, event: Event) -> None:
        self._refused.add(1, {"earmark.reason": "limit" if event.denials else "budget"})
        for denial in event.denials:
            self._denials.add(1, self._of_denial(denial))

    def _resolve(self, event: Event) -> None:
        if event.kind in _ENDS:
            self._resolved.add(1, {"earmark.outcome": event.kind})
            self._open.end(event)
        if event.kind not in {"settled", "post_stream"}:
            return
        for metric, amount in event.used.items():
            attributes = self._of_metric(metric)
            self._settled.add(amount, attributes)
            asked = event.asked.get(metric)
            if asked:
                self._ratio.record(amount / asked, attributes)

    def _of_metric(self, metric: str) -> dict[str, str]:
        return {"earmark.metric": self._metric(metric)}

    def _of_denial(self, denial: Denial) -> dict[str, str | bool]:
        limit = denial.limit
        attributes: dict[str, str | bool] = {
            "earmark.scope.kind": self._kind(denial.key),
            **self._of_metric(limit.metric),
            "earmark.window": self._window(_window(limit)),
            "earmark.algorithm": limit.algorithm,
            "earmark.retryable": denial.retryable,
        }
        if self._keys:
            attributes["earmark.scope.key"] = denial.key
        return attributes

    def _kind(self, key: str) -> str:
        kind = key.partition(":")[0]
        return kind if kind in self._kinds else OTHER

    def _noted(self, event: Event) -> Attributes:
        """What a span is told of an event."""
        noted: Attributes = {"earmark.scope.kinds": sorted(set(map(self._kind, event.keys)))}
        for what, amounts in (("asked", event.asked), ("used", event.used)):
            for name, amount in self._summed(amounts).items():
                noted[f"earmark.{what}.{name}"] = amount
        if event.denials:
            noted["earmark.denied_by"] = [self._said(denial) for denial in event.denials]
            retry_after = RateLimited(event.denials).retry_after
            if retry_after is not None:
                noted["earmark.retry_after"] = retry_after
        if self._keys:
            noted["earmark.scope.keys"] = list(event.keys)
            if event.request_id is not None:
                noted["earmark.request_id"] = event.request_id
        return noted

    def _said(self, denial: Denial) -> str:
        limit = denial.limit
        return (
            f"{self._kind(denial.key)}: {self._metric(limit.metric)} {self._window(_window(limit))}"
        )

    def _summed(self, amounts: Mapping[str, int]) -> dict[str, int]:
        """Amounts by what their metrics are called, which of several may be "other"."""
        sums: dict[str, int] = {}
        for metric, amount in amounts.items():
            name = self._metric(metric)
            sums[name] = sums.get(name, 0) + amount
        return sums

    def _held(self, _: CallbackOptions) -> Iterator[Observation]:
        for name, amount in self._summed(self._open.held()).items():
            yield Observation(amount, {"earmark.metric": name})

    def _ages(self, _: CallbackOptions) -> Iterator[Observation]:
        for age, number in zip(AGES, self._open.ages(), strict=True):
            yield Observation(number, {"earmark.age": age})

    def _of_health(
        self, of: Callable[[_Health], float | None]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """A callback that tells one figure of everything that is watched: sums by kind of store."""

        def tell(_: CallbackOptions) -> Iterator[Observation]:
            sums: dict[str, float] = {}
            for _watched, store, value in self._figures(of):
                sums[store] = sums.get(store, 0) + value
            for store, value in sums.items():
                yield Observation(value, {"earmark.store": store})

        return tell

    def _counted(
        self, of: Callable[[_Health], float | None]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """The same of a figure that only grows: what has gone had counted too, and its part stays."""
        told: weakref.WeakKeyDictionary[Watched, float] = weakref.WeakKeyDictionary()
        sums: dict[str, float] = {}

        def tell(_: CallbackOptions) -> Iterator[Observation]:
            for watched, store, value in self._figures(of):
                sums[store] = sums.get(store, 0) + max(value - told.get(watched, 0), 0)
                told[watched] = value
            for store, value in sums.items():
                yield Observation(value, {"earmark.store": store})

        return tell

    def _figures(
        self, of: Callable[[_Health], float | None]
    ) -> Iterator[tuple[Watched, str, float]]:
        """One figure of everything that is watched and has it, with the kind of its store."""
        for watched in list(self._watched):
            health = watched.health()
            value = of(health)
            if value is not None:
                yield watched, "limits" if isinstance(health, Health) else "ledger", value


def _window(limit: Limit) -> str:
    return "none" if limit.window is None else f"{spelled(limit.window)}s"
