"""A backend that stands still, and a look at what one keeps.

The double passes on every message that it does not spoil, so that what it shows is the limiter's doing.
"""

from __future__ import annotations

import gc
import sys
from types import FunctionType, ModuleType
from typing import Any

import anyio

from earmark import MemoryBackend


class Stalling:
    """A backend that stands still before or after it reserves, until somebody gives up on it."""

    instant = None

    def __init__(self, inner: MemoryBackend, where: str) -> None:
        self._inner = inner
        self._where = where
        self.stalled = anyio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def reserve(self, *message: Any) -> Any:
        for where in ("before", "after"):
            if where == self._where:
                self.stalled.set()
                await anyio.sleep_forever()
            if where == "before":
                await self._inner.reserve(*message)
        raise AssertionError


def reachable(root: object) -> list[object]:
    """Everything that an object holds, itself included; code is nobody's to hold."""
    found, seen = [root], {id(root)}
    for one in found:
        for held in gc.get_referents(one):
            if id(held) not in seen and not isinstance(held, type | ModuleType | FunctionType):
                seen.add(id(held))
                found.append(held)
    return found


def reachable_bytes(root: object) -> int:
    """The bytes of all that, the slack of emptied tables included."""
    return sum(map(sys.getsizeof, reachable(root)))
