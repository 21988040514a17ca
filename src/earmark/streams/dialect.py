"""What a dialect is: one provider family's rules for reading usage out of its stream.

No single rule combines the reports of a stream: adding, the first, the last and the largest are each wrong
for some provider (B33). A dialect says what counts, what is terminal, and what cannot matter.

Two things are kept apart, because providers do: the event after which nothing comes (`ended`: `[DONE]`,
`message_stop`, `response.completed`), and the state in which a source may stop without having been cut
(`finished`: Gemini's finish reason, a finish chunk that carries the usage where no `[DONE]` follows).

How a dialect is found: `earmark.streams.detect` has `detect(event, data)`, a pure function of one event that
returns a `DialectFactory`, or None where this event says nothing; `factory(name)`; and `UNKNOWN`, the factory
for a stream that never said what it is. The observer keeps the events that said nothing and feeds them to
the dialect once it is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from earmark.usage import Usage


class Dialect(Protocol):
    r"""The reader of one stream. An instance observes one stream and is then thrown away.

    `trigger` is searched in the raw bytes of each event whose data begins with `{`. Where it is not found
    the event cannot matter, and is never parsed as JSON. It costs the least when every alternative begins
    with the same literal byte, the quote of a key, and when it does not match a null: every chunk of a
    stream may carry `"usage":null` and `"finish_reason":null`, as in
    `rb'"(?:error"|usage"\s*:\s*\{|finish_reason"\s*:\s*")'`. Text cannot match it by accident, since
    a quote within text is escaped. An event named `error`, and data that is no JSON object, always arrive.
    Several events may be searched at once, with what is round their data: so it may not be anchored to the
    beginning or the end, nor rule out what stands elsewhere.
    """

    name: ClassVar[str]
    trigger: ClassVar[re.Pattern[bytes]]

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Take in one parsed event. `event` is the SSE event name where there was one.

        A JSON object outside any `data:` (Vertex's error in mid-stream) comes as an event without a name,
        that of an `error:` field line (GPUStack) as an event named `error`.
        """
        ...

    def observe_text(self, event: str | None, data: str) -> None:
        """Take in the data of an event that is not a JSON object, such as `[DONE]`."""
        ...

    def text_length(self, event: str | None, data: Mapping[str, Any] | str) -> int | None:
        """How many characters the model generated in this event, reasoning and tool arguments included.

        None where that cannot be told, which is not 0. An error body is no output (C44). `data` is what was
        observed, the parsed event or the text. Called, for every event, only where an estimator was given.
        """
        ...

    def only_usage(self, event: str | None, payload: Mapping[str, Any]) -> bool:
        """True where the event is there for its usage alone: who did not ask would not have got it (B64)."""
        ...

    @property
    def usage(self) -> Usage | None:
        """What the reports so far come to, or None where there was none."""
        ...

    def final(self, *, complete: bool) -> bool:
        """Whether `usage` is the provider's own final report, for every expected choice.

        Args:
            complete: the source has said that no more comes: it stopped, without an error. Of a stream that was
                left or has failed a report that more could have followed is not final: leaving is never
                cheaper than staying (B65).
        """
        ...

    @property
    def ended(self) -> bool:
        """True once the event after which nothing comes was seen: that item completes the stream."""
        ...

    @property
    def finished(self) -> bool:
        """True where a source that stops now was not cut, though more might have come. Implied by `ended`."""
        ...

    @property
    def error(self) -> str | None:
        """The provider's in-band error (after HTTP 200), where one was seen."""
        ...


DialectFactory = Callable[[int], Dialect]
"""Makes the dialect of one stream; the argument is how many choices the request asked for (n)."""
