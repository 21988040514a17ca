"""`python -m tests.benchmarks`, or `make bench ARGS="…"`: measure, and print a table for each thing that is measured.

Without a name everything is measured: earmark beside other libraries (`beside`), the same with uvloop and hiredis
(`fast`), and what earmark costs by itself, by the names of the modules (`memory`, `streams`, …).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

import earmark
from tests.benchmarks import side_by_side
from tests.benchmarks.figures import FULL, QUICK, Effort, Table
from tests.servers import redis_server

Form = Callable[[Table], str]

PREFIX: Final = "bench_"
BUSY: Final = 0.5  # of the system's load
MODULES: Final = sorted(
    file.stem.removeprefix(PREFIX) for file in Path(__file__).parent.glob(f"{PREFIX}*.py")
)
# What takes its time on a database or a large server is not part of a quick look, unless it is asked for.
SLOW: Final = {"ledger", "redis_memory", "scaling"}


def processor() -> str:
    """What the system calls it; where it has no name for it, its kind."""
    with suppress(FileNotFoundError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def machine() -> Table:
    """Where the figures come from."""
    with redis_server() as server, server.client() as client:
        redis: str = client.info("server")["redis_version"]
    load = os.getloadavg()[0]
    note = ""
    if load > BUSY:
        note = (
            "Others were at work: the time that passed says little, above all through Redis, where it is mostly spent "
            "on waiting for a core. The time of the processors says more."
        )
    rows = (
        ("date", time.strftime("%Y-%m-%d")),
        (
            "machine",
            f"{os.cpu_count()} cores of {processor()}, {platform.system()} {platform.release()}",
        ),
        ("load before the run", f"{load:.1f}"),
        ("Python", platform.python_version()),
        ("redis-server", f"{redis}, through the loopback interface, nothing is saved"),
        ("earmark", earmark.__version__),
    )
    return Table("The run", ("", "what"), rows, note)


BEGIN: Final = "<!-- what make bench has printed begins here -->"
END: Final = "<!-- and ends here -->"


async def printed(tables: AsyncIterator[Table], form: Form) -> list[str]:
    """Print each table as soon as it is there, and return what was printed. Where a server is missing it ends there."""
    found: list[str] = []
    try:
        async for table in tables:
            found.append(say(form(table)))  # noqa: PERF401 - those before a missing server are kept
    except pytest.fail.Exception as error:
        print(f"absent: {error}", file=sys.stderr)
    return found


def beside(effort: Effort, form: Form, *, fast: bool) -> list[str]:
    """Print what is measured side by side, likewise."""
    with redis_server() as server:
        tables = side_by_side.tables(effort, server, fast=fast)
        return [say(form(table)) for table in tables]


def say(text: str) -> str:
    """Print it and return it."""
    print(text, flush=True)
    return text


def put(text: str, results: str) -> str:
    """A document with these results in place of those that were there."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        message = f"it has no place for results, between {BEGIN} and {END}"
        raise ValueError(message)
    return f"{before}{BEGIN}\n\n{results.strip()}\n\n{END}{after}"


def document(name: str) -> Path:
    """One that can be written and has a place for results: that is asked before anything is measured.

    Raises:
        ArgumentTypeError: it cannot, or has none.
    """
    path = Path(name)
    try:
        put(path.read_text(encoding="utf-8"), "")
        path.open("r+", encoding="utf-8").close()
    except (OSError, ValueError) as error:
        message = f"{name}: {error}"
        raise argparse.ArgumentTypeError(message) from None
    return path


def stop(number: int, _: object) -> None:
    """End as an interrupt does: the servers and the workers go as well."""
    sys.exit(128 + number)


def main() -> None:
    """Whoever ends this, or has no redis-server, is not shown where it has been."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        measure(arguments(sys.argv[1:]))
    except pytest.fail.Exception as error:
        sys.exit(str(error))


NAMES: Final = ("beside", "fast", *MODULES)


def arguments(given: list[str]) -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="within a minute, and rough")
    parser.add_argument("--markdown", action="store_true", help="as tables of a document")
    parser.add_argument(
        "--into", type=document, help="a document that gets the tables, in place of those it has"
    )
    parser.add_argument("-v", action="store_true", help="show what the libraries print")
    options = parser.parse_args(given)
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return options


def measure(options: argparse.Namespace) -> None:
    """See above."""
    effort: Effort = QUICK if options.quick else FULL
    form = Table.markdown if options.markdown or options.into else Table.text
    left_out = SLOW | {"fast"} if options.quick else set[str]()
    results = [say(form(machine()))]
    for name in options.names or [name for name in NAMES if name not in left_out]:
        if name in {"beside", "fast"}:
            results += beside(effort, form, fast=name == "fast")
        else:
            module = import_module(f"tests.benchmarks.{PREFIX}{name}")
            results += asyncio.run(printed(module.tables(effort), form))
    if options.into:
        text = options.into.read_text(encoding="utf-8")
        options.into.write_text(put(text, "\n".join(results)), encoding="utf-8")
    if not options.names and left_out:
        print(f"Left out of a quick look: {', '.join(sorted(left_out))}.", file=sys.stderr)


if __name__ == "__main__":
    main()
