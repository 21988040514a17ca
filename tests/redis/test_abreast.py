"""Two round trips of one line under way at the same time: in order, and apart from each other (R9, C55)."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable

import pytest
from redis import exceptions

from earmark import Limits, Scope
from earmark.backends.redis.connection import Dialed
from earmark.backends.redis.failures import Outage
from earmark.backends.redis.keys import Keys
from earmark.backends.redis.line import Line
from earmark.backends.redis.messages import Message, Messages
from earmark.backends.redis.owed import Outbox
from earmark.backends.redis.scripts import scripts
from earmark.backends.redis.standing import Standing
from earmark.backends.redis.wire import Replies
from earmark.core.hold import Hold
from earmark.core.joint import Part
from earmark.ids import next_id
from tests.redis.wire import until

pytestmark = pytest.mark.anyio

FORGOTTEN = exceptions.NoScriptError("No matching script.")
READ_ONLY = exceptions.ReadOnlyError("You can't write against a read only replica.")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


class Played:
    """A connection whose replies come when a test says so."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.has_room = True
        self.closed = False
        self._done: deque[Callable[[Replies], object]] = deque()

    @property
    def free(self) -> bool:
        """Whether no reply is to come."""
        return self.has_room and not self._done

    def call(
        self, commands: Iterable[bytes], count: int, done: Callable[[Replies], object]
    ) -> None:
        """Answer later."""
        assert self.has_room
        self.sent.append(b"".join(commands))
        self._done.append(done)

    def reply(self, *replies: object) -> None:
        """To whoever has waited the longest."""
        self._done.popleft()(replies)

    def lose(self) -> None:
        """Nobody is told anything any more."""
        self.has_room = False
        while self._done:
            self._done.popleft()(exceptions.ConnectionError("gone"))

    def carried(self) -> list[list[str]]:
        """The ids of the messages of every round trip."""
        return [_ids(sent) for sent in self.sent]

    async def close(self, *, at_once: bool) -> None:
        """Nobody hears of what is to come."""
        self._done.clear()
        self.closed = True


def _ids(sent: bytes) -> list[str]:
    return re.findall(r"^\d+ \d \d [a-z]+ (\S+) ", sent.decode(), re.MULTILINE)


def line_to(*wires: Played) -> Line:
    """A line whose connections are these, one after the other."""
    coming = iter(wires)
    outbox = Outbox(10)

    async def dial() -> Dialed:
        return Dialed(next(coming), scripts(allow_oom=True))

    return Line(dial, tuple, 5, outbox, "probe", Standing("closed", str, outbox))


def ask(line: Line, id_: str, verb: str = "peek") -> asyncio.Future[str]:
    """Have a message answered."""
    return line.ask(Message(verb, id_, (), "", at_once=verb == "reserve"))


async def asked_in_turns(line: Line, wire: Played, *ids: str) -> list[asyncio.Future[str]]:
    """Each a turn of the loop after the other; the first of them has made the connection."""
    answers = []
    for id_ in ids:
        answers.append(ask(line, id_))
        if not wire.sent:
            await until(lambda: bool(wire.sent))
        await asyncio.sleep(0)
    return answers


async def test_a_second_round_trip_does_not_wait_for_the_first_and_a_third_does() -> None:
    """Issue 5: callers that come while one is under way go at once, and share the next while two are."""
    wire = Played()
    line = line_to(wire)
    answers = await asked_in_turns(line, wire, "one", "two", "three", "four")
    assert wire.carried() == [["one"], ["two"]]
    wire.reply(b"one first")
    await asyncio.sleep(0)
    assert wire.carried() == [["one"], ["two"], ["three", "four"]]
    wire.reply(b"two second")
    wire.reply(b"three third\0four fourth")
    assert await asyncio.gather(*answers) == ["first", "second", "third", "fourth"]
    assert not line.asked
    await line.aclose(0)


async def test_what_a_caller_who_is_alone_asks_leaves_at_once() -> None:
    """Issue 5: without delay when there is only one caller; who was not alone waits for the others of his turn."""
    wire = Played()
    line = line_to(wire)
    (first,) = await asked_in_turns(line, wire, "first")
    wire.reply(b"first seen")
    ask(line, "alone", "reserve")
    assert wire.carried()[1:] == [["alone"]]
    others = [ask(line, id_, "reserve") for id_ in ("two", "three")]
    await asyncio.sleep(0)
    assert wire.carried()[2:] == [["two", "three"]]
    wire.reply(b"alone held 1")
    wire.reply(b"two held 1\0three held 1")
    assert await asyncio.gather(first, *others) == ["seen", "held 1", "held 1"]
    ask(line, "four", "reserve")
    ask(line, "five", "reserve")
    assert len(wire.sent) == 3
    await asyncio.sleep(0)
    assert wire.carried()[3:] == [["four", "five"]]
    await line.aclose(0)


async def test_no_third_leaves_where_one_has_landed_in_the_turn_in_which_others_ask() -> None:
    """Who asked before that goes with the landing, who asks after it at the end of the turn, and nobody besides."""
    wire = Played()
    line = line_to(wire)
    (first,) = await asked_in_turns(line, wire, "first")
    first.add_done_callback(lambda _: ask(line, "again"))
    ask(line, "before")
    wire.reply(b"first seen")
    ask(line, "after")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wire.carried() == [["first"], ["before"], ["after"]]
    await line.aclose(0)


def test_what_leaves_at_once_is_whole(namespace: str) -> None:
    """Issue 5: reserves, and settlements of what is not settled together with others."""
    scope = Scope("alice", Limits(rpm=1))
    messages = Messages(Keys(namespace), 1)

    def settles(hold: Hold) -> bool:
        hold.id, hold.request_id, hold.scopes, hold.asks = next_id(), None, (scope,), {}
        hold.lease_us = None
        assert messages.reserve(hold).at_once
        assert not messages.renew(hold).at_once
        return messages.resolve(hold, "settle", {}, {}).at_once

    assert settles(Hold())
    assert not settles(Part())
    assert not messages.add(scope, {}, None).at_once


@pytest.mark.parametrize("verb", ["resolve", "renew", "add", "peek"])
async def test_what_may_be_one_of_several_waits_for_the_others_of_its_turn(verb: str) -> None:
    """R10: renewals go in one round trip, and so do the settlements of an attempt and of what its request shares."""
    wire = Played()
    line = line_to(wire)
    await asked_in_turns(line, wire, "first")
    wire.reply(b"first seen")
    ask(line, "one", verb)
    ask(line, "two", verb)
    assert len(wire.sent) == 1
    await asyncio.sleep(0)
    assert wire.carried()[1:] == [["one", "two"]]
    await line.aclose(0)


async def test_r9_who_is_under_way_on_a_connection_that_breaks_goes_again_in_order() -> None:
    """R9: all of both round trips in one, each as one that may have come before; who waited has not."""
    wire, other = Played(), Played()
    line = line_to(wire, other)
    answers = await asked_in_turns(line, wire, "one", "two", "three")
    wire.lose()
    await until(lambda: bool(other.sent))
    assert wire.closed
    assert other.carried() == [["one", "two", "three"]]
    for again, id_ in ((b"1", b"one"), (b"1", b"two"), (b"0", b"three")):
        assert b"0 0 " + again + b" peek " + id_ in other.sent[0]
    other.reply(b"one a\0two b\0three c")
    assert await asyncio.gather(*answers) == ["a", "b", "c"]
    assert line.down is None
    await line.aclose(0)


async def test_r9_who_was_answered_before_it_broke_is_not_sent_again() -> None:
    """The first of two was whole."""
    wire, other = Played(), Played()
    line = line_to(wire, other)
    answers = await asked_in_turns(line, wire, "one", "two")
    wire.reply(b"one a")
    wire.lose()
    await until(lambda: bool(other.sent))
    assert other.carried() == [["two"]]
    other.reply(b"two b")
    assert await asyncio.gather(*answers) == ["a", "b"]
    await line.aclose(0)


async def test_c55_a_reply_that_is_none_to_what_was_sent_ends_both() -> None:
    """C55: nothing that comes on that connection is believed, also not what comes for the second."""
    wire, other = Played(), Played()
    line = line_to(wire, other)
    answers = await asked_in_turns(line, wire, "one", "two")
    wire.reply(b"two a")
    wire.reply(b"two b")
    await until(lambda: bool(other.sent))
    assert other.carried() == [["one", "two"]]
    other.reply(b"one c\0two d")
    assert await asyncio.gather(*answers) == ["c", "d"]
    await line.aclose(0)


async def test_whose_script_was_forgotten_goes_again_when_the_other_has_landed() -> None:
    """Somebody has loaded the scripts in between: the second has run, and is not sent again."""
    wire = Played()
    line = line_to(wire)
    answers = await asked_in_turns(line, wire, "one", "two", "three")
    wire.reply(FORGOTTEN)
    await asyncio.sleep(0)
    assert len(wire.sent) == 2  # the third waits: it is behind the first
    wire.reply(b"two b")
    await until(lambda: len(wire.sent) == 3)
    wire.reply(*[b"sha"] * 9)
    await until(lambda: len(wire.sent) == 4)
    wire.reply(b"one a")
    await until(lambda: len(wire.sent) == 5)
    wire.reply(b"three c")
    assert await asyncio.gather(*answers) == ["a", "b", "c"]
    assert [ids for ids in wire.carried() if ids] == [["one"], ["two"], ["one"], ["three"]]
    await line.aclose(0)


async def test_r9_nothing_overtakes_a_settlement_whose_caller_has_gone() -> None:
    """R9: its script is unknown, and that of the reserve is not: the reserve would be given what is settled then."""
    wire = Played()
    line = line_to(wire)
    await asked_in_turns(line, wire, "first")
    wire.reply(b"first seen")
    asked = line.place(Message("resolve", "job", (), ""))
    caller = asked.stays()
    await asyncio.sleep(0)
    caller.cancel()
    assert asked.leave(lambda: None)
    answer = ask(line, "again", "reserve")
    await asyncio.sleep(0)
    wire.reply(FORGOTTEN)
    await until(lambda: len(wire.sent) == 3)
    wire.reply(*[b"sha"] * 9)
    await until(lambda: len(wire.sent) == 4)
    wire.reply(b"job done")
    await until(lambda: len(wire.sent) == 5)
    wire.reply(b"again held 1")
    assert await answer == "held 1"
    assert [ids for ids in wire.carried() if ids] == [["first"], ["job"], ["job"], ["again"]]
    await line.aclose(0)


async def test_the_scripts_of_two_round_trips_are_loaded_once() -> None:
    """A server that was flushed knows none of them."""
    wire = Played()
    line = line_to(wire)
    answers = await asked_in_turns(line, wire, "one", "two")
    wire.reply(FORGOTTEN)
    wire.reply(FORGOTTEN)
    await until(lambda: len(wire.sent) == 3)
    wire.reply(*[b"sha"] * 9)
    await until(lambda: len(wire.sent) == 4)
    wire.reply(b"one a", b"two b")
    assert await asyncio.gather(*answers) == ["a", "b"]
    await line.aclose(0)


async def test_a_connection_that_breaks_takes_along_whose_script_was_forgotten() -> None:
    """R9: nobody of either is left behind."""
    wire, other = Played(), Played()
    line = line_to(wire, other)
    answers = await asked_in_turns(line, wire, "one", "two")
    wire.reply(FORGOTTEN)
    wire.lose()
    await until(lambda: bool(other.sent))
    assert other.carried() == [["one", "two"]]
    other.reply(b"one a\0two b")
    assert await asyncio.gather(*answers) == ["a", "b"]
    await line.aclose(0)


async def test_b52_a_store_that_is_of_no_use_answers_everybody_at_once() -> None:
    """B52: who is under way behind it is told that it may have been applied, and its reply is nobody's."""
    wire = Played()
    line = line_to(wire)
    answers = await asked_in_turns(line, wire, "one", "two", "three")
    wire.reply(READ_ONLY)
    told = await asyncio.gather(*answers, return_exceptions=True)
    assert [isinstance(one, Outage) and one.sent for one in told] == [False, True, False]
    assert line.down is not None
    if not wire.closed:
        wire.reply(b"two late")
    assert not line.asked
    await line.aclose(0)


async def test_b52_the_deadline_of_the_first_ends_both() -> None:
    """B52: replies come in order, so that the second has none either."""
    wire = Played()
    line = line_to(wire)
    answers = await asked_in_turns(line, wire, "one", "two")
    line._give_up()
    told = await asyncio.gather(*answers, return_exceptions=True)
    assert [isinstance(one, Outage) and one.sent for one in told] == [True, True]
    await line.aclose(0)


async def test_what_is_owed_is_delivered_while_callers_keep_coming() -> None:
    """The outbox has its turn as soon as nothing is under way, and nobody leaves before."""
    wire = Played()
    line = line_to(wire)
    answers = await asked_in_turns(line, wire, "one", "two")
    line._outbox.add(Message("resolve", "owed", (), ""))
    line.wake()
    answers.append(ask(line, "three"))
    await asyncio.sleep(0)
    wire.reply(b"one a")
    await asyncio.sleep(0)
    assert len(wire.sent) == 2
    wire.reply(b"two b")
    await until(lambda: len(wire.sent) == 3)
    assert wire.carried()[2] in (["owed"], ["three"])
    wire.reply(wire.carried()[2][0].encode() + b" done")
    await until(lambda: len(wire.sent) == 4)
    wire.reply(wire.carried()[3][0].encode() + b" done")
    assert sorted(wire.carried()[2:]) == [["owed"], ["three"]]
    assert await asyncio.gather(*answers) == ["a", "b", "done"]
    await line.aclose(1)
    assert not line._outbox


async def test_what_is_owed_is_delivered_while_one_caller_keeps_asking() -> None:
    """A reserve of a caller who is alone leaves at once, but not before the outbox has had its turn."""
    wire = Played()
    line = line_to(wire)
    await asked_in_turns(line, wire, "first")

    async def keep_asking() -> None:
        for number in range(20):
            await ask(line, f"{number}", "reserve")

    asking = asyncio.create_task(keep_asking())
    answered = 0
    while not asking.done():
        if answered < len(wire.sent):
            wire.reply(wire.carried()[answered][0].encode() + b" done")
            answered += 1
        if answered == 3:
            line._outbox.add(Message("resolve", "owed", (), ""))
            line.wake()
        await asyncio.sleep(0)
    assert 2 < wire.carried().index(["owed"]) < 6
    await line.aclose(0)


async def test_r19_what_is_under_way_lands_also_where_the_task_of_the_line_was_cancelled() -> None:
    """R19: a program that cancels every task and goes on; replies come without that task."""
    wire = Played()
    line = line_to(wire)
    answers = await asked_in_turns(line, wire, "one", "two")
    line._task.cancel()
    await asyncio.sleep(0)
    wire.reply(b"one a")
    wire.reply(b"two b")
    assert await asyncio.gather(*answers) == ["a", "b"]
    await line.aclose(0)
