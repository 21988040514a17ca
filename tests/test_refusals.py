"""Refusals: what is judged, what each refusal says, and that it is exact to the microsecond (R1–R4)."""

from __future__ import annotations

from typing import Any

import pytest

from earmark import Limiter, Usage
from earmark.testing.contract.refusals import OWN, one
from tests.rows import R, Stores, Table, key

pytestmark = pytest.mark.anyio


BAD_ASKS: list[dict[str, Any]] = [
    *({"tokens": bad} for bad in (True, 1.0, 1.5, float("nan"), -1, 2**53, "5", None)),
    *({"amounts": {"images": bad}} for bad in (True, 1.0, float("inf"), -1, 2**53, "5", None)),
    *({"amounts": {"requests": bad}} for bad in (-1, 2**53, 0.5)),
    *({"amounts": {name: 1}} for name in ("", "\ud800")),
    {"tokens": 5, "amounts": {"tokens": 5}},
    {"tokens": Usage(5, 5), "amounts": {"input_tokens": 5}},
    {"tokens": Usage(5, 5), "amounts": {"tokens": 5}},
]


@pytest.mark.parametrize("bad", BAD_ASKS, ids=ascii)
async def test_r12_a_bad_ask_is_an_error_before_anything_is_counted(bad: dict[str, Any]) -> None:
    """R12: no amount, no name, or an ask of what `tokens` asks already: nothing changes, nothing is told."""
    async with Table() as table:
        await table.play(R("r1", OWN, amounts={"images": 1}))
        before = (await table.look(), table.backend.size(), len(table.events))
        with pytest.raises((ValueError, TypeError)):
            await table.limiter.pre_commit(OWN, **bad)
        assert (await table.look(), table.backend.size(), len(table.events)) == before


@pytest.mark.parametrize("verb", ["pre_commit", "peek", "reset"])
async def test_two_scopes_with_one_key_in_one_request(verb: str) -> None:
    """A ValueError that names the key; what is no scope is a TypeError that shows it."""
    async with Table() as table:
        call = getattr(table.limiter, verb)
        with pytest.raises(ValueError, match="twin"):
            await call(key("twin", rpm=5), key("other"), key("twin", tpm=5))
        with pytest.raises(TypeError, match="not-a-scope"):
            await call("not-a-scope")


async def test_r11_a_clock_s_float_is_the_nearest_microsecond() -> None:
    """R11: 1.001 · 10**6 is 1000999.9999999999 in doubles: a window that begins there has begun."""
    scope = one(5, 0.001)
    async with Limiter(Stores.make(clock=lambda: 1.001)) as limiter:
        (status,) = await limiter.peek(scope)
    assert status["tokens"].reset_after == 0.001
