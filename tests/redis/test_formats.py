"""Formats of what is kept: releases of two of them share a server during an upgrade, and read nothing of each other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import pytest

from earmark import Limit, Limiter, Limits, RateLimited, RedisBackend, Scope
from earmark.backends.redis import keys
from earmark.testing import ManualClock
from tests.servers import RedisServer
from tests.stores import Store, real

pytestmark = pytest.mark.anyio

BUCKET: Final = Limit("images", 9, 60, "token_bucket")
SLIDING: Final = Limit("images", 9, 60, "sliding_window")
SCOPE: Final = Scope("a", Limits(rpm=3, concurrency=3, also=[BUCKET, SLIDING]))
AMOUNTS: Final = {"images": 2}

# What format 1 writes, the names of messages aside. Where this changes, and the last release could not read it, or this
# one what that has written, keys.FORMAT has to change with it.
WRITTEN: Final[dict[str, dict[str, Any]]] = {
    "": {
        "ns:c:a": [
            [1_000_000_000],
            ["b60:=images", 3, 1_000_000_000, 9],
            ["f3600:t", 0, 5],
            ["f60:r", 16, 2],
            ["f60:t", 16, 5],
            ["f86400:t", 0, 5],
            ["s60:=images", 16, 3, 0],
        ],
        "ns:c:b": [[1_000_000_000, {"b60:=images": [1_000_000_000, 8_200_000_000]}]],
        "ns:s:a": [(b"ID", 1_060_000_000.0)],
        "ns:r:=open": (
            "1000000000 0 0 0 0 0 0 0\n"
            '[60,{"t":0,"=images":2},["a","f60:r",3,"c",3,"b60:=images",9,"s60:=images",9]]\n'
            "ID 0 1000000000"
        ),
        "ns:r:ID": "1120000000 ID",
        "ns:o:1:adone": "4600000000 ID",
        "ns:o:ID": "",
    }
}
_ID: Final = re.compile(r"[\w-]{11}\.\d+")


def _by_limit(counts: list[Any]) -> list[list[Any]]:
    """What stands in front, and each limit's name with its numbers."""
    names = [at for at, one in enumerate(counts) if isinstance(one, str)]
    parts = [counts[at:end] for at, end in pairwise([*names, len(counts)])]
    return [counts[: names[0] if names else None], *sorted(parts)]


def plain(found: object) -> object:
    """What is under a key, without the names of messages, and in no order where there is none."""
    if isinstance(found, bytes):
        text = _ID.sub("ID", found.decode())
        return _by_limit(json.loads(text)) if text.startswith("[") else text
    assert isinstance(found, list)
    return [(_ID.sub("ID", member.decode()).encode(), end) for member, end in found]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture
def store(shared_redis: RedisServer) -> Iterator[Store]:
    """A database with nothing in it."""
    store = real(shared_redis, db=9)
    store.look.flushdb()  # others may have left something
    yield store
    store.look.flushdb()


def limiter_of(store: Store, namespace: str = "ns") -> Limiter:
    """A limiter of the format that keys are in now."""
    backend = RedisBackend(
        store.client, namespace=namespace, clock=ManualClock(1_000), timeout=30, on_outage="closed"
    )
    return Limiter(backend)


async def test_what_is_written_is_what_this_format_says(store: Store) -> None:
    """A record that is written otherwise than the last release wrote it has another format."""
    async with limiter_of(store) as limiter:
        held = await limiter.pre_commit(SCOPE, amounts=AMOUNTS, request_id="open")
        over = await limiter.pre_commit(SCOPE, amounts=AMOUNTS, request_id="over")
        assert await over.settle_success({"images": 1}) is True
        assert await held.renew() is True
        await limiter.add_tokens_post_stream("a", 5, request_id="done")
        await limiter.reset(Scope("b", Limits(also=[BUCKET])))
        found = {
            _ID.sub("ID", key.decode()): plain(value) for key, value in store.contents().items()
        }
        assert found == WRITTEN[keys.FORMAT]
        assert await held.cancel() is True


async def test_two_formats_read_nothing_of_each_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each admits what its limits say, under the same names; neither meets what the other wrote; all end."""
    async with limiter_of(store) as former:
        monkeypatch.setattr(keys, "FORMAT", "2")
        async with limiter_of(store) as latter:
            for limiter in (former, latter, former, latter):
                held = await limiter.pre_commit(SCOPE, amounts=AMOUNTS, request_id="mine")
                assert await held.renew() is True
                assert await limiter.pre_commit(SCOPE, amounts=AMOUNTS, request_id="mine") is held
                assert await held.settle_success({"images": 3}) is True
            for limiter in (former, latter):
                nameless = await limiter.pre_commit(SCOPE, amounts=AMOUNTS)
                assert await nameless.renew() is True
                assert await nameless.close_reserved_only() is True
                with pytest.raises(RateLimited):
                    await limiter.pre_commit(SCOPE, amounts=AMOUNTS)
                await limiter.add_tokens_post_stream("a", 5, request_id="mine")
    kinds = {key.decode().split(":")[1] for key in store.ttls()}
    assert kinds >= {"c", "c2", "r", "r2", "o", "o2"}
    assert all(ttl > 0 for ttl in store.ttls().values())


def test_r13_no_two_names_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """R13: whatever stands in a scope's key, and whatever the namespace, the format is where nothing else can be."""
    names: list[str] = []
    for number in ("", "2", "22"):
        monkeypatch.setattr(keys, "FORMAT", number)
        for namespace, tag in (("ns", ""), ("ns2", ""), ("ns", "2")):
            one = keys.Keys(namespace, tag)
            names.append(one.replicas)
            for key in ("a", "2:a", ":a", "2"):
                names += [one.counts(key), one.slots(key), one.record(key), one.once(key)]
                names += [one.named(key), one.named(f"={key}"), one.added(key, "a")]
    assert len(names) == len(set(names))
