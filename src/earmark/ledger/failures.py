"""Which errors of a database are an outage, which ask for another try, and which are mistakes.

An outage is that nobody can answer: no connection, no reply in time, a server that starts, stops or is full. A missing
table, a missing right, a value that does not fit is a mistake, and raises: waiting does not cure it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

# SQLSTATE classes (PostgreSQL, appendix A): connection exception, insufficient resources, operator intervention,
# system error; and of the class 25 that the server takes no writes for now, or has waited too long for our next word.
_OUTAGE_CLASSES: Final = ("08", "53", "57", "58")
_OUTAGE_STATES: Final = {"25006", "25P03"}
# Serialization failure, deadlock: the server asks for the same once more.
_AGAIN_STATES: Final = {"40001", "40P01"}

# Numeric value out of range, check violation: the one check that there is bounds a sum.
_TOO_MUCH_STATES: Final = {"22003", "23514"}
_SQLITE_CHECK: Final = 275

# A connection that is cut may leave a driver in the middle of something: asyncpg then says that it cannot switch its
# state, or that it is closed, and says so by itself where SQLAlchemy hears nothing of it, as while connecting.
_DRIVERS_OWN: Final = {"OperationalError", "InterfaceError", "InternalError", "InternalClientError"}

# SQLite's primary result codes (sqlite.org, "Result and Error Codes"): BUSY, LOCKED, NOMEM, READONLY, IOERR, FULL,
# CANTOPEN, PROTOCOL.
_OUTAGE_CODES: Final = {5, 6, 7, 8, 10, 13, 14, 15}


# Undefined table, invalid schema name.
_NO_TABLE_STATES: Final = {"42P01", "3F000"}


class Again(Exception):
    """What a transaction has seen is not what it has locked: it is to be run once more."""


class TooMuch(ValueError):
    """A sum would be more than a ledger can count."""

    def __init__(self) -> None:
        super().__init__("this is more than a ledger can count: a sum of 2**63 - 1 nano-units")


def is_too_much(error: BaseException) -> bool:
    """Whether a sum of money has become too large."""
    cause: BaseException = getattr(error, "orig", None) or error
    if getattr(cause, "sqlite_errorcode", None) == _SQLITE_CHECK:
        return True
    return isinstance(error, DBAPIError) and _state(error.orig) in _TOO_MUCH_STATES


def is_outage(error: BaseException) -> bool:
    """Whether nobody could answer."""
    if isinstance(error, (TimeoutError, asyncio.TimeoutError, PoolTimeout, OSError)):
        return True
    code = getattr(getattr(error, "orig", None) or error, "sqlite_errorcode", None)
    if code is not None:
        return int(code) & 0xFF in _OUTAGE_CODES
    said: BaseException | None = error
    if isinstance(error, DBAPIError):
        said = error.orig
        if error.connection_invalidated or isinstance(said, OSError):
            return True
    elif isinstance(error, SQLAlchemyError):
        return False
    state = _state(said)
    if (
        state is None
    ):  # no server has said this: the driver has lost its connection, or its place in it
        kinds = (*type(error).__mro__, *type(said).__mro__)
        return any(kind.__name__ in _DRIVERS_OWN for kind in kinds)
    return state[:2] in _OUTAGE_CLASSES or state in _OUTAGE_STATES


def lacks_tables(error: BaseException) -> bool:
    """Whether the ledger's tables are not there."""
    cause: BaseException = getattr(error, "orig", None) or error
    return _state(cause) in _NO_TABLE_STATES or "no such table" in str(cause)


def asks_again(error: BaseException) -> bool:
    """Whether the same transaction may succeed at once."""
    return isinstance(error, DBAPIError) and _state(error.orig) in _AGAIN_STATES


def _state(error: BaseException | None) -> str | None:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state if isinstance(state, str) and state else None
