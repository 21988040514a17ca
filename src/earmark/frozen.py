"""How frozen values are filled that every request makes.

`object.__setattr__` looks a field up by its name each time. The descriptor of its slot need not, which saves
a quarter of what it takes to make such a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def setters(kind: type) -> tuple[Callable[[object, Any], None], ...]:
    """What sets each slot of a class, in the order of its fields; to be used by its `__init__` alone."""
    names: tuple[str, ...] = kind.__dict__["__slots__"]
    return tuple(kind.__dict__[name].__set__ for name in names)
