"""Framing: bytes become the same events wherever they are cut, and nothing of a body is lost on the way."""

from __future__ import annotations

import gzip
import json
import re
import tracemalloc
import zlib
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from earmark.streams.framing import Framing, recognise
from earmark.streams.kept import TAIL, Kept, RawEvent
from earmark.streams.sse import PLAIN, SSEFramer, lone_cr
from tests.scale import examples
from tests.streams.toys import BROTLI, ZSTD, cut

MAX = 16 * 1024 * 1024


def events_of(pieces: Iterable[bytes], max_event: int = MAX) -> list[RawEvent]:
    """What framing makes of a body that comes in these pieces."""
    framing = Framing(max_event)
    events = [event for piece in pieces for event in framing.feed(piece)]
    return events + framing.finish()


def singly(body: bytes) -> list[bytes]:
    """A body one byte at a time."""
    return [body[at : at + 1] for at in range(len(body))]


def ev(data: str, name: str | None = None) -> RawEvent:
    """One expected event."""
    return name, data.encode(), None


SSE_ROWS: list[tuple[str, str, list[RawEvent]]] = [
    ("LF", "data: a\n\ndata: b\n\n", [ev("a"), ev("b")]),
    ("CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", [ev("a"), ev("b")]),
    ("CR", "data: a\r\rdata: b\r\r", [ev("a"), ev("b")]),
    ("mixed", "data: a\r\n\ndata: b\r\r\ndata: c\n\r", [ev("a"), ev("b"), ev("c")]),
    (
        "U+2028, U+2029, U+0085, VT, FF",
        "data: \u2028\u2029\x85\v\f\n\n",
        [ev("\u2028\u2029\x85\v\f")],
    ),
    ("no space", "data:a\n\n", [ev("a")]),
    ("one space goes", "data:  a\n\n", [ev(" a")]),
    ("several lines", "data: a\ndata:\ndata: b\n\n", [ev("a\n\nb")]),
    ("data without colon", "data: a\ndata\n\n", [ev("a\n")]),
    ("an object over two lines", "data: {\ndata: {}\n\n", [ev("{\n{}")]),
    ("an object with a name", "event: x\ndata: {}\n\ndata: {}\n\n", [ev("{}", "x"), ev("{}")]),
    ("a name", "event: x\ndata: a\n\n", [ev("a", "x")]),
    ("a name after the data", "data: a\nevent:x\n\n", [ev("a", "x")]),
    ("the last name counts", "event: x\nevent: y\ndata: a\n\n", [ev("a", "y")]),
    ("an empty name is none", "event:\ndata: a\n\n", [ev("a")]),
    ("a name is for one event", "event: x\ndata: a\n\ndata: b\n\n", [ev("a", "x"), ev("b")]),
    ("a name without data", "event: x\n\ndata: a\n\n", [ev("a")]),
    ("comments", ": hi\ndata: a\n:\n: more\ndata: b\n\n", [ev("a\nb")]),
    ("id and retry", "id: 1\nretry: 5\ndata: a\n\n", [ev("a")]),
    ("an unknown field", "data: a\nother: b\nDATA: c\n\n", [ev("a")]),
    ("BOM", "\ufeffdata: a\n\n", [ev("a")]),
    ("a BOM only at the start", "data: a\n\n\ufeffdata: b\n\n", [ev("a")]),
    ("blank lines", "\n\n\ndata: a\n\n\n\n", [ev("a")]),
    ("no blank line at the end", "data: a\n\ndata: b\n", [ev("a"), ev("b")]),
    ("no line end at the end", "data: a\n\ndata: b", [ev("a"), ev("b")]),
    ("an error field", 'error: {"e": 1}\n\n', [ev('{"e": 1}', "error")]),
    ("an error field within an event", "data: a\nerror: b\n\n", [ev("b", "error"), ev("a")]),
    (
        "bare JSON",
        'data: a\n\n{\n  "error": {\n  "x": 1\n}}\n',
        [ev("a"), ev('{\n  "error": {\n  "x": 1\n}}\n')],
    ),
    (
        "bare JSON in one line",
        'data: a\n\n{"error": 1}\n\ndata: b\n\n',
        [ev("a"), ev('{"error": 1}\n'), ev("b")],
    ),
    ("a bare array", 'data: a\n\n[{"error": 1}]', [ev("a"), ev('[{"error": 1}]\n')]),
    ("text that is no stream", "<html>\n<p>502 Bad Gateway</p>\n</html>\n" + "." * 64, []),
]


@pytest.mark.parametrize(
    ("body", "expected"), [row[1:] for row in SSE_ROWS], ids=[row[0] for row in SSE_ROWS]
)
def test_server_sent_events(body: str, expected: list[RawEvent]) -> None:
    """Lines end with CR, LF and CRLF alone, and an event is the same in one piece, in bytes and in two pieces."""
    raw = body.encode()
    assert events_of([raw]) == expected
    assert events_of(singly(raw)) == expected
    for place in range(len(raw)):
        assert events_of(cut(raw, [place])) == expected, f"cut at {place}"


JSON_ROWS: list[tuple[str, str, list[str]]] = [
    ("NDJSON", '{"a":1}\n{"b":2}\n', ['{"a":1}', '{"b":2}']),
    ("NDJSON with CRLF", '{"a":1}\r\n{"b":2}\r\n', ['{"a":1}', '{"b":2}']),
    ("no line end at the end", '{"a":1}\n{"b":2}', ['{"a":1}', '{"b":2}']),
    ("without any line ends", '{"a":1}{"b":2}', ['{"a":1}', '{"b":2}']),
    ("an array", '[{"a":1}\n,\r\n{"b":[{}]}\n]', ['{"a":1}', '{"b":[{}]}']),
    ("an empty array", "[ ]", []),
    (
        "a printed array",
        '[{\n  "a": {\n    "b": 1\n  }\n},\n{\n  "c": 2\n}]',
        ['{\n  "a": {\n    "b": 1\n  }\n}', '{\n  "c": 2\n}'],
    ),
    (
        "braces and quotes in strings",
        r'{"a":"}{\"\\"}{"b":"\\"}',
        [r'{"a":"}{\"\\"}', r'{"b":"\\"}'],
    ),
    (
        "one body over several lines",
        '{\n"error": {\n"x": 1\n}\n}\n',
        ['{\n"error": {\n"x": 1\n}\n}'],
    ),
    ("a brace at the start of a printed line", '{\n"a":\n{\n"b": 1}}', ['{\n"a":\n{\n"b": 1}}']),
    ("BOM and blanks", '\ufeff \n{"a":1}\n', ['{"a":1}']),
    ("a line that was cut", '{"a":"x\n{"b":2}\n', ['{"a":"x\n', '{"b":2}']),
    ("a line that was cut outside a string", '{"a":\n{"b":2}\n', ['{"a":\n', '{"b":2}']),
    ("a body that was cut", '{"a":1}\n{"b":', ['{"a":1}', '{"b":']),
    ("text in UTF-8", '{"a":"\u2028é😀"}\n', ['{"a":"\u2028é😀"}']),
]


@pytest.mark.parametrize(
    ("body", "expected"), [row[1:] for row in JSON_ROWS], ids=[row[0] for row in JSON_ROWS]
)
def test_json_values(body: str, expected: list[str]) -> None:
    """NDJSON, a streamed array and a bare body: every object at the top, wherever the body is cut."""
    raw = body.encode()
    events = [ev(data) for data in expected]
    assert events_of([raw]) == events
    assert events_of(singly(raw)) == events
    for place in range(len(raw)):
        assert events_of(cut(raw, [place])) == events, f"cut at {place}"


KINDS: list[tuple[str, bytes, str | None]] = [
    ("nothing", b"", None),
    ("blanks", b" \n\r\n", None),
    ("data", b"data:", "sse"),
    ("half a field", b"dat", None),
    ("a comment", b": hi", "sse"),
    ("event", b"event: x", "sse"),
    ("id", b"id:1", "sse"),
    ("retry", b"retry: 3", "sse"),
    ("error", b"error: {", "sse"),
    ("blanks, then a field", b"\r\n\r\ndata:", "sse"),
    ("BOM", b"\xef\xbb\xbf", None),
    ("BOM and field", b"\xef\xbb\xbfdata:", "sse"),
    ("half a BOM", b"\xef\xbb", None),
    ("an object", b"{", "json"),
    ("a bracket", b"[", None),
    ("an array of objects", b"[\n {", "json"),
    ("an empty array", b"[]", "json"),
    ("BOM and object", b"\xef\xbb\xbf{", "json"),
    ("short text", b"<html>", None),
    ("long text", b"<html>" + b"." * 64, "sse"),
    ("half a character", "é".encode()[:1], None),
    ("text in UTF-8", "é".encode() * 40, "sse"),
    ("gzip", gzip.compress(b"data: a\n\n"), "opaque"),
    ("the first byte of gzip", b"\x1f", "opaque"),
    ("zstd", ZSTD, "opaque"),
    ("deflate", zlib.compress(b"data: a\n\n"), "opaque"),
    ("brotli", BROTLI, "opaque"),
    ("an AWS event stream", b"\x00\x00\x00\x7b\x00\x00\x00\x58", "opaque"),
]


@pytest.mark.parametrize(
    ("head", "kind"), [row[1:] for row in KINDS], ids=[row[0] for row in KINDS]
)
def test_first_bytes_tell_the_framing(head: bytes, kind: str | None) -> None:
    """C69: what is neither text nor JSON at its first bytes cannot be observed."""
    assert recognise(head) == kind


def by_the_book(body: bytes) -> list[RawEvent]:
    """Server-sent events without any state: the whole body, split at what ends a line."""
    events: list[RawEvent] = []
    name, data = None, None
    for line in [*re.split(rb"\r\n|\r|\n", body), b""]:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line:
            if data is not None:
                events.append((name, data, None))
            name, data = None, None
        elif field == b"event":
            name = value.decode() or None
        elif field == b"data":
            data = value if data is None else data + b"\n" + value
        elif field == b"error":
            events.append(("error", value, None))
    return events


LINES = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "data: {}",
                'data: {"usage": 1}',
                "data:x",
                "data: [DONE]",
                "event: message",
                "event: error",
                "error: x",
                ": c",
                "id: 7",
                "",
                "",
                "",
                "data: é\u2028",
                "data",
                "datax: 1",
                "event:",
                "data: {} ",
            ]
        ),
        st.sampled_from(["\n", "\n", "\r\n", "\r"]),
    ),
    max_size=12,
)


@settings(max_examples=examples(400))
@given(LINES, st.lists(st.integers(0, 400), max_size=8))
@example([("data: {}", "\r"), ("", "\n")], [9])
def test_cuts_do_not_matter(lines: list[tuple[str, str]], places: list[int]) -> None:
    """Any cutting of any mixture of line ends gives the events of the whole body."""
    body = b"data: 0\n\n" + "".join(line + end for line, end in lines).encode()
    assert events_of(cut(body, places)) == events_of(singly(body)) == by_the_book(body)


USAGE = re.compile(rb'"usage"').search


@settings(max_examples=examples(400))
@given(LINES, st.lists(st.integers(0, 400), max_size=8))
@example(
    [("data: {}", "\r\n"), ("", "\r\n"), ('data: {"usage": 1}', "\n"), ("", "\n")], [9, 10, 11]
)
@example([("data: {}", "\n"), ("", "\n")], [9])
@example([("data: {}", "\n"), ("", "\r\n")], [9])
@example([("data: {}", "\r\n"), ("", "\n")], [10])
def test_an_event_is_there_as_soon_as_it_has_ended(
    lines: list[tuple[str, str]], places: list[int]
) -> None:
    """B32: after each piece the events are those of its lines, but for objects without the trigger.

    The line of an `error:` field may wait for the end of the event in which it stands.
    """
    body = "".join(line + end for line, end in lines if not line.startswith("error:"))
    pieces = cut(body.encode(), places)
    whole, picked, by_lines = SSEFramer(MAX), SSEFramer(MAX), SSEFramer(MAX)
    for piece in pieces:
        expected = by_lines._cut(piece)
        assert [*whole.feed(piece)] == expected
        left_out = list(expected)
        for event in picked.feed(piece, USAGE):
            left_out.remove(event)
        for name, data, _ in left_out:
            assert name != "error"
            assert data.startswith(b"{")
            assert not USAGE(data)
    assert whole.finish() == by_lines.finish()


def test_many_events_that_end_with_cr_in_one_piece() -> None:
    """Lines that end with CR are cut in one go, however many events they make."""
    events = events_of([b"data: a\r", b"\r" + b"data: b\r\r" * 5_000])
    assert events == [ev("a"), *[ev("b")] * 5_000]


@pytest.mark.parametrize(
    "odd",
    [
        b"data: {}\r\n\r",
        b"data: {}\r\r",
        b"data: {}\r\rdata: {}\n",
        b"data: " + b"x" * 20_000,
        b"data: {}\rdata: {}\n\nda",
    ],
    ids=["half a CRLF", "CR", "CR, then LF", "long", "a CR inside"],
)
def test_what_is_uncommon_costs_its_own_event_alone(
    odd: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After what has to be cut line by line the framer goes back to looking at pieces as a whole."""
    cuts: list[bytes] = []
    original = SSEFramer._cut

    def counting(self: SSEFramer, chunk: bytes) -> list[RawEvent]:
        cuts.append(chunk)
        return original(self, chunk)

    monkeypatch.setattr(SSEFramer, "_cut", counting)
    framer = SSEFramer(MAX)
    framer.feed(odd, USAGE)
    framer.feed(b"\ndata: {}\n\ndata: {", USAGE)
    framer.feed(b"}\n\ndata: ", USAGE)
    before = len(cuts)
    for _ in range(10):
        framer.feed(b"{}\n\ndata: {}\r\n\r\ndata: ", USAGE)
    assert before > 0
    assert len(cuts) == before


@settings(max_examples=examples(400))
@given(LINES)
def test_plain_is_whole_events_alone(lines: list[tuple[str, str]]) -> None:
    """Where PLAIN matches bytes without a lone CR, they are whole events of JSON objects, none of them named error."""
    body = "".join(line + end for line, end in lines).encode()
    if lone_cr(body) or not PLAIN.match(body):
        return
    assert body.endswith((b"\n\n", b"\n\r\n"))
    for name, data, _ in by_the_book(body):
        assert name != "error"
        assert data.startswith(b"{")


@pytest.mark.parametrize(
    "body",
    [
        b"data: {}\n",
        b"data: {}\n\ndata: {}\n",
        b"data: [DONE]\n\n",
        b"event: error\ndata: {}\n\n",
        b"error: {}\n\n",
        b"{}\n\n",
        b"data: {}\ndata: {}\n\n",
        b"",
        b"\n\n",
        b"data: x\n\n",
    ],
)
def test_plain_leaves_what_can_matter(body: bytes) -> None:
    """Half an event, `[DONE]`, an error and bare JSON are for the parser."""
    assert PLAIN.match(body) is None


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\{}[]\n é😀'),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text('a"\\{', max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=examples(300))
@given(
    st.lists(st.dictionaries(st.text("ab{", max_size=3), JSON_VALUES, max_size=3), max_size=4),
    st.sampled_from(["lines", "array", "printed"]),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_cuts_of_json_do_not_matter(
    values: list[dict[str, Any]], form: str, places: list[int]
) -> None:
    """Any cutting of NDJSON and of arrays, compact and printed, gives the objects that were written."""
    if form == "lines":
        body = "".join(json.dumps(value) + "\n" for value in values)
    else:
        body = json.dumps(values, indent=2 if form == "printed" else None, ensure_ascii=False)
    events = events_of(cut(body.encode(), places))
    assert [json.loads(data) for _, data, _ in events] == values


@settings(max_examples=examples(300))
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_random_bytes_never_raise(body: bytes, places: list[int]) -> None:
    """Framing takes any bytes."""
    assert isinstance(events_of(cut(body, places)), list)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("prefix", [b"event: big\ndata: ", b"data: {}\ndata: "])
def test_an_event_above_the_limit_keeps_its_beginning_and_end(prefix: bytes, size: int) -> None:
    """Of an event longer than the limit the first bytes and the last 64 KiB are there; the next event is whole."""
    value = b'{"type":"big",' + b"x" * 300_000 + b'"usage":{"in":1}}'
    body = prefix + value + b"\n\ndata: next\n\n"
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    (name, head, tail), following = events_of(pieces, max_event=1000)
    whole = value if prefix.startswith(b"event") else b"{}\n" + value
    assert name == ("big" if prefix.startswith(b"event") else None)
    assert whole.startswith(head)
    assert len(head) >= 1000
    assert tail == whole[-TAIL:]
    assert following == ev("next")


@pytest.mark.parametrize(
    ("start", "end", "following"),
    [
        (b"data: {}\n\n: ", b"\n\n", b"data: a\n\n"),
        (b"data: {}\n\nother: ", b"\n\n", b"data: a\n\n"),
        (b"data: {}\n\nevent: ", b"\n\n", b"data: a\n\n"),
        (b"data: {}\n\ndata: ", b"\n\n", b"data: a\n\n"),
        (b"data: {}\n\n{", b"\n\n", b"data: a\n\n"),
        (b'{"a":"', b'"}\n', b"{}\n"),
        (b"", b"", b""),
    ],
    ids=["comment", "unknown", "name", "data", "stray", "json", "text"],
)
def test_memory_is_bounded_by_one_event(start: bytes, end: bytes, following: bytes) -> None:
    """A line or an object of 8 MiB under a limit of 100 kB never holds more than a few times the limit."""
    framing = Framing(100_000)
    piece = b"x" * 1000
    tracemalloc.start()
    try:
        framing.feed(start)
        for _ in range(8_000):
            framing.feed(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    framing.feed(end)
    assert [event[1] for event in framing.feed(following)] == [
        data for _, data, _ in events_of([following])
    ]


def test_a_piece_costs_the_same_however_long_the_event() -> None:
    """Kept moves its tail by halves: the bytes that it moves are at most as many again as it took in."""
    kept = Kept(10)
    moved = 0
    for _ in range(3 * TAIL):
        before = len(kept)
        kept.add(b"x")
        if len(kept) <= before:
            moved += TAIL
    assert moved <= 3 * TAIL
