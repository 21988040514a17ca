"""What the stand-in does with one request: a value that a script lists, and that travels to another process as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Act:
    """One answer. By default all is well.

    Attributes:
        status: the HTTP status; from 400 on the answer is an error in the words of the API that is asked.
        headers: further headers of the answer: `retry-after`, for one.
        chunks: the text of each choice comes in so many chunks.
        output_tokens: what each choice counts; None: a token a chunk.
        input_tokens: what the prompt counts.
        cached_tokens: how many of them come from the provider's cache.
        tool: each choice calls a tool instead of saying anything.
        usage: whether usage is reported, where the request asks for it.
        delay: seconds before the answer begins.
        pace: seconds before each event of a stream.
        cut: the connection breaks after so many events of a stream, and in the midst of a body that is none.
        hang: after so many events nothing comes any more, until the client goes.
        fail: after so many events the stream tells of an error, and ends.

    Raises:
        ValueError: a negative number, or a status that is none.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    chunks: int = 5
    output_tokens: int | None = None
    input_tokens: int = 10
    cached_tokens: int = 0
    tool: bool = False
    usage: bool = True
    delay: float = 0.0
    pace: float = 0.0
    cut: int | None = None
    hang: int | None = None
    fail: int | None = None

    def __post_init__(self) -> None:
        if not 200 <= self.status <= 599:  # noqa: PLR2004 - what an answer can have
            msg = f"status must be from 200 to 599, not {self.status!r}"
            raise ValueError(msg)
        for name in (
            "chunks",
            "output_tokens",
            "input_tokens",
            "cached_tokens",
            "delay",
            "pace",
            "cut",
            "hang",
            "fail",
        ):
            value = getattr(self, name)
            if value is not None and value < 0:
                msg = f"{name} must not be negative, and is {value!r}"
                raise ValueError(msg)

    @property
    def output(self) -> int:
        """What each choice counts."""
        return self.chunks if self.output_tokens is None else self.output_tokens

    def to_json(self) -> dict[str, Any]:
        """What JSON can hold of it."""
        return {**asdict(self), "headers": dict(self.headers)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What `to_json` has made.

        Raises:
            ValueError: a member that an act does not have.
        """
        unknown = set(value) - {one.name for one in fields(cls)}
        if unknown:
            msg = f"an act has no {', '.join(sorted(unknown))}"
            raise ValueError(msg)
        return cls(**value)
