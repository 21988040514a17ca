"""The scripts, one for each verb, put together from the files beside this one.

A script is the files that its verb needs, one below the other, and no others: whatever stands in a script costs every
call of it, a function's making no less than its run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Final, NamedTuple

FREES: Final = ("resolve", "renew", "reset", "peek", "rights")
"""What a server that is out of memory must let through; it comes first in a round trip."""

TAKES: Final = ("reserve", "claim", "add", "present")
"""What it must refuse."""

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

_ALGORITHMS: Final = ("fixed_window", "sliding_window", "token_bucket")
_COUNTS: Final = (*_ALGORITHMS, "resets", "limits", "scopes")
_ALL: Final = (*_COUNTS, "slots", "admission", "notes", "records", "identity", "given")

_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "resolve": _ALL,
    "renew": (*_COUNTS, "slots", "notes", "records"),
    "reset": (*_COUNTS, "slots", "admission"),
    "peek": (*_COUNTS, "slots", "admission"),
    "rights": (),
    "reserve": (*_ALL, "joint"),
    "claim": ("notes", "records", "identity", "given"),
    "add": _COUNTS,
    "present": ("slots",),
}

_USED: Final = (*_ALGORITHMS, "resets", "slots", "notes", "identity", "given", "joint")
"""Files that a call needs or not: `use` makes what is in one when it is first asked for."""

_USE: Final = """local made = {{}}

function use(name)
  local one = made[name]
  if one then
    return one
  end
  {choices}
  end
  made[name] = one
  return one
end
"""


class Script(NamedTuple):
    """A script, and the name that the server knows it by."""

    text: str
    sha: str


Scripts = Mapping[str, Script]
"""The scripts by their verbs, what frees before what takes."""


@cache
def scripts(*, allow_oom: bool) -> Scripts:
    """Return the scripts for a server.

    Args:
        allow_oom: the server knows the flag that lets a script through when its memory is full (7.0).
    """
    flags = "#!lua flags=allow-oom\n" if allow_oom else ""
    frees = {verb: _script(flags, verb) for verb in FREES}
    return frees | {verb: _script("", verb) for verb in TAKES}


def _script(flags: str, verb: str) -> Script:
    needed = _NEEDED[verb]
    parts = [_text(name) for name in (*needed, verb) if name not in _USED]
    used = _use([name for name in needed if name in _USED])
    inner = "\n".join([*parts, used, _text("answer")])
    # What a function takes from another function costs less than what it takes from where that one stands.
    text = f"{flags}{_text('begin')}\nlocal function run()\n\n{inner}\nend\n\nreturn run()\n"
    return Script(text, hashlib.sha1(text.encode()).hexdigest())  # noqa: S324 - the server's own name for it


def _use(names: Sequence[str]) -> str:
    """The function that makes what is in files: of those that a call does not need, no function is made."""
    choices = (
        f"if name == '{name}' then\n    one = (function()\n{_text(name)}\n    end)()"
        for name in names
    )
    return _USE.format(choices="\n  else".join(choices)) if names else ""


@cache
def _text(name: str) -> str:
    return resources.files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
