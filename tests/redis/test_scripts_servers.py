"""C68: each script on every server that is supported, on the stand-in for one, and on a newer Lua: the same answers.

What a script does is told by a story in which every command of every script is used.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final

import fakeredis
import pytest
import redis

from earmark import BackendUnavailable, Limiter, Limits, MemoryBackend, RedisBackend, Scope
from earmark.backends.redis import scripts
from earmark.testing import ManualClock
from tests.luacheck import tokens
from tests.redis.wire import until
from tests.servers import RedisServer, redis_server
from tests.story import START, tell, told_by_a_double
from tests.versions import VERSIONS, program_of

ROOT: Final = Path(__file__).parent.parent.parent
NAMESPACE: Final = "story"

USED: Final = {
    words[at + 2].strip("'")
    for file in Path(str(resources.files(scripts))).glob("*.lua")
    for words in [tokens(file.read_text("utf-8"))]
    for at, word in enumerate(words)
    if word == "call" and words[at + 1] == "("
}


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server of each version."""
    with redis_server(program=program_of(request.param)) as started:
        yield started


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


def version(server: RedisServer) -> tuple[int, ...]:
    """What the server says it is."""
    with server.client() as client:
        return tuple(map(int, client.info("server")["redis_version"].split(".")))


def backend_of(server: RedisServer, clock: ManualClock) -> RedisBackend:
    return RedisBackend.from_url(
        server.url, namespace=NAMESPACE, clock=clock, timeout=10, on_outage="closed"
    )


def commands_of(client: redis.Redis, monitor: Any) -> Iterator[dict[str, Any]]:
    """What the server has done since it is watched."""
    client.echo("that is all")
    while (seen := monitor.next_command())["command"] != "ECHO that is all":
        yield seen


@pytest.mark.anyio
async def test_c68_scripts_touch_no_key_that_is_not_in_keys(server: RedisServer) -> None:
    """As the server itself sees it, for every command of every script."""
    clock = ManualClock(START)
    declared: set[str] = set()
    used: set[str] = set()
    with server.client(decode_responses=True) as client, client.monitor() as monitor:
        client.flushall()
        client.script_flush()
        await tell(backend_of(server, clock), clock)
        for seen in commands_of(client, monitor):
            words = seen["command"].split(" ")
            if words[0].upper() in {"EVALSHA", "EVAL"}:
                declared = set(words[3 : 3 + int(words[2])])
            elif seen["client_type"] == "lua":
                used.add(words[0].upper())
                assert words[1] in declared, words
    assert used == USED - {"TIME"}, "the story leaves some out"


@pytest.mark.anyio
async def test_c68_every_server_answers_alike(server: RedisServer) -> None:
    """The same story on a server, on its stand-in and in memory: every status, refusal and settlement is equal."""
    clock = ManualClock(START)
    with server.client() as client:
        client.flushall()
        client.script_flush()
        on_server = await tell(backend_of(server, clock), clock)
        immortal = [key for key in client.scan_iter() if client.ttl(key) < 0]
    assert immortal == []
    clock = ManualClock(START)
    assert on_server == await tell(MemoryBackend(clock=clock), clock)
    assert on_server == await told_by_a_double()


@pytest.mark.anyio
async def test_a_full_server_takes_nothing_and_gives_back(server: RedisServer) -> None:
    """Its memory is at the limit: a reserve changes nothing, with slots or without, and a settlement gets through."""
    slots = Scope("slots", Limits(tph=1_000, concurrency=5))
    plain = Scope("plain", Limits(tph=1_000))
    with server.client() as client:
        client.flushall()
        async with Limiter(backend_of(server, ManualClock(START))) as limiter:
            held = [await limiter.pre_commit(plain, slots, tokens=100) for _ in range(2)]
            client.config_set("maxmemory", 1)
            try:
                assert await held[0].settle_success(70)
                for scopes in ((slots,), (plain,), (plain, slots)):
                    with pytest.raises(BackendUnavailable, match="OOM"):
                        await limiter.pre_commit(*scopes, tokens=1)
                assert client.zcard(f"{NAMESPACE}:s:slots") == 1
            finally:
                client.config_set("maxmemory", 0)
            assert await held[1].cancel()
            await until(lambda: limiter.health().available)
            one, two = await limiter.peek(plain, slots)
            assert (one["tokens"].used, two["tokens"].used) == (70, 70)
            assert two["concurrency"].used == 0


@pytest.mark.parametrize("lua", ["5.2", "5.3", "5.4"])
def test_c68_every_lua_answers_alike(lua: str) -> None:
    """A stand-in runs whatever Lua it is told to, with integers or without: all tell the same story."""
    lines = [
        subprocess.run(
            [sys.executable, "-W", "error", "-m", "tests.story"],
            cwd=ROOT,
            env={**os.environ, "FAKEREDIS_LUA_VERSION": one},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout.splitlines()
        for one in ("5.1", lua)
    ]
    assert len(lines[0]) > 30
    assert lines[0] == lines[1]


@pytest.mark.parametrize("verb", [*scripts.FREES, *scripts.TAKES])
def test_each_script_is_known_by_the_name_that_is_asked_for(server: RedisServer, verb: str) -> None:
    """The server's name for a script is the one that the client computes; asked nothing, it answers nothing."""
    header = ("5", "1000", "1000", "1000")
    knows_flags = version(server) >= (7,)
    with server.client() as client, fakeredis.FakeRedis() as double:
        for one, flags in ((client, knows_flags), (double, False)):
            script = scripts.scripts(allow_oom=flags)[verb]
            one.script_flush()
            told: Any = one.script_load(script.text)
            assert told in {script.sha, script.sha.encode()}
            assert one.script_exists(script.sha) == [True]
            assert one.evalsha(script.sha, 0, *header) == b""


def test_a_script_with_flags_is_for_servers_that_know_them(server: RedisServer) -> None:
    """6.2 takes the line with the flags for Lua, and refuses it; from 7.0 on it is there, and a 6.2 is given none."""
    known = scripts.scripts(allow_oom=True)
    assert {verb: known[verb].text[:2] for verb in known} == (
        dict.fromkeys(scripts.FREES, "#!") | dict.fromkeys(scripts.TAKES, "--")
    )
    free = known["resolve"]
    with server.client() as client:
        if version(server) >= (7,):
            assert client.script_load(free.text)
        else:
            with pytest.raises(redis.ResponseError, match="unexpected symbol near '#'"):
                client.script_load(free.text)
