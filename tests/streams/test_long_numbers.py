"""Numbers too long to be any: Python refuses to read them, and JSON has them all the same."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from earmark import ask_for_usage, usage_from_response
from earmark.streams import observe_stream
from earmark.usage import Usage
from tests.streams.toys import Told, Toy, generate, run

pytestmark = pytest.mark.anyio

LONG = "9" * 5000
USAGE = f'{{"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": {LONG}}}'
CHUNK = f'{{"choices": [{{"index": 0, "delta": {{}}, "finish_reason": "stop"}}], "usage": {USAGE}}}'


@pytest.mark.parametrize("number", [LONG, "-" + LONG])
@pytest.mark.parametrize("framing", ["data: %s\n\n", "%s\n", "[%s]"])
@pytest.mark.parametrize("max_event", [16 * 1024 * 1024, 4096])
async def test_a_long_number_is_no_count_and_hides_none(
    number: str, framing: str, max_event: int
) -> None:
    """C35: it is as if it had not been sent, and the other counts of its event are read."""
    body = framing % CHUNK.replace(LONG, number)
    seen = await run([body.encode()], None, max_event=max_event)
    assert seen.usage == Usage(9, 3)
    if max_event > 4096:
        assert (seen.authoritative, seen.outcome) == (True, "end")


async def test_a_long_number_elsewhere() -> None:
    """A length or a time that nobody reads does not matter either."""
    seen = await run([f'data: {{"created": {LONG}, {CHUNK[1:].replace(LONG, "12")}\n\n'], None)
    assert seen.usage == Usage(9, 3, reported_total=12)


def test_a_long_number_in_a_whole_response() -> None:
    """B39: a body that was not streamed reads the same."""
    assert usage_from_response(CHUNK) == usage_from_response(CHUNK.encode()) == Usage(9, 3)


async def test_a_long_number_within_bedrock() -> None:
    """Native events are JSON within JSON."""
    native = (
        '{"type":"message_delta","delta":{"stop_reason":"end_turn"},'
        f'"usage":{{"output_tokens":3,"input_tokens":9}},"x":{LONG}}}'
    )
    chunk = {"chunk": {"bytes": base64.b64encode(native.encode()).decode()}}
    seen = await run([json.dumps(chunk).encode()], None)
    assert seen.usage == Usage(9, 3)


def test_a_request_with_a_long_number_is_asked() -> None:
    """B64: the one option is added, and the number stays as it is."""
    body = f'{{"stream": true, "messages": [], "seed": {LONG}}}'
    asked = ask_for_usage(body)
    assert asked == body[:-1] + ',"stream_options":{"include_usage":true}}'
    assert ask_for_usage(asked) is asked


@pytest.mark.parametrize("as_text", [True, False])
async def test_a_report_with_a_long_number_is_hidden(*, as_text: bool) -> None:
    """B64: whoever did not ask for the report does not see this one either."""
    event = f'data: {{"usage": {{"in": 9, "out": {LONG}}}}}\n\n'
    items: list[Any] = [event] if as_text else [event.encode()]
    stream = observe_stream(generate(items), on_complete=Told(), dialect=Toy, hide_usage=True)
    assert [item async for item in stream] == []
