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
    """A connection whose replies are known, a list for each round trip; to the others nothing is said."""

    lost = False

    def __init__(self, *replies: Replies, leaves: bool = False) -> None:
        self._replies = list(replies)
        self._leaves = leaves  # with the last of them

    def call(
        self, commands: Iterable[bytes], count: int, done: Callable[[Replies], object]
    ) -> None:
        """Answer with the next turn of the loop."""
        if self._replies:
            asyncio.get_running_loop().call_soon(self._answer, done)

    def _answer(self, done: Callable[[Replies], object]) -> None:
        replies = self._replies.pop(0)
        self.lost = self._leaves and not self._replies
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


async def test_what_was_never_sent_is_not_sent_again() -> None:
    """R9: a server that goes with its reply has not heard of who has come meanwhile; their answers are the first."""
    line = line_to(Known([b"one held"], leaves=True), Known([b"two held"]))
    first = line.ask(Message("peek", "one", (), ""))
    await until(lambda: bool(line._flight))
    second = line.ask(Message("peek", "two", (), ""))
    assert await first == "held"
    assert type(await second) is str
    await line.aclose(0)


async def test_what_is_owed_at_the_end_is_sent_where_no_reply_is_to_come() -> None:
    """R16: somebody's message is in the air as a line is closed; the reply to that is none to what is owed."""
    outbox = Outbox(10)
    line = line_to(Known(), Known([b"owed done"]), outbox=outbox)
    asked = line.ask(Message("peek", "one", (), ""))
    await until(lambda: bool(line._flight))
    outbox.add(Message("resolve", "owed", (), '["cancel"]'))
    await line.aclose(0)
    with pytest.raises(Outage):
        await asked
    assert not outbox
    assert not outbox.lost
