"""C55: what stands between messages and a connection: every reply is read to its end, and goes to whoever asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import exceptions
from redis.asyncio.connection import Connection

from earmark.backends.redis import dialing
from earmark.backends.redis.wire import (
    LOST,
    PUSH,
    MethodsWire,
    Replies,
    StreamWire,
    ask,
    command,
    pack,
    reply_at,
    wire_of,
)
from tests.reached import Reached
from tests.redis.wire import until
from tests.servers import HOST, RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


# A reply as it is written, and what it is read as.
Reply = tuple[bytes, object]

LINES: Final = st.binary(max_size=8).map(lambda line: line.translate(None, b"\r\n"))
NUMBERS: Final = st.integers(-(2**63), 2**63 - 1)


def listed(mark: bytes, items: list[Reply], count: int) -> Reply:
    """A list of replies, with the count that stands in front."""
    return (
        b"%b%d\r\n" % (mark, count) + b"".join(written for written, _ in items),
        [read for _, read in items],
    )


def replies(inner: st.SearchStrategy[Reply]) -> st.SearchStrategy[Reply]:
    """Lists and maps of replies."""
    lists = st.lists(inner, max_size=4)
    pairs = st.lists(st.tuples(inner, inner), max_size=2)
    return (
        st.tuples(st.sampled_from([b"*", b"~"]), lists).map(lambda one: listed(*one, len(one[1])))
    ) | pairs.map(lambda some: listed(b"%", [one for pair in some for one in pair], len(some)))


PLAIN: Final[st.SearchStrategy[Reply]] = st.one_of(
    st.binary(max_size=30).map(lambda data: (b"$%d\r\n%b\r\n" % (len(data), data), data)),
    st.binary(max_size=9).map(lambda data: (b"=%d\r\ntxt:%b\r\n" % (len(data) + 4, data), data)),
    st.tuples(st.sampled_from([b"+", b",", b"#", b"("]), LINES).map(
        lambda one: (b"%b%b\r\n" % one, one[1])
    ),
    NUMBERS.map(lambda number: (b":%d\r\n" % number, number)),
    st.sampled_from([(b"$-1\r\n", None), (b"*-1\r\n", None), (b"_\r\n", None)]),
)
ANY: Final = st.recursive(PLAIN, replies, max_leaves=8)


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """The pieces between the places."""
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = self.left = False
        self._protocol: asyncio.BaseProtocol = asyncio.Protocol()

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self.left

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = self.left = True


class Stands:
    """A connection of redis-py's that stands."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.sent = b""
        self.closed: list[bool] = []
        self.silent = self.stays = self.reading = False

    async def connect(self) -> None:
        pass

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        self.sent += b"".join(command)

    async def read_response(self) -> Any:
        await asyncio.sleep(0)
        if self.silent:
            await self._forever()
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def disconnect(self, nowait: bool = False) -> None:
        self.closed.append(nowait)
        if self.stays:
            await self._forever()

    async def _forever(self) -> None:
        self.reading = True
        try:
            await asyncio.Event().wait()
        finally:
            self.reading = False


class Writer(asyncio.StreamWriter):
    """That of a transport which has nothing to close."""

    def __del__(self) -> None:
        pass


def stream_wire() -> tuple[StreamWire, Transport, Stands]:
    """A wire over a transport that a test plays the server of."""
    transport = Transport()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport.set_protocol(protocol)
    connection = Stands()
    wire = StreamWire(connection, Writer(transport, protocol, reader, loop))
    return wire, transport, connection


def test_replies_are_the_same_however_they_are_cut() -> None:
    """Wherever the network cuts, and whatever a server says in between without being asked."""
    reached = Reached("replies on a wire")
    read_back(reached)
    reached.require(0.1, {"in pieces", "push", "several calls"})


def read_back(reached: Reached) -> None:
    """Write replies, and see that they are read."""

    @given(
        some=st.lists(st.tuples(ANY, st.booleans()), min_size=1, max_size=6),
        places=st.lists(st.integers(0, 2_000), max_size=12),
        first=st.integers(0, 5),
    )
    def play(some: list[tuple[Reply, bool]], places: list[int], first: int) -> None:
        asyncio.run(read(some, places, min(first, len(some))))

    async def read(some: list[tuple[Reply, bool]], places: list[int], first: int) -> None:
        wire, _, _ = stream_wire()
        told: list[object] = []
        calls = [count for count in (first, len(some) - first) if count]
        for count in calls:
            wire.call([b"asked"], count, told.append)
        push = b">2\r\n$7\r\nmessage\r\n:1\r\n"
        pieces = cut(b"".join(push * pushed + one for (one, _), pushed in some), places)
        for piece in pieces:
            assert len(told) < len(calls)
            wire.data_received(piece)
        every = [expected for (_, expected), _ in some]
        assert told == [part for part in (every[:first], every[first:]) if part]
        marks = {
            "in pieces": len(pieces) > 1,
            "push": any(pushed for _, pushed in some),
            "several calls": len(calls) > 1,
        }
        reached.history(mark for mark, met in marks.items() if met)

    play()


async def test_c55_whoever_asks_behind_another_is_told_the_reply_behind_the_others() -> None:
    """C55: also where the first has gone, and where both replies come in one piece."""
    wire, transport, _ = stream_wire()
    told: list[Replies] = []
    gone = asyncio.ensure_future(ask(wire, b"one"))
    await asyncio.sleep(0)
    wire.call([b"two", b"three"], 2, told.append)
    wire.call([b"four"], 1, told.append)
    assert wire.has_room
    gone.cancel()
    await asyncio.wait([gone])
    assert transport.written == b"onetwothreefour"
    wire.data_received(b"+1\r\n+2\r\n")
    assert told == []
    wire.data_received(b"+3\r\n+4\r\n")
    assert told == [[b"2", b"3"], [b"4"]]
    assert wire.free


async def test_all_who_wait_are_told_that_the_server_has_gone() -> None:
    """In their order; a reply that was whole by then is an answer."""
    wire, _, _ = stream_wire()
    told: list[tuple[int, Replies]] = []

    def tell(number: int, replies: Replies) -> None:
        told.append((number, replies))

    for number in range(3):
        wire.call([b"asked"], 1, partial(tell, number))
    wire.data_received(b"+one\r\n+tw")
    wire.connection_lost(None)
    assert told[0] == (0, [b"one"])
    assert [(number, type(replies)) for number, replies in told[1:]] == [
        (1, exceptions.ConnectionError),
        (2, exceptions.ConnectionError),
    ]
    assert not wire.has_room


async def test_errors_are_what_redis_py_makes_of_them() -> None:
    """The table of failures goes by their classes."""
    wire, transport, _ = stream_wire()
    asking = asyncio.ensure_future(ask(wire, b"a", b"b", b"c", b"d"))
    await asyncio.sleep(0)
    assert transport.written == b"abcd"
    wire.data_received(
        b"-NOSCRIPT No matching script\r\n-ERR no\r\n!21\r\nSYNTAX invalid syntax\r\n-LOADING wait\r\n"
    )
    found = await asking
    assert [type(one) for one in found] == [
        exceptions.NoScriptError,
        exceptions.ResponseError,
        exceptions.ResponseError,
        exceptions.BusyLoadingError,
    ]


@pytest.mark.parametrize(
    "junk",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"$x\r\n",
        b"*1\r\n?\r\n",
        b"*1\r\n" * 100_000,
        b"-MOVED 1\r\n",
        b"+one\r\n+too many\r\n",
        b"+one\r\n-too",
    ],
)
async def test_what_is_no_reply_ends_the_connection(junk: bytes) -> None:
    """Whoever waits is told, and nothing that comes after it is believed."""
    wire, transport, _ = stream_wire()
    asking = asyncio.ensure_future(ask(wire, b"asked"))
    await asyncio.sleep(0)
    wire.data_received(junk)
    assert transport.aborted
    with pytest.raises(exceptions.ConnectionError):
        await asking


@pytest.mark.parametrize("early", [b"-ERR upstream failure\r\n", b"$4\r\nsom", b"\0"])
async def test_c55_what_comes_before_it_was_asked_is_nobodys_answer(early: bytes) -> None:
    """C55: the next one who asks would be told it, and who asks after that the answer of the first."""
    wire, transport, _ = stream_wire()
    wire.data_received(early)
    assert transport.aborted
    assert not wire.free
    with pytest.raises(exceptions.ConnectionError, match=LOST):
        await ask(wire, b"asked")
    assert transport.written == b""


async def test_what_is_pushed_may_come_in_pieces_while_nobody_asks() -> None:
    """It is read to its end, and the answer behind it is the one."""
    wire, transport, _ = stream_wire()
    wire.data_received(b">2\r\n$7\r\nmess")
    wire.data_received(b"age\r\n:1\r\n")
    assert not transport.aborted
    asking = asyncio.ensure_future(ask(wire, b"asked"))
    await asyncio.sleep(0)
    wire.data_received(b"+OK\r\n>1\r\n:")
    assert await asking == [b"OK"]
    assert wire.free


async def test_nothing_is_written_to_a_transport_that_closes() -> None:
    """It closes a turn of the loop before anybody is told: uvloop raises, others watch a socket that is gone."""
    wire, transport, _ = stream_wire()
    transport.left = True
    told: list[Replies] = []
    wire.call([b"asked"], 1, told.append)
    await asyncio.sleep(0)
    assert transport.written == b""
    assert [type(one) for one in told] == [exceptions.ConnectionError]


def test_r19_wires_of_two_threads_are_lost_at_the_same_moment() -> None:
    """R19: that is what a restart of the server is; whoever is told of one hears it while the other is told of."""
    told = threading.Event()
    together = [False]

    async def lose(done: Callable[[Replies], object]) -> None:
        wire, transport, _ = stream_wire()
        transport.left = True
        wire.call([b"asked"], 1, done)
        await asyncio.sleep(0)

    def wait(_: Replies) -> None:
        other = threading.Thread(target=asyncio.run, args=[lose(lambda _: told.set())])
        other.start()
        together[0] = told.wait(5)
        other.join()

    asyncio.run(lose(wait))
    assert together == [True]


async def test_who_waits_is_told_that_the_server_has_gone() -> None:
    """So is who asks after that; the stream of redis-py hears of it too, which waits for that when it closes."""
    wire, transport, connection = stream_wire()
    stream: Any = wire._stream
    asking = asyncio.ensure_future(ask(wire, b"asked"))
    await asyncio.sleep(0)
    wire.eof_received()
    assert not wire.free
    wire.connection_lost(None)
    for _ in range(2):
        with pytest.raises(exceptions.ConnectionError, match=LOST):
            await asking
        asking = asyncio.ensure_future(ask(wire, b"again"))
    with pytest.raises(exceptions.ConnectionError, match=LOST):
        await asking
    assert transport.written == b"asked"
    assert stream._closed.done()
    await wire.close(at_once=False)
    assert connection.closed == [False]


@pytest.mark.parametrize("methods", [False, True])
async def test_c55_of_a_wire_that_was_closed_nobody_hears(methods: bool) -> None:
    """C55: a reply that was under way is nobody's."""
    told: list[Replies] = []
    if methods:
        connection = Stands(b"late")
        wire: StreamWire | MethodsWire = MethodsWire(connection)
        wire.call([b"asked"], 1, told.append)
        await asyncio.sleep(0)
    else:
        wire, _, connection = stream_wire()
        wire.call([b"asked"], 1, told.append)
        await wire.close(at_once=True)
        wire.data_received(b"$4\r\nlate\r\n")
        wire.connection_lost(None)
    await wire.close(at_once=True)
    for _ in range(5):
        await asyncio.sleep(0)
    assert told == []
    assert set(connection.closed) == {True}


@pytest.mark.parametrize("at_once", [False, True])
async def test_nothing_is_left_of_a_wire_whose_server_does_not_say_goodbye(at_once: bool) -> None:
    """TLS waits for that for half a minute, and its loop may have ended by then."""
    wire, transport, connection = stream_wire()
    connection.stays = not at_once
    closing = asyncio.ensure_future(wire.close(at_once=at_once))
    await asyncio.sleep(0)
    assert transport.aborted is at_once
    closing.cancel()
    await asyncio.wait([closing])
    assert transport.aborted


async def test_nothing_is_left_of_a_connection_that_was_not_made_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever makes it is interrupted, and so is who reads for it."""
    connection = Stands()
    connection.silent = True
    monkeypatch.setattr(dialing, "_connection", lambda *_: connection)
    node: Any = None
    for making in (dialing.Dialer(node, check_clock=False).dial(), dialing.slots_of(node, node)):
        dials = asyncio.ensure_future(making)
        await until(lambda: connection.reading)
        dials.cancel()
        await asyncio.wait([dials])
        await asyncio.sleep(0)
        assert not connection.reading
    assert connection.closed == [True, True]


async def test_a_connection_without_a_transport_is_used_by_its_methods() -> None:
    """That of a stand-in for a server has none."""
    connection = Stands(b"one", exceptions.ResponseError("two"), OSError("gone"))
    wire = wire_of(connection)
    assert isinstance(wire, MethodsWire)
    first, second = await ask(wire, b"a", b"b")
    assert first == b"one"
    assert isinstance(second, exceptions.ResponseError)
    assert connection.sent == b"ab"
    with pytest.raises(OSError, match="gone"):
        await command(wire, "GET", "é")
    assert connection.sent == b"ab" + pack("GET", "é")


@pytest.mark.parametrize("begun", [True, False])
async def test_a_round_trip_by_methods_that_is_cancelled_has_failed(begun: bool) -> None:
    """A loop that ends cancels its task, as it does all others: whoever waits is told, also where it had not begun."""
    wire = MethodsWire(Stands(b"late"))
    told: list[Replies] = []
    wire.call([b"asked"], 1, told.append)
    if begun:
        await asyncio.sleep(0)
    (task,) = [one for one in asyncio.all_tasks() if one.get_name() == "earmark.redis.wire"]
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    (failed,) = told
    assert isinstance(failed, exceptions.ConnectionError)


def test_a_push_stands_for_no_reply() -> None:
    """It is read to its end all the same."""
    assert reply_at(bytearray(b">1\r\n:1\r\n+OK\r\n"), 0) == (PUSH, 8)
    assert reply_at(bytearray(b">1\r\n:1"), 0) is None


class Counting(Connection):
    """A class of the user's own, which does something besides."""

    async def read_response(self, *arguments: Any, **named: Any) -> Any:
        return await super().read_response(*arguments, **named)


async def test_what_a_class_of_the_users_own_does_is_not_passed_over(
    shared_redis: RedisServer, namespace: str
) -> None:
    """Its methods are used; those of redis-py's own classes are not."""
    for kind, expected in ((Counting, MethodsWire), (Connection, StreamWire)):
        connection: Any = kind(host=HOST, port=shared_redis.port)
        await connection.connect()
        wire = wire_of(connection)
        assert isinstance(wire, expected)
        assert await command(wire, "SET", namespace, "x", "PX", "1000") == b"OK"
        await wire.close(at_once=False)


async def test_a_wire_with_a_reply_to_come_is_not_free() -> None:
    """C55: whoever asked may have gone; the reply is none to what is sent next."""
    wire, _, _ = stream_wire()
    asking = asyncio.ensure_future(ask(wire, b"asked"))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    assert not wire.free
    wire.data_received(b"+late\r\n")
    assert wire.free
