"""C68: what holds of every script without running it, so that no server and no stand-in for one can differ about it."""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module, resources
from pathlib import Path
from typing import Any, Final

import pytest

from earmark.backends.redis import scripts
from tests.luacheck import globals_of, stray_keys, tokens

FOLDER: Final = Path(str(resources.files(scripts)))
FILES: Final = {file.stem: file.read_text("utf-8") for file in sorted(FOLDER.glob("*.lua"))}
COMPOSED: Final = {
    f"{verb}, {'7.0' if flags else '6.2'}": script.text
    for flags in (True, False)
    for verb, script in scripts.scripts(allow_oom=flags).items()
}

# What a script may take from its surroundings: the same in every Lua from 5.1 on, and in every sandbox.
GLOBALS: Final = {
    "ARGV",
    "KEYS",
    "cjson",
    "math",
    "pairs",
    "pcall",
    "redis",
    "string",
} | {
    "table",
    "tonumber",
    "tostring",
    "type",
}
MEMBERS: Final = {
    "cjson": {"decode", "encode"},
    "math": {"ceil"},
    "redis": {"call"},
    "string": {"byte", "find", "format", "gmatch", "match", "sub"},
    "table": {"concat"},
}

# The files that no part of the core is the twin of: what begins and what ends every script.
FRAME: Final = {"begin", "answer"}

# Of no twin either: memory has neither users nor nodes.
ALONE: Final = FRAME | {"rights", "claim"}


def test_the_scripts_are_made_of_all_files() -> None:
    """No file is left over, and none is in a script twice."""
    used: set[str] = set()
    for name, text in COMPOSED.items():
        verb = name.partition(",")[0]
        inside = [file for file in FILES if FILES[file] in text]
        assert all(text.count(FILES[file]) == 1 for file in inside)
        assert {verb} == {*inside} & {*scripts.TAKES, *scripts.FREES}
        assert {*inside} >= FRAME
        used.update(inside)
    assert used == set(FILES)


@pytest.mark.parametrize("name", COMPOSED)
def test_no_script_has_globals(name: str) -> None:
    """It writes none, which a server refuses, and reads none but the usual: it has every file that it needs."""
    text = COMPOSED[name].removeprefix("#!lua flags=allow-oom\n")  # for the server, not for Lua
    reads, writes = globals_of(text)
    assert writes == set()
    assert reads <= GLOBALS


def test_no_global_is_allowed_for_nothing() -> None:
    """`unpack` is not among them, for one, which a newer Lua does not have."""
    texts = [text for text in COMPOSED.values() if not text.startswith("#!")]
    assert {name for text in texts for name in globals_of(text)[0]} <= GLOBALS
    assert {name for text in FILES.values() for name in globals_of(text)[0]} >= GLOBALS


def test_a_global_is_found() -> None:
    """In whatever function it is."""
    text = "local function f() return function() leak = other + 1 end end; return f"
    assert globals_of(text) == ({"other"}, {"leak"})


def test_every_command_is_checked() -> None:
    """What a user needs is what the scripts run, and each is tried by its own name."""
    run = {
        name: set(re.findall(r"call\('([A-Z]+)'", text)) - {"TIME"} for name, text in FILES.items()
    }
    tried = dict(re.findall(r"(\w+) = function\(key\) return call\('(\w+)'", FILES["rights"]))
    assert set().union(*(run[name] for name in run if name != "rights")) == {*scripts.COMMANDS}
    assert tried == {name: name for name in scripts.COMMANDS}


@pytest.mark.parametrize("name", FILES)
def test_only_what_every_lua_has_is_used(name: str) -> None:
    """A newer Lua has no `unpack`, an older one no `//`; a sandbox has no more than a part of the libraries."""
    words = tokens(FILES[name])
    for at, word in enumerate(words):
        if word in MEMBERS and words[at - 1] != ".":
            assert words[at + 1] == "."
            assert words[at + 2] in MEMBERS[word], f"{word}.{words[at + 2]}"
    text = " ".join(word for word in words if not word.startswith(("'", '"')))
    assert not re.search(r"\b(unpack|goto|getn|setfenv|loadstring|load string)\b|/ /|<const>", text)


def test_no_number_becomes_text_by_itself() -> None:
    """`tostring` of 1.7e15 loses digits: numbers leave by a format. The one `tostring` is of what has failed."""
    assert {
        name: text.count("tostring(") for name, text in FILES.items() if "tostring(" in text
    } == {"answer": 1}
    assert "tostring(failure)" in FILES["answer"]
    # Neither do they by `..`: what stands beside one is text, or the result of a format.
    formats = re.findall(r"format\(\s*'([^']*)'", "\n".join(FILES.values()))
    assert len(formats) > 15
    allowed = {"%s", "%d", "%.0f", "%.17g"}
    found = {directive for text in formats for directive in re.findall(r"%[^a-z]*[a-z]", text)}
    assert found <= allowed


def test_replies_are_text() -> None:
    """A number in a reply loses its fraction: a script returns one string, of answers with their ids in front."""
    words = " ".join(tokens(FILES["answer"]))
    added = "answers [ # answers + 1 ] = ( id or '?' ) .. ' ' .. answer .. ( more or '' ) "
    assert words.count("answers [") == words.count(added) == 1
    assert words.endswith(r"return table . concat ( answers , '\0' )")


@pytest.mark.parametrize("name", sorted(set(FILES) - ALONE))
def test_every_file_names_its_twin_which_exists(name: str) -> None:
    """What a file mirrors stands in its comments, by a name that leads there."""
    comments = " ".join(re.findall(r"-- ?(.*)", FILES[name]))
    named = [
        twin
        for sentence in re.findall(r"Twin: (.*?)(?:\. |\.$|$)", comments)
        for twin in re.findall(r"\w+(?:\.\w+)+|\b[A-Z]\w+", sentence)
    ]
    assert named, "names no twin"
    for twin in named:
        found(twin)


def found(name: str) -> Any:
    """A module, or an attribute of one, or of a class of the library by its bare name; fails where there is none."""
    first, *rest = name.split(".")
    if first != "earmark":
        homes = (
            "earmark.backends.store",
            "earmark.backends.book",
            "earmark.core.hold",
            "earmark.limits",
        )
        (home,) = {
            getattr(import_module(module), first)
            for module in homes
            if hasattr(import_module(module), first)
        }
        return reduce(getattr, rest, home)
    for end in range(len(rest), 0, -1):
        try:
            module = import_module(".".join([first, *rest[:end]]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, rest[end:], module)
    pytest.fail(f"{name} is not there")


def test_keys_come_from_keys() -> None:
    """Every key that is handed to the server was taken from KEYS by `next_key`; one file puts them in another order."""
    assert stray_keys(FILES) == []
    reads = {"begin": 1, "given": 3}
    for name, text in FILES.items():
        words = tokens(text)
        assert words.count("KEYS") == reads.get(name, 0), name
        assert words.count("redis") == (name == "begin"), name
        # The server is called by its name, and handed to nobody.
        calls = [at for at, word in enumerate(words) if word == "call" and words[at - 1] != "."]
        given = [at for at in calls if words[at + 1] != "("]
        assert len(given) == (name == "begin"), name
        commands = [words[at + 2] for at in calls if at not in given]
        assert all(re.fullmatch(r"'[A-Z]+'", command) for command in commands), commands


@pytest.mark.parametrize(
    ("file", "line", "instead"),
    [
        ("scopes", "call('GET', key)", "call('GET', name)"),
        ("scopes", "call('DEL', scope.key)", "call('DEL', scope.key .. ':x')"),
        ("scopes", "key = key,", "key = 'a' .. key,"),
        ("slots", "call('ZADD', key, 'XX',", "call('ZADD', id, 'XX',"),
        ("slots", "call('ZREM', key, id)", "call('ZREM', id, key)"),
        ("reserve", "take_slot(scope.slots, scope.holder,", "take_slot(scope.holder, scope.slots,"),
        ("admission", "scope.slots = next_key()", "scope.slots = parts[1]"),
        ("admission", "load_scope(next_key(), parts)", "load_scope(parts[1], parts)"),
        ("admission", "live_slots(scope.slots, now)", "live_slots(scope.states, now)"),
        ("resolve", "and next_key() or key", "and next_key() or id"),
        ("resolve", "bury(own, grave, over)", "bury(record.id, grave, over)"),
        ("renew", "local key = next_key()\n      local", "local key = parts[1]\n      local"),
        ("renew", "{key = key,", "{key = name,"),
        ("reset", "next_key()\n", "id\n"),
        ("reserve", "local key = next_key()", "local key = 'r:' .. id"),
        (
            "reserve",
            "    write_new(key, id, seen, asked, generations, now)\n  end",
            "    write_new(id)\n  end",
        ),
        ("reserve", "write_record(key, kept", "write_record(id, kept"),
        ("joint", "1, true), next_key()", "1, true), text"),
        ("joint", "write_record(other.key,", "write_record(other.id,"),
        ("claim", "write_record(key, kept", "write_record(id, kept"),
    ],
)
def test_a_key_from_elsewhere_is_found(file: str, line: str, instead: str) -> None:
    """The search above sees a key that is made up, in whatever way it gets where keys go."""
    assert line in FILES[file]
    changed = FILES | {file: FILES[file].replace(line, instead, 1)}
    assert [where.partition(":")[0] for where in stray_keys(changed)] == [file]
