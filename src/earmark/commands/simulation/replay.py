"""The replay: every request of a trace goes through the real limiter, on a clock that the trace moves.

A request asks for what it used, as if its estimate had been exact, and holds that and its slots until it is over.
Refused, it never ran, and is not asked again.
"""

from __future__ import annotations

import heapq
from typing import Final

from earmark.backends.memory import MemoryBackend
from earmark.backends.store import MemoryStore
from earmark.clock import injected
from earmark.commands.simulation.tally import Tally
from earmark.commands.simulation.trace import Progress, Trace, Who
from earmark.core.hold import Hold
from earmark.errors import RateLimited
from earmark.limiter import Limiter
from earmark.limits import HOUR, MICROSECONDS
from earmark.policies import Policies
from earmark.reservation import Reservation
from earmark.usage import TOKEN_METRICS, Usage

_RENEWAL_US: Final = HOUR // 2 * MICROSECONDS
_EVERY: Final = 5_000  # requests between two words about the progress


class _Clock:
    """Stands where the trace is."""

    now = 0

    def __call__(self) -> float:
        return self.now / MICROSECONDS


class _Store(MemoryStore):
    """Remembers what it has decided last: what a request has left is told from there."""

    last = Hold()

    def reserve(self, hold: Hold) -> Hold | None:
        """As any store in memory."""
        self.last = hold
        return super().reserve(hold)


class _Running:
    """The requests that are under way, by when something is to be done about them."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, int, Reservation]] = []

    def begin(self, number: int, end: int, reservation: Reservation) -> None:
        """One runs until then."""
        due = min(end, self._clock.now + _RENEWAL_US)
        heapq.heappush(self._heap, (due, number, end, reservation))

    async def until(self, at: int | None) -> None:
        """Let everything happen that is due by then; None: all of it."""
        heap = self._heap
        while heap and (at is None or heap[0][0] <= at):
            due, number, end, reservation = heapq.heappop(heap)
            self._clock.now = due
            if due < end:  # slots and reservations live an hour without
                await reservation.renew()
                self.begin(number, end, reservation)
            else:
                await reservation.close_reserved_only()  # it has used what it holds, to the unit


async def replay(trace: Trace, policies: Policies, progress: Progress) -> Tally:
    """Replay a trace.

    Args:
        trace: what was asked.
        policies: who may use how much.
        progress: told how many requests are done, and of how many.

    Raises:
        ValueError: somebody has a name that is no key.
    """
    clock = _Clock()
    backend = MemoryBackend(clock=clock)
    store = backend.instant = _Store(injected(clock), HOUR * MICROSECONDS, backend.desk)
    limiter = Limiter(backend)
    askers = [Asker(policies, who) for who in trace.whos]
    running = _Running(clock)
    tally = Tally(min(trace.time), max(trace.time))
    for done, number in enumerate(trace.order()):
        if not done % _EVERY:
            progress(done, len(trace))
        at, asker = trace.time[number], askers[trace.who[number]]
        await running.until(at)
        clock.now = at
        read, written = trace.input_tokens[number], trace.output_tokens[number]
        tokens = Usage(read, written, 0, 0) if asker.counts_parts else read + written
        try:
            made = await limiter.pre_commit(*asker.scopes, tokens=tokens)
        except RateLimited as refusal:
            tally.refuse(at, asker.tenant, read + written, refusal.denials)
        else:
            if asker.scopes:
                tally.admit(asker.tenant, read + written, store.last)
            else:
                tally.pass_by(at, asker.tenant, read + written)
            running.begin(number, at + trace.duration[number], made)
    await running.until(None)
    progress(len(trace), len(trace))
    return tally


class Asker:
    """Somebody who asks for a model.

    Args:
        policies: who may use how much.
        who: tenant, model, and what else limits are by.

    Raises:
        ValueError: one of these is no key.
    """

    def __init__(self, policies: Policies, who: Who) -> None:
        self.tenant, model, *others = who
        dims = dict(zip(policies.dims, others, strict=True))
        self.scopes = policies.scopes(tenant=self.tenant, model=model, **dims)
        metrics = {metric for scope in self.scopes for metric in scope.limits.by_metric}
        # What asks for `tokens` alone is asked in half the time.
        self.counts_parts = bool(metrics.intersection(TOKEN_METRICS) - {"tokens"})
