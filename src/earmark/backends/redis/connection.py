"""What is used of redis-py's connections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from earmark.backends.redis.scripts import Scripts


class Connection(Protocol):
    """What is used of redis-py's connections."""

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: ANN401, FBT001, FBT002
        """Write."""
        ...

    async def read_response(self) -> Any:  # noqa: ANN401 - whatever a server answers
        """Read one reply."""
        ...

    def pack_command(self, *args: Any) -> Iterable[bytes]:  # noqa: ANN401
        """Encode a command."""
        ...

    async def disconnect(self, nowait: bool = False) -> None:  # noqa: FBT001, FBT002
        """Close."""
        ...


class Dialed(NamedTuple):
    """A connection that is ready, and the scripts that its server runs."""

    connection: Connection
    scripts: Scripts


async def command(connection: Connection, *arguments: str) -> Any:  # noqa: ANN401 - whatever a server answers
    """Send one command and read its reply."""
    await connection.send_packed_command(connection.pack_command(*arguments), check_health=False)
    return await connection.read_response()
