"""What a backend has to have before any case can be played on it: told at once, and once."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final, Protocol

from earmark.backends.protocol import Backend, Desk
from earmark.clock import Clock

FUNCTIONS: Final = (
    *("reserve", "resolve", "add", "renew", "peek", "reset"),
    *("attend", "release", "health", "aclose"),
)
ATTRIBUTES: Final = ("name", "clock", "assured", "instant")


class BackendFactory(Protocol):
    """Makes a backend in which nothing is kept yet: `MemoryBackend` is one.

    Where what it makes has `size()`, how many things it keeps that still count, tables hold it to R2 and R14 as well.
    """

    def __call__(self, *, clock: Clock, lease: float) -> Backend:
        """Make one that is on this clock, and holds slots for `lease` seconds where nobody says otherwise."""
        ...


class NotABackend(AssertionError):
    """No case can be played: a backend could not be made, or what was made lacks what every backend has."""


def made(make: BackendFactory, clock: Clock, lease: float) -> Any:
    """A backend that `make` makes.

    Raises:
        NotABackend: it makes none.
    """
    try:
        backend: Any = make(clock=clock, lease=lease)
    except Exception as error:
        kind = type(error).__name__
        msg = f"no backend can be made: make(clock=…, lease=…) raised {kind}: {error}"
        raise NotABackend(msg) from error
    lacks = list(_lacks(backend))
    if inspect.iscoroutine(backend):
        backend.close()
        lacks = ["is a coroutine: `make` has to be a plain function"]
    if lacks:
        msg = f"what `make` makes is no backend: {type(backend).__name__} {'; '.join(lacks)}"
        raise NotABackend(msg)
    return backend


def _lacks(backend: object) -> Iterator[str]:
    if not isinstance(getattr(backend, "desk", None), Desk):
        yield "has no `desk`, which is an `earmark.backends.Desk()` of its own"
    for name in ATTRIBUTES:
        if not hasattr(backend, name):
            yield f"has no `{name}`"
    for name in FUNCTIONS:
        if not callable(getattr(backend, name, None)):
            yield f"has no function `{name}`"
