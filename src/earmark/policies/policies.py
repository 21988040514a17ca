"""`Policies`: who may use how much, from a file, asked for every request and swapped whole."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import ValidationError

from earmark.limits import Scope
from earmark.policies.book import Book
from earmark.policies.checking import checked
from earmark.policies.mistakes import PolicyError
from earmark.policies.reading import Source, of_mapping, read
from earmark.policies.shape import FilePart, GenerateSchema
from earmark.policies.translating import Found, found


class Policies:
    """Who may use how much: a default, tenants, rules per model, and limits across tenants.

    It may be asked and reloaded from several threads. The format is described in docs/policies.md.

    Args:
        data: the policies as a mapping, in the shape of the file.
        dims: what you say of a request beside tenant and model, such as `["team", "user"]`: a scope by anything
            else is a mistake, since nothing would ever meet it. None: not checked.

    Raises:
        PolicyError: mistakes: all of one part by itself (names, values, what is missing); where there is none,
            all that several parts make together (two of a kind, names that stand for nothing).
    """

    __slots__ = ("_book", "_dims", "_file", "_lock", "_parts", "_taken", "_turns")

    _book: Book
    _dims: frozenset[str] | None
    _file: str | None
    _parts: FilePart

    def __init__(self, data: Mapping[str, Any], *, dims: Iterable[str] | None = None) -> None:
        self._begin(None, dims)
        self._take(of_mapping(data))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, dims: Iterable[str] | None = None) -> Self:
        """Read policies from a file: YAML (`.yaml`, `.yml`, with `earmark[yaml]`), TOML or JSON, as its name ends.

        Args:
            path: the file.
            dims: as above.

        Raises:
            PolicyError: it is missing, unreadable or has mistakes. It never means "no limits".
        """
        self = cls.__new__(cls)
        name = os.fspath(path)
        self._begin(name, dims)
        self._take(read(name))
        return self

    def scopes(
        self, *, tenant: str, model: str | None = None, **dims: str | None
    ) -> tuple[Scope, ...]:
        """The scopes of a request: the tenant's own, the one rule for its model, and those across tenants.

        As long as the policies stay, the same question has the same objects for an answer.

        Args:
            tenant: who asks; one that is not listed gets the default, for itself.
            model: the model that is asked for, or an alias of it; None or "" where there is none.
            dims: what else is known of the request, by name, such as `team`. One that no scope is by is ignored; where
                one is missing, None or "", scopes by it do not apply.

        Raises:
            ValueError: the tenant is empty, or a value is no key: longer than 1,024 bytes, or no text.
        """
        book = self._book
        question = (tenant, model, *map(dims.get, book.dims)) if dims else (tenant, model)
        try:
            return book.kept[question]
        except KeyError:
            answer = book.passing.get(question)
            if answer is not None:
                return answer
        except TypeError:
            pass  # something that is no text: said below
        return book.find(tenant, model, dims)

    @property
    def dims(self) -> tuple[str, ...]:
        """What limits are by beside tenant and model."""
        return self._book.dims

    def scope_of(self, key: str) -> Scope | None:
        """The scope that has a key, as these policies would make it now; None: they would not."""
        return self._book.scope_of(key)

    def passed_over(
        self, *, tenant: str, model: str | None = None, **dims: str | None
    ) -> dict[str, str]:
        """The limits across tenants that a request does not meet: why not, by their ids; for those who check a file.

        Args:
            tenant: as for `scopes`.
            model: so as well.
            dims: so as well.

        Raises:
            ValueError: as `scopes`.
        """
        return self._book.passed_over(tenant, model, dims)

    def resolve(self, model: str) -> str:
        """The model that a name stands for: itself where it is no alias.

        Ask once for a request, and send, price and log what it says: its scopes are those of the same model, whatever
        a reload makes of the alias meanwhile (B44, C53).
        """
        return self._book.aliases.get(model, model)

    def reload(self) -> None:
        """Read the file again and take it whole, or not at all.

        What was used stays used: counts belong to the keys of scopes, which only tenants and ids make. Requests that
        run keep the scopes that they began with. Of several reloads at the same time the one that began last has
        the last word.

        Raises:
            PolicyError: it is missing, unreadable or has mistakes; the policies stay as they were.
            ValueError: these policies came from no file.
        """
        with self._lock:
            turn, file = next(self._turns), self._file
        if file is None:
            msg = "these policies came from no file: replace(Policies(…)) takes new ones"
            raise ValueError(msg)
        self._take(read(file), turn)

    def replace(self, other: Policies) -> None:
        """Take other policies whole, in one step; the file that `reload` reads is then the other's."""
        with other._lock:  # one lock after the other: two may replace each other
            named, opened = (other._file, other._dims), (other._book, other._parts)
        with self._lock:
            self._taken = next(self._turns)
            self._file, self._dims = named
            self._book, self._parts = opened

    def _begin(self, file: str | None, dims: Iterable[str] | None) -> None:
        self._file = file
        self._dims = None if dims is None else frozenset(dims)
        self._lock = threading.RLock()  # a signal's handler may reload while this thread does
        self._turns = itertools.count(1)
        self._taken = 0

    def _take(self, source: Source, turn: int = 0) -> None:
        """Make a book of what was read, and open it where none that was read later is open.

        Raises:
            PolicyError: there are mistakes.
        """
        part, mistakes = _parsed(source.data, self._dims)
        told = (*source.mistakes, *map(source.mistake, mistakes))
        if told or part is None:
            raise PolicyError(sorted(told, key=lambda mistake: mistake.line or 0))
        book = Book(part)
        with self._lock:
            if turn >= self._taken:
                self._taken, self._parts, self._book = turn, part, book

    def __repr__(self) -> str:
        part = self._parts
        rules = sum(len(one.models) for one in [part.default, *part.tenants])
        counted = (
            (len(part.tenants), "tenant"),
            (rules, "model rule"),
            (len(part.scopes), "scope"),
            (len(part.aliases), "alias"),
        )
        said = ", ".join(f"{n} {word}{_plural(word, n)}" for n, word in counted)
        return f"<Policies {self._file or 'of a mapping'}: {said}>"


def _plural(word: str, n: int) -> str:
    if n == 1:
        return ""
    return "es" if word.endswith("s") else "s"


def _parsed(data: object, dims: frozenset[str] | None) -> tuple[FilePart | None, list[Found]]:
    """What the data say, or what is wrong with them."""
    if data is None:
        return None, [Found("empty", (), "says nothing", "write at least a default")]
    try:
        part = FilePart.model_validate(data)
    except ValidationError as error:
        return None, found(error)
    return part, list(checked(part, dims))


def schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of a policies file, for editors and for checks in other languages."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **FilePart.model_json_schema(schema_generator=GenerateSchema),
        "title": "earmark policies",
    }
