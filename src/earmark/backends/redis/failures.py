"""Which failures are an outage of the store, and which are somebody's mistake that must be seen (docs/failure.md).

An outage is what passes by itself: no connection, no reply in time, a server that is loading, full, busy, read-only
or without its master. A wrong type, a script's error, a wrong password, missing rights or settings that cannot be used
do not, and raise.
"""

from __future__ import annotations

import errno
import re
import ssl
from collections.abc import Awaitable
from typing import Final, TypeVar

from redis import exceptions

from earmark.errors import BackendUnavailable, EarmarkError

_Answer = TypeVar("_Answer")

# Subclasses of ConnectionError that say something else than that there is no connection.
_MISTAKES: Final = (
    exceptions.AuthenticationError,
    exceptions.AuthorizationError,
    exceptions.MaxConnectionsError,
)

# TLS that breaks off, and what a connection that is being closed may end with; all else of it is set up wrongly.
_BROKEN_OFF: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_PASSING_OF_TLS: Final = re.compile(
    r"AFTER_CLOSE_NOTIFY|BAD_RECORD_MAC|DECRYPTION_FAILED|INTERNAL_ERROR|UNEXPECTED_EOF|SHUTDOWN"
)

# A host and a port cannot be missing: it is a file of the settings that is. A socket can, while nobody listens.
_TO_A_PORT: Final = re.compile(r" connecting to \S*:\d+\.")
_MISSING: Final = (errno.ENOENT, errno.ENOTDIR)
_UNREADABLE: Final = (errno.EACCES, errno.EISDIR)

# redis-py takes the first word off the errors that have a class of their own.
_PASSING: Final = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.MasterDownError,
    exceptions.ClusterDownError,
    exceptions.AskError,  # MOVED as well: a slot that is on its way
    exceptions.TryAgainError,
    OSError,
    EOFError,
)

# The first word of an error reply, which a script's failure has somewhere within.
_PASSING_WORDS: Final = re.compile(
    r"(?:^|[\s:-])(?:OOM|BUSY|LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|MISCONF|NOREPLICAS)\s"
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
    """The store answered with an error that is no outage: a wrong type, missing rights, a clock that stands still.

    Attributes:
        sent: whether the message may have been applied all the same.
    """

    def __init__(self, reason: str, *, sent: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent


def is_outage(error: BaseException) -> bool:
    """Whether this error passes by itself."""
    if isinstance(error, _MISTAKES) or _is_set_up_wrongly(error):
        return False
    return isinstance(error, _PASSING) or bool(_PASSING_WORDS.search(f"{error} "))


def _is_set_up_wrongly(error: BaseException) -> bool:
    """Whether it is the settings that cannot be used; redis-py makes a ConnectionError of whatever comes up."""
    origin = error
    if isinstance(error, exceptions.ConnectionError):
        if error.__cause__ is not None:
            known = (*_PASSING, exceptions.RedisError)
            if not isinstance(error.__cause__, known):
                return True  # an argument that no connection can be made with
        origin = error.__cause__ or error.__context__ or error
    if isinstance(origin, ssl.SSLError):
        return not isinstance(origin, _BROKEN_OFF) and not _PASSING_OF_TLS.search(str(origin))
    number = origin.errno if isinstance(origin, OSError) else None
    return number in _UNREADABLE or (number in _MISSING and bool(_TO_A_PORT.search(str(error))))


def reason_of(error: BaseException) -> str:
    """What is to be said about an error, with the word that the server began it with."""
    text = str(error) or type(error).__name__
    if _is_set_up_wrongly(error):
        text += " (the settings of the connection cannot be used as they are)"
    word = getattr(error, "status_code", None)
    return text if word is None or text.startswith(word) else f"{word} {text}"


def failure(error: BaseException, *, sent: bool) -> Outage | StoreError:
    """What a caller is told about an error that is not about its own message.

    Args:
        error: what has happened.
        sent: whether the caller's message may have reached the store.
    """
    kind = Outage if isinstance(error, Outage) or is_outage(error) else StoreError
    return kind(reason_of(error), sent=sent)


def is_owed(error: BaseException) -> bool:
    """Whether a message that failed so has to reach the store still.

    Its caller is gone, or the store is, or a message that it may have applied has met a mistake on its second way:
    delivered with its id it counts once. Else the store has answered it, and nothing has changed.
    """
    if isinstance(error, StoreError):
        return error.sent
    return isinstance(error, Outage) or not isinstance(error, Exception)


async def told(answer: Awaitable[_Answer]) -> _Answer:
    """What the store answers to somebody for whom nobody else can.

    Raises:
        BackendUnavailable: it does not.
    """
    try:
        return await answer
    except Outage as outage:
        raise unavailable(outage) from outage


def unavailable(outage: Outage) -> BackendUnavailable:
    """What a caller is told of an outage."""
    return BackendUnavailable(f"the store cannot be reached: {outage}")
