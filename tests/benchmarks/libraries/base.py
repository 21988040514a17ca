"""What a library has to do to be measured: the life cycle of one request under two limits of a day.

Windows of a day, so that none ends while its counts are asked about.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

DAY: Final = 86_400
PLENTY: Final = 10**9
CONNECTIONS: Final = 256  # more than there are callers: none waits for a connection


class Library(ABC):
    """One library, opened anew for each measurement.

    Args:
        url: of the Redis server; None for the memory of this process.
        requests: at most so many a day for each key.
        tokens: likewise; None where only requests are limited.

    Attributes:
        package: under which name it is installed.
        environment: in which environment it is, below `.venv`.
        settles: what its settlement does, in a word.
        calls: what a life cycle consists of.
        stores: where it can keep its counts.
        keys: with how many it is measured: fewer where making them takes long.
        bounded: whether its memory keeps a bounded number of keys, and drops the rest.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    environment: ClassVar[str] = "bench"
    settles: ClassVar[str] = "trues up"
    calls: ClassVar[str]
    stores: ClassVar[tuple[str, ...]] = ("memory", "redis")
    keys: ClassVar[int] = 100_000
    bounded: ClassVar[bool] = False

    def __init__(
        self, url: str | None, requests: int = PLENTY, tokens: int | None = PLENTY
    ) -> None:
        self.url = url
        self.requests = requests
        self.tokens = tokens

    @abstractmethod
    async def open(self) -> None:
        """Make what is used for all requests."""

    @abstractmethod
    async def reserve(self, key: str, tokens: int) -> Any:
        """Ask for one request and its tokens: a hold, or None where it is refused. Never waits for room."""

    async def settle(self, hold: Any, tokens: int) -> None:  # noqa: B027 - what has no settlement does nothing
        """True a hold up to what was used."""

    async def aclose(self) -> None:  # noqa: B027 - in memory there is mostly nothing to close
        """Let go of everything."""
