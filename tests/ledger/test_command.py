"""`python -m earmark spend`, and what an import of the ledger's names costs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from earmark import Limiter, Usage
from earmark.commands import main
from earmark.ledger import Ledger
from tests.ledgers import Database, ask, opened, usd
from tests.postgres import PostgresServer
from tests.servers import HOST, free_port


def test_importing_the_ledgers_values_loads_no_sqlalchemy() -> None:
    """Budgets and prices are plain values: `earmark.ledger` loads SQLAlchemy where a Ledger is named."""
    code = """from earmark.ledger import Budget, PriceList, Spend
import sys
print("sqlalchemy" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_without_the_extra_it_is_named() -> None:
    """Where SQLAlchemy is not installed the error says what to install."""
    code = """import sys
sys.modules["sqlalchemy"] = None
from earmark.ledger import Ledger"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("The ledger is an extra: pip install 'earmark[ledger]'\n")


SHOWN = """\
day         cost      requests  tokens in  tokens out
2026-04-01   1.2 USD         2    500,000      25,000  ##############################
2026-04-02   0.3 USD         1          ?           ?  ########

model  cost      requests  tokens in  tokens out
big     1.5 USD         3    500,000      25,000

key    cost      requests  tokens in  tokens out
alice     1 USD         1    500,000           0
bob     0.5 USD         2          0      25,000
"""


def test_the_command_shows_days_with_bars(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """`python -m earmark spend`: a bar per day, the models and the keys; unknown tokens are not 0."""

    async def fill() -> None:
        async with opened(database) as (limiter, _, clock):
            await ask(limiter, "alice", "team", usage=Usage(500_000, 0))
            await ask(limiter, "bob", usage=Usage(0, 25_000))
            clock.advance(86_400)
            await ask(limiter, "bob", "team", usage=Usage(), cost=usd("0.3"))

    asyncio.run(fill())
    command = ["spend", database.url, "--prefix", database.prefix, "--since", "2026-04-01"]
    assert main(command) == 0
    assert capsys.readouterr().out == SHOWN
    assert main([*command, "--key", "alice", "--until", "2026-04-02"]) == 0
    assert "bob" not in capsys.readouterr().out
    assert main([*command[:-1], "2030-01-01"]) == 0
    assert capsys.readouterr().out == "nothing was spent since 2030-01-01\n"
    assert main([*command, "--zone", "Mars/Olympus"]) == 1
    assert "zone" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*command[:-1], "yesterday"])
    assert "2026-04-01" in capsys.readouterr().err
    assert main(["spend", f"postgresql://nobody@{HOST}:{free_port()}/none"]) == 1
    assert "cannot be reached" in capsys.readouterr().err


def test_the_command_looks_in_a_schema_and_shows_any_key(
    shared_postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables in the user's own schema are found there; a key with control characters is no order to a terminal."""
    schema = f"billing{free_port()}"

    async def fill() -> None:
        engine = create_async_engine(shared_postgres.url)
        async with engine.begin() as connection:
            await connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
        await engine.dispose()
        ledger = Ledger(shared_postgres.url, metadata=MetaData(schema=schema))
        await ledger.create()
        async with Limiter(ledger=ledger) as limiter:
            await ask(limiter, "al\x1b[2J\nice", usage=Usage(1, 1), cost=usd(1))
            assert await ledger.verify() == ()

    asyncio.run(fill())
    assert main(["spend", shared_postgres.url, "--schema", schema]) == 0
    shown = capsys.readouterr().out
    assert "al�[2J�ice     1 USD" in shown
    assert "\x1b" not in shown
    assert main(["spend", shared_postgres.url, "--schema", "nowhere"]) == 1
    assert "--schema?" in capsys.readouterr().err


def test_the_command_says_where_there_is_no_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A question makes no file, and a database without the tables, or no URL at all, is said in one line."""
    path = tmp_path / "none.db"
    for url, said in (
        (f"sqlite:///{path}", "no file"),
        ("nonsense", "URL"),
        ("mysql://x/y", "mysql"),
    ):
        assert main(["spend", url]) == 1
        errors = capsys.readouterr().err
        assert said in errors
        assert errors.count("\n") == 1
    assert not path.exists()
    path.touch()
    assert main(["spend", f"sqlite:///{path}"]) == 1
    assert "no such table: earmark_pending: is a ledger" in capsys.readouterr().err
