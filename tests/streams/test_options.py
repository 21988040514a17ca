"""Options of a stream: a name that is none is told with the call that was given it, and with those that there are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from earmark import Limiter, Limits, Scope, observe_stream

pytestmark = pytest.mark.anyio

ALICE = Scope("alice", Limits(tpm=100))


async def nothing() -> AsyncIterator[bytes]:
    """A source without items."""
    return
    yield b""


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("estimator", ": did you mean 'estimate'?"),
        ("hide_use", ": did you mean 'hide_usage'?"),
        ("zzz", "; it takes"),
    ],
)
async def test_an_option_that_is_none_is_told_with_its_call(name: str, meant: str) -> None:
    """The message names the call, the option, the nearest one and all; the reservation stays the caller's."""
    options: dict[str, Any] = {name: None}
    told: list[object] = []
    with pytest.raises(TypeError) as raised:
        observe_stream(nothing(), on_complete=told.append, **options)
    assert str(raised.value).startswith(f"observe_stream takes no option {name!r}{meant}")
    assert "expected_choices, estimate, aclose" in str(raised.value)
    async with await Limiter().pre_commit(ALICE, tokens=5) as reservation:
        with pytest.raises(TypeError, match=rf"^Reservation\.stream takes no option '{name}'"):
            reservation.stream(nothing(), **options)
        assert await reservation.cancel()


async def test_on_complete_is_not_for_a_reservations_stream() -> None:
    """It is the reservation that is told; what was observed is the stream's `observed`."""
    options: dict[str, Any] = {"on_complete": print}
    async with await Limiter().pre_commit(ALICE, tokens=5) as reservation:
        with pytest.raises(TypeError, match=r"takes no option 'on_complete'"):
            reservation.stream(nothing(), **options)
