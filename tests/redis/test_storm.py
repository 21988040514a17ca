"""Two processes of 200 tasks each, whose callers are cancelled and which are killed, and one server (tests/storm.py).

What each caller was told is compared with what the server says, and what all of them were told with the limits.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from earmark import Limiter, RedisBackend
from tests.reached import Reached
from tests.scale import examples
from tests.servers import RedisServer, redis_server
from tests.storm import ALL, AMOUNTS, LEASE, SCOPES, SLOTS

pytestmark = pytest.mark.anyio

ROOT: Final = Path(__file__).parent.parent.parent
SECONDS: Final = min(max(examples(10), 6), 60)
PROCESSES: Final = 2
SECOND: Final = 1_000_000

# A process whose log has so many bytes is killed in the midst of work.
AT_WORK: Final = 20_000

REACHED: Final = Reached("storm")

# The slots of a key that are held, at one instant of the server's.
HELD: Final = """
local time = redis.call('TIME')
return redis.call('ZCOUNT', KEYS[1], '(' .. string.format('%.0f', time[1] * 1000000 + time[2]), '+inf')
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@dataclass
class Told:
    """One reservation, by what all of its callers have written down.

    Attributes:
        tokens: what it holds.
        at: when it was admitted, by the server's clock.
        until: before this moment nobody had let go of its slots.
        certain: the units that its settlement has counted, if it was told that it did.
        possible: those that one has counted whose caller never heard.
        debit: the requests and the tokens that are debited at least.
    """

    keys: list[str]
    tokens: int
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
    """What all processes have written, taken together."""

    def __init__(self, folder: Path) -> None:
        self.told: dict[str, Told] = {}
        self.counts: Counter[str] = Counter()
        for file in sorted(folder.glob("*.log")):
            text = file.read_text()
            lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
            self._take_in(lines)

    def _take_in(self, lines: list[list[Any]]) -> None:
        """The lines of one process; one that ended has none open."""
        ended = bool(lines) and lines[-1][0] == "end"
        if ended:
            assert lines[-1][1:] == [0, 0, 0], "owed, lost, admitted without the store"
        trying: dict[str, tuple[str, int, bool]] = {}
        named: dict[str, bool] = {}
        for kind, *words in lines:
            self.counts[kind] += 1
            match kind, words:
                case "held", [name, given, keys, tokens, at]:
                    named[name] = given
                    self.told.setdefault(name, Told(keys, tokens, at, at + int(LEASE * SECOND)))
                case "resolving", [name, verb, used, settled, at]:
                    told = self.told[name]
                    told.until = min(told.until, at)
                    told.tried.append((verb, used))
                    trying[name] = (verb, settled, named[name])
                case "leaving", [name, at]:
                    self.told[name].until = min(self.told[name].until, at)
                case "resolved", [name, won]:
                    verb, settled, _ = trying.pop(name)
                    if won:
                        self.told[name].won.append(verb)
                        self.told[name].certain += settled * (verb == "settle")
                case "over", [name, state]:
                    self._end(name, trying.pop(name, None), state)
                case _:
                    continue
        for name, (verb, settled, _) in trying.items():  # killed meanwhile
            self.counts["killed while resolving"] += 1
            self.told[name].possible += settled * (verb == "settle")

    def _end(self, name: str, tried: tuple[str, int, bool] | None, state: str) -> None:
        """A caller has gone without an answer: what was on the way is delivered all the same (R16)."""
        if tried is None or tried[0] != "settle":
            return
        self.counts["cancelled while settling"] += 1
        _, settled, named = tried
        told = self.told[name]
        assert state == "settled", f"{name} is {state}, though it was being settled"
        if named:  # another process may have been first
            told.possible += settled
        else:
            told.certain += settled


class Weather:
    """The processes of a storm, which are killed and begun again, and what is seen on the server meanwhile.

    Args:
        server: what they use.
        folder: where they write.
    """

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._random = random.Random(7)
        self._numbers = iter(range(10**6))
        self._stop = folder / "stop"
        self.processes: dict[subprocess.Popen[bytes], Path] = {}
        self.kills = 0
        self.immortal: set[bytes] = set()
        self.most = 0
        self.samples = 0

    def begin(self) -> None:
        """One more process."""
        log = self._folder / f"{next(self._numbers)}.log"
        arguments = (self._server.url, log.stem, str(self._stop), str(log))
        with log.with_suffix(".err").open("w") as said:
            process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "tests.storm", *arguments],
                cwd=ROOT,
                stdout=said,
                stderr=said,
            )
        self.processes[process] = log

    def rage(self, client: redis.Redis) -> None:
        """So many seconds, and until each has happened: look, and kill one now and then."""
        for _ in range(PROCESSES):
            self.begin()
        look = client.register_script(HELD)
        began = calm = time.monotonic()
        while (passed := time.monotonic() - began) < SECONDS or not (self.kills and self.most):
            assert passed < 10 * SECONDS, self._said()
            for scope in SCOPES:
                held: Any = look(keys=[f"earmark:s:{scope.key}"])
                self.most = max(self.most, held)
                self.samples += 1
            if time.monotonic() > calm and self._kill_one():
                calm = time.monotonic() + self._random.uniform(0.3, 1.2)
                self.immortal |= immortal(client)
            client.blpop(["nothing"], 0.02)
        self._stop.touch()

    def _kill_one(self) -> bool:
        """Kill one in the middle of whatever it is doing, and begin another; False: none has done enough yet."""
        at_work = [
            process
            for process, log in self.processes.items()
            if log.exists() and log.stat().st_size > AT_WORK
        ]
        if not at_work:
            return False
        process = self._random.choice(at_work)
        assert process.poll() is None, self._said()
        process.send_signal(signal.SIGKILL)
        process.wait()
        del self.processes[process]
        self.kills += 1
        self.begin()
        return True

    def pass_by(self) -> None:
        """Wait for those that are left, which have to end well."""
        assert [process.wait(timeout=60) for process in self.processes] == [0] * PROCESSES, (
            self._said()
        )
        assert "Traceback" not in self._said(), self._said()

    def _said(self) -> str:
        """What the processes complained about."""
        return "\n".join(file.read_text() for file in sorted(self._folder.glob("*.err")))

    def end(self) -> None:
        """Leave none behind, whatever has failed."""
        for process in self.processes:
            process.kill()
            process.wait()


def now(client: redis.Redis) -> float:
    """Seconds, by the server's clock."""
    told: Any = client.time()
    seconds, microseconds = told
    return float(seconds + microseconds / 1e6)


def immortal(client: redis.Redis) -> set[bytes]:
    """The keys that live for ever (R14)."""
    keys = list(client.scan_iter(count=1_000))
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.pttl(key)
        lives = pipeline.execute()
    return {key for key, left in zip(keys, lives, strict=True) if left == -1}


def holding(client: redis.Redis) -> set[str]:
    """Who holds a slot."""
    found: set[str] = set()
    for scope in SCOPES:
        members: Any = client.zrange(f"earmark:s:{scope.key}", 0, -1)
        found |= {member.decode() for member in members}
    return found


def free_after_a_lease(client: redis.Redis) -> Iterator[str]:
    """The keys of slots that are still held when every lease must be over."""
    deadline = now(client) + LEASE
    keys = [f"earmark:s:{scope.key}" for scope in SCOPES]
    while left := [key for key in keys if client.eval(HELD, 1, key)]:
        if now(client) > deadline:
            yield from left
            return
        client.blpop(["nothing"], 0.05)


def over_limit(logs: Logs) -> Iterator[str]:
    """The windows in which more was admitted than their limits allow."""
    sums: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for told in logs.told.values():
        requests, tokens = told.debit
        for key in told.keys:
            sums[key, told.at // SECOND].update({"requests": requests, "tokens": tokens})
    for (key, second), used in sums.items():
        for metric, amount in AMOUNTS[key].items():
            # Of a bucket, in any second: what it holds, and what has drained meanwhile.
            most = 2 * amount if key.startswith("token_bucket") else amount
            if used[metric] > most:
                yield f"{key}, second {second}: {used[metric]} {metric}"
        logs.counts["windows"] += 1
        logs.counts["windows that were full"] += used["requests"] >= AMOUNTS[key]["requests"]


def over_slots(logs: Logs) -> Iterator[str]:
    """The moments at which more slots were certainly held than there are."""
    edges: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for told in logs.told.values():
        for key in told.keys:
            if told.until > told.at:
                edges[key] += [(told.at, 1), (told.until, -1)]
    for key, moments in edges.items():
        held = 0
        for moment, change in sorted(moments):
            held += change
            if held > SLOTS:
                yield f"{key} at {moment}: {held} held"


async def settled(server: RedisServer) -> int:
    """The units that the server has counted for settlements."""
    async with Limiter(RedisBackend.from_url(server.url, timeout=20)) as limiter:
        (status,) = await limiter.peek(ALL)
        return status["settled"].used


async def test_a_storm_breaks_no_limit_and_no_promise(tmp_path: Path) -> None:
    """R1, R2, R5, R9, R10, R14, R16: no window and no slot too many, each settlement once, nothing left behind."""
    with redis_server() as server, server.client() as client, ExitStack() as stack:
        weather = Weather(server, tmp_path)
        stack.callback(weather.end)
        weather.rage(client)
        weather.pass_by()
        holders = holding(client)
        assert list(free_after_a_lease(client)) == []
        assert weather.immortal | immortal(client) == set()
        counted = await settled(server)
    logs = Logs(tmp_path)
    assert list(over_limit(logs)) == []
    assert list(over_slots(logs)) == []
    assert weather.most <= SLOTS
    assert [name for name in holders if name in logs.told and logs.told[name].won] == [], (
        "resolved, and still held"
    )
    assert [name for name, told in logs.told.items() if len(told.won) > 1] == []
    certain = sum(told.certain for told in logs.told.values())
    possible = sum(told.possible for told in logs.told.values())
    assert certain <= counted <= certain + possible
    REACHED.count("seconds", SECONDS)
    REACHED.count("processes that were killed", weather.kills)
    REACHED.count("looks at held slots", weather.samples)
    REACHED.count("units settled for certain", certain)
    REACHED.count("units perhaps settled", possible)
    for what, number in logs.counts.items():
        REACHED.count(what, number)
    # A storm that disturbs nobody proves nothing. How often each moment was hit is chance, and is reported.
    required = {"cancelled", "RateLimited", "windows that were full", "resolved"}
    assert not {what for what in required if not logs.counts[what]}
