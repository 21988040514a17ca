"""Replay a trace of requests under policies, and say who would have been refused, and when.

Every request goes through the real limiter, on a clock that the trace moves. A trace is CSV with the columns
time, tenant, model, input_tokens, output_tokens and duration, or JSON lines with these fields. Times are seconds or ISO
dates, durations are seconds. Columns that limits are by, such as team, are read as well.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the policies and the trace."""
    parser.add_argument("policy", metavar="POLICY", help="YAML, TOML or JSON, as its name ends")
    parser.add_argument("trace", metavar="TRACE", help="CSV or JSON lines (.csv, .jsonl)")
    parser.add_argument(
        "--svg", metavar="FILE", help="plot what was refused and how full limits were"
    )


def run(arguments: argparse.Namespace) -> int:
    """Replay, and tell."""
    from earmark.commands.progress import Bar
    from earmark.commands.simulation.plot import plot
    from earmark.commands.simulation.replay import replay
    from earmark.commands.simulation.tables import tables
    from earmark.commands.simulation.trace import read_trace
    from earmark.policies import Policies

    try:
        policies = Policies.load(arguments.policy)
        with Bar("reading", sys.stderr) as bar:
            trace = read_trace(arguments.trace, policies.dims, bar)
        if arguments.svg is not None:
            _see_that_it_can_be_written(arguments.svg)
        with Bar("replaying", sys.stderr) as bar:
            tally = asyncio.run(replay(trace, policies, bar))
        if arguments.svg is not None:
            Path(arguments.svg).write_text(plot(tally), encoding="utf-8")
    except (
        ValueError,
        OSError,
    ) as error:  # a PolicyError, a TraceError, or a file that cannot be written
        print(error, file=sys.stderr)
        return 1
    print("\n".join(tables(tally)))
    return 0


def _see_that_it_can_be_written(path: str) -> None:
    """Before the replay, which takes a while; what is there already stays until there is something to put in its place.

    Raises:
        ValueError: it cannot be.
    """
    try:
        Path(path).open("ab").close()
    except OSError as error:
        msg = f"{path}: cannot be written ({error.strerror}): name a file in a folder that is there"
        raise ValueError(msg) from error
