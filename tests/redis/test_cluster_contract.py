"""The contract that every backend passes, on a cluster: the tables of the memory backend, whose keys are on any slot.

A request over several of them is several messages. What is said otherwise there is left out by name, with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests import rows
from tests.cluster import store as store_of
from tests.redis import test_contract
from tests.servers import RedisCluster
from tests.stores import Store
from tests.test_once import world

__all__ = ["world"]

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("tables_on_cluster")]

_FIRST_NODE = "over several slots a refusal lists the limits of the first node that refused"
_NAMELESS: Final = "a reservation without a name of its caller's is on the slot of its first scope, where no name leads"

LEFT_OUT: Final = {
    "test_b20_the_whole_waits_for_the_slowest": _FIRST_NODE,
    "test_b42_both_refuse": _FIRST_NODE,
    "test_r3_every_limit_that_refused_in_the_order_of_scopes_and_limits": _FIRST_NODE,
    "test_r3_what_can_never_fit_outweighs_every_time": _FIRST_NODE,
    "test_c14_a_cancelled_pre_commit_gives_back_what_it_took_and_no_more": (
        "the name of what is taken back goes first, and nobody waits for the rest"
    ),
    "test_r14_what_is_resolved_leaves_no_id": (
        "that a name is over is kept for an hour, for as long as the other slots may be owed an answer"
    ),
    "test_r9_the_librarys_own_id_can_be_asked_again": _NAMELESS,
    "test_r9_an_id_of_the_librarys_is_meant_before_a_name_that_reads_the_same": _NAMELESS,
}

_TESTS: Final = {
    name: test
    for name, test in test_contract._TESTS.items()
    if name not in test_contract.OF_MEMORY_ALONE
}
globals().update({name: test for name, test in _TESTS.items() if name not in LEFT_OUT})


def test_what_is_left_out_is_there() -> None:
    """A reason for a test that has another name by now is none."""
    assert LEFT_OUT.keys() < _TESTS.keys()


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture
def store(shared_cluster: RedisCluster) -> Iterator[Store]:
    """A cluster with nothing in it."""
    store = store_of(shared_cluster)
    yield store
    store.look.flushdb()


@pytest.fixture
def tables_on_cluster(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are played on this cluster."""

    def make(**options: Any) -> Any:
        store.look.flushdb()  # each table starts from nothing
        return store.measured(**options)

    monkeypatch.setattr(rows.Stores, "make", make)
