"""What is used of redis-py's connections."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from redis import exceptions

from earmark.backends.redis.scripts import Scripts


class Connection(Protocol):
    """What is used of redis-py's connections."""

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: ANN401, FBT001, FBT002
        """Write."""
        ...

    async def read_response(self) -> Any:  # noqa: ANN401 - whatever a server answers
        """Read one reply."""
        ...

    async def disconnect(self, nowait: bool = False) -> None:  # noqa: FBT001, FBT002
        """Close."""
        ...


class Dialed(NamedTuple):
    """A connection that is ready, and the scripts that its server runs."""

    connection: Connection
    scripts: Scripts


def pack(*arguments: str) -> bytes:
    """Encode a command: how many arguments, and each with its length in front (RESP)."""
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        data = argument.encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


async def command(connection: Connection, *arguments: str) -> Any:  # noqa: ANN401 - whatever a server answers
    """Send one command and read its reply."""
    await connection.send_packed_command(pack(*arguments), check_health=False)
    return await connection.read_response()


async def load(connection: Connection, scripts: Scripts) -> None:
    """Make all scripts known to the server, in one round trip."""
    loads = [pack("SCRIPT", "LOAD", script.text) for script in scripts.values()]
    await connection.send_packed_command(loads, check_health=False)
    failed: exceptions.ResponseError | None = None
    for _ in loads:
        try:
            await connection.read_response()
        except exceptions.ResponseError as error:
            failed = error
    if failed is not None:
        raise failed
