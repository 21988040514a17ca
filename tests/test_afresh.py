"""Stores that keep records: each hold that they hand back is made afresh, and knows nothing of this process."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import anyio
import pytest

from earmark import Limiter, RequestIdConflict
from earmark.backends import Desk, Hold
from earmark.backends.tellers import MOST, Tellers
from earmark.events import Event
from earmark.ids import name_of
from earmark.ledger import Budget, Ledger, Spend
from earmark.testing import CONTRACT, Case, ContractBroken, ManualClock, check_backend
from earmark.testing.plain import PlainBackend
from tests.rows import key

pytestmark = pytest.mark.anyio

DAY = key("key", tpd=100)


@pytest.fixture
def anyio_backend() -> str:
    """A ledger runs on asyncio alone."""
    return "asyncio"


class MakesHoldsAfresh(PlainBackend):
    """What a backend does that keeps records: a hold that is given up, or asked for again, is another object."""

    async def reserve(self, hold: Hold) -> Hold | None:
        standing = await super().reserve(hold)
        for one in self.open.values():
            one.hold = self.afresh(one.hold)
        return standing

    def find(self, hold: Hold) -> Hold | None:
        found = super().find(hold)
        return found and self.afresh(found)

    def afresh(self, hold: Hold) -> Hold:
        return Hold.restored(
            name_of(hold.id),
            hold.request_id,
            hold.scopes,
            dict(hold.asks),
            lease_us=hold.lease_us,
            seen=hold.seen,
            at=hold.at,
        )


async def test_r10_who_heard_of_an_admission_hears_of_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R9, R10: from a store that makes its holds afresh too; the contract finds a library that looks at objects."""
    proving = [case for case in CONTRACT if {"R9", "R10"} & {*case.rules}]
    await check_backend(MakesHoldsAfresh, proving)
    monkeypatch.setattr(Tellers, "add", lambda *_: None)
    assert await broken(proving) == {"r10_observers_hear_of_what_a_backend_gives_up"}
    monkeypatch.setattr(Desk, "own", lambda _, hold: hold)
    assert await broken(proving) > {"r9_an_admission_is_told_once"}


async def broken(cases: list[Case]) -> set[str]:
    """The names of the cases that fail."""
    with pytest.raises(ContractBroken) as caught:
        await check_backend(MakesHoldsAfresh, cases)
    return {failure.case.name for failure in caught.value.failures}


class Suspends(MakesHoldsAfresh):
    """The same, behind a wire: its answer to a reserve comes when `answers` is set."""

    assured = False

    def __init__(self, *, clock: Any = None, lease: float = 60.0) -> None:
        super().__init__(clock=clock, lease=lease)
        self.answers: anyio.Event | None = None

    async def reserve(self, hold: Hold) -> Hold | None:
        standing = await super().reserve(hold)
        if self.answers is not None:
            await self.answers.wait()
        return standing


async def test_r9_what_finds_another_holder_while_it_is_dropped_stays_open() -> None:
    """R9, R15: a handle is dropped while somebody asks for its id: who asked has it, and nobody abandons it."""
    backend = Suspends(clock=ManualClock())
    events: list[Event] = []
    limiter = Limiter(backend, observers=[events.append])
    handles = [await limiter.pre_commit(DAY, tokens=40, request_id="q")]
    backend.answers = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            handles.append(await limiter.pre_commit(DAY, tokens=40, request_id="q"))

        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        with pytest.warns(ResourceWarning, match="dropped while open"):
            handles.clear()
        backend.answers.set()
    backend.answers = None
    (handle,) = handles
    assert handle.state == "open"
    await limiter.reset(key("other", tpd=1))  # the next message does what finalisers noted
    assert await handle.settle_success(10) is True
    (status,) = await limiter.peek(DAY)
    assert status["tokens"].used == 10
    assert [event.kind for event in events] == ["admitted", "settled"]


async def test_r9_money_is_asked_for_once() -> None:
    """R9: the same id with the same spend is the same object; with another, or with none, it is a conflict."""
    ledger = Ledger("sqlite+aiosqlite://")
    await ledger.create()
    budget = Budget("key", Decimal(10), "daily")
    one, two = (Spend((budget,), estimate=Decimal(n)) for n in (1, 2))
    async with Limiter(MakesHoldsAfresh(clock=ManualClock()), ledger=ledger) as limiter:
        first = await limiter.pre_commit(DAY, tokens=40, request_id="q", spend=one)
        assert await limiter.pre_commit(DAY, tokens=40, request_id="q", spend=one) is first
        for other in (two, None):
            with pytest.raises(RequestIdConflict):
                await limiter.pre_commit(DAY, tokens=40, request_id="q", spend=other)
        plain = await limiter.pre_commit(DAY, tokens=40, request_id="plain")
        with pytest.raises(RequestIdConflict):
            await limiter.pre_commit(DAY, tokens=40, request_id="plain", spend=one)
        first.token()  # handed over: whoever asks again has it
        del first
        again = await limiter.pre_commit(DAY, tokens=40, request_id="q", spend=one)
        assert await again.settle_success(10, cost=Decimal(3)) is True
        assert await plain.cancel() is True
        assert await ledger.spent(budget) == 3


def test_r14_what_others_resolve_is_not_remembered_for_ever() -> None:
    """R14: who told of an admission is known of the last ten thousand that nobody here has resolved."""
    tellers = Tellers()
    for n in range(MOST + 5):
        tellers.add(n, "somebody")
    assert len(tellers) == MOST
    assert 4 not in tellers
    assert tellers.pop(5) == "somebody"
    assert tellers.pop(5) is None


async def test_r10_nobody_hears_of_what_others_admitted() -> None:
    """R10: a limiter without observers told nobody, and each of two limiters tells its own."""
    clock = ManualClock()
    backend = MakesHoldsAfresh(clock=clock)
    heard: list[tuple[str, str, str | None]] = []

    def limiter(name: str) -> Limiter:
        return Limiter(
            backend, observers=[lambda event: heard.append((name, event.kind, event.request_id))]
        )

    silent, a, b = Limiter(backend), limiter("a"), limiter("b")
    handles = [
        await silent.pre_commit(DAY, request_id="silent"),
        await a.pre_commit(DAY, request_id="of a"),
        await b.pre_commit(DAY, request_id="of b"),
    ]
    clock.advance(3_600)
    await b.reset(DAY)
    handles.append(await a.pre_commit(key("other", rpm=1), request_id="next"))
    assert [await handle.cancel() for handle in handles] == [False, False, False, True]
    assert sorted(heard) == [
        ("a", "admitted", "next"),
        ("a", "admitted", "of a"),
        ("a", "cancelled", "next"),
        ("a", "expired", "of a"),
        ("b", "admitted", "of b"),
        ("b", "expired", "of b"),
    ]
