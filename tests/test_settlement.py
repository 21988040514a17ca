"""Settlement: what a hold becomes once the usage is known, in which window, for which metrics (R6, R7)."""

from __future__ import annotations

import pytest

from earmark.testing.contract.settlement import FIXED
from tests.rows import R, S, Table, used

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "field",
    [
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "cache_read_input_tokens",
        "promptTokenCount",
    ],
)
async def test_r6_a_providers_field_is_an_error(field: str) -> None:
    """R6: a raw usage body settles nothing by mistake: the error names what reads it."""
    async with Table() as table:
        await table.play(R("r1", FIXED, tok=50))
        with pytest.raises(ValueError, match=rf"{field}.*usage_from_response"):
            await table.handles["r1"].settle_success({field: 5})
        assert table.handles["r1"].state == "open"
        await table.play(used("key.tpm", 50), S("r1", 5), used("key.tpm", 5))
