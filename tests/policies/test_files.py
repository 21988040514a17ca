"""Policies from files: four formats, the line of every mistake, and files that stop a start-up (B49)."""

from __future__ import annotations

import builtins
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from earmark.policies import Mistake, Policies, PolicyError
from earmark.policies.jsonfile import read_json
from earmark.policies.yamlfile import read_yaml

YAML: Final = """\
default:
  limits: {rpm: 20, tpm: 20_000}
tenants:
  - key: acme
    limits: &plenty {rpm: 600, concurrency: 40}
    models:
      - match: gpt-4o
        limits: {tpm: 100_000}
  - key: globex
    limits: {<<: *plenty, rpm: 5}
scopes:
  - {id: team, by: team, limits: {tpd: 500}}
aliases: {fast: gpt-4o-mini}
"""

TOML: Final = """\
[default.limits]
rpm = 20
tpm = 20_000

[[tenants]]
key = "acme"
limits = {rpm = 600, concurrency = 40}
  [[tenants.models]]
  match = "gpt-4o"
  limits.tpm = 100_000

[[tenants]]
key = "globex"
limits = {rpm = 5, concurrency = 40}

[[scopes]]
id = "team"
by = "team"
limits.tpd = 500

[aliases]
fast = "gpt-4o-mini"
"""

DATA: Final[dict[str, Any]] = {
    "default": {"limits": {"rpm": 20, "tpm": 20_000}},
    "tenants": [
        {
            "key": "acme",
            "limits": {"rpm": 600, "concurrency": 40},
            "models": [{"match": "gpt-4o", "limits": {"tpm": 100_000}}],
        },
        {"key": "globex", "limits": {"rpm": 5, "concurrency": 40}},
    ],
    "scopes": [{"id": "team", "by": "team", "limits": {"tpd": 500}}],
    "aliases": {"fast": "gpt-4o-mini"},
}

REQUESTS: Final[list[dict[str, Any]]] = [
    {"tenant": tenant, "model": model, "team": "red"}
    for tenant in ("acme", "globex", "nobody")
    for model in ("gpt-4o", "fast", None)
]


def write(folder: Path, name: str, text: str | bytes) -> Path:
    """A file."""
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def mistake(file: Path) -> Mistake:
    """The one mistake of a file."""
    with pytest.raises(PolicyError) as caught:
        Policies.load(file)
    (found,) = caught.value.mistakes
    assert found.file == str(file)
    return found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.yaml", YAML),
        ("p.yml", YAML),
        ("p.YAML", YAML),
        ("p.toml", TOML),
        ("p.json", json.dumps(DATA)),
        ("p.json", "\ufeff" + json.dumps(DATA, indent=1)),
    ],
)
def test_each_format_says_the_same(name: str, text: str, tmp_path: Path) -> None:
    """YAML, TOML, JSON and a mapping that say the same are the same policies."""
    policies = Policies.load(write(tmp_path, name, text))
    expected = Policies(DATA)
    for asked in REQUESTS:
        assert policies.scopes(**asked) == expected.scopes(**asked)
    assert policies.resolve("fast") == "gpt-4o-mini"
    assert repr(policies) == (
        f"<Policies {tmp_path / name}: 2 tenants, 1 model rule, 1 scope, 1 alias>"
    )


@pytest.mark.parametrize("missing", ["SafeLoader", "CSafeLoader"])
def test_yaml_is_read_by_libyaml_where_there_is_one(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyYAML's own reader takes three times as long; where it was built without libyaml it says the same."""
    expected = read_yaml(YAML)
    if missing == "CSafeLoader":
        monkeypatch.delattr(yaml, missing)
    else:
        monkeypatch.setattr(yaml, missing, None)  # nobody calls it
    assert read_yaml(YAML) == expected


# A file, the kind of its mistake, its place and its line.
BROKEN: Final[list[tuple[str, str | bytes, str, str, int | None]]] = [
    # B49: what cannot be read at all
    ("p.yaml", "default: {limits: {}", "syntax", "", 1),
    ("p.yaml", "default:\n\t- a", "syntax", "", 2),
    ("p.yaml", "default: *a", "syntax", "", 1),
    ("p.yaml", "default: {limits: {}}\n---\ndefault: {}", "syntax", "", 2),
    ("p.yaml", "default: !!python/object:os.system {}", "syntax", "", 1),
    ("p.yaml", "default: 2026-13-45", "syntax", "", None),
    ("p.yaml", "default: \x00", "syntax", "", None),
    ("p.json", "{\n", "syntax", "", 2),
    ("p.json", '{"default": {}}\n}', "syntax", "", 2),
    ("p.toml", "a = '''\n", "syntax", "", None),
    ("p.toml", "a = 1\na = 2\n", "syntax", "", 2),
    ("p.toml", "[default]\nlimits = }", "syntax", "", 2),
    ("p.yaml", b"default: \xff", "unreadable", "", None),
    ("p.json", b"", "syntax", "", 1),
    ("p.ini", "default: {limits: {}}", "unknown_format", "", None),
    ("policies", "default: {limits: {}}", "unknown_format", "", None),
    # B49: a file that says nothing is no "no limits"
    ("p.yaml", "", "empty", "", None),
    ("p.yaml", "# nothing yet\n", "empty", "", None),
    ("p.json", "null", "empty", "", 1),
    ("p.toml", "", "missing_field", "default", None),
    ("p.json", "{}", "missing_field", "default", 1),
    ("p.json", "5", "not_a_mapping", "", 1),
    ("p.yaml", "- default", "not_a_mapping", "", 1),
    # a field that stands twice, where the last would win unseen
    (
        "p.json",
        '{"default":\n{"limits": {"rpm": 1,\n"tpm": 2,\n"rpm": 3}}}',
        "duplicate_field",
        "default.limits.rpm",
        4,
    ),
    (
        "p.yaml",
        "default:\n  limits:\n    rpm: 1\n    tpm: 2\n    rpm: 3\n",
        "duplicate_field",
        "default.limits.rpm",
        5,
    ),
    (
        "p.yaml",
        "default: {limits: {}}\nscopes:\n  - {id: a, limits: {}, id: b}\n",
        "duplicate_field",
        "scopes[0].id",
        3,
    ),
    # the line of a place, or of what it is missing in
    ("p.json", '{"default": {\n"limits":\n{"rmp": 5}}}', "unknown_field", "default.limits.rmp", 3),
    ("p.yaml", "default:\n  limits:\n    rmp: 5\n", "unknown_field", "default.limits.rmp", 3),
    ("p.toml", "[default.limits]\nrmp = 5\n", "unknown_field", "default.limits.rmp", None),
    (
        "p.yaml",
        "default: {limits: {}}\ntenants:\n  - limits: {}\n",
        "missing_key",
        "tenants[0].key",
        3,
    ),
    # what YAML makes of a name without quotes
    (
        "p.yaml",
        "default: {limits: {}}\ntenants:\n  - key: no\n    limits: {}\n",
        "not_text",
        "tenants[0].key",
        3,
    ),
    (
        "p.yaml",
        "default: {limits: {}}\ntenants:\n  - key: 2026-01-01\n    limits: {}\n",
        "not_text",
        "tenants[0].key",
        3,
    ),
    # an anchor that stands for what it is in
    ("p.yaml", "default: {limits: {}}\ntenants: &a [*a]\n", "not_a_mapping", "tenants[0]", 2),
]


@pytest.mark.parametrize(
    ("name", "text", "kind", "place", "line"),
    BROKEN,
    ids=[f"{row[2]} {number}" for number, row in enumerate(BROKEN)],
)
def test_a_broken_file_stops_the_start(
    name: str, text: str | bytes, kind: str, place: str, line: int | None, tmp_path: Path
) -> None:
    """B49: an invalid file is an error with file, place, line and remedy, never "no limits"."""
    found = mistake(write(tmp_path, name, text))
    assert (found.kind, found.place, found.line) == (kind, place, line)
    assert found.remedy


def test_the_documents_show_the_example() -> None:
    """The file at the head of docs/policies.md is the one in examples/, and is good."""
    root = Path(__file__).parent.parent.parent
    file = root / "examples" / "policies.yaml"
    document = (root / "docs" / "policies.md").read_text(encoding="utf-8")
    assert f"```yaml\n{file.read_text(encoding='utf-8')}```\n" in document
    Policies.load(file, dims=["team"])


def test_a_file_without_end(tmp_path: Path) -> None:
    """Lists in lists without end are no file, however deep Python reads them."""
    for depth in (500, 900, 2_000, 100_000):
        text = '{"default":' + "[" * depth + "]" * depth + "}"
        assert mistake(write(tmp_path, "p.json", text)).kind in {"syntax", "not_a_mapping"}
        assert mistake(write(tmp_path, "p.yaml", text[: depth + 20])).kind == "syntax"


def test_a_missing_file_stops_the_start(tmp_path: Path) -> None:
    """B49: a file that is not there is an error, and so is a folder."""
    assert mistake(tmp_path / "none.yaml").kind == "no_file"
    (tmp_path / "folder.yaml").mkdir()
    assert mistake(tmp_path / "folder.yaml").kind == "unreadable"
    assert mistake(tmp_path / ("a" * 300 + ".yaml")).kind == "unreadable"


def test_an_unreadable_file_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B49: so is one that this process may not read; the answer is put in, since a superuser may read all."""
    file = write(tmp_path, "p.yaml", YAML)

    def denied(_: Path) -> bytes:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(Path, "read_bytes", denied)
    found = mistake(file)
    assert found.kind == "unreadable"
    assert os.strerror(13) in found.problem


def test_yaml_without_pyyaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """YAML is an extra: without it the error says what to install."""
    real: Callable[..., Any] = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    found = mistake(write(tmp_path, "p.yaml", YAML))
    assert (found.kind, found.remedy) == ("no_yaml", "pip install 'earmark[yaml]'")


def test_an_error_can_be_sent(tmp_path: Path) -> None:
    """A PolicyError survives pickling, as what crosses processes must, and is a ValueError."""
    with pytest.raises(ValueError, match="rmp") as caught:
        Policies({"default": {"limits": {"rmp": 5}}})
    assert pickle.loads(pickle.dumps(caught.value)).mistakes == caught.value.mistakes  # type: ignore[attr-defined]  # noqa: S301


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@given(JSON, st.sampled_from([None, 1, "\n\t"]))
def test_any_json_is_walked(value: object, indent: int | str | None) -> None:
    """Any JSON is read as Python reads it, with a line for every place, whatever stands in its texts."""
    text = json.dumps(value, indent=indent)
    read, lines, repeated = read_json(text)
    assert read == value
    assert not repeated
    rows = text.split("\n")

    def look(path: tuple[str | int, ...], inner: object) -> None:
        row = rows[lines[path] - 1]
        if path and isinstance(path[-1], str):
            assert json.dumps(path[-1]) in row
        if isinstance(inner, dict):
            for name, below in inner.items():
                look((*path, name), below)
        elif isinstance(inner, list):
            for number, below in enumerate(inner):
                look((*path, number), below)
        else:
            assert json.dumps(inner) in row

    look((), value)
