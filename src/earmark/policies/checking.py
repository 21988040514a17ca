"""What no part of a policies file shows by itself: two of a kind, and names that stand for nothing (B48)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from earmark.limits import MAX_KEY_BYTES
from earmark.policies.keys import rule_key, tenant_key
from earmark.policies.matching import Matcher
from earmark.policies.mistakes import Path, place_of, shown
from earmark.policies.shape import DefaultPart, FilePart, RulePart, TenantPart
from earmark.policies.translating import Found

RESERVED: Final = frozenset({"tenant", "rule"})
OWN_DIMS: Final = frozenset({"tenant", "model"})


def checked(file: FilePart, dims: frozenset[str] | None) -> Iterator[Found]:
    """The mistakes of a file whose parts are all well-formed.

    Args:
        file: what was read.
        dims: what the gateway says of a request beside tenant and model; None: unknown.
    """
    yield from _rules(("default",), file.default, file.aliases)
    for number, tenant in enumerate(file.tenants):
        yield from _rules(("tenants", number), tenant, file.aliases)
        yield from _lengths(("tenants", number), tenant)
    yield from _repeated(
        "duplicate_key",
        "the key",
        ((("tenants", number, "key"), part.key) for number, part in enumerate(file.tenants)),
    )
    yield from _scopes(file, dims)
    yield from _aliases(file.aliases)


def _repeated(kind: str, what: str, values: Iterable[tuple[Path, object]]) -> Iterator[Found]:
    """A mistake for each value that another had before it."""
    first: dict[object, Path] = {}
    for path, value in values:
        other = first.setdefault(value, path)
        if other is not path:
            problem = f"{what} {shown(str(value))} stands at {place_of(other)} as well"
            yield Found(kind, path, problem, "keep one of the two, or choose another")


def _rules(above: Path, part: DefaultPart, aliases: dict[str, str]) -> Iterator[Found]:
    paths: list[tuple[Path, RulePart]] = [
        ((*above, "models", number), rule) for number, rule in enumerate(part.models)
    ]
    matchers = [((*path, "match"), rule.match) for path, rule in paths]
    alike = list(_repeated("duplicate_matcher", "the matcher", matchers))
    yield from alike
    # A rule without an id is known by its matcher: two alike were told above.
    told = {found.path for found in alike}
    names: list[tuple[Path, object]] = [
        ((*path, "match" if rule.id is None else "id"), rule.name)
        for path, rule in paths
        if rule.id is not None or (*path, "match") not in told
    ]
    yield from _repeated("duplicate_id", "the id", names)
    for path, matcher in matchers:
        yield from _alias_matched(path, matcher, aliases)


def _alias_matched(path: Path, matcher: Matcher, aliases: dict[str, str]) -> Iterator[Found]:
    """A rule for an alias would never apply: a request for it is one for the model (C53)."""
    if not matcher.prefix and matcher.text in aliases:
        model = aliases[matcher.text]
        yield Found(
            "alias_matched",
            path,
            f"{shown(matcher.text)} is an alias of {shown(model)}, so no model has this name",
            f"match {shown(model)}",
        )


def _lengths(above: Path, tenant: TenantPart) -> Iterator[Found]:
    keys = [tenant_key(tenant.key), *(rule_key(rule.name, tenant.key) for rule in tenant.models)]
    longest = max(len(key.encode()) for key in keys)
    if longest > MAX_KEY_BYTES:
        yield Found(
            "long_key",
            (*above, "key"),
            f"makes a scope's key of {longest} bytes, and {MAX_KEY_BYTES} are the most",
            "choose a shorter one",
        )


def _scopes(file: FilePart, dims: frozenset[str] | None) -> Iterator[Found]:
    ids = [(("scopes", number, "id"), scope.id) for number, scope in enumerate(file.scopes)]
    yield from _repeated("duplicate_id", "the id", ids)
    for path, own in ids:
        if own in RESERVED:
            problem = f"{shown(own)} is what the keys of tenants' own scopes begin with"
            yield Found("reserved_id", path, problem, "choose another id")
    for number, scope in enumerate(file.scopes):
        above: Path = ("scopes", number)
        if scope.match is not None:
            yield from _alias_matched((*above, "match"), scope.match, file.aliases)
        names = [((*above, "by", place), name) for place, name in enumerate(scope.by)]
        yield from _repeated("duplicate_dim", "the name", names)
        if dims is None:
            continue
        for place, name in names:
            if name not in dims | OWN_DIMS:
                known = ", ".join(sorted(dims | OWN_DIMS))
                problem = f"the gateway says no {shown(name)} of a request"
                yield Found("unknown_dim", place, problem, f"use one of {known}")


def _aliases(aliases: dict[str, str]) -> Iterator[Found]:
    for alias, model in aliases.items():
        if model in aliases:
            problem = f"stands for {shown(model)}, which is an alias itself"
            yield Found("alias_of_alias", ("aliases", alias), problem, "write the model's own name")
