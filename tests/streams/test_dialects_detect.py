"""Which dialect a stream speaks: found out from what is reserved to one, named, or registered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from earmark.streams import detect as registry
from earmark.streams import observe_stream
from earmark.streams.detect import UNKNOWN, detect, factory, register
from earmark.streams.dialect import Dialect
from earmark.testing.streams.bodies import ALL, STREAMS
from earmark.testing.streams.bodies.shape import Stream
from earmark.usage import Usage
from tests.streams.toys import Told, Toy, generate, run_now, sse

SAY_NOTHING: list[tuple[str | None, Any]] = [
    (None, {}),
    (None, {"type": "ping"}),
    ("ping", {"type": "ping"}),
    ("message", {"type": "message"}),
    ("message", {}),
    ("error", {"error": {"message": "no"}}),
    (None, {"error": {"message": "no"}}),
    (None, {"type": "error", "error": {}}),
    (None, {"id": "x", "object": "", "model": "m"}),
    (None, {"usage": {}}),
    (None, {"usage": None, "choices": None, "candidates": None}),
    (None, {"text": "choices candidates message_start"}),
    (None, {"type": ["message_start"], "object": 7, "chunk": "text"}),
    (None, {"done": True}),
    (None, {"results": [{"score": 0.4}]}),
    (None, "[DONE]"),
    (None, "plain text"),
    ("data", "plain text"),
]


@pytest.mark.parametrize(("event", "data"), SAY_NOTHING, ids=str)
def test_an_event_that_could_be_anybodys_says_nothing(event: str | None, data: Any) -> None:
    """Never a guess: pings, errors and empty events leave it to the next event."""
    assert detect(event, data) is None


TELL: dict[str, tuple[str | None, Any]] = {
    "openai-compatible": (None, {"choices": []}),
    "openai-responses": ("response.created", {"response": {}}),
    "openai-assistants": ("thread.created", {"id": "t", "object": "thread"}),
    "anthropic": ("message_start", {"message": {}}),
    "gemini": (None, {"response": {"candidates": []}}),
    "gemini-interactions": (None, {"event_type": "interaction.created"}),
    "bedrock": (None, {"metadata": {"usage": {"inputTokens": 1}}}),
    "cohere": (None, {"type": "message-start"}),
    "ollama": (None, {"model": "m", "done": False}),
    "watsonx": (None, {"results": [{"generated_text": ""}]}),
    "replicate": ("output", "The"),
}


@pytest.mark.parametrize("name", TELL)
def test_an_event_that_one_dialect_reserves_tells(name: str) -> None:
    """One event is enough where its names belong to one dialect."""
    made = detect(*TELL[name])
    assert made is not None
    assert made(1).name == name


@pytest.mark.parametrize("stream", ALL, ids=lambda stream: stream.name)
def test_no_event_in_the_middle_leads_astray(stream: Stream) -> None:
    """A stream may be joined late: whichever event comes first, it is its own dialect's or says nothing."""
    made = [detect(event, data) for event, data in stream.events]
    assert {maker(1).name for maker in made if maker is not None} <= {stream.dialect}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((f"content_block_{what}", "anthropic") for what in ("start", "delta", "stop")),
        *((f"message_{what}", "anthropic") for what in ("start", "delta", "stop")),
        *((f"content-{what}", "cohere") for what in ("start", "delta", "end")),
        *((f"tool-call-{what}", "cohere") for what in ("start", "delta", "end")),
        ("message-end", "cohere"),
        ("tool-plan-delta", "cohere"),
        ("citation-start", "cohere"),
        ("response.output_text.delta", "openai-responses"),
        ("thread.message.delta", "openai-assistants"),
        ("step.delta", "gemini-interactions"),
    ],
)
def test_an_event_is_known_by_its_type_or_its_name(kind: str, name: str) -> None:
    """Whichever of the two there is; where both are there they agree."""
    for event, data in ((None, {"type": kind}), (kind, {}), (kind, "text")):
        made = detect(event, data)
        assert made is not None
        assert made(1).name == name


@pytest.mark.anyio
async def test_what_came_before_the_dialect_was_known_is_not_lost() -> None:
    """Events that said nothing are read all the same, once it is known by whom."""
    told = Told()
    body = [sse({"type": "ping"}), sse({"error": {"message": "early"}}), sse({"choices": []})]
    async for _ in observe_stream(generate(body), on_complete=told):
        pass
    assert (told.only.outcome, told.only.error) == ("error", "early")
    assert told.only.dialect == "openai-compatible"


def test_every_built_in_dialect_has_a_name() -> None:
    """Whoever knows the dialect names it; one of OpenAI's shape whose provider is unknown has a name as well."""
    for name in (*TELL, "openai"):
        assert factory(name)(1).name == name
    assert UNKNOWN(1).name == "openai-compatible"


PROVIDERS = (
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


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_provider_is_no_dialect(provider: str) -> None:
    """Who names a provider has whichever of its APIs is spoken; of OpenAI's shape the last report counts."""
    reports = [{"prompt_tokens": 9, "completion_tokens": count} for count in (30, 3)]
    chunks = [sse({"choices": [], "usage": report}) for report in reports]
    seen = run_now([sse({"x": 1}), *chunks, sse("[DONE]")], provider)
    assert (seen.dialect, seen.usage, seen.authoritative) == ("openai", Usage(9, 3), True)
    assert run_now([sse({"x": 1})], provider).dialect == "openai"
    spoken = ("openai-compatible", "openai-responses", "anthropic")
    for stream in (stream for stream in STREAMS if stream.dialect in spoken):
        seen = run_now([stream.sse()], provider, expected_choices=stream.n)
        named = {"openai-compatible": "openai"}.get(stream.dialect, stream.dialect)
        assert seen.dialect == named
        if named != "openai":
            assert (seen.usage, seen.authoritative) == (stream.usage, stream.authoritative)


def test_an_unknown_name_lists_the_known_ones() -> None:
    """A misspelt name is an error that helps."""
    with pytest.raises(ValueError, match=r"'antropic'.*anthropic.*openai"):
        factory("antropic")


class Own(Toy):
    """A dialect of a user's own."""

    name: ClassVar[str] = "own"
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(rb"units")

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        units = payload.get("units")
        if units is not None:
            self.usage = Usage(0, units)
            self.authoritative = self.expected_choices == 3


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))


@pytest.mark.anyio
@pytest.mark.usefixtures("fresh")
async def test_a_dialect_of_ones_own() -> None:
    """A registered name is as good as a built-in one; the factory is given the expected choices."""
    register("own", Own)
    told = Told()
    body = [sse({"text": "hi"}), sse({"units": 9}), sse("[DONE]")]
    async for _ in observe_stream(
        generate(body), on_complete=told, dialect="own", expected_choices=3
    ):
        pass
    assert told.only.usage == Usage(0, 9)
    assert told.only.authoritative
    assert told.only.outcome == "end"


@pytest.mark.parametrize("name", ["", "openai", "mistral"])
@pytest.mark.usefixtures("fresh")
def test_a_name_is_given_once(name: str) -> None:
    """A name that is taken stays whose it is; an empty one is none."""
    before = dict(registry._factories)
    with pytest.raises(ValueError, match="name of its own"):
        register(name, Own)
    assert registry._factories == before


def test_the_built_in_dialects_are_dialects() -> None:
    """Each has what the protocol asks for, before it has read anything."""
    for name in (*TELL, "openai"):
        dialect: Dialect = factory(name)(1)
        assert (dialect.usage, dialect.ended) == (None, False)
        assert not dialect.final(complete=True)
        assert (dialect.finished, dialect.error) == (False, None)
        assert isinstance(dialect.trigger, re.Pattern)
