"""What is money, what is a budget, and what a request may mean to spend: values that say what is wrong with them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earmark import Usage
from earmark.core.money import MAX_NANO, NANO, decimal_of, limit_of, nano_of
from earmark.ledger import Budget, Ledger, LiteLLMPrices, Spend, Standing

D = Decimal


@pytest.mark.parametrize(
    ("amount", "nano"),
    [
        (D("10.00"), 10 * NANO),
        (0, 0),
        (7, 7 * NANO),
        (D("0.0000007"), 700),
        (D("0.0000000001"), 1),  # a cost is rounded up: nothing used is free
        (D("1.0000000001"), NANO + 1),
        (D("9223372036.854775807"), MAX_NANO),
        (D("1E-25"), 1),
        (D(1) / 3, 333_333_334),
        (D("1." + "1" * 70), 1_111_111_112),
    ],
)
def test_b59_money_is_whole_nano_units(amount: Decimal | int, nano: int) -> None:
    """B59: exact, and rounded up where it is finer."""
    assert nano_of("cost", amount) == nano


@pytest.mark.parametrize(
    "amount",
    [
        *(1.5, "1", None, True, D("NaN"), D("Infinity"), D(-1), D("-0.1")),
        *(D("9223372036.854775808"), D("1E+400"), D("1E+4000"), D("1E-4000")),
    ],
)
def test_r12_what_is_no_money_is_an_error(amount: Any) -> None:
    """R12: not a Decimal, not finite, negative, or more than a database's integer holds: before anything changes."""
    with pytest.raises(ValueError, match="cost must be"):
        nano_of("cost", amount)
    with pytest.raises(ValueError, match="limit must be"):
        Budget("k", amount, "daily") if amount is not None else limit_of("limit", amount)


@pytest.mark.parametrize("limit", ["0.0000001", "0.00000199", "1.0000001"])
def test_b59_a_limit_finer_than_a_micro_unit_is_an_error(limit: str) -> None:
    """B59: it is never rounded to "no limit"."""
    with pytest.raises(ValueError, match="micro-units"):
        Budget("k", D(limit), "daily")
    assert Budget("k", D("0.00001"), "daily").limit_nano == 10_000


@given(st.integers(-MAX_NANO, MAX_NANO))
def test_money_is_told_as_it_is_kept(nano: int) -> None:
    """Nano-units and back."""
    told = decimal_of(nano)
    assert told * NANO == nano
    if nano >= 0:
        assert nano_of("cost", told) == nano


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", D(1), "daily"), "key"),
        (("k" * 1_025, D(1), "daily"), "key"),
        (("k", D(1), "yearly"), "period"),
        (("k", D(1), "daily", "Mars/Olympus"), "zone"),
        (("k", D(1), "daily", ""), "zone"),
        (("k", D(1), "daily", "../etc"), "zone"),
        (("k", D(1), "daily", "UTC", ""), "currency"),
        (("k", D(1), "daily", "UTC", "U S"), "currency"),
    ],
)
def test_a_budget_says_what_is_wrong(arguments: tuple[Any, ...], message: str) -> None:
    """R13: a bad key, period, zone or currency."""
    with pytest.raises(ValueError, match=message):
        Budget(*arguments)


def test_a_spend_says_what_is_wrong() -> None:
    """Two budgets alike, two currencies, a strange estimate, metadata that JSON cannot express."""
    day, month = Budget("k", D(1), "daily"), Budget("k", D(1), "monthly")
    assert Spend((day, month)).currency == "USD"
    assert Spend([day]).budgets == (day,)  # type: ignore[arg-type]
    assert Spend(day).budgets == (day,)  # type: ignore[arg-type]
    assert Spend((), estimate=Usage(1, 1)).estimate_nano is None
    with pytest.raises(ValueError, match="two budgets"):
        Spend((day, Budget("k", D(2), "daily")))
    with pytest.raises(ValueError, match="currency"):
        Spend((day, Budget("k", D(1), "monthly", currency="EUR")))
    for estimate in (1.5, "1", D(-1)):
        with pytest.raises(ValueError, match="estimate"):
            Spend((), estimate=estimate)  # type: ignore[arg-type]
    for metadata in ({"a": object()}, {"a": float("nan")}, [1]):
        with pytest.raises(ValueError, match="metadata"):
            Spend((), metadata=metadata)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="model"):
        Spend((), "")
    with pytest.raises(TypeError, match="Budget"):
        Spend(("k",))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"database": "mysql://x"}, "mysql"),
        ({"unknown": "free"}, "unknown"),
        ({"outbox": 0}, "outbox"),
        ({"expiry": 0}, "expiry"),
        ({"timeout": -1}, "timeout"),
        ({"allowance": 1.5}, "allowance"),
    ],
)
def test_a_ledger_says_what_is_wrong(options: dict[str, Any], message: str) -> None:
    """An argument out of its range."""
    everything: dict[str, Any] = {"database": "sqlite://", **options}
    with pytest.raises(ValueError, match=message):
        Ledger(**everything)


def test_the_callers_decimal_context_rounds_nothing() -> None:
    """Money is exact also where an application has told `decimal` to round to three digits."""
    entry = {"input_cost_per_token": "0.00000123456", "output_cost_per_token": "0.0000098765432"}
    budget = Budget("k", D("1234567.654321"), "total")
    with localcontext(prec=3):
        price = LiteLLMPrices({"big": entry}).price("big", datetime(2026, 4, 1, tzinfo=UTC))
        assert price is not None
        assert (price.rates.input, price.rates.output) == (D("1.23456"), D("9.8765432"))
        assert price.cost(Usage(123_456_789, 1)).nano == 152_414_823_305
        standing = Standing(budget, D("0.000000001"), D("1234567"), None)
        assert standing.remaining == D("0.654320999")
        assert nano_of("cost", D("1234567.000000001")) == 1_234_567_000_000_001
        assert decimal_of(1_234_567_000_000_001) == D("1234567.000000001")
