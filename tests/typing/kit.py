"""What type checkers see of the testing kit: as public.py, never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, assert_type

from hypothesis import strategies as st

from earmark import Limiter, Limits, MemoryBackend, RedisBackend, Scope, Usage
from earmark.backends import Backend, Clock
from earmark.testing import (
    CONTRACT,
    LOST,
    LOST_REPLY,
    BackendFactory,
    Case,
    ContractBroken,
    Failure,
    Fault,
    FaultyBackend,
    ManualClock,
    check_backend,
    fake_redis_backend,
    slow,
    timeout_after_apply,
)
from earmark.testing.histories import History
from earmark.testing.machine import Gateway, LimiterMachine
from earmark.testing.oracle import InvariantBroken, Oracle
from earmark.testing.plain import PlainBackend
from earmark.testing.provider import Act, Pause, Provider, ProviderProcess, Recorded, Seen, running
from earmark.testing.pytest import contract_test
from earmark.testing.rows import (
    ANY,
    VERBS,
    A,
    C,
    Empty,
    Gone,
    N,
    P,
    R,
    Resolve,
    S,
    See,
    Table,
    X,
    Z,
    key,
    resolve,
    used,
)
from earmark.testing.strategies import bodies, histories, limits, scope_sets, scopes, usages
from earmark.testing.streams import Body


async def contract(broken: ContractBroken, fault: Fault) -> None:
    """The contract takes whatever makes backends."""
    make: BackendFactory = PlainBackend
    assert_type(await check_backend(make, CONTRACT[:5]), None)
    assert_type(broken.failures, tuple[Failure, ...])
    assert_type(broken.failures[0].case, Case)
    assert_type(contract_test(MemoryBackend), Callable[..., Coroutine[Any, Any, None]])
    faulty = FaultyBackend(MemoryBackend(clock=ManualClock()))
    faulty.script("reserve", LOST, None, LOST_REPLY, slow(1.0), timeout_after_apply(2.0), fault)
    backend: Backend = faulty
    assert_type(fake_redis_backend(), RedisBackend)
    await check_backend(backend)  # type: ignore[arg-type]


async def watched(alice: Scope, broken: InvariantBroken) -> str:
    """The oracle is an observer."""
    clock: Clock = ManualClock()
    oracle = Oracle(alice, clock=clock)
    limiter = Limiter(PlainBackend(clock=clock), observers=[oracle])
    assert_type(await oracle.finish(limiter), None)
    return str(broken)


class Mine(LimiterMachine):
    """A gateway of one's own, under the machine."""

    def make_gateway(self, clock: ManualClock) -> Gateway:
        """On a backend of the test's choice."""
        return Gateway(MemoryBackend(clock=clock))


def drawn() -> None:
    """What hypothesis draws are the public values."""
    assert_type(limits(), st.SearchStrategy[Limits])
    assert_type(scopes(), st.SearchStrategy[Scope])
    assert_type(scope_sets(), st.SearchStrategy[tuple[Scope, ...]])
    assert_type(usages(), st.SearchStrategy[Usage])
    assert_type(histories(), st.SearchStrategy[History])
    assert_type(bodies({"anthropic"}), st.SearchStrategy[Body])


async def rows() -> None:
    """Tables are played from rows."""
    hundred = key("key", tpm=100)
    assert_type(hundred, Scope)
    async with Table(MemoryBackend) as table:
        await table.play(R("r1", hundred, tok=80, at=55), S("r1", 0), used("key.tpm", 0))
        await table.play(C("r2"), A("r3"), X("r4"), N("r5"), Z(hundred), Gone("r6"), Empty())
        await table.play(P(hundred, 5), See(of="key.tpm", used=ANY))
        assert_type(await resolve(table.handles["r1"], "cancel"), bool)
    assert_type(S("r1", 0), Resolve)
    assert_type(VERBS["cancel"], str)


async def provider(recorded: Recorded) -> None:
    """The stand-in answers in this process, or in one of its own."""
    stand_in = Provider()
    stand_in.script(Act(status=429), Act(cut=2))
    assert_type(stand_in.pause(1), Pause)
    assert_type(recorded.content, bytes)
    async with running() as process:
        assert_type(process, ProviderProcess)
        assert_type(await process.seen(), list[Seen])
