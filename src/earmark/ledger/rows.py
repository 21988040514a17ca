"""What the rows of a ledger's tables say, and what they are made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from earmark.ledger.charge import Charge, Resolution
from earmark.ledger.judging import Sums
from earmark.ledger.periods import Interval
from earmark.prices import Price
from earmark.usage import Usage


class Held(NamedTuple):
    """What a pending row says, or what is known of a charge that has none."""

    request_id: str
    reservation: str
    key: str
    keys: Sequence[str]
    model: str | None
    currency: str
    amount: int
    price: Price | None
    metadata: str | None
    at: int


def pending_row(charge: Charge, expires: int) -> dict[str, Any]:
    """What is pending for a charge."""
    return {
        "request_id": charge.request_id,
        "reservation": charge.reservation,
        "key": charge.key,
        "counts_in": json.dumps(charge.keys),
        "model": charge.model,
        "currency": charge.currency,
        "amount": charge.amount,
        "askers": charge.asker,
        "price": written_price(charge.price),
        "metadata": charge.metadata,
        "at_us": charge.at,
        "expires_us": expires,
    }


def held_of(row: Any) -> Held:  # noqa: ANN401 - a row
    """What a pending row says."""
    return Held(
        row.request_id,
        row.reservation,
        row.key,
        json.loads(row.counts_in),
        row.model,
        row.currency,
        row.amount,
        read_price(row.price),
        row.metadata,
        row.at_us,
    )


def written_price(price: Price | None) -> str | None:
    """As a row has it."""
    return None if price is None else price.write()


def read_price(text: str | None) -> Price | None:
    """What a row has."""
    return None if text is None else Price.read(text)


def adopt(charge: Charge, held: Held) -> None:
    """Have a charge be what was pending under its request id before (R9)."""
    charge.reservation, charge.at, charge.price = held.reservation, held.at, held.price
    charge.key, charge.metadata = held.key, held.metadata
    charge.adopted = True


def held_by(charge: Charge) -> Held:
    """What is known of a charge that no pending row is of."""
    return Held(
        charge.request_id,
        charge.reservation,
        charge.key,
        charge.keys,
        charge.model,
        charge.currency,
        charge.amount,
        charge.price,
        charge.metadata,
        charge.at,
    )


def held_of_entry(row: Any, keys: Sequence[str]) -> Held:  # noqa: ANN401 - a row
    """What an entry of the log says of a request that holds nothing any more."""
    return Held(
        row.request_id,
        row.reservation,
        row.key,
        keys,
        row.model,
        row.currency,
        0,
        None,
        None,
        row.at_us,
    )


def entry_row(held: Held, told: Resolution | None, price: Price | None, now: int) -> dict[str, Any]:
    """What every entry of the log says."""
    bill = None if told is None else told.bill
    return {
        "request_id": held.request_id,
        "reservation": held.reservation,
        "key": held.key,
        "model": (None if bill is None else bill.model) or held.model,
        **token_columns(told),
        "currency": held.currency,
        "price_version": None if price is None else price.version,
        "price": None,
        "at_us": held.at,
        "resolved_us": now,
        "metadata": held.metadata,
    }


def token_columns(told: Resolution | None) -> dict[str, int | None]:
    """The tokens of an entry: unknown ones are none, never 0 (B62)."""
    bill = None if told is None else told.bill
    usage = (None if bill is None else bill.usage) or Usage()
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "reported_total": usage.reported_total,
    }


def total_row(key: str, currency: str, interval: Interval, sums: Sums) -> dict[str, Any]:
    """What a key has in an interval."""
    return {
        "key": key,
        "currency": currency,
        "starts_us": interval.starts,
        "ends_us": interval.ends,
        "posted": sums.posted,
        "pending": sums.pending,
        "begun": 0,
    }
