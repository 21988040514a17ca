"""Two phases: what a reservation takes, and what each way of resolving it leaves (B13–B26)."""

from __future__ import annotations

import pytest

from tests.rows import R, S, Table, key, quiet, used

pytestmark = pytest.mark.anyio


async def test_b23_settled_then_dropped_is_settled_only() -> None:
    """B23: dropping a resolved handle warns of nothing and changes nothing."""
    hundred = key(tpm=100)
    async with Table() as table:
        await table.play(R("r1", hundred, tok=40), S("r1", 25))
        with quiet():
            del table.handles["r1"]
        await table.play(used("key.tpm", 25))
        assert table.kinds() == ["admitted", "settled"]
