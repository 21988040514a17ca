"""What a request used, in one normal form for every provider.

Providers disagree on what their counts include: Anthropic reports cache reads and writes apart from the
input, OpenAI inside it; Gemini reports thoughts apart from the output, OpenAI inside it (C46). A `Usage`
is already normalised: the input includes cached and cache-write tokens, the output includes reasoning.

Unknown is not zero: a field that nobody reported is None, and only what the known fields determine is
ever trued up (R6). What they do not determine still has a floor, the sum of its known parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from earmark.amounts import MAX_AMOUNT, check_amount
from earmark.frozen import setters

TOKEN_METRICS: Final = (
    "tokens",
    "input_tokens",
    "output_tokens",
    "uncached_tokens",
    "uncached_input_tokens",
)


_FIELDS: Final = (
    "input_tokens",
    "output_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "reported_total",
)


@dataclass(frozen=True, slots=True, init=False)
class Usage:
    """The tokens of one exchange. Every field is an int (0 … 2**53 − 1), or None where it is unknown.

    Args:
        input_tokens: everything the model read, cached and cache-write tokens included.
        output_tokens: everything it generated, reasoning included.
        cached_input_tokens: the part of the input that was read from a cache.
        cache_write_tokens: the part of the input that was written to a cache.
        reasoning_tokens: the part of the output that was reasoning.
        reported_total: the provider's own total, kept beside the sum.

    Raises:
        ValueError: a field is neither None nor an amount.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    reported_total: int | None = None

    # Made for every request, hence written out.
    def __init__(  # noqa: PLR0917 - in the order of the fields
        self,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_input_tokens: int | None = None,
        cache_write_tokens: int | None = None,
        reasoning_tokens: int | None = None,
        reported_total: int | None = None,
    ) -> None:
        given = (
            input_tokens,
            output_tokens,
            cached_input_tokens,
            cache_write_tokens,
            reasoning_tokens,
            reported_total,
        )
        for value in given:
            # As `check_amount` has it, without a call.
            if value is not None and not (type(value) is int and 0 <= value <= MAX_AMOUNT):
                _check_all(given)
        _put_input_tokens(self, input_tokens)
        _put_output_tokens(self, output_tokens)
        _put_cached_input_tokens(self, cached_input_tokens)
        _put_cache_write_tokens(self, cache_write_tokens)
        _put_reasoning_tokens(self, reasoning_tokens)
        _put_reported_total(self, reported_total)

    @property
    def total(self) -> int | None:
        """Input + output where both are known, else the provider's own total, else None."""
        if self.input_tokens is None or self.output_tokens is None:
            return self.reported_total
        return min(self.input_tokens + self.output_tokens, MAX_AMOUNT)

    @property
    def uncached_input_tokens(self) -> int | None:
        """The input without cache reads: what most providers count against a rate limit (C46)."""
        if self.input_tokens == 0:
            return 0
        if self.input_tokens is None or self.cached_input_tokens is None:
            return None
        # Some providers report more cached tokens than they read: a part cannot exceed its whole.
        return max(self.input_tokens - self.cached_input_tokens, 0)

    @property
    def uncached_tokens(self) -> int | None:
        """Uncached input + output, or None where one of the two is unknown."""
        uncached = self.uncached_input_tokens
        if uncached is None or self.output_tokens is None:
            return None
        return min(uncached + self.output_tokens, MAX_AMOUNT)

    def determined(self) -> Mapping[str, int]:
        """The token metrics that the known fields determine, and their amounts (R6)."""
        read, written, uncached = self.input_tokens, self.output_tokens, self.uncached_input_tokens
        found: dict[str, int] = {}
        if read is not None and written is not None:
            found["tokens"] = min(read + written, MAX_AMOUNT)
        elif self.reported_total is not None:
            found["tokens"] = self.reported_total
        if read is not None:
            found["input_tokens"] = read
        if written is not None:
            found["output_tokens"] = written
        if uncached is not None:
            if written is not None:
                found["uncached_tokens"] = min(uncached + written, MAX_AMOUNT)
            found["uncached_input_tokens"] = uncached
        return found

    def floors(self) -> Mapping[str, int]:
        """At least this much of each token metric was used: what is determined, else the sum of known parts.

        A metric of which nothing is known is 0.
        """
        known = self.determined()
        if len(known) == len(TOKEN_METRICS):
            return known
        whole = known.get("tokens", MAX_AMOUNT)
        written = self.cache_write_tokens or 0
        output = self.output_tokens
        if output is None:
            output = min(self.reasoning_tokens or 0, whole)
        read = self.input_tokens
        if read is None:
            read = min((self.cached_input_tokens or 0) + written, whole)
        uncached_input = known.get("uncached_input_tokens")
        if uncached_input is None:
            uncached_input = min(written, read)
        return {
            "tokens": min(read + output, whole),
            "input_tokens": read,
            "output_tokens": output,
            "uncached_tokens": min(uncached_input + output, whole),
            "uncached_input_tokens": uncached_input,
            **known,
        }


(
    _put_input_tokens,
    _put_output_tokens,
    _put_cached_input_tokens,
    _put_cache_write_tokens,
    _put_reasoning_tokens,
    _put_reported_total,
) = setters(Usage)


def _check_all(given: tuple[object, ...]) -> None:
    """Raise ValueError, which names it, for the first that is no amount."""
    for name, value in zip(_FIELDS, given, strict=True):
        if value is not None:
            check_amount(name, value)
