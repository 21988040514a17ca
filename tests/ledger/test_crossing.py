"""R9: callers who spend under one name, and a reservation that is over between the answers of limits and ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from earmark import Limiter
from earmark.ledger import Ledger
from tests.ledger.test_nobodys import ALICE, SCOPE, Scene, scene, spend
from tests.ledgers import adds_up, usd

__all__ = ["scene"]

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


class Before:
    """The next that is to be written in a process, held back until it is let go."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._write = ledger, ledger._store.write
        self.came, self.go = asyncio.Event(), asyncio.Event()
        ledger._store.write = self._late  # type: ignore[method-assign]

    async def _late(self, work: Any, **options: Any) -> Any:
        self._ledger._store.write = self._write  # type: ignore[method-assign]
        self.came.set()
        await self.go.wait()
        return await self._write(work, **options)


def counted(limiter: Limiter) -> Callable[[], int]:
    """How often a limiter's store is asked for a reservation from now on."""
    backend: Any = limiter._backend
    where = backend.instant or backend
    reserve, asked = where.reserve, []

    def counting(hold: Any) -> Any:
        asked.append(hold)
        return reserve(hold)

    where.reserve = counting
    return lambda: len(asked)


async def made_and_asked(scene: Scene, process: int = 0) -> tuple[Any, Any, Any, Before]:
    """The limits have given it to both, and the ledger to its maker, who has not heard of it."""
    answers = scene.answers(0)
    made = asyncio.ensure_future(scene.ask()())
    await answers.came.wait()
    before = Before(scene.ledgers[process])
    other = asyncio.ensure_future(scene.ask(process)())
    await before.came.wait()
    return answers, made, other, before


@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize("verb", ["settle", "cancel"])
async def test_r9_who_is_given_what_is_over_before_the_ledger_is_asked_counts_by_itself(
    scene: Scene, process: int, verb: str
) -> None:
    """R9, R5: what each of the two says that it cost is in the log, once, and nothing is pending after that."""
    answers, made, other, before = await made_and_asked(scene, process)
    answers.let_go()
    one = await made
    if verb == "settle":
        assert await one.settle_success(1, cost=usd("0.3"))
    else:
        assert await one.cancel()
    before.go.set()
    two = await other
    assert two is not one
    assert await scene.pending() == 1
    assert await two.settle_success(1, cost=usd("0.4"))
    assert not await two.settle_success(1, cost=usd("0.4"))
    assert await scene.ledgers[0].spent(ALICE) == usd("0.7" if verb == "settle" else "0.4")
    assert await scene.pending() == 0
    await adds_up(scene.ledgers[0])
    if scene.shared:  # who does not know that it is over has it without its limits
        counted_by_limits = (verb == "settle") + (process == 0)
        assert await scene.used() == [[counted_by_limits, 0]] * 2


@pytest.mark.parametrize("process", [0, 1])
async def test_r9_who_goes_after_what_he_was_given_is_over_leaves_nothing(
    scene: Scene, process: int
) -> None:
    """R9, R16: he is cancelled at many turns of the loop after that, and may have begun again."""
    for turns in range(2, 72, 5):
        scene.next()
        answers, made, other, before = await made_and_asked(scene, process)
        answers.let_go()
        assert await (await made).cancel()
        before.go.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        other.cancel()
        await asyncio.wait([other])
        if not other.cancelled():
            assert await other.result().cancel()
        await scene.is_empty()


async def test_r9_who_is_given_what_its_maker_leaves_asks_the_limits_once(scene: Scene) -> None:
    """R9: the ledger has nothing of it any more, and the limits have: it is his, and nobody begins again."""
    limiter = scene.limiters[0]
    async with await limiter.pre_commit(request_id="another's"):  # somebody has a name here
        asked = counted(limiter)
        answers, made, other, before = await made_and_asked(scene)
        made.cancel()
        answers.let_go()
        await asyncio.wait([made])
        before.go.set()
        await scene.holds([await other])
        assert asked() == (2 if scene.scopes else 0)


@pytest.mark.parametrize("first", [0, 1])
async def test_r9_who_is_given_what_has_expired_counts_by_itself(scene: Scene, first: int) -> None:
    """R9, C24: its holder is at work still, and then says what it cost: that is in the log beside the other's."""
    one = await scene.ask()()
    scene.clock.advance(3_601)
    ledger = scene.ledgers[0]
    assert await ledger.spent(ALICE) == 1
    two = await scene.ask(1)()
    told = [(one, "0.3"), (two, "0.4")]
    for handle, cost in told[first:] + told[:first]:
        assert await handle.settle_success(1, cost=usd(cost))
    assert await ledger.spent(ALICE) == usd("0.7")
    assert await scene.pending() == 0
    await adds_up(ledger)


@pytest.mark.parametrize("scene", ["redis"], indirect=True)
async def test_r9_a_token_of_who_was_given_money_that_another_has_left(scene: Scene) -> None:
    """R9, R5: the limits are his own, and the money was set aside by one who goes: another process settles it."""
    answers = scene.answers(0)
    made = asyncio.ensure_future(scene.ask()())
    await answers.came.wait()
    made.cancel()
    before = Before(scene.ledgers[0])
    answers.let_go()
    scene.ledgers[0]._store.write = before._late  # type: ignore[method-assign]
    await before.came.wait()
    two = await scene.ask(1)()
    before.go.set()
    await asyncio.wait([made])
    assert await scene.pending() == 1
    assert await scene.limiters[0].settle_success(two.token(), 1, cost=usd("0.5"))
    assert not await two.settle_success(1, cost=usd("0.4"))
    assert await scene.ledgers[0].spent(ALICE) == usd("0.5")
    assert await scene.pending() == 0


@pytest.mark.parametrize("scene", ["redis"], indirect=True)
async def test_r9_who_asks_by_an_id_of_the_librarys_and_goes_leaves_nothing(scene: Scene) -> None:
    """R9, R16: what he was given is over before his ledger is asked, and he goes before he hears of it."""
    made = await scene.limiters[0].pre_commit(SCOPE, spend=spend())
    answers = scene.answers(1)
    before = Before(scene.ledgers[1])
    ask = scene.limiters[1].pre_commit
    other = asyncio.ensure_future(ask(SCOPE, request_id=made.request_id, spend=spend()))
    await before.came.wait()
    assert await made.cancel()
    before.go.set()
    await answers.came.wait()
    other.cancel()
    answers.let_go()
    await asyncio.wait([other])
    await scene.is_empty()
