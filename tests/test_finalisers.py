"""R15: a finaliser may run anywhere, also inside the library's own lock, in any thread, and when everything is ending.

What a garbage collector does once in a million calls is done here on purpose: a handle, or a stream that has one, is
dropped before each instruction that the library runs, whether it holds its lock there or not; by a clock, which is
read under the lock; and at the end of the interpreter. It must not raise, must not wait, and the next message finds
the slot free, whichever limiter of the backend sends it.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import anyio
import pytest
import trio

from earmark import Limiter, Limits, MemoryBackend, RateLimited, Reservation, Scope
from earmark.ids import Id, name_of
from earmark.office import tidy
from earmark.testing import ManualClock
from tests.reached import Reached
from tests.rows import quiet
from tests.streams.toys import SAY, USAGE, Source, Toy, generate
from tests.suspending import Interjection, Suspending, by_hand, quiesce

KEY: Final = Scope("key", Limits(rpm=60, tpm=100, concurrency=3))
OTHER: Final = Scope("other", Limits(rpm=60, tpm=100, concurrency=3))

reached = Reached("finalisers")


@pytest.fixture(autouse=True)
def swept() -> None:
    """What other tests have left in cycles is no concern of these."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@contextmanager
def warned(times: int = 1) -> Iterator[None]:
    """A handle is dropped while open in this block, so many times, and each time that is said, once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [one.category for one in caught] == [ResourceWarning] * times


def in_time(work: Callable[[], object]) -> None:
    """Do the work in a thread that is given up when it does not come to its end: a lock is waiting for itself."""
    errors: list[BaseException] = []

    def part() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the test can fail
            errors.append(error)

    thread = threading.Thread(target=part, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "deadlock"
    if errors:
        raise errors[0]


def used(backend: Any, *scopes: Scope) -> list[int]:
    """What the next message finds, sent by a limiter of its own: the use of every limit."""
    statuses = by_hand(Limiter(backend).peek(*scopes))
    return [limit.used for status in statuses for limit in status.limits]


# At every instruction.


class Bench:
    """A limiter in memory with one reservation of 30 tokens to work on and one of 5 to drop.

    Args:
        stream: the one to drop belongs to a stream, which has been told of 12 tokens.
        clock: the backend's.
    """

    def __init__(self, *, stream: bool = False, clock: Callable[[], float] | None = None) -> None:
        self.backend = MemoryBackend(clock=clock or ManualClock())
        self.events: list[Any] = []
        self.limiter = Limiter(self.backend, observers=(self.events.append,))
        self.handle: Reservation = by_hand(self.limiter.pre_commit(KEY, tokens=30))
        held: Any = by_hand(self.limiter.pre_commit(KEY, tokens=5, request_id="dropped"))
        if stream:
            held = held.stream(generate([USAGE]), dialect=Toy)
            assert by_hand(anext(held)) == USAGE
        self.kept = [held]
        self.left = [1, 12, 0] if stream else [1, 5, 0]
        self.events.clear()

    def drop(self) -> None:
        """Run the finaliser."""
        self.kept.clear()

    def drop_in_a_cycle(self) -> None:
        """Leave it to the collector."""
        self.kept.append(self.kept)
        self.kept = []

    def check(self, *others: int) -> None:
        """What was dropped has left its debit and no slot, beside what the others have; and that was told once."""
        left = [mine + its for mine, its in zip(others, self.left, strict=True)]
        assert used(self.backend, KEY) == left
        told = [event.kind for event in self.events if event.request_id == "dropped"]
        assert told == ["settled" if self.left[1] == 12 else "abandoned"]


Message = Callable[[Bench], Coroutine[Any, Any, Any]]


async def refused(bench: Bench) -> None:
    with pytest.raises(RateLimited):
        await bench.limiter.pre_commit(KEY, tokens=66)


async def block(bench: Bench) -> None:
    async with bench.handle:
        pass


async def stream(bench: Bench) -> None:
    async for _ in bench.handle.stream(generate([SAY]), dialect=Toy):
        pass


# Each message, and what it leaves of the key.
MESSAGES: Final[dict[str, tuple[Message, tuple[int, int, int]]]] = {
    "pre_commit": (lambda one: one.limiter.pre_commit(KEY, tokens=7), (2, 37, 2)),
    "pre_commit by id": (
        lambda one: one.limiter.pre_commit(KEY, tokens=7, request_id="mine"),
        (2, 37, 2),
    ),
    "refused": (refused, (1, 30, 1)),
    "settle": (lambda one: one.handle.settle_success(12), (1, 12, 0)),
    "cancel": (lambda one: one.handle.cancel(), (0, 0, 0)),
    "close": (lambda one: one.limiter.close_reserved_only(one.handle), (1, 30, 0)),
    "renew": (lambda one: one.handle.renew(), (1, 30, 1)),
    "add": (lambda one: one.limiter.add_tokens_post_stream(KEY, 9), (1, 39, 1)),
    "add to a key": (
        lambda one: one.limiter.add_tokens_post_stream("key", 9, request_id="q"),
        (1, 39, 1),
    ),
    "peek": (lambda one: one.limiter.peek(KEY), (1, 30, 1)),
    "block": (block, (1, 30, 0)),
    "stream": (stream, (1, 30, 0)),
}


# What a stream does between its messages takes no lock: it is left to the test of the clock.
@pytest.mark.parametrize(("stream", "step"), [(False, 1), (True, 5)], ids=["handle", "stream"])
@pytest.mark.parametrize("message", [message for message in MESSAGES if message != "stream"])
def test_r15_dropped_at_every_instruction_of_a_message(
    message: str, stream: bool, step: int
) -> None:
    """R15: no message is disturbed, none waits for itself, and what was dropped is abandoned once, with one warning."""
    call, leaves = MESSAGES[message]
    inside = 0

    def drop(bench: Bench) -> None:
        nonlocal inside
        inside += bench.backend.instant._lock.locked()
        bench.drop()

    def every_instruction() -> None:
        at, made = 0, True
        while made:
            at += step
            bench = Bench(stream=stream)
            interjection = Interjection(partial(drop, bench), at)
            with warned(0 if stream else 1):
                answer = interjection(lambda: by_hand(call(bench)))  # noqa: B023 - it is called here
                bench.drop()
            made = interjection.made
            bench.check(*leaves)
            assert answer is not False
            by_hand(bench.handle.cancel())
            if isinstance(answer, Reservation):
                assert by_hand(answer.cancel()) is True
        reached.count("drops at an instruction", at // step)

    in_time(every_instruction)
    assert inside > 20 // step
    reached.count("drops inside the lock", inside)


def test_r9_dropped_at_every_instruction_of_a_request_for_its_id() -> None:
    """R9, R15: whoever asks for the id of what is dropped has a reservation that is theirs, the old or a new one."""

    def every_instruction() -> None:
        at, made = 0, True
        while made:
            at += 1
            bench = Bench()
            interjection = Interjection(bench.drop, at)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                asked = bench.limiter.pre_commit(KEY, tokens=5, request_id="dropped")
                got = interjection(partial(by_hand, asked))
                bench.drop()
            made = interjection.made
            old = used(bench.backend, KEY) == [2, 35, 2]
            assert old or used(bench.backend, KEY) == [3, 40, 2]
            # Whoever asked may have had the very object by then, so that it was not dropped at all.
            assert len(caught) <= 1
            assert old or caught
            assert by_hand(got.settle_success(0)) is True
            assert used(bench.backend, KEY) == ([2, 30, 1] if old else [3, 35, 1])
            by_hand(bench.handle.cancel())

    in_time(every_instruction)


# By the collector.


class Collecting(ManualClock):
    """A clock that does something when it is read next: the backend reads it under its lock."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Callable[[], object] | None = None

    def __call__(self) -> float:
        then, self.then = self.then, None
        if then is not None:
            then()
        return super().__call__()


@pytest.mark.parametrize("stream", [False, True], ids=["handle", "stream"])
@pytest.mark.parametrize("how", ["collected", "dropped in another thread"])
@pytest.mark.parametrize("message", MESSAGES)
def test_r15_dropped_while_the_clock_is_read_under_the_lock(
    message: str, how: str, stream: bool
) -> None:
    """R15: the collector runs in the midst of a message; or another thread drops it, and does not wait for the lock."""
    call, leaves = MESSAGES[message]
    clock = Collecting()
    bench = Bench(stream=stream, clock=clock)

    def collect() -> None:
        assert bench.backend.instant._lock.locked()
        gc.collect()

    def drop_elsewhere() -> None:
        assert bench.backend.instant._lock.locked()
        in_time(bench.drop)

    with warned(0 if stream else 1):
        if how == "collected":
            bench.drop_in_a_cycle()
            clock.then = collect
        else:
            clock.then = drop_elsewhere
        kept: list[object] = []
        in_time(lambda: kept.append(by_hand(call(bench))))
        assert clock.then is None
    bench.check(*leaves)
    for handle in (bench.handle, *kept):
        if isinstance(handle, Reservation):
            by_hand(handle.abandon())


def test_r15_a_collector_that_never_rests() -> None:
    """R15: each of 300 requests leaves an open reservation in a cycle, and the collector runs all the time."""
    scope = Scope("key", Limits(rpm=1_000, tpm=100_000, concurrency=1_000))
    backend = MemoryBackend(clock=ManualClock())
    events: list[Any] = []

    def work() -> None:
        limiter = Limiter(backend, observers=(events.append,))
        for number in range(300):
            cycle: list[Any] = [by_hand(limiter.pre_commit(scope, tokens=7))]
            if number % 3 == 0:
                cycle[0] = cycle[0].stream(generate([]), dialect=Toy)
            cycle.append(cycle)

    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        with warned(200):
            in_time(work)
            gc.collect()
    finally:
        gc.set_threshold(*threshold)
    assert used(backend, scope) == [300, 2_100, 0]
    assert [event.kind for event in events].count("abandoned") == 300


def test_r15_any_limiter_of_the_backend_does_what_was_noted() -> None:
    """R15: the limiter that made it has gone; the slot is free at the next message of another one."""
    backend = MemoryBackend(clock=ManualClock())
    handles = [by_hand(Limiter(backend).pre_commit(OTHER))]
    with warned():
        handles.clear()
    by_hand(Limiter(backend).add_tokens_post_stream("elsewhere", 5))
    seen = backend.instant.peek((OTHER,))
    assert seen.states == (1, 0, 0)


# When the loop, or everything, is ending.


LOOPS: Final[dict[str, Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]]] = {
    "asyncio": lambda work: asyncio.run(work()),
    "trio": trio.run,
}


@pytest.mark.parametrize("suspending", [False, True], ids=["memory", "suspending"])
@pytest.mark.parametrize("what", ["handle", "handle in a cycle", "stream", "stream half-way"])
@pytest.mark.parametrize("loop", LOOPS)
def test_r15_dropped_after_its_loop_has_closed(loop: str, what: str, suspending: bool) -> None:
    """R15: the loop that made it is gone; a message that comes by another loop finds the slot free."""
    memory = MemoryBackend(clock=ManualClock())
    limiter = Limiter(Suspending(memory) if suspending else memory)

    async def make() -> list[Any]:
        reservation = await limiter.pre_commit(KEY, tokens=5)
        if what == "handle":
            return [reservation]
        if what == "handle in a cycle":
            cycle: list[Any] = [reservation]
            cycle.append(cycle)
            return cycle
        stream = reservation.stream(Source([SAY, USAGE]), dialect=Toy)
        if what == "stream half-way":
            assert await anext(stream) == SAY
        return [stream]

    async def look() -> list[int]:
        (status,) = await limiter.peek(KEY)
        return [limit.used for limit in status.limits]

    kept = LOOPS[loop](make)
    with warned(1 if what.startswith("handle") else 0):
        del kept
        gc.collect()
    assert LOOPS[loop](look) == [1, 5, 0]


@pytest.mark.parametrize("suspending", [False, True], ids=["memory", "suspending"])
def test_r15_a_block_whose_loop_has_closed(
    suspending: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """R15, C42: a task that is destroyed within `async with` cannot wait: what it held is abandoned all the same."""
    memory = MemoryBackend(clock=ManualClock())
    limiter = Limiter(Suspending(memory) if suspending else memory)
    entered: list[Reservation] = []

    async def work(stop: Callable[[], None]) -> None:
        async with await limiter.pre_commit(KEY, tokens=5) as reservation:
            entered.append(reservation)
            stop()
            await asyncio.get_running_loop().create_future()

    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(work(loop.stop))]
    loop.run_forever()
    loop.close()
    with quiet():
        tasks.clear()
    assert [record.name for record in caplog.records] == ["asyncio"]
    assert asyncio.run(one_look(limiter)) == [1, 5, 0]
    assert entered[0].state == "abandoned"


@pytest.mark.anyio
@pytest.mark.parametrize("suspending", [False, True], ids=["memory", "suspending"])
async def test_r15_a_dropped_generator_with_a_block_in_it(suspending: bool) -> None:
    """R15, C42: a body generator that its server drops half-way: its block is left by GeneratorExit."""
    memory = MemoryBackend(clock=ManualClock())
    limiter = Limiter(Suspending(memory) if suspending else memory)

    async def body() -> AsyncIterator[bytes]:
        async with await limiter.pre_commit(KEY, tokens=5):
            yield SAY
            yield SAY

    bodies = [body()]
    assert await anext(bodies[0]) == SAY
    with quiet():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # trio's own, of any such generator
            bodies.clear()
        await quiesce()
    assert await one_look(limiter) == [1, 5, 0]


@pytest.mark.anyio
@pytest.mark.parametrize("named", [False, True])
async def test_r9_what_is_noted_waits_for_the_answer_to_its_own_name_alone(
    named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R9, R15: and however many are asked for meanwhile, no names are made to tell."""
    backend = Suspending(MemoryBackend(clock=ManualClock()))
    limiter = Limiter(backend)
    noted = [await limiter.pre_commit(OTHER, request_id=name) for name in ("q", "r")]
    gates = [backend.gate("reserve", "before") for _ in range(12)]
    made: list[object] = []

    async def ask(name: str | None) -> None:
        with suppress(RateLimited):
            await (await limiter.pre_commit(KEY, OTHER, request_id=name)).cancel()

    def counted(id_: Id) -> str:
        made.append(id_)
        return name_of(id_)

    async with anyio.create_task_group() as tasks:
        for number, gate in enumerate(gates):
            tasks.start_soon(ask, "q" if named and not number else None)
            await gate.reached.wait()
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            noted.clear()
        monkeypatch.setattr("earmark.core.hold.name_of", counted)
        await tidy(backend.desk)
        left = [one.hold.request_id for one in backend.desk.dropped]
        assert len(made) < len(gates)
        tasks.cancel_scope.cancel()
    assert left == (["q"] if named else [])


async def one_look(limiter: Limiter) -> list[int]:
    """The use of every limit of the key."""
    (status,) = await limiter.peek(KEY)
    return [limit.used for limit in status.limits]


# Each is left open at the end of the interpreter. `limiter`, `scope`, `source`, `make()` and `run()` are there.
ENDINGS: Final = {
    "a global": "kept = make()",
    "a cycle": "kept = [make()]; kept.append(kept); del kept",
    "an attribute of the library": "import earmark; earmark.kept = make()",
    "an attribute of the standard library": "import threading; threading.kept = make()",
    "a thread": "threading.Thread(target=wait, args=(make(),), daemon=True).start()",
    "a function at the end": "atexit.register(make)",
    "a traceback": "kept = make_and_raise()",
    "a stream": "kept = make().stream(source())",
    "a stream in a cycle": "kept = [make().stream(source())]; kept.append(kept); del kept",
    "a stream that was begun": "kept = make().stream(source()); asyncio.run(begin(kept))",
    "a block": "kept = inside(); kept.send(None)",
    "a loop that has ended": "kept = asyncio.run(limiter.pre_commit(scope))",
}

PRELUDE: Final = """
import asyncio, atexit, gc, sys, threading
from earmark import Limiter, Limits, Scope

limiter = Limiter()
scope = Scope("key", Limits(rpm=10, concurrency=5))

async def source():
    while True:
        yield b"data: {}"

def make():
    try:
        limiter.pre_commit(scope).send(None)
    except StopIteration as stop:
        return stop.value

def make_and_raise():
    reservation = make()
    try:
        raise LookupError
    except LookupError as error:
        return error

async def begin(stream):
    await anext(stream)

async def inside():
    async with make():
        await Suspension()

class Suspension:
    def __await__(self):
        yield

def wait(reservation):
    threading.Event().wait()
"""


@pytest.mark.parametrize("options", [(), ("-X", "dev")], ids=["", "dev"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_r15_at_the_end_of_the_interpreter(ending: str, options: tuple[str, ...]) -> None:
    """R15: nothing is printed; in Python's development mode at most the one warning that a reservation was dropped."""
    code = f"{PRELUDE}\n{ENDINGS[ending]}\n"
    command = [sys.executable, *options, "-c", code]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    lines = [line for line in run.stderr.splitlines() if not line.startswith(" ")]
    if options:
        said = [line for line in lines if "ResourceWarning: <Reservation" in line]
        assert len(said) <= 1
        lines = [line for line in lines if line not in said and "Enable tracemalloc" not in line]
    assert (run.returncode, run.stdout, lines) == (0, "", [])
