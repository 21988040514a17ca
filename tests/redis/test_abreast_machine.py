"""Random histories of a line with two round trips under way, over a server that is played, against what is promised.

Whoever asks is told once, and nobody else's answer; who is told that nothing was sent is right; what is sent again says
so (R9), and a caller's message is applied twice at most; what a caller has left is applied, and before what is asked
after it; what is owed is delivered; nobody is left waiting (C55, B52, R16, R19).
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Final

import pytest
from redis import exceptions

from earmark.backends.redis import line as lines
from earmark.backends.redis.asked import Again
from earmark.backends.redis.connection import Dialed
from earmark.backends.redis.failures import Outage
from earmark.backends.redis.line import Line
from earmark.backends.redis.messages import Message
from earmark.backends.redis.owed import Outbox
from earmark.backends.redis.scripts import scripts
from earmark.backends.redis.standing import Standing
from earmark.backends.redis.wire import Replies, reply_at
from tests.reached import Reached
from tests.scale import examples

VERBS: Final = ("reserve", "resolve", "add", "peek", "renew")
KEPT: Final = ("resolve", "add")
AT_ONCE: Final = {"reserve", "resolve"}  # as `Messages` says

STEPS: Final = (*("ask", "turn") * 3, "serve", "land", "cancel")

TROUBLES: Final = (
    *("cut", "garbage", "flush", "load", "owe", "read only"),
    *("refuse", "late", "cancel all"),
)

# So many turns of the loop in which nothing waits, and nothing is left of the history.
QUIET: Final = 3

Step = tuple[str, int]

OFTEN: Final = ("two under way", "left behind", "taken back", "outage")
SELDOM: Final = (
    *("cut with two under way", "unknown script with another behind it"),
    *("sent again", "late", "garbage", "tasks cancelled"),
)


class Server:
    """Runs what is written to it, in the order of each connection.

    Attributes:
        applied: for every id, whether each copy said that it may not be the first, in order.
        order: the ids, each where it was applied first.
        passed_over: whether it has answered a call without having run it.
    """

    def __init__(self) -> None:
        self.names = {script.sha: verb for verb, script in scripts(allow_oom=True).items()}
        self.texts = {script.text: script.sha for script in scripts(allow_oom=True).values()}
        self.known: set[str] = set()
        self.passed_over = False
        self.read_only = self.refuses = False
        self.applied: defaultdict[str, list[bool]] = defaultdict(list)
        self.order: list[str] = []

    def run(self, written: bytes) -> list[object]:
        """The replies to what was written."""
        at, replies = 0, []
        while (found := reply_at(bytearray(written), at)) is not None:
            command, at = found
            assert isinstance(command, list)
            replies.append(self._run(*(one.decode() for one in command)))
        return replies

    def _run(self, word: str, *more: str) -> object:
        if word == "SCRIPT":
            self.known.add(self.texts[more[1]])
            return b"sha"
        sha = self.texts[more[0]] if word == "EVAL" else more[0]
        if word not in {"SET", "EVAL"} and sha not in self.known:
            self.passed_over = True
            return exceptions.NoScriptError("No matching script.")
        if self.read_only:
            self.passed_over = True
            return exceptions.ReadOnlyError("You can't write against a read only replica.")
        return b"OK" if word == "SET" else b"\0".join(map(self._apply, more[2:]))

    def _apply(self, text: str) -> bytes:
        _, _, again, _, id_, _ = text.split(" ")
        if id_ not in self.applied:
            self.order.append(id_)
        self.applied[id_].append(again == "1")
        return f"{id_} answer-to-{id_}".encode()


class Wired:
    """A connection to it, of which nothing moves by itself."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._written: deque[bytes] = (
            deque()
        )  # what the server has not run, also where it was closed
        self._run: deque[list[object]] = deque()
        self._done: deque[tuple[int, Callable[[Replies], object]]] = deque()
        self.has_room = True
        self.most = 0

    @property
    def free(self) -> bool:
        return self.has_room and not self._done

    @property
    def under_way(self) -> int:
        return len(self._done)

    def call(
        self, commands: Iterable[bytes], count: int, done: Callable[[Replies], object]
    ) -> None:
        self._done.append((count, done))
        if not self.has_room:
            asyncio.get_running_loop().call_soon(self.cut)
            return
        self._written.append(b"".join(commands))
        self.most = max(self.most, len(self._done))

    def serve(self) -> None:
        """The server runs one round trip."""
        if self._written:
            self._run.append(self._server.run(self._written.popleft()))

    def land(self) -> list[object] | None:
        """The reply of one comes."""
        if not (self._run and self._done):
            return None
        replies = self._run.popleft()
        _, done = self._done.popleft()
        done(replies)
        return replies

    def garble(self) -> bool:
        """In the place of a reply another one comes, which is none to what was asked."""
        if not (self._run and self._done):
            return False
        self._run.popleft()
        count, done = self._done.popleft()
        done([b"stranger answer-to-stranger"] * count)
        return True

    def cut(self) -> int:
        """It is lost; what the server has not run it may run still."""
        lost = len(self._done)
        self.has_room = False
        while self._done:
            _, done = self._done.popleft()
            done(exceptions.ConnectionError("gone"))
        return lost

    async def close(self, *, at_once: bool) -> None:
        self.has_room = False
        self._done.clear()


class Played:
    """One history."""

    def __init__(self) -> None:
        self.server = Server()
        self.wires: list[Wired] = []
        self.outbox = Outbox(10_000)
        self.marks: set[str] = set()
        self.callers: dict[str, asyncio.Task[str]] = {}
        self.asked: list[str] = []
        self.left: dict[str, int] = {}  # how many had asked when its caller went
        self.answered: set[str] = set()
        self.taken_back: set[str] = set()
        self.owed: set[str] = set()
        self._line = self._begin(brief=False)

    def _begin(self, *, brief: bool) -> Line:
        standing = Standing("closed", str, self.outbox)
        return Line(self._dial, tuple, 600, self.outbox, "probe", standing, brief=brief)

    async def _dial(self) -> Dialed:
        await asyncio.sleep(0)
        if self.server.refuses:
            raise exceptions.ConnectionError("refused")
        self.wires.append(Wired(self.server))
        return Dialed(self.wires[-1], scripts(allow_oom=True))

    @property
    def line(self) -> Line:
        if self._line.over:
            self._line = self._begin(brief=True)
        return self._line

    async def play(self, step: str, number: int) -> None:
        """Do one thing."""
        if step == "turn":
            for _ in range(1 + number % 3):
                await asyncio.sleep(0)
        elif step == "ask":
            self._ask(VERBS[number % len(VERBS)])
        elif step == "cancel" and self.callers:
            tuple(self.callers.values())[-1 - number % min(len(self.callers), 8)].cancel()
        elif step in {"late", "cancel all", "owe"}:
            self._trouble_line(step)
        elif step in {"read only", "refuse", "flush", "load"}:
            self._trouble_server(step)
        elif self.wires:
            self._trouble_wire(self.wires[-1 - number % min(len(self.wires), 2)], step)

    def _trouble_line(self, step: str) -> None:
        if step == "owe":
            self._owe(Message("resolve", f"owed-{len(self.owed)}", (), ""))
        elif step == "cancel all":
            self.marks.add("tasks cancelled")
            self._line._task.cancel()
        elif self._line.asked and not self._line.down:
            self.marks.add("late")
            self._line._give_up()

    def _trouble_server(self, step: str) -> None:
        server = self.server
        if step == "read only":
            server.read_only = not server.read_only
        elif step == "refuse":
            server.refuses = not server.refuses
        elif step == "flush":
            server.known.clear()
        else:
            server.known.update(server.names)

    def _trouble_wire(self, wire: Wired, step: str) -> None:
        if step == "serve":
            wire.serve()
        elif step == "cut":
            if wire.cut() > 1:
                self.marks.add("cut with two under way")
        elif step == "garbage":
            if wire.garble():
                self.marks.add("garbage")
        elif step == "land":
            others = wire.under_way > 1
            replies = wire.land() or ()
            if others and any(isinstance(one, exceptions.NoScriptError) for one in replies):
                self.marks.add("unknown script with another behind it")

    def _ask(self, verb: str) -> None:
        id_ = f"{verb}-{len(self.callers)}"
        self.callers[id_] = asyncio.create_task(
            self._wait(Message(verb, id_, (), "", at_once=verb in AT_ONCE))
        )

    async def _wait(self, message: Message) -> str:
        """As `RedisBackend` does."""
        kept = message.verb in KEPT
        self.asked.append(message.id)
        asked = self.line.place(message)
        try:
            return await (asked.stays() if kept else asked.answer)
        except asyncio.CancelledError:
            if not kept:
                if asked.take_back():
                    self.taken_back.add(message.id)
            elif asked.leave(lambda: self._owe(message)):
                self.left[message.id] = len(self.asked)
            else:
                self._owe(message)
            raise

    def _owe(self, message: Message) -> None:
        self.owed.add(message.id)
        self.outbox.add(message)
        self.line.wake()

    async def end(self) -> None:
        """All is well from now on, until everybody is answered and nothing is owed."""
        self.server.read_only = self.server.refuses = False
        quiet = 0
        for _ in range(2_000):
            for wire in self.wires:
                wire.serve()
                wire.land()
            await asyncio.sleep(0)
            if self.outbox:
                self.line.wake()
            waiting = self._line.asked or not all(task.done() for task in self.callers.values())
            quiet = 0 if waiting or self.outbox else quiet + 1
            if quiet == QUIET:
                break
        hanging = [id_ for id_, task in self.callers.items() if not task.done()]
        assert not hanging
        assert not self.outbox
        assert not self._line.asked

    async def leave(self) -> None:
        """Nothing is left of it, also where a promise was broken."""
        self.server.refuses = True
        for wire in self.wires:
            wire.cut()
        await self.line.aclose(0)

    def check(self) -> None:
        """What each was told is what has happened."""
        applied = self.server.applied
        for id_, task in self.callers.items():
            assert len(applied[id_]) <= 2 or id_ in self.owed, f"{id_} was sent too often"
            if task.cancelled():
                continue
            error = task.exception()
            if error is None:
                self.answered.add(id_)
                assert task.result() == f"answer-to-{id_}"
                assert applied[id_]
                assert len(applied[id_]) == 1 or isinstance(task.result(), Again)
            else:
                assert isinstance(error, Outage), repr(error)
                self.marks.add("outage")
                assert error.sent or not applied[id_], f"{id_} was sent"
        for id_, copies in applied.items():
            assert copies.count(False) <= 1, f"two copies of {id_} say that they are the first"
            if len(copies) > 1:
                self.marks.add("sent again")
        for id_ in self.taken_back:
            self.marks.add("taken back")
            assert not applied[id_]
        for id_ in self.owed | self.left.keys():
            assert applied[id_], f"{id_} was not delivered"
        self._check_order()
        assert max((wire.most for wire in self.wires), default=0) <= 2
        if any(wire.most == 2 for wire in self.wires):
            self.marks.add("two under way")

    def _check_order(self) -> None:
        """Of one verb who asked first comes first, and nothing before what somebody has left who had gone by then.

        But for what came to nothing, and where the first of two may have been passed over, and the second not.
        """
        place = {id_: at for at, id_ in enumerate(self.server.order)}
        for verb in () if self.server.passed_over else VERBS:
            asked = [id_ for id_ in self.asked if id_ in self.answered and id_.startswith(verb)]
            assert asked == sorted(asked, key=place.__getitem__)
        for id_, before in self.left.items():
            if id_ in self.owed or not id_.startswith("resolve"):
                continue  # in one round trip what adds comes last
            self.marks.add("left behind")
            for later in self.asked[before:]:
                assert later not in place or place[id_] < place[later], f"{later} overtook {id_}"


def program(chance: random.Random) -> list[Step]:
    """One in which some troubles come, and no others: who meets all of them at once meets none for long."""
    troubles = chance.sample(TROUBLES, chance.randrange(5))
    steps = (*STEPS * (1 + len(troubles) // 3), *troubles)
    first = [("load", 0)] * chance.randrange(2)
    return first + [
        (chance.choice(steps), chance.randrange(8)) for _ in range(chance.randrange(70))
    ]


async def play(steps: list[Step]) -> set[str]:
    """Play a history, and return what it went through."""
    played = Played()
    try:
        for step, number in steps:
            await played.play(step, number)
        await played.end()
    finally:
        await played.leave()
    played.check()
    return played.marks


def test_two_round_trips_keep_what_is_promised_in_any_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R9, R16, R19, B52, C55: whatever comes in whatever order."""
    monkeypatch.setattr(lines, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(lines, "LONGEST_PAUSE", 0.0)
    reached = Reached("two round trips of a line")
    for seed in range(max(examples(1_500), 500)):
        steps = program(random.Random(seed))
        try:
            reached.history(asyncio.run(play(steps)))
        except BaseException as error:
            error.add_note(f"asyncio.run(play({steps}))")
            raise
    reached.require(0.1, OFTEN)
    reached.require(0.01, SELDOM)
