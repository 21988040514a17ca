"""The estimate: what the prompt is, and what the answer may be at most, as far as the request says.

What is unknown is a stated default, and never all that is left (C32); what a client makes up is clamped to what a
model can put out. A body that no provider would take gives an estimate as well: to refuse it is the provider's part.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from earmark.amounts import MAX_AMOUNT, check_amount
from earmark.estimates.counting import Counter, approximate
from earmark.estimates.prompts import prompts_of, read
from earmark.limits import Scope
from earmark.logs import about
from earmark.streams.counts import mapping_of
from earmark.streams.jsontext import loaded
from earmark.usage import TOKEN_METRICS, Usage

logger = logging.getLogger("earmark.estimates")

# Where a cap on the output stands: at the top of a body, or in Gemini's configuration.
_CAPS: Final = (
    "max_completion_tokens",
    "max_tokens",
    "max_output_tokens",
    "maxOutputTokens",
)
# How many answers one prompt gets; all of `best_of` are put out, though fewer are shown.
_CHOICES: Final = ("n", "best_of", "candidateCount", "candidate_count")
_CONFIGURATIONS: Final = ("generationConfig", "generation_config", "config")

# More answers to one prompt than any provider gives.
_MOST_CHOICES: Final = 128
_PER_MESSAGE: Final = 4
_PER_MEDIUM: Final = 1_000


def estimate(
    body: object,
    *,
    scopes: Iterable[Scope] | None = None,
    output: int | None = 1_024,
    ceiling: int = 32_768,
    count: Counter = approximate,
) -> Usage:
    """What a request may use: for `tokens=` of `pre_commit`, and for a budget's estimate.

    The input is what a model would read of the body, counted; a picture, a sound or a file is 1,000 tokens. The output
    is the largest cap that the body gives, times the answers that it wants (`n`, `best_of`, `candidateCount`), times
    its prompts. Nothing is taken for cached.

    Args:
        body: the request of OpenAI's chat completions, completions, Responses or embeddings, of Anthropic's messages or
            Gemini's generateContent: its JSON as bytes or text, or the parsed mapping.
        scopes: what the request will be asked of. Where none of them has a limit of tokens, nothing is counted and
            nothing asked (C37). None: count in any case, as for a budget.
        output: tokens of one answer where the body gives no cap; 0 for embeddings. None: there has to be a cap.
        ceiling: the most tokens that one answer can have, whatever cap the body gives.
        count: counts the tokens of a text; where it fails, `approximate` does.

    Returns:
        What it may use, with `input_tokens` None where the body is no JSON object.

    Raises:
        ValueError: `output` or `ceiling` is no amount; or `output` is None and the body gives no cap.
        TypeError: `body` is none of these.
    """
    if output is not None:
        check_amount("output", output)
    check_amount("ceiling", ceiling)
    if scopes is not None and not any(map(_limits_tokens, scopes)):
        return Usage()
    parsed = _request(body)
    request: Mapping[str, Any] = {} if parsed is None else parsed
    caps, choices = _numbers(request)
    if not caps and output is None:
        msg = f"the request gives no cap on its output: {', '.join(_CAPS)}"
        raise ValueError(msg)
    each = min(max(caps, default=output or 0), ceiling)
    out = min(each * choices * prompts_of(request), MAX_AMOUNT)
    if parsed is None:
        return Usage(output_tokens=out)
    return Usage(_input(request, count), out, cached_input_tokens=0)


def _limits_tokens(scope: Scope) -> bool:
    return not scope.limits.by_metric.keys().isdisjoint(TOKEN_METRICS)


def _request(body: object) -> Mapping[str, Any] | None:
    """The mapping that a body is; None where it is something else."""
    if isinstance(body, (bytes, bytearray, str)):
        try:
            parsed: object = loaded(body)
        except (ValueError, RecursionError):
            return None
        found = mapping_of(parsed)
        return found if found is parsed else None
    if isinstance(body, Mapping):
        return cast("Mapping[str, Any]", body)
    msg = f"a request body is a mapping, bytes or a text, not {type(body).__name__}"
    raise TypeError(msg)


def _numbers(request: Mapping[str, Any]) -> tuple[list[int], int]:
    """Every cap that a body gives, and how many answers it wants of each prompt."""
    places = [request, *(mapping_of(request.get(name)) for name in _CONFIGURATIONS)]
    caps = [
        cap for place in places for name in _CAPS if (cap := _whole(place.get(name))) is not None
    ]
    wanted = [_whole(place.get(name)) or 1 for place in places for name in _CHOICES]
    return caps, min(max(wanted), _MOST_CHOICES)


def _whole(value: object) -> int | None:
    """A whole number from 0, of any size; None for whatever else stands there."""
    return value if type(value) is int and value >= 0 else None


def _input(request: Mapping[str, Any], count: Counter) -> int:
    seen = read(request)
    text = "\n".join(seen.texts)
    tokens = seen.tokens + seen.media * _PER_MEDIUM + seen.messages * _PER_MESSAGE
    return min(_counted(text, count) + tokens, MAX_AMOUNT)


def _counted(text: str, count: Counter) -> int:
    try:
        return check_amount("tokens", count(text))
    except Exception:
        logger.exception(
            "a counter of tokens has failed: its text is counted by its length",
            extra=about("counter_failed"),
        )
        return approximate(text)
