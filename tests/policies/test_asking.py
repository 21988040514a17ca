"""Policies while they run: identical answers from rooms that do not grow, and reloads that swap them whole."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from earmark import Limiter, RateLimited, Usage
from earmark.policies import Policies, PolicyError
from earmark.policies import book as books
from earmark.policies.reading import Source, read

ONE: Final[dict[str, Any]] = {
    "default": {"limits": {"rpm": 20}},
    "tenants": [
        {
            "key": "acme",
            "limits": {"tpm": 1_000},
            "models": [{"id": "big", "match": "gpt-4o", "limits": {"tpm": 100}}],
        }
    ],
    "scopes": [{"id": "team", "by": "team", "limits": {"tpd": 500}}],
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """Rooms so small that a test can fill them."""
    monkeypatch.setattr(books, "PASSING", 8)
    monkeypatch.setattr(books, "KEPT", 16)
    return 16


def test_the_same_question_has_the_same_answer() -> None:
    """The answer to a question is one object, whatever else is asked, and scopes of tenants are one object each."""
    policies = Policies(ONE)
    asked: list[dict[str, str]] = [
        {"tenant": "acme"},
        {"tenant": "acme", "model": "gpt-4o"},
        {"tenant": "acme", "model": "gpt-4o", "team": "red"},
        {"tenant": "nobody", "model": "gpt-4o"},
    ]
    answers = [policies.scopes(**one) for one in asked]
    for one, answer in zip(asked, answers, strict=True):
        assert policies.scopes(**one) is answer
    assert answers[0][0] is answers[1][0] is answers[2][0]


def test_strangers_do_not_grow_the_cache(small: int) -> None:
    """C67: unknown tenants and models neither grow the cache nor drive out what the file knows."""
    policies = Policies(ONE)
    known = policies.scopes(tenant="acme", model="gpt-4o")
    alone = policies.scopes(tenant="acme")
    for number in range(200):
        policies.scopes(tenant=f"stranger {number}", model="gpt-4o")
        policies.scopes(tenant="acme", model=f"model {number}")
    assert len(policies._book.passing) == 8
    assert len(policies._book.kept) == 2
    assert policies.scopes(tenant="acme", model="gpt-4o") is known
    assert policies.scopes(tenant="acme") is alone


def test_many_teams_do_not_grow_the_cache_either(small: int) -> None:
    """What a gateway says of its requests may be anything: the room for it is bounded as well."""
    policies = Policies(ONE)
    for number in range(200):
        (_, team) = policies.scopes(tenant="acme", team=f"team {number}")
        assert team.key == f"team:team {number}"
    assert len(policies._book.kept) == small


def test_asked_from_many_threads(small: int) -> None:
    """Threads that ask while rooms overflow and policies are replaced get right answers."""
    policies = Policies(ONE)
    other = Policies(ONE)
    wrong: list[object] = []

    def ask(own: int) -> None:
        for number in range(300):
            name = f"{own} {number % 20}"
            scopes = policies.scopes(tenant=name, team="red")
            if [scope.key for scope in scopes] != [f"tenant:{name}", "team:red"]:
                wrong.append(scopes)
            if own == 0:
                policies.replace(other if number % 2 else Policies(ONE))

    threads = [threading.Thread(target=ask, args=(own,)) for own in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_reload_swaps_everything(tmp_path: Path) -> None:
    """After a reload every answer is the new file's, and scopes that were handed out are as they were."""
    file = tmp_path / "p.json"
    file.write_text(json.dumps(ONE))
    policies = Policies.load(file)
    before = policies.scopes(tenant="acme", model="gpt-4o")
    file.write_text(json.dumps({"default": {"limits": {"rpm": 1}}, "aliases": {"a": "b"}}))
    assert policies.scopes(tenant="acme", model="gpt-4o") is before
    policies.reload()
    (after,) = policies.scopes(tenant="acme", model="gpt-4o")
    assert [limit.amount for limit in after.limits] == [1]
    assert policies.resolve("a") == "b"
    assert [limit.amount for limit in before[0].limits] == [1_000]


@pytest.mark.parametrize("text", [None, "{", "{}", '{"default": {"limits": {"rmp": 5}}}'])
def test_a_reload_of_a_bad_file_changes_nothing(text: str | None, tmp_path: Path) -> None:
    """B49: a file that has become bad is an error, and the policies stay as they were."""
    file = tmp_path / "p.json"
    file.write_text(json.dumps(ONE))
    policies = Policies.load(file, dims=["team"])
    before, said = policies.scopes(tenant="acme"), repr(policies)
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    with pytest.raises(PolicyError):
        policies.reload()
    assert policies.scopes(tenant="acme") is before
    assert repr(policies) == said
    file.write_text(json.dumps({**ONE, "scopes": [{"id": "a", "by": "user", "limits": {}}]}))
    with pytest.raises(PolicyError, match="user"):
        policies.reload()  # what the gateway says of a request is still what it was


@pytest.mark.parametrize(
    ("newer", "rpm"),
    [
        ({"default": {"limits": {"rpm": 2}}}, 2),
        ({"default": {"limits": {"rmp": 2}}}, 1),  # what is wrong takes the place of nothing
        (None, 3),
    ],
)
def test_an_older_reading_takes_no_newer_ones_place(
    newer: object, rpm: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hangups in a row: while the file is judged it changes and is read again, by a handler or another thread."""
    file = tmp_path / "p.json"
    file.write_text(json.dumps(ONE))
    policies = Policies.load(file)

    def meanwhile(name: str) -> Source:
        source = read(name)
        monkeypatch.undo()
        if newer is None:
            policies.replace(Policies({"default": {"limits": {"rpm": 3}}}))
        else:
            file.write_text(json.dumps(newer))
            with suppress(PolicyError):
                policies.reload()
        return source

    file.write_text(json.dumps({"default": {"limits": {"rpm": 1}}}))
    monkeypatch.setattr("earmark.policies.policies.read", meanwhile)
    policies.reload()
    (scope,) = policies.scopes(tenant="acme")
    assert [limit.amount for limit in scope.limits] == [rpm]
    assert repr(policies).endswith("0 tenants, 0 model rules, 0 scopes, 0 aliases>")


class _Looked:
    """Stands for policies of a file, and tells when somebody looks at its name."""

    def __init__(self, policies: Policies, looked: Callable[[], None]) -> None:
        self._policies = policies
        self._looked = looked

    def __getattr__(self, name: str) -> object:
        if name != "_file":
            return getattr(self._policies, name)
        self._looked()
        return "another.json"


def test_a_reload_meets_a_replacement_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload that begins while others are taken takes none of their places by what it has read of the old file."""
    file = tmp_path / "p.json"
    file.write_text(json.dumps(ONE))
    policies = Policies.load(file)
    has_read = threading.Event()

    def reading(name: str) -> Source:
        source = read(name)
        has_read.set()
        return source

    monkeypatch.setattr("earmark.policies.policies.read", reading)
    reload = threading.Thread(target=policies.reload)

    def looked() -> None:
        if not has_read.is_set():
            reload.start()
            assert has_read.wait(10)

    other: Any = _Looked(Policies({"default": {"limits": {"rpm": 3}}}), looked)
    policies.replace(other)
    reload.join()
    (scope,) = policies.scopes(tenant="acme")
    assert [limit.amount for limit in scope.limits] == [3]
    assert "another.json" in repr(policies)


def test_policies_of_a_mapping_cannot_be_read_again() -> None:
    """What came from no file is replaced by other policies, not reloaded."""
    policies = Policies(ONE)
    with pytest.raises(ValueError, match="no file"):
        policies.reload()
    policies.replace(Policies({"default": {"limits": {}}}))
    assert policies.scopes(tenant="acme") == ()


@pytest.mark.anyio
async def test_what_was_used_stays_used() -> None:
    """R17: after a reload that changes amounts, matchers and the order of everything, what was used stays used."""
    policies = Policies(ONE)
    limiter = Limiter()
    scopes = policies.scopes(tenant="acme", model="gpt-4o", team="red")
    reservation = await limiter.pre_commit(*scopes, tokens=90)
    policies.replace(
        Policies(
            {
                "default": {"limits": {"rpm": 20}},
                "scopes": [
                    {"id": "all", "limits": {"tpm": 5_000}},
                    {"id": "team", "by": "team", "limits": {"tpd": 400}},
                ],
                "tenants": [
                    {"key": "globex", "limits": {}},
                    {
                        "key": "acme",
                        "limits": {"tpm": 2_000},
                        "models": [
                            {"match": "o1*", "limits": {"tpm": 1}},
                            {"id": "big", "match": "gpt-4*", "limits": {"tpm": 95}},
                        ],
                    },
                ],
            }
        )
    )
    scopes = policies.scopes(tenant="acme", model="gpt-4o", team="red")
    with pytest.raises(RateLimited) as caught:
        await limiter.pre_commit(*scopes, tokens=10)
    assert [(denial.key, denial.used) for denial in caught.value.denials] == [("rule:big:acme", 90)]
    await reservation.settle_success(Usage(50, 20))
    used = {status.key: status["tokens"].used for status in await limiter.peek(*scopes)}
    assert used == {"tenant:acme": 70, "rule:big:acme": 70, "all": 0, "team:red": 70}


@pytest.mark.anyio
async def test_shadow_rules_count_and_never_refuse() -> None:
    """`enforce: false` counts and reports, and never refuses: how a limit is tried out."""
    policies = Policies(
        {
            "default": {"limits": {"rpm": 5}},
            "scopes": [{"id": "new", "limits": {"rpm": 0}, "enforce": False}],
        }
    )
    limiter = Limiter()
    async with await limiter.pre_commit(*policies.scopes(tenant="acme")) as reservation:
        assert [status["requests"].would_refuse for status in reservation.statuses] == [False, True]


@pytest.mark.anyio
async def test_a_retry_under_another_alias_keeps_its_scopes() -> None:
    """B44: what an alias stands for is asked once; a reload meanwhile does not move the charge."""
    file = {
        "default": {"limits": {}},
        "scopes": [{"id": "model", "by": "model", "limits": {"tpm": 100}}],
    }
    policies = Policies({**file, "aliases": {"fast": "small"}})
    limiter = Limiter()
    reservation = await limiter.pre_commit(*policies.scopes(tenant="a", model="fast"), tokens=50)
    policies.replace(Policies({**file, "aliases": {"fast": "large"}}))
    await reservation.settle_success(60)
    small, large = (
        policies.scopes(tenant="a", model="small"),
        policies.scopes(tenant="a", model="fast"),
    )
    statuses = await limiter.peek(*small, *large)
    assert [(status.key, status["tokens"].used) for status in statuses] == [
        ("model:small", 60),
        ("model:large", 0),
    ]
