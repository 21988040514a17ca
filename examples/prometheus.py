"""Limits in Prometheus: what becomes of requests, who is refused, and whether the store can be reached.

OpenTelemetry's exporter keeps the metrics where Prometheus comes to read them. A gateway serves them for as long as it
runs; this script looks at them once, as Prometheus would, and prints the library's own.

    pip install "earmark[otel]" opentelemetry-sdk opentelemetry-exporter-prometheus
    python examples/prometheus.py
"""

from __future__ import annotations

import asyncio
import sys
import urllib.request

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server

from earmark import Limiter, Limits, RateLimited, Scope, Usage
from earmark.contrib.otel import Telemetry

ALICE = Scope("tenant:alice", Limits(rpd=4, tpd=5_000))
MODEL = Scope("model:gpt-4o", Limits(tpd=100_000), enforce=False)


async def serve_requests(limiter: Limiter) -> None:
    """Five requests: three are settled, one streams still, and one is refused."""
    for used in (900, 1_400, 1_000):
        async with await limiter.pre_commit(ALICE, MODEL, tokens=1_200) as reservation:
            await reservation.settle_success(Usage(used - 100, 100))
    async with await limiter.pre_commit(ALICE, MODEL, tokens=1_200) as reservation:
        try:
            await limiter.pre_commit(ALICE, MODEL, tokens=1_200)
        except RateLimited as refusal:
            print(f"refused: {refusal}")
        await show()
        await reservation.cancel()


async def show() -> None:
    """Read the metrics over HTTP, as Prometheus does."""
    text = await asyncio.to_thread(read)
    for line in text.splitlines():
        if line.startswith("earmark_") and "_bucket" not in line and "_created" not in line:
            print(line)
    if 'earmark_refused_total{earmark_reason="limit"} 1.0' not in text:
        sys.exit("not as expected")


def read() -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


# At the beginning of an application. The reader is what `start_http_server` serves.
provider = MeterProvider(
    metric_readers=[PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False)]
)
telemetry = Telemetry(meter_provider=provider)
limiter = Limiter(observers=[telemetry])
telemetry.watch(limiter)

server, thread = start_http_server(
    0, "127.0.0.1"
)  # any port that is free; Prometheus wants a fixed one
port = server.server_port
asyncio.run(serve_requests(limiter))

server.shutdown()
server.server_close()
thread.join()
provider.shutdown()
