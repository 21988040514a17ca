"""The scripts, each put together from the files beside this one.

Each file between the first and the last is a function that is run when it is first used. There are two scripts, since a
server that is out of memory must still let go of what is held: what frees may be let through, what takes not.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import Final, NamedTuple

TAKES: Final = ("reserve", "claim", "add")
FREES: Final = ("resolve", "renew", "peek", "reset", "rights")

COMMANDS: Final = (
    "DEL",
    "EXISTS",
    "GET",
    "PEXPIRE",
    "SET",
    "ZADD",
    "ZCOUNT",
    "ZREM",
    "ZREMRANGEBYSCORE",
    "ZREVRANGE",
    "ZSCORE",
)
"""What the scripts run, besides reading the clock."""

_SHARED: Final = (
    "fixed_window",
    "sliding_window",
    "token_bucket",
    "reset_mark",
    "scopes",
    "slots",
    "metrics",
    "records",
    "identity",
    "admission",
)


class Script(NamedTuple):
    """A script, and the name that the server knows it by."""

    text: str
    sha: str


def _script(first_line: str, *verbs: str) -> Script:
    parts = [first_line, _text("begin")]
    parts += [f"files.{name} = function()\n{_text(name)}end\n" for name in (*_SHARED, *verbs)]
    text = "\n".join([*parts, _text("answer")]).lstrip()
    return Script(text, hashlib.sha1(text.encode()).hexdigest())  # noqa: S324 - the server's own name for it


def _text(name: str) -> str:
    return resources.files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


class Scripts(NamedTuple):
    """What takes from limits, and what gives back."""

    take: Script
    free: Script


@cache
def scripts(*, allow_oom: bool) -> Scripts:
    """Return the scripts for a server.

    Args:
        allow_oom: the server knows the flag that lets a script through when its memory is full (7.0).
    """
    flags = "#!lua flags=allow-oom" if allow_oom else ""
    return Scripts(_script("", *TAKES), _script(flags, *FREES))
