"""Which errors are an outage: the table of docs/failure.md, which names a test for each of its rows."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
from pathlib import Path
from typing import Any, Final

import pytest
from redis import exceptions

from earmark.backends.redis.failures import _PASSING_WORDS as WORDS
from earmark.backends.redis.failures import Outage, StoreError, failure, is_outage, reason_of

TESTS: Final = Path(__file__).parent
DOCUMENT: Final = (TESTS.parent.parent / "docs" / "failure.md").read_text(encoding="utf-8")


def reply(text: str) -> Exception:
    """An error reply as redis-py raises it, which takes the first word off those that have a class of their own."""
    from redis.asyncio.connection import DefaultParser

    parser: Any = DefaultParser
    error: Exception = parser.parse_error(text)
    return error


OUTAGES: Final = {
    "OOM": "OOM command not allowed when used memory > 'maxmemory'.",
    "BUSY": "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "LOADING": "LOADING Redis is loading the dataset in memory",
    "READONLY": "READONLY You can't write against a read only replica.",
    "MASTERDOWN": "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "CLUSTERDOWN": "CLUSTERDOWN The cluster is down",
    "TRYAGAIN": "TRYAGAIN Multiple keys request during rehashing of slot",
    "MISCONF": "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "NOREPLICAS": "NOREPLICAS Not enough good replicas to write.",
}

MISTAKES: Final = {
    "WRONGTYPE": "WRONGTYPE Operation against a key holding the wrong kind of value",
    "NOPERM": "NOPERM User gateway has no permissions to run the 'evalsha' command",
    "WRONGPASS": "WRONGPASS invalid username-password pair or user is disabled.",
    "NOAUTH": "NOAUTH Authentication required.",
    "ERR": "ERR user_script:12: attempt to index a nil value",
    "CROSSSLOT": "CROSSSLOT Keys in request don't hash to the same slot",
}


@pytest.mark.parametrize("word", OUTAGES)
def test_a_reply_that_passes_is_an_outage(word: str) -> None:
    """As a reply of its own, and as what a script was told within."""
    text = OUTAGES[word]
    assert is_outage(reply(text))
    assert is_outage(StoreError(text))
    assert is_outage(StoreError(f"ERR {text} script: 1f, on @user_script:3."))
    assert reason_of(reply(text)) == text
    told = failure(reply(text), sent=True)
    assert isinstance(told, Outage)
    assert told.sent


@pytest.mark.parametrize("word", MISTAKES)
def test_a_reply_that_does_not_pass_is_a_mistake(word: str) -> None:
    """It is told to whoever asked."""
    text = MISTAKES[word]
    assert not is_outage(reply(text))
    assert not is_outage(StoreError(text))
    told = failure(reply(text), sent=False)
    assert isinstance(told, StoreError)
    assert not told.sent
    assert str(told) in {text, text.removeprefix("ERR ")}


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ConnectionError("Connection closed by server."),
        exceptions.TimeoutError("Timeout reading from socket"),
        exceptions.ConnectionError("max number of clients reached"),
        ConnectionRefusedError(111, "Connection refused"),
        ConnectionResetError(104, "Connection reset by peer"),
        TimeoutError(),
        EOFError(),
        OSError("no route to host"),
    ],
)
def test_a_connection_that_breaks_is_an_outage(error: Exception) -> None:
    """Whatever raises it: redis-py, asyncio or the system."""
    assert is_outage(error)
    assert reason_of(error)


def connecting(origin: Exception, to: str = "127.0.0.1:6379") -> Exception:
    """What redis-py makes of what a connection cannot be made for."""
    if isinstance(origin, OSError):
        message = f"Error {origin.errno} connecting to {to}. {origin.strerror}."
        made = exceptions.ConnectionError(message)
        made.__context__ = origin
    else:
        made = exceptions.ConnectionError(origin)
        made.__cause__ = origin
    return made


def system(number: int) -> OSError:
    """An error of the system."""
    return OSError(number, os.strerror(number))


SET_UP: Final = {
    "a file is missing": system(errno.ENOENT),
    "a folder is missing": system(errno.ENOTDIR),
    "a file may not be read": system(errno.EACCES),
    "a folder is no file": system(errno.EISDIR),
    "no certificate in it": ssl.SSLError(136, "[X509: NO_CERTIFICATE_OR_CRL_FOUND] no certificate"),
    "no key in it": ssl.SSLError(524297, "[SSL] PEM lib (_ssl.c:3905)"),
    "another's key": ssl.SSLError(116, "[X509: KEY_VALUES_MISMATCH] key values mismatch"),
    "no cipher": ssl.SSLError("No cipher can be selected."),
    "no trust": ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] unknown"),
    "no certificate": ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] required"),
    "a bad argument": ValueError("check_hostname needs server_hostname"),
    "another kind of argument": TypeError("an integer is required"),
    "no host's name": UnicodeError("label empty or too long"),
}


@pytest.mark.parametrize("what", SET_UP)
def test_settings_that_cannot_be_used_are_a_mistake(what: str) -> None:
    """They are wrong for as long as nobody mends them: memory must not bridge that for ever."""
    error = connecting(SET_UP[what])
    assert not is_outage(error)
    told = failure(error, sent=False)
    assert isinstance(told, StoreError)
    assert "settings of the connection" in str(told)


PASSING: Final = {
    "no name": (socket.gaierror(-2, "Name or service not known"), "redis.internal:6379"),
    "no name yet": (socket.gaierror(-3, "Temporary failure in name resolution"), "redis:6379"),
    "refused": (system(errno.ECONNREFUSED), "127.0.0.1:6379"),
    "no route": (system(errno.EHOSTUNREACH), "127.0.0.1:6379"),
    "no socket": (system(errno.ENOENT), "/run/redis/redis.sock"),
    "no folder of a socket": (system(errno.ENOTDIR), "/run/redis/redis.sock"),
    "cut off": (ssl.SSLEOFError(8, "[SSL: UNEXPECTED_EOF_WHILE_READING] EOF"), "127.0.0.1:6379"),
    "closing": (ssl.SSLError(1, "[SSL: APPLICATION_DATA_AFTER_CLOSE_NOTIFY] data"), "a:6379"),
    "too many files": (system(errno.EMFILE), "127.0.0.1:6379"),
}


@pytest.mark.parametrize("what", PASSING)
def test_what_keeps_a_connection_from_being_made_passes(what: str) -> None:
    """A name that does not resolve, a server that is not there yet, a handshake that is cut off."""
    origin, to = PASSING[what]
    assert is_outage(connecting(origin, to))
    assert is_outage(origin) or what.startswith(
        "no"
    )  # bare, it may not be told from a missing file


@pytest.mark.parametrize(
    "error",
    [
        exceptions.AuthorizationError("no"),
        exceptions.MaxConnectionsError("Too many connections"),
        exceptions.InvalidResponse("Protocol Error"),
        ValueError("a bug"),
        StoreError("the key BUSYBODY is OOMPH"),
    ],
)
def test_anything_else_is_none(error: Exception) -> None:
    """A bug is to be seen."""
    assert not is_outage(error)


def test_the_document_names_every_word() -> None:
    """The table of the document and that of the code are the same."""
    words = set(re.findall(r"[A-Z]{3,}", WORDS.pattern))
    assert words == set(OUTAGES)
    rows = {row.split("|")[1]: row for row in DOCUMENT.splitlines() if row.startswith("|")}
    for word in OUTAGES:
        (row,) = (row for cell, row in rows.items() if f"`{word}`" in cell)
        assert "outage" in row
    for word in MISTAKES.keys() - {"ERR", "CROSSSLOT"}:
        (row,) = (row for cell, row in rows.items() if f"`{word}`" in cell)
        assert "raises" in row


def test_the_document_names_tests_that_there_are() -> None:
    """Every row of every table names one, and each of them exists."""
    defined = {
        name
        for file in TESTS.parent.rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)
    }
    named = set(re.findall(r"`(test_\w+)`", DOCUMENT))
    assert named
    assert named <= defined, named - defined
    body = [row for row in DOCUMENT.splitlines() if row.startswith("|")]
    bare = [
        row for row in body if "`test_" not in row and "---" not in row and "| test |" not in row
    ]
    assert not bare
