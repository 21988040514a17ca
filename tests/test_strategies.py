"""The kit's strategies draw what they promise, and what they draw holds."""

from __future__ import annotations

import contextlib
import re
from contextlib import aclosing
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from earmark import Limiter, Limits, MemoryBackend, Reservation, Scope, Usage
from earmark.streams import Observed, observe_stream
from earmark.testing import ManualClock, charged, fake_redis_backend, strategies
from earmark.testing import histories as kit
from earmark.testing.histories import (
    Bad,
    Finish,
    Gateway,
    History,
    Line,
    Offer,
    Peek,
    PreCommit,
    Settle,
    Wait,
    play,
)
from earmark.testing.plain import PlainBackend
from earmark.testing.streams import ALL, Body, Stream, stream
from tests.reached import Reached
from tests.scale import examples

reached = Reached("bodies of streams")

SQLiteBackend: Final[Any] = import_module("examples.sqlite_backend").SQLiteBackend


async def consume(body: Body, seen: list[Observed]) -> list[Any]:
    """Read a body through an observer to its end, or until nothing more can come."""
    got: list[Any] = []
    stream = observe_stream(
        body.source(),
        on_complete=seen.append,
        expected_choices=body.stream.n,
        dialect=None if body.complete else body.stream.dialect,
    )
    with anyio.CancelScope() as scope:
        async with aclosing(stream) as items:
            if not body.pieces and body.ending == "hang":
                return got
            try:
                async for item in items:
                    got.append(item)
                    if len(got) == len(body.pieces) and body.ending == "hang":
                        scope.cancel()
            except ConnectionError:
                assert body.ending == "error"
    return got


@settings(max_examples=examples(400))
@given(strategies.bodies())
def _read(body: Body) -> None:
    """Read one, and look at what was told of it."""
    seen: list[Observed] = []
    got = anyio.run(consume, body, seen)
    assert got == list(body.pieces)
    (observed,) = seen
    if body.complete:
        assert observed.usage == body.stream.usage
        assert observed.authoritative == body.stream.authoritative
        assert observed.outcome == body.stream.outcome
    elif body.ending == "error" and observed.outcome != "end":
        assert observed.outcome == "error"
    reached.history({body.stream.dialect, body.ending, "whole" if body.whole else "cut off"})


def test_any_body_passes_untouched_and_is_told_once() -> None:
    """B32, B39, C38-C43: in every dialect, however it is cut and however it ends; whole, its usage is the known one."""
    _read()
    if reached.histories >= 300:  # of fewer a share says nothing
        reached.require(0.02, {"stop", "error", "hang", "whole", "cut off"})
        reached.require(0.005, {stream.dialect for stream in ALL})


@settings(max_examples=examples(100))
@given(strategies.scope_sets(), strategies.limits(), strategies.usages())
def test_values(scopes: tuple[Scope, ...], limits: Limits, usage: Usage) -> None:
    """Any usage can be asked of, and settled under, any scopes."""
    limiter = Limiter(MemoryBackend(clock=ManualClock()))

    async def use() -> None:
        shadows = [Scope(scope.key, scope.limits, enforce=False) for scope in scopes]
        reservation = await limiter.pre_commit(*shadows, Scope("other", limits, enforce=False))
        assert await reservation.settle_success(usage)

    anyio.run(use)
    assert len({scope.key for scope in scopes}) == len(scopes)


@settings(max_examples=examples(20))
@given(strategies.histories(15))
def test_a_history_is_played(history: History) -> None:
    """R1-R12: a history can be played by whoever draws one, and has no step whose outcome is a backend's own."""
    at_work = Finish("enter"), Finish("leave")
    assert not {step._replace(hold=0) for step in history.steps if isinstance(step, Finish)} & {
        *at_work
    }
    play(history, lambda clock: Gateway(MemoryBackend(clock=clock)))


@pytest.mark.parametrize("backend", [PlainBackend, SQLiteBackend, fake_redis_backend])
def test_a_history_is_played_on_any_backend(backend: Any) -> None:
    """R1-R12: those that are called and those that suspend, on an event loop of the history's own."""

    @settings(max_examples=examples(20))
    @given(strategies.histories(15))
    def played(history: History) -> None:
        play(history, lambda clock: Gateway(backend(clock=clock)))

    played()


ONCE_WRONG: Final = History(
    (Offer("a", (("tpm", 10),), also=(Line("requests", 3, 60_000_000),)),),
    (Peek(), PreCommit(tokens=5), Wait(1), Settle(used=7), Bad(0, float("nan"))),
)


def test_a_history_that_fails_says_in_which_step() -> None:
    """What was expected, the step as it is printed, and when; the gateway is closed all the same."""
    closed: list[Gateway] = []

    class Forgets(Gateway):
        async def resolve(self, reservation: Reservation, verb: str, *usage: Any) -> bool:
            return await super().resolve(reservation, verb, 0)

        async def aclose(self) -> None:
            closed.append(self)
            await super().aclose()

    with pytest.raises(
        AssertionError, match=r"used of 'a', tokens of 10 .*got 0, expected 7"
    ) as caught:
        play(ONCE_WRONG, lambda clock: Forgets(MemoryBackend(clock=clock)))
    assert caught.value.__notes__ == [
        "in step 3, Settle(hold=0, used=7), when the clock stood at 1000000000008 us"
    ]
    assert len(closed) == 1


def test_a_history_is_shown_as_an_expression_of_public_names() -> None:
    """Pasted, it is the same history but for what is looked at anyway; what is no number has no literal."""
    public = {name: getattr(kit, name) for name in kit.__all__}
    pasted = eval(repr(ONCE_WRONG), {**public, "Usage": Usage})  # noqa: S307 - it is our own
    assert repr(pasted) == repr(ONCE_WRONG)
    assert pasted.offers == ONCE_WRONG.offers
    play(pasted, lambda clock: Gateway(MemoryBackend(clock=clock)))


@settings(max_examples=examples(50))
@given(strategies.histories(15))
def test_any_history_can_be_pasted(history: History) -> None:
    """Whatever is drawn."""
    public = {name: getattr(kit, name) for name in kit.__all__}
    assert repr(eval(repr(history), {**public, "Usage": Usage})) == repr(history)  # noqa: S307 - it is our own


@settings(max_examples=examples(100))
@given(strategies.bodies())
def test_b65_what_a_stream_must_have_cost(body: Body) -> None:
    """B65: `charged` says of what an observer saw what the reservation of the same stream is charged."""
    scope = Scope("key", Limits(tpm=2**53 - 1))
    seen: list[Observed] = []

    async def read() -> int:
        await consume(body, seen)
        limiter = Limiter(MemoryBackend(clock=ManualClock()))
        reservation = await limiter.pre_commit(scope, tokens=20)
        dialect = None if body.complete else body.stream.dialect
        with contextlib.suppress(ConnectionError), anyio.CancelScope() as cancel:
            async with aclosing(
                reservation.stream(body.source(), expected_choices=body.stream.n, dialect=dialect)
            ) as stream:
                for number in range(len(body.pieces) + 1):
                    if number == len(body.pieces) and body.ending == "hang":
                        cancel.cancel()
                    await anext(stream, None)
        (status,) = await limiter.peek(scope)
        return status["tokens"].used

    assert charged(20, seen[0]) == anyio.run(read) if seen else True


@pytest.mark.parametrize(
    ("usage", "authoritative", "tokens"),
    [
        (Usage(9, 3), True, 12),
        (Usage(9, 3), False, 20),
        (Usage(90, 3), False, 93),
        (Usage(None, 25), True, 25),  # whose `tokens` is 0: its total is unknown
        (Usage(None, 25), False, 25),
        (Usage(None, 5), True, 20),
        (None, False, 20),
    ],
)
def test_b65_charged(usage: Usage | None, authoritative: bool, tokens: int) -> None:
    """B65: the provider's last word, else the larger of the hold and what was reported."""
    assert charged(20, Observed("closed", usage, authoritative=authoritative)) == tokens


@pytest.mark.parametrize(
    ("dialects", "wrong"),
    [
        ("openia", "'openia'"),
        ({"openai", "azure", "groq"}, "'azure', 'groq'"),
        ((), "no dialect"),
        ("", "''"),
    ],
)
def test_an_unknown_dialect_is_told_which_there_are(dialects: Any, wrong: str) -> None:
    """At once, and by names that are one or more: a text is no collection of letters."""
    there = r"anthropic, bedrock, .*openai, openai-assistants, openai-compatible, .*watsonx$"
    with pytest.raises(ValueError, match=f"no streams of {wrong}: there are some of {there}"):
        strategies.bodies(dialects)


TABLE: Final = Path(__file__).parent.parent / "docs" / "streams.md"


def test_every_dialect_of_the_table_has_bodies() -> None:
    """By the names that `dialect=` takes, alone or with others; each draws what it reads, and nothing else."""
    names = re.findall(
        r"^\| `([a-z-]+)` \| .*\|.*\|.*\|.*\|$", TABLE.read_text("utf-8"), re.MULTILINE
    )
    assert {"openai", "openai-compatible", "replicate"} < set(names)
    for name in names:
        drawn = _dialects(strategies.bodies(name))
        assert drawn == {name if name != "openai" else "openai-compatible"}
    assert _dialects(strategies.bodies({"openai", "gemini"})) == {"openai-compatible", "gemini"}


def _dialects(bodies: st.SearchStrategy[Body]) -> set[str]:
    found: set[str] = set()

    @settings(max_examples=20, phases=[Phase.generate])
    @given(bodies)
    def draw(body: Body) -> None:
        found.add(body.stream.dialect)

    draw()
    return found


@pytest.mark.parametrize("dialect", ["openai", "openai-compatible", None])
@pytest.mark.parametrize(
    "known", [one for one in ALL if one.dialect == "openai-compatible"], ids=repr
)
def test_what_is_of_openais_shape_means_the_same_to_all_who_read_it(
    known: Stream, dialect: str | None
) -> None:
    """So that `bodies("openai")` draws what a gateway that names that dialect reads."""
    seen: list[Observed] = []

    async def read() -> None:
        body = Body(known, (known.framings()[0],), "stop", whole=True)
        async for _ in observe_stream(
            body.source(), on_complete=seen.append, expected_choices=known.n, dialect=dialect
        ):
            pass

    anyio.run(read)
    (told,) = seen
    assert (told.usage, told.authoritative, told.outcome) == (
        known.usage,
        known.authoritative,
        known.outcome,
    )


def test_a_body_is_shown_in_short_and_can_be_pasted() -> None:
    """What a counterexample says is an expression."""
    body = Body(ALL[0], (b"data: {}",), "hang", whole=False)
    assert len(repr(body)) < 200
    assert eval(repr(body), {"Body": Body, "stream": stream}) == body  # noqa: S307 - it is our own
