"""What type checkers see of OpenTelemetry: as public.py, never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import assert_type

from earmark import Limiter
from earmark.contrib.otel import KINDS, Telemetry, Watched


def observed() -> None:
    """It is an observer, and watches whatever has a health."""
    telemetry = Telemetry(keys=True)
    limiter = Limiter(observers=[telemetry])
    watched: Watched = limiter
    telemetry.watch(watched)
    assert_type(KINDS, frozenset[str])
    Telemetry(kinds=3)  # type: ignore[arg-type]
