"""What a stream may cost its reader: memory for about one event, and time in proportion to the bytes."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from earmark.streams import observe_stream
from earmark.streams.detect import UNKNOWN, detect
from earmark.streams.framing import Framing
from earmark.streams.jsonvalues import JSONFramer
from earmark.streams.undecided import Undecided
from tests.streams.toys import Told, generate, sse

MEBIBYTE = 1024 * 1024


@pytest.mark.parametrize("start", [b"", b"[", b"\xef\xbb\xbf", b"\xef\xbb\xbf [\n", b"\n"])
def test_blanks_without_end_are_not_kept(start: bytes) -> None:
    """C69: blanks that do not end are not kept, whether it is known by then what they stand in or not."""
    framing = Framing(100_000)
    framing.feed(start)
    tracemalloc.start()
    try:
        for _ in range(500):
            assert framing.feed(b" \r\n\t" * 200) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
    assert framing.kind == ("json" if b"[" in start else None)


@pytest.mark.parametrize("blanks", [b"", b" " * 10, b" " * 63, b" " * 64, b"\n" * 1000])
@pytest.mark.parametrize("size", [1, 7, 5000])
def test_an_array_after_many_blanks_is_read(blanks: bytes, size: int) -> None:
    """An array whose first element is late is an array all the same."""
    body = b"[" + blanks + b'{"a": 1}]'
    framing = Framing(100_000)
    events = [
        event for at in range(0, len(body), size) for event in framing.feed(body[at : at + size])
    ]
    assert [data for _, data, _ in events + framing.finish()] == [b'{"a": 1}']


PIECE = "x" * 100_000
SILENT: list[Any] = [
    {"x": PIECE},
    {"x": [PIECE]},
    {"x": {PIECE: None}},
    {"x": [[i] for i in range(3_000)]},
    {"x": {"y": PIECE.encode()}},
    sse({"x": PIECE}),
]


@pytest.mark.anyio
@pytest.mark.parametrize("item", SILENT, ids=["text", "list", "key", "many", "bytes", "body"])
async def test_events_that_say_nothing_are_kept_up_to_a_size(item: Any) -> None:
    """Large events without a dialect are kept as far as 1 MiB: the stream is then read as most are."""
    stream = observe_stream(generate([item] * 40), on_complete=Told())
    taken = 0
    while stream.observed.dialect is None:
        await anext(stream)
        taken += 1
    assert 4 <= taken <= 11
    await stream.aclose()


@pytest.mark.anyio
async def test_the_names_of_events_are_counted_and_cut() -> None:
    """A name is no way round the bounds: of a long one its beginning is kept, and what is kept is counted."""
    undecided = Undecided(detect, UNKNOWN)
    kept = 0
    while undecided.found is None:
        undecided.observe(PIECE, {"x": 1})
        kept += 1
    assert kept <= 11
    item = b"event: " + PIECE.encode() * 10 + b'\ndata: {"x": 1}\n\n'
    stream = observe_stream(generate([item] * 30), on_complete=Told())
    tracemalloc.start()
    try:
        for _ in range(30):
            await anext(stream)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 500_000
    await stream.aclose()


@pytest.mark.parametrize("blanks", [b"\n" * 64, b"\r\n" * 5000, b"  \n" * 100, b" " * 200])
@pytest.mark.parametrize("size", [1, 7, 5000])
@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize(
    "body", [b'{"a": 1}\n{"b": 2}', b'data: {"a": 1}\n\ndata: {"b": 2}\n'], ids=["lines", "events"]
)
def test_what_comes_after_many_blanks_tells_the_framing(
    blanks: bytes, size: int, end: bytes, body: bytes
) -> None:
    """Blanks say nothing, however many: what follows them is read as if it came first."""
    if body.startswith(b"data") and not blanks.endswith(b"\n"):
        blanks += b"\n"  # or else it is no field
    body = blanks + body + end
    framing = Framing(100_000)
    events = [
        event for at in range(0, len(body), size) for event in framing.feed(body[at : at + size])
    ]
    assert [data for _, data, _ in events + framing.finish()] == [b'{"a": 1}', b'{"b": 2}']


def test_the_size_of_an_event_is_measured_within_bounds() -> None:
    """What is nested without end, or in itself, is measured as far as it matters."""
    knot: dict[str, Any] = {}
    knot["knot"] = knot
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for payload in (knot, {"x": deep}):
        undecided = Undecided(detect, UNKNOWN)
        undecided.observe(None, payload)
        assert undecided.found is not None


def _counted(body: bytes, size: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[bytes]]:
    """How often the beginning of a value is looked at while a body is cut, and what is cut."""
    looks = 0
    original = JSONFramer._is_printed

    def counting(self: JSONFramer, *arguments: Any) -> bool:
        nonlocal looks
        looks += 1
        return original(self, *arguments)

    monkeypatch.setattr(JSONFramer, "_is_printed", counting)
    framer = JSONFramer(16 * MEBIBYTE)
    events = [
        event for at in range(0, len(body), size) for event in framer.feed(body[at : at + size])
    ]
    return looks, [data for _, data, _ in events + framer.finish()]


@pytest.mark.parametrize("size", [1, 1000, 10 * MEBIBYTE])
def test_a_printed_value_is_judged_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many lines of one value begin with a brace, its first line is looked at once."""
    body = b'{\n"a": [\n' + b"{\n},\n" * 5_000 + b"{}\n]\n}"
    json.loads(body)
    looks, values = _counted(body, size, monkeypatch)
    assert values == [body]
    assert looks == 1


def test_each_line_is_judged_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that was cut does not decide about the next, nor a printed value about a line."""
    body = b'{"a":\n{"b":\n{\n"c":\n{\n}}\n{"d":1}\n'
    looks, values = _counted(body, 3, monkeypatch)
    assert values == [b'{"a":\n', b'{"b":\n', b'{\n"c":\n{\n}}', b'{"d":1}']
    assert looks == 3
