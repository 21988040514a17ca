"""Show the busiest scopes on a Redis server: how full their limits are, and who is refused.

It reads, and changes nothing. What it costs the server is bounded: each time it looks at the next piece of its keys.
A server does not keep how much limits allow: that is told by open reservations, and by --policies.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from earmark.commands.busiest.watch import Watch

_PIECES: Final = 10
"""How many pieces of the server's keys are looked at before what was found is printed once."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the server, and how it is shown."""
    parser.add_argument(
        "--redis", metavar="URL", required=True, help="redis://host:6379, rediss://, unix://"
    )
    parser.add_argument("--cluster", action="store_true", help="it is a node of a cluster")
    parser.add_argument(
        "--namespace", default="earmark", help="what keys begin with (default: earmark)"
    )
    parser.add_argument(
        "--policies",
        metavar="FILE",
        help="the policies that are in use: they say what limits allow",
    )
    parser.add_argument("--once", action="store_true", help="print it once, as text")
    parser.add_argument(
        "--every", type=_seconds, default=2.0, metavar="SECONDS", help="look so often (default: 2)"
    )
    parser.add_argument(
        "--lines", type=_count, default=20, metavar="N", help="show so many limits (default: 20)"
    )


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0.1 <= (seconds := float(text)) <= 3_600:  # noqa: PLR2004 - a tenth of a second, an hour
            return seconds
    msg = f"expected seconds from 0.1 to 3600, not {text!r}"
    raise argparse.ArgumentTypeError(msg)


def _count(text: str) -> int:
    with suppress(ValueError):
        if (count := int(text)) > 0:
            return count
    msg = f"expected a number of lines, at least 1, not {text!r}"
    raise argparse.ArgumentTypeError(msg)


def run(arguments: argparse.Namespace) -> int:
    """Look, and show."""
    from redis.exceptions import RedisClusterException, RedisError

    from earmark.errors import EarmarkError

    try:
        show = _printed if arguments.once else _live(arguments.every)
        asyncio.run(_watched(arguments, show))
    except KeyboardInterrupt:
        return 0
    except (
        *(EarmarkError, RedisError, RedisClusterException),
        *(OSError, ValueError, ImportError),
    ) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


async def _watched(
    arguments: argparse.Namespace, show: Callable[[Watch, int], Awaitable[None]]
) -> None:
    from earmark.commands.busiest.watch import Watch
    from earmark.policies import Policies

    policies = Policies.load(arguments.policies) if arguments.policies else None
    watch = Watch(
        arguments.redis,
        namespace=arguments.namespace,
        cluster=arguments.cluster,
        limits_of=policies.scope_of if policies else lambda _: None,
    )
    try:
        await show(watch, arguments.lines)
    finally:
        await watch.aclose()


async def _printed(watch: Watch, most: int) -> None:
    """Print what the first pieces have, or the whole of the server where it has no more."""
    from earmark.commands.busiest.showing import lines

    for _ in range(_PIECES):
        await watch.look()
        if watch.is_complete:
            break
    print("\n".join(lines((await watch.rows())[:most], watch.said)))


def _live(every: float) -> Callable[[Watch, int], Awaitable[None]]:
    """A table that is drawn anew again and again.

    Raises:
        ImportError: rich is not there.
    """
    try:
        from rich.live import Live
    except ImportError as error:
        msg = 'the live view needs rich: pip install "earmark[cli]", or take --once'
        raise ImportError(msg) from error
    from redis import exceptions

    from earmark.backends.redis.failures import is_outage
    from earmark.commands.busiest.live import table
    from earmark.errors import BackendUnavailable

    async def show(watch: Watch, most: int) -> None:
        await watch.look()  # a server that is not there at all is no view
        rows, said = await watch.rows(), watch.said
        with Live(screen=True, auto_refresh=False) as live:
            while True:
                live.update(table(rows[:most], said), refresh=True)
                await asyncio.sleep(every)
                try:
                    await watch.look()
                    rows, said = await watch.rows(), watch.said
                except exceptions.RedisError as error:
                    if not is_outage(error):
                        raise
                    said = f"as it was: {error}"
                except (BackendUnavailable, exceptions.RedisClusterException) as outage:
                    said = f"as it was: {outage}"

    return show
