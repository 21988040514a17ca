"""The provider of the demo: earmark's own stand-in, which streams one body and waits where it is told."""

from __future__ import annotations

from typing import Final

from earmark.testing.provider import Act, Provider, Recorded
from earmark.testing.provider.dialects import Chat

MODEL: Final = "stand-in-1"


def stand_in(body: Recorded) -> Provider:
    """Streams this body to everyone; an answer in one piece uses 30 tokens, and any other model is a 404."""
    return Provider(Act(output_tokens=20), recorded=body, models={MODEL})


def spoken(prompt: int, completion: int) -> Recorded:
    """A stream of OpenAI's shape: a few words, a report, `[DONE]`."""
    act = Act(chunks=3, input_tokens=prompt, output_tokens=completion)
    asked = {"model": MODEL}
    with_usage = {**asked, "stream_options": {"include_usage": True}}
    said, told = (b"".join(Chat().events(act, one)) for one in (asked, with_usage))
    return Recorded("text/event-stream", told, said)
