"""Streams of every provider: cut into events, read by a dialect, told once.

    item ── framing ── dialect ── observed
    bytes    events     usage      on_complete

`observe` is the wrapper that consumers iterate, `watcher` what it shows each item to. Framing knows bytes and
nothing of providers, a dialect knows one provider's events and nothing of bytes or of how streams end.
"""

from __future__ import annotations

from earmark.streams.detect import register
from earmark.streams.dialect import Dialect, DialectFactory
from earmark.streams.observe import ObservedStream, observe_stream
from earmark.streams.observed import Observed

__all__ = [
    "Dialect",
    "DialectFactory",
    "Observed",
    "ObservedStream",
    "observe_stream",
    "register",
]
