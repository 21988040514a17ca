"""The kit's tables, played where the tests say: in memory, unless a test puts another store in its place."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from earmark import MemoryBackend
from earmark.testing import table
from earmark.testing.rows import (
    VERBS,
    A,
    C,
    Empty,
    Gone,
    N,
    P,
    R,
    Resolve,
    S,
    See,
    X,
    Z,
    key,
    resolve,
    used,
)
from earmark.testing.table import ANY, Row, expect, label

__all__ = [
    "ANY",
    "VERBS",
    "A",
    "C",
    "Empty",
    "Gone",
    "N",
    "P",
    "R",
    "Resolve",
    "Row",
    "S",
    "See",
    "Stores",
    "Table",
    "X",
    "Z",
    "expect",
    "key",
    "label",
    "play",
    "quiet",
    "resolve",
    "used",
]


class Stores:
    """Where tables are played: `make` makes the backend of a table.

    Beside what every backend has, it has `size()`: how many things it keeps that still count.
    """

    make: ClassVar[Any] = MemoryBackend


class Table(table.Table):
    """A table that is played there."""

    def __init__(self, *, lease: float = 60.0, start: float = 0.0) -> None:
        super().__init__(Stores.make, lease=lease, start=start)


async def play(*of: Row, lease: float = 60.0, start: float = 0.0) -> None:
    """Play one table from nothing."""
    async with Table(lease=lease, start=start) as table:
        await table.play(*of)


@contextmanager
def quiet() -> Iterator[None]:
    """What is collected by the end of this block must not warn of anything."""
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    expect("warnings", [str(one.message) for one in caught], [])
