"""Observing: the items are the very items, what was seen is the same however they come, and nothing is disturbed."""

from __future__ import annotations

import dataclasses
import gzip
import json
import logging
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import anyio
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earmark.streams import Dialect, Observed, ObservedStream, observe_stream
from earmark.streams.observed import OUTCOMES
from earmark.usage import Usage
from tests.scale import examples
from tests.streams.toys import (
    BROTLI,
    DONE,
    FAILED,
    SAY,
    USAGE,
    ZSTD,
    Source,
    Told,
    Toy,
    cut,
    run,
    run_now,
    sse,
)

pytestmark = pytest.mark.anyio


BODY = SAY + USAGE + DONE
PAYLOADS: list[Any] = [{"say": "hello"}, {"usage": {"in": 9, "out": 3}}]


class Model(pydantic.BaseModel):
    """An SDK's object."""

    model_config = pydantic.ConfigDict(extra="allow")

    say: str | None = None
    usage_: dict[str, int] | None = pydantic.Field(default=None, alias="usage")


class LookAlike:
    """An object that dumps itself and knows no options."""

    def __init__(self, payload: Any) -> None:
        self.payload = payload

    def model_dump(self) -> Any:
        return self.payload


@dataclasses.dataclass
class ServerSent:
    """What httpx-sse makes of an event."""

    data: str
    event: str = "message"


FORMS: list[tuple[str, list[Any], str]] = [
    ("bytes whole", [BODY], "end"),
    ("bytes by events", [SAY, USAGE, DONE], "end"),
    ("bytes one by one", [BODY[at : at + 1] for at in range(len(BODY))], "end"),
    ("empty bytes between", [b"", SAY, b"", USAGE, b"", DONE], "end"),
    ("bytearray", [bytearray(SAY), bytearray(USAGE), bytearray(DONE)], "end"),
    ("memoryview", [memoryview(BODY)], "end"),
    ("text", [BODY.decode()], "end"),
    ("text one by one", list(BODY.decode()), "end"),
    ("text and bytes", [SAY.decode(), USAGE, DONE.decode()], "end"),
    ("text with a lone surrogate", [sse({"say": "x"}).decode() + ": \ud83d\n", USAGE, DONE], "end"),
    ("mappings", PAYLOADS, "truncated"),
    ("other mappings", [OrderedDict(PAYLOADS[0]), MappingProxyType(PAYLOADS[1])], "truncated"),
    ("objects", [Model.model_validate(payload) for payload in PAYLOADS], "truncated"),
    ("look-alikes", [LookAlike(payload) for payload in PAYLOADS], "truncated"),
    (
        "cut-out events",
        [*(ServerSent(json.dumps(one)) for one in PAYLOADS), ServerSent("[DONE]")],
        "end",
    ),
    (
        "events as mappings",
        [*({"event": None, "data": json.dumps(one)} for one in PAYLOADS), {"data": "[DONE]"}],
        "end",
    ),
    ("parsed events", [{"event": "message", "data": one} for one in PAYLOADS], "truncated"),
    ("NDJSON", ["\n".join(map(json.dumps, PAYLOADS))], "truncated"),
    ("an array", [json.dumps(PAYLOADS, indent=1)], "truncated"),
    (
        "foreign items",
        [None, 7, object(), SimpleNamespace(data=1), LookAlike([1]), *PAYLOADS],
        "truncated",
    ),
]


@pytest.mark.parametrize("estimate", [None, lambda _: None], ids=["", "with-text"])
@pytest.mark.parametrize(
    ("items", "outcome"), [row[1:] for row in FORMS], ids=[row[0] for row in FORMS]
)
async def test_every_form_of_items(items: list[Any], outcome: str, estimate: Any) -> None:
    """Bytes, text, mappings and SDK objects give the same usage, and go through untouched, the same objects."""
    seen = await run(items, estimate=estimate)
    assert (seen.usage, seen.outcome, seen.items) == (Usage(9, 3), outcome, len(items))
    assert seen.authoritative
    assert seen.dialect == "toy"


async def test_size_of_a_body() -> None:
    """`bytes` counts what was a piece of a body, text in UTF-8; parsed items have no size."""
    assert (await run([SAY, "é", bytearray(b"x"), {}])).bytes == len(SAY) + 3


async def test_no_read_ahead() -> None:
    """An item is asked for when the consumer asks, and not before."""
    source = Source([SAY, USAGE, DONE])
    stream = observe_stream(source, on_complete=Told(), dialect=Toy)
    assert source.given == 0
    for count in (1, 2, 3):
        await anext(stream)
        assert source.given == count
    await stream.aclose()


async def test_a_look_while_it_is_open() -> None:
    """`observed` says what there is so far; once told it is what was told."""
    told = Told()
    stream = observe_stream(Source([USAGE, DONE]), on_complete=told, dialect=Toy)
    assert stream.observed == Observed("open", dialect="toy")
    await anext(stream)
    seen = stream.observed
    assert (seen.outcome, seen.tokens, seen.items, seen.bytes) == ("open", 12, 1, len(USAGE))
    await anext(stream)
    assert stream.observed is told.only
    await stream.aclose()


def test_tokens() -> None:
    """B62: `tokens` is the total, or 0; `usage` alone tells unknown from nothing."""
    assert [
        Observed("end", usage).tokens
        for usage in (None, Usage(), Usage(1), Usage(1, 2), Usage(0, 0))
    ] == [0, 0, 0, 3, 0]
    assert "open" not in OUTCOMES


# ---------------------------------------------------------------- what is not parsed


def parsed(items: list[Any], **options: Any) -> int:
    """How many events were parsed."""
    made: list[Toy] = []

    def make(choices: int) -> Dialect:
        made.append(Toy(choices))
        return made[-1]

    run_now(items, make, **options)
    return made[0].parsed


CRLF = SAY.replace(b"\n", b"\r\n")
NAMED = b"event: word\n" + SAY


@pytest.mark.parametrize(
    ("items", "count"),
    [
        ([SAY] * 5, 0),
        ([SAY * 3] * 5, 0),
        ([CRLF] * 5, 0),
        ([NAMED] * 5, 0),
        ([SAY[:20], SAY[20:]] * 5, 0),
        ([SAY, USAGE, SAY, USAGE], 2),
        ([SAY + USAGE + SAY], 1),
        ([b"event: error\n" + SAY, SAY], 1),
        ([SAY, b"event: error\n", SAY, SAY], 1),
        ([SAY, b'error: {"x": 1}\n\n'], 1),
        ([SAY, b'{"x": 1}\n\n'], 0),
        ([b'{"say": "x"}\n', b'{"usage": {}}\n'], 1),
    ],
)
def test_what_cannot_matter_is_not_parsed(items: list[bytes], count: int) -> None:
    """An event without the dialect's trigger is never parsed as JSON."""
    assert parsed(items) == count


def test_a_cr_within_a_piece_that_seems_whole() -> None:
    """A CR ends a line also in bytes that begin and end as whole events with LF do, and what follows it is read."""
    hidden = b'data: {"say": "x"}\r\rdata: [DONE]\r\rdata: {"say": "y"}\n\n'
    assert run_now([SAY, hidden, USAGE]).outcome == "end"


def test_with_an_estimator_every_event_is_parsed() -> None:
    """The text is measured only where an estimator was given."""
    assert parsed([SAY] * 5, estimate=lambda _: None) == 5


def test_nothing_is_read_after_the_end() -> None:
    """What comes after the end was told passes through unread."""
    assert parsed([USAGE, DONE, USAGE, {"usage": {"in": 1}}]) == 1


# ---------------------------------------------------------------- what must not disturb


@pytest.mark.parametrize(
    "broken",
    [
        b"data: {\n\n",
        b"data: }\n\n",
        b'data: {"usage": {"in": 1\n\n',
        b'data: {"usage"}\n\n',
        b"data: " + b'{"usage":[' * 50_000 + b"\n\n",
        b'data: {"usage": ' + b"9" * 5000 + b"}\n\n",
        b"data: \xff\xfe\n\n",
        b'data: {"usage": NaN}\n\n',
        b"data: [1, {\n\n",
        {"usage": {"in": -1}},
        {"usage": {"in": 10**30}},
        {"usage": {"in": "x"}},
        LookAlike(None),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_a_broken_item_is_passed_on(broken: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A malformed chunk or a hostile count is logged at most once, and what comes after it is read."""
    seen = await run([SAY, broken, USAGE, broken, DONE])
    assert (seen.usage, seen.outcome) == (Usage(9, 3), "end")
    assert len(caplog.records) <= 1


async def test_an_item_that_fails_to_dump_is_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever an item raises while it is read does not reach the consumer."""

    class Failing:
        def model_dump(self, **_: Any) -> Any:
            raise OSError

        @property
        def event(self) -> Any:
            raise KeyError

    assert (await run([Failing(), *PAYLOADS])).usage == Usage(9, 3)
    assert "could not be read" in caplog.text


class Failing(Toy):
    """A dialect that fails wherever it is asked."""

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        raise KeyError

    def observe_text(self, event: str | None, data: str) -> None:
        raise KeyError

    def __getattribute__(self, name: str) -> Any:
        if name in ("usage", "ended", "finished"):
            raise KeyError(name)
        return super().__getattribute__(name)


async def test_a_dialect_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """A dialect of the user's own may fail anywhere: the stream goes on, and its usage is unknown."""
    seen = await run([SAY, USAGE, DONE, *PAYLOADS], lambda _: object.__new__(Failing))
    assert (seen.usage, seen.outcome, seen.items) == (None, "truncated", 5)
    assert len(caplog.records) == 1


COMPRESSED = {
    "gzip": gzip.compress(BODY),
    "deflate": zlib.compress(BODY),
    "zstd": ZSTD,
    "brotli": BROTLI,
}


@pytest.mark.parametrize("dialect", [None, Toy], ids=["found", "named"])
@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("coding", COMPRESSED)
async def test_compressed(
    coding: str, size: int, dialect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """B63, C69: untouched, usage None, the outcome as it ended, and one warning that names the remedy."""
    body = COMPRESSED[coding]
    seen = await run([body[at : at + size] for at in range(0, len(body), size)], dialect)
    assert (seen.usage, seen.authoritative, seen.outcome, seen.bytes) == (
        None,
        False,
        "truncated",
        len(body),
    )
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "identity" in record.message


async def test_an_event_above_the_limit() -> None:
    """An event that is longer than `max_event` passes through, and its two ends are read."""
    big = b'data: {"pad": "' + b"x" * 200_000 + b'", "usage": {"in": 9, "out": 3}}\n\n'
    seen = await run(cut(big + DONE, range(0, 200_000, 999)), max_event=10_000)
    assert (seen.usage, seen.outcome) == (Usage(9, 3), "end")
    pad = b'"pad": "' + b"x" * 100_000 + b'"'
    hidden = b"data: {" + pad + b', "usage": {"in": 9, "out": 3}, ' + pad + b"}\n\n"
    assert (await run([hidden, DONE], max_event=10_000)).usage is None


# ---------------------------------------------------------------- properties

PIECES = st.lists(
    st.sampled_from(
        [
            SAY,
            CRLF,
            NAMED,
            USAGE,
            USAGE.replace(b"\n", b"\r\n"),
            sse({"usage": {"in": 4}}),
            sse({"say": "é\u2028😀"}),
            b": keep-alive\n\n",
            sse({"enough": 1}),
            FAILED,
            b"event: error\ndata: {}\n\n",
            b"error: {}\n",
            DONE,
        ]
    ),
    max_size=10,
)


@settings(max_examples=examples(300))
@given(PIECES, st.lists(st.integers(0, 2000), max_size=8), st.booleans())
def test_any_cutting_gives_the_same_observation(
    pieces: list[bytes], places: list[int], text: bool
) -> None:
    """Cut anywhere, as bytes or as text, with or without an estimator: usage, outcome and error are the same."""
    body = b"".join(pieces)
    whole = run_now([body])
    ones: list[Any] = cut(body, places)
    if text:
        ones = list(body.decode())
    for options in ({}, {"estimate": lambda _: None}):
        seen = run_now(ones, **options)
        assert dataclasses.replace(seen, items=1, bytes=whole.bytes, text_length=None) == whole
    assert run_now(pieces).usage == whole.usage


@settings(max_examples=examples(300))
@given(
    st.lists(
        st.binary(max_size=40)
        | st.text(max_size=20)
        | st.dictionaries(st.text(max_size=3), st.none()),
        max_size=8,
    )
)
def test_random_items_never_raise(items: list[Any]) -> None:
    """Whatever the items are, they come out as they went in, and the end is told once."""
    assert run_now(items, None).items == len(items)
    assert run_now(items, Toy, estimate=lambda _: None).items == len(items)


@settings(max_examples=examples(200))
@given(PIECES, st.sampled_from(["stop", "error", "closed", "dropped"]), st.integers(0, 10))
def test_told_once_whatever_the_ending(pieces: list[bytes], ending: str, taken: int) -> None:
    """Exactly once, however it ends and wherever it is left."""
    told = Told()
    source = Source(pieces, OSError() if ending == "error" else "stop")

    async def consume() -> None:
        stream: ObservedStream[Any] = observe_stream(source, on_complete=told, dialect=Toy)
        try:
            async for _ in stream:
                taken_all = source.given > taken
                if taken_all and ending in ("closed", "dropped"):
                    break
        except OSError:
            assert ending == "error"
        if ending == "closed":
            await stream.aclose()

    anyio.run(consume)
    assert told.only.items <= source.given
    assert DONE not in pieces[: source.given] or told.only.outcome in ("end", "error")
