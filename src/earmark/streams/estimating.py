"""What a stream used, where the provider did not say: an estimator's word beside what was reported.

A report that came too early and an estimate are each a part of the truth: of each field the larger counts, so
that leaving a stream before its usage comes is never cheaper than staying. A final report stands, and only what it
leaves out is estimated (C40). Output is never estimated from nothing: not where no item was delivered (B36), and
not from the body of an error (C44).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields, replace

from earmark.logs import about
from earmark.streams.loops import ends_the_process
from earmark.streams.observed import Observed
from earmark.usage import Usage

logger = logging.getLogger("earmark.streams")

Estimate = Callable[[Observed], Usage | None]
"""Takes what was observed, with the length of the text, and returns what it may have used, or None."""


def with_estimate(observed: Observed, estimate: Estimate) -> Observed:
    """`observed`, its usage completed by the estimator where the last word is missing or leaves a whole out."""
    if observed.authoritative and not _lacks_a_whole(observed.usage):
        return observed
    try:
        guess = estimate(observed)
        if guess is None:
            return observed
        if not isinstance(guess, Usage):
            logger.error(
                "an estimator has failed: it returned %s, neither a Usage nor None",
                type(guess).__name__,
                extra=about("estimator_failed"),
            )
            return observed
        if _without_output(observed):
            guess = replace(guess, output_tokens=0, reasoning_tokens=None, reported_total=None)
        complete = _filled if observed.authoritative else _larger
        return replace(observed, usage=complete(observed.usage, guess), estimated=True)
    except BaseException as error:
        if ends_the_process(error):
            raise
        logger.exception(
            "an estimator has failed: the usage stays as it was reported",
            extra=about("estimator_failed"),
        )
        return observed


def _lacks_a_whole(usage: Usage | None) -> bool:
    return usage is not None and None in (usage.input_tokens, usage.output_tokens)


def _without_output(observed: Observed) -> bool:
    """Whether there can be no output: nothing was delivered, or nothing but an error."""
    return observed.items == 0 or (observed.error is not None and observed.text_length == 0)


def _filled(reported: Usage | None, guess: Usage) -> Usage:
    """A final report with the wholes that it left out: never less than the parts and the total that it has."""
    usage = reported or Usage()
    floors = usage.floors()
    for name, other in (("input_tokens", "output_tokens"), ("output_tokens", "input_tokens")):
        known: int | None = getattr(guess, name)
        if getattr(usage, name) is None and known is not None:
            rest = (usage.reported_total or 0) - (
                getattr(usage, other) or getattr(guess, other) or 0
            )
            usage = replace(usage, **{name: max(known, floors[name], rest)})
    return usage


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
