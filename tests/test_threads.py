"""R19: one limiter in several threads and event loops.

Threads that run free show what usually happens, and the sums that must come out. What rarely happens is tried on
purpose: one call is made in the midst of another, before each instruction of the library that the other one runs
(outside its locks, which keep every other thread out), as if a thread had been switched to just there.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from queue import SimpleQueue
from typing import Any, Final

import pytest
import trio

from earmark import Limit, Limiter, Limits, MemoryBackend, RateLimited, Reservation, Scope
from earmark.ids import name_of, next_id
from earmark.limits import Algorithm
from earmark.testing import ManualClock
from tests.reached import Reached
from tests.rows import VERBS
from tests.suspending import Interjection, Suspending, by_hand

THREADS: Final = 8

reached = Reached("threads")


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """Threads are switched between as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[int], object], threads: int = THREADS) -> None:
    """Let each thread do its part, all of them from the same moment on; what any of them raises is raised."""
    ready = threading.Barrier(threads)
    errors: SimpleQueue[BaseException] = SimpleQueue()

    def part(number: int) -> None:
        try:
            ready.wait()
            work(number)
        except BaseException as error:  # noqa: BLE001 - it is raised where the test can fail
            errors.put(error)

    all_parts = [threading.Thread(target=part, args=(number,)) for number in range(threads)]
    for one in all_parts:
        one.start()
    for one in all_parts:
        one.join()
    if not errors.empty():
        raise errors.get()


def resolve(handle: Reservation, verb: str) -> Coroutine[Any, Any, bool]:
    """A verb of the handle; a settlement uses 25 tokens."""
    call: Callable[..., Coroutine[Any, Any, bool]] = getattr(handle, verb)
    return call(25) if verb == "settle_success" else call()


def used(backend: MemoryBackend, *scopes: Scope) -> list[int]:
    """What the next message finds: the use of every limit, in order."""
    statuses = by_hand(Limiter(backend).peek(*scopes))
    return [limit.used for status in statuses for limit in status.limits]


@pytest.mark.parametrize(
    ("algorithm", "each"),
    [("fixed_window", 10_000), ("sliding_window", 2_000), ("token_bucket", 2_000)],
)
def test_r19_eight_threads_and_a_limit_of_exactly_half(algorithm: Algorithm, each: int) -> None:
    """R1, R19: of 8 times 10,000 reservations exactly half are admitted, and each settlement counts exactly once."""
    half = THREADS * each // 2
    scope = Scope(
        "key",
        Limits(
            also=[Limit("requests", half, 60, algorithm), Limit("tokens", 9 * half, 60, algorithm)]
        ),
    )
    backend = MemoryBackend(clock=ManualClock())
    limiter = Limiter(backend)
    admitted = [0] * THREADS

    async def part(number: int) -> None:
        for _ in range(each):
            try:
                reservation = await limiter.pre_commit(scope, tokens=1)
            except RateLimited:
                continue
            admitted[number] += 1
            assert await reservation.settle_success(3) is True

    in_threads(lambda number: asyncio.run(part(number)))
    assert sum(admitted) == half
    assert used(backend, scope) == [half, 3 * half]


def test_r19_never_more_live_slots_than_there_are() -> None:
    """R1, R10, R19: threads that take and free slots never have more of them at once than the limit."""
    scope = Scope("key", Limits(concurrency=3))
    backend = MemoryBackend()
    limiter = Limiter(backend)
    live: list[int] = []
    most: list[int] = []

    def part(number: int) -> None:
        for _ in range(2_000):
            try:
                reservation = by_hand(limiter.pre_commit(scope))
            except RateLimited:
                continue
            live.append(number)
            most.append(len(live))
            live.pop()
            assert by_hand(reservation.cancel()) is True

    in_threads(part)
    assert max(most) <= 3
    assert used(backend, scope) == [0]


def test_r5_threads_settle_and_drop_the_same_handles() -> None:
    """R5, R15, R19: whoever is first resolves a handle, and everybody else is told that they did not."""
    scope = Scope("key", Limits(rpm=10_000, tpm=1_000_000, concurrency=10_000))
    backend = MemoryBackend(clock=ManualClock())
    events: list[Any] = []
    limiter = Limiter(backend, observers=(events.append,))
    handles = [
        by_hand(limiter.pre_commit(scope, tokens=30, request_id=f"r{n}")) for n in range(500)
    ]
    verbs = list(VERBS)
    won: SimpleQueue[tuple[int, str]] = SimpleQueue()

    def part(number: int) -> None:
        verb = verbs[number % len(verbs)]
        for index, handle in enumerate(handles):
            if by_hand(resolve(handle, verb)):
                won.put((index, VERBS[verb]))

    in_threads(part)
    winners = dict(won.get() for _ in range(won.qsize()))
    assert len(winners) == len(handles)
    assert [handle.state for handle in handles] == [winners[n] for n in range(len(handles))]
    assert Counter(event.kind for event in events) == {
        "admitted": len(handles),
        **Counter(winners.values()),
    }
    debits = {"settled": (1, 25), "closed": (1, 30), "abandoned": (1, 30), "cancelled": (0, 0)}
    requests, tokens = (sum(debits[kind][n] for kind in winners.values()) for n in (0, 1))
    assert used(backend, scope) == [requests, tokens, 0]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_r15_what_any_thread_drops_is_abandoned_once() -> None:
    """R15, R19: eight threads drop what they hold, and whoever sends the next message abandons it."""
    scope = Scope("key", Limits(rpm=100_000, concurrency=100_000))
    backend = MemoryBackend(clock=ManualClock())
    events: list[Any] = []
    limiter = Limiter(backend, observers=(events.append,))

    def part(number: int) -> None:
        for index in range(500):
            reservation = by_hand(limiter.pre_commit(scope))
            if index % 2:
                del reservation
            else:
                assert by_hand(reservation.settle_success(0)) is True

    in_threads(part)
    assert used(backend, scope) == [THREADS * 500, 0]
    assert Counter(event.kind for event in events) == {
        "admitted": THREADS * 500,
        "settled": THREADS * 250,
        "abandoned": THREADS * 250,
    }


def test_r9_threads_that_ask_for_one_id_have_one_object() -> None:
    """R9, R19: however many ask at once, there is one reservation, one object, one debit, one admission."""
    scope = Scope("key", Limits(rpm=10_000, tpm=1_000_000))
    backend = MemoryBackend(clock=ManualClock())
    events: list[Any] = []
    limiters = [Limiter(backend, observers=(events.append,)) for _ in range(THREADS)]
    got: list[list[Reservation]] = [[] for _ in range(THREADS)]

    def part(number: int) -> None:
        for index in range(300):
            asked = limiters[number].pre_commit(scope, tokens=7, request_id=f"r{index}")
            got[number].append(by_hand(asked))

    in_threads(part)
    for same in zip(*got, strict=True):
        assert len(set(map(id, same))) == 1
    assert used(backend, scope) == [300, 2_100]
    assert [event.kind for event in events] == ["admitted"] * 300
    for handle in got[0]:
        assert by_hand(handle.cancel()) is True


@pytest.mark.parametrize("suspending", [False, True], ids=["memory", "suspending"])
def test_r19_several_event_loops_on_one_limiter(suspending: bool) -> None:
    """R19: loops of asyncio and trio, each in its thread, settle what another one has reserved."""
    scope = Scope("key", Limits(rpm=100_000, tpm=10_000_000, concurrency=100_000))
    memory = MemoryBackend(clock=ManualClock())
    limiter = Limiter(Suspending(memory) if suspending else memory)
    handed_on: list[SimpleQueue[Reservation]] = [SimpleQueue() for _ in range(4)]

    async def part(number: int) -> None:
        for index in range(100):
            reservation = await limiter.pre_commit(scope, tokens=30, request_id=f"{number}.{index}")
            handed_on[(number + 1) % 4].put(reservation)
            await limiter.add_tokens_post_stream(scope, 1)
            await limiter.peek(scope)
        for _ in range(100):
            assert await handed_on[number].get().settle_success(12) is True

    in_threads(
        lambda number: trio.run(part, number) if number % 2 else asyncio.run(part(number)),
        threads=4,
    )
    assert used(memory, scope) == [400, 400 * 13, 0]


# One call in the midst of another.


def is_held(lock: Any) -> bool:
    """Whether a lock keeps other threads out now; one that its thread may take again says so by another name."""
    held: bool = lock._is_owned() if hasattr(lock, "_is_owned") else lock.locked()
    return held


KEY: Final = Scope("key", Limits(rpm=60, tpm=100, concurrency=3))
SPARE: Final = Scope("spare", Limits(concurrency=1))


class Pair:
    """A backend with one open reservation of 30 tokens, on which two calls are made at once."""

    def __init__(self) -> None:
        self.backend = MemoryBackend(clock=ManualClock())
        self.events: list[Any] = []
        self.limiter = Limiter(self.backend, observers=(self.events.append,))
        self.handle: Reservation = by_hand(self.ask("held"))
        self.events.clear()

    def ask(self, request_id: str) -> Coroutine[Any, Any, Reservation]:
        """Ask for 30 tokens under an id."""
        return self.limiter.pre_commit(KEY, tokens=30, request_id=request_id)

    def at_once(self, one: Call, other: Call, at: int) -> tuple[bool, Any, Any]:
        """Make one call, and the other before its `at`-th instruction: whether it came to that, and both answers."""
        answers: list[Any] = []
        locks: list[Any] = [self.backend.instant._lock, self.backend.desk.lock]
        between = Interjection(
            lambda: answers.append(by_hand(other(self))), at, lambda: not any(map(is_held, locks))
        )
        first = between(lambda: by_hand(one(self)))
        return between.made, first, answers[0] if answers else by_hand(other(self))

    def kinds(self) -> list[str]:
        """What observers were told, in order."""
        return [event.kind for event in self.events]


Call = Callable[[Pair], Coroutine[Any, Any, Any]]


def interleaved(one: Call, other: Call, check: Callable[[Pair, Any, Any], None]) -> None:
    """Make one call in the midst of the other, at every instruction in turn."""
    at, made = 0, True
    while made:
        at += 1
        pair = Pair()
        made, first, second = pair.at_once(one, other, at)
        try:
            check(pair, first, second)
        except BaseException as error:
            error.add_note(f"at instruction {at}")
            raise
    assert at > 20
    reached.count("switches at an instruction", at)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("settle_success", "settle_success"),
        ("settle_success", "close_reserved_only"),
        ("close_reserved_only", "cancel"),
        ("cancel", "abandon"),
        ("abandon", "settle_success"),
    ],
)
def test_r5_two_resolvers_at_every_instruction(first: str, second: str) -> None:
    """R5, R19: one of them is told that it resolved; the state, the event and the debit are those of that one."""
    debits = {
        "settled": [1, 25, 0],
        "closed": [1, 30, 0],
        "abandoned": [1, 30, 0],
        "cancelled": [0, 0, 0],
    }

    def check(pair: Pair, one: bool, other: bool) -> None:
        assert [one, other].count(True) == 1
        state = VERBS[first if one else second]
        assert pair.kinds() == [state]
        assert pair.handle.state == state
        assert used(pair.backend, KEY) == debits[state]

    interleaved(
        lambda pair: resolve(pair.handle, first),
        lambda pair: resolve(pair.handle, second),
        check,
    )


def test_r9_two_requests_with_one_new_id_at_every_instruction() -> None:
    """R9, R19: one reservation, one object, one admission."""

    def check(pair: Pair, one: Reservation, other: Reservation) -> None:
        assert one is other
        assert pair.kinds() == ["admitted"]
        assert used(pair.backend, KEY) == [2, 60, 2]
        assert by_hand(one.cancel()) is True
        assert by_hand(pair.handle.cancel()) is True

    interleaved(lambda pair: pair.ask("new"), lambda pair: pair.ask("new"), check)


@pytest.mark.parametrize("asks_first", [True, False])
@pytest.mark.parametrize("verb", ["settle_success", "cancel"])
def test_r9_a_request_for_an_id_that_is_being_resolved_at_every_instruction(
    verb: str, asks_first: bool
) -> None:
    """R9, R19: whoever asks is given the old reservation, which is resolved under them, or one of their own."""

    def check(pair: Pair, one: Any, other: Any) -> None:
        got, won = (one, other) if asks_first else (other, one)
        assert won is True
        requests, tokens, slots = used(pair.backend, KEY)
        if slots:
            assert pair.kinds() in (["admitted", VERBS[verb]], [VERBS[verb], "admitted"])
            assert got is not pair.handle
        else:
            assert pair.kinds() == [VERBS[verb]]
        assert by_hand(got.cancel()) is (slots == 1)
        assert used(pair.backend, KEY) == [requests - slots, tokens - 30 * slots, 0]

    def ask(pair: Pair) -> Coroutine[Any, Any, Reservation]:
        return pair.ask("held")

    def move(pair: Pair) -> Coroutine[Any, Any, bool]:
        return resolve(pair.handle, verb)

    calls: tuple[Call, Call] = (ask, move) if asks_first else (move, ask)
    interleaved(*calls, check)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_r15_two_messages_that_find_what_was_dropped_at_every_instruction() -> None:
    """R15, R19: one of them abandons it, and the other is not hurt."""

    def check(pair: Pair, one: Any, other: Any) -> None:
        assert used(pair.backend, SPARE) == [0]
        assert pair.kinds() == ["admitted", "abandoned"]
        assert by_hand(pair.handle.cancel()) is True

    def look(pair: Pair) -> Coroutine[Any, Any, Any]:
        return pair.limiter.peek(SPARE)

    def drop_and_look(pair: Pair) -> Coroutine[Any, Any, Any]:
        by_hand(pair.limiter.pre_commit(SPARE))
        return look(pair)

    interleaved(drop_and_look, look, check)


# Ids.


def test_r9_ids_are_unique_over_threads() -> None:
    """R9: a counter that every thread may draw from."""
    drawn: list[list[int]] = [[] for _ in range(THREADS)]

    def part(number: int) -> None:
        for _ in range(10_000):
            drawn[number].append(next_id())

    in_threads(part)
    ids = [id_ for ids in drawn for id_ in ids]
    assert len(set(ids)) == len(ids) == THREADS * 10_000
    assert len({name_of(id_) for id_ in ids[:1_000]}) == 1_000


FORKS: Final = {
    "os.fork": """
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, " ".join(names()).encode())
            os._exit(0)
        os.waitpid(child, 0)
        theirs = os.read(reader, 65536).decode().split()
    """,
    "multiprocessing": """
        import multiprocessing
        with multiprocessing.get_context("fork").Pool(1) as pool:
            theirs = pool.apply(names)
    """,
}


@pytest.mark.parametrize("fork", FORKS)
def test_r9_names_are_unique_after_a_fork(fork: str) -> None:
    """R9: parent and child count alike from the fork on, and name what they make differently."""
    code = f"""if True:
        import os
        from earmark import Limiter, Limits, Scope

        limiter, scope = Limiter(), Scope("key", Limits(rpm=1_000))

        def reserve():
            try:
                limiter.pre_commit(scope).send(None)
            except StopIteration as stop:
                return stop.value

        kept = []

        def names():
            kept.extend(reserve() for _ in range(100))
            drawn = [reservation.request_id for reservation in kept]
            for reservation in kept:
                try:
                    reservation.cancel().send(None)
                except StopIteration as stop:
                    assert stop.value is True
            kept.clear()
            return drawn

        before = names()
        {fork_lines(fork)}
        after = names()
        assert len({{*before, *theirs, *after}}) == 300, (before, theirs, after)
    """
    command = [sys.executable, "-W", "error", "-c", code]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def fork_lines(fork: str) -> str:
    """The lines of one way to fork, without the margin that they have here."""
    return FORKS[fork].strip()
