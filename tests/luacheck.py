"""What can be told of the scripts without running them: which globals they use, and where their keys come from.

Globals are read from the bytecode, as Lua's own compiler makes it. Keys are followed by name: whatever is handed to
the server as a key has one of a few names, and whatever gets one of these names is a key that came from KEYS.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

# Names that only a key may have, and what takes the next one of a message's keys.
VARIABLES: Final = frozenset({"key", "own", "once"})
FIELDS: Final = frozenset({"key", "slots"})
NEXT: Final = ["next_key", "(", ")"]

_TOKEN: Final = re.compile(
    r"--[^\n]*|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|\.\.\.|\.\.|[~=<>]=|[A-Za-z_]\w*|\d[\w.]*|\S"
)
_BRACKETS: Final = {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}

_NO_NAMES: Final = {
    "and",
    "elseif",
    "function",
    "if",
    "in",
    "not",
    "or",
    "return",
    "until",
    "while",
}

Tokens = Sequence[str]


def tokens(text: str) -> list[str]:
    """The words of a Lua text, without its comments."""
    return [token for token in _TOKEN.findall(text) if not token.startswith("--")]


def split(words: Tokens, *marks: str) -> list[Tokens]:
    """The parts between marks that stand in no brackets."""
    parts: list[list[str]] = [[]]
    depth = 0
    for word in words:
        depth += _BRACKETS.get(word, 0)
        if depth == 0 and word in marks:
            parts.append([])
        else:
            parts[-1].append(word)
    return [part for part in parts if part]


def closing(words: Tokens, start: int) -> int:
    """Where the bracket at `start` is closed."""
    depth = 0
    for at in range(start, len(words)):
        depth += _BRACKETS.get(words[at], 0)
        if depth == 0:
            return at
    msg = "a bracket is left open"
    raise ValueError(msg)


@dataclass(frozen=True)
class Call:
    """A call: the words before its bracket, and its arguments."""

    name: str
    arguments: list[Tokens]


def calls(words: Tokens) -> Iterator[Call]:
    """Every call of a name, dotted or of `use(file).name`; the heads of functions are left out."""
    for at, word in enumerate(words):
        if word != "(" or not at or not re.match(r"\w", words[at - 1]):
            continue
        start = at - 1
        while start >= 2 and words[start - 1] == ".":
            start -= 5 if words[start - 2] == ")" else 2
        if words[at - 1] in _NO_NAMES or (start and words[start - 1] == "function"):
            continue
        inside = words[at + 1 : closing(words, at)]
        yield Call("".join(words[start:at]), split(inside, ","))


def is_key(expression: Tokens) -> bool:
    """Whether this is a key: taken from the message, a name that only keys have, or a choice of these."""
    for choice in split(expression, "or"):
        value = list(split(choice, "and")[-1])
        variable = len(value) == 1 and value[0] in VARIABLES
        field = len(value) == 3 and value[1] == "." and value[2] in FIELDS
        if not (value == NEXT or variable or field):
            return False
    return True


def functions(words: Tokens) -> Iterator[tuple[str, list[str]]]:
    """Every named function with its parameters."""
    for at, word in enumerate(words):
        if word != "function":
            continue
        opens = at + 1 if words[at + 1] == "(" else at + 2
        name = words[at + 1] if opens == at + 2 else words[at - 2] if words[at - 1] == "=" else ""
        yield name, [part[0] for part in split(words[opens + 1 : closing(words, opens)], ",")]


def bindings(words: Tokens) -> Iterator[tuple[str, Tokens]]:
    """Everything that gets the name of a key, with what it gets."""
    brackets: list[str] = []
    for at, word in enumerate(words):
        if _BRACKETS.get(word, 0) > 0:
            brackets.append(word)
        elif word in _BRACKETS:
            brackets.pop()
        if word == "for" and words[at + 1] in VARIABLES:
            end = words.index("do", at)
            yield words[at + 1], [*words[words.index("in", at) + 1 : end], "(", ")"]
        if word != "=":
            continue
        start = at - 1
        while words[start - 1] == ".":
            start -= 2
        one = start
        while words[start - 1] == ",":
            start -= 2
        in_table = brackets[-1:] == ["{"] and words[start - 1] != "local"
        start = one if in_table else start
        values = split(_expressions(words[at + 1 :]), ",")
        for position, name in enumerate(split(words[start:at], ",")):
            if name[-1] in (FIELDS if in_table or len(name) > 1 else VARIABLES):
                yield "".join(name), values[position] if position < len(values) else []


def _expressions(words: Tokens) -> Tokens:
    """The words up to the end of a list of expressions."""
    depth, before = 0, ","
    for at, word in enumerate(words):
        depth += _BRACKETS.get(word, 0)
        goes_on = before in {",", "=", "and", "or", "not", ".", "..", "(", "[", "{"} or (
            word in {",", "and", "or", ".", "..", "(", "[", "{", ")", "]", "}"}
        )
        if depth < 0 or (depth == 0 and not goes_on and re.match(r"\w", word)):
            return words[:at]
        before = word
    return words


def stray_keys(files: Mapping[str, str]) -> list[str]:
    """What is handed to the server as a key, or passed on as one, and did not come from KEYS."""
    wrong: list[str] = []
    parsed = {name: tokens(text) for name, text in files.items()}
    takes_keys = {
        function: {at for at, one in enumerate(parameters) if one in VARIABLES}
        for words in parsed.values()
        for function, parameters in functions(words)
        if function and VARIABLES & set(parameters)
    }
    for name, words in parsed.items():
        for call in calls(words):
            positions = takes_keys.get(call.name.rpartition(".")[2], set[int]())
            if call.name == "call":
                positions = {at for at in (1,) if call.arguments[0] != ["'TIME'"]}
            for at in positions:
                if at >= len(call.arguments) or not is_key(call.arguments[at]):
                    shown = ", ".join("".join(argument) for argument in call.arguments)
                    wrong.append(f"{name}: {call.name}({shown})")
        wrong += [
            f"{name}: {left} = {' '.join(right)}"
            for left, right in bindings(words)
            if not is_key(right)
        ]
    return wrong


def globals_of(text: str) -> tuple[set[str], set[str]]:
    """The globals that a script reads, and those that it writes, by Lua 5.1's own compiler."""
    lua: Any = import_module("lupa.lua51").LuaRuntime(encoding=None)
    dump = lua.eval("function(text) return string.dump(assert(loadstring(text))) end")
    code = _Bytecode(dump(text.encode()))
    code.function()
    return code.reads, code.writes


class _Bytecode:
    """As much of Lua 5.1's bytecode as names globals."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 12  # the header
        self._size = "<I" if data[8] == 4 else "<Q"  # of a string's length
        self.reads: set[str] = set()
        self.writes: set[str] = set()

    def _number(self, form: str = "<i") -> Any:
        (number,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return number

    def _text(self) -> str:
        length = self._number(self._size)
        self._at += length
        return self._data[self._at - length : self._at - 1].decode() if length else ""

    def _constant(self) -> str:
        kind = self._number("<b")
        if kind == 4:
            return self._text()
        self._at += {0: 0, 1: 1, 3: 8}[kind]
        return ""

    def function(self) -> None:
        """Read one function, and those within."""
        self._text()
        self._at += 2 * 4 + 4  # lines, and the counts of upvalues, parameters and registers
        instructions = [self._number("<I") for _ in range(self._number())]
        constants = [self._constant() for _ in range(self._number())]
        for instruction in instructions:
            found = {5: self.reads, 7: self.writes}.get(instruction & 0x3F)  # GETGLOBAL, SETGLOBAL
            if found is not None:
                found.add(constants[instruction >> 14])
        for _ in range(self._number()):
            self.function()
        for _ in range(self._number()):  # the lines of the instructions
            self._at += 4
        for _ in range(self._number()):  # local variables
            self._text()
            self._at += 8
        for _ in range(self._number()):  # upvalues
            self._text()
