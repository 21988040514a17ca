"""`python -m earmark`: what each command prints, and its exit code."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from earmark.commands import COMMANDS, main
from earmark.policies import schema
from tests.policies.test_mistakes import A_LIMIT, GOOD, MISTAKES, changed

# What no schema can say: two of a kind, names that stand for nothing, and what goes together.
BEYOND: Final = {
    "alias_matched",
    "alias_of_alias",
    "bad_limit",
    "duplicate_dim",
    "duplicate_id",
    "duplicate_key",
    "duplicate_limit",
    "duplicate_matcher",
    "reserved_id",
    "unknown_dim",
}

FILE: Final = """\
default:
  limits: {rpm: 20}
tenants:
  - key: acme
    limits:
      rpm: 600
      tpm: 400_000
      concurrency: 40
      algorithm: sliding_window
      also: [{metric: images, amount: 5, window: 900, algorithm: token_bucket, burst: 9}]
    models:
      - match: gpt-4o*
        limits: {tpd: 100_000}
        enforce: false
scopes:
  - {id: team, by: team, limits: {rps: 5}}
aliases: {fast: gpt-4o-mini}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A policies file."""
    path = tmp_path / "policies.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_check_counts_what_is_there(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file without mistakes: one line, and 0."""
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().out == (
        f"Policies {file}: 1 tenant, 1 model rule, 1 scope, 1 alias\n"
    )


def test_check_shows_what_applies(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For a tenant, a model and what else is known: every scope and every limit, in the order of refusals."""
    words = ["check", str(file), "--tenant", "acme", "--model", "fast", "--dim", "team=a=b"]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "fast stands for gpt-4o-mini",
        "tenant:acme",
        "    600 requests per minute (sliding window)",
        "    400,000 tokens per minute (sliding window)",
        "    40 at once",
        "    5 images per 900 seconds (token bucket, burst 9)",
        "rule:gpt-4o*:acme (counts, and never refuses)",
        "    100,000 tokens per day (fixed window)",
        "team:a=b",
        "    5 requests per second (fixed window)",
    ]
    assert main(["check", str(file), "--tenant", "nobody"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "tenant:nobody",
        "    20 requests per minute (fixed window)",
        "team does not apply: it is by team, and no team is told",
    ]


def test_check_knows_what_the_gateway_tells(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt `by` is a mistake where it is said what is told of a request, as at the gateway's start."""
    assert main(["check", str(file), "--dims", "user, team"]) == 0
    assert main(["check", str(file), "--dims", ""]) == 1
    file.write_text(FILE.replace("by: team", "by: taem"))
    assert main(["check", str(file)]) == 0
    capsys.readouterr()
    assert main(["check", str(file), "--dims", "team"]) == 1
    assert "scopes[0].by[0]: the gateway says no 'taem' of a request" in capsys.readouterr().err


def test_check_says_where_nothing_applies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is no empty answer."""
    path = tmp_path / "p.json"
    path.write_text('{"default": {"limits": {}}}')
    assert main(["check", str(path), "--tenant", "acme"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["no limit applies"]


def test_check_tells_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each mistake is a line on standard error, and the exit code is 1."""
    path = tmp_path / "p.yaml"
    path.write_text(FILE.replace("rpm: 600", "rmp: 600").replace("match:", "matches:"))
    assert main(["check", str(path)]) == 1
    output = capsys.readouterr()
    assert not output.out
    first, *others = output.err.splitlines()
    assert first.startswith(
        f"{path}:6: tenants[0].limits.rmp: there is no such field: did you mean"
    )
    assert len(others) == 2
    assert main(["check", str(tmp_path / "none.yaml")]) == 1
    assert "there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--tenant", ""], ["--tenant", "a", "--model", "m" * 2_000]])
def test_check_refuses_what_is_no_key(
    words: list[str], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tenant or a model that is no key is told, and is no traceback."""
    assert main(["check", str(file), *words]) == 1
    assert "must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["chek", "a"],
        ["check"],
        ["check", "a", "--dim", "team"],
        ["check", "a", "--dim", "=a"],
        ["check", "a", "--dim", "tenant=a"],
        ["check", "a", "--model", "gpt-4o"],
        ["check", "a", "--dim", "team=a"],
    ],
    ids=" ".join,
)
def test_wrong_words_exit_with_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong arguments are explained, and exit with 2."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage: python -m earmark" in capsys.readouterr().err


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` lists every command with what it does."""
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert all(name in said for name in COMMANDS)
    for name in COMMANDS:
        with pytest.raises(SystemExit):
            main([name, "--help"])
        assert capsys.readouterr().out


def test_it_runs_as_a_module(file: Path) -> None:
    """`python -m earmark` is the command, and its exit code is the process's."""
    command = [sys.executable, "-W", "error", "-m", "earmark", "check"]
    run = subprocess.run([*command, str(file)], capture_output=True, check=False, timeout=60)
    assert (run.returncode, run.stderr) == (0, b"")
    run = subprocess.run([*command, "none.yaml"], capture_output=True, check=False, timeout=60)
    assert run.returncode == 1


def validator(said: dict[str, Any]) -> jsonschema.Draft202012Validator:
    """What holds data to a schema."""
    jsonschema.Draft202012Validator.check_schema(said)
    return jsonschema.Draft202012Validator(said)


def test_the_schema_takes_what_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON schema that the command prints is one, and takes good files."""
    assert main(["schema"]) == 0
    holds = validator(json.loads(capsys.readouterr().out))
    holds.validate(GOOD)
    holds.validate(yaml.safe_load(FILE))


def test_the_schema_refuses_every_mistake_that_a_schema_can_see() -> None:
    """An editor that knows the schema marks each mistake but those that take two places to see."""
    holds = validator(schema())
    unseen = [
        (place, value)
        for place, value, kind, _, _ in MISTAKES
        if kind not in BEYOND and holds.is_valid(changed(place, value))
    ]
    assert unseen == [
        ("tenants.0.key", "acme\n"),  # `$` in Python's patterns also stands before a last newline
        ("tenants.0.key", "ä" * 510),  # a schema counts characters
        ("tenants.0.models.0.id", "a\n"),
        ("default.limits.rpm", 60.0),  # to a schema an integer
        ("default.limits.also", [{**A_LIMIT, "window": math.inf}]),  # JSON has none
    ]
