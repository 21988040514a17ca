"""A stream that is observed, and what is known of it: one frozen record, made at its end, or as a look before.

Unknown stays unknown: `usage` is None, or has unknown parts, where nobody reported them, and only `tokens`, a
convenience for counters, reads that as 0 (B62). Whether the numbers are the provider's own last word is
said apart from how the stream ended, since a stream may end in an error and still have reported everything.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from earmark.frozen import setters
from earmark.usage import Usage

T = TypeVar("T")

Outcome = Literal["open", "end", "truncated", "error", "cancelled", "closed", "dropped"]


@dataclass(frozen=True, slots=True, init=False)
class Observed:
    """What was seen of a stream.

    Attributes:
        outcome: how it ended.

            * `end`: the event that ends the stream was seen, or the source stopped where it may
            * `truncated`: the source just stopped
            * `error`: the source raised, or the provider sent an error in the stream
            * `cancelled`: the consumer was cancelled while it waited
            * `closed`: `aclose()` was called
            * `dropped`: nobody held the stream any more
            * `open`: not yet ended, in `ObservedStream.observed`
        usage: what the provider reported, or None; its fields may be unknown.
        authoritative: the provider's own final report arrived, for every expected choice.
        estimated: an estimator had a part in `usage`.
        error: what the source raised, or the text of the provider's error.
        items: the items received; the one in hand when the stream ended counts as delivered.
        bytes: the size of the items that were bytes or text, in bytes.
        text_length: the characters that the model generated; None unless an estimator was given.
        dialect: the name of the dialect, or None where it was never known.
    """

    outcome: Outcome
    usage: Usage | None = None
    authoritative: bool = False
    estimated: bool = False
    error: BaseException | str | None = None
    items: int = 0
    bytes: int = 0
    text_length: int | None = None
    dialect: str | None = None

    # Made for every stream, hence written out.
    def __init__(  # noqa: PLR0917 - in the order of the fields
        self,
        outcome: Outcome,
        usage: Usage | None = None,
        authoritative: bool = False,  # noqa: FBT001, FBT002
        estimated: bool = False,  # noqa: FBT001, FBT002
        error: BaseException | str | None = None,
        items: int = 0,
        bytes: int = 0,  # noqa: A002
        text_length: int | None = None,
        dialect: str | None = None,
    ) -> None:
        _put_outcome(self, outcome)
        _put_usage(self, usage)
        _put_authoritative(self, authoritative)
        _put_estimated(self, estimated)
        _put_error(self, error)
        _put_items(self, items)
        _put_bytes(self, bytes)
        _put_text_length(self, text_length)
        _put_dialect(self, dialect)

    @property
    def tokens(self) -> int:
        """The total of the usage, or 0 where it is unknown."""
        total = None if self.usage is None else self.usage.total
        return total or 0


(
    _put_outcome,
    _put_usage,
    _put_authoritative,
    _put_estimated,
    _put_error,
    _put_items,
    _put_bytes,
    _put_text_length,
    _put_dialect,
) = setters(Observed)


class ObservedStream(AsyncIterator[T]):
    """A stream that passes the items of its source on; made by `observe_stream`.

    To be iterated by one task at a time, and closed with `aclose()` unless it was iterated to its end.
    """

    __slots__ = ("__weakref__",)

    def __aiter__(self) -> ObservedStream[T]:
        return self

    @abstractmethod
    async def aclose(self) -> None:
        """Close the stream and its source; a stream that had not ended is told as closed.

        It returns at once where another task has begun to tell the end or to close: that one finishes it.

        Raises:
            Exception: what closing the source raises.
        """

    @property
    @abstractmethod
    def observed(self) -> Observed:
        """What was told, or a look at what there is while the stream is open."""
