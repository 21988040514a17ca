"""What all tests share: both event loops, the profile of the random tests, the recordings, the closing report.

Every async test runs on asyncio and on trio, since a library that promises both is wrong on the one that nobody
ran. Recorded provider streams are no part of the project: tests that want them say so by the `recordings` fixture.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from tests import ledgers, reached
from tests.postgres import PostgresServer, postgres_server
from tests.scale import FACTORS, PROFILE, examples
from tests.servers import RedisCluster, RedisServer, redis_cluster, redis_server

# No deadline and no "too slow": a shared machine's pauses are no fault of the code under test.
for _profile in FACTORS:
    settings.register_profile(
        _profile,
        max_examples=examples(100, _profile),
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
# CI starts from nothing, so that it cannot pass, or fail, for what an earlier run left behind.
settings.register_profile("ci", settings.get_profile("ci"), database=None)
settings.load_profile(PROFILE)

# What a shell starts in the background ignores Ctrl-C, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT: Final = Path(__file__).parent.parent

_numbers: Final = itertools.count()

_REACHED: Final = pytest.StashKey[reached.Totals]()


# As wide as a module: hypothesis refuses a fixture that is made anew for each test but not for each example.
@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Each async test runs once on asyncio and once on trio."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def recordings() -> Path:
    """The folder of recorded provider streams: EARMARK_RECORDINGS, or ../shared/streams beside the checkout."""
    named = os.environ.get("EARMARK_RECORDINGS")
    folder = Path(named) if named else ROOT.parent / "shared" / "streams"
    if folder.is_dir():
        return folder
    if named:
        pytest.fail(f"EARMARK_RECORDINGS names no folder: {named}")
    return pytest.skip("no recordings on this machine: set EARMARK_RECORDINGS")


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    """One server for all tests of this process that do not break it; each takes a namespace of its own."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests of this process that do not break it; each takes a prefix of its own."""
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> ledgers.Database:
    """Each test of the ledger runs once on SQLite, in a file, and once on PostgreSQL."""
    if request.param == "sqlite":
        return ledgers.sqlite(tmp_path)
    server: PostgresServer = request.getfixturevalue("shared_postgres")
    return ledgers.postgresql(server.url)


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[RedisCluster]:
    """One cluster of three masters for all tests of this process that do not break it."""
    with redis_cluster() as cluster:
        yield cluster


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test has."""
    return f"test{next(_numbers)}"


def pytest_configure(config: pytest.Config) -> None:
    """The process that prints the report collects what the others send."""
    config.stash[_REACHED] = {}


_module: str | None = None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Many tests collect garbage, thousands of times: what earlier modules have left is not looked at each time."""
    global _module  # noqa: PLW0603 - of this process
    module = item.nodeid.partition("::")[0]
    if module != _module:
        _module = module
        gc.collect()
        gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Add what this process reached, or send it to the process that prints."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is None:
        reached.add(session.config.stash[_REACHED], reached.totals())
    else:
        output["reached"] = reached.totals()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take in what a worker of xdist reached; one that crashed sends nothing."""
    output = getattr(node, "workeroutput", {})
    reached.add(node.config.stash[_REACHED], output.get("reached", {}))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print what the random tests reached."""
    lines = list(reached.lines(config.stash[_REACHED]))
    if lines:
        terminalreporter.section("what the random tests reached")
        for line in lines:
            terminalreporter.line(line)
