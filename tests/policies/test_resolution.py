"""Which limits apply to a request: the table of B47, and any policies at all against a naive resolver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earmark import Limits, Scope
from earmark.policies import Policies
from tests.reached import Reached
from tests.scale import examples

POLICIES: Final = Policies(
    {
        "default": {
            "limits": {"rpm": 20},
            "models": [{"match": "claude-*", "limits": {"rpm": 1}}],
        },
        "tenants": [
            {
                "key": "acme",
                "limits": {"rpm": 60},
                "models": [
                    {"match": "gpt-4o", "limits": {"rpm": 1}},
                    {"match": "gpt-4o*", "limits": {"rpm": 2}},
                    {"match": "gpt-4*", "limits": {"rpm": 3}},
                    {"id": "gpt", "match": "gpt-*", "limits": {"rpm": 4}, "enforce": False},
                    {"match": "o1*", "limits": {}},
                ],
            },
            {"key": "free", "limits": {}},
            {
                "key": "a:b%",
                "limits": {"rpm": 5},
                "models": [{"match": "x:y", "limits": {"rpm": 5}}],
            },
        ],
        "scopes": [
            {"id": "team", "by": "team", "limits": {"tpd": 500}},
            {"id": "member", "by": ["team", "user"], "limits": {"rpm": 5}, "enforce": False},
            {"id": "per-model", "match": "o*", "by": "model", "limits": {"rpm": 7}},
            {"id": "4o", "match": "gpt-4o*", "limits": {"rpm": 8}},
            {"id": "nothing", "limits": {}},
        ],
        "aliases": {"fast": "gpt-4o-mini", "vendor/o3@default": "o3"},
    }
)

# The request, and the keys of its scopes.
REQUESTS: Final[list[tuple[dict[str, Any], list[str]]]] = [
    # B47: exact beats prefix, the longest prefix wins, one rule at most
    ({"tenant": "acme", "model": "gpt-4o"}, ["tenant:acme", "rule:gpt-4o:acme", "4o"]),
    ({"tenant": "acme", "model": "gpt-4o-mini"}, ["tenant:acme", "rule:gpt-4o*:acme", "4o"]),
    ({"tenant": "acme", "model": "gpt-4"}, ["tenant:acme", "rule:gpt-4*:acme"]),
    ({"tenant": "acme", "model": "gpt-5"}, ["tenant:acme", "rule:gpt:acme"]),
    # no model, or none that matches: the tenant's limits alone
    ({"tenant": "acme"}, ["tenant:acme"]),
    ({"tenant": "acme", "model": None}, ["tenant:acme"]),
    ({"tenant": "acme", "model": ""}, ["tenant:acme"]),
    ({"tenant": "acme", "model": "llama"}, ["tenant:acme"]),
    ({"tenant": "acme", "model": "gpt"}, ["tenant:acme"]),
    ({"tenant": "acme", "model": "GPT-4o"}, ["tenant:acme"]),
    # a rule without limits shields from shorter prefixes, and limits nothing
    ({"tenant": "acme", "model": "o1-pro"}, ["tenant:acme", "per-model:o1-pro"]),
    # an unknown tenant gets the default, for itself; a known one nothing of it
    ({"tenant": "nobody"}, ["tenant:nobody"]),
    ({"tenant": "nobody", "model": "claude-1"}, ["tenant:nobody", "rule:claude-*:nobody"]),
    ({"tenant": "acme ", "model": "gpt-4"}, ["tenant:acme "]),
    ({"tenant": "free", "model": "claude-1"}, []),
    # scopes across tenants; an empty team is no team (C67)
    ({"tenant": "free", "team": "red"}, ["team:red"]),
    ({"tenant": "free", "team": "red", "user": "ann"}, ["team:red", "member:red:ann"]),
    ({"tenant": "free", "user": "ann"}, []),
    ({"tenant": "free", "team": "", "user": "ann"}, []),
    ({"tenant": "free", "team": None, "user": None}, []),
    ({"tenant": "free", "team": "red", "colour": "blue"}, ["team:red"]),
    # an alias is the model that it stands for (C53)
    ({"tenant": "acme", "model": "fast"}, ["tenant:acme", "rule:gpt-4o*:acme", "4o"]),
    ({"tenant": "free", "model": "vendor/o3@default"}, ["per-model:o3"]),
    ({"tenant": "free", "model": "o3"}, ["per-model:o3"]),
    # no two scopes share a key, whatever is in their parts (C67)
    ({"tenant": "a:b%", "model": "x:y"}, ["tenant:a:b%", "rule:x%3Ay:a:b%"]),
    ({"tenant": "free", "team": "a:b", "user": "c"}, ["team:a:b", "member:a%3Ab:c"]),
    ({"tenant": "free", "team": "a", "user": "b:c"}, ["team:a", "member:a:b:c"]),
    ({"tenant": "free", "team": "a%3Ab", "user": "c"}, ["team:a%3Ab", "member:a%253Ab:c"]),
]


@pytest.mark.parametrize(("request_", "keys"), REQUESTS, ids=[str(row[0]) for row in REQUESTS])
def test_what_applies(request_: dict[str, Any], keys: list[str]) -> None:
    """B47, C53, C67, as a table."""
    scopes = POLICIES.scopes(**request_)
    assert [scope.key for scope in scopes] == keys
    assert POLICIES.scopes(**request_) is scopes


def test_scopes_have_their_limits() -> None:
    """A scope has the limits of its part of the file, and enforces or only counts."""
    assert POLICIES.scopes(tenant="acme", model="gpt-5", team="red", user="ann") == (
        Scope("tenant:acme", Limits(rpm=60)),
        Scope("rule:gpt:acme", Limits(rpm=4), enforce=False),
        Scope("team:red", Limits(tpd=500)),
        Scope("member:red:ann", Limits(rpm=5), enforce=False),
    )


def test_aliases_resolve() -> None:
    """`resolve` gives the model that a name stands for, and every other name as it is (B44, C53)."""
    assert POLICIES.resolve("fast") == "gpt-4o-mini"
    assert POLICIES.resolve("vendor/o3@default") == "o3"
    assert POLICIES.resolve("gpt-4o") == "gpt-4o"
    assert not POLICIES.resolve("")


@pytest.mark.parametrize(
    "request_",
    [
        {"tenant": ""},
        {"tenant": None},
        {"tenant": 5},
        {"tenant": ["acme"]},
        {"tenant": "a" * 1_025},
        {"tenant": "\ud800"},
        {"tenant": "acme", "model": 5},
        {"tenant": "acme", "model": ["gpt-4o"]},
        {"tenant": "acme", "model": "o" * 1_025},
        {"tenant": "acme", "team": 5},
        {"tenant": "acme", "team": {}},
        {"tenant": "acme", "model": 0},
        {"tenant": "acme", "team": False},
        {"tenant": "acme", "team": "a" * 1_000, "user": "b" * 1_000},
    ],
    ids=repr,
)
def test_what_is_no_key_is_a_value_error(request_: dict[str, Any]) -> None:
    """A value that can be no part of a key is a ValueError, before anything is counted (R13, C67)."""
    for _ in range(2):
        with pytest.raises(ValueError, match="must be"):
            POLICIES.scopes(**request_)


# Few letters, so that names meet.
NAMES: Final = st.sampled_from(["a", "b", "a:b", "b:", "%3A", "é*"])
MODELS: Final = st.text("ab", min_size=1, max_size=3)
AMOUNTS: Final = st.integers(0, 9)


@st.composite
def _limited(draw: st.DrawFn) -> dict[str, Any]:
    part: dict[str, Any] = {
        "limits": draw(st.dictionaries(st.sampled_from(["rpm", "tpm"]), AMOUNTS))
    }
    if draw(st.booleans()):
        part["enforce"] = draw(st.booleans())
    return part


@st.composite
def _rules(draw: st.DrawFn) -> list[dict[str, Any]]:
    matches = draw(
        st.lists(
            st.builds(str.__add__, MODELS, st.sampled_from(["", "*"])), unique=True, max_size=6
        )
    )
    return [{"match": match, **draw(_limited())} for match in matches]


@st.composite
def _files(draw: st.DrawFn) -> dict[str, Any]:
    """Policies without mistakes."""
    keys = draw(st.lists(NAMES, unique=True, min_size=1, max_size=4))
    scopes = []
    for own in draw(st.lists(st.sampled_from("pqrs"), unique=True)):
        by = draw(
            st.lists(st.sampled_from(["tenant", "model", "team", "user"]), unique=True, max_size=2)
        )
        scope = {"id": own, "by": by, **draw(_limited())}
        if draw(st.booleans()):
            scope["match"] = draw(MODELS) + draw(st.sampled_from(["", "*"]))
        scopes.append(scope)
    return {
        "default": {**draw(_limited()), "models": draw(_rules())},
        "tenants": [{"key": key, **draw(_limited()), "models": draw(_rules())} for key in keys],
        "scopes": scopes,
        "aliases": {"A": draw(MODELS), "B": draw(MODELS)},
    }


def naive(file: Mapping[str, Any], request_: Mapping[str, str | None]) -> list[Scope]:
    """The scopes of a request, by looking at every line of the file."""
    tenant = request_["tenant"]
    model = request_.get("model") or None
    model = file["aliases"].get(model, model)
    own = next((part for part in file["tenants"] if part["key"] == tenant), file["default"])

    def meets(match: str) -> bool:
        if model is None:
            return False
        return model == match or (match.endswith("*") and model.startswith(match[:-1]))

    def scope(parts: list[str], part: Mapping[str, Any]) -> Scope:
        *first, last = parts
        inner = [one.replace("%", "%25").replace(":", "%3A") for one in first]
        return Scope(":".join([*inner, last]), Limits(**part["limits"]), part.get("enforce", True))

    assert tenant is not None
    found = [scope(["tenant", tenant], own)]
    rules = [rule for rule in own["models"] if meets(rule["match"])]
    # An exact name is longer than each prefix of it but its own, and sorts before that one.
    rules.sort(key=lambda rule: (-len(rule["match"].rstrip("*")), rule["match"].endswith("*")))
    found += [scope(["rule", rule["match"], tenant], rule) for rule in rules[:1]]
    for part in file["scopes"]:
        values = [{**request_, "model": model}.get(name) or "" for name in part["by"]]
        if all(values) and ("match" not in part or meets(part["match"])):
            found.append(scope([part["id"], *values], part))
    return [one for one in found if one.limits.all]


def test_any_policies_agree_with_a_naive_resolver() -> None:
    """B47, C53, C67 for random policies and requests, asked twice; and no two questions share a key by accident."""
    reached = Reached("policy resolution")
    values = st.none() | st.just("") | NAMES
    requests = st.lists(
        st.tuples(NAMES, MODELS | st.sampled_from(["A", "B", "", None]), values, values),
        min_size=1,
        max_size=12,
    )

    @settings(max_examples=examples(60))
    @given(_files(), requests)
    def run(
        file: dict[str, Any], asked: list[tuple[str, str | None, str | None, str | None]]
    ) -> None:
        policies = Policies(file)
        for tenant, model, team, user in [*asked, *asked]:
            request_ = {"tenant": tenant, "model": model, "team": team, "user": user}
            scopes = policies.scopes(tenant=tenant, model=model, team=team, user=user)
            assert list(scopes) == naive(file, request_)
            kinds = {scope.key.partition(":")[0] for scope in scopes}
            marks = {
                "a listed tenant": any(part["key"] == tenant for part in file["tenants"]),
                "a rule": "rule" in kinds,
                "a scope across tenants": bool(kinds - {"tenant", "rule"}),
                "an alias": model in file["aliases"],
            }
            reached.history({mark for mark, met in marks.items() if met})

    run()
    reached.require(0.01, {"a listed tenant", "a rule", "a scope across tenants", "an alias"})


def test_what_is_passed_over_is_the_rest_of_what_applies() -> None:
    """Each limit across tenants applies or is passed over, for the reason that is told; aliases stand for models."""
    limits = {"rpm": 5}
    policies = Policies(
        {
            "default": {"limits": {}},
            "aliases": {"fast": "gpt-4o"},
            "scopes": [
                {"id": "team", "by": ["team", "user"], "limits": limits},
                {"id": "gpt", "match": "gpt-*", "limits": limits},
            ],
        }
    )
    no_team = "it is by team, user, and no team is told"
    no_user = "it is by team, user, and no user is told"
    for request, passed_over in (
        ({}, {"team": no_team, "gpt": "it is for gpt-*, and no model is told"}),
        ({"model": "fast", "team": "a"}, {"team": no_user}),
        (
            {"model": "o1", "team": "", "user": "u"},
            {"team": no_team, "gpt": "it is for gpt-*, and the model is o1"},
        ),
        ({"model": "gpt-5", "team": "a", "user": "u"}, {}),
    ):
        assert policies.passed_over(tenant="acme", **request) == passed_over
        applying = {
            scope.key.partition(":")[0] for scope in policies.scopes(tenant="acme", **request)
        }
        assert applying == {"team", "gpt"} - passed_over.keys()
    with pytest.raises(ValueError, match="model must be"):
        policies.passed_over(tenant="acme", model="m" * 2_000)
