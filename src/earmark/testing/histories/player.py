"""What every machine that plays histories shares: its offers, its clock, and the steps that only change those."""

from __future__ import annotations

from typing import Final

from earmark.testing.clock import ManualClock
from earmark.testing.histories import steps as do
from earmark.testing.histories.values import SECOND

START: Final = 1_000_000 * SECOND + 7
AGES: Final = 400 * 86_400 * SECOND


class Player:
    """One history, step by step: what a step does is the method that bears its name. `marks` collects what it met."""

    def __init__(self, offers: tuple[do.Offer, ...], start: int = START) -> None:
        self.offers = list(offers)
        self.clock = ManualClock(start / SECOND)
        self.us = start
        self.marks: set[str] = set()
        self.retry = 0
        self.resets: list[int] = []

    @property
    def now(self) -> int:
        """The present time, which never steps back."""
        raise NotImplementedError

    def end_of(self, what: str, number: int) -> float | None:
        """The end of the lease or of the `keep` of a reservation, if there is such a reservation."""
        raise NotImplementedError

    def chosen(self, numbers: tuple[int, ...]) -> list[do.Offer]:
        """The offers of some numbers, each once."""
        return [self.offers[n] for n in dict.fromkeys(n % len(self.offers) for n in numbers)]

    def set_clock(self, us: int) -> None:
        """Set the clock, whose seconds are the double nearest to these microseconds."""
        self.us = us
        self.clock.set(us / SECOND)

    def do_peek(self, step: do.Peek) -> None:
        """What is looked at after each step is looked at."""

    def do_wait(self, step: do.Wait) -> None:
        """Let time pass, or step the clock back."""
        self.marks |= {"clock stepped back"} if step.us < 0 else set()
        self.set_clock(max(self.us + step.us, 0))

    def do_waitfor(self, step: do.WaitFor) -> None:
        """Go to where something ends, or to a microsecond beside it; never back."""
        now = self.now
        offer = self.offers[step.offer % len(self.offers)]
        windows = [line.window for line in offer.place.lines if line.window]
        target = now
        if step.what == "window" and windows:
            window = windows[step.which % len(windows)]
            target = now - now % window + (1 + step.more) * window
        elif step.what == "retry":
            target = now + min(self.retry, AGES)
        elif step.what == "reset" and self.resets:
            target = now + min(self.resets[-1 - step.which % len(self.resets)], AGES)
        elif step.what in {"lease", "keep"}:
            end = self.end_of(step.what, step.which)
            target = int(end) if end is not None and end < now + AGES else now
        self.set_clock(max(target + step.off, now))

    def do_amend(self, step: do.Amend) -> None:
        """Change an amount for the calls to come (R17)."""
        index = step.offer % len(self.offers)
        lines = self.offers[index].place.lines
        if lines:
            self.offers[index] = self.offers[index].amended(
                step.which % len(lines), step.amount, step.burst
            )
            self.marks.add("changed limit")

    def do_enforce(self, step: do.Enforce) -> None:
        """Roll a scope out or back, for the calls to come."""
        index = step.offer % len(self.offers)
        self.offers[index] = self.offers[index]._replace(enforce=step.enforce)
