"""From the items of a stream to what a dialect makes of them.

Observing must not break the stream: whatever an item holds, nothing here raises. What cannot be read is logged,
once per stream, and the next event is read as if nothing had been. Most items cannot matter, and whoever
passes them on can know that without a call: see `plain` and `trigger`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from earmark.logs import about
from earmark.streams.detect import undecided
from earmark.streams.dialect import Dialect, DialectFactory
from earmark.streams.framing import Framing, Kind
from earmark.streams.jsontext import decoded
from earmark.streams.kept import RawEvent, Search, anything
from earmark.streams.loops import ends_the_process
from earmark.streams.observed import Observed, Outcome
from earmark.streams.payloads import event_of
from earmark.streams.salvage import salvage
from earmark.streams.sse import lone_cr
from earmark.streams.undecided import Undecided
from earmark.usage import Usage

logger = logging.getLogger("earmark.streams")
_BLANKS: Final = (b" ", b"\t", b"\n", b"\r")

_CR: Final = 13  # as a number it is looked for several times as fast as as a piece of bytes

_DONE: Final = b"[DONE]"  # OpenAI's end mark, which begins as an array does
_LEFT: Final = ("open", "closed", "cancelled", "dropped")


class Watcher:
    """Reads the items of one stream.

    Args:
        factory: makes the dialect, or None to find it out.
        expected_choices: how many choices the request asked for.
        max_event: the largest event that is read whole, in bytes.
        count_text: whether the text is measured; then every event is parsed.

    Attributes:
        plain: bytes in which this finds something, and `trigger` and `lone_cr` nothing, need not be seen; None where
            all have to be.
        trigger: see `plain`.
        dialect: the reader of the stream.
        size: the bytes of the pieces of a body; whoever passes one on unseen adds its length.
        text_length: the characters that the model generated; None where they are not measured, or unknown.
    """

    __slots__ = (
        "_complained",
        "_direct",
        "_expected",
        "_framing",
        "dialect",
        "plain",
        "size",
        "text_length",
        "trigger",
    )

    def __init__(
        self,
        factory: DialectFactory | None,
        expected_choices: int,
        max_event: int,
        *,
        count_text: bool,
    ) -> None:
        self._expected = expected_choices
        self._framing = Framing(max_event)
        self._complained = False
        self.size = 0
        self.text_length: int | None = 0 if count_text else None
        self.plain: Search | None = None
        self._speak((undecided if factory is None else factory)(expected_choices))

    @property
    def kind(self) -> Kind | None:
        """The framing of what was seen, or None while that is not known."""
        return self._framing.kind

    def see(self, item: Any) -> bool:  # noqa: ANN401 - an item is whatever a source gives
        """Read one item. True once the event that ends the stream was seen."""
        try:
            # Not `isinstance`: of all items that are parsed these are the most, and the check costs the most.
            if item.__class__ is dict and "data" not in item:
                (self._direct or self._observe)(None, item)
            elif isinstance(item, bytes):
                self._see_bytes(item)
            elif isinstance(item, str):
                self._see_text(item)
            elif isinstance(item, bytearray):
                self._see_bytes(bytes(item))
            elif isinstance(item, memoryview):
                self._see_bytes(item.tobytes())
            else:
                self._see_object(item)
            ended = self.dialect.ended
        except BaseException as error:  # noqa: BLE001 - see `_complain`
            self._complain("an item could not be read", cause=error)
            self.text_length = None
            return False
        return ended

    def finish(self) -> None:
        """Take in that no more items come."""
        # An event that was cut is no news here: the outcome says so.
        complained, self._complained = self._complained, True
        try:
            length = self.text_length
            self._read(self._framing.finish())
            if self.text_length is None:
                self.text_length = length  # of what was delivered whole
            if isinstance(self.dialect, Undecided):
                self.dialect.give_up()
                self._decide(self.dialect)
        except BaseException as error:  # noqa: BLE001 - see `_complain`
            self._complain("the end of a stream could not be read", cause=error)
        finally:
            self._complained = complained

    def look(
        self, outcome: Outcome, error: BaseException | None = None, items: int = 0
    ) -> Observed:
        """What was seen so far."""
        dialect = self.dialect
        # The source did not say that no more comes: it was left, or failed, or is still read.
        complete = outcome not in _LEFT and error is None
        try:
            usage: object = dialect.usage
            if usage is not None and not isinstance(usage, Usage):
                self._complain(
                    "%s has a usage that is no Usage: %s", dialect.name, type(usage).__name__
                )
                usage = None
            complete = complete and dialect.error is None
            return Observed(
                outcome,
                usage,
                authoritative=usage is not None and bool(dialect.final(complete=complete)),
                error=dialect.error if error is None else error,
                items=items,
                bytes=self.size,
                text_length=self.text_length,
                dialect=dialect.name or None,
            )
        except BaseException as failure:  # noqa: BLE001 - see `_complain`
            self._complain("what a stream reported could not be read", cause=failure)
            return Observed(
                outcome, error=error, items=items, bytes=self.size, text_length=self.text_length
            )

    def ending(self) -> Outcome:
        """How a stream has ended that ended by itself."""
        dialect = self.dialect
        try:
            if dialect.error is not None:
                return "error"
            if dialect.ended or dialect.finished:
                return "end"
        except BaseException as error:  # noqa: BLE001 - see `_complain`
            self._complain("how a stream ended could not be read", cause=error)
        return "truncated"

    def _see_text(self, item: str) -> None:
        piece = item.encode("utf-8", "surrogatepass")
        plain = self.plain
        # As whoever passes on bytes has looked already.
        if (
            plain is not None
            and plain(piece) is not None
            and self.trigger(piece) is None
            and (_CR not in piece or lone_cr(piece) is None)
        ):
            self.size += len(piece)
        else:
            self._see_bytes(piece)

    def _see_bytes(self, piece: bytes) -> None:
        self.size += len(piece)
        framing = self._framing
        framer = framing.framer
        if framer is not None:
            events = framer.feed(piece, self.trigger)
            if events:
                self._read(events)
        else:
            known = framing.kind
            self._read(framing.feed(piece))
            framer = framing.framer
            if known is None and framing.kind == "opaque":
                _warn_of_compression()
                self.text_length = None
        # Where text is measured, no event can be passed on unseen.
        if framer is not None and self.text_length is None:
            self.plain = framer.plain if framer.idle else None

    def _see_object(self, item: object) -> None:
        found = event_of(item)
        if found is None:
            self._complain("an item of type %s holds no event", type(item).__name__)
            self.text_length = None
            return
        name, payload = found
        if isinstance(payload, str):
            self._read([(name, payload.encode("utf-8", "surrogatepass"), None)])
        else:
            self._observe(name, payload)

    def _read(self, events: Sequence[RawEvent]) -> None:
        """Read events up to the end of the stream: what comes after it says nothing, in the same piece or later."""
        for name, data, tail in events:
            if self.dialect.ended:
                return
            try:
                if tail is None:
                    self._read_whole(name, data)
                elif (payload := salvage(data, tail)) is not None:
                    self._observe(name, payload)
                else:
                    self.text_length = None
            except (ValueError, RecursionError) as error:
                self._complain("an event could not be read as JSON: %s", error)
                self.text_length = None

    def _read_whole(self, name: str | None, data: bytes) -> None:
        """Read one event, unless its bytes say that it cannot matter."""
        body = data.lstrip() if data[:1] in _BLANKS else data
        if body.startswith(b"{"):
            if name != "error" and self.trigger(body) is None:
                return
            text = body.decode("utf-8", "replace")
            try:
                payload = decoded(text)
            except (ValueError, RecursionError) as error:
                self._complain("an event could not be read as JSON: %s", error)
                self._observe_text(name, text)  # it may be none: a text may begin with a brace
            else:
                self._observe(name, payload)
            return
        values = (
            _array(body.decode("utf-8", "replace")) if body[:1] == b"[" and body != _DONE else None
        )
        if values is not None:
            for value in values:
                self._observe(name, value)
        elif body:
            self._observe_text(name, data.decode("utf-8", "replace"))

    def _observe(self, name: str | None, payload: Mapping[str, Any]) -> None:
        dialect = self.dialect
        try:
            dialect.observe(name, payload)
            if self.text_length is not None:
                self._measured(dialect.text_length(name, payload))
        except BaseException as error:  # noqa: BLE001 - see `_complain`
            self._failed(dialect, error)
        if isinstance(dialect, Undecided):
            self._decide(dialect)

    def _observe_text(self, name: str | None, text: str) -> None:
        dialect = self.dialect
        try:
            dialect.observe_text(name, text)
            if self.text_length is not None:
                self._measured(dialect.text_length(name, text))
        except BaseException as error:  # noqa: BLE001 - see `_complain`
            self._failed(dialect, error)
        if isinstance(dialect, Undecided):
            self._decide(dialect)

    def _measured(self, length: int | None) -> None:
        """Add the length of a text; as soon as one is unknown, that of them all is."""
        known = self.text_length
        self.text_length = None if known is None or length is None else known + length

    def _failed(self, dialect: Dialect, error: BaseException) -> None:
        self._complain("%s failed on an event", dialect.name, cause=error)
        self.text_length = None

    def _decide(self, dialect: Undecided) -> None:
        """Go on in the dialect that was found, if one was."""
        if dialect.found is None:
            return
        self._speak(dialect.found(self._expected))
        measured = self.text_length is not None
        self._measured(dialect.replay(self.dialect, measured=measured))
        if isinstance(self.dialect, Undecided):
            self._decide(self.dialect)

    def _speak(self, dialect: Dialect) -> None:
        """From now on this reads the stream."""
        self.dialect = dialect
        measured = self.text_length is not None
        self.trigger: Search = anything if measured else self._search_of(dialect)
        # Where nothing else is to be done with an event, it goes to the dialect directly.
        alone = not (measured or isinstance(dialect, Undecided))
        self._direct = dialect.observe if alone else None

    def _search_of(self, dialect: Dialect) -> Search:
        """What its trigger finds; everything, where it cannot be searched in bytes."""
        try:
            search = dialect.trigger.search
            search(b"")
        except BaseException as error:  # noqa: BLE001 - see `_complain`
            self._complain(
                "%s has a trigger that is no pattern of bytes", dialect.name, cause=error
            )
            return anything
        return search

    def _complain(self, message: str, *details: object, cause: BaseException | None = None) -> None:
        """Log the first thing that could not be read: a broken stream may have thousands.

        An item or a dialect may raise anything, an extension in Rust that panics a BaseException: nobody can cancel
        what does not wait, and only what ends the process passes.
        """
        if cause is not None and ends_the_process(cause):
            raise cause
        if not self._complained:
            self._complained = True
            if cause is not None:  # what it says may have the text of a request in it
                message += f" ({type(cause).__name__})"
                logger.debug("what could not be read of a stream", exc_info=cause)
            message += "; further ones of this stream are not reported"
            logger.warning(message, *details, extra=about("stream_unreadable"))


def _array(text: str) -> list[Mapping[str, Any]] | None:
    """The objects in an array; None for `[DONE]`, which begins like one."""
    try:
        values: object = decoded(text)
    except ValueError:
        return None
    return [
        cast("Mapping[str, Any]", value)
        for value in cast("list[object]", values)
        if isinstance(value, dict)
    ]


def _warn_of_compression() -> None:
    logger.warning(
        "a stream is compressed, or binary, and passes through unobserved: its usage stays unknown;"
        " ask the upstream for it uncompressed with the request header 'Accept-Encoding: identity'",
        extra=about("stream_compressed"),
    )
