"""Sources, callbacks and a dialect of the tests' own: what a stream is made of, without any provider."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import anyio
import pytest

from earmark.streams import Observed, ObservedStream, observe_stream
from earmark.usage import Usage


class Toy:
    """A dialect: `usage` reports, `[DONE]` ends, `enough` means that the source may stop, `say` is text."""

    name: ClassVar[str] = "toy"
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(rb'"(?:usage|enough|error)"')

    def __init__(self, expected_choices: int = 1) -> None:
        self.expected_choices = expected_choices
        self.usage: Usage | None = None
        self.authoritative = False
        self.ended = False
        self.finished = False
        self.error: str | None = None
        self.parsed = 0

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        self.parsed += 1
        report = payload.get("usage")
        if isinstance(report, Mapping):
            self.usage = Usage(report.get("in"), report.get("out"))
            self.authoritative = "out" in report
        if "enough" in payload:
            self.finished = True
        if event == "error" or "error" in payload:
            self.error = str(payload.get("error", payload))

    def observe_text(self, event: str | None, data: str) -> None:
        if event == "error":
            self.error = data
        elif data == "[DONE]":
            self.ended = self.finished = True

    def final(self, *, complete: bool) -> bool:
        return self.authoritative

    def text_length(self, event: str | None, data: Mapping[str, Any] | str) -> int | None:
        return 0 if isinstance(data, str) else len(data.get("say", ""))

    def only_usage(self, event: str | None, payload: Mapping[str, Any]) -> bool:
        return set(payload) == {"usage"}


def sse(payload: Mapping[str, Any] | str) -> bytes:
    """One event in the bytes of a body."""
    data = payload if isinstance(payload, str) else json.dumps(payload)
    return f"data: {data}\n\n".encode()


SAY = sse({"say": "hello"})
USAGE = sse({"usage": {"in": 9, "out": 3}})
DONE = sse("[DONE]")
# The body of those three events as brotli and zstd make it.
BROTLI = bytes.fromhex(
    "8b2580646174613a207b22736179223a202268656c6c6f227d0a0a646174613a207b227573616765223a207b22696e22"
    "3a20392c20226f7574223a20337d7d0a0a646174613a205b444f4e455d0a0a03"
)
ZSTD = bytes.fromhex(
    "28b52ffd204c1d02007403646174613a207b22736179223a202268656c6c6f227d0a0a757361676522696e223a20392c"
    "20226f7574223a20337d5b444f4e455d0a0a030093aad5120a4bcc31"
)
FAILED = sse({"error": "the model is overloaded, and this is a long text about it"})


def cut(body: bytes, places: Iterable[int]) -> list[bytes]:
    """The pieces of a body that is cut at these places."""
    marks = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    return [body[start:end] for start, end in pairwise(marks)]


async def generate(items: Iterable[Any]) -> AsyncIterator[Any]:
    """The plainest source."""
    for item in items:
        yield item


class Source:
    """A source that keeps a record of how it was used, and ends as it is told to.

    Args:
        items: what it gives.
        ending: what it does after the last item: stop, raise this error, or wait for ever.
        hooks: called before the item of that index is given.
    """

    def __init__(
        self,
        items: Sequence[Any],
        ending: BaseException | str = "stop",
        hooks: Mapping[int, Callable[[], object]] | None = None,
    ) -> None:
        self.items = list(items)
        self.ending = ending
        self.hooks = dict(hooks or {})
        self.given = 0
        self.closed = 0
        self.waiting = anyio.Event()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self.given in self.hooks:
            self.hooks[self.given]()
        if self.given < len(self.items):
            item = self.items[self.given]
            self.given += 1
            return item
        if isinstance(self.ending, BaseException):
            raise self.ending
        if self.ending == "wait":
            self.waiting.set()
            await anyio.sleep_forever()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.closed += 1


class Told(list[Observed]):
    """A plain on_complete that remembers what it was told."""

    def __call__(self, observed: Observed) -> None:
        self.append(observed)

    @property
    def only(self) -> Observed:
        """What was told, exactly once."""
        assert len(self) == 1, f"told {len(self)} times: {list(self)}"
        return self[0]


class ToldLater(Told):
    """The same as an async function, which waits a little first."""

    async def __call__(self, observed: Observed) -> None:  # type: ignore[override]
        await anyio.lowlevel.checkpoint()
        self.append(observed)


async def take(stream: AsyncIterator[Any]) -> None:
    """Ask for one item, in a task of its own."""
    await anext(stream)


class Slow:
    """An async on_complete that does not finish before it may."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.may_finish = anyio.Event()
        self.done = anyio.Event()
        self.told: list[Observed] = []

    async def __call__(self, observed: Observed) -> None:
        self.begun.set()
        await self.may_finish.wait()
        self.told.append(observed)
        self.done.set()

    async def let_go(self) -> None:
        """Wait a few rounds of the loop, in which nothing may be told, and then let it finish."""
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        assert not self.told
        self.may_finish.set()


CALLBACKS = pytest.mark.parametrize("told_by", [Told, ToldLater], ids=["plain", "async"])


def watched(source: Any, told: Callable[[Observed], object], **options: Any) -> ObservedStream[Any]:
    """The stream under test, in the toy dialect."""
    return observe_stream(source, on_complete=told, dialect=Toy, **options)


async def consume(stream: AsyncIterator[Any]) -> tuple[list[Any], BaseException | None]:
    """All items, and how it ended if with an error."""
    items: list[Any] = []
    try:
        async for item in stream:
            items.append(item)  # noqa: PERF401 - those before an error count
    except OSError as error:
        return items, error
    return items, None


async def run(items: Any, dialect: Any = Toy, **options: Any) -> Observed:
    """Observe a whole stream; the items that come out are the items that went in."""
    told = Told()
    items = list(items)
    stream = observe_stream(generate(items), on_complete=told, dialect=dialect, **options)
    out = [item async for item in stream]
    assert len(out) == len(items)
    assert all(got is given for got, given in zip(out, items, strict=True))
    assert stream.observed is told.only
    return told.only


def run_now(items: Any, dialect: Any = Toy, **options: Any) -> Observed:
    """The same without an event loop: a stream whose source never suspends and whose callback is plain needs none."""
    call = run(items, dialect, **options)
    try:
        call.send(None)
    except StopIteration as done:
        result: Observed = done.value
        return result
    call.close()
    pytest.fail("a plain stream suspended")
