"""When a deadline is over on a loop that has other things to do (R19): on a clock of the test's own."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

import pytest

from earmark.backends.redis.asked import Asked, Watch
from earmark.backends.redis.messages import Message

TIMEOUT: Final = 0.5


class SlowLoop:
    """A loop each of whose turns takes as long as the test says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = 0
        self._soon: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object], *, context: Context) -> None:
        heapq.heappush(self._later, (when, next(self._numbers), callback))

    def call_soon(self, callback: Callable[..., object], *arguments: Any, context: Context) -> None:
        self._soon.append((callback, arguments))

    def turn(self, seconds: float) -> None:
        """One turn; where there is nothing to do it waits for the next timer."""
        if not seconds and not self._soon and self._later:
            self.now = max(self.now, self._later[0][0])
        self.now += seconds
        self.turns += 1
        ready, self._soon = self._soon, []
        while self._later and self._later[0][0] <= self.now:
            ready.append((heapq.heappop(self._later)[2], ()))
        for callback, arguments in ready:
            callback(*arguments)


class Scene:
    """One message that is waited for."""

    def __init__(self, *, patient: bool = False) -> None:
        self.loop = SlowLoop()
        own = asyncio.new_event_loop()
        self._answer: asyncio.Future[str] = own.create_future()
        own.close()
        self.given_up = False
        loop: Any = self.loop
        self.watch = Watch(loop, TIMEOUT, self._oldest, self._give_up)
        self.watch.patient = patient
        message = Message("peek", "id", (), "")
        self.asked = Asked(message, self._answer, self.watch.deadline(), again=False)
        self.watch.begin()

    def _oldest(self) -> Asked | None:
        return None if self._answer.done() else self.asked

    def _give_up(self) -> None:
        self.given_up = True

    def answer(self) -> None:
        self._answer.set_result("")

    def wait(self, turn: float) -> float:
        """Seconds until it is given up."""
        while not self.given_up:
            self.loop.turn(turn)
        return self.loop.now


@pytest.mark.parametrize("turn", [0.0, 0.001, 0.02, 0.05, 0.1, 0.2])
def test_a_dead_store_is_found_on_a_slow_loop(turn: float) -> None:
    """Turns of less than half the timeout do not put the deadline off: about twice the timeout at most."""
    assert TIMEOUT <= Scene().wait(turn) <= 2 * TIMEOUT + turn


@pytest.mark.parametrize("turn", [0.3, 0.5, 1.0, 2.0, 10.0])
def test_a_dead_store_is_found_after_some_turns_of_any_length(turn: float) -> None:
    """A deadline is over after the second turn at the earliest, and the fifth at the latest."""
    scene = Scene()
    scene.wait(turn)
    assert 3 <= scene.loop.turns <= 5


@pytest.mark.parametrize("turn", [0.2, 1.0])
def test_a_connection_is_given_more_turns(turn: float) -> None:
    """It takes many to make one, and a bounded number."""
    scene = Scene(patient=True)
    scene.wait(turn)
    assert 16 <= scene.loop.turns <= 24


@pytest.mark.parametrize("before", [0, 1, 5])
@pytest.mark.parametrize("blocked", [0.6, 2.0, 100.0])
def test_one_turn_of_any_length_is_no_outage(before: int, blocked: float) -> None:
    """R19: a loop that was blocked once finds the answer that has come meanwhile."""
    scene = Scene()
    for _ in range(before):
        scene.loop.turn(0.01)
    scene.loop.turn(blocked)
    for _ in range(10):  # it is read and handed out
        scene.loop.turn(0.005)
        assert not scene.given_up
    scene.answer()
    for _ in range(1_000):
        scene.loop.turn(0.005)
    assert not scene.given_up
    assert not scene.watch.on
