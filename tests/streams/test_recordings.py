"""Recorded streams of real providers, with an answer key, where the folder of recordings is present.

Each goes through an observer as the bytes of its body, whole, one byte at a time and cut at random, and as parsed
payloads. Usage, finality, finish reasons and ending must be those of the key; what comes out must be what went in.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from earmark.streams import observe_stream
from earmark.streams.detect import detect
from earmark.streams.reader import Reader
from tests.scale import examples
from tests.streams.toys import Told, cut, generate

pytestmark = pytest.mark.anyio

Entry = Mapping[str, Any]

# The dialect that each API of the recordings is written in.
DIALECTS = {
    "chat.completions": "openai-compatible",
    "completions": "openai-compatible",
    "responses": "openai-responses",
    "assistants.runs": "openai-assistants",
    "messages": "anthropic",
    "complete": "anthropic",
    "streamGenerateContent(alt=sse)": "gemini",
    "streamGenerateContent(JSON array)": "gemini",
    "interactions": "gemini-interactions",
    "ConverseStream": "bedrock",
    "InvokeModelWithResponseStream": "bedrock",
    "v2/chat": "cohere",
    "/api/chat": "ollama",
    "generation/text_stream": "watsonx",
    "predictions.stream": "replicate",
}
# Dialects that have no field for cached tokens: there were none, which is more than not knowing.
WITHOUT_CACHE = ("ollama", "watsonx")


def entries(recordings: Path) -> list[Entry]:
    """The answer key."""
    found: list[Entry] = json.loads((recordings / "index.json").read_text("utf-8"))["streams"]
    assert len(found) > 50
    return found


def truth(entry: Entry) -> dict[str, Any]:
    """What the key says, in the words of an observation."""
    raw, normalised = entry["expected"], entry["normalised"]
    dialect = DIALECTS[entry["api"]]
    cached, written = raw["cached_input_tokens"], raw["cache_creation_tokens"]
    if dialect in WITHOUT_CACHE:
        cached, written = cached or 0, written or 0
    known = {
        "input": normalised["input_total"],
        "output": normalised["output_total"],
        "cached": entry.get("normalised_cached", cached),
        "written": written,
        "reasoning": raw["reasoning_tokens"],
        "reported": raw["total_tokens"],
    }
    total = raw["total_tokens"] if normalised["total"] is None else normalised["total"]
    return {
        **(known if any(count is not None for count in known.values()) else dict.fromkeys(known)),
        "total": total,
        "authoritative": raw["authoritative"],
        "outcome": entry["earmark_outcome"],
        "reasons": raw["finished_choices"],
        "dialect": dialect,
    }


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[Reader]:
    """The readers that are made, in order: the first one for a stream is the one that the observer asks."""
    made: list[Reader] = []
    original = Reader.__init__

    def keep(self: Reader, expected_choices: int = 1) -> None:
        made.append(self)
        original(self, expected_choices)

    monkeypatch.setattr(Reader, "__init__", keep)
    return made


async def seen(
    readers: list[Reader], entry: Entry, items: Sequence[Any], dialect: str | None = None
) -> dict[str, Any]:
    """What an observer makes of these items, and that they pass through as they are."""
    told = Told()
    readers.clear()
    wrapped = observe_stream(
        generate(items),
        on_complete=told,
        dialect=dialect,
        expected_choices=entry["expected"]["expected_choices"],
    )
    out = [item async for item in wrapped]
    assert len(out) == len(items)
    assert all(one is other for one, other in zip(out, items, strict=True))
    observed, usage = told.only, told.only.usage
    return {
        "input": usage and usage.input_tokens,
        "output": usage and usage.output_tokens,
        "cached": usage and usage.cached_input_tokens,
        "written": usage and usage.cache_write_tokens,
        "reasoning": usage and usage.reasoning_tokens,
        "reported": usage and usage.reported_total,
        "total": usage and usage.total,
        "authoritative": observed.authoritative,
        "outcome": observed.outcome,
        "reasons": {str(index): reason for index, reason in readers[0].reasons.items()},
        "dialect": observed.dialect,
    }


def difference(entry: Entry, got: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The fields in which an observation is not the key's: what was seen, what is true."""
    true = truth(entry)
    return {name: (got[name], true[name]) for name in true if got[name] != true[name]}


def whole(body: bytes, _: random.Random) -> Iterator[list[bytes]]:
    """The body as one piece."""
    yield [body]


def bytewise(body: bytes, _: random.Random) -> Iterator[list[bytes]]:
    """One byte at a time."""
    yield [body[at : at + 1] for at in range(len(body))]


def anywhere(body: bytes, rng: random.Random) -> Iterator[list[bytes]]:
    """Cut at 50 random places, and at a few."""
    for places in (50, 2) * examples(6):
        yield cut(body, [rng.randrange(len(body)) for _ in range(places)])


@pytest.mark.parametrize("cutting", [whole, bytewise, anywhere])
async def test_the_bytes_of_a_recording_are_read_as_the_key_says(
    recordings: Path,
    readers: list[Reader],
    cutting: Callable[[bytes, random.Random], Iterator[list[bytes]]],
) -> None:
    """B33, C38, C39, C40: each provider's usage to the last token, wherever the bytes are cut."""
    wrong = {}
    for entry in entries(recordings):
        body = (recordings / entry["file"]).read_bytes()
        for pieces in cutting(body, random.Random(entry["file"])):
            found = difference(entry, await seen(readers, entry, pieces))
            if found:
                wrong[entry["file"]] = found
    assert not wrong


def payloads(recordings: Path, entry: Entry) -> list[Mapping[str, Any]]:
    """The events of a recording as parsed objects, cut out in the plainest way."""
    text = (recordings / entry["file"]).read_text("utf-8", "replace")
    if entry["format"] == "json":
        elements: list[Mapping[str, Any]] = json.loads(text)
        return elements
    if entry["format"] in ("ndjson", "jsonl"):
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    found: list[Mapping[str, Any]] = []
    for block in re.split(r"(?:\r\n|\r|\n){2}", text.removeprefix("\ufeff")):
        lines = re.split(r"\r\n|\r|\n", block)
        data = [line[5:].removeprefix(" ") for line in lines if line.startswith("data:")]
        errors = [line[6:] for line in lines if line.startswith("error:")]
        for source in ("\n".join(data), *errors, block):
            try:
                value = json.loads(source)
            except ValueError:
                continue
            if isinstance(value, dict):
                found.append(value)
    return found


async def test_the_payloads_of_a_recording_are_read_as_the_key_says(
    recordings: Path, readers: list[Reader]
) -> None:
    """Parsed events have no names and no `[DONE]`, and lead to the same; a stream of mere text has none."""
    wrong = {}
    for entry in entries(recordings):
        if entry["provider"] == "replicate":
            continue
        found = difference(entry, await seen(readers, entry, payloads(recordings, entry)))
        if found:
            wrong[entry["file"]] = found
    assert not wrong


async def test_a_named_dialect_reads_the_same_as_one_that_was_found(
    recordings: Path, readers: list[Reader]
) -> None:
    """Naming the dialect saves the finding out and changes nothing else."""
    wrong = {}
    for entry in entries(recordings):
        body = (recordings / entry["file"]).read_bytes()
        found = difference(entry, await seen(readers, entry, [body], DIALECTS[entry["api"]]))
        if found:
            wrong[entry["file"]] = found
    assert not wrong


def test_no_event_of_a_recording_belongs_to_another_dialect(recordings: Path) -> None:
    """Whichever event comes first, for one that is in the middle of a stream, it never leads astray."""
    wrong = {}
    for entry in entries(recordings):
        for payload in payloads(recordings, entry):
            made = detect(None, payload)
            if made is not None and made(1).name != DIALECTS[entry["api"]]:
                wrong[entry["file"]] = made(1).name, payload
    assert not wrong
