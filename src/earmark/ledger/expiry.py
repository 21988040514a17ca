"""What nobody resolved in time: its holder is gone, and what it held is posted as it stands."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncConnection

from earmark.ledger.line import Work
from earmark.ledger.rows import Held, held_of
from earmark.ledger.store import Unreachable
from earmark.logs import about

logger = logging.getLogger("earmark.ledger")

_AT_ONCE: Final = 100


async def post_expired(
    pending: Table,
    now: int,
    read: Callable[[Work[Sequence[Any]]], Awaitable[Sequence[Any]]],
    post: Callable[[Held], Awaitable[bool]],
) -> None:
    """Post everything that has expired.

    Args:
        pending: the table.
        now: in microseconds.
        read: asks the database.
        post: posts one; False: somebody has resolved it by now.

    Raises:
        Unreachable: the database could not be asked.
    """
    query = (
        select(pending)
        .where(pending.c.expires_us <= now)
        .order_by(pending.c.expires_us)
        .limit(_AT_ONCE)
    )

    async def find(connection: AsyncConnection) -> Sequence[Any]:
        return (await connection.execute(query)).all()

    done = _AT_ONCE
    while done == _AT_ONCE:  # what cannot be posted is found again: that must not go on for ever
        done = 0
        for row in await read(find):
            done += await _post_one(held_of(row), post)


async def _post_one(held: Held, post: Callable[[Held], Awaitable[bool]]) -> bool:
    """False: it cannot be posted, which is nobody else's trouble."""
    try:
        posted = await post(held)
    except Unreachable:
        raise
    except Exception:
        logger.exception(
            "what a request held could not be posted after its expiry",
            extra=about("expiry_failed", request_id=held.request_id),
        )
        return False
    if posted:
        logger.warning(
            "nobody resolved a request in time: what it held is posted",
            extra=about("posted_unresolved"),
        )
    return True
