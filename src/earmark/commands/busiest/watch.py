"""Looking at a server again and again: what is there by SCAN, and what it comes to by the script of `peek`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from earmark.backends.redis.lines import of_every_loop
from earmark.commands.busiest.finding import Finder
from earmark.commands.busiest.reading import Reader
from earmark.commands.busiest.showing import Row, rows_of
from earmark.errors import EarmarkError
from earmark.limits import Scope

_PER_READ: Final = 100  # scopes of one script: none holds the server up for long
_TIMEOUT: Final = 5.0


class Watch:
    """One server, or one cluster.

    Args:
        url: of it.
        namespace: what its keys begin with.
        cluster: whether it is a node of a cluster.
        limits_of: says what a key may use, where somebody knows.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str,
        cluster: bool,
        limits_of: Callable[[str], Scope | None],
    ) -> None:
        options = {"socket_timeout": _TIMEOUT, "socket_connect_timeout": _TIMEOUT}
        self._client = of_every_loop(url, options, cluster=cluster)()
        self._finder = Finder(self._client, namespace, limits_of)
        self._reader = Reader(self._client, namespace)

    @property
    def is_complete(self) -> bool:
        """Whether the whole of the server was seen at least once."""
        return self._finder.rounds > 0

    @property
    def said(self) -> str:
        """How much was found, and whether there is more."""
        found = len(self._finder.found)
        if self._finder.more:
            return f"{found:,} scopes are looked at, and there are more"
        rest = "" if self.is_complete else ", and there may be more"
        return f"{found:,} scope{'' if found == 1 else 's'}{rest}"

    async def look(self) -> None:
        """Look at the next piece of what is there."""
        await self._finder.look()

    async def rows(self) -> list[Row]:
        """What is known, as it is now; what has no more is forgotten."""
        scopes = list(self._finder.found.values())
        rows: list[Row] = []
        failed: EarmarkError | None = None
        for first in range(0, len(scopes), _PER_READ):
            for scope, read in await self._reader.read(scopes[first : first + _PER_READ]):
                if isinstance(read, EarmarkError):
                    failed = failed or read
                else:
                    rows += rows_of(scope, read)
            if failed and not rows:  # such as missing rights: nobody can be looked at
                raise failed
        used = {row.scope.key for row in rows}
        self._finder.forget(scope.key for scope in scopes if scope.key not in used)
        return sorted(rows, key=Row.rank)

    async def aclose(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()
