"""What a stream used, where the provider did not say: an estimator's word beside what was reported.

A report that came too early and an estimate are each a part of the truth: of each field the larger counts, so
that leaving a stream before its usage comes is never cheaper than staying. Output is never estimated from
nothing: not where no item was delivered (B36), and not from the body of an error (C44).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields, replace

from earmark.streams.loops import ends_the_process
from earmark.streams.observed import Observed
from earmark.usage import Usage

logger = logging.getLogger("earmark.streams")

Estimate = Callable[[Observed], Usage | None]
"""Takes what was observed, with the length of the text, and returns what it may have used, or None."""


def with_estimate(observed: Observed, estimate: Estimate | None) -> Observed:
    """`observed`, its usage completed by the estimator where the provider's last word is missing."""
    if estimate is None or observed.authoritative:
        return observed
    try:
        guess = estimate(observed)
        if guess is None:
            return observed
        if not isinstance(guess, Usage):
            logger.error("an estimator has failed: it returned %r, neither a Usage nor None", guess)
            return observed
        if _without_output(observed):
            guess = replace(guess, output_tokens=0, reasoning_tokens=None, reported_total=None)
        return replace(observed, usage=_larger(observed.usage, guess), estimated=True)
    except BaseException as error:
        if ends_the_process(error):
            raise
        logger.exception("an estimator has failed: the usage stays as it was reported")
        return observed


def _without_output(observed: Observed) -> bool:
    """Whether there can be no output: nothing was delivered, or nothing but an error."""
    return observed.items == 0 or (observed.error is not None and observed.text_length == 0)


def _larger(reported: Usage | None, guess: Usage) -> Usage:
    """Of each field the larger of the two, where either is known; of what costs less, the smaller.

    What comes out is no less in all than either: leaving early is never cheaper than staying (B65).
    """
    if reported is None:
        return guess
    largest: dict[str, int | None] = {}
    for field in fields(Usage):
        known = [
            value
            for usage in (reported, guess)
            if (value := getattr(usage, field.name)) is not None
        ]
        of = min if field.name == "cached_input_tokens" else max
        largest[field.name] = of(known, default=None)
    merged = Usage(**largest)
    missing = max(usage.floors()["tokens"] for usage in (reported, guess)) - (merged.total or 0)
    if missing > 0 and merged.output_tokens is not None:
        return replace(merged, output_tokens=merged.output_tokens + missing)
    return merged
