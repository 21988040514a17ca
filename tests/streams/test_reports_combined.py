"""How reports and estimates combine where taking the wrong one would let a request off too cheaply."""

from __future__ import annotations

from typing import Any

import pytest

from earmark.streams import Observed, observe_stream
from earmark.streams.detect import factory
from earmark.usage import Usage
from tests.streams.toys import SAY, Toy, generate

pytestmark = pytest.mark.anyio


def finish(index: int, usage: dict[str, int] | None = None) -> dict[str, Any]:
    """A chunk that finishes one choice, with a report or without."""
    chunk: dict[str, Any] = {"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]}
    return chunk if usage is None else {**chunk, "usage": usage}


NINE: dict[str, int] = {"prompt_tokens": 9, "completion_tokens": 3}


@pytest.mark.parametrize(
    ("chunks", "choices", "authoritative"),
    [
        ([finish(1), finish(0, NINE)], 2, False),
        ([finish(0, NINE), finish(1)], 2, False),
        ([finish(0, NINE), finish(1, NINE)], 2, True),
        ([finish(0), finish(1), {"choices": [], "usage": NINE}], 2, True),
        ([{"choices": [], "usage": NINE}, finish(0, {"prompt_tokens": 9})], 1, False),
        ([finish(0, NINE)], 1, True),
    ],
)
def test_b38_a_report_is_final_once_every_choice_has_said_what_it_came_to(
    chunks: list[dict[str, Any]], choices: int, *, authoritative: bool
) -> None:
    """B38: in whatever order the choices finish; a report about the input alone makes nothing final."""
    dialect = factory("openai")(choices)
    for chunk in chunks[:-1]:
        dialect.observe(None, chunk)
    dialect.observe(None, chunks[-1])
    assert dialect.final(complete=True) is authoritative


def test_c38_a_second_message_in_one_stream_is_not_finished_by_the_first() -> None:
    """C38: a wrapper over several messages: a new start forgets the stop reason of the old one."""
    dialect = factory("anthropic")(1)
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}}
    stop = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": 7},
    }
    for payload in (start, stop):
        dialect.observe(None, payload)
    assert dialect.final(complete=True)
    dialect.observe(None, start)
    dialect.observe(None, {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 2}})
    assert not dialect.final(complete=True)


@pytest.mark.parametrize(
    ("reported", "guess", "least"),
    [
        (Usage(10, None, reported_total=1_000), Usage(20, 4), {"tokens": 1_000}),
        (Usage(100, 5, 0), Usage(100, 5, 90), {"uncached_input_tokens": 100}),
        (Usage(100, 5), Usage(100, 50), {"tokens": 150}),
    ],
)
async def test_b65_an_estimate_never_makes_leaving_cheaper(
    reported: Usage, guess: Usage, least: dict[str, int]
) -> None:
    """B65: whatever the estimator says, what was reported is paid at least."""
    told: list[Observed] = []

    class Reports(Toy):
        """Has the report from the beginning."""

        def __init__(self, expected_choices: int = 1) -> None:
            super().__init__(expected_choices)
            self.usage = reported

    stream = observe_stream(
        generate([SAY, SAY]), on_complete=told.append, dialect=Reports, estimate=lambda _: guess
    )
    await anext(stream)
    await stream.aclose()
    (observed,) = told
    assert observed.usage is not None
    floors = observed.usage.floors()
    assert {metric: floors[metric] for metric in least} == least


@pytest.mark.parametrize("guess", [500, "many", {"tokens": 5}])
async def test_c43_an_estimator_that_returns_nonsense_is_logged(
    guess: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """C43: what it says is not taken, and the stream goes on."""
    told: list[Observed] = []
    stream = observe_stream(
        generate([SAY]), on_complete=told.append, dialect=Toy, estimate=lambda _: guess
    )
    assert [item async for item in stream] == [SAY]
    assert told[0].usage is None
    assert not told[0].estimated
    assert "an estimator has failed" in caplog.text
