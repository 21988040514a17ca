"""Tables of prices: one from a file or a dict, one in LiteLLM's format, one over the `genai-prices` package.

An unknown model is an error unless a default is stated: it is never free (C35).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Self, cast

from earmark.core.money import EXACT
from earmark.prices import Price, Rates

_MILLION: Final = 1_000_000

_RATES: Final = ("input", "output", "cached_input", "cache_write", "reasoning", "request")
_MORE: Final = {"from", "until", "version", "long"}


@dataclass(frozen=True, slots=True)
class _Dated:
    """A price, and when it holds: from the first moment on, before the second."""

    price: Price
    since: datetime | None
    until: datetime | None

    def holds(self, at: datetime) -> bool:
        return (self.since is None or self.since <= at) and (self.until is None or at < self.until)


class PriceList:
    """Prices that you state yourself.

    Args:
        models: by model, a mapping of `input`, `output`, `cached_input`, `cache_write`, `reasoning` (per million
            tokens) and `request` (per request), each a Decimal, an int or a text; or several such mappings, each with
            `from` or `until` (a date or a moment, in UTC unless it says), of which the last that holds counts. One may
            have a `version` of its own, and `long`, a mapping of a number of input tokens to the rates beyond it.
        version: the edition, which stands in usage rows.
        currency: what the prices are in.
        default: the same for every model that is not named.

    Raises:
        ValueError: something in it is no price; the message names the place.
    """

    def __init__(
        self,
        models: Mapping[str, Mapping[str, Any] | Sequence[Mapping[str, Any]]],
        *,
        version: str = "1",
        currency: str = "USD",
        default: Mapping[str, Any] | None = None,
    ) -> None:
        self._models = {
            model: _dated(model, stated, version, currency) for model, stated in models.items()
        }
        self._default = () if default is None else _dated("default", default, version, currency)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a list from a JSON or TOML file with `models`, and `version`, `currency` and `default` if you like.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is no such list.
        """
        path = Path(path)
        text = path.read_text(encoding="utf-8")
        try:
            return cls._read(text, toml=path.suffix == ".toml")
        except ValueError as error:
            msg = f"{path}: {error}"
            raise ValueError(msg) from error

    @classmethod
    def _read(cls, text: str, *, toml: bool) -> Self:
        if toml:
            read: Any = tomllib.loads(text, parse_float=Decimal)
        else:
            read = json.loads(text, parse_float=Decimal, object_pairs_hook=_each_once)
        listed = _mapping("a price list", read)
        strange = set(listed) - {"models", "version", "currency", "default"}
        if strange or "models" not in listed:
            found = ", ".join(sorted(listed)) or "nothing"
            msg = f"a price list has models, and may have version, currency and default; this has {found}"
            raise ValueError(msg)
        models = _mapping("models", listed.pop("models"))
        return cls(models, **listed)

    def price(self, model: str, at: datetime) -> Price | None:
        """What a model costs at a moment."""
        for dated in reversed(self._models.get(model, self._default)):
            if dated.holds(at):
                return dated.price
        return None


class LiteLLMPrices:
    """Prices in the format of LiteLLM's `model_prices_and_context_window.json`, per token.

    Args:
        prices: that file's mapping, its numbers as Decimals or texts; `from_file` reads them so.
        version: the edition, which stands in usage rows.
        default: as in `PriceList`, for every model that is not named.

    Raises:
        ValueError: the default is no price.
    """

    def __init__(
        self,
        prices: Mapping[str, Mapping[str, Any]],
        *,
        version: str = "litellm",
        default: Mapping[str, Any] | None = None,
    ) -> None:
        self._version = version
        self._prices = prices
        self._default = PriceList({}, version=version, default=default)

    @classmethod
    def from_file(
        cls, path: str | Path, *, version: str = "litellm", default: Mapping[str, Any] | None = None
    ) -> Self:
        """Read such a file.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is no JSON.
        """
        text = Path(path).read_text(encoding="utf-8")
        return cls(json.loads(text, parse_float=Decimal), version=version, default=default)

    def price(self, model: str, at: datetime) -> Price | None:
        """What a model costs.

        Raises:
            ValueError: what the map says of it is no price.
        """
        entry = self._prices.get(model)
        if entry is None or not _is_priced(entry):
            return self._default.price(model, at)
        steps = [
            int(name.removeprefix(_ABOVE).removesuffix("k_tokens"))
            for name in entry
            if name.startswith(_ABOVE)
            and name.removeprefix(_ABOVE).removesuffix("k_tokens").isdigit()
        ]
        rates = _litellm_rates(model, entry, "")
        long = tuple(
            (step * 1_000, _litellm_rates(model, entry, f"_above_{step}k_tokens"))
            for step in sorted(steps)
        )
        return Price(rates, self._version, "USD", long)


_ABOVE: Final = "input_cost_per_token_above_"

_LITELLM: Final = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cached_input": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
    "reasoning": "output_cost_per_reasoning_token",
}


def _is_priced(entry: Mapping[str, Any]) -> bool:
    """Whether an entry says what tokens cost, those that it generates too: an embedding generates none."""
    generates = entry.get("mode") in {"chat", "completion", "responses"}
    needed = ["input_cost_per_token", *(["output_cost_per_token"] if generates else [])]
    return all(entry.get(field) is not None for field in needed)


def _litellm_rates(model: str, entry: Mapping[str, Any], suffix: str) -> Rates:
    """The rates of an entry, for a long request where it states them, else as for any."""
    found: dict[str, Decimal] = {}
    for name, field in _LITELLM.items():
        value = entry.get(field + suffix)
        if value is None:
            value = entry.get(field)
        if value is not None:
            found[name] = EXACT.multiply(_money(f"{model}: {field}", value), _MILLION)
    found.setdefault("output", Decimal(0))  # an embedding generates nothing
    if entry.get("input_cost_per_request") is not None:
        found["request"] = _money(
            f"{model}: input_cost_per_request", entry["input_cost_per_request"]
        )
    return Rates(**found)


class GenaiPrices:
    """The prices that the `genai-prices` package knows (the extra `earmark[genai-prices]`).

    Args:
        provider: the provider's id there, such as "openai"; None: whichever has the model.
        default: as in `PriceList`, for every model that the package does not know.

    Raises:
        ImportError: the package is not installed.
    """

    def __init__(
        self, *, provider: str | None = None, default: Mapping[str, Any] | None = None
    ) -> None:
        from importlib.metadata import version

        from genai_prices.data_snapshot import get_snapshot

        self._snapshot = get_snapshot
        self._provider = provider
        self._version = f"genai-prices {version('genai-prices')}"
        self._default = PriceList({}, version=self._version, default=default)

    def price(self, model: str, at: datetime) -> Price | None:
        """What a model costs at a moment, by the package's own matching of names."""
        try:
            _, info = self._snapshot().find_provider_model(model, None, self._provider, None)
        except LookupError:
            return self._default.price(model, at)
        found = info.get_prices(at)
        if found.input_mtok is None and found.output_mtok is None:
            return self._default.price(model, at)
        return _genai_price(found, self._version)


def _genai_price(found: Any, version: str) -> Price:  # noqa: ANN401 - the package's own class
    """Its prices as ours: a rate may have steps by the number of input tokens."""
    fields = {
        "input": "input_mtok",
        "output": "output_mtok",
        "cached_input": "cache_read_mtok",
        "cache_write": "cache_write_mtok",
    }
    values = {name: getattr(found, field, None) for name, field in fields.items()}
    steps = {step.start for value in values.values() for step in getattr(value, "tiers", ()) or ()}
    per_thousand = getattr(found, "requests_kcount", None)
    request = EXACT.divide(Decimal(str(per_thousand or 0)), 1_000)

    def rates(tokens: int) -> Rates:
        known = {
            name: _genai_rate(value, tokens) for name, value in values.items() if value is not None
        }
        zero = Decimal(0)
        return Rates(**{"input": zero, "output": zero, **known, "request": request})

    return Price(rates(0), version, "USD", tuple((step, rates(step + 1)) for step in sorted(steps)))


def _genai_rate(value: Any, tokens: int) -> Decimal:  # noqa: ANN401 - a Decimal, or its steps
    if not hasattr(value, "tiers"):
        return Decimal(str(value))
    rate = value.base
    for step in sorted(value.tiers, key=lambda tier: tier.start):
        if tokens > step.start:
            rate = step.price
    return Decimal(str(rate))


def _dated(
    model: str,
    stated: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    version: str,
    currency: str,
) -> tuple[_Dated, ...]:
    """What is stated for a model."""
    several: list[tuple[str, Any]] = [(model, stated)]
    if isinstance(stated, Sequence) and not isinstance(stated, str):
        several = [(f"{model}[{number}]", one) for number, one in enumerate(stated)]
    if not several:
        msg = f"{model}: no price is stated"
        raise ValueError(msg)
    found: list[_Dated] = []
    for place, said in several:
        one = _mapping(place, said)
        strange = set(one) - set(_RATES) - _MORE
        if strange:
            msg = f"{place}: no price has {', '.join(sorted(map(repr, strange)))}"
            raise ValueError(msg)
        long = _long(f"{place}.long", one)
        price = Price(
            _rates(place, one), _version(place, one.get("version", version)), currency, long
        )
        since, until = (_moment(place, one, name) for name in ("from", "until"))
        if since is not None and until is not None and since >= until:
            msg = f"{place}: it never holds: until {until} is not after from {since}"
            raise ValueError(msg)
        found.append(_Dated(price, since, until))
    return tuple(found)


def _version(place: str, value: object) -> str:
    """An edition's name; an unquoted number or date is one as well."""
    if isinstance(value, (str, int, Decimal, date)) and not isinstance(value, bool):
        return str(value)
    msg = f"{place}.version must be a text, not {value!r}"
    raise ValueError(msg)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object that names nothing twice: which of the two was meant nobody could say."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, _ in pairs if [other for other, _ in pairs].count(name) > 1)
        msg = f"{twice!r} is there twice"
        raise ValueError(msg)
    return found


def _mapping(place: str, found: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever stands there
    if isinstance(found, Mapping):
        return dict(cast("Mapping[str, Any]", found))
    msg = f"{place} must be a mapping, not {found!r}"
    raise ValueError(msg)


def _long(place: str, stated: Mapping[str, Any]) -> tuple[tuple[int, Rates], ...]:
    """Numbers of input tokens, and the rates beyond them: those that are not stated stay."""
    found: list[tuple[int, Rates]] = []
    for above, rates in _mapping(place, stated.get("long", {})).items():
        if not str(above).isdecimal():
            msg = f"{place} must be a mapping of input tokens to rates, not of {above!r}"
            raise ValueError(msg)
        step = f"{place}[{above}]"
        found.append((int(above), _rates(step, {**stated, **_mapping(step, rates)})))
    return tuple(found)


def _rates(place: str, stated: Mapping[str, Any]) -> Rates:
    found = {name: _money(f"{place}.{name}", stated[name]) for name in _RATES if name in stated}
    missing = {"input", "output"} - set(found)
    if missing:
        msg = f"{place}: {' and '.join(sorted(missing))} is missing"
        raise ValueError(msg)
    return Rates(**found)


def _money(place: str, value: object) -> Decimal:
    """A price from a list: never from a float, which is not what was written."""
    if isinstance(value, (Decimal, int, str)) and not isinstance(value, bool):
        try:
            money = Decimal(value)
        except ArithmeticError:
            pass
        else:
            if money.is_finite() and money >= 0:
                return money
    msg = f"{place} must be a Decimal, an int or a text, not negative, not {value!r}"
    raise ValueError(msg)


def _moment(place: str, stated: Mapping[str, Any], name: str) -> datetime | None:
    value: Any = stated.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as error:
            msg = f"{place}.{name}: {error}"
            raise ValueError(msg) from error
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    msg = f"{place}.{name} must be a date or a moment, not {cast('object', value)!r}"
    raise ValueError(msg)
