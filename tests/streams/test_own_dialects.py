"""A dialect of a user's own may be wrong in any way: the stream passes, and its reservation is resolved."""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Callable
from typing import Any, ClassVar

import anyio.lowlevel
import pytest

from earmark import Limiter, Limits, MemoryBackend, Scope
from earmark.ending import after_stream
from earmark.streams import Observed, observe_stream
from earmark.testing import ManualClock
from earmark.usage import Usage
from tests.streams.toys import DONE, SAY, USAGE, Source, Told, Toy, consume

pytestmark = pytest.mark.anyio

ITEMS = [b": ok\n\n", SAY, SAY, USAGE, SAY, DONE]


class Mistaken(Toy):
    """Its usage is what the report was, and not a Usage."""

    def observe(self, event: str | None, payload: Any) -> None:
        if "usage" in payload:
            self.usage = payload["usage"]
            self.authoritative = True


class Strange(Usage):
    """A usage that cannot be read."""

    def floors(self) -> dict[str, int]:
        raise KeyError("floors")


class Overdone(Toy):
    """Its usage is a Usage, but of a kind of its own."""

    def observe(self, event: str | None, payload: Any) -> None:
        if "usage" in payload:
            self.usage, self.authoritative = Strange(1, 2), True


def raising(name: str) -> type[Toy]:
    """A dialect that raises when it is asked for this."""

    def fail(_: Any) -> Any:
        raise KeyError(name)

    return type("Raising", (Toy,), {name: property(fail, lambda _, __: None)})


class Text(Toy):
    """Its trigger is a text pattern."""

    trigger: ClassVar[Any] = re.compile('"usage"')


class Without(Toy):
    """Its trigger is no pattern at all."""

    trigger: ClassVar[Any] = "usage"


class Awkward(Toy):
    """What it raises is no plain error, and everything raises."""

    def observe(self, event: str | None, payload: Any) -> None:
        raise RecursionError("deep")

    def observe_text(self, event: str | None, data: str) -> None:
        raise UnicodeError("text")

    def text_length(self, event: str | None, data: Any) -> int:
        raise MemoryError("length")

    def only_usage(self, event: str | None, payload: Any) -> bool:
        raise ZeroDivisionError("usage")


WRONG: list[Callable[[int], Any]] = [
    Mistaken,
    Overdone,
    Text,
    Without,
    Awkward,
    *(raising(name) for name in ("usage", "final", "ended", "finished", "error")),
]
BY_NAME = pytest.mark.parametrize(
    "dialect",
    WRONG,
    ids=["usage", "kind", "text", "no pattern", "all"]
    + [f"raises for {name}" for name in ("usage", "final", "ended", "finished", "error")],
)


@BY_NAME
@pytest.mark.parametrize("options", [{}, {"hide_usage": True}, {"estimate": lambda _: None}])
@pytest.mark.parametrize("items", [ITEMS, [b"".join(ITEMS)], [item.decode() for item in ITEMS]])
async def test_a_dialect_that_is_wrong_does_not_hurt_the_stream(
    dialect: Callable[[int], Any],
    options: dict[str, Any],
    items: list[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """C43: every item comes through, it is told once, and complained of once."""
    source, told = Source(items), Told()
    stream = observe_stream(source, on_complete=told, dialect=dialect, **options)
    got, error = await consume(stream)
    if not options.get("hide_usage"):
        assert got == items
    assert (error, source.closed) == (None, 1)
    assert told.only.usage is None or isinstance(told.only.usage, Usage)
    complaints = [record for record in caplog.records if "not reported" in record.message]
    assert len(complaints) <= 1
    assert complaints or dialect is not Mistaken


@BY_NAME
@pytest.mark.parametrize("way", ["end", "closed", "dropped"])
async def test_no_stream_that_has_ended_leaves_its_reservation_open(
    dialect: Callable[[int], Any], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """R15: whatever a dialect reports, the reservation is resolved, and its slot given back."""
    # A log that keeps an error keeps its frames, and with them the stream.
    caplog.set_level(logging.CRITICAL, "earmark.streams")
    limiter, alice = (
        Limiter(MemoryBackend(clock=ManualClock())),
        Scope("alice", Limits(concurrency=1, tpm=100)),
    )
    reservation = await limiter.pre_commit(alice, tokens=5)
    held = [reservation.stream(Source(ITEMS), dialect=dialect)]
    if way == "end":
        assert (await consume(held[0]))[0] == ITEMS
    else:
        for _ in range(4):
            await anext(held[0])
        if way == "closed":
            await held[0].aclose()
    held.clear()
    gc.collect()
    await anyio.lowlevel.checkpoint()
    (status,) = await limiter.peek(alice)
    assert reservation.state != "open"
    assert status["concurrency"].used == 0
    assert status["tokens"].used >= 5 or reservation.state == "settled"


@pytest.mark.parametrize("outcome", ["end", "cancelled", "dropped", "closed"])
@pytest.mark.parametrize("authoritative", [False, True])
def test_a_usage_that_cannot_be_read_keeps_the_debit(
    outcome: Any, caplog: pytest.LogCaptureFixture, *, authoritative: bool
) -> None:
    """R15: it is logged, and the reservation closed or abandoned."""
    observed = Observed(outcome, usage=Strange(1, 2), authoritative=authoritative)
    verb = "abandon" if outcome in ("cancelled", "dropped") else "close"
    assert after_stream(observed) == (verb, {}, {})
    assert "could not be read" in caplog.text


async def test_a_trigger_of_text_reads_what_one_of_bytes_does() -> None:
    """It finds everything, so that all is parsed: the record is the same."""
    records = []
    for dialect in (Toy, Text):
        told = Told()
        await consume(observe_stream(Source(ITEMS), on_complete=told, dialect=dialect))
        records.append(told.only)
    assert records[0] == records[1]
    assert records[0].authoritative


@pytest.mark.parametrize("name", ["aclose", "estimate", "on_drop", "on_complete"])
@pytest.mark.parametrize("value", [3, "close", object()])
async def test_what_is_no_function_is_refused_at_the_way_in(name: str, value: Any) -> None:
    """Before anything is set up, and not when it is called at last."""
    source = Source([SAY])
    options: dict[str, Any] = {"on_complete": Told(), name: value}
    with pytest.raises(TypeError, match=name):
        observe_stream(source, **options)
    assert (source.given, source.closed) == (0, 0)


@pytest.mark.parametrize("name", ["complete_timeout", "drain"])
@pytest.mark.parametrize(
    "value",
    [10**400, 10**5000, 0, -1, float("nan"), True, "1"],
    ids=["large", "huge", "0", "-1", "nan", "bool", "text"],
)
async def test_seconds_are_what_a_deadline_can_be_made_of(name: str, value: Any) -> None:
    """A number that is too large for a float is refused, however many digits it has."""
    async with anyio.create_task_group() as group:
        options: dict[str, Any] = {name: value}
        if name == "drain":
            options["task_group"] = group
        with pytest.raises(ValueError, match=name):
            observe_stream(Source([]), on_complete=Told(), **options)


@pytest.mark.parametrize("seconds", [float("inf"), 10**300], ids=["inf", "large"])
async def test_seconds_without_end_are_a_deadline_that_never_comes(seconds: float) -> None:
    """Closing and telling take them."""

    async def tell(_: Observed) -> None:
        await anyio.lowlevel.checkpoint()

    source = Source([SAY])
    stream = observe_stream(source, on_complete=tell, complete_timeout=seconds)
    await stream.aclose()
    assert source.closed == 1
