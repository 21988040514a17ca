"""Ids of reservations: a counter, and the nonce of a process where they leave it.

A random id per reservation costs more than the whole of the arithmetic. A forked child takes a nonce of
its own, since two processes that count alike would name each other's reservations.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
from collections.abc import Callable
from typing import Final

Id = int | str
"""Names a reservation in this process: a number, or the name in the world that another process gave it."""

next_id: Final[Callable[[], int]] = itertools.count(1).__next__
"""Return an id that no other call in this process returns. Safe in threads."""

# What `name_of` makes: a nonce of eight bytes, and a number.
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{11}\.[1-9][0-9]{0,18}")

_nonce = ""


def _renew_nonce() -> None:
    global _nonce  # noqa: PLW0603 - the one state of this module
    _nonce = secrets.token_urlsafe(8)


_renew_nonce()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_nonce)


def name_of(id_: Id) -> str:
    """Return the name of an id in the world: no other process gives it. That of another process is its own name."""
    return f"{_nonce}.{id_}" if isinstance(id_, int) else id_


def is_name(text: str) -> bool:
    """Whether `name_of` could have made this, in some process: a caller may have chosen it all the same."""
    return _NAME.fullmatch(text) is not None


def told_apart(request_id: str) -> str:
    """Return the name that a caller chose as it stands where ids of the library's stand as well: none of these."""
    return f"={request_id}" if is_name(request_id.lstrip("=")) else request_id


def id_of(name: str) -> int | None:
    """Return the id that `name_of` gave this name for in this process, or None."""
    nonce, _, number = name.partition(".")
    return int(number) if nonce == _nonce and number.isascii() and number.isdigit() else None
