"""Which dialect a stream speaks: by name, or from its first events.

`detect` looks at one event and answers only where that event can belong to one dialect alone: at the names that
a dialect reserves for itself (`message_start`, `usageMetadata`, `messageStop`), never at the content. Pings, errors
and empty events say nothing, and the next event is asked. A stream of OpenAI's shape may come from anyone, so it
is read as `openai-compatible`, which follows the largest total (B33). So is what never said what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from earmark.streams.anthropic import Anthropic
from earmark.streams.bedrock import Bedrock
from earmark.streams.cohere import Cohere
from earmark.streams.counters import Ollama, Replicate, Watsonx
from earmark.streams.counts import items_of, mapping_of
from earmark.streams.dialect import Dialect, DialectFactory
from earmark.streams.gemini import Gemini, Interactions
from earmark.streams.openai import OpenAI, OpenAICompatible, Unknown
from earmark.streams.responses import Assistants, Responses
from earmark.streams.undecided import Undecided

UNKNOWN: Final[DialectFactory] = Unknown

_BUILT_IN: Final = (
    OpenAI,
    OpenAICompatible,
    Responses,
    Assistants,
    Anthropic,
    Gemini,
    Interactions,
    Bedrock,
    Cohere,
    Ollama,
    Watsonx,
    Replicate,
)
# Providers are no dialects: each speaks several. Naming one says that in OpenAI's chat the last report counts.
_PROVIDERS: Final = (
    "azure",
    "deepseek",
    "groq",
    "mistral",
    "moonshot",
    "openrouter",
    "perplexity",
    "vercel",
    "vllm",
    "xai",
)

# What an event calls itself: its `type`, `event_type` or `object`, or else the name of the SSE event.
_KINDS: Final[Mapping[str, DialectFactory]] = {
    "message_start": Anthropic,
    "content_block_start": Anthropic,
    "content_block_delta": Anthropic,
    "content_block_stop": Anthropic,
    "message_delta": Anthropic,
    "message_stop": Anthropic,
    "completion": Anthropic,
    "message-start": Cohere,
    "content-start": Cohere,
    "content-delta": Cohere,
    "content-end": Cohere,
    "tool-plan-delta": Cohere,
    "tool-call-start": Cohere,
    "tool-call-delta": Cohere,
    "tool-call-end": Cohere,
    "citation-start": Cohere,
    "citation-end": Cohere,
    "message-end": Cohere,
    "stream-start": Cohere,
    "text-generation": Cohere,
    "stream-end": Cohere,
    "response": Responses,
    "interaction": Interactions,
    "thread.run": Assistants,
}
_PREFIXES: Final[tuple[tuple[str, DialectFactory], ...]] = (
    ("response.", Responses),
    ("thread.", Assistants),
    ("interaction.", Interactions),
    ("step.", Interactions),
)
_BEGINNINGS: Final = tuple(prefix for prefix, _ in _PREFIXES)

# Names of fields that only one dialect has at the top of an event.
_FIELDS: Final[tuple[tuple[str, DialectFactory], ...]] = (
    ("choices", OpenAICompatible),
    ("candidates", Gemini),
    ("usageMetadata", Gemini),
    ("usage_metadata", Gemini),
    ("promptFeedback", Gemini),
    ("prompt_feedback", Gemini),
    ("messageStart", Bedrock),
    ("contentBlockStart", Bedrock),
    ("contentBlockDelta", Bedrock),
    ("contentBlockStop", Bedrock),
    ("messageStop", Bedrock),
    ("generation_token_count", Bedrock),
    ("inputTextTokenCount", Bedrock),
)

# The envelopes that a service puts round what it has to say, and what is found in them.
_ENVELOPES: Final[tuple[tuple[str, str, DialectFactory], ...]] = (
    ("response", "candidates", Gemini),
    ("metrics", "input_token_count", Replicate),
)
# Names of counts that only one dialect has, in `usage`.
_COUNTS: Final[tuple[tuple[str, DialectFactory], ...]] = (
    ("inputTokens", Bedrock),
    ("outputTokens", Bedrock),
    ("tokens", Cohere),
    ("billed_units", Cohere),
    ("prompt_tokens", OpenAICompatible),
    ("completion_tokens", OpenAICompatible),
)


def undecided(expected_choices: int) -> Dialect:
    """The dialect of a stream that has not yet said which it speaks."""
    return Undecided(detect, UNKNOWN, expected_choices)


def _of_a_provider(expected_choices: int) -> Dialect:
    return Undecided(_spoken_by_a_provider, OpenAI, expected_choices)


def _spoken_by_a_provider(
    event: str | None, data: Mapping[str, Any] | str
) -> DialectFactory | None:
    found = detect(event, data)
    return OpenAI if found is OpenAICompatible else found


_factories: Final[dict[str, DialectFactory]] = {
    **{dialect.name: dialect for dialect in _BUILT_IN},
    **dict.fromkeys(_PROVIDERS, _of_a_provider),
}


def register(name: str, factory: DialectFactory) -> None:
    """Make a dialect of one's own known by a name, for `dialect=name`.

    Args:
        name: a name that is not taken.
        factory: makes the dialect of one stream; it is given the number of expected choices.

    Raises:
        ValueError: the name is empty or taken.
    """
    if not name or name in _factories:
        msg = f"a dialect needs a name of its own, not {name!r}"
        raise ValueError(msg)
    _factories[name] = factory


def factory(name: str) -> DialectFactory:
    """The factory of the dialect with this name.

    Raises:
        ValueError: there is none; the message lists those that there are.
    """
    found = _factories.get(name)
    if found is None:
        msg = f"no dialect is called {name!r}; known are {', '.join(sorted(_factories))}"
        raise ValueError(msg)
    return found


def detect(event: str | None, data: Mapping[str, Any] | str) -> DialectFactory | None:
    """The dialect that one event alone belongs to, or None where it could be of several.

    Args:
        event: the name of the SSE event, where it had one.
        data: the parsed object, or the text of data that is none.
    """
    if isinstance(data, str):
        return _by_name(event) or (Replicate if event == "output" else None)
    for field in ("type", "event_type", "object"):
        kind = data.get(field)
        if isinstance(kind, str) and (found := _by_name(kind)) is not None:
            return found
    for field, dialect in _FIELDS:
        if data.get(field) is not None:
            return dialect
    if event == "output":
        return Replicate
    return _by_name(event) or _by_content(data)


def _by_name(kind: str | None) -> DialectFactory | None:
    if kind is None or kind == "message":
        # SSE's own default name says nothing, and an Anthropic message is known by what it holds.
        return None
    found = _KINDS.get(kind)
    if found is not None or not kind.startswith(_BEGINNINGS):
        return found
    return next((dialect for prefix, dialect in _PREFIXES if kind.startswith(prefix)), None)


def _by_content(data: Mapping[str, Any]) -> DialectFactory | None:
    """The dialects whose events have no name and no field of their own, only a combination of them."""
    if "stop_reason" in data and data.get("type") == "message":
        return Anthropic
    results = items_of(data.get("results"))
    if results and "generated_text" in mapping_of(results[0]):
        return Watsonx
    if isinstance(data.get("done"), bool) and "model" in data:
        return Ollama
    if mapping_of(data.get("chunk")):
        return Bedrock
    for envelope, field, dialect in _ENVELOPES:
        if field in mapping_of(data.get(envelope)):
            return dialect
    usage = mapping_of(data.get("usage")) or mapping_of(
        mapping_of(data.get("metadata")).get("usage")
    )
    return next((dialect for field, dialect in _COUNTS if field in usage), None)
