"""The life cycle that docs/concepts.md draws and tabulates is the one that the code has.

`earmark.moves.MOVES` is the one table of legal moves: what a page says of them is checked against it, so that
neither can change alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, get_args

import pytest

from earmark import Limiter, Limits, MemoryBackend, Reservation, Scope
from earmark.core.hold import Verb
from earmark.moves import MOVES, State
from earmark.testing import ManualClock

CONCEPTS: Final = (Path(__file__).parent.parent / "docs" / "concepts.md").read_text("utf-8")

# The verb of each move, and the call that makes it; a withdrawal is the library's own.
CALLS: Final[dict[Verb, str]] = {
    "settle": "settle_success",
    "close": "close_reserved_only",
    "abandon": "abandon",
    "cancel": "cancel",
}


def diagram() -> Iterator[str]:
    """The lines of the diagram, drawn from the table of moves."""
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield "    [*] --> open: pre_commit"
    for state, moves in MOVES.items():
        for verb, target in moves.items():
            yield f"    {state} --> {target}: {verb}"
    yield "```"


def tabulated() -> dict[str, tuple[str, ...]]:
    """The table of moves that follows the diagram: the cells of each row, by its first."""
    _, _, after = CONCEPTS.partition("| move | by |")
    rows = (line.strip("| ").split(" | ") for line in after.partition("\n\n")[0].splitlines()[2:])
    return {first: tuple(cells) for first, *cells in rows}


def test_r5_the_diagram_shows_every_legal_move_and_no_other() -> None:
    """The diagram in docs/concepts.md is what `MOVES` draws, line by line."""
    drawn = re.findall(r"^```mermaid\n.*?^```$", CONCEPTS, re.MULTILINE | re.DOTALL)
    assert drawn == ["\n".join(diagram())]


def test_r5_every_state_but_open_is_final() -> None:
    """A reservation is resolved exactly once: no move leads out of where a move has led."""
    assert set(MOVES) == {"open", *(get_args(get_args(State)[1]))}
    reached = {target for moves in MOVES.values() for target in moves.values()}
    assert set(MOVES) - {"open"} == reached
    assert [state for state, moves in MOVES.items() if moves] == ["open"]


def test_r5_the_table_beside_the_diagram_has_a_row_for_every_move() -> None:
    """Each move is explained, in order, and by the name of the call that makes it."""
    rows = tabulated()
    assert list(rows) == list(MOVES["open"])
    for verb, call in CALLS.items():
        assert f"`{call}(" in rows[verb][0]


@pytest.mark.parametrize("call", CALLS.values())
def test_every_call_of_the_life_cycle_exists_on_the_handle_and_on_the_limiter(call: str) -> None:
    """The reservation and the limiter both have each resolving verb."""
    assert callable(getattr(Reservation, call))
    assert callable(getattr(Limiter, call))


@pytest.mark.anyio
@pytest.mark.parametrize("verb", CALLS)
async def test_r7_the_table_says_what_becomes_of_what_was_held(verb: Verb) -> None:
    """Each row is true: one reservation is resolved by that call, and `peek` is asked what stayed."""
    limiter = Limiter(MemoryBackend(clock=ManualClock()))
    scope = Scope("key", Limits(rpm=10, tpm=1_000, concurrency=1))
    reservation = await limiter.pre_commit(scope, tokens=300)
    usage = (120,) if verb == "settle" else ()
    assert await getattr(reservation, CALLS[verb])(*usage)
    assert reservation.state == MOVES["open"][verb]
    (status,) = await limiter.peek(scope)
    words = (
        {300: "stay", 120: "as used", 0: "given back"}[status["tokens"].used],
        {1: "stay", 0: "given back"}[status["requests"].used],
        {1: "held", 0: "freed"}[status["concurrency"].used],
    )
    assert words == tabulated()[verb][1:]


def test_r9_a_withdrawal_is_explained_as_a_cancellation() -> None:
    """A reserve that may have been applied unseen is taken back like one that was never sent."""
    assert MOVES["open"]["withdraw"] == MOVES["open"]["cancel"]
    assert tabulated()["withdraw"][1:] == tabulated()["cancel"][1:]
