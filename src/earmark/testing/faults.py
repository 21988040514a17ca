"""A backend whose messages go wrong as a script says: what a gateway has to live with, without a broken network."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

import anyio
import anyio.lowlevel

from earmark.backends.health import Health
from earmark.backends.protocol import Backend, Seen
from earmark.core.hold import Hold, Verb
from earmark.errors import BackendUnavailable, EarmarkError
from earmark.limits import Scope

Message = Literal["reserve", "resolve", "add", "renew", "peek", "reset"]
"""The six messages of a backend."""

_MESSAGES: Final = frozenset(get_args(Message))


@dataclass(frozen=True, slots=True)
class Fault:
    """What becomes of one message.

    Attributes:
        applied: whether it reaches the store.
        before: seconds of the backend's clock that pass before it does.
        after: seconds of the backend's clock that pass until its caller hears of it.
        error: what the caller gets in place of the answer; None: it gets the answer.
    """

    applied: bool = True
    before: float = 0.0
    after: float = 0.0
    error: type[Exception] | None = None


LOST: Final = Fault(applied=False, error=ConnectionError)
"""The message never reaches the store, and the connection breaks."""

LOST_REPLY: Final = Fault(error=ConnectionError)
"""The message is applied; its reply is lost with the connection."""


def timeout_after_apply(seconds: float) -> Fault:
    """The message is applied, and its caller gives up after so long without a reply."""
    return Fault(after=seconds, error=TimeoutError)


def slow(seconds: float) -> Fault:
    """The message takes so long to the store, and is answered."""
    return Fault(before=seconds)


class FaultyBackend:
    """Any backend behind messages that go wrong as a script says; without one it changes nothing.

        backend = FaultyBackend(MemoryBackend(clock=clock))
        backend.script("resolve", LOST_REPLY, slow(2))   # the next one, and the one after it
        backend.go_down(); ...; backend.recover()

    Where time passes, it passes on the backend's clock: under a `ManualClock` until the test moves it.

    Args:
        inner: the backend that decides.

    Attributes:
        inner: the same.
        sent: how many messages of each kind were sent to it.
        applied: how many of them reached it.
    """

    instant = None
    assured = False

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.desk = inner.desk
        self.name = inner.name
        self.clock = inner.clock
        self.sent: Counter[str] = Counter()
        self.applied: Counter[str] = Counter()
        self._scripts: defaultdict[str, deque[Fault | None]] = defaultdict(deque)
        self._down: str | None = None

    def script(self, message: Message, *faults: Fault | None) -> None:
        """Say what becomes of the next messages of a kind, in order; None: it goes well. Later ones go well.

        Raises:
            ValueError: a backend has no such message.
        """
        if message not in _MESSAGES:
            msg = f"{message!r} is no message: a backend has {', '.join(sorted(_MESSAGES))}"
            raise ValueError(msg)
        self._scripts[message].extend(faults)

    def go_down(self, reason: str = "the store is down") -> None:
        """Begin an outage: nothing reaches the store, and every message raises `BackendUnavailable`."""
        self._down = reason

    def recover(self) -> None:
        """End the outage."""
        self._down = None

    async def _send(self, message: Message, send: Callable[[], Awaitable[Any]]) -> Any:
        self.sent[message] += 1
        await anyio.lowlevel.checkpoint()  # a store that is asked over a network suspends
        script = self._scripts[message]
        fault = (script.popleft() if script else None) or Fault()
        await self._pass(fault.before)
        if self._down is not None:
            raise BackendUnavailable(self._down)
        answer: Any = None
        refused: EarmarkError | None = None
        if fault.applied:
            self.applied[message] += 1
            try:
                answer = await send()
            except EarmarkError as error:  # an error is an answer as well, and as easily lost
                refused = error
        await self._pass(fault.after)
        if fault.error is not None:
            msg = f"scripted: {message}"
            raise fault.error(msg)
        if refused is not None:
            raise refused
        return answer

    async def _pass(self, seconds: float) -> None:
        if seconds:
            await getattr(self.clock, "sleep", anyio.sleep)(seconds)

    async def reserve(self, hold: Hold) -> Hold | None:
        """As the backend does, or as the script says; so the others."""
        standing: Hold | None = await self._send("reserve", lambda: self.inner.reserve(hold))
        return standing

    async def resolve(
        self,
        hold: Hold,
        verb: Verb,
        exact: Mapping[str, int],
        at_least: Mapping[str, int],
    ) -> bool:
        """Resolve a reservation."""
        won: bool = await self._send(
            "resolve", lambda: self.inner.resolve(hold, verb, exact, at_least)
        )
        return won

    async def add(
        self, target: Scope | str, amounts: Mapping[str, int], request_id: str | None
    ) -> bool:
        """Count what no hold covers."""
        counted: bool = await self._send("add", lambda: self.inner.add(target, amounts, request_id))
        return counted

    async def renew(self, holds: Sequence[Hold]) -> Sequence[bool]:
        """Extend leases."""
        held: Sequence[bool] = await self._send("renew", lambda: self.inner.renew(holds))
        return held

    async def peek(self, scopes: tuple[Scope, ...]) -> Seen:
        """Look."""
        seen: Seen = await self._send("peek", lambda: self.inner.peek(scopes))
        return seen

    async def reset(self, scopes: tuple[Scope, ...]) -> None:
        """Forgive."""
        await self._send("reset", lambda: self.inner.reset(scopes))

    def attend(self, hold: Hold) -> None:
        """Pass on that the holder is at work."""
        self.inner.attend(hold)

    def release(self, hold: Hold) -> None:
        """Pass on that it has handed the reservation over."""
        self.inner.release(hold)

    def health(self) -> Health:
        """How the backend is doing; during a scripted outage it is not available."""
        health = self.inner.health()
        if self._down is None:
            return health
        return replace(health, available=False, reason=self._down)

    async def aclose(self) -> None:
        """Close the backend."""
        await self.inner.aclose()

    def __getattr__(self, name: str) -> Any:
        """What else the backend has, such as `size()`."""
        return getattr(self.inner, name)
