"""What things cost: price lists from dicts, files, LiteLLM's map and the genai-prices package."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earmark import Usage
from earmark.core.money import decimal_of
from earmark.ledger import GenaiPrices, LiteLLMPrices, Price, PriceList, Rates
from earmark.ledger.costing import posted

D = Decimal
NOW = datetime(2026, 4, 1, tzinfo=UTC)
RATES = Rates(
    D(2), D(8), cached_input=D("0.5"), cache_write=D("2.5"), reasoning=D(9), request=D("0.01")
)
PRICE = Price(RATES, "v1", long=((200_000, Rates(D(4), D(16))),))


def cost(price: Price | None, usage: Usage) -> Decimal:
    assert price is not None
    return decimal_of(price.cost(usage).nano)


@pytest.mark.parametrize(
    ("usage", "due", "complete"),
    [
        (Usage(1_000, 100), "0.0128", True),
        (
            Usage(1_000, 100, cached_input_tokens=600),
            "0.0119",
            True,
        ),  # C46: cached once, at its own rate
        (Usage(8_600, 50, cached_input_tokens=8_000, cache_write_tokens=500), "0.01585", True),
        (Usage(1_000, 100, reasoning_tokens=40), "0.01284", True),
        (
            Usage(1_000, 100, cached_input_tokens=5_000),
            "0.0113",
            True,
        ),  # parts do not exceed their whole
        (Usage(200_000, 0), "0.41", True),
        (Usage(200_001, 0), "0.800004", True),
        (Usage(0, 0), "0", True),  # refused unbilled: not even the request costs
        (Usage(reported_total=0), "0", True),
        (Usage(1, 0), "0.010002", True),
        (Usage(input_tokens=1_000), "0.012", False),
        (Usage(output_tokens=100), "0.0108", False),
        (Usage(cached_input_tokens=100), "0.01005", False),
        (Usage(reported_total=100), "0.01", False),
    ],
)
def test_c46_what_a_usage_costs(usage: Usage, due: str, complete: bool) -> None:
    """C46, B59: every part at its rate, once; what is unknown makes it incomplete, never 0."""
    assert (cost(PRICE, usage), PRICE.cost(usage).complete) == (D(due), complete)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.decimals(0, 1_000, places=9))
def test_b59_a_cost_is_exact_and_rounded_up_once(read: int, written: int, rate: Decimal) -> None:
    """B59: never below the exact product, and never a nano-unit above it."""
    price = Price(Rates(rate, rate / 3), "v1")
    if not read + written:
        return
    exact = price.rates.nano(Usage(read, written))
    assert 0 <= price.cost(Usage(read, written)).nano - exact < 1


def test_a_price_survives_its_row() -> None:
    """The price that is stamped on a reservation is written with it."""
    assert Price.read(PRICE.write()) == PRICE


@pytest.mark.parametrize(
    ("verb", "held", "keeps", "posts"),
    [
        ("close", 10, True, (10, True)),
        ("close", 10, False, (0, True)),
        ("abandon", 10, False, (10, True)),
        ("settle", 10, False, (10, True)),
    ],
)
def test_c35_nothing_known(verb: Any, held: int, keeps: bool, posts: tuple[int, bool]) -> None:
    """C35, C44: what nobody knows costs what it held, or for a close by choice nothing."""
    assert posted(verb, held, None, PRICE, keeps=keeps) == posts


def test_a_list_has_versions_dates_and_a_default() -> None:
    """The last statement that holds counts, from its first moment on; an unknown model costs the default."""
    prices = PriceList(
        {
            "a": [
                {"input": 1, "output": 1, "until": "2026-01-01"},
                {"input": "2.5", "output": 2, "from": "2026-01-01T00:00+01:00", "version": "new"},
            ],
            "b": {"input": 3, "output": 3, "long": {"1000": {"input": 6}}},
        },
        version="old",
        default={"input": 9, "output": 9},
    )
    asked = [
        ("a", datetime(2025, 12, 31, 22, 59, tzinfo=UTC), "old", "1"),
        ("a", datetime(2025, 12, 31, 23, tzinfo=UTC), "new", "2.5"),
        ("a", datetime(2026, 1, 1, tzinfo=UTC), "new", "2.5"),
        ("other", NOW, "old", "9"),
    ]
    for model, at, version, rate in asked:
        price = prices.price(model, at)
        assert price is not None
        assert (price.version, price.rates.input) == (version, D(rate))
    assert cost(prices.price("b", NOW), Usage(1_001, 1)) == D("0.006009")
    assert PriceList({}).price("a", NOW) is None


@pytest.mark.parametrize(
    ("models", "place"),
    [
        ({"a": {"input": 1}}, "a: output is missing"),
        ({"a": {"input": 1.5, "output": 1}}, "a.input"),
        ({"a": {"input": -1, "output": 1}}, "a.input"),
        ({"a": {"input": "x", "output": 1}}, "a.input"),
        ({"a": {"input": 1, "outptu": 1}}, "a: no price has 'outptu'"),
        ({"a": [{"input": 1, "output": 1, "from": "soon"}]}, r"a\[0\].from"),
        ({"a": [{"input": 1, "output": 1, "until": 5}]}, r"a\[0\].until"),
        ({"a": 5}, "a must be a mapping"),
        ({"a": "free"}, "a must be a mapping"),
        ({"a": [None]}, r"a\[0\] must be a mapping"),
        ({"a": {"input": 1, "output": 1, "long": 5}}, r"a.long must be"),
        ({"a": {"input": 1, "output": 1, "long": {"much": {"input": 2}}}}, r"a.long must be"),
        ({"a": {"input": 1, "output": 1, "long": {"-5": {"input": 2}}}}, r"a.long must be"),
        ({"a": {"input": 1, "output": 1, "long": {"5": {"input": "NaN"}}}}, r"a.long\[5\].input"),
    ],
)
def test_a_list_says_what_is_wrong_and_where(models: Any, place: str) -> None:
    """A misspelt or missing price stops start-up; a float is not what was written."""
    with pytest.raises(ValueError, match=place):
        PriceList(models)


def test_a_list_from_a_file(tmp_path: Path) -> None:
    """JSON and TOML, whose numbers are taken as they are written."""
    one = tmp_path / "prices.json"
    one.write_text('{"version": "7", "models": {"a": {"input": 0.1, "output": 0.3}}}')
    other = tmp_path / "prices.toml"
    other.write_text('version = "7"\n[models.a]\ninput = 0.1\noutput = 0.3\nfrom = 2020-01-01\n')
    for path in (one, other):
        price = PriceList.from_file(path).price("a", NOW)
        assert price is not None
        assert (price.version, price.rates) == ("7", Rates(D("0.1"), D("0.3")))
    one.write_text('{"modles": {}}')
    with pytest.raises(ValueError, match="modles"):
        PriceList.from_file(one)
    for strange in ("[]", "5", '{"models": []}', '{"models": {"a": {"input": NaN, "output": 1}}}'):
        one.write_text(strange)
        with pytest.raises(ValueError, match=r"must be a mapping|a.input"):
            PriceList.from_file(one)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "{", "line 1"),
        ("a.toml", "models =", "Invalid value"),
        ("a.toml", "[models.a]\ninput = 1", "output is missing"),
        ("a.json", '{"models": {"a": []}}', "no price is stated"),
        ("a.json", '{"models": {"a": {"input": 1, "output": 2}, "a": {}}}', "'a' is there twice"),
        ("a.json", '{"models": {"a": {"input": 1, "output": 2, "version": null}}}', "version"),
        (
            "a.toml",
            "[models.a]\ninput=1\noutput=2\nfrom=2026-06-01\nuntil=2026-06-01",
            "never holds",
        ),
    ],
)
def test_a_file_that_cannot_be_meant_is_named(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    """What is wrong in a price list stops start-up, with the file's name in front of it: nothing in it is guessed."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=said) as raised:
        PriceList.from_file(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_the_list_that_the_document_shows_is_one(tmp_path: Path) -> None:
    """docs/money.md shows a file: its dates and versions mean what it says of them."""
    document = Path(__file__).parents[2] / "docs" / "money.md"
    shown = re.search(r"```toml\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
    assert shown
    path = tmp_path / "prices.toml"
    path.write_text(shown[1])
    prices = PriceList.from_file(path)
    moments = (datetime(2026, 5, 31, 23, 59, 59, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC))
    found = [prices.price("mini", at) for at in moments]
    assert [(one.version, one.rates.input) for one in found if one] == [
        ("2026-04", D("0.15")),
        ("2026-06", D("0.10")),
    ]
    assert cost(prices.price("big", NOW), Usage(1_000_000, 0)) == D("2.5")


def test_litellms_map(tmp_path: Path) -> None:
    """Per token there, per million here; cache, reasoning, and what a long prompt costs."""
    path = tmp_path / "model_prices_and_context_window.json"
    entry = """{"input_cost_per_token": 2.5e-06, "output_cost_per_token": 1e-05, "mode": "chat",
        "cache_read_input_token_cost": 1.25e-06, "output_cost_per_reasoning_token": 2e-05,
        "input_cost_per_token_above_200k_tokens": 5e-06, "litellm_provider": "x"}"""
    path.write_text(
        f'{{"big": {entry}, "embed": {{"input_cost_per_token": 1e-07}}, "image": {{"output_cost_per_image": 1}}}}'
    )
    prices = LiteLLMPrices.from_file(path, version="2026-04-01")
    big = prices.price("big", NOW)
    assert cost(big, Usage(1_000, 100, cached_input_tokens=200, reasoning_tokens=10)) == D(
        "0.00335"
    )
    assert cost(big, Usage(200_001, 1)) == D("1.000015")
    assert cost(prices.price("embed", NOW), Usage(10, 0)) == D("0.000001")
    assert prices.price("image", NOW) is None
    half = {"input_cost_per_token": "1e-7", "mode": "chat"}
    assert LiteLLMPrices({"half": half}).price("half", NOW) is None  # what it writes is not free
    assert prices.price("nobody's", NOW) is None
    default = LiteLLMPrices(json.loads("{}"), default={"input": 1, "output": 1})
    assert default.price("nobody's", NOW) is not None
    with pytest.raises(ValueError, match="big: input_cost_per_token"):
        LiteLLMPrices({"big": {"input_cost_per_token": 2.5e-06}}).price("big", NOW)


def test_genai_prices() -> None:
    """The package's own matching and prices; unknown models as everywhere."""
    prices = GenaiPrices(provider="openai")
    found = prices.price("gpt-4o", NOW)
    assert found is not None
    assert found.version.startswith("genai-prices ")
    assert (found.rates.input, found.rates.output) == (D("2.5"), D(10))
    assert cost(found, Usage(1_000, 100, cached_input_tokens=400)) == D("0.003")
    assert prices.price("nobody's-model", NOW) is None
    tiered = GenaiPrices(provider="google").price("gemini-2.5-pro", NOW)
    assert tiered is not None
    assert [above for above, _ in tiered.long] == [200_000]
    assert cost(tiered, Usage(200_001, 0)) == D("0.5000025")
    stated = GenaiPrices(default={"input": 1, "output": 1}).price("nobody's-model", NOW)
    assert stated is not None
