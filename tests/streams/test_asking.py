"""Asking for usage changes one option, where it is needed, and not another byte."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from earmark.streams.asking import ask_for_usage

CHAT: dict[str, Any] = {
    "model": "gpt-4o",
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
}
ASKED = {"include_usage": True}

NEEDS: dict[str, dict[str, Any]] = {
    "no options": CHAT,
    "legacy completions": {"model": "davinci-002", "prompt": "hi", "stream": True},
    "options null": {**CHAT, "stream_options": None},
    "options empty": {**CHAT, "stream_options": {}},
    "turned off": {**CHAT, "stream_options": {"include_usage": False}},
    "null": {**CHAT, "stream_options": {"include_usage": None}},
    "other options": {**CHAT, "stream_options": {"include_obfuscation": False}},
    "claude behind a router": {**CHAT, "model": "anthropic/claude-sonnet"},
    "n choices": {**CHAT, "n": 2},
}


@pytest.mark.parametrize("case", NEEDS)
def test_a_mapping_is_asked_for(case: str) -> None:
    """B64: a new mapping with usage turned on; the caller's own is as it was."""
    body = NEEDS[case]
    before = json.dumps(body)
    asked = ask_for_usage(body)
    assert asked is not body
    assert asked == {**body, "stream_options": {**(body.get("stream_options") or {}), **ASKED}}
    assert json.dumps(body) == before


@pytest.mark.parametrize("case", NEEDS)
@pytest.mark.parametrize("indent", [None, 2])
def test_bytes_and_text_are_asked_for(case: str, indent: int | None) -> None:
    """B64: bytes give bytes, text gives text, with the same meaning as the mapping."""
    text = json.dumps(NEEDS[case], indent=indent)
    asked = ask_for_usage(text)
    assert json.loads(asked) == ask_for_usage(NEEDS[case])
    assert ask_for_usage(text.encode()) == asked.encode()


EDITS = {
    '{"stream":true,"messages":[]}': (
        '{"stream":true,"messages":[],"stream_options":{"include_usage":true}}'
    ),
    ' { "messages" : [ ] , "stream" : true \r\n} \n': (
        ' { "messages" : [ ] , "stream" : true,"stream_options":{"include_usage":true} \r\n} \n'
    ),
    '{"stream_options": null, "messages":[],"stream":true}': (
        '{"stream_options": {"include_usage":true}, "messages":[],"stream":true}'
    ),
    '{"stream_options": { }, "messages":[],"stream":true}': (
        '{"stream_options": {"include_usage":true }, "messages":[],"stream":true}'
    ),
    '{"messages":[],"stream":true,"stream_options":{ "include_usage" : false , "x": 1.0 }}': (
        '{"messages":[],"stream":true,"stream_options":{ "include_usage" : true , "x": 1.0 }}'
    ),
    '{"messages":[],"stream":true,"stream_options":{"x":{"include_usage":false}}}': (
        '{"messages":[],"stream":true,"stream_options":{"include_usage":true,"x":{"include_usage":false}}}'
    ),
    '{"messages":["{\\"stream_options\\":null}}"],"stream":true,"a":1e5,"b":0.10,"\\u00e9":"é\\u2028"}': (
        '{"messages":["{\\"stream_options\\":null}}"],"stream":true,"a":1e5,"b":0.10,"\\u00e9":"é\\u2028"'
        ',"stream_options":{"include_usage":true}}'
    ),
    '\ufeff{"messages":[],"stream":true}': (
        '\ufeff{"messages":[],"stream":true,"stream_options":{"include_usage":true}}'
    ),
}


@pytest.mark.parametrize("body", EDITS)
def test_not_another_byte_changes(body: str) -> None:
    """B64: blanks, escapes, the way that numbers are written and the order of the members stay."""
    assert ask_for_usage(body) == EDITS[body]
    assert ask_for_usage(body.encode()) == EDITS[body].encode()


UNTOUCHED: dict[str, dict[str, Any]] = {
    "not streamed": {**CHAT, "stream": False},
    "not said to be streamed": {"model": "gpt-4o", "messages": []},
    "streamed is no boolean": {**CHAT, "stream": 1},
    "asked already": {**CHAT, "stream_options": {"include_usage": True}},
    "options are nonsense": {**CHAT, "stream_options": "usage"},
    "responses": {"model": "gpt-5", "input": "hi", "stream": True},
    "gemini": {"contents": [], "stream": True},
    "anthropic": {"model": "claude-sonnet-4", "max_tokens": 9, "messages": [], "stream": True},
    "anthropic on vertex": {**CHAT, "model": "m", "anthropic_version": "vertex-2023-10-16"},
    "anthropic, by its system prompt": {**CHAT, "system": "be brief"},
    "anthropic, by its tools": {**CHAT, "tools": [{"name": "f", "input_schema": {}}]},
    "mistral": {**CHAT, "model": "mistral-large-latest"},
    "cohere": {**CHAT, "model": "command-r-plus"},
    "ollama": {**CHAT, "keep_alive": "5m"},
    "something else": {"query": "hi", "stream": True},
    "empty": {},
}


@pytest.mark.parametrize("case", UNTOUCHED)
def test_where_it_is_not_needed_the_same_object_comes_back(case: str) -> None:
    """B64: so a gateway sees at once that the client had asked itself, or need not."""
    body = UNTOUCHED[case]
    text = json.dumps(body, indent=3)
    raw = text.encode()
    assert ask_for_usage(body) is body
    assert ask_for_usage(text) is text
    assert ask_for_usage(raw) is raw


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"not json",
        b"\xff\xfe{}",
        b'{"messages":[],"stream":true',
        b'{"messages":[],"stream":true}}',
        b'{"messages":[],"stream":true} {}',
        b'{"messages" [],"stream":true}',
        b'{"messages":[] "stream":true}',
        b'{7:[],"stream":true}',
        b'{"messages":' + b"[" * 100_000 + b',"stream":true}',
    ],
    ids=lambda body: repr(body[:30]),
)
def test_what_is_no_request_comes_back_as_it_is(body: bytes) -> None:
    """A broken body is the provider's to refuse."""
    assert ask_for_usage(body) is body


def test_any_kind_of_mapping_will_do() -> None:
    """A read-only mapping gives a new one."""
    asked = ask_for_usage(MappingProxyType(CHAT))
    assert asked["stream_options"] == ASKED


@pytest.mark.parametrize("body", [None, 7, [CHAT], object()])
def test_what_is_no_body_is_an_error(body: Any) -> None:
    """An object of a wrong type altogether is the caller's mistake."""
    with pytest.raises(TypeError, match="request body"):
        ask_for_usage(body)
