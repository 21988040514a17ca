"""What hypothesis draws of earmark's values: limits, scopes, usages, histories, and providers' streams.

    @given(scopes(), usages())
    def test_my_gateway(scope, usage): ...

It needs hypothesis. Numbers are small and alike on purpose, so that holds, limits and windows meet; the largest are
among them.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Final

from hypothesis import strategies as st

from earmark.amounts import MAX_AMOUNT
from earmark.limits import Limits, Scope
from earmark.testing.histories import History, drawing
from earmark.testing.histories.translation import scope_of
from earmark.testing.streams import ALL, Body, Ending, Piece, Stream
from earmark.usage import Usage

__all__ = ["bodies", "histories", "limits", "scope_sets", "scopes", "usages"]


def scope_sets() -> st.SearchStrategy[tuple[Scope, ...]]:
    """Two or three scopes of one request: different keys, some of them awkward, limits of every kind."""
    return drawing.offers().map(lambda offers: tuple(map(scope_of, offers)))


def scopes() -> st.SearchStrategy[Scope]:
    """One scope."""
    return scope_sets().map(lambda several: several[0])


def limits() -> st.SearchStrategy[Limits]:
    """The limits of one scope: some of the usual ones, and others of any metric, window and algorithm."""
    return scopes().map(lambda scope: scope.limits)


_counts = st.none() | st.integers(0, 20) | st.integers(0, 100_000) | st.just(MAX_AMOUNT)


def usages() -> st.SearchStrategy[Usage]:
    """What providers report, and what they might: each field known or unknown, whatever the others say."""
    odd = st.builds(Usage, _counts, _counts, _counts, _counts, _counts, _counts)
    return st.sampled_from(drawing.USAGES) | odd


def histories(steps: int = 30) -> st.SearchStrategy[History]:
    """Histories of so many steps: a world of scopes, and what happens in it. Its repr is a program to paste.

    `earmark.testing.histories.play` plays one on a gateway or a backend of your own, beside the plain model.
    """
    return drawing.histories(steps, kinds=drawing.OF_ANY_GATEWAY)


def _cut(body: bytes, places: Collection[int]) -> list[bytes]:
    marks = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    return [body[start:end] for start, end in pairwise(marks)]


# Whoever names `openai` reads what is found to be of OpenAI's shape, and every such stream means the same to both.
_READ_BY: Final = {one.dialect: one.dialect for one in ALL} | {"openai": "openai-compatible"}


def bodies(dialects: str | Collection[str] | None = None) -> st.SearchStrategy[Body]:
    """Providers' streams, as bytes, text or parsed events, cut anywhere, with any ending.

    Args:
        dialects: only streams that these dialects read, one or several: "anthropic", or {"openai", "gemini"}. By
            default those of every dialect.

    Raises:
        ValueError: there is no such dialect among those of the library, or none is named.
    """
    names = (
        {dialects} if isinstance(dialects, str) else set(_READ_BY if dialects is None else dialects)
    )
    unknown = names - _READ_BY.keys()
    if unknown or not names:
        wrong = ", ".join(sorted(map(repr, unknown))) or "no dialect"
        msg = f"there are no streams of {wrong}: there are some of {', '.join(sorted(_READ_BY))}"
        raise ValueError(msg)
    return _bodies(tuple(sorted({_READ_BY[name] for name in names})))


# Streams are drawn by their numbers, and not handed on: hypothesis shows the arguments of strategies in reports.
@st.composite
def _bodies(draw: st.DrawFn, dialects: tuple[str, ...]) -> Body:
    dialect = draw(st.sampled_from(dialects))
    known = [one for one in ALL if one.dialect == dialect]
    stream = known[draw(st.integers(0, len(known) - 1))]
    pieces = _pieces(draw, stream)
    ending: Ending = draw(st.sampled_from(("stop", "stop", "error", "hang")))
    given = len(pieces)
    if draw(st.booleans()):
        given = draw(st.integers(0, len(pieces)))
    return Body(stream, pieces[:given], ending, given == len(pieces))


def _pieces(draw: st.DrawFn, stream: Stream) -> tuple[Piece, ...]:
    forms = ("bytes", "bytes", "text", "parsed") if stream.parsed else ("bytes", "bytes", "text")
    form = draw(st.sampled_from(forms))
    framings = stream.framings()
    if form == "parsed" or not framings:
        return tuple(stream.payloads())
    body = framings[draw(st.integers(0, len(framings) - 1))]
    places = draw(st.lists(st.integers(0, len(body)), max_size=12))
    if form == "text":
        text = body.decode()
        marks = [0, *sorted(min(place, len(text)) for place in places), len(text)]
        return tuple(text[start:end] for start, end in pairwise(marks))
    return tuple(_cut(body, places))
