"""Reservations that travel as text: a gateway admits, and whoever has the token resolves."""

from __future__ import annotations

import base64
import gc
import json
import warnings
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from earmark import Limit, Limiter, Limits, MemoryBackend, RateLimited, Scope, Usage
from earmark.testing import ManualClock

pytestmark = pytest.mark.anyio

ALICE = Scope(
    "api_key:alice",
    Limits(
        rpm=10,
        tpm=1_000,
        concurrency=1,
        also=[
            Limit("tokens", 50, 0.5, "sliding_window"),
            Limit("credits", 40, 60, "token_bucket", burst=90),
        ],
    ),
)
MINE, YOURS = b"mine", "yours"
MODEL = Scope("model:{a}:b\n", Limits(tpm=5_000), enforce=False)


@pytest.mark.parametrize("secret", [None, "mine", b"\x00mine"])
async def test_a_worker_settles_what_a_gateway_admitted(secret: str | bytes | None) -> None:
    """By its token, through another limiter of the same store, trued up over all scopes, once."""
    backend = MemoryBackend(clock=ManualClock())
    gateway, worker = Limiter(backend, secret=secret), Limiter(backend, secret=secret)
    reservation = await gateway.pre_commit(ALICE, MODEL, tokens=40, amounts={"credits": 30})
    token = reservation.token()
    assert token.isascii()
    assert " " not in token
    assert await worker.settle_success(token, Usage(input_tokens=5, output_tokens=2)) is True
    assert await worker.settle_success(token, 40) is False
    assert await gateway.cancel(token) is False
    assert await reservation.close_reserved_only() is False
    alice, model = await gateway.peek(ALICE, MODEL)
    assert [status.used for status in alice.limits] == [1, 7, 0, 7, 30]
    assert model["tokens"].used == 7


@pytest.mark.parametrize("verb", ["settle_success", "close_reserved_only", "abandon", "cancel"])
async def test_every_verb_takes_a_token(verb: str) -> None:
    """And frees the slot."""
    limiter = Limiter(MemoryBackend(clock=ManualClock()))
    token = (await limiter.pre_commit(ALICE, tokens=4)).token()
    usage = (4,) if verb == "settle_success" else ()
    assert await getattr(limiter, verb)(token, *usage) is True
    assert (await limiter.peek(ALICE))[0]["concurrency"].used == 0


async def test_the_handle_is_handed_over() -> None:
    """Leaving its block closes nothing, and collecting it abandons nothing and warns of nothing."""
    limiter = Limiter(MemoryBackend(clock=ManualClock()))
    async with await limiter.pre_commit(ALICE) as reservation:
        token = reservation.token()
        with pytest.raises(RuntimeError, match="already handed over"):
            reservation.token()
        with pytest.raises(RuntimeError, match="already handed over"):
            reservation.stream(_nothing())
    assert reservation.state == "open"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del reservation
        gc.collect()
    with pytest.raises(RateLimited):
        await limiter.pre_commit(ALICE)
    assert await limiter.settle_success(token, 1) is True


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield


async def test_a_resolved_reservation_gives_no_token() -> None:
    """There is nothing to hand over."""
    limiter = Limiter(MemoryBackend(clock=ManualClock()))
    reservation = await limiter.pre_commit(ALICE)
    await reservation.cancel()
    with pytest.raises(RuntimeError, match="cancelled"):
        reservation.token()


async def test_what_was_renewed_here_is_so_no_longer() -> None:
    """R10: the lease runs from the hand-over; the reservation can be resolved for an hour."""
    clock = ManualClock()
    limiter = Limiter(MemoryBackend(clock=clock, lease=60))
    async with await limiter.pre_commit(ALICE) as reservation:
        clock.advance(600)
        with pytest.raises(RateLimited):
            await limiter.pre_commit(ALICE)
        token = reservation.token()
    clock.advance(59.999_999)
    with pytest.raises(RateLimited):
        await limiter.pre_commit(ALICE)
    clock.advance(0.000_001)
    other = await limiter.pre_commit(ALICE)
    assert await limiter.settle_success(token, 5) is True
    assert (await limiter.peek(ALICE))[0]["concurrency"].used == 1
    assert await other.cancel() is True


async def test_a_stale_token_does_nothing() -> None:
    """B24: an hour after its reservation was last renewed nobody knows of it."""
    clock = ManualClock()
    limiter = Limiter(MemoryBackend(clock=clock))
    token = (await limiter.pre_commit(ALICE)).token()
    clock.advance(3_600)
    assert await limiter.settle_success(token, 5) is False


async def test_a_token_of_a_request_without_limits() -> None:
    """B10: nothing is sent and nothing is counted."""
    limiter = Limiter(MemoryBackend())
    reservation = await limiter.pre_commit(Scope("free", Limits()), request_id="mine")
    token = reservation.token()
    assert await limiter.settle_success(token, 5) is True


async def test_forged_foreign_and_broken_tokens_are_errors() -> None:
    """Each says what is wrong, before anything is asked of a store."""
    backend = MemoryBackend()
    signed, plain = Limiter(backend, secret=MINE), Limiter(backend)
    other_secret = Limiter(backend, secret=YOURS)
    reservation = await signed.pre_commit(ALICE)
    token = reservation.token()
    version, text, signature = token.split(".")
    swapped = text[:-8] + ("A" if text[-8] != "A" else "B") + text[-7:]
    for forged in (f"{version}.{swapped}.{signature}", f"{version}.{text}.", f"{version}.{text}"):
        with pytest.raises(ValueError, match="forged"):
            await signed.settle_success(forged, 5)
    for limiter in (plain, other_secret):
        with pytest.raises(ValueError, match="another secret"):
            await limiter.settle_success(token, 5)
    for forged in (f"{version}.{text}.\ud800", f"{version}.\ud800.{signature}"):
        with pytest.raises(ValueError, match="forged"):
            await signed.settle_success(forged, 5)
    for broken in ("", "token", "earmark1.", "earmark1", f"earmark0.{text}.{signature}"):
        with pytest.raises(ValueError, match="expected a reservation's token"):
            await signed.settle_success(broken, 5)
    for damaged in ("AAAA", "W10", "bnVsbA", "e30", "!!", "WzEsMiwzXQ"):
        with pytest.raises(ValueError, match="token"):
            await plain.settle_success(f"earmark1.{damaged}.", 5)
    with pytest.raises(ValueError, match="store"):
        await Limiter(MemoryBackend(), secret=MINE).settle_success(token, 5)
    assert await signed.settle_success(token, 5) is True


NAME: Final = "abcdefghi_-.17"
SAID: Final = ["memory", NAME, "mine", None, 1, {"t": 5}, ["k", "f60:t", 100, "c", 2]]


def token_of(said: object) -> str:
    """A token that was never made, of a limiter without a secret."""
    raw = said if isinstance(said, bytes) else json.dumps(said).encode()
    return f"earmark1.{base64.urlsafe_b64encode(raw).decode().rstrip('=')}."


def changed(at: int, value: object) -> list[object]:
    """What a token says, with another part."""
    return [*SAID[:at], value, *SAID[at + 1 :]]


async def test_what_was_never_a_token_but_could_be_one_names_nobody() -> None:
    """The parts of the table below are refused for what they are, and not for what stands beside them."""
    backend = MemoryBackend()
    said: list[Any] = [backend.name, *SAID[1:]]
    assert await Limiter(backend).cancel(token_of(said)) is False


# By the part of a token, what it cannot be.
WRONG: Final[dict[int, tuple[object, ...]]] = {
    0: (None, 5, ["memory"]),
    1: (
        *("", "a b", "a", NAME[:-2], f"{NAME} 5", f"{NAME}\n", f" {NAME}", f"{NAME}x"),
        *("abcdefghi_-.", "abcdefghi_-.07", f"x{NAME}", f"{NAME}{'1' * 5_000}", "é" * 14),
        *(None, 7, [NAME], {"a": 1}, True),
    ),
    2: ("", 7, 7.0, True, ["a"], {}, "x" * 1_025, "\ud800"),
    3: ("", "here", 0, ["local"], {}),
    4: (None, 4, "1", [], -1),
    5: (
        *(None, 5, [], "t", {"t": -1}, {"t": 1.5}, {"t": "5"}, {"t": None}, {"t": True}),
        *({"t": 2**53}, {"": 5}, {"=": 5}, {"t": [5]}),
    ),
    6: (
        *(None, 5, "k1", {}, [], [""], [5], ["k", 1], ["k", None], ["k", "0"], ["k", False]),
        *(["k", "f60:t"], ["k", "f60:t", "5"], ["k", "x60:t", 5], ["k", "", 5], ["k", 0, 0]),
        *(["k", "f60", 5], ["k", "fx:t", 5], ["k", f"f{'9' * 400}u:t", 5], ["k", 0.0]),
        *(["k", "f60:t", [5]], ["k", "f60:t", [5, 6]], ["k", 5, 5], ["k" * 1025]),
        ["k"],  # the store knows of what a limit concerns, and of nothing else
    ),
}


@pytest.mark.parametrize(
    "said",
    [
        *(changed(at, value) for at, values in WRONG.items() for value in values),
        *(SAID[:end] for end in range(7)),
        [*SAID, SAID[6]],  # two scopes with one key
        *({"a": 1}, "text", 5, None, b"[" * 100_000, b"\xff", b"[NaN"),
    ],
)
async def test_every_part_of_a_token_is_read_as_what_it_must_be(said: Any) -> None:
    """R12, R13: anything else is an error of the caller's alone, before a store hears of it."""
    with pytest.raises(ValueError, match="this token is damaged"):
        await Limiter(MemoryBackend()).settle_success(token_of(said), 5)


@pytest.mark.parametrize("secret", ["", b"", 5])
def test_a_secret_is_text_or_bytes(secret: str) -> None:
    """An empty one would sign nothing."""
    with pytest.raises(ValueError, match="secret must be"):
        Limiter(secret=secret)
