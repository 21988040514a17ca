"""`python -m earmark top`: the busiest scopes of a server or a cluster, at a bounded cost, and nothing is changed."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import MasterDownError, RedisClusterException
from rich.console import Console
from rich.table import Table

from earmark import BackendUnavailable, Limit, Limiter, Limits, RedisBackend, Scope
from earmark.commands import main, top
from earmark.commands.busiest import finding, live
from earmark.commands.busiest.live import table
from earmark.commands.busiest.showing import Row
from earmark.commands.busiest.watch import Watch
from earmark.policies import Policies
from tests.servers import RedisCluster, RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


OWN_DATABASE: Final = 13
FULL: Final = Scope("tenant:full", Limits(rpd=4, tpd=1_000, concurrency=2))
SHADOW: Final = Scope("team:sh{ad}ow:\n", Limits(tpd=100), enforce=False)
BUCKET: Final = Scope(
    "model:m", Limits(also=[Limit("images", 50, 86_400, "token_bucket", burst=200)])
)
SLIDING: Final = Scope("user:s", Limits(tpd=1_000, algorithm="sliding_window"))


@pytest.fixture
async def limiter(shared_redis: RedisServer, namespace: str) -> AsyncIterator[Limiter]:
    """On the server, in a namespace of its own."""
    backend = RedisBackend.from_url(shared_redis.url, namespace=namespace, timeout=20)
    async with Limiter(backend) as one:
        yield one


def watch_of(server: RedisServer, namespace: str, policies: Policies | None = None) -> Watch:
    """One that looks at the server."""
    limits_of = policies.scope_of if policies else lambda _: None
    return Watch(server.url, namespace=namespace, cluster=False, limits_of=limits_of)


async def look_at_all(watch: Watch) -> None:
    """Others may have left many keys on the server: they are looked at a piece at a time."""
    before = watch._finder.rounds
    while watch._finder.rounds == before:
        await watch.look()


async def seen(watch: Watch, *, complete: bool = True) -> list[tuple[str, ...]]:
    """Every row, once the whole of the server has been looked at."""
    if complete:
        await look_at_all(watch)
    else:
        await watch.look()
    rows = [row.cells() for row in await watch.rows()]
    await watch.aclose()
    return [(*cells[:5], cells[6]) for cells in rows]


async def test_open_reservations_say_what_limits_allow(
    shared_redis: RedisServer, namespace: str, limiter: Limiter
) -> None:
    """Who refuses, who would, the fullest; slots, every algorithm, limits that only count, awkward keys. All stays."""
    made = [
        await limiter.pre_commit(FULL, tokens=300),
        await limiter.pre_commit(FULL, SHADOW, tokens=150),
        await limiter.pre_commit(BUCKET, SLIDING, tokens=400, amounts={"images": 100}),
    ]
    with shared_redis.client() as look:
        before = {name: look.dump(name) for name in look.keys(f"{namespace}:[crs]:*")}
    found = await seen(watch_of(shared_redis, namespace))
    with shared_redis.client() as look:
        after = {name: look.dump(name) for name in look.keys(f"{namespace}:[crs]:*")}
    assert found == [
        ("tenant:full", "2 at once", "2", "2", "100.0 %", "refuses"),
        ("team:sh{ad}ow:�", "100 tokens per day", "150", "100", "150.0 %", "would refuse"),
        ("model:m", "50 images per day", "100", "200", "50.0 %", ""),
        ("tenant:full", "4 requests per day", "2", "4", "50.0 %", ""),
        ("tenant:full", "1,000 tokens per day", "450", "1,000", "45.0 %", ""),
        ("user:s", "1,000 tokens per day", "400", "1,000", "40.0 %", ""),
    ]
    assert before.keys() == after.keys()
    assert before == after
    for reservation in made:
        await reservation.cancel()


async def test_what_nobody_holds_is_known_from_policies(
    shared_redis: RedisServer, namespace: str, limiter: Limiter
) -> None:
    """Without an open reservation the server does not know what a limit allows; policies do, of every kind of key."""
    policies = Policies(
        {
            "default": {"limits": {"rpd": 2}},
            "tenants": [
                {
                    "key": "a:b",
                    "limits": {"tpd": 1_000},
                    "models": [{"match": "gpt*", "limits": {"otpm": 5}, "enforce": False}],
                }
            ],
            "scopes": [{"id": "team", "by": ["team", "model"], "limits": {"tpd": 500}}],
        }
    )
    for tenant in ("a:b", "nobody", "nobody"):
        scopes = policies.scopes(tenant=tenant, model="gpt-4", team="x")
        await (await limiter.pre_commit(*scopes, tokens=50)).close_reserved_only()
    assert sorted(await seen(watch_of(shared_redis, namespace))) == [
        ("team:x:gpt-4", "tokens per day", "150", "?", "?", ""),
        ("tenant:a:b", "tokens per day", "50", "?", "?", ""),
        ("tenant:nobody", "requests per day", "2", "?", "?", ""),
    ]
    assert await seen(watch_of(shared_redis, namespace, policies)) == [
        ("tenant:nobody", "2 requests per day", "2", "2", "100.0 %", "refuses"),
        ("team:x:gpt-4", "500 tokens per day", "150", "500", "30.0 %", ""),
        ("tenant:a:b", "1,000 tokens per day", "50", "1,000", "5.0 %", ""),
    ]


def test_policies_know_the_scope_of_a_key() -> None:
    """Every scope that a request can have is found by its key, and no other."""
    policies = Policies(
        {
            "default": {"limits": {"rpm": 2}, "models": [{"match": "a:b", "limits": {"rpm": 1}}]},
            "tenants": [{"key": "t", "limits": {"rpm": 3}, "models": [
                {"match": "m*", "limits": {"tpm": 1}}, {"match": "m", "limits": {"tpm": 2}},
            ]}],
            "scopes": [{"id": "team", "by": ["team", "model"], "limits": {"rpm": 9}}],
        }
    )  # fmt: skip
    for tenant in ("t", "t:u", "x%y"):
        for model in ("a:b", "m", "mm", None):
            for scope in policies.scopes(tenant=tenant, model=model, team="r:s"):
                assert policies.scope_of(scope.key) == scope
    for key in ("tenant:", "tenant", "rule:none:t", "user:x", ""):
        assert policies.scope_of(key) is None


async def test_what_is_over_is_left_out(
    shared_redis: RedisServer, namespace: str, limiter: Limiter
) -> None:
    """What has given everything back is seen no more, and what comes is seen with the next look."""
    watch = watch_of(shared_redis, namespace)
    made = await limiter.pre_commit(FULL, tokens=300)
    await look_at_all(watch)
    assert {row.scope.key for row in await watch.rows()} == {"tenant:full"}
    assert watch.said == "1 scope"
    await made.cancel()
    other = await limiter.pre_commit(SLIDING, tokens=300)
    assert await watch.rows() == []
    await look_at_all(watch)
    assert {row.scope.key for row in await watch.rows()} == {"user:s"}
    await other.cancel()
    await watch.aclose()


async def test_a_look_costs_so_much_and_no_more(
    shared_redis: RedisServer, namespace: str, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many keys there are: a piece each time, and so many scopes; that there are more is said."""
    monkeypatch.setattr(finding, "CALLS", 1)
    monkeypatch.setattr(finding, "KEYS_PER_CALL", 10)
    monkeypatch.setattr(finding, "MOST_SCOPES", 20)
    for number in range(60):
        scope = Scope(f"user:{number}", Limits(rpd=9))
        await (await limiter.pre_commit(scope)).close_reserved_only()
    watch = watch_of(shared_redis, namespace)
    with shared_redis.client() as look:
        look.config_resetstat()
        await watch.look()
        calls = look.info("commandstats")
    assert calls["cmdstat_scan"]["calls"] == 1
    gets = calls.get("cmdstat_get", {"calls": 0})  # none, where the piece had no record in it
    assert gets["calls"] <= 2 * 10 + finding.MOST_RECORDS
    assert re.search(r"scopes?, and there may be more$", watch.said)
    while not watch.is_complete:
        await watch.look()
    assert watch.said == "20 scopes are looked at, and there are more"
    assert len(await watch.rows()) == 20
    await watch.aclose()


async def test_what_is_found_a_piece_at_a_time_is_put_together(
    shared_redis: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts, slots and reservations of a scope come at different times, and make one scope."""
    monkeypatch.setattr(finding, "CALLS", 1)
    monkeypatch.setattr(finding, "KEYS_PER_CALL", 1)
    url = f"{shared_redis.url}/{OWN_DATABASE}"
    with shared_redis.client(db=OWN_DATABASE) as look:
        look.flushdb()
    async with Limiter(RedisBackend.from_url(url, namespace=namespace, timeout=20)) as limiter:
        scopes = [Scope(f"user:{number}", Limits(rpd=9, concurrency=2)) for number in range(9)]
        made = [await limiter.pre_commit(scope) for scope in scopes]
        watch = Watch(url, namespace=namespace, cluster=False, limits_of=lambda _: None)
        looks = 0
        while not watch.is_complete:
            await watch.look()
            looks += 1
        assert looks > 3
        assert {row.cells()[:5] for row in await watch.rows()} == {
            cells
            for scope in scopes
            for cells in (
                (scope.key, "9 requests per day", "1", "9", "11.1 %"),
                (scope.key, "2 at once", "1", "2", "50.0 %"),
            )
        }
        await watch.aclose()
        for reservation in made:
            await reservation.cancel()


async def test_what_others_keep_there_is_left_alone(
    shared_redis: RedisServer, namespace: str, limiter: Limiter
) -> None:
    """Keys of other namespaces, and what no release of this format has written, disturb nobody."""
    with shared_redis.client() as look:
        for name, value in (
            (f"{namespace}x:c:a", '[1,"f60:r",0,5]'),
            (f"{namespace}:c2:b", '[1,"f60:r",0,5]'),
            (f"{namespace}:c:c", "no JSON"),
            (f"{namespace}:c:d", json.dumps([1, {"f60:r": [0, 5]}, "z", 1])),
            (f"{namespace}:r:e", "17 winner"),
            (f"{namespace}:r:f", "1 2\n[nothing]"),
        ):
            look.set(name, value, ex=60)
        for letter in "crs":
            look.lpush(f"{namespace}:{letter}:list", "1")
    made = await limiter.pre_commit(SLIDING, tokens=1)
    found = await seen(watch_of(shared_redis, namespace))
    assert [cells[0] for cells in found] == ["user:s"]
    await made.cancel()


async def test_a_cluster_is_looked_at_whole(
    shared_cluster: RedisCluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B53: every master is scanned to its end, whichever has the most, and a scope is counted wherever its slot is."""
    monkeypatch.setattr(finding, "CALLS", 1)
    monkeypatch.setattr(finding, "KEYS_PER_CALL", 10)
    for master, most in zip(shared_cluster.masters, (0, 40, 90), strict=True):
        others = (f"{namespace}-other:{number}" for number in range(1_000))
        here = (name for name in others if shared_cluster.owner(key_slot(name.encode())) is master)
        with master.client() as look:
            for name in itertools.islice(here, most):
                look.set(name, "", ex=60)
    url = shared_cluster.url
    backend = RedisBackend.from_url(url, cluster=True, namespace=namespace, timeout=20)
    async with Limiter(backend) as limiter:
        scopes = [Scope(f"user:{number}", Limits(rpd=9, concurrency=1)) for number in range(12)]
        made = [await limiter.pre_commit(scope) for scope in scopes]
        watch = Watch(url, namespace=namespace, cluster=True, limits_of=lambda _: None)
        found = await seen(watch)
        assert sorted(cells[0] for cells in found if cells[1] == "1 at once") == sorted(
            scope.key for scope in scopes
        )
        assert {cells[1:] for cells in found} == {
            ("1 at once", "1", "1", "100.0 %", "refuses"),
            ("9 requests per day", "1", "9", "11.1 %", ""),
        }
        for reservation in made:
            await reservation.cancel()


async def test_the_live_table_draws_every_row(
    shared_redis: RedisServer, namespace: str, limiter: Limiter
) -> None:
    """What a terminal shows has the same cells, and a bar; a key cannot give orders to it."""
    scope = Scope("user:[red]x[/red]\x1b[2J", Limits(rpd=1))
    made = await limiter.pre_commit(scope)
    watch = watch_of(shared_redis, namespace)
    await look_at_all(watch)
    out = StringIO()
    Console(file=out, width=140, force_terminal=True).print(table(await watch.rows(), watch.said))
    text = out.getvalue()
    assert "user:[red]x[/red]�[2J" in text
    assert "\x1b[2J" not in text
    assert "1 requests per day" in text
    assert "refuses" in text
    assert "━" * 20 in text
    await watch.aclose()
    await made.cancel()


async def test_it_prints_once(
    shared_redis: RedisServer, namespace: str, limiter: Limiter, tmp_path: Path
) -> None:
    """The command as a script calls it, in a process of its own, without a terminal."""
    made = await limiter.pre_commit(FULL, tokens=300)
    policies = tmp_path / "p.json"
    policies.write_text('{"default": {"limits": {"rpd": 1, "tpd": 600}}}', encoding="utf-8")
    words = ["top", "--redis", shared_redis.url, "--namespace", namespace, "--once", "--lines", "2"]
    command = [sys.executable, "-W", "error", "-m", "earmark", *words, "--policies", str(policies)]
    done = await anyio.run_process(command, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    said, empty, heads, *rows = done.stdout.decode().splitlines()
    assert (said, empty) == ("1 scope", "")
    assert heads.split() == ["scope", "limit", "used", "of", "full", "resets", "in"]
    assert [row.split()[:9] for row in rows] == [
        ["tenant:full", "1", "requests", "per", "day", "1", "1", "100.0", "%"],
        ["tenant:full", "600", "tokens", "per", "day", "300", "600", "50.0", "%"],
    ]
    await made.cancel()


async def test_it_runs_on_a_terminal_until_it_is_interrupted(
    shared_redis: RedisServer, namespace: str, limiter: Limiter
) -> None:
    """The live view, on a terminal of its own: drawn, drawn anew with what has come since, and left by Ctrl-C."""
    made = [await limiter.pre_commit(FULL, tokens=300)]
    words = ["top", "--redis", shared_redis.url, "--namespace", namespace, "--every", "0.1"]
    command = [sys.executable, "-W", "error", "-m", "earmark", *words]
    screen, terminal = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
    with subprocess.Popen(  # noqa: ASYNC220 - it is started, and runs beside
        command, stdin=terminal, stdout=terminal, stderr=subprocess.PIPE, env=environment
    ) as process:
        os.close(terminal)
        try:
            with anyio.fail_after(60):
                await drawn(screen, b"tenant:full")
                made.append(await limiter.pre_commit(SLIDING, tokens=300))
                await drawn(screen, b"user:s")
                process.send_signal(signal.SIGINT)
                await anyio.to_thread.run_sync(drained, screen, abandon_on_cancel=True)
                _, errors = await anyio.to_thread.run_sync(
                    process.communicate, abandon_on_cancel=True
                )
        finally:
            process.kill()
            os.close(screen)
    assert (process.returncode, errors) == (0, b"")
    for reservation in made:
        await reservation.cancel()


async def test_the_live_view_outlives_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was seen last stays, with what is wrong, until the server answers again; another error ends the view."""

    class Server:
        """What a watch finds, a look after the other."""

        said = "1 scope"

        def __init__(self, *looks: BaseException | None) -> None:
            self.looks = list(looks)

        async def look(self) -> None:
            error = self.looks.pop(0)
            if error is not None:
                raise error

        async def rows(self) -> list[Row]:
            return []

    shown: list[str] = []

    def told(rows: list[Row], said: str) -> Table:
        shown.append(said)
        return table(rows, said)

    monkeypatch.setattr(live, "table", told)
    for outage in (
        BackendUnavailable("gone"),
        redis.ConnectionError("gone"),
        redis.TimeoutError("gone"),
        MasterDownError("gone"),  # of SCAN, while another master is made
        RedisClusterException("gone"),
    ):
        server: Any = Server(None, outage, None, ValueError("the end"))
        with pytest.raises(ValueError, match="the end"):
            await top._live(0)(server, 5)
        assert server.looks == []
        assert shown == ["1 scope", "as it was: gone", "1 scope"]
        shown.clear()
    denied: Any = Server(None, redis.ResponseError("NOPERM"))
    with pytest.raises(redis.ResponseError):
        await top._live(0)(denied, 5)
    server = Server(BackendUnavailable("not there"))
    with pytest.raises(BackendUnavailable):
        await top._live(0)(server, 5)


async def drawn(screen: int, what: bytes) -> None:
    """Wait until a terminal shows it."""
    seen = b""
    while what not in seen:
        seen += await anyio.to_thread.run_sync(os.read, screen, 65_536, abandon_on_cancel=True)


def drained(screen: int) -> None:
    """Read what a terminal has left, until nobody writes to it any more."""
    with suppress(OSError):
        while os.read(screen, 65_536):
            pass


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--redis", "redis://user:secret@127.0.0.1:1", "--once"], "127.0.0.1:1"),
        (["--redis", "redis://user:secret@127.0.0.1:1", "--once", "--cluster"], "127.0.0.1:1"),
        (["--redis", "http://nowhere", "--once"], "URL"),
        (["--redis", "redis://127.0.0.1:1", "--once", "--namespace", "a:b"], "namespace"),
        (["--redis", "redis://127.0.0.1:1", "--once", "--policies", "none.yaml"], "no such file"),
    ],
)
def test_what_cannot_be_done_is_told(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that is not there, what is no URL, no namespace, no file: a line, and 1; never a password."""
    assert main(["top", *words]) == 1
    output: Any = capsys.readouterr()
    assert output.out == ""
    assert said in output.err
    assert "secret" not in output.err


@pytest.mark.parametrize(
    "words",
    [
        ["--every", "0"],
        ["--every", "nan"],
        ["--every", "soon"],
        ["--every", "9999"],
        ["--lines", "0"],
        ["--lines", "-1"],
        ["--lines", "all"],
    ],
    ids=" ".join,
)
def test_wrong_words_exit_with_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments are explained."""
    with pytest.raises(SystemExit) as caught:
        main(["top", "--redis", "redis://127.0.0.1:1", *words])
    assert caught.value.code == 2
    assert f"not {words[1]!r}" in capsys.readouterr().err


def test_without_rich_there_is_no_live_view(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The extra is named, and what works without it."""
    monkeypatch.setitem(sys.modules, "rich.live", None)
    assert main(["top", "--redis", "redis://127.0.0.1:1"]) == 1
    assert 'pip install "earmark[cli]", or take --once' in capsys.readouterr().err
