"""One connection of one event loop, with everybody's messages on it.

Callers hand in messages and wait for their answers; who is cancelled leaves no reply to somebody else, since what was
sent is read to its end whoever waits (C55). While two round trips are under way the messages that come are collected,
and the next one carries them: a single caller waits for nobody, and many share. As long as all is well no task is
at work (see `trips`); one connects, loads scripts, delivers what is owed, and finds out when the store is back.

A message is either answered, or its caller learns that the store cannot answer, and whether the message may have
reached it. A connection that breaks is made anew once and the messages are sent again, which have an effect once (R9);
after that the line is down, and answers at once that it is, until the store can be reached again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from typing import Final

from earmark.backends.redis.asked import MAX_BATCH, MAX_KEYS, Asked, unanswered
from earmark.backends.redis.connection import Dialed
from earmark.backends.redis.exchange import Landing, call_again, exchange
from earmark.backends.redis.failures import Outage, failure, is_outage, reason_of
from earmark.backends.redis.loops import ENDING, OURS, Beginning, is_ending, others_are_going
from earmark.backends.redis.messages import Message
from earmark.backends.redis.owed import Outbox, Owed, log_failed, log_owed
from earmark.backends.redis.standing import Standing
from earmark.backends.redis.trips import PATIENCE, Trips, fail
from earmark.backends.redis.wire import Wire, command

logger = logging.getLogger("earmark.redis")

# Seconds between two attempts to reach a store that is down: the first, and the most; a random part of each is left
# out, so that a fleet does not come back in step.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0

# A line that ends looks this often, in seconds, whether others are at work still: at first, and at least.
_END_PAUSE: Final = 0.001
_LONGEST_END_PAUSE: Final = 0.1

CLOSED: Final = Outage("the line to the store is closed", sent=True)


class Line(Trips):
    """See above. To be used on one loop alone.

    Args:
        dial: makes a connection.
        header: the arguments that begin every call of a script, as they are now.
        timeout: seconds for which an answer is waited for.
        outbox: what the store is owed; delivered as soon as it can be reached.
        probe: a key to write to, to see that the store takes writes.
        standing: told when the line goes down, and when it is up again.
        brief: whether it ends as soon as there is nothing to do, since its loop is ending.

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
        *,
        brief: bool = False,
    ) -> None:
        super().__init__(header, timeout, outbox, standing)
        self._dial = dial
        self._probe = probe
        self._idle = asyncio.Event()
        self._too_late = self._owed_first = False
        self._pause, self._end_pause = FIRST_PAUSE, _END_PAUSE
        self._draining = self._closing = False
        self._ending = brief and is_ending()  # else the loop has outlived a line, and goes on
        self.down: Exception | None = None
        # The first caller's context is not the line's, which outlives it.
        self._task = self._loop.create_task(Beginning(self._run()), name=OURS, context=Context())

    @property
    def over(self) -> bool:
        """Whether it has ended, with its loop or before, or is about to."""
        return self._closing or self._task.done()

    @property
    def at_work(self) -> bool:
        """Whether there is anything to do, and it can be done."""
        work = self._is_busy or self._outbox.deliverable
        return work and self.down is None and not self.over

    def ask(self, message: Message, *, again: bool = False) -> asyncio.Future[str]:
        """Have a message answered.

        The future raises `Outage`, or `StoreError` for an error that is none.
        """
        return self.place(message, again=again).answer

    def place(self, message: Message, *, again: bool = False) -> Asked:
        """The same, for a caller that wants to know whether it was sent."""
        return self.take(self._asked(message, again=again))

    def _asked(self, message: Message, *, again: bool) -> Asked:
        return Asked(message, self._loop.create_future(), 0.0, again=again)

    def take(self, asked: Asked) -> Asked:
        """Have it answered, as soon as may be."""
        asked.deadline = self._watch.deadline()
        if self.down is not None or self.over:
            fail(asked, failure(self.down or CLOSED, sent=asked.again))
            return asked
        self._queue(asked)
        return asked

    def wake(self) -> None:
        """Deliver what is owed by now."""
        self._wake.set()

    async def aclose(self, seconds: float) -> None:
        """Answer who has asked and deliver what is owed, for at most so many seconds, and close."""
        self._draining = True
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._deliver_all()
        finally:
            self._closing = True
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _deliver_all(self) -> None:
        """Wait until everybody is answered and the store is owed nothing, or the line has ended."""
        while (self._outbox or self.asked) and not self._task.done():
            self._idle.clear()
            self._wake.set()
            idle = asyncio.ensure_future(self._idle.wait())
            try:
                await asyncio.wait([self._task, idle], return_when=asyncio.FIRST_COMPLETED)
            finally:
                idle.cancel()
            if self._outbox:  # another loop has it under way, and may have to put it back
                await asyncio.sleep(_END_PAUSE)

    async def _run(self) -> None:
        try:
            while not self._has_ended():
                try:
                    await self._step()
                except asyncio.CancelledError:
                    is_sound, self._parked = self._parked, False  # a reply comes without this task
                    if self._is_too_late():
                        await self._lose(self._late())
                    elif self._closing or self._ending:
                        raise
                    else:
                        self._task.uncancel()
                        self._task.set_name(ENDING)
                        self._ending = True
                        if not is_sound:
                            await self._send_again()
        finally:
            self._closing = True
            left = self._is_busy or self._outbox or self.down
            self._fail_all(CLOSED)
            self._watch.end()
            if left:
                await self._deliver_the_last()
            await self._hang_up(at_once=self._ending)

    def _has_ended(self) -> bool:
        """Whether the loop is ending, and nobody there needs the line any more.

        A loop that ends has cancelled this task with all the others, and some of those still have to say how a
        reservation has ended: the line goes last. It does not wait for a store that cannot be reached.
        """
        return self._ending and (self.down is not None or not (self.at_work or others_are_going()))

    async def _send_again(self) -> None:
        """What was under way goes out again, on a new connection: the old one may have a reply to come."""
        fresh = list(unanswered(self._under_way))
        for asked in reversed(fresh):
            asked.again = True
            self._waiting.appendleft(asked)
        self._forget()
        await self._hang_up()

    async def _step(self) -> None:
        """Do what is to be done next."""
        if self.down is not None:
            await self._recover()
        elif self._broken_by is not None:
            await self._broken(self._broken_by)
        elif self._flights:
            await self._park()
        elif self._stranded:
            await self._rescue()
        elif self._outbox.deliverable and (self._owed_first or not self._waiting):
            self._owed_first = False
            await self._deliver()
        elif self._waiting:
            self._owed_first = True
            await self._round()
        else:
            self._idle.set()
            await self._park()

    async def _park(self) -> None:
        """Wait until there is anything to do."""
        self._wake.clear()
        if self._ending:
            self._loop.call_later(self._end_pause, self._wake.set)
            self._end_pause = min(2 * self._end_pause, _LONGEST_END_PAUSE)
        self._parked = True
        await self._wake.wait()
        self._parked = False

    async def _round(self) -> None:
        """Begin a round trip for everybody who waits by now."""
        try:
            dialed = await self._ready()
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            await self._broken(error)
        else:
            self._take_off(dialed)

    async def _rescue(self) -> None:
        """See to those whose scripts the store did not know."""
        try:
            dialed = await self._ready()
            left = Landing(self._stranded, None)
            landing = await call_again(dialed, self._header, left, self._standing.answered)
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            await self._broken(error)
            return
        self._stranded = landing.unknown
        if landing.ailing is not None:
            await self._lose(landing.ailing)

    async def _deliver(self) -> None:
        """Deliver some of what is owed, as long as the store can be reached."""
        try:
            ailing = await self._deliver_owed(watched=True)
        except Exception as error:  # noqa: BLE001 - it is owed still
            # A connection that has worked may have been closed meanwhile.
            ailing = None if self._proven and is_outage(error) else error
            await self._hang_up()
        if ailing is not None:
            await self._lose(ailing)

    async def _ready(self) -> Dialed:
        """The connection, made where there is none."""
        if self._dialed is not None and not self._dialed.wire.free:
            await self._hang_up()
        if self._dialed is None:
            self._proven = False
            deadline = self._watch.deadline()
            for asked in (*self._under_way, *self._waiting):
                asked.deadline = deadline
            self._watch.patient = True
            try:
                self._dialed = await self._dial()
            finally:
                self._watch.patient = False
        return self._dialed

    async def _broken(self, error: Exception) -> None:
        """The round has failed: once more on a new connection, or give up."""
        again = any(asked.again for asked in unanswered(self._under_way))
        if self._dialed is None or not is_outage(error) or again:
            await self._lose(error)
            return
        await self._send_again()

    async def _lose(self, error: Exception) -> None:
        """The store is of no use now: whoever waits is told so, and who comes is told at once."""
        self._fall(error)
        await self._hang_up()

    def _fall(self, error: Exception) -> None:
        if self.down is None:
            self._pause = FIRST_PAUSE
            self._standing.lost()
        self.down = error
        self._standing.found(
            reason_of(error), passes=isinstance(failure(error, sent=False), Outage)
        )
        self._fail_all(error)

    async def _recover(self) -> None:
        """Try once, after a pause: the store is back when it has what it was owed, and takes writes."""
        await self._hang_up()
        await asyncio.sleep(self._pause * random.uniform(0.5, 1))  # noqa: S311 - a spread, not a secret
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        ailing: Exception | None = None
        try:
            for _ in range(max(1, -(-len(self._outbox) // MAX_BATCH))):
                async with asyncio.timeout(PATIENCE * self._timeout):
                    ailing = await self._deliver_owed() or ailing
            async with asyncio.timeout(PATIENCE * self._timeout):
                await self._try_to_write((await self._ready()).wire)
        except Exception as error:  # noqa: BLE001 - it is kept, and told to whoever asks
            ailing = error
        if ailing is not None:
            await self._lose(self._late() if isinstance(ailing, TimeoutError) else ailing)
            return
        self.down = None
        self._standing.back()

    async def _try_to_write(self, wire: Wire) -> None:
        await command(wire, "SET", self._probe, "", "PX", "1000")

    def _late(self) -> Outage:
        return Outage(f"no answer within {self._timeout:g} s", sent=True)

    async def _deliver_the_last(self) -> None:
        """The loop is ending, and so are the callers: what they left undone is done now or not at all."""
        if self.down is not None:
            self._standing.gone()
            return
        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.sleep(0)
                while self._outbox.deliverable and await self._deliver_owed() is None:
                    pass
        except Exception:
            logger.debug("the store did not take all that it is owed", exc_info=True)
        if self._outbox:
            log_owed(logging.WARNING, len(self._outbox))

    async def _deliver_owed(self, *, watched: bool = False) -> Exception | None:
        """Send some of what the store is owed; what fails on the way is owed still.

        Returns why the store does not take it, although it answers, or None.
        """
        owed = self._outbox.take(MAX_BATCH, MAX_KEYS)
        deadline = self._watch.deadline()
        batch = [self._asked(one.message, again=True) for one in owed]
        for asked in batch:
            asked.deadline = deadline
        try:
            if watched:
                self._flights.append(batch)
                self._watch.begin()
            dialed = await self._ready()
            return await exchange(dialed, self._header, batch, self._standing.answered)
        finally:
            self._flights.clear()
            self._settle(owed, batch)

    def _settle(self, owed: list[Owed], batch: list[Asked]) -> None:
        """See what has become of what was owed."""
        still: list[Owed] = []
        failed = 0
        for one, asked in zip(owed, batch, strict=True):
            error = asked.answer.exception() if asked.answer.done() else None
            if not asked.answer.done() or isinstance(error, Outage):
                still.append(one)
            elif error is not None:
                failed += 1
                log_failed(error)
            else:
                then = one.message.follows(asked.answer.result())
                still.extend(Owed(one.since, message) for message in then)
        self._outbox.settle(owed, still, failed)

    def _is_wanted(self) -> bool:
        return self._ending or self._draining

    def _give_up(self) -> None:
        """An answer that comes in this very turn of the loop is too late for whoever waits, and no earlier one is."""
        if self._parked:
            self._fall(self._late())
            self._wake.set()
        else:
            self._too_late = True
            self._task.cancel()

    def _is_too_late(self) -> bool:
        """Whether it was the deadline that has interrupted this task, and nothing else has."""
        late, self._too_late = self._too_late, False
        return late and self._task.uncancel() == 0

    async def _hang_up(self, *, at_once: bool = True) -> None:
        dialed, self._dialed = self._dialed, None
        if dialed is not None:
            try:
                async with asyncio.timeout(self._timeout):  # TLS waits for the server
                    await dialed.wire.close(at_once=at_once)
            except Exception:
                logger.debug("a connection could not be closed", exc_info=True)
