"""Keeping the usage-only event from a client that did not ask for it (B64).

A gateway turns usage on in the outgoing request, so that it can count, and the client gets what it would
have got without: one event is missing, and not another byte changes. An event may come in pieces, so the
beginning of one is held back until the rest is here, as far as a usage report can be long. Bytes are cut
where events end and nowhere else; a piece in which nothing is hidden goes on as the object that it was.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final, TypeVar, cast

from earmark.streams.jsontext import loaded
from earmark.streams.loops import ends_the_process
from earmark.streams.observed import Observed, ObservedStream
from earmark.streams.payloads import event_of
from earmark.streams.sse import SSEFramer
from earmark.streams.watcher import Watcher

logger = logging.getLogger("earmark.streams")

T = TypeVar("T")

# Far more than the longest report.
_MAX_HELD: Final = 16 * 1024

# The end of a line and a blank line. Atomic: a CRLF is never taken for two line ends.
_EVENT_END: Final = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")
_LINE_END: Final = b"\r\n"


class HidingStream(ObservedStream[T]):
    """Passes on what a stream gives, without the event that has nothing but the usage.

    Args:
        inner: the stream.
        watcher: what watches it, and so knows its dialect.
    """

    __slots__ = ("_failure", "_hider", "_inner", "_waiting")

    def __init__(self, inner: ObservedStream[T], watcher: Watcher) -> None:
        self._inner = inner
        self._hider = Hider(watcher)
        self._failure: Exception | None = None
        self._waiting = False

    async def __anext__(self) -> T:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._waiting:
            return await anext(self._inner)  # which refuses
        self._waiting = True
        try:
            while True:
                try:
                    item = await anext(self._inner)
                except Exception as error:
                    rest = self._hider.rest()
                    if rest is None:
                        raise
                    # What was held back comes first, then the end or the error.
                    self._failure = error
                    return cast("T", rest)
                shown = self._hider.shown(item)
                if shown is not None:
                    return cast("T", shown)
        finally:
            self._waiting = False

    async def aclose(self) -> None:
        """Close the stream within."""
        self._failure = None
        await self._inner.aclose()

    @property
    def observed(self) -> Observed:
        """What is known of the stream within."""
        return self._inner.observed


class Hider:
    """Takes the usage-only event out of the items of one stream.

    Args:
        watcher: what has seen each item before, and so knows the framing and the dialect.
    """

    __slots__ = ("_after_hidden", "_held", "_passing", "_text", "_watcher")

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._held = b""
        self._passing = False
        self._after_hidden = False
        self._text = False

    def shown(self, item: object) -> object | None:
        """What is to be passed on of an item, or None where that is nothing."""
        if isinstance(item, str):
            piece, self._text = item.encode("utf-8", "surrogatepass"), True
        else:
            raw = _bytes_of(item)
            if raw is None:
                return None if self._is_report(item) else item
            piece, self._text = raw, False
        held = self._held
        out = self._cut(held + piece, max(len(held) - 3, 0))
        if not held and out == piece:
            return item
        return self._as_it_came(out)

    def rest(self) -> object | None:
        """What was held back, once no more comes."""
        out, self._held = self._held, b""
        # The last event may lack its blank line.
        return None if self._is_raw_report(out + b"\n\n") else self._as_it_came(out)

    def _as_it_came(self, out: bytes) -> object | None:
        if not out:
            return None
        return out.decode("utf-8", "surrogatepass") if self._text else out

    def _cut(self, body: bytes, searched: int) -> bytes:
        """What is to be passed on of the bytes that are here; the rest is held."""
        self._held = b""
        if self._watcher.kind in ("json", "opaque"):
            return body
        if self._after_hidden and body:
            self._after_hidden = False
            if body.startswith(b"\n"):
                body = body[1:]
        out: list[bytes] = []
        while body:
            if not self._passing:
                blank = len(body) - len(body.lstrip(_LINE_END))
                out.append(body[:blank])
                body, searched = body[blank:], max(searched - blank, 0)
            end = _EVENT_END.search(body, searched)
            if end is None:
                break
            event, body, searched = body[: end.end()], body[end.end() :], 0
            if self._passing or not self._is_raw_report(event):
                out.append(event)
            else:
                # A CRLF may have been cut after its CR: the second half goes as well.
                self._after_hidden = event.endswith(b"\r") and not body
            self._passing = False
        if self._passing or len(body) > _MAX_HELD:
            self._passing = True
            tail = len(body.rstrip(_LINE_END))
            out.append(body[:tail])
            body = body[tail:]
        self._held = body
        return b"".join(out)

    def _is_raw_report(self, event: bytes) -> bool:
        dialect = self._watcher.dialect
        if self._watcher.trigger(event) is None:
            return False
        try:
            found = [
                dialect.only_usage(name, loaded(data))
                for name, data, _ in SSEFramer(_MAX_HELD).feed(event)
            ]
        except BaseException as error:
            if ends_the_process(error):
                raise
            return False  # what cannot be read is passed on
        return bool(found) and all(found)

    def _is_report(self, item: object) -> bool:
        try:
            name, payload = event_of(item) or (None, "")
            if isinstance(payload, str):
                payload = cast("dict[str, Any]", loaded(payload))
            return self._watcher.dialect.only_usage(name, payload)
        except BaseException as error:
            if ends_the_process(error):
                raise
            return False


def _bytes_of(item: object) -> bytes | None:
    """The bytes that an item is, in whatever it holds them; None where it is no piece of a body."""
    if isinstance(item, memoryview):
        return cast("memoryview[int]", item).tobytes()
    return bytes(item) if isinstance(item, (bytes, bytearray)) else None
