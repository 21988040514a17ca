"""What the keys are called on the server.

A namespace has no colon, and the letter after it tells what a key is for, so that no two of them are ever the
same, whatever a scope's key or a request id contains (R13).
"""

from __future__ import annotations

import re
from typing import Final

_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}\Z")


class Keys:
    """The names under one namespace.

    Args:
        namespace: letters, digits, `_`, `.` and `-`.

    Raises:
        ValueError: another namespace.
    """

    __slots__ = ("_counts", "_once", "_record", "_slots", "probe")

    def __init__(self, namespace: str) -> None:
        if not _NAMESPACE.match(namespace):
            msg = f"namespace must be 1 to 64 letters, digits, '_', '.' or '-', not {namespace!r}"
            raise ValueError(msg)
        self._counts = f"{namespace}:c:"
        self._slots = f"{namespace}:s:"
        self._record = f"{namespace}:r:"
        self._once = f"{namespace}:o:"
        self.probe = f"{namespace}:p"

    def counts(self, key: str) -> str:
        """What the limits of a scope have used."""
        return self._counts + key

    def slots(self, key: str) -> str:
        """Who holds a slot of a scope."""
        return self._slots + key

    def record(self, name: str) -> str:
        """An open reservation, by its name in the world."""
        return self._record + name

    def once(self, message: str) -> str:
        """That a message without a reservation was applied."""
        return self._once + message

    def added(self, key: str, request_id: str) -> str:
        """That a request id was counted for a key."""
        return f"{self._once}{len(key)}:{key}{request_id}"
