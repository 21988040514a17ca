"""What a round trip leaves that has not answered everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import pytest
from redis import exceptions

from earmark.backends.redis.connection import Dialed
from earmark.backends.redis.failures import Outage
from earmark.backends.redis.line import Line
from earmark.backends.redis.messages import Message
from earmark.backends.redis.owed import Outbox
from earmark.backends.redis.scripts import scripts
from earmark.backends.redis.standing import Standing
from earmark.backends.redis.wire import Replies
from tests.redis.wire import until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


FORGOTTEN: Final = exceptions.NoScriptError("No matching script.")
FULL: Final = exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")


class Known:
    """A connection whose replies are known, a list for each round trip; to the others nothing is said.

    Args:
        replies: see above.
        goes: whether the server closes it behind the last of them.
    """

    def __init__(self, *replies: Replies, goes: bool = False) -> None:
        self._replies = list(replies)
        self._goes = goes
        self.free = True
        self.sent: list[bytes] = []

    @property
    def has_room(self) -> bool:
        """One round trip after the other."""
        return self.free

    def call(
        self, commands: Iterable[bytes], count: int, done: Callable[[Replies], object]
    ) -> None:
        """Answer two turns of the loop later."""
        assert self.free
        self.free = False
        self.sent += commands
        loop = asyncio.get_running_loop()
        if self._replies:
            loop.call_soon(loop.call_soon, self._answer, done)

    def _answer(self, done: Callable[[Replies], object]) -> None:
        replies = self._replies.pop(0)
        self.free = bool(self._replies) or not self._goes
        done(replies)

    async def close(self, *, at_once: bool) -> None:
        """Nobody is there."""


def line_to(*wires: Known, outbox: Outbox | None = None) -> Line:
    """A line whose connections are these, one after the other."""
    coming = iter(wires)
    outbox = Outbox(10) if outbox is None else outbox

    async def dial() -> Dialed:
        return Dialed(next(coming), scripts(allow_oom=True))

    return Line(dial, tuple, 5, outbox, "probe", Standing("closed", str, outbox))


LOADED: Final = [b"sha"] * 9


@pytest.mark.parametrize(
    "trips",
    [
        [[FORGOTTEN, FULL]],
        [[FORGOTTEN, FORGOTTEN], LOADED, [FULL, FORGOTTEN]],
        [[FORGOTTEN, FORGOTTEN], LOADED, [FORGOTTEN, FULL]],
    ],
)
async def test_the_line_is_down_before_anybody_goes_on_who_has_heard_of_it(
    trips: list[Replies],
) -> None:
    """Also where a server has forgotten some scripts, and has no room for what another takes: all are told at once."""
    line = line_to(Known(*trips))
    found: list[bool] = []
    asked = [line.ask(Message(verb, verb, (), "")) for verb in ("peek", "add")]
    for answer in asked:
        answer.add_done_callback(lambda _: found.append(line.down is not None))
    told = await asyncio.gather(*asked, return_exceptions=True)
    await asyncio.sleep(0)
    assert [type(one) for one in told] == [Outage, Outage]
    assert found == [True, True]
    await line.aclose(0)


async def test_who_was_not_sent_before_is_not_sent_again() -> None:
    """R9: a server that closes behind a reply has not heard of who waited for the next round trip."""
    first, second = Known([b"one seen"], goes=True), Known([b"two seen"])
    line = line_to(first, second)
    one = line.ask(Message("peek", "one", (), ""))
    await until(lambda: bool(first.sent))
    two = line.ask(Message("peek", "two", (), ""))
    assert [await one, await two] == ["seen", "seen"]
    assert type(await two) is str
    assert b"0 0 0 peek two" in second.sent[0]
    await line.aclose(0)


async def test_c55_what_is_owed_at_the_end_goes_where_no_reply_is_to_come() -> None:
    """C55: the one that is to come would be taken for its own, and it would be owed for ever."""
    first, second = Known(), Known([b"owed done"])
    line = line_to(first, second)
    asked = line.ask(Message("peek", "one", (), ""))
    await until(lambda: bool(first.sent))
    line._outbox.add(Message("resolve", "owed", (), ""))
    await line.aclose(0)
    with pytest.raises(Outage):
        await asked
    assert b"0 0 1 resolve owed" in second.sent[0]
    assert not line._outbox


@pytest.mark.parametrize(
    "reply", [b"\xff\xfe", b"another held", b"", 5, None, [b"peek held"], b"peek held\0"]
)
async def test_what_is_no_answer_is_asked_for_once_more_on_another_connection(
    reply: object,
) -> None:
    """C55: nothing that comes on that connection is believed, and the store is well."""
    line = line_to(Known([reply]), Known([b"peek held"]))
    assert await line.ask(Message("peek", "peek", (), "")) == "held"
    assert line.down is None
    await line.aclose(0)


async def test_b52_a_reply_behind_the_deadline_is_nobodys() -> None:
    """B52, C55: who has waited for too long is told at once, and what comes then changes nothing."""
    line = line_to(Known([b"one held"]))
    asked = line.ask(Message("peek", "one", (), ""))
    await until(lambda: bool(line._flights))
    line._give_up()
    assert asked.done()  # before anything else happens in this turn of the loop
    with pytest.raises(Outage, match="no answer within"):
        await asked
    for _ in range(5):
        await asyncio.sleep(0)
    assert isinstance(line.down, Outage)
    assert not line.asked
    await line.aclose(0)
