"""`LimiterMachine`: it plays whatever has a backend's protocol, and finds what is broken there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from earmark import Limiter, Limits, MemoryBackend, Reservation, Scope, ScopeStatus
from earmark.backends import Backend
from earmark.testing import ManualClock, fake_redis_backend
from earmark.testing.histories.differing import expect_alike
from earmark.testing.histories.model import Model
from earmark.testing.histories.translation import by_hand, place_of
from earmark.testing.machine import Gateway, LimiterMachine
from earmark.testing.plain import PlainBackend
from tests.mutants import AdmitsAtTheLimit, CancelKeepsTheSlot
from tests.scale import examples

FEW: Final = settings(max_examples=examples(40), stateful_step_count=30)
# What is found need not be shrunk here.
UNTIL_FOUND: Final = settings(
    max_examples=400,
    stateful_step_count=40,
    phases=[Phase.generate],
    database=None,
    report_multiple_bugs=False,
    derandomize=True,
)


def machine_of(make: Any) -> type[LimiterMachine]:
    """The machine on a backend."""

    class Machine(LimiterMachine):
        def make_backend(self, clock: ManualClock) -> Backend:
            backend: Backend = make(clock=clock)
            return backend

    return Machine


@pytest.mark.parametrize("make", [MemoryBackend, PlainBackend, fake_redis_backend])
def test_the_machine_on_sound_backends(make: Any) -> None:
    """R1-R12, R17: each does what the plain model does; what asyncio alone can run is run by the machine's own loop."""
    run_state_machine_as_test(machine_of(make), settings=FEW)


@pytest.mark.parametrize("mutant", [AdmitsAtTheLimit, CancelKeepsTheSlot])
def test_the_machine_finds_what_is_broken(mutant: Any) -> None:
    """B5, R7: a fault is found as well by histories that nobody wrote."""
    with pytest.raises(AssertionError, match=r"\(R|admitted, and should not be"):
        run_state_machine_as_test(machine_of(mutant), settings=UNTIL_FOUND)


def test_a_gateway_of_ones_own_is_played_by_its_own_calls() -> None:
    """A subclass may hand the machine whatever reserves and resolves: here one that forgets to give anything back."""

    class Careless(Gateway):
        async def resolve(self, reservation: Reservation, verb: str, *usage: Any) -> bool:
            return await super().resolve(reservation, "close_reserved_only")

    class Machine(LimiterMachine):
        def make_gateway(self, clock: ManualClock) -> Gateway:
            return Careless(MemoryBackend(clock=clock))

    with pytest.raises(AssertionError, match=r"\(R5|what the scopes show"):
        run_state_machine_as_test(Machine, settings=UNTIL_FOUND)


def test_what_differs_is_all_that_is_said() -> None:
    """One figure of one limit, among many: the first thing that whoever reads it wants to know."""
    wide = Scope("a", Limits(rpm=60, tpm=100, concurrency=2)), Scope("b", Limits(tpm=100))
    (one, other) = by_hand(Limiter(MemoryBackend(clock=ManualClock())).peek(*wide))
    model = Model()
    expected = model.peek(tuple(map(place_of, wide)))
    expect_alike("alike", (one, other), expected)
    (requests, tokens, slots), limits = one.limits, other.limits
    wrong = ScopeStatus("a", (requests, replace(tokens, used=11, remaining=89), slots))
    with pytest.raises(AssertionError) as caught:
        expect_alike("what shows", (wrong, ScopeStatus("b", limits)), expected)
    assert str(caught.value).splitlines() == [
        "what shows:",
        "  used of 'a', tokens of 100 in 60 s (fixed_window): got 11, expected 0",
        "  remaining of 'a', tokens of 100 in 60 s (fixed_window): got 89, expected 100",
    ]
    for got, word in (((one,), "scopes"), ((ScopeStatus("a", limits), other), "limits of 'a'")):
        with pytest.raises(AssertionError, match=word):
            expect_alike("what shows", got, expected)
