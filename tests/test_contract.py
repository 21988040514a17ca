"""The kit's contract, played on the memory backend: a test for each of its functions, in every variant.

The tests of other stores collect these by their names and play them elsewhere.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from earmark.testing.contract import CONTRACT, Case
from tests.rows import Stores

pytestmark = pytest.mark.anyio


def test_of(cases: list[Case]) -> Any:
    """One function of the contract as a test."""

    @pytest.mark.parametrize("case", cases, ids=[case.variant or "-" for case in cases])
    async def test(case: Case) -> None:
        await case.check(Stores.make)

    return test


test_of.__test__ = False  # type: ignore[attr-defined]

for _name, _cases in itertools.groupby(CONTRACT, lambda case: case.name):
    globals()[f"test_{_name}"] = test_of(list(_cases))
