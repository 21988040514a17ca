"""The users of docs/redis.md: its `users.acl`, as it stands there; and a server for tests that change users."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.servers import RedisServer, redis_server

DOCUMENTS: Final = Path(__file__).parent.parent.parent / "docs"
PASSWORD: Final = "open sesame"  # noqa: S105 - of servers that a test starts


def acl_file() -> str:
    """The whole of the file."""
    text = (DOCUMENTS / "redis.md").read_text(encoding="utf-8")
    found: list[str] = re.findall(r"^```text\n((?:user .+\n)+)```$", text, re.MULTILINE)
    (users,) = found
    return users.replace(">PASSWORD", ">sesame")


def rights(user: str) -> list[str]:
    """What follows a user's name there, as arguments of ACL SETUSER."""
    (words,) = re.findall(rf"^user {user} (.+)$", acl_file(), re.MULTILINE)
    return [word.replace(">sesame", f">{PASSWORD}") for word in words.split()]


def commands(user: str) -> list[str]:
    """The commands that a user may run."""
    return [word.removeprefix("+") for word in rights(user) if word.startswith("+")]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server whose users the tests of a module change."""
    with redis_server() as started:
        yield started
