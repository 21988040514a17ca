"""Estimates from request bodies of five APIs: what is asked, what is clamped, what is not asked at all.

The counter of most rows counts words, so that a row can be checked by eye: its input is its words, and four for each
message.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import tiktoken
import tiktoken.load
import tiktoken.registry
from hypothesis import given, settings
from hypothesis import strategies as st

from earmark import Limit, Limiter, Limits, RateLimited, Scope, Usage
from earmark.amounts import MAX_AMOUNT
from earmark.estimates import approximate, estimate, tiktoken_counter
from tests.scale import examples

DEFAULT: Final = 1_024
CEILING: Final = 32_768
PICTURE: Final = 1_000
BASE64: Final = "QUJD" * 10_000


def words(text: str) -> int:
    """How many words a text has."""
    return len(text.split())


def chat(*contents: Any, **more: Any) -> dict[str, Any]:
    """A body of OpenAI's or Anthropic's with a message for each content."""
    return {"messages": [{"role": "user", "content": one} for one in contents], **more}


def gemini(*parts: Any, **config: Any) -> dict[str, Any]:
    """A body of Gemini's."""
    return {
        "contents": [{"role": "user", "parts": list(parts)}],
        "generationConfig": config,
    }


NOTHING: Final[list[Any]] = [None, -1, 1.5, True, "50", [], {}, float("nan"), float("inf")]

# A body, its input and its output.
BODIES: Final[list[tuple[dict[str, Any], int, int]]] = [
    # OpenAI's chat completions
    (chat("one two three", max_tokens=50), 3 + 4, 50),
    (chat("one", "two three", max_completion_tokens=50), 3 + 8, 50),
    (chat("one", max_tokens=50, max_completion_tokens=70), 1 + 4, 70),  # the largest of the caps
    (chat("one", max_tokens=70, max_completion_tokens=50), 1 + 4, 70),
    (chat("one", max_tokens=50, n=3), 1 + 4, 150),  # C34: the output times n, the prompt once
    (chat("one"), 1 + 4, DEFAULT),
    (chat("one", n=2), 1 + 4, 2 * DEFAULT),
    (chat([{"type": "text", "text": "one two"}], max_tokens=5), 2 + 4, 5),
    (
        chat([{"type": "image_url", "image_url": {"url": BASE64, "detail": "low"}}], max_tokens=5),
        PICTURE + 4,
        5,
    ),
    (
        chat([{"type": "input_audio", "input_audio": {"data": BASE64}}], max_tokens=5),
        PICTURE + 4,
        5,
    ),
    (chat([{"type": "file", "file": {"file_data": BASE64}}], max_tokens=5), PICTURE + 4, 5),
    (
        {
            "messages": [
                {"role": "system", "content": "be kind"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c 1",
                            "type": "function",
                            "function": {"name": "f", "arguments": "a b"},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c 1", "content": "four words are here"},
            ],
            "max_tokens": 5,
        },
        2 + 1 + 2 + 4 + 12,
        5,
    ),
    # a tool costs its description, the names of its fields among them
    (
        chat(
            "one",
            max_tokens=5,
            tools=[{"type": "function", "function": {"name": "f", "parameters": {"x": {}}}}],
        ),
        1 + 4 + words("type function function name f parameters x"),
        5,
    ),
    # completions: the sum over all prompts, each of which is answered (B45)
    ({"prompt": "one two", "max_tokens": 16}, 2 + 4, 16),
    ({"prompt": ["one two", "three", "four"], "max_tokens": 16}, 4 + 4, 48),
    ({"prompt": ["one two", "three"], "max_tokens": 16, "n": 2}, 3 + 4, 64),
    ({"prompt": "one", "max_tokens": 16, "n": 2, "best_of": 3}, 1 + 4, 48),
    ({"prompt": [11, 12, 13], "max_tokens": 16}, 3 + 4, 16),  # one prompt, as tokens
    ({"prompt": [[11, 12, 13], [14]], "max_tokens": 16}, 4 + 4, 32),
    ({"prompt": ["one"] * 3}, 3 + 4, 3 * DEFAULT),
    ({"prompt": "one", "suffix": "two three", "max_tokens": 16}, 3 + 4, 16),
    ({"prompt": [], "max_tokens": 16}, 4, 16),
    # Responses
    ({"input": "one two", "instructions": "be kind", "max_output_tokens": 9}, 4 + 4, 9),
    (
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "one two"}]},
                {"type": "input_image", "image_url": f"data:image/png;base64,{BASE64}"},
                {"type": "reasoning", "id": "r 1", "encrypted_content": BASE64},
                {"type": "function_call_output", "call_id": "c 1", "output": "three"},
            ]
        },
        3 + PICTURE + 4,
        DEFAULT,
    ),
    # embeddings, as a Responses body without an output
    ({"input": ["one two", "three"], "model": "text-embedding-3-small"}, 3 + 4, DEFAULT),
    ({"input": [[1, 2, 3], [4]]}, 4 + 4, DEFAULT),
    # Anthropic's messages
    (chat("one two", system="be kind", max_tokens=9), 4 + 4, 9),
    (chat("one", system=[{"type": "text", "text": "be kind"}], max_tokens=9), 3 + 4, 9),
    (
        chat(
            [
                {"type": "image", "source": {"type": "base64", "data": BASE64}},
                {"type": "document", "source": {"type": "text", "data": "one two"}},
                {"type": "tool_use", "id": "t 1", "name": "f", "input": {"q": "three four"}},
                {
                    "type": "tool_result",
                    "tool_use_id": "t 1",
                    "content": [{"type": "text", "text": "five"}],
                },
                {"type": "thinking", "thinking": "six seven", "signature": BASE64},
            ],
            max_tokens=9,
        ),
        PICTURE + words("text one two f three four five six seven") - 1 + 4,
        9,
    ),
    # Gemini
    (gemini({"text": "one two"}, maxOutputTokens=9), 2 + 4, 9),
    (gemini({"text": "one"}, maxOutputTokens=9, candidateCount=2), 1 + 4, 18),
    (gemini({"inlineData": {"mimeType": "image/png", "data": BASE64}}), PICTURE + 4, DEFAULT),
    (gemini({"fileData": {"fileUri": "gs://a"}}), PICTURE + 4, DEFAULT),
    (
        {
            **gemini({"text": "one"}),
            "systemInstruction": {"parts": [{"text": "be kind"}]},
        },
        3 + 4,
        DEFAULT,
    ),
    (
        {
            "contents": "one",
            "system_instruction": "be kind",
            "generation_config": {"max_output_tokens": 9, "candidate_count": 2},
        },
        3 + 4,
        18,
    ),
    # C32: a cap that a client made up is clamped; no cap is none
    (chat("one", max_tokens=10**9), 1 + 4, CEILING),
    (chat("one", max_tokens=10**400), 1 + 4, CEILING),
    (chat("one", max_tokens=10**9, n=10**9), 1 + 4, 128 * CEILING),
    (chat("one", max_tokens=0), 1 + 4, 0),
    *((chat("one", max_tokens=nothing), 1 + 4, DEFAULT) for nothing in NOTHING),
    *(
        (chat("one", max_tokens=7, n=nothing), 1 + 4, 7)
        for nothing in (None, 0, -2, 1.5, "2", True)
    ),
    # what is no request
    ({}, 4, DEFAULT),
    (chat(), 4, DEFAULT),
    ({"messages": "one two"}, 2 + 4, DEFAULT),
    ({"messages": [None, 5, "one", ["two"]]}, 3 + 16, DEFAULT),
    ({"messages": {"content": "one"}}, 1 + 4, DEFAULT),
]


@pytest.mark.parametrize(("body", "input_", "output"), BODIES, ids=lambda value: str(value)[:40])
def test_what_a_body_asks(body: dict[str, Any], input_: int, output: int) -> None:
    """B45, C32 and C34 for every API, as a mapping, as bytes and as a text alike."""
    expected = Usage(input_, output, cached_input_tokens=0)
    assert estimate(body, count=words) == expected
    text = json.dumps(body)
    assert estimate(text, count=words) == expected
    assert estimate(text.encode(), count=words) == expected
    assert estimate(bytearray(text, "utf-16"), count=words) == expected


@pytest.mark.parametrize(
    "body", [b"", b"\xff", "no json", "[1, 2]", '"a"', "null", "[" * 100_000, b"--x\r\n"]
)
def test_what_is_no_request_has_an_unknown_input(body: bytes | str) -> None:
    """C32: what cannot be read is unknown, which is neither 0 nor the whole of a limit."""
    assert estimate(body) == Usage(output_tokens=DEFAULT)
    assert estimate(body, output=7) == Usage(output_tokens=7)


@pytest.mark.parametrize("body", [None, 5, ["a"], object()])
def test_another_kind_of_object_is_a_type_error(body: object) -> None:
    """A body is a mapping, bytes or a text."""
    with pytest.raises(TypeError, match="a request body is"):
        estimate(body)


def test_settings() -> None:
    """The default and the ceiling are the caller's, and are amounts."""
    assert estimate(chat("one"), output=16_384).output_tokens == 16_384
    assert estimate(chat("one"), output=0).output_tokens == 0
    assert estimate(chat("one"), output=500, ceiling=100).output_tokens == 100
    assert estimate(chat("one", max_tokens=500, n=2), ceiling=100).output_tokens == 200
    for bad in (-1, 1.5, True, 2**53):
        with pytest.raises(ValueError, match="output"):
            estimate(chat("one"), output=bad)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="ceiling"):
            estimate(chat("one"), ceiling=bad)  # type: ignore[arg-type]


def test_a_cap_can_be_demanded() -> None:
    """C37: the helper gives its default, or an error, by choice; without a limit of tokens not even that."""
    assert estimate(chat("one", max_tokens=5), output=None).output_tokens == 5
    with pytest.raises(ValueError, match="max_tokens"):
        estimate(chat("one"), output=None)
    requests = Scope("a", Limits(rpm=5))
    assert estimate(chat("one"), scopes=[requests], output=None) == Usage()


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        (Limits(), False),
        (Limits(rpm=5, concurrency=2), False),
        (Limits(also=[Limit("images", 5, 60)]), False),
        (Limits(tpd=5), True),
        (Limits(otpm=5), True),
        (Limits(itpm=5), True),
        (Limits(also=[Limit("uncached_tokens", 5, 60)]), True),
    ],
    ids=repr,
)
def test_nothing_is_counted_where_no_limit_of_tokens_applies(limits: Limits, asked: bool) -> None:
    """C37: a text is read only where a limit of tokens applies in any of the scopes."""
    counted = []

    def count(text: str) -> int:
        counted.append(text)
        return 1

    scopes = [Scope("a", Limits(rpm=1)), Scope("b", limits)]
    assert (estimate(chat("one"), scopes=scopes, count=count) != Usage()) == asked
    assert bool(counted) == asked


@pytest.mark.anyio
async def test_estimates_as_asks() -> None:
    """C32, C34: six requests of an unknown output fit and the seventh does not; n = 4 fits and n = 5 does not."""
    limiter = Limiter()
    key = Scope("key", Limits(tpm=100_000))
    for _ in range(6):
        await (
            await limiter.pre_commit(key, tokens=estimate(chat(), output=16_384))
        ).close_reserved_only()
    with pytest.raises(RateLimited):
        await limiter.pre_commit(key, tokens=estimate(chat(), output=16_384))
    small = Scope("small", Limits(tpm=1_000))
    four, five = (estimate(chat("word " * 96, max_tokens=200, n=n), count=words) for n in (4, 5))
    with pytest.raises(RateLimited) as caught:
        await limiter.pre_commit(small, tokens=five)
    assert caught.value.denials[0].asked == 1_100
    reservation = await limiter.pre_commit(small, tokens=four)
    assert reservation.held["tokens"] == 900
    await reservation.settle_success(Usage(100, 700))


@pytest.mark.anyio
async def test_a_made_up_cap_takes_no_whole_limit() -> None:
    """C32: max_tokens of a thousand million is clamped, and asks every token metric."""
    limiter = Limiter()
    scope = Scope(
        "key",
        Limits(
            tpm=100_000, itpm=100_000, otpm=100_000, also=[Limit("uncached_tokens", 100_000, 60)]
        ),
    )
    reservation = await limiter.pre_commit(
        scope, tokens=estimate(chat("a" * 400, max_tokens=10**9))
    )
    (status,) = reservation.statuses
    assert {limit.limit.metric: limit.used for limit in status.limits} == {
        "tokens": 104 + CEILING,
        "input_tokens": 104,
        "output_tokens": CEILING,
        "uncached_tokens": 104 + CEILING,
    }
    await reservation.cancel()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("é" * 4, 2), ("漢字" * 4, 6), ("\ud800", 1)],
)
def test_approximation(text: str, tokens: int) -> None:
    """One token for every four bytes of UTF-8."""
    assert approximate(text) == tokens


@pytest.mark.parametrize("wrong", [-1, 1.5, None, "5", 2**60, True])
def test_a_counter_that_fails_is_replaced(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    """C32: where a tokenizer fails, or gives what is no count, the length of the text counts; and it is logged."""
    assert estimate(chat("a" * 40), count=lambda _: wrong).input_tokens == 10 + 4

    def fails(_: str) -> int:
        raise LookupError

    assert estimate(chat("a" * 40), count=fails).input_tokens == 10 + 4
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


def test_a_body_that_contains_itself_ends() -> None:
    """A mapping of this process may contain itself, and a part may stand in it twice."""
    message: dict[str, Any] = {"role": "user", "content": "one two"}
    assert estimate({"messages": [message, message]}, count=words).input_tokens == 4 + 8
    message["content"] = [message, message]
    assert estimate({"messages": [message]}).output_tokens == DEFAULT


# What a body may have in it, by name; and anything at all below that.
FIELDS: Final = st.sampled_from(
    """messages prompt input contents content parts text role type source image_url tools tool_calls system n best_of
    max_tokens max_completion_tokens max_output_tokens generationConfig maxOutputTokens candidateCount config""".split()  # noqa: SIM905
)
ANYTHING: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=examples(150))
@given(st.dictionaries(FIELDS, ANYTHING), st.integers(0, MAX_AMOUNT), st.integers(0, MAX_AMOUNT))
def test_hostile_bodies_do_not_raise(body: dict[str, Any], output: int, ceiling: int) -> None:
    """Whatever a client sends has an estimate, of which both parts are amounts, as a mapping and as JSON alike."""
    usage = estimate(body, output=output, ceiling=ceiling)
    assert usage.input_tokens is not None
    assert usage.output_tokens is not None
    assert estimate(json.dumps(body), output=output, ceiling=ceiling) == usage
    prompts = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
    assert usage.output_tokens <= ceiling * 128 * max(prompts, 1)


@given(st.text(), st.text(), st.integers(0, 100), st.integers(1, 5))
def test_more_is_never_less(first: str, second: str, cap: int, n: int) -> None:
    """A longer prompt, a larger cap and more answers never make an estimate smaller."""
    base = estimate(chat(first, max_tokens=cap, n=n)).floors()
    for more in (
        chat(first + second, max_tokens=cap, n=n),
        chat(first, second, max_tokens=cap, n=n),
        chat(first, max_tokens=cap + 1, n=n),
        chat(first, max_tokens=cap, n=n + 1),
    ):
        larger = estimate(more).floors()
        assert all(larger[metric] >= amount for metric, amount in base.items())


@pytest.fixture
def no_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of tiktoken's, in which every download fails the test."""

    def download(url: str) -> bytes:
        pytest.fail(f"downloads {url}")

    monkeypatch.setattr(tiktoken.load, "read_file", download)
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    return tmp_path


def small() -> dict[str, Any]:
    """An encoding of single bytes and one pair of them."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    return {
        "name": "small",
        "pat_str": r"\S+|\s+",
        "mergeable_ranks": {**ranks, b"ab": 256},
        "special_tokens": {"<|end|>": 257},
    }


@pytest.mark.parametrize("how", ["loaded", "of a plugin"])
def test_tiktoken_counts_where_its_encoding_is_at_hand(
    how: str, no_download: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An encoding that is loaded, or that a plugin brings along, counts, in pieces, whatever is in the text."""
    if how == "loaded":
        tiktoken.registry.ENCODINGS["small"] = tiktoken.Encoding(**small())
    else:
        monkeypatch.setattr(tiktoken.registry, "ENCODING_CONSTRUCTORS", {"small": small})
    count = tiktoken_counter("small")
    assert count("abab c") == 4
    assert count("<|end|>") == 7
    assert count("\ud800") > 0
    assert count("ab" * 100_000) == 100_000
    assert estimate(chat("abab"), count=count).input_tokens == 2 + 4


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base", "p50k_base", "no such"])
def test_tiktoken_never_downloads(
    encoding: str,
    no_download: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An encoding that is not at hand is not fetched: the length counts, and a warning says so."""
    assert tiktoken_counter(encoding) is approximate
    assert len(caplog.records) == 1
    # A file that is broken would be fetched anew.
    url = f"https://openaipublic.blob.core.windows.net/encodings/{encoding}.tiktoken"
    (no_download / hashlib.sha1(url.encode()).hexdigest()).write_bytes(b"broken")  # noqa: S324
    assert tiktoken_counter(encoding) is approximate
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")  # no cache at all
    assert tiktoken_counter(encoding) is approximate


def test_a_cached_encoding_is_at_hand(no_download: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A public encoding whose whole file is in tiktoken's cache is read from there."""
    from earmark.estimates import counting

    url = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
    data = b"whole"
    (no_download / hashlib.sha1(url.encode()).hexdigest()).write_bytes(data)  # noqa: S324
    monkeypatch.setattr(
        counting, "_PUBLIC", {"o200k_base": (url, hashlib.sha256(data).hexdigest())}
    )
    assert counting._missing("o200k_base") is None
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR")
    monkeypatch.setenv("DATA_GYM_CACHE_DIR", str(no_download))
    assert counting._missing("o200k_base") is None


def test_the_public_files_are_tiktokens_own(
    no_download: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names and sums of the files are those that tiktoken asks for."""
    from earmark.estimates import counting

    asked = {}

    def load(url: str, expected_hash: str) -> dict[bytes, int]:
        asked[url] = expected_hash
        return {bytes([byte]): byte for byte in range(256)}

    public = importlib.import_module("tiktoken_ext.openai_public")  # it has no types
    monkeypatch.setattr(public, "load_tiktoken_bpe", load)
    for encoding, (url, digest) in counting._PUBLIC.items():
        public.ENCODING_CONSTRUCTORS[encoding]()
        assert asked.pop(url) == digest
    assert not asked


def test_without_tiktoken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where tiktoken is not installed the length counts, and a warning says so."""
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    assert tiktoken_counter() is approximate
    assert "not installed" in caplog.text
