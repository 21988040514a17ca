"""A reservation and its stream: what is debited however it ends, how long a slot is held, and what may be chosen."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import fields
from typing import Any, ClassVar, Final

import anyio
import anyio.lowlevel
import pytest

from earmark import (
    Event,
    Limiter,
    Limits,
    MemoryBackend,
    Reservation,
    Scope,
    Usage,
    observe_stream,
)
from earmark.streams import Observed
from earmark.streams.options import MAX_EVENT, Options, StreamOptions
from earmark.testing import ManualClock
from tests.streams.toys import DONE, FAILED, SAY, USAGE, Source, Told, Toy, consume, sse
from tests.suspending import Suspending

pytestmark = pytest.mark.anyio

KEY: Final = Scope("key", Limits(tpm=100_000, otpm=100_000, concurrency=1))
HOLD: Final = 1_000


class Table:
    """A limiter on a clock that stands still, what its observers hear, and one reservation.

    Args:
        tokens: what the reservation holds.
    """

    def __init__(self, tokens: int | Usage = HOLD) -> None:
        self.clock = ManualClock()
        self.events: list[Event] = []
        self.limiter = Limiter(MemoryBackend(clock=self.clock), observers=(self.events.append,))
        self._tokens = tokens

    async def reserve(self) -> Reservation:
        """Take it."""
        return await self.limiter.pre_commit(KEY, tokens=self._tokens)

    async def used(self, metric: str = "tokens") -> int:
        """What is debited of a metric."""
        (status,) = await self.limiter.peek(KEY)
        return status[metric].used

    @property
    def ended(self) -> tuple[str, Mapping[str, int]]:
        """What observers heard last, and how much was said to be used."""
        return self.events[-1].kind, self.events[-1].used


def say(count: int | None, prompt: int | None = None) -> bytes:
    """A final report of OpenAI's shape, with or without each of the two."""
    counts = {"prompt_tokens": prompt, "completion_tokens": count}
    return sse({"choices": [], "usage": {name: n for name, n in counts.items() if n is not None}})


HI: Final = sse({"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]})
STOP: Final = sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
WHOLE: Final = [HI, STOP, say(25, 16), DONE]

# ---------------------------------------------------------------- with an estimator: C40, C44, B34, B36, B65

Estimate = Callable[[Observed], Usage | None]
GUESS: Final = Usage(40, 3)


def guess(_: Observed) -> Usage:
    """One that always says the same."""
    return GUESS


def much(_: Observed) -> Usage:
    """One that says more than is held."""
    return Usage(4_000, 600)


def free_if_it_failed(observed: Observed) -> Usage | None:
    """A gateway's own choice: a failure before any output has cost nothing."""
    failed = observed.outcome == "error" and not observed.text_length
    return Usage(0, 0) if failed else None


BOOM: Final = OSError("reset")

GZIP: Final = gzip.compress(b"".join(WHOLE))

ROWS: list[tuple[str, list[bytes], Any, Estimate | None, str, int]] = [
    ("C40: a report on empty choices", WHOLE, "stop", guess, "settled", 41),
    (
        "C40: no prompt, estimated",
        [HI, STOP, say(25), DONE],
        "stop",
        guess,
        "settled",
        65,
    ),
    ("C40: no prompt, no estimator", [HI, STOP, say(25), DONE], "stop", None, "settled", HOLD),
    ("C40: no output, estimated", [HI, STOP, DONE], "stop", guess, "closed", HOLD),
    ("C40: no usage at all", [HI, STOP, DONE], "stop", None, "closed", HOLD),
    ("B34: the estimate is larger than the hold", [HI], "stop", much, "closed", 4_600),
    ("B65: the report is larger than both", [HI, say(5_000, 16)], BOOM, guess, "closed", 5_040),
    ("C44: output seen, the default", [HI], BOOM, None, "closed", HOLD),
    ("C44: output seen", [HI], BOOM, free_if_it_failed, "closed", HOLD),
    ("C44: failed before any output, the default", [], BOOM, None, "closed", HOLD),
    ("C44: failed before any output, 0", [], BOOM, free_if_it_failed, "settled", 0),
    ("C44: an error in the stream, the default", [FAILED], "stop", None, "closed", HOLD),
    ("C44: an error in the stream, 0", [FAILED], "stop", free_if_it_failed, "settled", 0),
    ("C44: an error in the stream after output", [HI, FAILED], "stop", guess, "closed", HOLD),
    ("C44: 0, but something was said", [HI, FAILED], "stop", lambda _: Usage(0, 0), "closed", HOLD),
    ("C44: 0, but what came is unknown", [GZIP], BOOM, lambda _: Usage(0, 0), "closed", HOLD),
    (
        "C44: 0, but something was reported",
        [sse({"usage": {"total_tokens": 7}}), FAILED],
        "stop",
        free_if_it_failed,
        "closed",
        HOLD,
    ),
    (
        "B65: whoever leaves cannot have it for nothing",
        [HI],
        "left",
        lambda _: Usage(0, 0),
        "closed",
        HOLD,
    ),
    ("B65: nor before the first item", [], "left", lambda _: Usage(0, 0), "closed", HOLD),
    (
        "a source that stops at once has not failed",
        [],
        "stop",
        lambda _: Usage(0, 0),
        "closed",
        HOLD,
    ),
]


@pytest.mark.parametrize(
    ("items", "ending", "estimate", "state", "used"),
    [row[1:] for row in ROWS],
    ids=[row[0] for row in ROWS],
)
async def test_what_a_stream_s_end_leaves_debited(
    items: list[bytes], ending: Any, estimate: Estimate | None, state: str, used: int
) -> None:
    """C40, C44: the largest of the hold, reports and estimate, unless the last word is there, or nothing was done."""
    table = Table()
    reservation = await table.reserve()
    stream = reservation.stream(
        Source(items, "wait" if ending == "left" else ending), estimate=estimate
    )
    if ending == "left":
        for _ in items:
            await anext(stream)
        await stream.aclose()
    else:
        await consume(stream)
    assert (reservation.state, await table.used()) == (state, used)
    assert await table.used("concurrency") == 0


@pytest.mark.parametrize(
    ("report", "guessed", "usage"),
    [
        ({"completion_tokens": 25}, Usage(40, 3), Usage(40, 25)),
        ({"prompt_tokens": 40, "completion_tokens": 25}, Usage(1, 1), Usage(40, 25)),
        (
            {"completion_tokens": 25, "total_tokens": 80},
            Usage(40, 3),
            Usage(55, 25, reported_total=80),
        ),
        (
            {"completion_tokens": 25, "prompt_tokens_details": {"cached_tokens": 60}},
            Usage(40, 3),
            Usage(60, 25),
        ),
        ({"completion_tokens": 25}, Usage(None, 3), Usage(None, 25)),
    ],
    ids=["the prompt", "nothing", "no less than the total", "no less than a part", "no guess"],
)
async def test_c40_of_a_final_report_only_what_is_unknown_is_estimated(
    report: Mapping[str, Any], guessed: Usage, usage: Usage
) -> None:
    """What the provider says stands, and is final all the same."""
    asked, told = Told(), Told()

    def estimate(observed: Observed) -> Usage:
        asked(observed)
        return guessed

    items = [HI, STOP, sse({"choices": [], "usage": dict(report)}), DONE]
    await consume(observe_stream(Source(items), on_complete=told, estimate=estimate))
    seen = told.only
    assert seen.usage is not None
    assert (seen.usage.input_tokens, seen.usage.output_tokens) == (
        usage.input_tokens,
        usage.output_tokens,
    )
    assert seen.usage.reported_total == usage.reported_total
    assert seen.authoritative
    assert len(asked) == (report.get("prompt_tokens") is None)


# ---------------------------------------------------------------- what is not known is not 0: B34, B40, B62, C69


async def test_b34_without_a_usage_and_a_hold_nothing_is_counted_and_the_event_says_so() -> None:
    """B62: observers hear that nothing is known, which is not that it was 0."""
    table = Table(tokens=0)
    reservation = await table.reserve()
    await consume(reservation.stream(Source([HI, STOP, DONE])))
    assert await table.used() == 0
    assert table.ended == ("closed", {})


async def test_b62_a_reported_zero_is_another_thing() -> None:
    """What the provider says is 0 was 0."""
    table = Table()
    reservation = await table.reserve()
    await consume(reservation.stream(Source([STOP, say(0, 0), DONE])))
    kind, used = table.ended
    assert (kind, used["tokens"], await table.used()) == ("settled", 0, 0)


async def test_b40_a_response_from_a_cache_settles_nothing() -> None:
    """B40: a hit costs no tokens, with a stream of the cache's own or without one."""
    table = Table()
    hit = await table.reserve()
    assert await hit.settle_success(Usage(0, 0))
    assert (await table.used(), table.ended[1]["tokens"]) == (0, 0)
    streamed = await table.reserve()
    await consume(streamed.stream(Source([HI, STOP, say(0, 0), DONE])))
    assert (streamed.state, await table.used()) == ("settled", 0)


@pytest.mark.parametrize("dialect", [None, "openai"])
async def test_c69_a_compressed_stream_keeps_the_hold(
    dialect: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """C69, B63: it passes through, its usage is unknown and not 0, and one warning says what to do."""
    table = Table()
    reservation = await table.reserve()
    body = gzip.compress(b"".join(WHOLE))
    items = [body[:7], body[7:50], body[50:]]
    with caplog.at_level(logging.WARNING):
        stream = reservation.stream(Source(items), dialect=dialect)
        assert [item async for item in stream] == items
    assert (reservation.state, await table.used()) == ("closed", HOLD)
    assert table.ended == ("closed", {})
    assert (stream.observed.usage, stream.observed.bytes) == (None, len(body))
    assert [
        record.message for record in caplog.records if "Accept-Encoding" in record.message
    ] != []
    assert len(caplog.records) == 1


# ---------------------------------------------------------------- slots: part 6, R10, B35


@pytest.mark.parametrize("silent", [False, True])
async def test_b51_a_stream_longer_than_a_lease_keeps_its_slot(*, silent: bool) -> None:
    """Also while the upstream says nothing for longer than that; and the slot is free as soon as it has ended."""
    table = Table()
    reservation = await table.limiter.pre_commit(KEY, tokens=5, lease=10.0)
    go_on = anyio.Event()

    async def upstream() -> AsyncIterator[bytes]:
        yield HI
        if silent:
            await go_on.wait()
        for item in (STOP, say(3, 9), DONE):
            yield item

    stream = reservation.stream(upstream())
    await anext(stream)
    async with anyio.create_task_group() as group:
        if silent:
            group.start_soon(consume, stream)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
            table.clock.advance(25)
            assert await table.used("concurrency") == 1
        go_on.set()
        if not silent:
            await consume(stream)
    assert await table.used("concurrency") == 0
    assert reservation.state == "settled"


BAD: list[tuple[Any, dict[str, Any], type[Exception]]] = [
    ([1], {}, TypeError),
    (Source([]), {"expected_choices": 0}, ValueError),
    (Source([]), {"max_event": 0}, ValueError),
    (Source([]), {"dialect": "nobody's"}, ValueError),
    (Source([]), {"estimate": 3}, TypeError),
    (Source([]), {"drain": 5}, ValueError),
    (Source([]), {"on_complete": print}, TypeError),
    (Source([]), {"max_evnet": 5}, TypeError),
]


@pytest.mark.parametrize(("source", "options", "error"), BAD)
async def test_r10_a_stream_that_is_refused_leaves_the_reservation_as_it_was(
    source: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    """It is still the caller's, who alone renews it: its slot is free one lease later."""
    table = Table()
    reservation = await table.limiter.pre_commit(KEY, tokens=5, lease=10.0)
    with pytest.raises(error):
        reservation.stream(source, **options)
    table.clock.advance(9)
    assert await table.used("concurrency") == 1
    table.clock.advance(2)
    assert await table.used("concurrency") == 0
    assert await reservation.cancel()


# ---------------------------------------------------------------- options: one list for both


def test_both_ways_in_take_the_same_options() -> None:
    """What may be named, what is checked and what is described is one list, with its defaults."""
    names = [field.name for field in fields(Options)]
    assert names == list(StreamOptions.__annotations__)
    described = observe_stream.__doc__ or ""
    assert all(f"`{name}` (" in described for name in names)
    assert Options() == Options(
        dialect=None,
        expected_choices=1,
        estimate=None,
        aclose=None,
        complete_timeout=5.0,
        max_event=16 * 1024 * 1024,
        hide_usage=False,
        drain=None,
        task_group=None,
    )
    assert Options().max_event == MAX_EVENT


@pytest.mark.parametrize(("pad", "found"), [(60_000, True), (70_000, False)])
async def test_the_end_of_an_event_that_is_too_large_is_64_kib(pad: int, *, found: bool) -> None:
    """Of an event above `max_event` that much is searched for the usage, in both ways in."""
    body = b'data: {"choices":[],"x":"%s","usage":{"prompt_tokens":9,"completion_tokens":3},"y":"%s"}\n\n'
    items = [HI, STOP, body % (b"x" * 100_000, b"y" * pad), DONE]
    table, told = Table(), Told()
    reservation = await table.reserve()
    await consume(reservation.stream(Source(items), max_event=50_000))
    await consume(observe_stream(Source(items), on_complete=told, max_event=50_000))
    assert (told.only.tokens, await table.used()) == ((12, 12) if found else (0, HOLD))
    # With the default it is read whole.
    again = await table.reserve()
    await consume(again.stream(Source(items)))
    assert await table.used() == (12 if found else HOLD) + 12


async def test_an_event_of_sixteen_mebibytes_is_read_whole() -> None:
    """The default of `max_event`: in a larger one, a usage that is near neither end is not found."""
    usage = b'"w":"' + b"w" * 10_000 + b'","usage":{"prompt_tokens":9,"completion_tokens":3}'
    found = []
    for size in (MAX_EVENT - 10_200, MAX_EVENT):
        told = Told()
        event = b'data: {"choices":[],%s,"x":"%s"}\n\n' % (usage, b"x" * size)
        await consume(observe_stream(Source([HI, STOP, event]), on_complete=told))
        found.append(told.only.tokens)
    assert found == [12, 0]


async def test_the_last_item_waits_for_the_settlement_as_long_as_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`complete_timeout`: then the consumer goes on, and the settlement by itself."""
    backend = Suspending(MemoryBackend(clock=ManualClock()))
    limiter = Limiter(backend)
    reservation = await limiter.pre_commit(KEY, tokens=HOLD)
    gate = backend.gate("resolve", "before")
    stream = reservation.stream(Source(WHOLE), complete_timeout=0.001)
    with anyio.fail_after(4), caplog.at_level(logging.WARNING):
        assert await consume(stream) == (WHOLE, None)
    assert "on_complete is not done after 0.001 s" in caplog.text
    gate.open()
    with anyio.fail_after(10):
        while reservation.state == "open":
            await anyio.lowlevel.checkpoint()
    assert reservation.state == "settled"


# ---------------------------------------------------------------- drops: R15


class Spy(Toy):
    """A user's dialect, which notes when it is asked."""

    asked: ClassVar[list[str]] = []

    def final(self, *, complete: bool) -> bool:
        self.asked.append("dialect")
        return super().final(complete=complete)


@pytest.mark.parametrize(
    ("items", "state", "used"),
    [([SAY], "abandoned", 4_600), ([SAY, USAGE], "settled", 12)],
    ids=["nothing final", "final"],
)
async def test_r15_a_finaliser_only_notes_that_a_stream_was_dropped(
    items: list[bytes], state: str, used: int
) -> None:
    """It runs anywhere, in any lock: the user's estimator and dialect run with the next message instead."""
    table = Table()
    reservation = await table.reserve()
    Spy.asked.clear()

    def estimate(observed: Observed) -> Usage:
        Spy.asked.append("estimator")
        return much(observed)

    stream = reservation.stream(Source(items, "wait"), estimate=estimate, dialect=Spy)
    for _ in items:
        await anext(stream)
    Spy.asked.clear()
    del stream
    assert Spy.asked == []
    assert await table.used() == used
    assert set(Spy.asked) == ({"dialect"} if state == "settled" else {"estimator"})
    assert reservation.state == state
    assert await table.used("concurrency") == 0
    assert [event.kind for event in table.events] == ["admitted", state]


async def test_r15_many_dropped_streams_are_resolved_by_one_message() -> None:
    """What the first note leads to is done as well, however many there are."""
    limiter = Limiter(MemoryBackend(clock=ManualClock()))
    scope = Scope("many", Limits(tpm=10_000_000, concurrency=2_000))
    held = [(await limiter.pre_commit(scope, tokens=10)).stream(Source([])) for _ in range(2_000)]
    held.clear()
    (status,) = await limiter.peek(scope)
    assert (status["concurrency"].used, status["tokens"].used) == (0, 20_000)


# ---------------------------------------------------------------- what others raise


ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@ON_ASYNCIO
async def test_c43_a_cancelled_error_of_the_source_s_own_is_an_error(anyio_backend: str) -> None:
    """Nobody has cancelled the consumer: the stream has failed, and the reservation is not abandoned but closed."""
    table, told = Table(), Told()
    error = asyncio.CancelledError("a helper was cancelled")
    reservation = await table.reserve()
    for stream in (
        reservation.stream(Source([HI], error)),
        observe_stream(Source([HI], error), on_complete=told),
    ):
        await anext(stream)
        with pytest.raises(asyncio.CancelledError):
            await anext(stream)
        assert (stream.observed.outcome, stream.observed.error) == ("error", error)
    assert (reservation.state, await table.used()) == ("closed", HOLD)
