"""Tokens that no hold covers: add_tokens_post_stream (B27–B30, R8)."""

from __future__ import annotations

import pytest

from tests.rows import Empty, Table, key

pytestmark = pytest.mark.anyio

MINUTE, HOUR, DAY = 60, 3_600, 86_400


@pytest.mark.parametrize("tokens", [True, 1.0, 1.5, float("nan"), float("inf"), 2**53, "5", None])
async def test_r12_what_is_no_amount_is_an_error_before_anything_is_counted(tokens: object) -> None:
    """R8, R12: a negative int is 0; a bool, a float or more than 2**53 - 1 is an error that shows it."""
    async with Table() as table:
        for target in ("key", key(tpm=1_000)):
            with pytest.raises((ValueError, TypeError), match=repr(tokens)):
                await table.limiter.add_tokens_post_stream(target, tokens)  # type: ignore[arg-type]
        await table.play(Empty())
        assert table.events == []


@pytest.mark.parametrize("name", ["", "é" * 513, "\ud800"])
async def test_r13_a_bare_key_is_checked_as_any_other(name: str) -> None:
    """R13: an empty, overlong or unencodable key is an error, and nothing is counted."""
    async with Table() as table:
        with pytest.raises(ValueError, match="key"):
            await table.limiter.add_tokens_post_stream(name, 5)
        await table.play(Empty())
