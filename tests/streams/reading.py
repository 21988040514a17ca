"""A dialect reads events as an observer lets it, without one: who has found another gives way to it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from earmark.streams.dialect import Dialect
from earmark.streams.undecided import Undecided, decided
from earmark.testing.streams.bodies.shape import Event


def read(
    dialect: Dialect, events: Iterable[Event], n: int = 1, *, skipping: bool = False
) -> Dialect:
    """The dialect that has read these events in the end; with `skipping` without those that cannot matter."""
    for event, data in events:
        if isinstance(data, str):
            dialect.observe_text(event, data)
        elif not skipping or event == "error" or dialect.trigger.search(_raw(data)):
            dialect.observe(event, data)
        dialect = decided(dialect, n)
    if isinstance(dialect, Undecided):
        dialect.give_up()
    return decided(dialect, n)


def _raw(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, default=lambda raw: raw.decode()).encode()
