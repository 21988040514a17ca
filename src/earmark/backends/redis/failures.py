"""Which failures are an outage of the store, and which are somebody's mistake that must be seen (docs/failure.md).

An outage is what passes by itself: no connection, no reply in time, a server that is loading, full, busy, read-only
or without its master. A wrong type, a script's error, a wrong password or missing rights do not, and raise.
"""

from __future__ import annotations

import re
from typing import Final

from redis import exceptions

from earmark.errors import EarmarkError

# Subclasses of ConnectionError that say something else than that there is no connection.
_MISTAKES: Final = (
    exceptions.AuthenticationError,
    exceptions.AuthorizationError,
    exceptions.MaxConnectionsError,
)

_PASSING: Final = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.MasterDownError,
    exceptions.ClusterDownError,
    OSError,
    EOFError,
)

# The first word of an error reply, which a script's failure has somewhere within.
_PASSING_WORDS: Final = re.compile(
    r"(?:^|[\s:-])(?:OOM|BUSY|LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|MISCONF|NOREPLICAS)\s"
)


class Outage(Exception):
    """The store cannot answer now.

    Attributes:
        sent: whether the message may have reached it all the same.
    """

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class StoreError(EarmarkError):
    """The store answered with an error that is no outage: a wrong type, missing rights, a clock that stands still."""


def is_outage(error: BaseException) -> bool:
    """Whether this error passes by itself."""
    if isinstance(error, _MISTAKES):
        return False
    return isinstance(error, _PASSING) or bool(_PASSING_WORDS.search(str(error)))
