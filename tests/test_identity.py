"""Identity: one request_id is one reservation while it is open, and a handle names its own (R9, C8)."""

from __future__ import annotations

import copy
import gc
from functools import partial
from typing import Any

import anyio
import pytest

from earmark import (
    Limit,
    Limiter,
    Limits,
    RequestIdConflict,
    Scope,
    Usage,
)
from tests.doubles import Stalling, reachable_bytes
from tests.rows import (
    VERBS,
    C,
    Empty,
    Gone,
    R,
    S,
    Table,
    key,
    play,
    quiet,
    resolve,
    used,
)

pytestmark = pytest.mark.anyio

WIDE = key(rpm=60, tpm=100, concurrency=1)


@pytest.mark.parametrize("resolver", VERBS)
async def test_r9_an_id_is_one_reservation_while_it_is_open(resolver: str) -> None:
    """R9: asked again it is the same object and debits nothing; resolved, the id is free."""
    async with Table() as table:
        await table.play(R("r1", WIDE, tok=40, request_id="q"))
        first = table.handles["r1"]
        for at in (1, 30, 61, 200):
            table.clock.set(at)
            assert await table.limiter.pre_commit(WIDE, tokens=40, request_id="q") is first
        assert table.kinds() == ["admitted"]
        await table.play(used("key.tpm", 0), used("key.rpm", 0))
        assert await resolve(first, resolver)
        await table.play(R("r2", WIDE, tok=40, request_id="q"), used("key.tpm", 40))
        assert table.handles["r2"] is not first
        assert table.handles["r2"].request_id == "q"


async def test_r9_the_librarys_own_id_can_be_asked_again() -> None:
    """R9: an id that the library chose names its reservation as well."""
    async with Table() as table:
        await table.play(R("r1", WIDE, tok=40))
        first = table.handles["r1"]
        again = await table.limiter.pre_commit(WIDE, tokens=40, request_id=first.request_id)
        assert again is first
        await table.play(used("key.tpm", 40))


async def test_r9_keys_and_asks_are_compared_without_order_and_without_limits() -> None:
    """R9: other orders and other amounts of the limits are the same request."""
    a, b = key("a", tpm=100), Scope("b", Limits(also=(Limit("x", 9, 10), Limit("y", 9, 10))))
    wider = key("a", tpm=500, rpm=5)
    async with Table() as table:
        await table.play(R("r1", a, b, tok=40, amounts={"x": 1, "y": 2}, request_id="q"))
        for scopes, amounts in (((b, a), {"y": 2, "x": 1}), ((b, wider), {"x": 1, "y": 2})):
            again = await table.limiter.pre_commit(
                *scopes, tokens=40, amounts=amounts, request_id="q"
            )
            assert again is table.handles["r1"]


A_SCOPE, B_SCOPE = key("a", tpm=100, rpm=9), key("b", tpm=100)


@pytest.mark.parametrize(
    ("scopes", "asks"),
    [
        ((A_SCOPE,), {"tokens": 40}),
        ((A_SCOPE, B_SCOPE, WIDE), {"tokens": 40}),
        ((A_SCOPE, key("c", tpm=100)), {"tokens": 40}),
        ((A_SCOPE, B_SCOPE), {"tokens": 41}),
        ((A_SCOPE, B_SCOPE), {}),
        ((A_SCOPE, B_SCOPE), {"tokens": 40, "amounts": {"images": 1}}),
        ((A_SCOPE, B_SCOPE), {"tokens": 40, "amounts": {"requests": 2}}),
        ((A_SCOPE, B_SCOPE), {"tokens": Usage(20, 20)}),
    ],
)
async def test_r9_an_open_id_with_other_keys_or_asks(scopes: tuple[Scope, ...], asks: Any) -> None:
    """R9: RequestIdConflict, which names the id; nothing is debited, and the reservation is as it was."""
    async with Table() as table:
        await table.play(R("r1", A_SCOPE, B_SCOPE, tok=40, request_id="q"))
        with pytest.raises(RequestIdConflict, match="q") as caught:
            await table.limiter.pre_commit(*scopes, request_id="q", **asks)
        assert caught.value.request_id == "q"
        assert table.handles["r1"].state == "open"
        await table.play(
            used("a.tpm", 40), used("b.tpm", 40), used("a.rpm", 1), S("r1", 5), used("b.tpm", 5)
        )


async def test_r9_an_old_handle_never_hits_the_ids_new_owner() -> None:
    """R9: handles name the reservation itself, not its request_id."""
    async with Table() as table:
        await table.play(R("r1", WIDE, tok=40, request_id="q"), S("r1", 10))
        await table.play(R("r2", WIDE, tok=40, request_id="q"))
        for verb in VERBS:
            assert await resolve(table.handles["r1"], verb) is False
        assert await table.handles["r1"].renew() is False
        assert (table.handles["r1"].state, table.handles["r2"].state) == ("settled", "open")
        await table.play(used("key.tpm", 50), used("key.conc", 1), S("r2", 5), used("key.tpm", 15))


async def test_r9_dropping_an_old_handle_leaves_the_ids_new_owner_alone() -> None:
    """R9, R15: a dropped handle abandons its own reservation, not the one that has the id now."""
    async with Table() as table:
        await table.play(
            R("r1", WIDE, tok=40, request_id="q"),
            Gone("r1"),
            R("r2", WIDE, tok=40, request_id="q"),
            used("key.tpm", 80),
            used("key.conc", 1),
        )
        assert table.handles["r2"].state == "open"
        assert sorted(table.kinds()) == ["abandoned", "admitted", "admitted"]
        await table.play(S("r2", 0), used("key.tpm", 40))


async def test_r9_a_refused_id_may_be_asked_again() -> None:
    """R9: only `once` remembers a refusal: the same id is judged afresh."""
    await play(
        R("r1", WIDE, tok=90),
        R("r2", WIDE, tok=40, request_id="q", deny="key.tpm key.conc"),
        R("r2", WIDE, tok=40, request_id="q", deny="key.tpm key.conc"),
        S("r1", 50),
        R("r2", WIDE, tok=40, request_id="q"),
    )


async def test_r9_ids_work_without_limits() -> None:
    """R9: a scope that limits nothing has reservations with ids all the same."""
    free, other = key("free"), key("other")
    async with Table() as table:
        await table.play(R("r1", free, tok=40, request_id="q"))
        first = table.handles["r1"]
        assert await table.limiter.pre_commit(free, tokens=40, request_id="q") is first
        with pytest.raises(RequestIdConflict):
            await table.limiter.pre_commit(other, tokens=40, request_id="q")
        assert await first.close_reserved_only() is True
        assert await first.close_reserved_only() is False
        await table.play(R("r2", other, request_id="q"))


async def test_r9_an_open_id_is_open_whatever_its_scopes_limit() -> None:
    """R9: limits are no part of the comparison: taken away while the request runs, it is still this one."""
    limited, free = key("a", rpm=5, tpm=100), key("a")
    async with Table() as table:
        await table.play(R("r1", limited, tok=40, request_id="q"))
        table.handles["r1 again"] = await table.limiter.pre_commit(free, tokens=40, request_id="q")
        assert table.handles["r1 again"] is table.handles["r1"]
        await table.play(R("r2", free, tok=40, request_id="p"))
        table.handles["r2 again"] = await table.limiter.pre_commit(
            limited, tokens=40, request_id="p"
        )
        assert table.handles["r2 again"] is table.handles["r2"]
        await table.play(used("a.tpm", 40, scope=limited))
        with pytest.raises(RequestIdConflict):
            table.handles["r3"] = await table.limiter.pre_commit(
                key("b"), tokens=40, request_id="q"
            )


async def test_r9_two_limiters_on_one_backend_share_ids() -> None:
    """R9: within a process it is the same object, whichever limiter is asked."""
    async with Table() as table:
        other = Limiter(table.backend)
        await table.play(R("r1", WIDE, tok=40, request_id="q"))
        table.handles["again"] = await other.pre_commit(WIDE, tokens=40, request_id="q")
        assert table.handles["again"] is table.handles["r1"]
        await table.play(C("again"), C("r1", won=False))


@pytest.mark.parametrize("bad", ["", "\ud800", 5, b"q"], ids=ascii)
async def test_r9_a_bad_id_is_an_error(bad: Any) -> None:
    """An empty or unencodable id, or one that is no string: nothing is debited."""
    async with Table() as table:
        with pytest.raises((ValueError, TypeError), match="request_id"):
            await table.limiter.pre_commit(WIDE, request_id=bad)
        await table.play(Empty())


async def test_r9_an_owed_cancel_spares_what_was_adopted() -> None:
    """R9: the first caller went away before the reply came; the second was answered with the reservation."""
    scope = key(tpm=100, concurrency=1)
    async with Table() as table:
        backend: Any = Stalling(table.backend, "after")
        gone = Limiter(backend)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(gone.pre_commit, scope, tokens=30, request_id="q"))
            await backend.stalled.wait()
            table.handles["q"] = await table.limiter.pre_commit(scope, tokens=30, request_id="q")
            tasks.cancel_scope.cancel()
        await table.play(used("key.tpm", 30, scope=scope), used("key.conc", 1))
        assert table.handles["q"].state == "open"
        await table.play(S("q", 20), used("key.tpm", 20), used("key.conc", 0))


async def test_r9_a_thousand_ids_leave_nothing() -> None:
    """R9, R14: a resolved id is forgotten with its reservation."""
    one = key(concurrency=1)
    async with Table() as table:
        await table.play(R("r", one, request_id="first"), C("r"))
        held = reachable_bytes(table.backend)
        for n in range(1_000):
            await table.play(R("r", one, request_id=f"q{n}"), C("r"))
            table.events.clear()
        await table.play(Empty())
        assert reachable_bytes(table.backend) - held < 1_000


# What a copy of the handle is


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
async def test_c08_dropping_a_copy_abandons_nothing(copied: Any) -> None:
    """C8: a copy of the handle is the handle: while one of them lives, the reservation is open."""
    async with Table() as table:
        await table.play(R("r1", WIDE, tok=40))
        with quiet():
            twin = copied(table.handles["r1"])
            assert (twin.request_id, twin.state) == (table.handles["r1"].request_id, "open")
            del twin
        await table.play(used("key.conc", 1), S("r1", 25), used("key.tpm", 25))


async def test_c08_a_copy_keeps_the_reservation_open_when_the_original_is_dropped() -> None:
    """C8: what the gateway kept is as good as what it was given."""
    async with Table() as table:
        await table.play(R("r1", WIDE, tok=40))
        kept = copy.copy(table.handles.pop("r1"))
        gc.collect()
        await table.play(used("key.conc", 1))
        assert await kept.settle_success(25) is True
        await table.play(used("key.tpm", 25))
