"""The contract that every backend passes: the kit's, and what is said of memory, on a real server and on fakeredis.

What is collected here are the tests of those modules, played on other stores. A test that is about memory alone is left
out by name, with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from earmark import Limit, Limiter, Limits, RateLimited, Scope
from earmark.backends.book import KEEP_US
from earmark.testing import ManualClock
from tests import (
    rows,
    test_cases,
    test_cases_numbers,
    test_cases_settlement,
    test_contract,
    test_identity,
    test_leases,
    test_once,
    test_post_stream,
    test_refusals,
    test_settlement,
    test_two_phases,
    test_waiting,
    test_waiting_shared,
)
from tests.servers import RedisServer
from tests.stores import Store, fake, real
from tests.test_once import world

__all__ = ["world"]

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("tables_on_store")]

ALGORITHMS: Final[list[Any]] = ["fixed_window", "sliding_window", "token_bucket"]

MODULES: Final = (
    test_cases,
    test_cases_settlement,
    test_cases_numbers,
    test_contract,
    test_two_phases,
    test_settlement,
    test_refusals,
    test_post_stream,
    test_identity,
    test_leases,
    test_once,
    test_waiting,
    test_waiting_shared,
)

_LOOKS_INSIDE = "it looks at the memory of the process"
_ITS_OWN_HOLDERS = (
    "a holder in this process needs no lease there: for Redis it renews, which takes time"
)
_GIVES_UP = (
    "that a reservation is given up is noticed there by the next message, whatever it is about"
)

OF_MEMORY_ALONE: Final = {
    "test_c22_a_request_is_judged_and_counted_at_one_moment": "it counts how often the clock is read",
    "test_c67_a_million_keys_once_each_leave_nothing": _LOOKS_INSIDE,
    "test_c67_no_kind_of_limit_keeps_a_key_that_is_over": _LOOKS_INSIDE,
    "test_c67_what_is_reset_again_and_again_grows_nothing": _LOOKS_INSIDE,
    "test_r9_a_thousand_ids_leave_nothing": _LOOKS_INSIDE,
    "test_r10_what_nobody_resolves_is_forgotten": _LOOKS_INSIDE,
    "test_r10_observers_hear_once_of_what_was_given_up": _GIVES_UP,
    "test_r10_an_attempt_of_a_once_is_a_message_that_reports_it_too": _GIVES_UP,
    "test_b66_a_call_of_three_leases_keeps_its_slot": _ITS_OWN_HOLDERS,
    "test_r10_a_reservation_at_work_is_never_forgotten": _ITS_OWN_HOLDERS,
    "test_r10_a_reservation_at_work_survives_one_idle_jump": _ITS_OWN_HOLDERS,
}

_TESTS: Final = {
    name: test
    for module in MODULES
    for name, test in vars(module).items()
    if name.startswith("test_") and callable(test)
}
globals().update({name: test for name, test in _TESTS.items() if name not in OF_MEMORY_ALONE})


def test_what_is_left_out_is_there() -> None:
    """A reason for a test that has another name by now is none; and no test hides another of its name."""
    assert OF_MEMORY_ALONE.keys() < _TESTS.keys()
    named = [name for module in MODULES for name in vars(module) if name.startswith("test_")]
    assert len(named) == len(set(named))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture(params=["redis", "fakeredis"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store with nothing in it."""
    if request.param == "fakeredis":
        yield fake()
        return
    server: RedisServer = request.getfixturevalue("shared_redis")
    store = real(server, db=2)
    yield store
    store.look.flushdb()


@pytest.fixture
def tables_on_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are played on this store."""

    def make(**options: Any) -> Any:
        store.look.flushdb()  # each table starts from nothing
        return store.measured(**options)

    monkeypatch.setattr(rows.Stores, "make", make)


# What tables cannot say.


def of_all_algorithms(amount: int) -> Limits:
    """Limits of every kind."""
    also = [Limit("tokens", amount, 60, algorithm) for algorithm in ALGORITHMS[1:]]
    return Limits(rpm=amount, tpm=amount, concurrency=amount, also=also)


@pytest.mark.parametrize("named", [False, True])
async def test_r2_a_refusal_leaves_every_byte_as_it_was(store: Store, named: bool) -> None:
    """R2: no counter, no slot, no key, not even a TTL, whichever limit refuses and whatever else is open."""
    one, wide = Scope("a", of_all_algorithms(1)), Scope("b", of_all_algorithms(50))
    fresh = Scope("c", of_all_algorithms(50))
    async with Limiter(store.measured(clock=ManualClock(90.0))) as limiter:
        reservation = await limiter.pre_commit(one, wide, tokens=1)
        before = store.contents(), store.look.pexpiretime("earmark:c:a")
        for number, scopes in enumerate([(one,), (fresh, one), (wide, fresh, one)]):
            with pytest.raises(RateLimited):
                await limiter.pre_commit(
                    *scopes, tokens=5, request_id=f"q{number}" if named else None
                )
        assert (store.contents(), store.look.pexpiretime("earmark:c:a")) == before
        assert await reservation.close_reserved_only()


class Ends:
    """When keys end by the server's clock, which may have moved on since they were written, but no further than this.

    Args:
        store: the store.
        since: the instant before anything was written, in microseconds.
    """

    grace_ms: Final = 1_000

    def __init__(self, store: Store, since: int) -> None:
        self._ttls = {key.decode(): ttl for key, ttl in store.ttls().items()}
        self._passed = (store.now() - since) / 1_000

    def keys(self) -> set[str]:
        return set(self._ttls)

    def lasts(self, key: str, counts_ms: float) -> None:
        """A key lives as long as what it holds counts, and a grace longer at the most."""
        ttl = self._ttls.pop(key, 0)
        assert ttl <= counts_ms + self.grace_ms + 1, key
        assert ttl + self._passed >= counts_ms, key


def time_left(algorithm: str, at: int, window: int) -> float:
    """Milliseconds for which the state of a limit that was used up at `at` still counts."""
    if algorithm == "token_bucket":
        return window * 1_000
    windows = 2 if algorithm == "sliding_window" else 1
    return windows * window * 1_000 - at % (window * 1_000_000) / 1_000


@pytest.mark.parametrize("window", [1, 60, 86_400])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_c23_a_ttl_is_as_long_as_what_still_counts(
    store: Store, algorithm: Any, window: int
) -> None:
    """B54, C23, R14: by the server's clock: never shorter than what counts, and never longer by more than a second."""
    scope = Scope("a", Limits(also=[Limit("tokens", 10, window, algorithm)]))
    async with Limiter(store.measured()) as limiter:
        reservation = await limiter.pre_commit(scope, tokens=10)
        at = reservation._hold.at
        ends = Ends(store, at)
        ends.lasts("earmark:c:a", time_left(algorithm, at, window))
        ends.lasts(f"earmark:r:{reservation.request_id}", KEEP_US / 1_000)
        assert ends.keys() == set()
        assert await reservation.close_reserved_only()


@pytest.mark.parametrize("lease", [5, 60, 3_600])
async def test_c23_slots_live_as_long_as_the_last_lease(store: Store, lease: int) -> None:
    """C23, R10: also after a shorter one, and after a renewal; without any slot the key is gone."""
    scope = Scope("a", Limits(concurrency=3))
    async with Limiter(store.measured()) as limiter:
        long = await limiter.pre_commit(scope, lease=lease)
        short = await limiter.pre_commit(scope, lease=2)
        Ends(store, long._hold.at).lasts("earmark:s:a", lease * 1_000)
        before = store.now()
        assert await long.renew()
        Ends(store, before).lasts("earmark:s:a", lease * 1_000)
        assert await long.close_reserved_only()
        Ends(store, short._hold.at).lasts("earmark:s:a", 2_000)
        assert await short.close_reserved_only()
        assert store.ttls() == {}


async def test_r14_what_is_kept_for_late_duplicates_lasts_for_the_horizon(store: Store) -> None:
    """R9, R14: graves and marks: a minute; the id of an addition: an hour, like that of a reservation."""
    scope = Scope("a", Limits(tpd=1_000))
    before = store.now()
    async with Limiter(store.measured()) as limiter:
        reservation = await limiter.pre_commit(scope, tokens=5, request_id="q")
        assert await reservation.settle_success(3)
        await limiter.reset(scope)
        await limiter.add_tokens_post_stream("a", 5, request_id="p")
    ends = Ends(store, before)
    ends.lasts("earmark:o:1:ap", KEEP_US / 1_000)
    late = ends.keys() - {"earmark:c:a"}
    assert len(late) == 2
    for key in late:
        ends.lasts(key, 60_000)


async def test_r14_the_server_is_back_at_nothing(store: Store) -> None:
    """R14: once every window, lease, horizon and `keep` is over, whatever was done before."""
    clock = ManualClock(90.0)
    backend = store.measured(clock=clock)
    scopes = [Scope(f"k{n}", of_all_algorithms(5_000)) for n in range(4)]
    left = []
    async with Limiter(backend) as limiter:
        for n in range(60):
            reservation = await limiter.pre_commit(
                scopes[n % 4], tokens=3, request_id=f"q{n}" if n % 3 else None
            )
            if n % 5:
                await reservation.settle_success(n)
            else:
                left.append(reservation)
            await limiter.add_tokens_post_stream(f"k{n % 4}", 1, request_id=f"p{n}")
            if n % 10 == 0:
                await limiter.reset(scopes[n % 4])
        assert backend.size() > 100
        clock.advance(61)
        assert backend.size() < 100  # the graves are gone; what is open or was added is not
        clock.advance(2 * 86_400)
        assert backend.size() == 0
        for reservation in left:
            assert await reservation.settle_success(1) is False
