"""`check_backend` finds what is broken, says what it is, and is content with what is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from earmark import MemoryBackend, testing
from earmark.testing import CONTRACT, ContractBroken, check_backend
from earmark.testing.plain import PlainBackend
from earmark.testing.pytest import contract_test
from tests.mutants import MUTANTS

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.anyio

ROOT_OF_DOCS: Final = Path(__file__).parent.parent / "docs" / "testing.md"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("mutant", "rule"), MUTANTS.items(), ids=str)
async def test_every_mutant_is_caught_by_its_rule(mutant: type[PlainBackend], rule: str) -> None:
    """Each of the sixteen faults of the list is found by a case that names its number, with what was expected."""
    proving = [case for case in CONTRACT if rule in case.rules]
    with pytest.raises(ContractBroken) as caught:
        await check_backend(mutant, proving)
    assert rule in caught.value.rules
    for failure in caught.value.failures:
        assert isinstance(failure.error, AssertionError), failure
        assert rule in str(failure)
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
    assert {"R6"} <= caught.value.rules <= {"R6", "R7", "R17"}
    assert f"{len(caught.value.failures)} of {len(CONTRACT)} cases fail" in str(caught.value)


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


def test_the_public_names_of_the_kit() -> None:
    """Each name of `__all__` is there and documented."""
    assert sorted(testing.__all__) == sorted(set(testing.__all__))
    for name in testing.__all__:
        assert getattr(testing, name) is not None
        assert name in ROOT_OF_DOCS.read_text(encoding="utf-8")
