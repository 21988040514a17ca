"""The contract as a test of pytest: one test for every case, on every event loop of the test's own `anyio_backend`.

    from earmark.testing.pytest import contract_test

    test_contract = contract_test(MyBackend)

It needs pytest, and uses the plugin that anyio brings. A backend for one event loop says so by a fixture:

    @pytest.fixture
    def anyio_backend():
        return "asyncio"
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest

from earmark.testing.contract import Case, chosen
from earmark.testing.shape import BackendFactory, NotABackend

__all__ = ["contract_test"]


def contract_test(
    make: BackendFactory, cases: Iterable[Case] | None = None
) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return a test function, to be bound to a name that pytest collects.

    Args:
        make: as for `check_backend`.
        cases: which cases are played, by default all of the contract (`CONTRACT`).

    Raises:
        ValueError: there are no cases.
    """
    told: list[NotABackend] = []

    @pytest.mark.anyio
    @pytest.mark.parametrize("case", chosen(cases), ids=str)
    async def test(case: Case) -> None:
        """What the case says."""
        if told:  # once is enough
            pytest.skip(str(told[0]))
        try:
            await case.check(make)
        except NotABackend as none:
            told.append(none)
            raise

    return test
