"""The command line: `python -m earmark COMMAND`.

Each command is a module with two functions: `add_arguments(parser)`, and `run(arguments)`, which prints and returns
the exit code: 0, or 1 where what was asked about is not in order. Its docstring's first line is its help. Wrong
arguments exit with 2, as argparse does it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final, Protocol

from earmark.commands import check, schema, simulate, spend, top


class Command(Protocol):
    """What a module of a command has."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Say what the command takes."""
        ...

    def run(self, arguments: argparse.Namespace, /) -> int:
        """Do it, and return the exit code."""
        ...


COMMANDS: Final[dict[str, Command]] = {
    "check": check,
    "schema": schema,
    "simulate": simulate,
    "spend": spend,
    "top": top,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: its words; by default those of this process.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser("python -m earmark", description="What earmark knows.")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        said = (command.__doc__ or "").strip()
        own = subparsers.add_parser(
            name,
            help=said.partition("\n")[0],
            description=said,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(own)
        own.set_defaults(run=command.run)
    arguments = parser.parse_args(argv)
    code: int = arguments.run(arguments)
    return code
