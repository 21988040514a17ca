"""What a hand-written stream is: the events that are sent, and what is true of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from earmark.usage import Usage

Event = tuple[str | None, Mapping[str, Any] | str]

DONE: Final[Event] = (None, "[DONE]")
ABSENT: Final = object()


@dataclass(frozen=True)
class Stream:
    """One stream and what is true of it.

    Attributes:
        dialect: the name that finding out must come to.
        events: the events, each with its SSE name or None.
        usage: what was used, normalised; None where nobody says.
        outcome: how it ends where the source then stops.
        reasons: the finish reason of each choice that finished.
        n: how many choices the request asked for.
        parsed: whether its payloads tell the same, without the names of events and without `[DONE]`.
    """

    name: str
    dialect: str
    events: tuple[Event, ...]
    usage: Usage | None
    authoritative: bool = True
    outcome: str = "end"
    reasons: Mapping[int, str] = field(default_factory=lambda: {0: "stop"})
    n: int = 1
    parsed: bool = True

    def __repr__(self) -> str:
        """By its name, since its events may fill a screen: `earmark.testing.streams.stream` has it."""
        return f"stream({self.name!r})"

    def sse(self, newline: str = "\n") -> bytes:
        """The stream as server-sent events."""
        return "".join(_sse(name, data, newline) for name, data in self.events).encode()

    def ndjson(self) -> bytes:
        """The stream as one JSON object a line."""
        return "".join(f"{json.dumps(data)}\n" for data in self.payloads()).encode()

    def array(self) -> bytes:
        """The stream as a JSON array that is sent element by element."""
        return (
            "[" + ",\r\n".join(json.dumps(data, indent=1) for data in self.payloads()) + "]"
        ).encode()

    def framings(self) -> list[bytes]:
        """The stream in every framing in which it may come; none where its events hold bytes, which no JSON has."""
        if any(isinstance(data.get("chunk", {}).get("bytes"), bytes) for data in self.payloads()):
            return []
        if all(isinstance(data, Mapping) and name is None for name, data in self.events):
            return [self.sse(), self.sse("\r\n"), self.ndjson(), self.array()]
        return [self.sse(), self.sse("\r\n"), self.sse("\r")]

    def payloads(self) -> list[Mapping[str, Any]]:
        """The events as an SDK would give them: parsed, without names, without `[DONE]`."""
        return [data for _, data in self.events if not isinstance(data, str)]


def _sse(name: str | None, data: Mapping[str, Any] | str, newline: str) -> str:
    lines = [] if name is None else [f"event: {name}"]
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    lines += [f"data: {line}" for line in text.split("\n")]
    return newline.join(lines) + newline * 2


def named(*payloads: Mapping[str, Any]) -> tuple[Event, ...]:
    """Events that are named after their type."""
    return tuple((str(payload["type"]), payload) for payload in payloads)


def unnamed(*payloads: Mapping[str, Any]) -> tuple[Event, ...]:
    """Events without a name."""
    return tuple((None, payload) for payload in payloads)


def ending(
    name: str,
    dialect: str,
    events: Iterable[Event],
    usage: Usage | None = None,
    outcome: str = "truncated",
    reasons: Mapping[int, str] | None = None,
    n: int = 1,
    *,
    parsed: bool = True,
) -> Stream:
    """A stream without a final report: cut, failed, or of somebody who never says what was used."""
    return Stream(
        name,
        dialect,
        tuple(events),
        usage,
        authoritative=False,
        outcome=outcome,
        reasons=reasons or {},
        n=n,
        parsed=parsed,
    )
