"""A stream that one task closes while another waits for its next item: a watchdog, a client that has gone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from earmark.streams import Observed, observe_stream
from tests.streams.toys import SAY, Toy

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("upstream_ends", [False, True], ids=["another item", "the end"])
async def test_a_source_that_runs_is_closed_by_the_task_that_waits_for_it(
    *, upstream_ends: bool
) -> None:
    """C42: told closed once, at once; the source is closed when it has given what it was asked for."""
    log: list[str] = []
    asked, go = anyio.Event(), anyio.Event()

    async def body() -> AsyncIterator[bytes]:
        try:
            yield SAY
            asked.set()
            await go.wait()
            if not upstream_ends:
                yield SAY
                yield SAY
        finally:
            log.append("source closed")

    def tell(observed: Observed) -> None:
        log.append(f"told {observed.outcome}")

    source = body()  # held, as a client holds its response
    stream = observe_stream(source, on_complete=tell, dialect=Toy)
    items: list[bytes] = []

    async def read() -> None:
        items.extend([item async for item in stream])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await asked.wait()
        await stream.aclose()
        assert log == ["told closed"]
        await stream.aclose()
        go.set()
    assert log == ["told closed", "source closed"]
    assert items == [SAY] * (1 if upstream_ends else 2)


async def test_what_the_caller_gave_is_closed_at_once_so_that_the_waiting_task_need_not_wait() -> (
    None
):
    """B35: an upstream that is silent is let go of by `aclose=`, such as an httpx response's."""
    log: list[str] = []
    asked, gone = anyio.Event(), anyio.Event()

    async def body() -> AsyncIterator[bytes]:
        asked.set()
        await gone.wait()
        raise ConnectionError
        yield SAY

    async def let_go() -> None:
        log.append("let go")
        gone.set()

    stream = observe_stream(
        body(), on_complete=lambda seen: log.append(seen.outcome), aclose=let_go, dialect=Toy
    )

    async def read() -> None:
        with pytest.raises(ConnectionError):
            await anext(stream)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await asked.wait()
        await stream.aclose()
    assert log[:2] == ["closed", "let go"]
    assert set(log) == {"closed", "let go"}
