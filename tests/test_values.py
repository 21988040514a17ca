"""The values: frozen, hashable, readable, and no bad input gets past them (R12, R13)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

import earmark
from earmark import (
    BackendUnavailable,
    Denial,
    EarmarkError,
    Limit,
    Limiter,
    Limits,
    LimitStatus,
    RateLimited,
    Refused,
    RequestIdConflict,
    Scope,
    ScopeStatus,
    Usage,
)

TOP = 2**53 - 1
NAMED = ["rps", "rpm", "rph", "rpd", "tpm", "tph", "tpd", "itpm", "otpm", "concurrency"]
# R12: "anything else (bool, float, NaN, negative, more) is a clear error".
NO_AMOUNTS = [True, False, 1.0, 1.5, float("nan"), float("inf"), -1, 2**53, 10**30, "5", b"5", [5]]
NO_WINDOWS = [
    0,
    -1,
    -0.5,
    0.0000004,
    0.0,
    float("nan"),
    float("inf"),
    True,
    "60",
    None,
    2**60,
    1e300,
]
NO_KEYS = ["", "\ud800", "a\udfff", "k" * 1_025, "é" * 513, "🙂" * 257]

VALUES = [
    Limit("tokens", 100, 60),
    Limit("images", 5, 0.25, "token_bucket", burst=7),
    Limits(rpm=60, tpm=90_000, concurrency=4),
    Limits(rpm=60, algorithm="sliding_window", also=(Limit("images", 5, 10),)),
    Limits(),
    Scope("api_key:alice", Limits(rpm=60)),
    Scope("api_key:alice", Limits(rpm=60), enforce=False),
    Usage(
        900,
        150,
        cached_input_tokens=800,
        cache_write_tokens=5,
        reasoning_tokens=40,
        reported_total=1_050,
    ),
    Usage(),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_are_frozen(value: Any) -> None:
    """No attribute can be set, added or deleted."""
    for name in [*getattr(value, "__slots__", ()), "another"]:
        with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
            setattr(value, name, 1)
        with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
            delattr(value, name)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_are_hashable_and_equal_by_value(value: Any) -> None:
    """A copy, shallow, deep or through pickle, is equal, hashes alike and reads alike."""
    twins = [copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))]  # noqa: S301
    for twin in twins:
        assert twin == value
        assert hash(twin) == hash(value)
        assert repr(twin) == repr(value)
    assert len({value, *twins}) == 1
    assert value != "another"
    assert sum(value == other for other in VALUES) == 1


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_carry_no_dict(value: Any) -> None:
    """They are slotted: cheap to build and to keep."""
    assert not hasattr(value, "__dict__")


def test_reprs_say_what_was_given() -> None:
    """A repr names the type and every value that matters."""
    assert repr(Limit("tokens", 100, 60)) == "Limit('tokens', 100, 60)"
    bucket = repr(Limit("images", 5, 0.25, "token_bucket", burst=7))
    assert all(part in bucket for part in ("images", "5", "0.25", "token_bucket", "burst=7"))
    assert repr(Limits(rpm=60, concurrency=4)).startswith("Limits(")
    shown = repr(Scope("api_key:alice", Limits(rpm=61), enforce=False))
    assert all(part in shown for part in ("Scope(", "'api_key:alice'", "61", "enforce=False"))
    assert "input_tokens=900" in repr(Usage(900, 150))


def test_values_are_hashed_by_their_parts() -> None:
    """Windows 60 and 60.0 are one limit; anything else that differs makes another value."""
    assert Limit("tokens", 100, 60) == Limit("tokens", 100, 60.0)
    assert hash(Limit("tokens", 100, 60)) == hash(Limit("tokens", 100, 60.0))
    assert Limits(tpm=100) == Limits(also=(Limit("tokens", 100, 60.0),))
    different = {
        Limit("tokens", 100, 60),
        Limit("tokens", 101, 60),
        Limit("tokens", 100, 61),
        Limit("input_tokens", 100, 60),
        Limit("tokens", 100, 60, "sliding_window"),
        Limit("tokens", 100, 60, "token_bucket"),
        Limit("tokens", 100, 60, "token_bucket", 50),
    }
    assert len(different) == 7
    assert Scope("a", Limits()) != Scope("a", Limits(), enforce=False)


def test_a_limit_of_each_kind() -> None:
    """What may be given: any amount, any window from a microsecond on, and a burst for a bucket."""
    assert Limit("tokens", 0, 60).amount == 0
    assert Limit("tokens", TOP, 60).amount == TOP
    assert Limit("tokens", 1, 0.000001).window == 0.000001
    assert Limit("tokens", 1, 1 / 3).window == pytest.approx(0.333333, abs=1e-12)
    bucket = Limit("tokens", 100, 60, "token_bucket", burst=0)
    assert (bucket.algorithm, bucket.burst) == ("token_bucket", 0)
    plain = Limit("tokens", 100, 60)
    assert (plain.metric, plain.amount, plain.window, plain.algorithm, plain.burst) == (
        "tokens",
        100,
        60,
        "fixed_window",
        None,
    )


@pytest.mark.parametrize("bad", NO_AMOUNTS, ids=repr)
def test_r12_what_is_no_amount(bad: Any) -> None:
    """R12: amounts are integers, 0 to 2**53 - 1: the error names the argument and shows what was given."""
    builds: list[tuple[Callable[..., object], dict[str, Any], str]] = [
        (Limit, {"metric": "tokens", "amount": bad, "window": 60}, "amount"),
        (
            Limit,
            {"metric": "x", "amount": 5, "window": 6, "algorithm": "token_bucket", "burst": bad},
            "burst",
        ),
        *((Limits, {name: bad}, name) for name in NAMED),
        *((Usage, {name: bad}, name) for name in Usage.__slots__),
    ]
    for build, arguments, name in builds:
        with pytest.raises((ValueError, TypeError), match=rf"^{name} must be .* not ") as caught:
            build(**arguments)
        assert repr(bad) in str(caught.value)


@pytest.mark.parametrize("bad", NO_WINDOWS, ids=repr)
def test_r12_what_is_no_window(bad: Any) -> None:
    """A window is a finite number of seconds, at least a microsecond."""
    with pytest.raises(ValueError, match=r"^window must be .* not ") as caught:
        Limit("tokens", 5, bad)
    assert repr(bad) in str(caught.value)


def test_a_limit_without_a_window() -> None:
    """Only concurrency has no window."""
    with pytest.raises((ValueError, TypeError), match="window"):
        Limit("tokens", 5)  # type: ignore[call-arg,unused-ignore]


@pytest.mark.parametrize("bad", ["", "fixed", "FIXED_WINDOW", "leaky_bucket", None, 3])
def test_an_unknown_algorithm_lists_the_known_ones(bad: Any) -> None:
    """The error says what was given and what would be right."""
    for build in (lambda: Limit("tokens", 5, 60, bad), lambda: Limits(rpm=5, algorithm=bad)):
        with pytest.raises(
            ValueError, match=r"fixed_window.*sliding_window.*token_bucket"
        ) as caught:
            build()
        assert repr(bad) in str(caught.value)


def test_an_unknown_algorithm_is_an_error_even_where_nothing_uses_it() -> None:
    """A misspelt word never waits for the first limit to be noticed."""
    with pytest.raises(ValueError, match="token_bucket"):
        Limits(algorithm="leaky")  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window"])
def test_burst_belongs_to_a_token_bucket(algorithm: Any) -> None:
    """`burst` elsewhere is a ValueError that says so."""
    with pytest.raises(ValueError, match=r"burst.*token_bucket"):
        Limit("tokens", 5, 60, algorithm, burst=5)


@pytest.mark.parametrize("bad", ["", "\ud800", None, 5, b"tokens"])
def test_a_metric_is_a_name(bad: Any) -> None:
    """An empty or unencodable metric, or one that is no string."""
    with pytest.raises((ValueError, TypeError), match="metric"):
        Limit(bad, 5, 60)


def test_limits_are_named_by_keyword() -> None:
    """Sixty of what? Limits(60) does not exist."""
    with pytest.raises(TypeError):
        Limits(60)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="rpn"):
        Limits(rpn=60)  # type: ignore[call-arg]


@pytest.mark.parametrize("bad", [5, "tokens", [5], Limits(rpm=1), (Limits(rpm=1),)], ids=repr)
def test_also_takes_limits(bad: Any) -> None:
    """What is no Limit is shown."""
    if isinstance(bad, Limits):
        assert Limits(also=bad) == bad  # Limits are an iterable of Limit
        return
    with pytest.raises(TypeError):
        Limits(also=bad)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Limits(tpm=100, also=(Limit("tokens", 5, 60),)),
        lambda: Limits(tpm=100, also=(Limit("tokens", 5, 60.0),)),
        lambda: Limits(also=(Limit("images", 5, 7), Limit("images", 6, 7))),
        lambda: Limits(
            rpm=1, algorithm="token_bucket", also=(Limit("requests", 1, 60, "token_bucket", 9),)
        ),
        lambda: Limits(also=(Limit("tokens", 5, 0.3333333), Limit("tokens", 5, 0.333333))),
    ],
)
def test_two_limits_alike_in_one_scope(build: Any) -> None:
    """The same metric, window and algorithm twice: amount and burst make no difference."""
    with pytest.raises(ValueError, match="same metric, window and algorithm"):
        build()


def test_two_limits_that_differ_in_one_of_the_three_stand_together() -> None:
    """Another metric, window or algorithm is another limit."""
    Limits(
        tpm=100,
        tph=100,
        itpm=100,
        also=(
            Limit("tokens", 100, 60, "sliding_window"),
            Limit("tokens", 100, 60, "token_bucket"),
            Limit("tokens", 100, 60.000001),
        ),
    )


@pytest.mark.parametrize("bad", NO_KEYS, ids=ascii)
def test_r13_what_is_no_key(bad: str) -> None:
    """R13: a key is a non-empty string of at most 1,024 bytes of UTF-8."""
    with pytest.raises(ValueError, match=r"^key must be"):
        Scope(bad, Limits())


@pytest.mark.parametrize("bad", [None, 5, b"key", ("a",), True], ids=repr)
def test_r13_a_key_is_a_string(bad: Any) -> None:
    """What is no string is shown."""
    with pytest.raises((ValueError, TypeError), match=r"^key must be") as caught:
        Scope(bad, Limits())
    assert repr(bad) in str(caught.value)


@pytest.mark.parametrize(
    "key", ["k", " ", "\0", "a\nb", "{}", "%", ":", "k" * 1_024, "é" * 512, "🙂" * 256], ids=ascii
)
def test_r13_any_other_string_is_a_key(key: str) -> None:
    """R13: whatever it contains, up to exactly 1,024 bytes."""
    assert Scope(key, Limits()).key == key


@pytest.mark.parametrize("bad", [None, {"rpm": 5}, (Limit("tokens", 5, 60),), 60], ids=repr)
def test_a_scope_has_limits(bad: Any) -> None:
    """An object of a wrong type altogether is a TypeError that shows it."""
    with pytest.raises(TypeError, match="limits must be Limits"):
        Scope("key", bad)


# Usage


@pytest.mark.parametrize(
    ("usage", "total", "determined"),
    [
        (Usage(), None, {}),
        (Usage(900, 150), 1_050, {"tokens": 1_050, "input_tokens": 900, "output_tokens": 150}),
        (Usage(900), None, {"input_tokens": 900}),
        (Usage(output_tokens=150), None, {"output_tokens": 150}),
        (Usage(reported_total=70), 70, {"tokens": 70}),
        (Usage(900, reported_total=1_000), 1_000, {"tokens": 1_000, "input_tokens": 900}),
        (
            Usage(900, 150, reported_total=2_000),
            1_050,
            {"tokens": 1_050, "input_tokens": 900, "output_tokens": 150},
        ),
        (
            Usage(900, 150, cached_input_tokens=800),
            1_050,
            {
                "tokens": 1_050,
                "input_tokens": 900,
                "output_tokens": 150,
                "uncached_tokens": 250,
                "uncached_input_tokens": 100,
            },
        ),
        (
            Usage(0, 0),
            0,
            {
                "tokens": 0,
                "input_tokens": 0,
                "output_tokens": 0,
                "uncached_tokens": 0,
                "uncached_input_tokens": 0,
            },
        ),
        (Usage(0), None, {"input_tokens": 0, "uncached_input_tokens": 0}),
        (
            Usage(900, cached_input_tokens=0),
            None,
            {"input_tokens": 900, "uncached_input_tokens": 900},
        ),
    ],
)
def test_a_usage_determines_what_its_known_fields_do(
    usage: Usage, total: int | None, determined: dict[str, int]
) -> None:
    """R6: total is input + output where both are known, else the provider's own; unknown is never 0."""
    assert usage.total == total
    assert dict(usage.determined()) == determined


def test_a_usage_saturates() -> None:
    """R12: sums stay at 2**53 - 1."""
    assert Usage(TOP, TOP).total == TOP


# Errors


def test_the_tree_of_errors() -> None:
    """EarmarkError ← Refused ← RateLimited; BackendUnavailable; RequestIdConflict."""
    assert issubclass(RateLimited, Refused)
    for error in (Refused, BackendUnavailable, RequestIdConflict):
        assert issubclass(error, EarmarkError)
        assert not issubclass(error, ValueError)
    assert not issubclass(BackendUnavailable, Refused)
    assert not issubclass(RequestIdConflict, Refused)
    assert issubclass(EarmarkError, Exception)


DENIAL = Denial("api_key:alice", Limit("tokens", 100, 60), 80, 30, 12.5, 12.5)


def test_a_refusal_reads_well_and_travels() -> None:
    """Its text names key, limit, figures and time; a pickled or copied one carries the same data."""
    error = RateLimited((DENIAL,))
    assert (error.retry_after, error.retryable, error.denials) == (12.5, True, (DENIAL,))
    assert all(
        part in str(error) for part in ("api_key:alice", "tokens", "100", "80", "30", "12.5")
    )
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert (twin.retry_after, twin.retryable, twin.denials) == (12.5, True, (DENIAL,))
        assert str(twin) == str(error)


def test_the_tightest_limit_of_a_metric() -> None:
    """`scope_status[metric]` is the smallest `remaining`, on a tie the first; no such metric: KeyError."""
    statuses = tuple(
        LimitStatus(Limit("tokens", amount, window), amount - left, left, 1.0, False)
        for amount, window, left in ((100, 60, 50), (900, 3_600, 20), (500, 86_400, 20))
    )
    status = ScopeStatus("key", statuses)
    assert status["tokens"] is statuses[1]
    with pytest.raises(KeyError, match="requests"):
        status["requests"]


@pytest.mark.parametrize(
    "value", [DENIAL, LimitStatus(Limit("tokens", 1, 60), 0, 1, 60.0, False)], ids=repr
)
def test_answers_are_frozen_values(value: Any) -> None:
    """Denials and statuses are frozen and hashable, as every other value."""
    assert hash(copy.copy(value)) == hash(value)
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        value.used = 5


def test_public_names() -> None:
    """What DESIGN names is importable from the package's own face."""
    names = (
        *(
            "Limiter",
            "Limit",
            "Limits",
            "Scope",
            "Usage",
            "Reservation",
            "MemoryBackend",
            "observe_stream",
        ),
        *("EarmarkError", "Refused", "RateLimited", "BackendUnavailable", "RequestIdConflict"),
        *("ScopeStatus", "LimitStatus", "Denial"),
    )
    for name in names:
        assert getattr(earmark, name).__name__ == name
    assert Limiter is earmark.Limiter
