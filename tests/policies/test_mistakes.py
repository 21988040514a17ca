"""Every mistake that a policies file can have is an error of its own, which names the place and what helps (B48).

One table: what is said instead of a good file, the kind of the mistake, its place, and a word of its remedy. Every row
is read as YAML, as JSON and as a mapping, and as TOML where TOML can say it, and must give the same mistake.
"""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from earmark.policies import Mistake, Policies, PolicyError
from tests.reached import Reached
from tests.scale import examples

GOOD: Final[dict[str, Any]] = {
    "default": {"limits": {"rpm": 20}, "models": [{"match": "gpt-4o", "limits": {"tpm": 10}}]},
    "tenants": [
        {
            "key": "acme",
            "limits": {"rpm": 60, "tpm": 1_000, "concurrency": 4},
            "models": [
                {"id": "big", "match": "gpt-4o", "limits": {"tpm": 100}},
                {"match": "gpt-4o*", "limits": {"tpm": 100}, "enforce": False},
            ],
        },
        {"key": "globex", "limits": {}},
    ],
    "scopes": [
        {"id": "team", "by": "team", "limits": {"tpd": 500}},
        {"id": "everyone", "match": "gpt-4o", "limits": {"tpm": 5_000}},
    ],
    "aliases": {"fast": "gpt-4o-mini"},
}

A_RULE: Final = {"match": "a", "limits": {}}
A_SCOPE: Final = {"id": "a", "limits": {}}
A_LIMIT: Final = {"metric": "tokens", "amount": 5, "window": 60}

NO_WINDOWS: Final[list[Any]] = [
    "fortnight",
    "",
    "60",
    0,
    -60,
    1e-9,
    math.inf,
    True,
    None,
    [],
    {"a": 1},
]

# The place at which something else is said, what, the kind of the mistake, its place, a word of the remedy.
# A place that is "…" is the first one. `...` for a value takes it away.
MISTAKES: Final[list[tuple[str, Any, str, str, str]]] = [
    # B48: a misspelt field, wherever it stands
    ("default.limits.rmp", 5, "unknown_field", "…", "did you mean 'rpm'?"),
    ("tennants", [], "unknown_field", "…", "did you mean 'tenants'?"),
    ("default.model", [], "unknown_field", "…", "did you mean 'models'?"),
    ("default.key", "acme", "unknown_field", "…", "the default has"),
    ("tenants.1.limit", {}, "unknown_field", "tenants[1].limit", "'limits'"),
    ("tenants.0.models.0.matches", "a", "unknown_field", "tenants[0].models[0].matches", "'match'"),
    ("scopes.0.by_", "team", "unknown_field", "scopes[0].by_", "'by'"),
    (
        "default.limits.also",
        [{**A_LIMIT, "ammount": 5}],
        "unknown_field",
        "default.limits.also[0].ammount",
        "'amount'",
    ),
    # B48: a tenant without a key; an empty, padded or duplicate one
    ("tenants.0.key", ..., "missing_key", "tenants[0].key", "what the gateway knows"),
    ("tenants.0.key", "", "empty_key", "tenants[0].key", "key"),
    ("tenants.0.key", " \t", "empty_key", "tenants[0].key", "key"),
    ("tenants.0.key", " acme", "padded_key", "tenants[0].key", "'acme'"),
    ("tenants.0.key", "acme\n", "padded_key", "tenants[0].key", "'acme'"),
    ("tenants.1.key", "acme", "duplicate_key", "tenants[1].key", "choose another"),
    ("tenants.0.key", "a" * 1_025, "long_key", "tenants[0].key", "shorter"),
    ("tenants.0.key", "ä" * 510, "long_key", "tenants[0].key", "shorter"),  # with what is before it
    ("tenants.0.key", 5, "not_text", "tenants[0].key", "quotes"),
    ("tenants.0.key", None, "not_text", "tenants[0].key", "quotes"),
    # B48: a rule id outside its letters, or used twice
    ("tenants.0.models.0.id", "big one", "bad_id", "tenants[0].models[0].id", "letters"),
    ("tenants.0.models.0.id", "", "bad_id", "tenants[0].models[0].id", "letters"),
    ("tenants.0.models.0.id", "a:b", "bad_id", "tenants[0].models[0].id", "letters"),
    ("tenants.0.models.0.id", "größe", "bad_id", "tenants[0].models[0].id", "letters"),
    ("tenants.0.models.0.id", "a\n", "bad_id", "tenants[0].models[0].id", "letters"),
    ("tenants.0.models.0.id", "a" * 1_025, "long_id", "tenants[0].models[0].id", "shorter"),
    ("tenants.0.models.0.id", 5, "not_text", "tenants[0].models[0].id", "quotes"),
    ("tenants.0.models.1.id", "big", "duplicate_id", "tenants[0].models[1].id", "another"),
    # … also by a rule that is known by its matcher
    ("default.models.+", {**A_RULE, "id": "gpt-4o"}, "duplicate_id", "default.models[1].id", ""),
    ("scopes.0.id", ..., "missing_field", "scopes[0].id", "counts"),
    ("scopes.0.id", "tea m", "bad_id", "scopes[0].id", "letters"),
    ("scopes.1.id", "team", "duplicate_id", "scopes[1].id", "another"),
    ("scopes.0.id", "tenant", "reserved_id", "scopes[0].id", "another"),
    ("scopes.0.id", "rule", "reserved_id", "scopes[0].id", "another"),
    # B48: an empty, padded or duplicate matcher
    ("default.models.0.match", "", "empty_matcher", "default.models[0].match", "gpt-4*"),
    ("default.models.0.match", "*", "empty_matcher", "default.models[0].match", "gpt-4*"),
    ("default.models.0.match", "gpt-4o ", "padded_matcher", "default.models[0].match", "'gpt-4o'"),
    ("default.models.0.match", " gpt-4*", "padded_matcher", "default.models[0].match", "'gpt-4'"),
    ("default.models.0.match", "gpt-4 *", "padded_matcher", "default.models[0].match", "'gpt-4'"),
    ("default.models.0.match", "gpt*mini", "bad_matcher", "default.models[0].match", "last"),
    ("default.models.0.match", "gpt-**", "bad_matcher", "default.models[0].match", "last"),
    ("default.models.0.match", "a" * 1_025, "long_matcher", "default.models[0].match", "shorter"),
    ("default.models.0.match", 4, "not_text", "default.models[0].match", "quotes"),
    ("default.models.0.match", ..., "missing_field", "default.models[0].match", "name a model"),
    (
        "tenants.0.models.1.match",
        "gpt-4o",
        "duplicate_matcher",
        "tenants[0].models[1].match",
        "keep one",
    ),
    (
        "default.models.+",
        {"match": "gpt-4o", "limits": {}},
        "duplicate_matcher",
        "default.models[1].match",
        "keep one",
    ),
    ("scopes.1.match", "", "empty_matcher", "scopes[1].match", "gpt-4*"),
    # B48: a negative amount, and what is none
    ("default.limits.rpm", -1, "negative_amount", "…", "0 (admit nothing)"),
    ("default.limits.rpm", 1.5, "not_an_amount", "…", "whole number"),
    ("default.limits.rpm", 60.0, "not_an_amount", "…", "whole number"),
    ("default.limits.rpm", "60", "not_an_amount", "…", "whole number"),
    ("default.limits.rpm", True, "not_an_amount", "…", "whole number"),
    ("default.limits.rpm", 2**53, "large_amount", "…", "9007199254740991"),
    ("default.limits.rpm", 10**30, "large_amount", "…", "9007199254740991"),
    ("tenants.0.models.0.limits.tpm", -5, "negative_amount", "tenants[0].models[0].limits.tpm", ""),
    (
        "default.limits.also",
        [{**A_LIMIT, "amount": -1}],
        "negative_amount",
        "default.limits.also[0].amount",
        "",
    ),
    # B48: an unknown window, and other limits that are none
    *(
        (
            "default.limits.also",
            [{**A_LIMIT, "window": window}],
            "unknown_window",
            "default.limits.also[0].window",
            "second, minute, hour, day",
        )
        for window in NO_WINDOWS
    ),
    (
        "default.limits.also",
        [{"metric": "tokens", "amount": 5}],
        "missing_field",
        "default.limits.also[0].window",
        "window",
    ),
    (
        "default.limits.also",
        [{**A_LIMIT, "metric": ""}],
        "empty_name",
        "default.limits.also[0].metric",
        "name",
    ),
    (
        "default.limits.also",
        [{**A_LIMIT, "burst": 5}],
        "bad_limit",
        "default.limits.also[0]",
        "leave out",
    ),
    (
        "default.limits.also",
        [{**A_LIMIT, "metric": "concurrency"}],
        "bad_limit",
        "default.limits.also[0]",
        "",
    ),
    ("default.limits.also", [A_LIMIT, A_LIMIT], "duplicate_limit", "default.limits", "keep one"),
    (
        "default.limits.also",
        [{**A_LIMIT, "metric": "requests"}],
        "duplicate_limit",
        "default.limits",
        "keep one",
    ),
    ("default.limits.algorithm", "leaky", "unknown_algorithm", "…", "token_bucket"),
    # no limits by mistake
    ("default", ..., "missing_field", "default", "not listed"),
    ("default.limits", ..., "missing_field", "…", "{} for none"),
    ("tenants.0.limits", None, "not_a_mapping", "tenants[0].limits", "{} for no limit"),
    *(
        (f"default.limits.{name}", None, "left_empty", "…", "leave the field out")
        for name in ("rps", "rpm", "tpd", "otpm", "concurrency")
    ),
    (
        "default.limits.also",
        [{**A_LIMIT, "algorithm": "token_bucket", "burst": None}],
        "left_empty",
        "default.limits.also[0].burst",
        "leave the field out",
    ),
    ("scopes.1.match", None, "left_empty", "scopes[1].match", "leave the field out"),
    (
        "default.models.0.id",
        None,
        "left_empty",
        "default.models[0].id",
        "leave the field out",
    ),
    ("default.enforce", "false", "not_a_bool", "…", "without quotes"),
    ("default.enforce", 0, "not_a_bool", "…", "without quotes"),
    # another shape
    ("tenants", {"acme": {}}, "not_a_list", "tenants", "a list"),
    ("tenants.+", "acme", "not_a_mapping", "tenants[2]", "fields"),
    ("default", [], "not_a_mapping", "default", "fields"),
    ("aliases", ["fast"], "not_a_mapping", "aliases", "fields"),
    # scopes across tenants
    ("scopes.0.by", ["team", "team"], "duplicate_dim", "scopes[0].by[1]", "keep one"),
    ("scopes.0.by", ["taem"], "unknown_dim", "scopes[0].by[0]", "model, team, tenant, user"),
    ("scopes.0.by", "taem", "unknown_dim", "scopes[0].by[0]", "team"),
    ("scopes.0.by", [""], "empty_name", "scopes[0].by[0]", "name"),
    ("scopes.0.by", ["team "], "padded_name", "scopes[0].by[0]", "'team'"),
    ("scopes.0.by", 5, "not_a_list", "scopes[0].by", "list"),
    # aliases
    ("aliases.fast", "", "empty_model", "…", "name"),
    ("aliases.fast", " a", "padded_model", "…", "'a'"),
    ("aliases.fast", 5, "not_text", "…", "quotes"),
    ("aliases.faster", "fast", "alias_of_alias", "…", "own name"),
    ("aliases.self", "self", "alias_of_alias", "…", "own name"),
    ("default.models.0.match", "fast", "alias_matched", "default.models[0].match", "'gpt-4o-mini'"),
    ("scopes.1.match", "fast", "alias_matched", "scopes[1].match", "'gpt-4o-mini'"),
]


def changed(place: str, value: object) -> dict[str, Any]:
    """A good file in which something else is said at one place; "+" appends to a list."""
    data: Any = copy.deepcopy(GOOD)
    *above, last = place.split(".")
    inner = data
    for name in above:
        inner = inner[int(name)] if isinstance(inner, list) else inner[name]
    if last == "+":
        inner.append(value)
    elif value is ...:
        del inner[last]
    elif isinstance(inner, list):
        inner[int(last)] = value
    else:
        inner[last] = value
    changed: dict[str, Any] = data
    return changed


def mistakes_of(data: object) -> tuple[Mistake, ...]:
    """What is wrong with a mapping."""
    with pytest.raises(PolicyError) as caught:
        Policies(data, dims=["team", "user"])  # type: ignore[arg-type]
    return caught.value.mistakes


def loaded(file: Path) -> tuple[Mistake, ...]:
    """What is wrong with a file."""
    with pytest.raises(PolicyError) as caught:
        Policies.load(file, dims=["team", "user"])
    return caught.value.mistakes


def test_the_good_file_is_good() -> None:
    """The file that each row changes has no mistake; exact and prefix of one value stand together in it (B48)."""
    Policies(GOOD, dims=["team", "user"])
    Policies(changed("default.limits.also", [A_LIMIT]))
    Policies(changed("default.models.+", A_RULE))
    Policies(changed("scopes.+", A_SCOPE))


@pytest.mark.parametrize(
    ("place", "value", "kind", "where", "remedy"),
    MISTAKES,
    ids=[f"{row[2]} at {row[0]} {number}" for number, row in enumerate(MISTAKES)],
)
def test_every_mistake_is_an_error_of_its_own(
    place: str, value: Any, kind: str, where: str, remedy: str, tmp_path: Path
) -> None:
    """B48: one mistake is one error of its kind, with its place and its remedy, in every format alike."""
    where = place if where == "…" else where
    data = changed(place, value)
    (mistake,) = mistakes_of(data)
    assert (mistake.kind, mistake.place) == (kind, where)
    assert remedy in mistake.remedy
    assert mistake.problem
    assert mistake.file == "policies"
    for name, text in (("p.json", json.dumps(data)), ("p.yaml", yaml.safe_dump(data))):
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        (read,) = loaded(file)
        assert (read.kind, read.place, read.problem, read.remedy) == (
            mistake.kind,
            mistake.place,
            mistake.problem,
            mistake.remedy,
        )
        assert read.file == str(file)
        assert read.line is not None
        assert f"{file}:{read.line}: {where}: {mistake.problem}: {mistake.remedy}" == str(read)


def test_what_parts_make_together_is_told_when_each_is_well() -> None:
    """A key twice and two aliases in a row are told together, once no part has a mistake of its own."""
    data = changed("aliases", {"a": "b", "b": "c"})
    data["tenants"].append(data["tenants"][0])
    together = {mistake.kind for mistake in mistakes_of(data)}
    assert together == {"duplicate_key", "alias_of_alias"}
    data["default"]["limits"]["rmp"] = 5
    assert [mistake.kind for mistake in mistakes_of(data)] == ["unknown_field"]


def test_all_mistakes_of_parts_are_told_at_once() -> None:
    """Whoever edits a file sees every mistake that a part of it has by itself, a line each."""
    data = changed("default.limits.rmp", 5)
    data["tenants"][0]["key"] = " "
    data["scopes"][1]["match"] = "a*b"
    mistakes = mistakes_of(data)
    assert {mistake.kind for mistake in mistakes} == {"unknown_field", "empty_key", "bad_matcher"}
    assert len(str(PolicyError(mistakes)).splitlines()) == 3


def test_names_in_a_place_are_told_apart() -> None:
    """A name with a dot in it is no two names."""
    data = changed("aliases", {"a.b": "", "a-b": ""})
    assert [mistake.place for mistake in mistakes_of(data)] == ["aliases['a.b']", "aliases.a-b"]


def test_a_field_that_is_no_text() -> None:
    """A mapping of Python's or YAML's may have names that are no texts."""
    odd: dict[Any, Any] = {**GOOD, 5: {}}
    assert mistakes_of(odd)[0].kind == "not_text"
    assert mistakes_of(changed("aliases", {5: "a"}))[0].kind == "not_text"


def test_braces_in_a_value_are_no_template() -> None:
    """What a message quotes may have anything in it."""
    (mistake,) = mistakes_of(changed("tenants.0.models.0.id", "{problem} {0}"))
    assert "{problem} {0}" in mistake.problem


def test_lone_surrogates() -> None:
    """A text that is no Unicode is no key, and is told without failing."""
    (mistake,) = mistakes_of(changed("tenants.0.key", "\ud800"))
    assert mistake.place == "tenants[0].key"
    str(mistake).encode()


def test_a_list_in_itself() -> None:
    """What has no end is no file."""
    endless: list[Any] = []
    endless.append(endless)
    for place in ("tenants", "default.limits.also", "default.limits.rpm", "aliases.fast"):
        assert mistakes_of(changed(place, endless))


def test_a_list_that_would_fill_the_memory() -> None:
    """Of what nine lines of YAML can put into a file, nine times nine and so on, the message shows the beginning."""
    large: object = "x"
    for _ in range(30):
        large = [large] * 9
    for place in ("tenants", "default.limits.also", "default.limits.rpm", "aliases.fast"):
        assert all(len(str(mistake)) < 500 for mistake in mistakes_of(changed(place, large)))


WORDS: Final = st.sampled_from(
    ["default", "limits", "rpm", "tenants", "key", "models", "match", "scopes", "id", "by", "also"]
)
VALUES: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2**60)
    | st.floats()
    | st.text(max_size=4)
    | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=3), inner),
    max_leaves=8,
)


def test_anything_at_all_is_policies_or_mistakes() -> None:
    """Whatever stands anywhere in a file: it is good, or each mistake has a kind, a place and a remedy (B49)."""
    reached = Reached("policies of anything at all")

    @settings(max_examples=examples(60))
    @given(VALUES, st.sampled_from([row[0] for row in MISTAKES if row[1] is not ...]))
    def run(value: object, place: str) -> None:
        mistakes: tuple[Mistake, ...] = ()
        try:
            Policies(changed(place, value))
        except PolicyError as error:
            mistakes = error.mistakes
        for mistake in mistakes:
            assert mistake.kind
            assert mistake.remedy
            assert str(mistake)
        reached.history({"mistakes" if mistakes else "no mistake"})

    run()
    reached.require(0.5, {"mistakes"})
