"""Whether a library counts right: small questions, each with an answer that can be told beforehand.

What is right is what a user of a limit on tokens expects: never more than the limit, what was not used is free again,
what was used is counted, and a refusal costs nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from tests.benchmarks.libraries.base import PLENTY, Library
from tests.benchmarks.workloads import Open

RIGHT: Final = "right"
FITS: Final = 100
AT_ONCE: Final = 200
PATIENCE: Final = 10.0


async def _opened(make: Open, requests: int, tokens: int | None) -> Library:
    library = make(requests=requests, tokens=tokens)
    await library.open()
    return library


async def burst(make: Open, key: str, callers: int) -> dict[str, Any]:
    """How many of so many at once are admitted, where 100 fit, and how many got no answer."""
    library = await _opened(make, PLENTY, 500 * FITS)
    asked = [asyncio.create_task(library.reserve(key, 500)) for _ in range(callers)]
    done, late = await asyncio.wait(asked, timeout=PATIENCE)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    await library.aclose()
    raised = [error for task in done if (error := task.exception()) is not None]
    failures = Counter(type(error).__name__ for error in raised)
    if late:
        failures["unfinished"] = len(late)
    admitted = sum(task.exception() is None and task.result() is not None for task in done)
    return {"admitted": admitted, "failures": failures}


def of_burst(admitted: int, failures: Mapping[str, int]) -> str:
    """The answer to that; who got no answer may be why it is wrong."""
    if admitted == FITS:
        return RIGHT
    return ", ".join((f"{admitted} of {FITS}", *listed(failures)))


def listed(failures: Mapping[str, int]) -> list[str]:
    """Failures in words."""
    return [f"{count} {name}" for name, count in failures.items()]


async def _in_a_row(make: Open, key: str, used: int) -> int:
    """How many requests of 500 tokens, of which each uses so many, are admitted one after another under 3,200."""
    library = await _opened(make, PLENTY, 3_200)
    admitted = 0
    while admitted < 20:
        hold = await library.reserve(key, 500)
        if hold is None:
            break
        await library.settle(hold, used)
        admitted += 1
    await library.aclose()
    return admitted


async def refund(make: Open, key: str) -> str:
    """What was held and not used is free: 320 n + 500 ≤ 3,200 for the first nine."""
    admitted = await _in_a_row(make, key, 320)
    return RIGHT if admitted == 9 else f"{admitted} of 9 admitted"


async def overrun(make: Open, key: str) -> str:
    """What was used beyond the hold is counted: 900 n + 500 ≤ 3,200 for the first four."""
    admitted = await _in_a_row(make, key, 900)
    return RIGHT if admitted == 4 else f"{admitted} admitted, not 4"


async def _taken(library: Library, key: str) -> None:
    hold = await library.reserve(key, 600)
    if hold is None:
        message = "600 of 1,000 do not fit"
        raise RuntimeError(message)
    await library.settle(hold, 600)


async def cost_of_a_refusal(make: Open, key: str) -> str:
    """Of 1,000 tokens 600 are used; 600 more are refused, and 300 fit still."""
    library = await _opened(make, PLENTY, 1_000)
    await _taken(library, key)
    second, third = await library.reserve(key, 600), await library.reserve(key, 300)
    await library.aclose()
    if second is not None:
        return "admits too much"
    return RIGHT if third is not None else "costs tokens"


async def request_leak(make: Open, key: str) -> str:
    """Of three requests one is used; three are refused for their tokens. Two small ones fit still, and no third."""
    library = await _opened(make, 3, 1_000)
    await _taken(library, key)
    refused = [await library.reserve(key, 600) for _ in range(3)]
    small = [await library.reserve(key, 100) for _ in range(3)]
    await library.aclose()
    *fit, too_many = (hold is not None for hold in small)
    if too_many or any(hold is not None for hold in refused):
        return "admits too much"
    return RIGHT if all(fit) else "costs requests"


async def settled_twice(make: Open, key: str) -> str:
    """A hold of 500 is settled by 320 twice: 680 of 1,000 are free, and no more."""
    library = await _opened(make, PLENTY, 1_000)
    hold = await library.reserve(key, 500)
    await library.settle(hold, 320)
    try:
        await library.settle(hold, 320)
    except Exception:  # noqa: BLE001 - to refuse it is right; what counts is what was counted
        hold = None
    free = await library.reserve(key, 680) is not None
    more = await library.reserve(key, 100) is not None
    await library.aclose()
    if not free:
        return "680 are not free"
    return "gives back twice" if more else RIGHT


QUESTIONS: Final = {
    "refund": refund,
    "overrun": overrun,
    "cost of a refusal": cost_of_a_refusal,
    "request leak": request_leak,
    "settle twice": settled_twice,
}


async def answers(make: Open, prefix: str) -> dict[str, Any]:
    """The answer to each question, and to the burst of one process."""
    found = {"burst": await _answer(_burst(make, f"{prefix}:burst"))}
    for number, (title, question) in enumerate(QUESTIONS.items()):
        found[title] = await _answer(question(make, f"{prefix}:{number}"))
    return found


async def _burst(make: Open, key: str) -> str:
    return of_burst(**await burst(make, key, AT_ONCE))


async def _answer(question: Any) -> str:
    try:
        answer: str = await asyncio.wait_for(question, 2 * PATIENCE)
    except Exception as error:  # noqa: BLE001 - it is the answer
        return type(error).__name__
    return answer
