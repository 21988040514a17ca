"""What a life cycle in memory depends on: how many limits, scopes and keys there are, and the algorithm."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from earmark import Limit, Limiter, Limits, MemoryBackend, Scope
from tests.benchmarks.figures import Effort, Table, Work, least, processor

PLENTY: Final = 10**9
TWO: Final = Limits(rpm=PLENTY, tpm=PLENTY)
EIGHT: Final = Limits(
    rpm=PLENTY, tpm=PLENTY, also=[Limit("tokens", PLENTY, 60 + more) for more in range(1, 7)]
)


def lifecycle(limits: Limits = TWO, *, scopes: int = 1, keys: int = 10) -> Work:
    """One pre_commit over so many scopes and one settle_success, over so many sets of them in turn."""
    limiter = Limiter(MemoryBackend())
    sets = [
        tuple(Scope(f"scope:{number:06}:{scope}", limits) for scope in range(scopes))
        for number in range(keys)
    ]

    async def work(number: int) -> None:
        reservation = await limiter.pre_commit(*sets[number % keys], tokens=500)
        await reservation.settle_success(320)

    return work


async def tables(effort: Effort) -> AsyncIterator[Table]:
    """One table, whose ratios are to its first row."""
    many, times = effort.of(100_000), effort.of(5_000)
    works = {
        "one scope with two limits, 10 keys": lifecycle(),
        f"{many:,} keys": lifecycle(keys=many),
        "eight limits": lifecycle(EIGHT),
        "two scopes": lifecycle(scopes=2),
        "four scopes": lifecycle(scopes=4),
        "eight scopes": lifecycle(scopes=8),
        "sliding windows": lifecycle(Limits(rpm=PLENTY, tpm=PLENTY, algorithm="sliding_window")),
        "token buckets": lifecycle(Limits(rpm=PLENTY, tpm=PLENTY, algorithm="token_bucket")),
        "with a slot": lifecycle(Limits(rpm=PLENTY, tpm=PLENTY, concurrency=10)),
    }
    for work in works.values():
        await processor(work, many)()
    found = await least(
        {name: processor(work, times) for name, work in works.items()}, 3 * effort.rounds
    )
    first = next(iter(found.values()))
    rows = tuple((name, figure, figure / first) for name, figure in found.items())
    yield Table(
        "Memory: what a life cycle depends on",
        ("", "µs of the processor", "against the first"),
        rows,
    )
