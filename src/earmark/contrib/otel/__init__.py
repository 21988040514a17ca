"""OpenTelemetry: what becomes of requests as metrics, and as events of the span in which it happens.

    telemetry = Telemetry()
    limiter = Limiter(RedisBackend.from_url(url), observers=[telemetry])
    telemetry.watch(limiter)                # health as well: whether the store can be reached, and what it is owed

The number of time series is bounded, whatever clients send: a scope is told by its kind, which is what its key begins
with up to the first colon ("tenant" of "tenant:acme") where that is one of a fixed set, and metrics and windows beyond
a number of them are "other". Keys and request ids are told only where `keys=True` asks for them.

Needs OpenTelemetry's API, `earmark[otel]`; what exports is the application's choice. Without an SDK nothing is counted.
"""

from __future__ import annotations

from earmark.contrib.otel.bounded import KINDS
from earmark.contrib.otel.telemetry import Telemetry, Watched

__all__ = ["KINDS", "Telemetry", "Watched"]
