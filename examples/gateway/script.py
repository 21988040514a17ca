"""What the provider streams in the demo, and what a request has to pay for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from earmark import Limits, Observed, observe_stream
from earmark.testing.provider import Recorded

from .provider import spoken


@dataclass(frozen=True, slots=True)
class Script:
    """A body, and what a request that holds some tokens has used by it.

    Attributes:
        body: what the provider streams.
        half: how many bytes of it are there when a client leaves.
        owed_half: the tokens used by a client that leaves there.
        owed: the tokens used by one that stays.
        marked: the stream says itself that it is over, and is settled when that is seen; else at its end.
        limits: some under which a second request is refused.
    """

    body: Recorded
    half: int
    owed_half: int
    owed: int
    marked: bool
    limits: Limits


async def built_in(hold: int) -> Script:
    """A few words, and a report of 1,500 tokens: a model that has thought a lot."""
    body = await spoken(prompt=10, completion=1_490)
    half = len(body.content) // 2
    return Script(body, half, hold, 1_500, marked=True, limits=Limits(rpm=60, tpm=1_000))


async def recording(path: Path, hold: int) -> Script:
    """A recorded body; what is owed for it is what it says when it is observed on its own.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is empty, or its name does not say what it is.
    """
    body = Recorded.load(path)
    half = len(body.content) // 2
    left, _ = await _observed(body.content[:half])
    marked, ended = await _observed(body.content)
    owed = _owed(ended, hold)
    # Where nothing was used the tokens refuse nobody, and the requests have to.
    limits = Limits(rpm=60 if owed else 1, tpm=max(hold, owed))
    return Script(body, half, _owed(left, hold), owed, marked.outcome != "open", limits)


async def _observed(content: bytes) -> tuple[Observed, Observed]:
    """What is known of a stream once its bytes are here, and once it has ended."""

    async def source() -> AsyncIterator[bytes]:
        yield content

    stream = observe_stream(source(), on_complete=lambda _: None)
    await anext(stream)
    so_far = stream.observed
    await anext(stream, None)
    return so_far, stream.observed


def _owed(observed: Observed, hold: int) -> int:
    """The provider's last word if it came; without it the larger of the hold and what was reported."""
    usage = observed.usage
    if usage is None:
        return hold
    if observed.authoritative and usage.total is not None:
        return usage.total
    return max(hold, usage.floors()["tokens"])
