"""One connection of one event loop, and the one task that uses it.

Callers hand in messages and wait for their answers; they never touch the connection, so that a cancelled one cannot
leave a reply on it for somebody else (C55). While one round trip is under way the messages that come are collected,
and the next one carries them all: a single caller waits for nobody, and many share.

A message is either answered, or its caller learns that the store cannot answer, and whether the message may have
reached it. A connection that breaks is made anew once and the messages are sent again, which have an effect once (R9);
after that the line is down, and answers at once that it is, until the store can be reached again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from redis import exceptions

from earmark.backends.redis.asked import Asked, Watch
from earmark.backends.redis.connection import Connection, Dialed, command
from earmark.backends.redis.failures import Outage, StoreError, is_outage
from earmark.backends.redis.messages import Message
from earmark.backends.redis.owed import Outbox, Owed
from earmark.backends.redis.scripts import TAKES, Script

logger = logging.getLogger("earmark.redis")

# So many messages go into one call: a script holds up the whole server.
MAX_BATCH: Final = 128

# Seconds between two attempts to reach a store that is down: the first, and the most; a random part of each is left
# out, so that a fleet does not come back in step.
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0


class Standing(Protocol):
    """Who keeps count of the lines that are down."""

    def lost(self, reason: str) -> None:
        """One more is down."""
        ...

    def back(self) -> None:
        """One is up again."""
        ...


Call = tuple[Script, list[Asked]]
"""A script, and those whose messages it is to answer."""


class Line:
    """See above. To be used on one loop alone.

    Args:
        dial: makes a connection.
        header: the arguments that begin every call of a script, as they are now.
        timeout: seconds for which an answer is waited for.
        outbox: what the store is owed; delivered as soon as it can be reached.
        probe: a key to write to, to see that the store takes writes.
        standing: told when the line goes down, and when it is up again.

    Attributes:
        down: why the store cannot be asked, or None.
    """

    def __init__(  # noqa: PLR0917 - each is another thing, and it is called once
        self,
        dial: Callable[[], Awaitable[Dialed]],
        header: Callable[[], tuple[str, ...]],
        timeout: float,
        outbox: Outbox,
        probe: str,
        standing: Standing,
    ) -> None:
        self._dial = dial
        self._header = header
        self._timeout = timeout
        self._outbox = outbox
        self._probe = probe
        self._standing = standing
        self._loop = asyncio.get_running_loop()
        self._dialed: Dialed | None = None
        self._waiting: deque[Asked] = deque()
        self._flight: list[Asked] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._watch = Watch(self._loop, timeout, self._oldest, self._give_up)
        self._too_late = False
        self._ailing: Outage | None = None
        self._task = self._loop.create_task(self._run(), name="earmark.redis")
        self.down: str | None = None

    def ask(self, message: Message, *, again: bool = False) -> asyncio.Future[str]:
        """Have a message answered.

        The future raises `Outage`, or `StoreError` for an error that is none.
        """
        answer: asyncio.Future[str] = self._loop.create_future()
        if self.down is not None or self._task.done():
            answer.set_exception(Outage(self.down or "the line is closed", sent=again))
            return answer
        deadline = self._loop.time() + self._timeout
        self._waiting.append(Asked(message, answer, deadline, again=again))
        self._wake.set()
        if not self._watch.on:
            self._watch.begin()
        return answer

    def wake(self) -> None:
        """Deliver what is owed by now."""
        self._wake.set()

    async def aclose(self, seconds: float) -> None:
        """Deliver what is owed, for at most so many seconds, and close."""
        if self._outbox and not self._task.done():
            self._idle.clear()
            self._wake.set()
            await asyncio.wait(
                [self._task, asyncio.ensure_future(self._idle.wait())], timeout=seconds
            )
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._step()
                except asyncio.CancelledError:
                    if not self._is_too_late():
                        raise
                    await self._lose(f"no answer within {self._timeout:g} s")
        finally:
            self._fail_all("the line to the store is closed")
            self._watch.end()
            await self._deliver_the_last()
            await self._hang_up()

    async def _step(self) -> None:
        """Do what is to be done next."""
        if self.down is not None:
            await self._recover()
        elif self._waiting:
            await self._round()
        elif self._outbox:
            try:
                await self._deliver_owed()
            except Exception as error:  # noqa: BLE001 - it is owed still
                await self._lose(str(error))
        else:
            self._idle.set()
            self._wake.clear()
            await self._wake.wait()

    async def _round(self) -> None:
        """One round trip for everybody who waits by now."""
        try:
            if self._dialed is None:
                await self._connect()
            self._board()
            await self._exchange(self._flight)
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            await self._broken(error)
        self._flight = []
        ailing, self._ailing = self._ailing, None
        if ailing is not None:
            await self._lose(str(ailing))

    def _board(self) -> None:
        """Take those who wait on board, but for those that have gone before anything was sent for them."""
        while self._waiting and len(self._flight) < MAX_BATCH:
            asked = self._waiting.popleft()
            if not asked.answer.done():
                self._flight.append(asked)

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                self._dialed = await self._dial()
        except TimeoutError as error:
            msg = f"no connection within {self._timeout:g} s"
            raise exceptions.TimeoutError(msg) from error

    async def _exchange(self, flight: list[Asked]) -> None:
        """Send all, what frees before what takes, and hand out the answers."""
        dialed = self._dialed
        if dialed is None or not flight:
            return
        frees = [asked for asked in flight if asked.message.verb not in TAKES]
        takes = [asked for asked in flight if asked.message.verb in TAKES]
        calls = [
            call for call in ((dialed.scripts.free, frees), (dialed.scripts.take, takes)) if call[1]
        ]
        for _ in range(3):
            calls = await self._call(dialed.connection, calls)
            if not calls:
                return
            # The server was restarted, or its scripts were flushed: none of these calls has been run.
            for script, _ in calls:
                await command(dialed.connection, "SCRIPT", "LOAD", script.text)
        msg = "the store forgets its scripts as soon as they are loaded"
        raise StoreError(msg)

    async def _call(self, connection: Connection, calls: list[Call]) -> list[Call]:
        """Run scripts in one round trip; return those that the server does not know."""
        header = self._header()
        packed: list[bytes] = []
        for script, batch in calls:
            keys = [key for asked in batch for key in asked.message.keys]
            arguments = [
                part
                for asked in batch
                for part in (asked.message.head(again=asked.again), asked.message.body)
            ]
            packed.extend(
                connection.pack_command(
                    "EVALSHA", script.sha, len(keys), *keys, *header, *arguments
                )
            )
        await connection.send_packed_command(packed, check_health=False)
        unknown: list[Call] = []
        for script, batch in calls:
            try:
                answers = await connection.read_response()
            except exceptions.NoScriptError:
                unknown.append((script, batch))
            except exceptions.ResponseError as error:
                for asked in batch:
                    self._refuse(asked, str(error))
            else:
                self._hand_out(batch, answers)
        return unknown

    def _hand_out(self, batch: list[Asked], answers: list[bytes]) -> None:
        """Give everybody their own answer, which begins with the id that they sent."""
        if len(answers) != len(batch):
            msg = "the store has answered another call"
            raise exceptions.ConnectionError(msg)
        for asked, answer in zip(batch, answers, strict=True):
            id_, _, text = answer.decode().partition(" ")
            if id_ != asked.message.id:
                msg = "the store has answered another message"
                raise exceptions.ConnectionError(msg)
            if text.startswith("failed "):
                self._refuse(asked, text.removeprefix("failed "))
            elif not asked.answer.done():
                asked.answer.set_result(text)

    def _refuse(self, asked: Asked, reason: str) -> None:
        """The store has answered this message with an error, and changed nothing."""
        error: Exception = StoreError(reason)
        if is_outage(error):
            error = self._ailing = Outage(reason, sent=asked.again)
        _fail(asked, error)

    async def _broken(self, error: Exception) -> None:
        """The round has failed: once more on a new connection, or give up."""
        if not is_outage(error):
            await self._hang_up()
            for asked in [*self._flight, *self._waiting]:
                _fail(asked, error)
            self._waiting.clear()
            return
        fresh = [asked for asked in self._flight if not (asked.again or asked.answer.done())]
        if self._dialed is None or not fresh or len(fresh) < len(self._flight):
            await self._lose(str(error))
            return
        await self._hang_up()
        for asked in reversed(fresh):
            asked.again = True
            self._waiting.appendleft(asked)

    async def _lose(self, reason: str) -> None:
        """The store cannot be reached: whoever waits is told so, and who comes is told at once."""
        self.down = reason
        self._standing.lost(reason)
        self._fail_all(reason)
        await self._hang_up()

    def _fail_all(self, reason: str) -> None:
        for asked in self._flight:
            _fail(asked, Outage(reason, sent=True))
        for asked in self._waiting:
            _fail(asked, Outage(reason, sent=asked.again))
        self._flight = []
        self._waiting.clear()

    async def _recover(self) -> None:
        """Try now and then, until the store is there, has what it was owed, and takes writes."""
        pause = _FIRST_PAUSE
        while True:
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - a spread, not a secret
            pause = min(2 * pause, _LONGEST_PAUSE)
            try:
                if self._dialed is None:
                    await self._connect()
                while self._outbox:
                    await self._deliver_owed()
                async with asyncio.timeout(self._timeout):
                    await self._write()
                break
            except Exception:
                logger.debug("the store cannot be reached yet", exc_info=True)
                await self._hang_up()
        self.down = None
        self._standing.back()

    async def _deliver_the_last(self) -> None:
        """The loop is ending, and so are the callers: what they left undone is done now or not at all."""
        if self.down is not None:
            self._standing.back()
            return
        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.sleep(0)
                while self._outbox:
                    await self._deliver_owed()
        except Exception:
            logger.warning("the store is still owed %d messages", len(self._outbox), exc_info=True)

    async def _write(self) -> None:
        """See whether the store takes writes."""
        if self._dialed is not None:
            await command(self._dialed.connection, "SET", self._probe, "", "PX", "1000")

    async def _deliver_owed(self) -> None:
        """Send some of what the store is owed; what fails on the way is owed still."""
        owed = self._outbox.take(MAX_BATCH)
        batch = [Asked(one.message, self._loop.create_future(), 0.0, again=True) for one in owed]
        try:
            if self._dialed is None:
                await self._connect()
            async with asyncio.timeout(self._timeout):
                await self._exchange(batch)
        finally:
            self._ailing = None
            still: list[Owed] = []
            failed = 0
            for one, asked in zip(owed, batch, strict=True):
                error = asked.answer.exception() if asked.answer.done() else None
                if not asked.answer.done() or isinstance(error, Outage):
                    still.append(one)
                elif error is not None:
                    failed += 1
                    logger.error("a message that was owed has failed", exc_info=error)
            self._outbox.settle(owed, still, failed)
        if still:
            msg = "the store does not take what it is owed"
            raise exceptions.ConnectionError(msg)

    def _oldest(self) -> Asked | None:
        """Who has waited the longest."""
        if self._flight:
            return self._flight[0]
        return self._waiting[0] if self._waiting else None

    def _give_up(self) -> None:
        """Interrupt the round that is under way."""
        self._too_late = True
        self._task.cancel()

    def _is_too_late(self) -> bool:
        """Whether it was the deadline that has interrupted this task, and nothing else has."""
        late, self._too_late = self._too_late, False
        return late and self._task.uncancel() == 0

    async def _hang_up(self) -> None:
        dialed, self._dialed = self._dialed, None
        if dialed is not None:
            try:
                await dialed.connection.disconnect(nowait=True)
            except Exception:
                logger.debug("a connection could not be closed", exc_info=True)


def _fail(asked: Asked, error: Exception) -> None:
    if not asked.answer.done():
        asked.answer.set_exception(error)
