"""One process of a storm: many tasks that reserve, hold and resolve, and are cancelled at any moment.

Whatever a caller is told is written down at once, and whatever it is about to do before it does that, so that the log
is true also where the process is killed between two lines.

    python -m tests.storm WHERE SEED STOP LOG TASKS PACE

WHERE is what `tests.sites` calls a server, a cluster or a Sentinel; PACE is for how many seconds at most a caller, and
who cancels them, rests now and then.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from earmark import (
    BackendUnavailable,
    Limit,
    Limiter,
    Limits,
    RateLimited,
    RequestIdConflict,
    Reservation,
    Scope,
)
from earmark.ids import name_of
from tests.sites import limiter_at

LEASE: Final = 2.0
SLOTS: Final = 5

# As many units as a settlement says are counted here, under no limit that could be reached, in a window without end.
ALL: Final = Scope("all", Limits(also=[Limit("settled", 2**50, 4e9)]))


# Some keys are as narrow as to be full on a slow machine, others as wide as to let a fast one work.
AMOUNTS: Final = {
    f"{algorithm}:{width}": {"requests": width, "tokens": 400 * width}
    for algorithm in ("fixed_window", "sliding_window", "token_bucket")
    for width in (2, 5, 10, 25)
}


def limited(key: str, amounts: dict[str, int]) -> Scope:
    """A scope that is limited for each second, as its key says."""
    algorithm: Any = key.partition(":")[0]
    limits = [Limit(metric, amount, 1.0, algorithm) for metric, amount in amounts.items()]
    return Scope(key, Limits(concurrency=SLOTS, also=limits))


SCOPES: Final = [limited(key, amounts) for key, amounts in AMOUNTS.items()]


def now() -> int:
    """Microseconds since the epoch, by the clock of this machine, which is the server's."""
    return time.time_ns() // 1_000


class Log:
    """Lines of JSON, each written at once."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *words: object) -> None:
        os.write(self._file, json.dumps(words).encode() + b"\n")


class Storm:
    """The tasks of one process.

    Args:
        limiter: what they use.
        log: where they write.
        seed: of all that is random.
        stop: they end when this file is there.
        tasks: how many.
        pace: seconds for which one rests at most.
    """

    def __init__(
        self, limiter: Limiter, log: Log, seed: int, stop: Path, tasks: int, pace: float
    ) -> None:
        self._limiter = limiter
        self._pace = pace
        self._log = log
        self._random = random.Random(seed)
        self._stop = stop
        self._numbers = iter(range(10**9))
        self._tasks: list[asyncio.Task[None] | None] = [None] * tasks

    async def run(self) -> None:
        """Until it is over."""
        async with asyncio.TaskGroup() as group:
            for place in range(len(self._tasks)):
                group.create_task(self._again_and_again(place))
            group.create_task(self._cancel_some())

    async def _again_and_again(self, place: int) -> None:
        while not self._stop.exists():
            task = asyncio.create_task(self._request())
            self._tasks[place] = task
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()
            await self._rest()

    async def _rest(self, part: float = 1.0) -> None:
        """As callers do, and whoever finds that the store is out of reach: else nobody has time for anything else."""
        if self._pace:
            turn = asyncio.Event()
            rest = self._random.uniform(0, part * self._pace)
            asyncio.get_running_loop().call_later(rest, turn.set)
            await turn.wait()

    async def _cancel_some(self) -> None:
        """At any moment of whatever they are doing."""
        while not self._stop.exists():
            for _ in range(self._random.randrange(30)):
                await asyncio.sleep(0)
            task = self._tasks[self._random.randrange(len(self._tasks))]
            if task is not None and not task.done() and task.cancel():
                self._log.write("cancelled")
            await self._rest(0.2)

    async def _request(self) -> None:
        """One request, which both processes may make at once under one name."""
        number = next(self._numbers)
        named = self._random.random() < 0.2
        chosen = random.Random(number) if named else self._random
        scopes = (ALL, *chosen.sample(SCOPES, chosen.choice((1, 1, 2))))
        tokens = chosen.randrange(1, 600)
        began = now()
        try:
            reservation = await self._limiter.pre_commit(
                *scopes,
                tokens=tokens,
                amounts={"settled": 0},
                request_id=f"req-{number}" if named else None,
            )
        except (RateLimited, RequestIdConflict, BackendUnavailable) as error:
            self._log.write(type(error).__name__)
            if isinstance(error, BackendUnavailable):
                await self._rest(4)
            return
        keys = [scope.key for scope in scopes[1:]]
        hold = reservation._hold
        name = name_of(hold.id)
        self._log.write("held", name, named, keys, tokens, began, hold.at)
        try:
            async with reservation:
                try:
                    for _ in range(self._random.choice((0, 0, 1, 3, 10))):
                        with suppress(BackendUnavailable):
                            await self._limiter.peek(scopes[1])
                    await self._resolve(reservation, name, tokens)
                except asyncio.CancelledError:
                    self._log.write("leaving", name, now())
                    raise
        finally:
            # Where nothing was resolved it is abandoned by now; it may not have been before this.
            self._log.write("over", name, reservation.state)

    async def _resolve(self, reservation: Reservation, name: str, tokens: int) -> None:
        verb = self._random.choice(("settle", "settle", "settle", "close", "cancel", "leave"))
        used, settled = self._random.randrange(tokens + 1), self._random.randrange(1, 1_000)
        if verb == "leave":
            self._log.write("resolving", name, "close", 0, 0, now())
            return
        self._log.write("resolving", name, verb, used, settled, now())
        if verb == "settle":
            told = await reservation.settle_success({"tokens": used, "settled": settled})
        elif verb == "close":
            told = await reservation.close_reserved_only()
        else:
            told = await reservation.cancel()
        self._log.write("resolved", name, told, now())


async def main(where: str, seed: str, stop: str, log: str, tasks: str, pace: str) -> None:
    written = Log(Path(log))
    async with limiter_at(where, lease=LEASE, on_outage="closed") as limiter:
        storm = Storm(limiter, written, int(seed), Path(stop), int(tasks), float(pace))
        await storm.run()
        await limiter.aclose()
        health = limiter.health()
    written.write("end", health.owed, health.lost, health.admitted_without_store)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
