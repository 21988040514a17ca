"""Policies made ready to be asked: never changed once they are made, so that a reload swaps them whole.

Every answer is made of scopes that are kept, and kept itself, so that a request costs one look-up. What clients can
make up (a tenant that is not listed, a model that no rule names) has a small room of its own, and cannot drive
out what the file knows: neither room grows beyond its bound, and a lost answer costs some microseconds (C67).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from earmark.limits import Limits, Scope, check_key
from earmark.policies.checking import OWN_DIMS
from earmark.policies.keys import rule_key, scope_key, tenant_key
from earmark.policies.matching import Index, Matcher
from earmark.policies.shape import DefaultPart, FilePart, Limited

Scopes: TypeAlias = tuple[Scope, ...]
Question: TypeAlias = tuple[str | None, ...]

PASSING: Final = 4_096
KEPT: Final = 16_384
KEPT_PER_TENANT: Final = 8


class _Own(NamedTuple):
    """What one tenant has for itself."""

    scope: Scope
    rules: Index[Scope]


class _Across(NamedTuple):
    """A limit across tenants."""

    own: str
    matcher: Matcher | None
    by: tuple[str, ...]
    limits: Limits
    enforce: bool

    def scope(self, values: Mapping[str, str | None]) -> Scope | None:
        """The scope of a request with these values; None where it is not concerned.

        Nobody shares a limit with all who have no value (C67).
        """
        if self.why_not(values) is not None:
            return None
        parts = [value for name in self.by if (value := values.get(name)) is not None]
        return Scope(scope_key(self.own, parts), self.limits, self.enforce)

    def why_not(self, values: Mapping[str, str | None]) -> str | None:
        """Why a request with these values is not concerned; None where it is."""
        model = values["model"]
        if self.matcher is not None and (model is None or not self.matcher.meets(model)):
            said = "no model is told" if model is None else f"the model is {model}"
            return f"it is for {self.matcher}, and {said}"
        missing = [name for name in self.by if values.get(name) is None]
        return f"it is by {', '.join(self.by)}, and no {missing[0]} is told" if missing else None


class Book:
    """The policies of one file.

    Attributes:
        dims: what a request is asked for beside tenant and model, in the order of questions.
        kept: the answers to questions about what the file knows.
        passing: the answers to all others.
        aliases: names that stand for models.
    """

    __slots__ = (
        "_across",
        "_bound",
        "_default",
        "_lock",
        "_named",
        "_tenants",
        "aliases",
        "dims",
        "kept",
        "passing",
    )

    def __init__(self, file: FilePart) -> None:
        self._lock = threading.Lock()
        self._default = file.default
        self._tenants = {part.key: _own(part, part.key) for part in file.tenants}
        self._across = tuple(
            _Across(part.id, part.match, tuple(part.by), part.limits.made, part.enforce)
            for part in file.scopes
            if part.limits.made.all
        )
        self.dims = tuple(sorted({name for one in self._across for name in one.by} - OWN_DIMS))
        self.aliases = dict(file.aliases)
        rules = [rule for part in [file.default, *file.tenants] for rule in part.models]
        matchers = [rule.match for rule in rules] + [
            one.matcher for one in self._across if one.matcher is not None
        ]
        self._named = {
            *(matcher.text for matcher in matchers if not matcher.prefix),
            *self.aliases,
            *self.aliases.values(),
        }
        self.kept: dict[Question, Scopes] = {}
        self.passing: dict[Question, Scopes] = {}
        self._bound = max(KEPT, KEPT_PER_TENANT * len(self._tenants))

    def passed_over(
        self, tenant: str, model: str | None, dims: Mapping[str, str | None]
    ) -> dict[str, str]:
        """The limits across tenants that a request does not meet, by their ids, and why not.

        Raises:
            ValueError: one of these is no key.
        """
        values = self._values(tenant, model, dims)
        values["model"] = None if values["model"] is None else self._model(values["model"])
        reasons = ((one.own, one.why_not(values)) for one in self._across)
        return {own: reason for own, reason in reasons if reason is not None}

    def scope_of(self, key: str) -> Scope | None:
        """The scope that has a key; None: no request has it."""
        own, _, rest = key.partition(":")
        if not rest:
            return None
        if own == "tenant":
            return self._tenant(rest).scope
        if own == "rule":
            rules = self._tenant(rest.partition(":")[2] or rest).rules
            return next((scope for scope in rules if scope.key == key), None)
        across = next((one for one in self._across if one.own == own), None)
        return None if across is None else Scope(key, across.limits, across.enforce)

    def _tenant(self, tenant: str) -> _Own:
        return self._tenants.get(tenant) or _own(self._default, tenant)

    def find(
        self, tenant: str, model: str | None, dims: Mapping[str, str | None]
    ) -> tuple[Scope, ...]:
        """The scopes of a request whose answer is not at hand.

        Raises:
            ValueError: one of these is no key.
        """
        names = ("tenant", "model", *self.dims)
        values = self._values(tenant, model, dims)
        question = tuple(values[name] for name in (names if dims else names[:2]))
        with self._lock:
            answer = self.kept.get(question, self.passing.get(question))
            if answer is None:
                answer = self._answer(values)
                known = tenant in self._tenants and (not model or model in self._named)
                room, bound = (self.kept, self._bound) if known else (self.passing, PASSING)
                while len(room) >= bound:
                    del room[next(iter(room))]
                room[question] = answer
        return answer

    def _values(
        self, tenant: str, model: str | None, dims: Mapping[str, str | None]
    ) -> dict[str, str | None]:
        """What a request says, by name."""
        given = {**dims, "tenant": tenant, "model": model}
        return {name: _value(name, given.get(name)) for name in ("tenant", "model", *self.dims)}

    def _model(self, name: str) -> str:
        return self.aliases.get(name, name)

    def _answer(self, values: dict[str, str | None]) -> Scopes:
        tenant, model = values["tenant"], values["model"]
        if tenant is None:
            msg = "tenant must be a non-empty string: tenants without a name would share one limit"
            raise ValueError(msg)
        own = self._tenant(tenant)
        if model is not None:
            model = values["model"] = self._model(model)
        rule = None if model is None else own.rules.find(model)
        scopes = (own.scope, rule, *(one.scope(values) for one in self._across))
        # What has no limits concerns nobody.
        return tuple(scope for scope in scopes if scope is not None and scope.limits.all)


def _own(part: DefaultPart, tenant: str) -> _Own:
    scope = _scope(tenant_key(tenant), part)
    rules = ((rule.match, _scope(rule_key(rule.name, tenant), rule)) for rule in part.models)
    return _Own(scope, Index(rules))


def _scope(key: str, part: Limited) -> Scope:
    return Scope(key, part.limits.made, part.enforce)


def _value(name: str, value: object) -> str | None:
    """A value of a request; an empty one is none."""
    return None if value is None or value == "" else check_key(name, value)
