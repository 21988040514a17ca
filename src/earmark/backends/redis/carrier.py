"""What carries messages from one event loop to a store: a line to one server, or a fleet of lines to a cluster."""

from __future__ import annotations

import asyncio
from typing import Protocol

from earmark.backends.redis.asked import Asked
from earmark.backends.redis.messages import Message


class Carrier(Protocol):
    """See above. To be used on one loop alone."""

    @property
    def down(self) -> Exception | None:
        """Why the store, or some of its servers, cannot be asked, or None."""
        ...

    @property
    def over(self) -> bool:
        """Whether it carries nothing any more."""
        ...

    def trouble(self, message: Message) -> Exception | None:
        """Why this message cannot be asked now, as far as is known, or None."""
        ...

    def ask(self, message: Message, *, again: bool = False) -> asyncio.Future[str]:
        """Have a message answered.

        The future raises `Outage`, or `StoreError` for an error that is none.
        """
        ...

    def place(self, message: Message, *, again: bool = False) -> Asked:
        """The same, for a caller that wants to know whether it was sent."""
        ...

    def wake(self) -> None:
        """Deliver what is owed by now."""
        ...

    async def aclose(self, seconds: float) -> None:
        """Answer who has asked and deliver what is owed, for at most so many seconds, and close."""
        ...
