"""Show what was spent: a bar for each day, and the models and keys that it went to.

It reads a ledger's database, and changes nothing but what nobody resolved in time, which is posted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Final

from earmark.commands.words import legible

if TYPE_CHECKING:
    from earmark.ledger import SummaryLine

_WIDTH: Final = 30
_DAYS: Final = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the database, and what is to be shown of it."""
    parser.add_argument(
        "database", metavar="URL", help="sqlite:///spend.db, postgresql://user@host/name"
    )
    parser.add_argument("--key", help="of this key alone: a request's own, or a budget's")
    parser.add_argument("--since", metavar="DAY", type=_day, help="from 2026-04-01 on")
    parser.add_argument("--until", metavar="DAY", type=_day, help="before 2026-05-01")
    parser.add_argument("--zone", default="UTC", help="whose days, such as Europe/Amsterdam")
    parser.add_argument("--prefix", default="earmark_", help="what the tables' names begin with")
    parser.add_argument("--schema", help="in which the tables are; by default the database's own")


def _day(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d")  # noqa: DTZ007 - --zone says whose
    except ValueError as error:
        msg = f"expected a day, such as 2026-04-01, not {text!r}"
        raise argparse.ArgumentTypeError(msg) from error


def run(arguments: argparse.Namespace) -> int:
    """Show it."""
    try:
        from sqlalchemy.exc import ArgumentError, DBAPIError

        from earmark.errors import BackendUnavailable
    except ImportError as error:
        print(f"{error}: pip install 'earmark[ledger]'", file=sys.stderr)
        return 1
    try:
        text = asyncio.run(_shown(arguments))
    except DBAPIError as error:
        print(
            f"{error.orig}: is a ledger in this database, with this --prefix and --schema?",
            file=sys.stderr,
        )
        return 1
    except (BackendUnavailable, ArgumentError, ValueError, ImportError) as error:
        print(error, file=sys.stderr)
        return 1
    print(text)
    return 0


async def _shown(arguments: argparse.Namespace) -> str:
    from zoneinfo import ZoneInfo

    from sqlalchemy import MetaData

    from earmark.budgets import check_zone
    from earmark.ledger import Ledger

    zone = ZoneInfo(check_zone(arguments.zone))
    _check_there(arguments.database)
    metadata = MetaData(schema=arguments.schema)
    ledger = Ledger(arguments.database, metadata=metadata, prefix=arguments.prefix)
    until: datetime | None = arguments.until and arguments.until.replace(tzinfo=zone)
    since: datetime | None = arguments.since and arguments.since.replace(tzinfo=zone)
    if since is None:
        since = (until or datetime.now(zone)) - timedelta(days=_DAYS)
    try:
        days = await ledger.summary(arguments.key, since, until, ("day",), arguments.zone)
        models = await ledger.summary(arguments.key, since, until, ("model",))
        keys = await ledger.summary(arguments.key, since, until, ("key",))
    finally:
        await ledger.aclose()
    if not days:
        return f"nothing was spent since {since:%Y-%m-%d}"
    return "\n".join(
        [
            *_table("day", days, lambda line: str(line.day), bars=True),
            *("", *_table("model", models, lambda line: line.model or "-")),
            *("", *_table("key", keys, lambda line: line.key or "-")),
        ]
    )


def _check_there(database: str) -> None:
    """A question is to make no file: SQLite would.

    Raises:
        ValueError: there is none.
    """
    from sqlalchemy import make_url

    url = make_url(database)
    name = url.database or ":memory:"
    if url.get_backend_name() == "sqlite" and not name.startswith(("file:", ":memory:")):
        path = Path(name)
        if not path.is_file():
            msg = f"there is no file {path}"
            raise ValueError(msg)


def _table(
    title: str,
    lines: Sequence[SummaryLine],
    name: Callable[[SummaryLine], str],
    *,
    bars: bool = False,
) -> list[str]:
    """A table whose largest amount of each currency has the longest bar."""
    rows = [
        (
            legible(name(line)),
            f"{line.cost:f}",
            line.currency,
            f"{line.requests:,}",
            _count(line.input_tokens),
            _count(line.output_tokens),
        )
        for line in lines
    ]
    heads = (title, "cost", "", "requests", "tokens in", "tokens out")
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    most: dict[str, Decimal] = {}
    for line in lines:
        most[line.currency] = max(most.get(line.currency, Decimal(0)), line.cost)
    shown = [_row(heads, widths)]
    for line, row in zip(lines, rows, strict=True):
        bar = _bar(line.cost, most[line.currency]) if bars else ""
        shown.append(f"{_row(row, widths)}  {bar}".rstrip())
    return shown


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, cost, currency, *others = (
        cell.ljust(width) if column in {0, 2} else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, f"{cost} {currency}", *others]).rstrip()


def _bar(cost: Decimal, most: Decimal) -> str:
    if cost <= 0:
        return ""
    return "#" * max(round(_WIDTH * cost / most), 1)


def _count(tokens: int | None) -> str:
    """Unknown is not 0."""
    return "?" if tokens is None else f"{tokens:,}"
