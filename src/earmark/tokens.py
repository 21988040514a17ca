"""Reservations that travel: a gateway admits, a worker in another process settles.

A token names a reservation and says what was asked of which limits, so that whoever has it can resolve it, in any
process that uses the same store. It is text for a message queue or a header: what it says can be read by anybody, and
a limiter that was given a secret signs it (HMAC-SHA256, RFC 2104) and takes no other.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Final

from earmark.core.hold import Hold
from earmark.core.notation import read_amounts, read_scope, write_amounts, write_scope
from earmark.ids import id_of, name_of

_VERSION: Final = "earmark1"


class Tokens:
    """Makes and reads the tokens of one limiter.

    Args:
        secret: what they are signed with; None: they are not.
        store: the name of the store that knows the reservations.
    """

    __slots__ = ("_secret", "_store")

    def __init__(self, secret: str | bytes | None, store: str) -> None:
        if secret is not None and (type(secret) not in {str, bytes} or not secret):
            msg = f"secret must be a non-empty str or bytes, not {type(secret).__name__}"
            raise ValueError(msg)
        self._secret = secret.encode() if isinstance(secret, str) else secret
        self._store = store

    def write(self, hold: Hold, *, limited: bool) -> str:
        """The token of a reservation.

        Args:
            hold: its record.
            limited: whether the store knows of it.
        """
        said = [
            self._store,
            name_of(hold.id),
            hold.request_id,
            getattr(hold, "place", None),
            int(limited),
            write_amounts(hold.asks),
            *map(write_scope, hold.scopes),
        ]
        text = _encode(json.dumps(said, separators=(",", ":")).encode())
        return f"{_VERSION}.{text}.{self._signature(text)}"

    def read(self, token: str) -> tuple[Hold, bool]:
        """The reservation that a token names, and whether the store knows of it.

        Raises:
            ValueError: it is no token, was made by another store, or is not signed with this secret.
        """
        version, _, rest = token.partition(".")
        text, _, signature = rest.partition(".")
        if version != _VERSION or not text:
            msg = f"expected a reservation's token, not {token[:40]!r}"
            raise ValueError(msg)
        if not hmac.compare_digest(signature.encode(), self._signature(text).encode()):
            msg = "this token is forged, or was signed with another secret than this limiter's"
            raise ValueError(msg)
        try:
            said = json.loads(_decode(text))
            store, name, request_id, place, limited, asks, *scopes = said
            hold = Hold()
            hold.id = id_of(name) or name
            hold.request_id = request_id
            hold.asks = read_amounts(asks)
            hold.scopes = tuple(map(read_scope, scopes))
            hold.lease_us = None
            hold.travels = True
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            msg = f"this token is damaged: {error}"
            raise ValueError(msg) from error
        if store != self._store:
            msg = (
                f"this token belongs to the store {store!r}, and this limiter uses {self._store!r}"
            )
            raise ValueError(msg)
        if place is not None:
            self._check_here(name)
            hold.place = place
        return hold, bool(limited)

    @staticmethod
    def _check_here(name: str) -> None:
        if id_of(name) is None:
            msg = "this reservation was taken in the memory of another process, which alone can resolve it"
            raise ValueError(msg)

    def _signature(self, text: str) -> str:
        if self._secret is None:
            return ""
        return _encode(hmac.digest(self._secret, text.encode(), hashlib.sha256))


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
