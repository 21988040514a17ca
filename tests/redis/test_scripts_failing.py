"""Messages that fail: each changes nothing, or nothing that could count twice or stay for ever, and disturbs no other.

The scripts are run as the library runs them, by a plain client: as this user or that, at this instant or that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pytest
import redis
from redis import exceptions
from redis.asyncio import Redis

from earmark import Limit, Limits, Scope
from earmark.backends.redis.asked import Asked
from earmark.backends.redis.connection import Dialed
from earmark.backends.redis.dialing import Dialer
from earmark.backends.redis.exchange import exchange
from earmark.backends.redis.failures import Outage, StoreError
from earmark.backends.redis.keys import Keys
from earmark.backends.redis.messages import Message, Messages
from earmark.backends.redis.scripts import COMMANDS, FREES, TAKES, scripts
from earmark.backends.redis.wire import Replies
from earmark.core.hold import Hold
from earmark.core.joint import Joint
from earmark.ids import next_id
from tests.redis.rights import server
from tests.servers import HOST, RedisServer

__all__ = ["server"]

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND
LEASE: Final = 60 * SECOND
KEEP: Final = 3_600 * SECOND
GRACE_MS: Final = 5_000
NOW: Final = 20_000 * DAY + 1_234

KEYS: Final = Keys("earmark")
MESSAGES: Final = Messages(KEYS, LEASE)

FIRST: Final = Scope("first", Limits(tpd=10_000))
SECOND_ONE: Final = Scope(
    "second", Limits(concurrency=5, also=[Limit("tokens", 9_000, 86_400, "token_bucket")])
)

IMMORTAL: Final = -1


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture
def admin(server: RedisServer) -> Iterator[redis.Redis]:
    """A client that may do everything, on a server with nothing in it."""
    with server.client(decode_responses=True) as client:
        client.flushall()
        yield client


def run(
    client: redis.Redis, verb: str, *said: tuple[tuple[str, ...], str], at: int = NOW
) -> list[str]:
    """Run messages, each its keys and its text, as one call of a script; return their answers."""
    script = scripts(allow_oom=True)[verb]
    keys = [key for one, _ in said for key in one]
    header = (str(at), str(GRACE_MS), str(KEEP), str(60 * SECOND))
    told: Any = client.eval(script.text, len(keys), *keys, *header, *(text for _, text in said))
    return str(told).split("\0")


def say(client: redis.Redis, message: Message, at: int = NOW, *, again: bool = False) -> str:
    """Run one message; return its answer without the id."""
    (answer,) = run(client, message.verb, (message.keys, message.text(again=again)), at=at)
    id_, _, text = answer.partition(" ")
    assert id_ == message.id
    return text


def hold_of(*scopes: Scope, tokens: int = 1_000, request_id: str | None = None) -> Hold:
    hold = Hold()
    hold.id = next_id()
    hold.request_id = request_id
    hold.scopes = scopes
    hold.asks = {"tokens": tokens}
    hold.lease_us = None
    return hold


def contents(admin: redis.Redis) -> dict[str, object]:
    """Every key with what is under it."""
    found: dict[str, object] = {}
    for key in admin.scan_iter():
        kind: Any = admin.type(key)
        if kind == "zset":
            found[key] = admin.zrange(key, 0, -1, withscores=True)
        else:
            found[key] = admin.get(key) if kind == "string" else admin.lrange(key, 0, -1)
    return found


def used(admin: redis.Redis, scope: Scope) -> list[str]:
    """What a peek sees of a scope."""
    return say(admin, MESSAGES.peek((scope,))).split(" ")[2:]


SPOILED: Final[dict[str, tuple[str, Callable[[redis.Redis, str], object]]]] = {
    "counts": (KEYS.counts("second"), lambda client, key: client.lpush(key, "x")),
    "counts that are no JSON": (KEYS.counts("second"), lambda client, key: client.set(key, "x")),
    "counts of another make": (
        KEYS.counts("second"),
        lambda client, key: client.set(key, f'[{NOW},["b86400:t",1,2,3],["zz",1]]'),
    ),
    "slots": (KEYS.slots("second"), lambda client, key: client.set(key, "x")),
}


# A renewal reads no more of counts than resets, and a reset no slots.
UNREAD: Final = {("renew", "counts of another make"), ("reset", "slots")}
FAILING: Final = [
    (verb, spoiled)
    for verb in ("reserve", "joint", "cancel", "settle", "withdraw", "renew", "reset")
    for spoiled in SPOILED
    if (verb, spoiled) not in UNREAD
]


@pytest.mark.parametrize(("verb", "spoiled"), FAILING)
@pytest.mark.parametrize("request_id", [None, "mine"])
def test_one_that_fails_changes_nothing(
    admin: redis.Redis, verb: str, spoiled: str, request_id: str | None
) -> None:
    """R3, R5: what is wrong with the second scope shows before the first is written, however often it is tried."""
    hold = hold_of(FIRST, SECOND_ONE, request_id=request_id)
    other = hold_of(FIRST, SECOND_ONE, tokens=3_000)
    for one in (other, hold):
        assert say(admin, MESSAGES.reserve(one)).startswith("held")
    message = {
        "reserve": MESSAGES.reserve(hold_of(FIRST, SECOND_ONE)),
        "joint": MESSAGES.reserve(Joint(hold_of(FIRST), hold_of(SECOND_ONE))),
        "cancel": MESSAGES.resolve(hold, "cancel", {}, {}),
        "settle": MESSAGES.resolve(hold, "settle", {"tokens": 1_500}, {}),
        "withdraw": MESSAGES.resolve(hold, "withdraw", {}, {}),
        "renew": MESSAGES.renew(hold),
        "reset": MESSAGES.reset((FIRST, SECOND_ONE)),
    }[verb]
    key, spoil = SPOILED[spoiled]
    admin.delete(key)
    spoil(admin, key)
    before = contents(admin)
    for _ in range(3):
        assert say(admin, message).startswith("failed ")
        assert contents(admin) == before
    assert used(admin, FIRST) == ["4000"]


def test_what_failed_is_done_once_when_all_is_well_again(admin: redis.Redis) -> None:
    """R5: a cancel that was tried three times gives back once."""
    hold, other = hold_of(FIRST, SECOND_ONE), hold_of(FIRST, SECOND_ONE, tokens=3_000)
    for one in (other, hold):
        say(admin, MESSAGES.reserve(one))
    admin.rename(KEYS.slots("second"), "kept")
    admin.set(KEYS.slots("second"), "x")
    cancel = MESSAGES.resolve(hold, "cancel", {}, {})
    assert all("WRONGTYPE" in say(admin, cancel) for _ in range(3))
    admin.rename("kept", KEYS.slots("second"))
    assert say(admin, cancel) == "done"
    assert (used(admin, FIRST)[0], used(admin, SECOND_ONE)[0]) == ("3000", "1")


def test_a_scope_of_another_type_fails_an_addition(admin: redis.Redis) -> None:
    """Nothing remembers that it was counted."""
    admin.lpush(KEYS.counts("first"), "x")
    for target in (FIRST, "first"):
        message = MESSAGES.add(target, {"tokens": 5}, "mine")
        assert say(admin, message).startswith("failed ")
    assert contents(admin) == {KEYS.counts("first"): ["x"]}


# Users who may not run one command.


def user_without(server: RedisServer, admin: redis.Redis, *commands: str) -> str:
    """The URL of a user who may run everything that the scripts run but this."""
    rights = [f"+{name.lower()}" for name in COMMANDS if name not in commands]
    admin.execute_command(  # type: ignore[no-untyped-call]
        *("ACL", "SETUSER", "poor", "reset", "on", ">word", "~earmark:*", "-@all"),
        *("+eval", "+evalsha", "+script|load", "+info", "+time", *rights),
    )
    return f"redis://poor:word@{HOST}:{server.port}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_right_leaves_nothing_for_ever(
    server: RedisServer, admin: redis.Redis, command: str
) -> None:
    """R5, R14: no key without an end, nothing given back twice, and no slot that no lease ends."""
    hold, other = hold_of(FIRST, SECOND_ONE), hold_of(FIRST, SECOND_ONE, tokens=3_000)
    for one in (other, hold):
        say(admin, MESSAGES.reserve(one))
    with redis.Redis.from_url(user_without(server, admin, command), decode_responses=True) as poor:
        failed = 0
        fresh = (Scope("third", FIRST.limits), Scope("fourth", SECOND_ONE.limits))
        for message in (
            MESSAGES.reserve(hold_of(*fresh)),
            MESSAGES.reserve(Joint(hold_of(fresh[0]), hold_of(fresh[1]))),
            MESSAGES.reserve(hold_of(FIRST, SECOND_ONE, request_id="mine")),
            MESSAGES.renew(hold),
            MESSAGES.resolve(hold, "cancel", {}, {}),
            MESSAGES.add(FIRST, {"tokens": 0}, "mine"),
            MESSAGES.reset(fresh),
        ):
            for _ in range(3):
                failed += say(poor, message).startswith("failed ")
                assert [key for key in admin.keys() if admin.pttl(key) == IMMORTAL] == []  # noqa: SIM118
        assert failed or command == "EXISTS"
    count = int(used(admin, FIRST)[0])
    assert count >= 3_000  # what the other one holds


@pytest.mark.anyio
@pytest.mark.parametrize("command", COMMANDS)
async def test_a_missing_right_shows_when_the_line_is_made(
    server: RedisServer, admin: redis.Redis, command: str
) -> None:
    """It is named, and it is no outage."""
    admin.script_flush()
    for flush in (True, False):
        if flush:
            admin.script_flush()
        async with Redis.from_url(user_without(server, admin, command)) as client:
            dialer = Dialer(client, check_clock=False, probe=KEYS.probe)
            with pytest.raises(StoreError, match=f"may not run {command}: "):
                await dialer.dial()
    assert contents(admin) == {}


@pytest.mark.anyio
async def test_all_rights_are_enough(server: RedisServer, admin: redis.Redis) -> None:
    """Nothing is left behind, whatever stood under the key."""
    admin.set(KEYS.probe, "", px=1_000)
    for _ in range(2):
        async with Redis.from_url(user_without(server, admin)) as client:
            dialed = await Dialer(client, check_clock=False, probe=KEYS.probe).dial()
            await dialed.wire.close(at_once=False)
        assert contents(admin) == {}


@pytest.mark.anyio
async def test_a_server_that_takes_no_writes_denies_no_rights(
    server: RedisServer, admin: redis.Redis
) -> None:
    """That passes by itself: what frees must get through as soon as it can."""
    admin.config_set("min-replicas-to-write", 3)
    try:
        async with Redis.from_url(user_without(server, admin)) as client:
            dialed = await Dialer(client, check_clock=False, probe=KEYS.probe).dial()
            await dialed.wire.close(at_once=False)
    finally:
        admin.config_set("min-replicas-to-write", 0)


# Messages that nobody can read.

UNREADABLE: Final = (
    "{n} 0 0 verb  {body}",
    "{n} 0 0  id {body}",
    "{n} x 0 verb id {body}",
    "{n} 0 0 verb",
    "{n}",
    "{n} 0 0 verb a b {body}",
    "{n} 0 0 verb\n{body}",
)

BODIES: Final = (
    *("", "{", "5", "null", '"x"', "[]", "[1]", "{}", "[0,5]", "[0,{}]", "[0,{},[]]", "[0,{},5]"),
    *(
        '["settle"]',
        '["settle",{}]',
        '["settle",{},{}]',
        '["cancel",{},{},5]',
        '["cancel",5,{},"x"]',
    ),
    *('[0,{"t":"x"},["first","f60:t",5]]', '[0,{"t":5},["first","f60:t","x"]]'),
    *(
        '[0,{"t":5},["first","z60:t",5]]',
        '[0,{"t":5},["first","f60:t"]]',
        '[0,{},["first",5,5]]',
    ),
    *(
        '["settle",{"t":"x"},{},"x",1]',
        '["settle",{"t":{}},{},"x",1]',
        '["settle",{"t":1},{},null,1]',
    ),
    '[1,{"t":"x"},"f60:t",5]',
    *(
        "\n",
        "5 0\n{",
        "x\n[0,{}]",
        "[0,{}]\n",
        "[0,{}]\n5",
        '[0,{}]\n[0,{},["second","f60:t","x"]]',
    ),
)


def malformed() -> Iterator[tuple[str, str]]:
    """A script's verb, and a text that no `Message` makes."""
    for verb in (*TAKES, *FREES):
        yield from ((verb, text) for text in UNREADABLE)
        for body in BODIES:
            yield verb, f"{{n}} 0 0 {verb} id {body.replace('{', '{{').replace('}', '}}')}"


def neighbour(verb: str, number: int) -> tuple[Message, str]:
    """A message of this verb that touches nobody else's keys, and how its answer begins."""
    scope = Scope(f"n{number}", FIRST.limits)
    made = {
        "reserve": (MESSAGES.reserve(hold_of(scope)), "held"),
        "claim": (MESSAGES.claim(hold_of(scope, request_id=f"n{number}"), f"{NOW} 0"), "held"),
        "add": (MESSAGES.add(scope, {"tokens": 5}, None), "counted"),
        "resolve": (MESSAGES.resolve(hold_of(scope), "cancel", {}, {}), "gone"),
        "renew": (MESSAGES.renew(hold_of(scope)), "gone"),
        "peek": (MESSAGES.peek((scope,)), "seen"),
        "reset": (MESSAGES.reset((scope,)), "done"),
        "present": (
            Message("present", f"id{number}", (f"{KEYS.replicas}{number}",), f"{LEASE}"),
            "alive 1",
        ),
        "rights": (Message("rights", f"id{number}", (KEYS.probe,), "GET"), "allowed"),
    }
    return made[verb]


@pytest.mark.parametrize(("verb", "text"), [*malformed()])
def test_a_message_that_cannot_be_read_fails_alone(
    admin: redis.Redis, verb: str, text: str
) -> None:
    """Its neighbours are answered, before it and after it, and where it fails it changes nothing."""
    held = hold_of(FIRST, SECOND_ONE)
    assert say(admin, MESSAGES.reserve(held)).startswith("held")
    message = MESSAGES.reserve(held)
    keys = (KEYS.record("id"), *message.keys[1:])
    if verb == "resolve":
        keys = message.keys  # it names one that is open
        text = text.replace(" id ", f" {message.id} ")
    bad = text.format(n=len(keys), body="[0,{}]")
    (one, begins), (two, _) = neighbours = [neighbour(verb, number) for number in (1, 2)]
    before = contents(admin)
    said = [(each.keys, each.text(again=False)) for each in (one, two)]
    first, answer, last = run(admin, verb, said[0], (keys, bad), said[1])
    assert first.startswith(f"{one.id} {begins}")
    assert last.startswith(f"{two.id} {begins}")
    if " failed " in answer:
        after = contents(admin)
        assert {key: after.get(key) for key in before} == before
        assert after.keys() - before.keys() <= {key for each, _ in neighbours for key in each.keys}


class Known:
    """A connection whose replies are known."""

    free = has_room = True

    def __init__(self, *replies: object) -> None:
        self._replies = list(replies)

    def call(
        self, commands: Iterable[bytes], count: int, done: Callable[[Replies], object]
    ) -> None:
        """Nobody is there."""
        done([self._replies.pop(0) for _ in range(count)])

    async def close(self, *, at_once: bool) -> None:
        """Nobody is there."""


async def answers(reply: object, *messages: Message) -> list[object]:
    """What each caller is told by one reply, an exception as it is."""
    loop = asyncio.get_running_loop()
    flight = [Asked(message, loop.create_future(), 0.0, again=False) for message in messages]
    dialed = Dialed(Known(reply), scripts(allow_oom=True))
    await exchange(dialed, lambda: (), flight, lambda _: None)
    return await asyncio.gather(*(asked.answer for asked in flight), return_exceptions=True)


@pytest.mark.anyio
async def test_its_neighbours_are_told_their_answers() -> None:
    """The script could not read the id that it is asked for."""
    one, bad, two = (Message("peek", id_, (), "") for id_ in ("one", "", "two"))
    told = await answers(b"one seen 5\0? failed it is\0two seen 6", one, bad, two)
    assert (told[0], told[2]) == ("seen 5", "seen 6")
    assert isinstance(told[1], StoreError)
    assert not told[1].sent


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (
            redis.ResponseError(
                "user_script:614: attempt to call a nil value script: 64, on @user"
            ),
            True,
        ),
        (redis.ResponseError("Error running script (call to f_64): @user_script:5: oh"), True),
        (
            exceptions.NoPermissionError(
                "this user has no permissions to run the 'evalsha' command"
            ),
            False,
        ),
        (redis.ResponseError("BUSY Redis is busy running a script."), False),
        (redis.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), False),
        (redis.ResponseError("NOAUTH Authentication required."), False),
    ],
)
async def test_a_script_that_ended_early_may_have_applied_messages(
    error: Exception, sent: bool
) -> None:
    """R9: whoever asked is told so, and takes back by its id; a call that was never run applied nothing."""
    told = await answers(error, Message("peek", "one", (), ""), Message("peek", "two", (), ""))
    assert all(isinstance(one, StoreError | Outage) and one.sent is sent for one in told)


# The ends of keys.


@pytest.mark.parametrize("behind", [0, 1, 600 * SECOND, 86_000 * SECOND])
def test_a_key_never_dies_before_what_it_holds(admin: redis.Redis, behind: int) -> None:
    """R11, R14: counts that are ahead of the clock (a failover, a clock put right) end by the clock all the same."""
    also = [Limit("tokens", 9_000, 86_400, "sliding_window"), Limit("images", 9, 3_600)]
    scope = Scope("key", Limits(tpd=9_000, concurrency=9, also=also))
    bucket = Scope("bucket", Limits(tpd=9_000, algorithm="token_bucket"))
    ahead = NOW + DAY - 300 * SECOND
    clock = ahead - behind
    say(admin, MESSAGES.reserve(hold_of(scope, bucket)), at=ahead)
    hold, renewed, named = (hold_of(scope, bucket, request_id=one) for one in (None, None, "mine"))
    for one in (hold, renewed, named):
        assert say(admin, MESSAGES.reserve(one), at=clock).startswith("held")
    assert say(admin, MESSAGES.renew(renewed), at=clock) == "held"
    assert say(admin, MESSAGES.resolve(hold, "settle", {"tokens": 5}, {}), at=clock) == "done"
    assert say(admin, MESSAGES.resolve(named, "settle", {"tokens": 5}, {}), at=clock) == "done"
    added = MESSAGES.add(scope, {"tokens": 5}, "mine")
    assert say(admin, added, at=clock) == "counted"
    assert say(admin, MESSAGES.reset((bucket,)), at=clock) == "done"
    ends = {
        KEYS.counts("key"): (ahead // DAY + 2) * DAY,
        KEYS.counts("bucket"): ahead + KEEP,
        KEYS.slots("key"): ahead + LEASE,
        MESSAGES.renew(renewed).keys[0]: ahead + KEEP,
        KEYS.record("mine"): None,
        MESSAGES.renew(named).keys[1]: ahead + 60 * SECOND,
        added.keys[0]: ahead + KEEP,
    }
    for key, end in ends.items():
        left: Any = admin.pttl(key)
        if end is None:
            assert left == -2, f"{key} is there"
        else:
            assert left > (end - clock) // 1_000 + GRACE_MS - 1_000, key
            assert left < (end - clock) // 1_000 + KEEP // 1_000 + GRACE_MS + 1_000, key


def test_the_ids_of_others_are_names() -> None:
    """What has a blank in it would be read as something else."""
    for id_ in ("", "a b", "a ", "a\n", "\t"):
        hold = hold_of(FIRST)
        hold.id = id_
        for make in (
            MESSAGES.renew,
            MESSAGES.reserve,
            lambda hold: MESSAGES.resolve(hold, "cancel", {}, {}),
        ):
            with pytest.raises(ValueError, match="no process has given this id"):
                make(hold)
