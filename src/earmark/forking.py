"""A forked child has copies of what its parent has under way, and nobody who goes on with it.

What the parent owes it delivers itself, its connections are its own, and whoever waits there waits there. So what says
that something is under way begins anew in a child.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Forked(Protocol):
    """Whoever counts what is under way."""

    def begin_anew(self) -> None:
        """This is a child now: nothing is under way, and no other thread holds a lock."""
        ...


_all: Final = weakref.WeakSet[Forked]()


def begins_anew(one: Forked) -> None:
    """Have `one` begin anew in every child that is forked from now on."""
    _all.add(one)


def _tell() -> None:
    for one in tuple(_all):
        one.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell)
