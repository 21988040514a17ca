"""Identity: one request_id is one reservation while it is open, and a handle names its own (R9, C8)."""

from __future__ import annotations

import copy
import gc
from functools import partial
from typing import Any

import anyio
import pytest

from earmark import (
    Limiter,
    RequestIdConflict,
)
from earmark.testing.contract.identity import WIDE
from tests.doubles import Stalling, reachable_bytes
from tests.rows import (
    C,
    Empty,
    R,
    S,
    Table,
    key,
    quiet,
    used,
)

pytestmark = pytest.mark.anyio


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


async def test_r9_an_id_of_the_librarys_is_meant_before_a_name_that_reads_the_same() -> None:
    """R9: somebody has chosen the next ids: who is given them is found by them, and the others when that is over."""
    own, theirs = key("own", rpm=60), key("theirs", rpm=60)
    async with Table() as table:
        await table.play(R("first", own))
        nonce, _, number = table.handles["first"].request_id.partition(".")
        names = [f"{nonce}.{int(number) + ahead}" for ahead in range(8, 16)]
        chosen = {name: await table.limiter.pre_commit(theirs, request_id=name) for name in names}
        plain = [await table.limiter.pre_commit(own) for _ in range(16)]
        twins = [one for one in plain if one.request_id in names]
        assert len(twins) >= 4, "none of the names that were chosen has come"
        for one in twins:
            name = one.request_id
            assert await table.limiter.pre_commit(own, request_id=name) is one
            with pytest.raises(RequestIdConflict):
                await table.limiter.pre_commit(theirs, request_id=name)
            assert await one.cancel() is True
            assert await table.limiter.pre_commit(theirs, request_id=name) is chosen[name]
        for handle in (*plain, *chosen.values()):
            assert await handle.cancel() is (handle not in twins)
        await table.play(used("own.rpm", 1, scope=own), used("theirs.rpm", 0, scope=theirs))


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
