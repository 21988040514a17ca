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
from typing import Any, Final, get_args

from earmark.amounts import check_amount
from earmark.asks import check_scopes
from earmark.core.hold import Hold, Place
from earmark.core.notation import read_amounts, read_scope, write_amounts, write_scope
from earmark.ids import id_of, is_name, name_of
from earmark.limits import Scope, check_key

_VERSION: Final = "earmark1"

# What is added to a token's word about the store where a ledger knows of the reservation as well.
_SPENDS: Final = 2


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

        Raises:
            RuntimeError: its money was admitted without the ledger, so that nobody else can post it.
        """
        charge: Any = getattr(hold, "charge", None)
        if charge is not None and charge.unsaid:
            msg = (
                "the ledger has not heard of this reservation yet: only this process can resolve it"
            )
            raise RuntimeError(msg)
        said = [
            self._store,
            name_of(hold.id),
            hold.request_id,
            getattr(hold, "place", None),
            int(limited) + _SPENDS * hasattr(hold, "charge"),
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
        if not hmac.compare_digest(_bytes(signature), self._signature(text).encode()):
            msg = "this token is forged, or was signed with another secret than this limiter's"
            raise ValueError(msg)
        try:
            store, hold, limited = _read(_decode(text))
        except _DAMAGES as error:
            msg = f"this token is damaged: {error}"
            raise ValueError(msg) from error
        if store != self._store:
            msg = (
                f"this token belongs to the store {store!r}, and this limiter uses {self._store!r}"
            )
            raise ValueError(msg)
        if hold.degraded and not isinstance(hold.id, int):
            msg = "this reservation was taken in the memory of another process, which alone can resolve it"
            raise ValueError(msg)
        return hold, limited

    def _signature(self, text: str) -> str:
        if self._secret is None:
            return ""
        return _encode(hmac.digest(self._secret, _bytes(text), hashlib.sha256))


# What reading something else may raise: too large a number, and lists in lists without end, among them.
_DAMAGES: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


def _read(raw: bytes) -> tuple[str, Hold, bool]:
    """What a token says: the store's name, the reservation, and whether the store knows of it.

    Raises one of `_DAMAGES` where a part is not what `write` makes of it: what is read goes to a store together with
    what others send.
    """
    store, name, request_id, place, limited, asks, *scopes = json.loads(raw)
    _expect("the store", isinstance(store, str))
    _expect("the name", isinstance(name, str) and is_name(name))
    _expect("the place", place is None or place in get_args(Place))
    _expect("what the store knows", limited in {0, 1, 2, 3})
    hold = Hold()
    hold.id = id_of(name) or name
    hold.request_id = None if request_id is None else check_key("request_id", request_id)
    hold.asks = {
        check_key("metric", metric): check_amount(metric, amount)
        for metric, amount in read_amounts(asks).items()
    }
    hold.scopes = tuple(map(_scope, scopes))
    is_limited = check_scopes(hold.scopes)
    _expect("what is limited", is_limited or not limited % _SPENDS)
    hold.lease_us = None
    hold.travels = True
    if place is not None:
        hold.place = place
    if limited >= _SPENDS:
        hold.charge = None  # which the ledger knows
    return store, hold, bool(limited % _SPENDS)


def _scope(written: Any) -> Scope:  # noqa: ANN401 - whatever stands there
    _expect("a scope", type(written) is list)
    return read_scope(written)


def _expect(part: str, found: object) -> None:
    if not found:
        msg = f"{part} is not one"
        raise ValueError(msg)


def _bytes(text: str) -> bytes:
    """Those of anything that may come as a token, which need not be valid Unicode."""
    return text.encode(errors="surrogatepass")


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
