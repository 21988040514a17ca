"""Streams of every dialect, written by hand: what is sent, and what an observer must make of it.

Each is as short as shows its rule: a piece of text, the report in its place, an ending. `STREAMS` has those with
a clean end and `ENDINGS` those that are cut, fail or never say what they used. Numbers are chosen so that
adding, or taking the wrong one of several reports, gives another sum.
"""

from __future__ import annotations

from typing import Final

from earmark.testing.streams.bodies import (
    anthropic,
    gemini,
    openai,
    openai_endings,
    others,
    responses,
)
from earmark.testing.streams.bodies.shape import Stream

STREAMS: Final = (
    *openai.STREAMS,
    *responses.STREAMS,
    *anthropic.STREAMS,
    *gemini.STREAMS,
    *others.STREAMS,
)
ENDINGS: Final = (
    *openai_endings.ENDINGS,
    *responses.ENDINGS,
    *anthropic.ENDINGS,
    *gemini.ENDINGS,
    *others.ENDINGS,
)
ALL: Final = (*STREAMS, *ENDINGS)


def stream(name: str) -> Stream:
    """The stream of a name: what the repr of one says.

    Raises:
        KeyError: there is none.
    """
    return _BY_NAME[name]


_BY_NAME: Final = {one.name: one for one in ALL}
