"""Which rule a model meets: exact beats prefix, and of the prefixes the longest wins (B47).

A matcher is written as one text: `gpt-4o` is that model, `gpt-4*` is every model that begins so. An index finds the
rule of a model by one look-up for the exact names and one for each length of prefix that there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

Rule = TypeVar("Rule")


class Matcher(NamedTuple):
    """A model by its name, or all models whose names begin so."""

    text: str
    prefix: bool

    def __str__(self) -> str:
        return f"{self.text}*" if self.prefix else self.text

    def meets(self, model: str) -> bool:
        """Whether a model is meant."""
        return model.startswith(self.text) if self.prefix else model == self.text


class Index(Generic[Rule]):
    """The rules of one tenant, by their matchers, of which no two are alike."""

    __slots__ = ("_exact", "_lengths", "_prefixes")

    def __init__(self, rules: Iterable[tuple[Matcher, Rule]]) -> None:
        self._exact: dict[str, Rule] = {}
        self._prefixes: dict[str, Rule] = {}
        for matcher, rule in rules:
            (self._prefixes if matcher.prefix else self._exact)[matcher.text] = rule
        self._lengths = sorted({len(text) for text in self._prefixes}, reverse=True)

    def __iter__(self) -> Iterator[Rule]:
        yield from self._exact.values()
        yield from self._prefixes.values()

    def find(self, model: str) -> Rule | None:
        """The one rule that applies to a model, or None."""
        rule = self._exact.get(model)
        if rule is not None:
            return rule
        for length in self._lengths:
            rule = self._prefixes.get(model[:length])
            if rule is not None:
                return rule
        return None
