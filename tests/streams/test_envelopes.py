"""Bedrock's envelopes: what is in one is read as it is read without one, whatever is asked of the reader."""

from __future__ import annotations

from typing import Any, Final

import pytest

from earmark.streams.detect import factory
from earmark.streams.dialect import Dialect
from earmark.testing.streams.bodies import ALL
from earmark.testing.streams.bodies.others import chunk, metrics
from earmark.testing.streams.bodies.shape import Event, Stream
from earmark.usage import Usage
from tests.streams.reading import read
from tests.streams.toys import run_now

# Whose own events models on Bedrock send, and the dialect that reads these elsewhere.
NATIVE: Final = {"openai-compatible": "openai", "anthropic": "anthropic"}
STREAMS: Final = [stream for stream in ALL if stream.dialect in NATIVE]


def told(dialect: Dialect, events: list[Event]) -> dict[str, Any]:
    """All that a dialect says: every member of the protocol but its name and its trigger."""
    asked = [name for name in vars(Dialect) if not name.startswith("_")]
    answers: dict[str, Any] = {name: getattr(dialect, name) for name in asked}
    answers["final"] = [dialect.final(complete=complete) for complete in (True, False)]
    for name in ("text_length", "only_usage"):
        answers[name] = [answers[name](*event) for event in events]
    for name in ("name", "trigger", "observe", "observe_text"):
        answers.pop(name, None)
    return answers


@pytest.mark.parametrize("how", ["parsed", "base64"])
@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.name)
def test_an_envelope_changes_nothing_that_is_told(stream: Stream, how: str) -> None:
    """B33, B65: after each event every member of the reader is what it is for the bare events."""
    bare: list[Event] = [
        (None, data)
        for _, data in stream.events
        if not isinstance(data, str) and ("choices" in data or "type" in data)
    ]
    wrapped = [chunk(data, how) for _, data in bare if not isinstance(data, str)]
    for count in range(1, len(bare) + 1):
        one = read(factory(NATIVE[stream.dialect])(stream.n), bare[:count], stream.n)
        other = read(factory("bedrock")(stream.n), wrapped[:count], stream.n)
        assert told(other, wrapped) == told(one, bare)
        assert other.name == "bedrock"


def test_the_protocol_is_what_is_compared() -> None:
    """A member that is added to the protocol is compared as well."""
    assert set(told(factory("openai")(1), [])) == {
        "ended",
        "error",
        "final",
        "finished",
        "only_usage",
        "text_length",
        "usage",
    }


def test_a_model_that_nobody_knows_is_counted_by_the_metrics() -> None:
    """The metrics are of any model; until they come nothing is known, and an exception is one."""
    events = [chunk({"outputs": [{"text": "hi"}]}), chunk({"outputs": [], **metrics(9, 3)})]
    items = [data for _, data in events]
    for dialect in ("bedrock", None):
        seen = run_now(items, dialect)
        assert (seen.usage, seen.authoritative, seen.outcome) == (Usage(9, 3), True, "end")
        seen = run_now(items[:1], dialect)
        assert (seen.usage, seen.outcome, seen.dialect) == (None, "truncated", "bedrock")
        seen = run_now([*items[:1], {"throttlingException": {"message": "slow"}}], dialect)
        assert (seen.error, seen.outcome) == ("slow", "error")
