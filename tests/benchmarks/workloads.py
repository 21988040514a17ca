"""What a worker measures of one library."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import redis

from tests.benchmarks.libraries.base import Library

RESERVED: Final = 500
USED: Final = 320
CHUNK: Final = 50  # life cycles between two looks at the clock
PATIENCE: Final = 5.0  # seconds for those who are not done in time

Open = Callable[..., Library]
Figures = dict[str, Any]


async def lifecycle(library: Library, key: str) -> bool:
    """Reserve and settle; whether it was admitted."""
    hold = await library.reserve(key, RESERVED)
    if hold is None:
        return False
    await library.settle(hold, USED)
    return True


async def alone(make: Open, keys: int, seconds: float) -> Figures:
    """Microseconds of the processor per life cycle of one caller, in memory, over so many keys in turn."""
    library = make()
    await library.open()
    names = [f"tenant:{number:06}" for number in range(keys)]
    for name in names:
        await lifecycle(library, name)
    return await _chunks(library, lambda number: lifecycle(library, names[number % keys]), seconds)


async def refused(make: Open, seconds: float) -> Figures:
    """Microseconds of the processor per refusal, in memory, under one limit of one request."""
    library = make(requests=1, tokens=None)
    await library.open()
    if await library.reserve("tenant", 0) is None:
        message = "the first request is refused"
        raise RuntimeError(message)

    async def refusal(_: int) -> bool:
        return await library.reserve("tenant", 0) is None

    return await _chunks(library, refusal, seconds)


async def _chunks(library: Library, work: Callable[[int], Any], seconds: float) -> Figures:
    """The median over chunks: a pause of the machine falls into few of them."""
    gc.collect()
    found: list[float] = []
    number = wrong = 0
    end = time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        began = time.process_time_ns()
        for _ in range(CHUNK):
            wrong += not await work(number)
            number += 1
        found.append((time.process_time_ns() - began) / CHUNK / 1_000)
    await library.aclose()
    if wrong:
        message = f"{wrong} of {number} answers are wrong"
        raise RuntimeError(message)
    return {"us": statistics.median(found)}


async def bytes_a_key(make: Open, keys: int) -> Figures:
    """What is kept in memory of each key after one life cycle, its name included."""
    library = make()
    await library.open()
    await lifecycle(library, "warm")
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(keys):
        await lifecycle(library, f"tenant:{number:08}")
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    await library.aclose()
    return {"bytes": grown / keys}


@dataclass(frozen=True)
class Server:
    """What a Redis server has done so far: its processor in seconds, the turns of clients, commands in all."""

    processor: float
    reads: int
    commands: int

    @classmethod
    def ask(cls, client: Any) -> Server:
        """As it says itself. The question is a turn and a command as well."""
        told = client.info("everything")
        commands = [told[name]["calls"] for name in told if name.startswith("cmdstat_")]
        processor = told["used_cpu_user"] + told["used_cpu_sys"]
        return cls(processor, told["total_reads_processed"], sum(commands))


async def together(
    make: Open, callers: int, keys: int, seconds: float, ready: Callable[[], None]
) -> Figures:
    """Life cycles of callers at once, through Redis: how many a second, how long, and what they cost on both sides."""
    library = make()
    await library.open()
    names = [f"shared:{number % keys}" for number in range(callers)]
    warm = [asyncio.create_task(lifecycle(library, name)) for name in names]
    await _finish(warm)
    gc.collect()
    ready()
    times: list[float] = []
    failures: Counter[str] = Counter()
    end = 0.0

    async def caller(name: str) -> None:
        again = True
        while again:
            began = time.perf_counter()
            try:
                if await lifecycle(library, name):
                    times.append(time.perf_counter() - began)
                else:
                    failures["refused"] += 1
            except Exception as error:  # noqa: BLE001 - it is counted, whatever it is
                failures[type(error).__name__] += 1
            again = time.perf_counter() < end

    with redis.Redis.from_url(str(library.url)) as client:
        before = Server.ask(client)
        began, processor = time.perf_counter(), time.process_time()
        end = began + seconds
        unfinished = await _finish([asyncio.create_task(caller(name)) for name in names])
        passed, processor = time.perf_counter() - began, time.process_time() - processor
        after = Server.ask(client)
    await library.aclose()
    done = len(times)
    if unfinished:
        failures["unfinished"] = unfinished
    if not done:
        return {"failures": dict(failures), "rate": 0.0}
    times.sort()
    return {
        "rate": done / passed,
        "p50": times[done // 2] * 1e3,
        "p99": times[done * 99 // 100] * 1e3,
        "client": processor / done * 1e6,
        "server": (after.processor - before.processor) / done * 1e6,
        "reads": (after.reads - before.reads - 1) / done,
        "commands": (after.commands - before.commands - 1) / done,
        "failures": dict(failures),
    }


async def _finish(tasks: list[asyncio.Task[Any]]) -> int:
    """Wait for all, for a bounded time after the first is done; how many were not done."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
    _, late = await asyncio.wait(tasks, timeout=PATIENCE)
    for task in late:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return len(late)
