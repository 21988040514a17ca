"""Whatever is sent, a dialect neither raises nor grows, and what it tells stays within its own rules.

Observing must not break the stream. The events of the hand-written streams are mutated: values replaced by hostile
ones, members removed, renamed, doubled or taken from other events. They are sent in bytes, in every framing, cut
anywhere, and each dialect reads them all, its own or not; recordings are damaged likewise. Another test makes JSON
out of nothing but the names that the dialects know.
"""

from __future__ import annotations

import json
import logging
import math
import random
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earmark.streams import Observed
from earmark.streams.asking import ask_for_usage
from earmark.streams.detect import UNKNOWN, detect, factory
from earmark.streams.dialect import Dialect
from earmark.streams.reader import MAX_CHOICES
from earmark.streams.response import usage_from_response
from earmark.streams.sse import lone_cr
from earmark.streams.undecided import Undecided, decided
from earmark.streams.watcher import Watcher
from earmark.testing.streams.bodies import ALL
from earmark.usage import Usage
from tests.reached import Reached
from tests.scale import examples
from tests.streams.toys import cut

NAMES = (
    "openai",
    "openai-compatible",
    "openai-responses",
    "openai-assistants",
    "anthropic",
    "gemini",
    "gemini-interactions",
    "bedrock",
    "cohere",
    "ollama",
    "watsonx",
    "replicate",
)
EVENTS = [(stream.dialect, event, data) for stream in ALL for event, data in stream.events]
PAYLOADS = [data for _, _, data in EVENTS if not isinstance(data, str)]
NESTED: Any = json.loads("[" * 200 + "]" * 200)
HOSTILE: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    7,
    2**53 - 1,
    2**53,
    10**30,
    -(10**30),
    10**5000,
    0.0,
    1.5,
    -0.0,
    math.nan,
    math.inf,
    "",
    "12",
    "null",
    "stop",
    "\ud800",
    "x" * 2000,
    [],
    {},
    [None],
    [[]],
    [{}],
    {"": None},
    {"usage": {"prompt_tokens": 3, "completion_tokens": 4}},
    NESTED,
    b"bytes",
)


def mutated(value: Any, rng: random.Random, depth: int = 0) -> Any:
    """The value with one thing changed somewhere in it; the original stays as it is."""
    if depth > 8 or rng.random() < 0.15 or not isinstance(value, (dict, list)) or not value:
        return rng.choice(HOSTILE) if rng.random() < 0.7 else rng.choice(PAYLOADS)
    if isinstance(value, list):
        at = rng.randrange(len(value))
        items = list(value)
        how = rng.random()
        if how < 0.1:
            del items[at]
        elif how < 0.2:
            items.append(items[at])
        else:
            items[at] = mutated(items[at], rng, depth + 1)
        return items
    members = dict(value)
    name = rng.choice(list(members))
    how = rng.random()
    if how < 0.07:
        del members[name]
    elif how < 0.14:
        members[rng.choice(list(rng.choice(PAYLOADS)) or [name])] = members.pop(name)
    elif how < 0.2:
        members.update(rng.choice(PAYLOADS))
    else:
        members[name] = mutated(members[name], rng, depth + 1)
    return members


def check(dialect: Dialect) -> None:
    """What holds of a dialect whatever it has read."""
    usage = dialect.usage
    assert type(usage) in (Usage, type(None))
    assert dialect.final(complete=False) <= dialect.final(complete=True) <= (usage is not None)
    assert dialect.finished or not dialect.ended
    assert dialect.error is None or 0 < len(dialect.error) <= 500
    reasons: Mapping[int, str] = getattr(dialect, "reasons")  # noqa: B009 - the protocol has no reasons
    assert len(reasons) <= MAX_CHOICES
    assert {type(reason) for reason in reasons.values()} <= {str}
    assert all(reasons.values())


def observe(dialect: Dialect, event: str | None, data: Any) -> Dialect:
    """Hand an event over as an observer does, and ask for all that may be asked; returns who reads on."""
    if isinstance(data, dict):
        dialect.observe(event, data)
        assert dialect.only_usage(event, data) in (True, False)
    else:
        data = data if isinstance(data, str) else repr(type(data))
        dialect.observe_text(event, data)
    assert (dialect.text_length(event, data) or 0) >= 0
    return decided(dialect, 2)


def encoded(value: Any) -> bytes:
    """JSON of anything, whatever is in it: numbers of thousands of digits, NaN, halves of characters."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(value, default=repr).encode()
    finally:
        sys.set_int_max_str_digits(limit)


def event_bytes(event: str | None, data: Any, rng: random.Random) -> bytes:
    """An event as it is sent, in one of the line ends that there are; now and then something is wrong with it."""
    text = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else encoded(data)
    if rng.random() < 0.03:
        text = text[: rng.randrange(len(text) + 1)]
    end = rng.choice((b"\n", b"\n", b"\n", b"\r\n", b"\r"))
    lines = [] if event is None else [b"event: " + event.encode()]
    lines += [b"data: " + line for line in text.split(b"\n")]
    if rng.random() < 0.03:
        lines.insert(
            0, rng.choice((b": c", b"id: 1", b"retry: 5", b"error: x", b"", b"{", b"\xff"))
        )
    return end.join(lines) + end * 2


class Complaints(logging.Handler):
    """Counts what an observer caught: an exception of a dialect's is logged with its traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.caught: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.caught.append(self.format(record))


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    """What is caught during a test."""
    handler, logger = Complaints(), logging.getLogger("earmark.streams")
    logger.addHandler(handler)
    logger.propagate, propagated = False, logger.propagate
    yield handler
    logger.propagate = propagated
    logger.removeHandler(handler)


def passes_unseen(watcher: Watcher, piece: Any) -> bool:
    """Whether a stream passes a piece on without showing it."""
    if watcher.plain is None or not isinstance(piece, bytes) or watcher.plain(piece) is None:
        return False
    return watcher.trigger(piece) is None and lone_cr(piece) is None


def watch(pieces: list[Any], name: str | None, n: int, *, measured: bool) -> Observed:
    """Let an observer see the pieces of a body, as it does within a stream, and ask for its record."""
    watcher = Watcher(None if name is None else factory(name), n, 20_000, count_text=measured)
    for piece in pieces:
        if not passes_unseen(watcher, piece):
            watcher.see(piece)
    watcher.finish()
    seen = watcher.look(watcher.ending())
    assert type(seen.usage) in (Usage, type(None))
    assert not (seen.authoritative and seen.usage is None)
    assert seen.error is None or 0 < len(str(seen.error)) <= 500
    assert seen.outcome in ("end", "error", "truncated")
    if not isinstance(watcher.dialect, Undecided):
        check(watcher.dialect)
    return seen


def pieces_of(body: bytes, rng: random.Random) -> list[bytes]:
    """The body cut anywhere, or not at all."""
    if rng.random() < 0.3:
        return [body]
    return cut(body, [rng.randrange(len(body) + 1) for _ in range(rng.choice((1, 3, 10, 30)))])


PER_EXAMPLE = 200
reached = Reached("mutated events")


@settings(max_examples=examples(1000))
@given(st.integers(0, 2**64 - 1))
def _mutate(seed: int) -> None:
    """Mutate the streams, send them in bytes, and read them in their own dialects and in others."""
    rng = random.Random(seed)
    done = 0
    while done < PER_EXAMPLE:
        stream = rng.choice(ALL)
        name = stream.dialect if rng.random() < 0.7 else rng.choice(NAMES)
        marks = {name}
        sent: list[Any] = []
        for event, data in stream.events:
            changed: Any = data
            if not isinstance(data, str) and rng.random() < 0.9:
                changed = mutated(data, rng)
                done += 1
            heading = (
                rng.choice((event, None, "error", "done", "x")) if rng.random() < 0.1 else event
            )
            if rng.random() < 0.1:
                made = detect(heading, changed) if isinstance(changed, (dict, str)) else None
                assert made is None or made(1).name in NAMES
            sent.append((heading, changed))
        form = rng.random()
        n, measured = rng.choice((1, 1, 2, 3)), rng.random() < 0.3
        if form < 0.1:
            pieces: list[Any] = [data for _, data in sent if isinstance(data, dict)]
            marks.add("parsed")
        elif form < 0.2:
            body = rng.choice((b"\n", b",\n")).join(encoded(data) for _, data in sent)
            pieces = pieces_of(body, rng)
            marks.add("json")
        else:
            body = b"".join(event_bytes(event, data, rng) for event, data in sent)
            pieces = pieces_of(body, rng)
            marks.add("sse")
        found = rng.random() < 0.3
        seen = watch(pieces, None if found else name, n, measured=measured)
        marks.update(word for word in ("usage", "authoritative", "error") if getattr(seen, word))
        reached.history(marks)
    reached.count("events", done)


def test_mutated_events_never_raise(complaints: Complaints) -> None:
    """C43: 200,000 mutated events (under the default profile), in bytes: no exception, and rules that hold."""
    _mutate()
    assert complaints.caught == []
    reached.require(0.01, {*NAMES, "usage", "authoritative", "error", "sse", "json", "parsed"})
    assert reached.sums["events"] >= examples(1000) * PER_EXAMPLE


def damaged(body: bytes, rng: random.Random) -> bytes:
    """The bytes with a few things wrong: some flipped, lost, doubled, moved, or taken for others."""
    for _ in range(rng.choice((1, 2, 5))):
        at = rng.randrange(len(body) + 1)
        length = rng.choice((1, 2, 10, 100))
        how = rng.randrange(5)
        if how == 0:
            body = body[:at] + rng.randbytes(length) + body[at + length :]
        elif how == 1:
            body = body[:at] + body[at + length :]
        elif how == 2:
            body = body[:at] + body[at : at + length] + body[at:]
        elif how == 3:
            body = (
                body[:at]
                + rng.choice((b"\r", b"\n", b'"', b"{", b"}", b"null", b"-", b"9"))
                + body[at:]
            )
        else:
            old, new = rng.sample(
                (b":", b",", b'"', b"{", b"}", b"[", b"\n", b"0", b"null", b"data"), 2
            )
            body = body[:at] + body[at:].replace(old, new, 1)
    return body


def test_mutated_recordings_never_raise(recordings: Path, complaints: Complaints) -> None:
    """C43: what real providers sent, damaged in its events and in its bytes."""
    rng = random.Random(3)
    done = 0
    for file in sorted(path for path in recordings.rglob("*") if path.is_file())[: 10**3]:
        blocks = re.split(rb"(?<=\n\n)|(?<=\n)(?=\{)|(?<=\r\n\r\n)", file.read_bytes()[:200_000])
        for _ in range(examples(130)):
            start = rng.randrange(max(len(blocks) - 40, 0) + 1)
            events: list[bytes] = []
            for block in blocks[start : start + 60]:
                head, brace, text = block.partition(b"{")
                try:
                    value = json.loads(brace + text) if rng.random() < 0.5 else None
                except ValueError:
                    value = None
                events.append(
                    block if value is None else head + encoded(mutated(value, rng)) + b"\n\n"
                )
                done += 1
            body = b"".join(events)
            name = None if rng.random() < 0.7 else rng.choice(NAMES)
            watch(pieces_of(damaged(body, rng), rng), name, 1, measured=rng.random() < 0.3)
    reached.count("events of recordings", done)
    assert complaints.caught == []
    assert done > examples(200_000)


WORDS = st.sampled_from(
    sorted(
        {name for payload in PAYLOADS for name in payload}
        | {"usage", "prompt_tokens", "completion_tokens", "total_tokens", "input_tokens"}
        | {"output_tokens", "iterations", "finish_reason", "index", "delta", "message", "status"}
        | {"promptTokenCount", "candidatesTokenCount", "inputTokens", "outputTokens", "bytes"}
    )
)
# Without the integer that has no text: hypothesis prints what it draws.
JSON_VALUES = [value for value in HOSTILE if value != 10**5000 and not isinstance(value, bytes)]
JSON = st.recursive(
    st.sampled_from(JSON_VALUES) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(WORDS, JSON, max_size=5)
EVENT_NAMES = st.sampled_from(
    [None, "error", "done", "message_delta", "response.completed", "output"]
)


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(EVENT_NAMES, OBJECTS), max_size=4))
def test_any_json_at_all_never_raises(events: list[tuple[str | None, dict[str, Any]]]) -> None:
    """Every dialect, and everything else that reads JSON, takes any object."""
    for name in NAMES:
        dialect = factory(name)(2)
        for event, payload in events:
            dialect = observe(dialect, event, payload)
            if not isinstance(dialect, Undecided):
                check(dialect)
    for event, payload in events:
        detect(event, payload)
        usage_from_response(payload)
        ask_for_usage({"stream": True, "messages": [], **payload})


@settings(max_examples=examples(300))
@given(st.binary(max_size=40) | OBJECTS.map(lambda value: json.dumps(value)[:200].encode()))
def test_bytes_that_are_no_json_never_raise(body: bytes) -> None:
    """A body that is broken has no usage, and is not changed."""
    assert usage_from_response(body) is None or isinstance(usage_from_response(body), Usage)
    assert ask_for_usage(body) == body


def test_a_stream_without_end_keeps_nothing_of_it() -> None:
    """The reports of a million choices, and a million reports of one, take no more room than a few."""
    dialect = UNKNOWN(1)
    for index in range(MAX_CHOICES * 3):
        usage = {"prompt_tokens": 1, "completion_tokens": index}
        choice = {"index": index, "finish_reason": "stop", "delta": {}, "usage": usage}
        dialect.observe(None, {"choices": [choice]})
    check(dialect)
    total = dialect.usage
    assert total is not None
    assert total.output_tokens == sum(range(MAX_CHOICES))
