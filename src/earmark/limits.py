"""What may be used: limits, the usual sets of them, and the scopes that carry them.

All three are values: frozen, hashable, checked when they are made, so that nothing behind them ever meets
a bad number (R12) or a bad key (R13). A limit's state belongs to its `id`: amount and burst are no part of
it, so a changed amount neither forgives nor charges (R17).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, get_args

from earmark.amounts import check_amount
from earmark.frozen import setters
from earmark.usage import TOKEN_METRICS

Algorithm = Literal["fixed_window", "sliding_window", "token_bucket"]

CONCURRENCY: Final = "concurrency"
"""The metric of slots, which are held and not counted."""
REQUESTS: Final = "requests"

MICROSECONDS: Final = 1_000_000
"""A second: inside, all times are whole microseconds."""
MAX_KEY_BYTES: Final = 1024
# A window's end must still be exact in a double, the one number that Lua has.
MAX_WINDOW_US: Final = 2**52

_put: Final = object.__setattr__  # how a frozen value is filled

SECOND: Final = 1
MINUTE: Final = 60
HOUR: Final = 3_600
DAY: Final = 86_400


def to_microseconds(name: str, seconds: object) -> int:
    """Return the whole microseconds nearest to a positive number of seconds (int or float).

    Raises:
        ValueError: not a finite number, below one microsecond, or above 2**52 microseconds.
    """
    # A huge float would overflow on the way to microseconds.
    if (type(seconds) is int or type(seconds) is float) and 0 < seconds <= MAX_WINDOW_US:
        microseconds = round(seconds * MICROSECONDS)
        if 1 <= microseconds <= MAX_WINDOW_US:
            return microseconds
    msg = f"{name} must be a number of seconds, at least 0.000001 and at most 2**52 / 1e6, not {seconds!r}"
    raise ValueError(msg)


def spelled(window: float) -> str:
    """The seconds of a window, exact and without an exponent: "60", "0.5", "2592000"."""
    return f"{window:.6f}".rstrip("0").rstrip(".")


def lease_microseconds(lease: object) -> int:
    """Return a lease in microseconds.

    Raises:
        ValueError: not a number of seconds, or above an hour, for which a reservation is kept unrenewed.
    """
    lease_us = to_microseconds("lease", lease)
    if lease_us > HOUR * MICROSECONDS:
        msg = f"lease must be at most an hour, for which a reservation is kept, not {lease!r} s"
        raise ValueError(msg)
    return lease_us


def check_key(name: str, key: object) -> str:
    """Return `key`, as a plain string, if it is a non-empty one of at most 1,024 bytes of UTF-8 (R13).

    Raises:
        ValueError: anything else.
    """
    if isinstance(key, str) and key:
        key = str.__str__(key)  # an enumeration's member is its value, whatever it shows
        try:
            if len(key.encode()) <= MAX_KEY_BYTES:
                return key
        except UnicodeEncodeError as error:
            msg = f"{name} must be valid Unicode, not {key!r}"
            raise ValueError(msg) from error
    shown = f"{key[:60]!r}… ({len(key)} characters)" if isinstance(key, str) and key else repr(key)
    msg = (
        f"{name} must be a non-empty string of at most {MAX_KEY_BYTES} bytes of UTF-8, not {shown}"
    )
    raise ValueError(msg)


def check_algorithm(algorithm: object) -> Algorithm:
    """Return the name of an algorithm, as a plain string.

    Raises:
        ValueError: there is none of that name.
    """
    for name in get_args(Algorithm):
        if algorithm == name:
            known: Algorithm = name
            return known
    msg = f"algorithm must be one of {', '.join(get_args(Algorithm))}, not {algorithm!r}"
    raise ValueError(msg)


@dataclass(frozen=True, slots=True, repr=False)
class Limit:
    """At most `amount` units of `metric` per `window`, by one algorithm.

    Args:
        metric: `requests`, `tokens`, `input_tokens`, `output_tokens`, `uncached_tokens`,
            `uncached_input_tokens`, `concurrency`, or a name of your own, which is judged where a
            request names it.
        amount: units per window, 0 … 2**53 − 1; 0 admits nothing.
        window: seconds; None for `concurrency`, which has no window.
        algorithm: `fixed_window` (aligned to the clock), `sliding_window` (two weighted windows) or
            `token_bucket` (continuous refill; it may go into debt).
        burst: the capacity of a token bucket, by default `amount`.

    Raises:
        ValueError: a bad amount, window, algorithm or metric, or a burst without a token bucket.
    """

    metric: str
    amount: int
    window: float | None = None
    algorithm: Algorithm = "fixed_window"
    burst: int | None = None

    id: str = field(init=False, compare=False)
    """What the state of this limit is stored under, beside the key: algorithm, window and metric."""
    window_us: int = field(init=False, compare=False)
    """The window in whole microseconds; 0 for concurrency."""
    capacity: int = field(init=False, compare=False)
    """The most that can be used at one moment: the burst of a token bucket, else the amount."""
    unasked: int | None = field(init=False, compare=False)
    """What a request asks that does not name the metric; None: it is neither judged nor counted (R1)."""

    def __post_init__(self) -> None:
        _put(self, "metric", check_key("metric", self.metric))
        check_amount("amount", self.amount)
        _put(self, "algorithm", check_algorithm(self.algorithm))
        capacity = self.amount
        if self.burst is not None:
            if self.algorithm != "token_bucket":
                msg = f"burst belongs to a token_bucket, not to a {self.algorithm} (burst={self.burst!r})"
                raise ValueError(msg)
            check_amount("burst", self.burst)
            capacity = self.burst if self.amount else 0
        _put(self, "capacity", capacity)
        if self.metric == CONCURRENCY:
            if self.window is not None or self.algorithm != "fixed_window":
                msg = "a concurrency limit counts slots: it has neither a window nor an algorithm"
                raise ValueError(msg)
            _put(self, "window_us", 0)
            _put(self, "id", CONCURRENCY)
            _put(self, "unasked", 1)
            return
        window_us = to_microseconds("window", self.window)
        _put(self, "window_us", window_us)
        whole, rest = divmod(window_us, MICROSECONDS)
        _put(self, "window", window_us / MICROSECONDS if rest else whole)
        _put(self, "id", f"{self.algorithm}:{window_us}:{self.metric}")
        _put(
            self,
            "unasked",
            1 if self.metric == REQUESTS else 0 if self.metric in TOKEN_METRICS else None,
        )

    def __repr__(self) -> str:
        parts = [repr(self.metric), repr(self.amount)]
        if self.window is not None:
            parts.append(repr(self.window))
        if self.algorithm != "fixed_window":
            parts.append(repr(self.algorithm))
        if self.burst is not None:
            parts.append(f"burst={self.burst!r}")
        return f"Limit({', '.join(parts)})"


class Limits:
    """The usual limits by their usual names: requests and tokens per second, minute, hour and day.

    The order of the arguments is the order of refusals; limits in `also` refuse last. None means no limit,
    0 admits nothing. Iterating yields every `Limit`.

    Args:
        rps: requests per second.
        rpm: requests per minute.
        rph: requests per hour.
        rpd: requests per day.
        tpm: tokens per minute.
        tph: tokens per hour.
        tpd: tokens per day.
        itpm: input tokens per minute.
        otpm: output tokens per minute.
        concurrency: requests in flight.
        algorithm: of all of these but concurrency.
        also: further limits, of any metric and window.

    Raises:
        ValueError: a bad amount, or two limits with the same metric, window and algorithm.
    """

    __slots__ = ("_hash", "all", "by_metric", "token")

    _hash: int
    all: tuple[Limit, ...]
    """Every limit, in the order of refusals."""
    token: object
    """Stands for these limits where they are looked up for every request: hashing their value costs more."""
    by_metric: Mapping[str, tuple[Limit, ...]]
    """The limits of each metric: what a settlement that names it concerns."""

    def __init__(
        self,
        *,
        rps: int | None = None,
        rpm: int | None = None,
        rph: int | None = None,
        rpd: int | None = None,
        tpm: int | None = None,
        tph: int | None = None,
        tpd: int | None = None,
        itpm: int | None = None,
        otpm: int | None = None,
        concurrency: int | None = None,
        algorithm: Algorithm = "fixed_window",
        also: Iterable[Limit] = (),
    ) -> None:
        check_algorithm(algorithm)
        named = (
            ("rps", REQUESTS, rps, SECOND),
            ("rpm", REQUESTS, rpm, MINUTE),
            ("rph", REQUESTS, rph, HOUR),
            ("rpd", REQUESTS, rpd, DAY),
            ("tpm", "tokens", tpm, MINUTE),
            ("tph", "tokens", tph, HOUR),
            ("tpd", "tokens", tpd, DAY),
            ("itpm", "input_tokens", itpm, MINUTE),
            ("otpm", "output_tokens", otpm, MINUTE),
        )
        limits = [
            Limit(metric, check_amount(name, amount), window, algorithm)
            for name, metric, amount, window in named
            if amount is not None
        ]
        if concurrency is not None:
            limits.append(Limit(CONCURRENCY, check_amount(CONCURRENCY, concurrency)))
        for limit in also:
            if not isinstance(limit, Limit):
                msg = f"also takes limits, not {limit!r}"
                raise TypeError(msg)
            limits.append(limit)
        seen: dict[str, Limit] = {}
        for limit in limits:
            twin = seen.setdefault(limit.id, limit)
            if twin is not limit:
                msg = (
                    f"two limits with the same metric, window and algorithm: {twin!r} and {limit!r}"
                )
                raise ValueError(msg)
        _put(self, "all", tuple(limits))
        _put(self, "token", object())
        metrics = {limit.metric for limit in limits}
        by_metric = {
            metric: tuple(limit for limit in limits if limit.metric == metric) for metric in metrics
        }
        _put(self, "by_metric", MappingProxyType(by_metric))

    def __setattr__(self, name: str, value: object) -> None:
        msg = f"Limits are frozen: cannot set {name}"
        raise AttributeError(msg)

    def __delattr__(self, name: str) -> None:
        msg = f"Limits are frozen: cannot delete {name}"
        raise AttributeError(msg)

    def __iter__(self) -> Iterator[Limit]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def __eq__(self, other: object) -> bool:
        return self.all == other.all if isinstance(other, Limits) else NotImplemented

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:  # looked up for every request, mostly that of the same object
            _put(self, "_hash", hash(self.all))
            return self._hash

    def __reduce__(self) -> tuple[object, tuple[tuple[Limit, ...]]]:
        return _limits, (self.all,)

    def __repr__(self) -> str:
        return f"Limits({', '.join(map(repr, self.all))})"


def _limits(limits: tuple[Limit, ...]) -> Limits:
    """Rebuild pickled or copied `Limits`, in their order."""
    return Limits(also=limits)


@dataclass(frozen=True, slots=True, init=False)
class Scope:
    """A key ("api_key:alice", "model:gpt-4o") with its limits. A request names one or more.

    Args:
        key: any non-empty string of at most 1,024 bytes of UTF-8.
        limits: what the key may use.
        enforce: False counts and reports (`LimitStatus.would_refuse`) and never refuses: how limits are
            rolled out.

    Raises:
        ValueError: a bad key.
        TypeError: `limits` is not `Limits`.
    """

    key: str
    limits: Limits
    enforce: bool = True

    # Made for every request, hence written out: a generated one takes twice as long.
    def __init__(self, key: str, limits: Limits, enforce: bool = True) -> None:  # noqa: FBT001, FBT002
        if not (type(key) is str and 0 < len(key) <= MAX_KEY_BYTES and key.isascii()):
            key = check_key("key", key)
        if type(enforce) is not bool:
            msg = f"enforce must be True or False, not {enforce!r}"
            raise ValueError(msg)
        if type(limits) is not Limits:
            msg = f"limits must be Limits, not {limits!r}"
            raise TypeError(msg)
        _put_key(self, key)
        _put_limits(self, limits)
        _put_enforce(self, enforce)


_put_key, _put_limits, _put_enforce = setters(Scope)
