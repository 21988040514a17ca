"""`check_backend` finds what is broken, says what it is, and is content with what is not."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Final, cast

import pytest

from earmark import Limit, MemoryBackend, testing
from earmark.backends import Hold
from earmark.testing import CONTRACT, ContractBroken, check_backend
from earmark.testing.plain import PlainBackend
from earmark.testing.pytest import contract_test
from tests.mutants_kept import MUTANTS_KEPT
from tests.mutants_lasting import MUTANTS_LASTING
from tests.sixteen import FAULTS, Caught

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.anyio

ROOT_OF_DOCS: Final = Path(__file__).parent.parent / "docs" / "testing.md"


SIXTEEN: Final = {
    "a refusal that still charges (C9)",
    "partial commit over scopes (C10)",
    "refund into the new window (C17)",
    "shared window marker (C19)",
    "TTL renewed on each update (C2, C20)",
    "release of another's slot (C5)",
    "late renewal revives (C5)",
    "replay debits twice (C56)",
    "replayed add counts twice",
    "the first resolver does not win (C24)",
    "refund above capacity (C13)",
    "retry_after one window short",
    "`<=` for `<` at the boundary",
    "two keys share state (C67)",
    "a lowered limit shows negative remaining",
    "cancel keeps the slot",
}
"""What the suite was made to find."""


def test_the_faults_are_the_sixteen() -> None:
    """None is missing, none is another; the cases that find a fault prove the numbers that it has."""
    assert len(SIXTEEN) == 16
    assert set(FAULTS) == SIXTEEN
    for fault, found in FAULTS.items():
        names = {one.case for one in found}
        rules = {rule for case in CONTRACT if case.name in names for rule in case.rules}
        assert names <= {case.name for case in CONTRACT}
        assert set(re.findall(r"C\d+", fault)) <= rules, fault


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    "caught",
    [
        pytest.param(one, id=f"{fault}: {one.mutant.__name__}, {one.case}")
        for fault, found in FAULTS.items()
        for one in found
    ],
)
async def test_each_of_the_sixteen_faults_is_found(caught: Caught) -> None:
    """By the case that is about it, which says what came out and what was expected; and not where nothing is broken."""
    proving = [case for case in CONTRACT if case.name == caught.case]
    await check_backend(PlainBackend, proving)
    with caught.spoilt(), pytest.raises(ContractBroken) as broken:
        await check_backend(caught.mutant, proving)
    assert any(caught.says in str(failure.error) for failure in broken.value.failures), broken.value
    for failure in broken.value.failures:
        assert isinstance(failure.error, AssertionError), failure


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("mutant", "name"), [*MUTANTS_KEPT, *MUTANTS_LASTING], ids=str)
async def test_what_is_done_in_part_is_caught(mutant: type[PlainBackend], name: str) -> None:
    """R6-R10, R13, R14: each fault of a part, of a time, of a name is found by the case that is about it."""
    proving = [case for case in CONTRACT if case.name == name]
    with pytest.raises(ContractBroken) as caught:
        await check_backend(mutant, proving)
    for failure in caught.value.failures:
        assert isinstance(failure.error, AssertionError), failure
        assert "expected" in str(failure)


@pytest.mark.parametrize("make", [MemoryBackend, PlainBackend])
async def test_what_is_not_broken_passes(make: Any) -> None:
    """The memory backend, and the plain one that a reader starts from."""
    await check_backend(make)


async def test_a_backend_that_raises_fails_its_case_and_no_other() -> None:
    """Whatever a backend raises is a failure with its case; the other cases are played all the same."""

    class Forgetful(PlainBackend):
        async def reset(self, scopes: Any) -> None:
            raise LookupError(scopes)

    with pytest.raises(ContractBroken, match="LookupError: ") as caught:
        await check_backend(Forgetful)
    assert {"R6"} <= caught.value.rules <= {"R6", "R7", "R8", "R17", "C56"}
    assert f"{len(caught.value.failures)} of {len(CONTRACT)} cases fail" in str(caught.value)
    assert str(caught.value).count("LookupError: ") < len(caught.value.failures)
    (failure, *_) = caught.value.failures
    frames = traceback.extract_tb(failure.error.__traceback__)
    assert (Path(frames[-1].filename), frames[-1].name) == (Path(__file__), "reset")
    assert failure.place == f"{Path(__file__).name}:{frames[-1].lineno} in reset"
    assert f"at {failure.place}" in str(caught.value)


async def test_no_case_proves_nothing() -> None:
    """Cases that are chosen by a number which none has, or by a name: a backend passes none of them."""
    misspelt = [case for case in CONTRACT if "R010" in case.rules]
    with pytest.raises(ValueError, match="there is no case to be played"):
        await check_backend(PlainBackend, misspelt)
    with pytest.raises(ValueError, match="there is no case to be played"):
        contract_test(PlainBackend, misspelt)


async def test_one_cause_is_told_once() -> None:
    """What holds in every row, and an error that every message raises, is one paragraph and not five hundred."""

    class SeesItsOwnDebit(PlainBackend):
        async def reserve(self, hold: Hold) -> Hold | None:
            standing = await super().reserve(hold)
            if standing is hold:
                limits = [(scope.key, limit) for scope in hold.scopes for limit in scope.limits]
                hold.seen = [self.look(key, limit, hold.at) for key, limit in limits]
            return standing

    with pytest.raises(ContractBroken) as caught:
        await check_backend(SeesItsOwnDebit, CONTRACT[::5])
    failures = caught.value.failures
    assert len(failures) > 50
    assert str(caught.value).count("told from `hold.seen`") == 1
    assert len(str(caught.value)) < 5_000
    alike = [one for one in failures if one.cause == failures[0].cause]
    assert f"and {len(alike) - 1} more cases that fail alike: b" in str(caught.value)


async def test_tasks_do_not_hide_what_went_wrong() -> None:
    """What one of several tasks has raised is told, and not that a group of them has failed."""

    class Breaks(PlainBackend):
        async def reserve(self, hold: Hold) -> Hold | None:
            raise ZeroDivisionError("one")

    at_once = [case for case in CONTRACT if "ten_tasks_at_once" in case.name]
    with pytest.raises(ContractBroken) as caught:
        await check_backend(Breaks, at_once)
    assert "ZeroDivisionError: one\n    at test_check_backend.py:" in str(caught.value)
    assert "unhandled errors in a TaskGroup" not in str(caught.value)


async def test_a_failing_row_is_told_with_those_before_it() -> None:
    """What was played before the row that fails, with the algorithm of each limit, and when."""

    class ForgetsItsRefunds(PlainBackend):
        def give_back(self, key: str, limit: Limit, amount: int, taken: int, now: int) -> None:
            """Nothing."""

    proving = [
        case
        for case in CONTRACT
        if case.name == "r6_a_refund_belongs_to_the_window_of_its_hold"
        and case.variant == "key(tpm=100 sliding_window)-55-60-30-30"
    ]
    with pytest.raises(ContractBroken) as caught:
        await check_backend(ForgetsItsRefunds, proving)
    assert str(caught.value).splitlines()[-5:] == [
        "    used of key.tpm: got 80, expected 30",
        "    in row 3 of 3: See(of='key.tpm', used=30), when the clock stood at 60",
        "      after:",
        "        R(at=55, name='r1', scopes=key(tpm=100 sliding_window), tokens=80)",
        "        Resolve(at=60, name='r1', verb='settle_success', usage=30)",
    ]


def no_lease(*, clock: Any) -> PlainBackend:
    return PlainBackend(clock=clock)


def no_desk(*, clock: Any, lease: float) -> PlainBackend:
    backend = PlainBackend(clock=clock, lease=lease)
    del backend.desk
    return backend


def no_health(*, clock: Any, lease: float) -> PlainBackend:
    backend: Any = PlainBackend(clock=clock, lease=lease)
    backend.health = None
    return cast("PlainBackend", backend)


def no_store(*, clock: Any, lease: float) -> PlainBackend:
    raise ConnectionError("deaf")


async def not_plain(*, clock: Any, lease: float) -> PlainBackend:
    return PlainBackend(clock=clock, lease=lease)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (no_lease, "unexpected keyword argument 'lease'"),
        (no_desk, "PlainBackend has no `desk`"),
        (no_health, "PlainBackend has no function `health`"),
        (no_store, "ConnectionError: deaf"),
        (not_plain, "`make` has to be a plain function"),
    ],
)
async def test_what_is_no_backend_is_told_once(make: Any, why: str) -> None:
    """Nothing can be played: that is one failure, and says what is missing."""
    with pytest.raises(ContractBroken, match="no further case was played") as caught:
        await check_backend(make)
    assert len(caught.value.failures) == 1
    assert why in str(caught.value)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("function", [check_backend, contract_test])
def test_the_signature_can_be_read(function: Any) -> None:
    """`help` shows what it takes, and not the whole contract."""
    assert len(str(inspect.signature(function))) < 300


async def test_keys_that_meet_are_both_named() -> None:
    """R13: which key it is that another one's counts were found under."""

    class Trims(PlainBackend):
        def look(self, key: str, limit: Limit, now: int) -> Any:
            return super().look(key.rstrip(" "), limit, now)

        def debit(self, key: str, limit: Limit, amount: int, now: int) -> None:
            super().debit(key.rstrip(" "), limit, amount, now)

    with pytest.raises(ContractBroken, match="the key 'a ': got what is kept of 'a', expected"):
        await check_backend(Trims, [case for case in CONTRACT if "R13" in case.rules])


def test_it_needs_neither_pytest_nor_hypothesis() -> None:
    """A backend's own tests may be of any kind: the suite imports neither, and a limiter imports no suite."""
    code = (
        "import asyncio, sys\n"
        "from earmark import MemoryBackend\n"
        "from earmark.testing import check_backend\n"
        "asyncio.run(check_backend(MemoryBackend))\n"
        "print(*{'pytest', 'hypothesis', 'fakeredis', 'redis'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_every_case_has_a_name_of_its_own() -> None:
    """A report names one case; what it proves is in its name."""
    names = [str(case) for case in CONTRACT]
    assert len(names) == len(set(names))


test_each_case_is_a_test = contract_test(
    PlainBackend, [case for case in CONTRACT if case.name.startswith("c0")]
)


def test_the_failing_test_of_a_case_says_what_it_proves(pytester: pytest.Pytester) -> None:
    """The face for pytest: a test for each case, which fails with the rule and what was expected."""
    pytester.makepyfile(
        """
        import pytest
        from earmark.testing import CONTRACT
        from earmark.testing.pytest import contract_test
        from tests.mutants import RefusalCharges

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        test_contract = contract_test(RefusalCharges, [one for one in CONTRACT if "C9" in one.rules])
        """
    )
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    assert done.ret == 1
    done.stdout.re_match_lines_random(
        [r".*got .*1 used before, 2 after.*expected.*", r".*C9: B's refusal.*"]
    )


def test_pytest_is_told_once_that_there_is_no_backend(pytester: pytest.Pytester) -> None:
    """The face for pytest: where nothing can be played one test fails, and the others say why they were skipped."""
    pytester.makepyfile(
        """
        import pytest
        from earmark.testing import CONTRACT
        from earmark.testing.pytest import contract_test
        from tests.test_check_backend import no_desk

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        test_contract = contract_test(no_desk, CONTRACT[:5])
        """
    )
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rs")
    done.assert_outcomes(failed=1, skipped=4)
    done.stdout.re_match_lines_random([r".*PlainBackend has no `desk`.*"])


def test_the_numbers_of_a_failure_are_described() -> None:
    """Each rule that a case names is on the page to which a report leads; the sample has as many cases as there are."""
    text = (ROOT_OF_DOCS.parent / "rules.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^(?:\*\*|\| )(R\d+)\b", text, re.MULTILINE))
    assert {rule for case in CONTRACT for rule in case.rules if rule.startswith("R")} <= described
    assert f" of {len(CONTRACT)} cases fail (docs/rules.md" in ROOT_OF_DOCS.read_text(
        encoding="utf-8"
    )


def test_the_public_names_of_the_kit() -> None:
    """Each name of `__all__` is there and documented."""
    assert sorted(testing.__all__) == sorted(set(testing.__all__))
    for name in testing.__all__:
        assert getattr(testing, name) is not None
        assert name in ROOT_OF_DOCS.read_text(encoding="utf-8")
