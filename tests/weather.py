"""The storms of several processes (tests/storm.py): who begins and kills them, and what all of them were told.

What each caller was told is compared with what the store says, and what all were told with the limits. A store
that forgets (a failover takes with it what was not replicated) has gaps: what was told in one may be lost, and nothing
else.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import redis

from earmark.backends.redis.keys import Keys, TaggedKeys
from tests.reached import Reached
from tests.sites import limiter_at
from tests.storm import ALL, AMOUNTS, LEASE, SCOPES, SLOTS

ROOT: Final = Path(__file__).parent.parent
SECOND: Final = 1_000_000
LEASE_US: Final = int(LEASE * SECOND)

# A process whose log has so many bytes is killed in the midst of work.
AT_WORK: Final = 20_000

# The slots of a key that are held, at one instant of the server's.
HELD: Final = """
local time = redis.call('TIME')
return redis.call('ZCOUNT', KEYS[1], '(' .. string.format('%.0f', time[1] * 1000000 + time[2]), '+inf')
"""

Gap: TypeAlias = tuple[int, int]

_LOOK: Final = 0.02  # seconds between two looks


@dataclass
class Told:
    """One reservation, by what all of its callers have written down.

    Attributes:
        tokens: what it holds.
        named: it has a name that several callers ask for.
        began: when its first caller that is known of asked.
        at: when it was admitted, by the server's clock.
        until: before this moment nobody had let go of its slots.
        certain: the units that its settlement has counted, if it was told that it did.
        possible: those that one has counted whose caller never heard, or that a store may have forgotten.
        won: how it was resolved, by those who were told that they did, when no store could forget it.
        debit: the requests and the tokens that are debited at least.
    """

    keys: list[str]
    tokens: int
    named: bool
    began: int
    at: int
    until: int
    certain: int = 0
    possible: int = 0
    won: list[str] = field(default_factory=list)
    tried: list[tuple[str, int]] = field(default_factory=list)

    @property
    def debit(self) -> tuple[int, int]:
        verbs = self.won or [verb for verb, _ in self.tried]
        used = [used for verb, used in self.tried if verb == "settle"]
        if "cancel" in verbs:
            return 0, 0
        return 1, min(used) if "settle" in verbs else self.tokens


class Logs:
    """What all processes have written, taken together.

    Args:
        folder: where they wrote it.
        gaps: from when to when a store may have forgotten what it said, in microseconds.
    """

    def __init__(self, folder: Path, gaps: Sequence[Gap] = ()) -> None:
        self.told: dict[str, Told] = {}
        self.counts: Counter[str] = Counter()
        self._gaps = gaps
        for file in sorted(folder.glob("*.log")):
            text = file.read_text()
            lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
            self._take_in(lines)

    def is_lost(self, first: int, last: int) -> bool:
        """Whether what happened between two moments may be forgotten."""
        return any(first <= end and begin <= last for begin, end in self._gaps)

    def _take_in(self, lines: list[list[Any]]) -> None:
        """The lines of one process; one that ended has none open."""
        ended = bool(lines) and lines[-1][0] == "end"
        if ended:
            assert lines[-1][1:] == [0, 0, 0], "owed, lost, admitted without the store"
        trying: dict[str, tuple[str, int, int]] = {}
        for kind, *words in lines:
            self.counts[kind] += 1
            match kind, words:
                case "held", [name, named, keys, tokens, began, at]:
                    told = Told(keys, tokens, named, began, at, at + LEASE_US)
                    self.told.setdefault(name, told)
                case "resolving", [name, verb, used, settled, at]:
                    told = self.told[name]
                    told.until = min(told.until, at)
                    told.tried.append((verb, used))
                    trying[name] = (verb, settled, at)
                case "leaving", [name, at]:
                    self.told[name].until = min(self.told[name].until, at)
                case "resolved", [name, won, at]:
                    tried = trying.pop(name)
                    if won:
                        self._win(self.told[name], tried, at)
                case "over", [name, state]:
                    self._end(name, trying.pop(name, None), state, ended=ended)
                case _:
                    continue
        for name, (verb, settled, _) in trying.items():  # killed meanwhile
            self.counts["killed while resolving"] += 1
            self.told[name].possible += settled * (verb == "settle")

    def _win(self, told: Told, tried: tuple[str, int, int], at: int) -> None:
        verb, settled, began = tried
        units = settled * (verb == "settle")
        if self.is_lost(told.at, told.at) or self.is_lost(began, at):
            self.counts["told what may be lost"] += 1
            told.possible += units
        else:
            told.won.append(verb)
            told.certain += units

    def _end(
        self, name: str, tried: tuple[str, int, int] | None, state: str, *, ended: bool
    ) -> None:
        """A caller has gone without an answer: what was on the way is delivered all the same (R16)."""
        if tried is None or tried[0] != "settle":
            return
        self.counts["cancelled while settling"] += 1
        _, settled, began = tried
        told = self.told[name]
        assert state == "settled", f"{name} is {state}, though it was being settled"
        # Of a name somebody else may have been first; what is on its way is lost with its process, or its store.
        lost = self.is_lost(told.at, told.at) or any(began <= end for _, end in self._gaps)
        if told.named or not ended or lost:
            told.possible += settled
        else:
            told.certain += settled

    @property
    def kept(self) -> Iterator[Told]:
        """The reservations of which no store has forgotten that it admitted them."""
        return (one for one in self.told.values() if not self.is_lost(one.at, one.at))


class Place:
    """Where a storm is: one server, if nothing else is said.

    Args:
        where: what its processes are told.
        keys: how what it keeps is called.

    Attributes:
        gaps: from when to when it may have forgotten what it said, in microseconds.
    """

    def __init__(self, where: str, keys: Keys | TaggedKeys) -> None:
        self.where = where
        self.gaps: list[Gap] = []
        self._keys = keys

    def clients(self) -> Sequence[redis.Redis]:
        """Of everybody who has keys now."""
        raise NotImplementedError

    def at(self, key: str) -> redis.Redis:
        """Of whom has what is kept about a scope."""
        (client,) = self.clients()
        return client

    def disturb(self) -> None:
        """What happens to it now and then; then it is well again."""

    def held(self) -> dict[str, int]:
        """How many slots are held, by the scope's key."""
        asked: dict[int, Any] = {}
        keys: dict[int, list[str]] = defaultdict(list)
        for scope in SCOPES:
            client = self.at(scope.key)
            one = asked.setdefault(id(client), client.pipeline(transaction=False))
            one.eval(HELD, 1, self._keys.beside(scope.key).slots(scope.key))
            keys[id(client)].append(scope.key)
        return {
            key: count
            for one, pipeline in asked.items()
            for key, count in zip(keys[one], pipeline.execute(), strict=True)
        }

    def holders(self) -> set[str]:
        """Who holds a slot."""
        found: set[str] = set()
        for scope in SCOPES:
            slots = self._keys.beside(scope.key).slots(scope.key)
            members: Any = self.at(scope.key).zrange(slots, 0, -1)
            found |= {member.decode() for member in members}
        return found

    def immortal(self) -> set[bytes]:
        """The keys that live for ever (R14)."""
        found: set[bytes] = set()
        for client in self.clients():
            keys = list(client.scan_iter("earmark*", count=1_000))
            with client.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.pttl(key)
                lives = pipeline.execute()
            found |= {key for key, left in zip(keys, lives, strict=True) if left == -1}
        return found

    async def settled(self) -> int:
        """The units that it has counted for settlements."""
        async with limiter_at(self.where, timeout=20) as limiter:
            (status,) = await limiter.peek(ALL)
            return status["settled"].used


class Weather:
    """The processes of a storm, which are killed and begun again, and what is seen in the store meanwhile.

    Args:
        place: what they use.
        folder: where they write.
        processes: how many.
        tasks: of each.
        pace: seconds for which a task rests at most.
    """

    def __init__(
        self, place: Place, folder: Path, processes: int = 2, tasks: int = 200, pace: float = 0.0
    ) -> None:
        self._place = place
        self._folder = folder
        self._count = processes
        self._words = (str(tasks), str(pace))
        self._random = random.Random(7)
        self._numbers = iter(range(10**6))
        self._stop = folder / "stop"
        self.processes: dict[subprocess.Popen[bytes], Path] = {}
        self.kills = 0
        self.immortal: set[bytes] = set()
        self.most = 0
        self.samples = 0
        self._wait = threading.Event()

    def begin(self) -> None:
        """One more process."""
        log = self._folder / f"{next(self._numbers)}.log"
        arguments = (self._place.where, log.stem, str(self._stop), str(log), *self._words)
        with log.with_suffix(".err").open("w") as said:
            process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "tests.storm", *arguments],
                cwd=ROOT,
                stdout=said,
                stderr=said,
            )
        self.processes[process] = log

    def rage(self, seconds: float, troubles: int = 1, *, kills: bool = True) -> None:
        """So many seconds, and until each has happened: look, and disturb now and then.

        Args:
            seconds: how long.
            troubles: how often at least.
            kills: whether processes are killed as well.
        """
        for _ in range(self._count):
            self.begin()
        began = calm = time.monotonic()
        while (passed := time.monotonic() - began) < seconds or troubles > 0 or not self.most:
            assert passed < 10 * seconds + 30, self._said()
            self.most = max(self.most, *self._place.held().values())
            self.samples += 1
            if time.monotonic() > calm and (at_work := self._at_work()):
                if kills:
                    self._kill(self._random.choice(at_work))
                self._place.disturb()
                troubles -= 1
                self.immortal |= self._place.immortal()
                calm = time.monotonic() + self._random.uniform(0.3, 1.2)
            self._wait.wait(_LOOK)
        self._stop.touch()

    def _at_work(self) -> list[subprocess.Popen[bytes]]:
        """Those that have done enough to be in the midst of it."""
        return [
            process
            for process, log in self.processes.items()
            if log.exists() and log.stat().st_size > AT_WORK
        ]

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill one in the middle of whatever it is doing, and begin another."""
        assert process.poll() is None, self._said()
        process.send_signal(signal.SIGKILL)
        process.wait()
        del self.processes[process]
        self.kills += 1
        self.begin()

    def pass_by(self) -> None:
        """Wait for those that are left, which have to end well."""
        ends = [process.wait(timeout=60) for process in self.processes]
        assert ends == [0] * self._count, self._said()
        assert "Traceback" not in self._said(), self._said()

    def _said(self) -> str:
        """What the processes complained about."""
        return "\n".join(file.read_text() for file in sorted(self._folder.glob("*.err")))

    def end(self) -> None:
        """Leave none behind, whatever has failed."""
        for process in self.processes:
            process.kill()
            process.wait()

    def still_held(self) -> list[str]:
        """The keys of slots that are held when every lease must be over."""
        deadline = time.monotonic() + LEASE
        while left := [key for key, count in self._place.held().items() if count]:
            if time.monotonic() > deadline:
                return left
            self._wait.wait(_LOOK)
        return []


def over_limit(logs: Logs, *, walks: bool = False) -> Iterator[str]:
    """The windows in which more was admitted than their limits allow.

    Args:
        logs: what everybody was told.
        walks: a request goes from slot to slot, and each part counts at an instant of its own: of one that nobody else
            asked for, that instant is after it was begun.
    """
    sums: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for told in logs.kept:
        second = told.at // SECOND
        if walks and (told.named or told.began // SECOND != second):
            continue
        requests, tokens = told.debit
        for key in told.keys:
            sums[key, second].update({"requests": requests, "tokens": tokens})
    for (key, second), used in sums.items():
        for metric, amount in AMOUNTS[key].items():
            # Of a bucket, in any second: what it holds, and what has drained meanwhile.
            most = 2 * amount if key.startswith("token_bucket") else amount
            if used[metric] > most:
                yield f"{key}, second {second}: {used[metric]} {metric}"
        logs.counts["windows"] += 1
        logs.counts["windows that were full"] += used["requests"] >= AMOUNTS[key]["requests"]


def over_slots(logs: Logs, *, walks: bool = False) -> Iterator[str]:
    """The moments at which more slots were certainly held than there are; `walks` as above."""
    edges: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for told in logs.kept:
        if walks and told.named:
            continue
        until = min(told.until, told.began + LEASE_US) if walks else told.until
        for key in told.keys:
            if until > told.at:
                edges[key] += [(told.at, 1), (until, -1)]
    for key, moments in edges.items():
        held = 0
        for moment, change in sorted(moments):
            held += change
            if held > SLOTS:
                yield f"{key} at {moment}: {held} held"


async def check(weather: Weather, place: Place, folder: Path, *, walks: bool = False) -> Logs:
    """No window and no slot too many, each settlement once, nothing left behind."""
    weather.pass_by()
    holders = place.holders()
    assert weather.still_held() == []
    assert weather.immortal | place.immortal() == set()
    counted = await place.settled()
    logs = Logs(folder, place.gaps)
    assert list(over_limit(logs, walks=walks)) == []
    assert list(over_slots(logs, walks=walks)) == []
    assert weather.most <= SLOTS
    assert [name for name in holders if name in logs.told and logs.told[name].won] == [], (
        "resolved, and still held"
    )
    assert [name for name, told in logs.told.items() if len(told.won) > 1] == []
    certain = sum(told.certain for told in logs.told.values())
    possible = sum(told.possible for told in logs.told.values())
    assert certain <= counted <= certain + possible, (certain, counted, possible)
    logs.counts["units settled for certain"] = certain
    logs.counts["units perhaps settled"] = possible
    logs.counts["units of those that were not"] = certain + possible - counted
    return logs


def report(reached: Reached, weather: Weather, logs: Logs, *more: str) -> None:
    """Count what the storm reached; one that disturbs nobody proves nothing, and `more` is to be there as well.

    How often each moment was hit is chance, and is reported.
    """
    reached.count("processes that were killed", weather.kills)
    reached.count("looks at held slots", weather.samples)
    for what, number in logs.counts.items():
        reached.count(what, number)
    required = {"cancelled", "RateLimited", "resolved", *more}
    assert not {what for what in required if not logs.counts[what]}
