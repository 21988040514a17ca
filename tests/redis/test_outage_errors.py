"""Which errors are an outage: the table of docs/failure.md, which names a test for each of its rows."""

from __future__ import annotations

import re
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
        for file in TESTS.glob("test_*.py")
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
