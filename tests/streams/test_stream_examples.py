"""The examples of streams print what was settled: with an SDK of each provider, and as a proxy of bytes."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Final

import pytest

EXAMPLES: Final = Path(__file__).parent.parent.parent / "examples"

PRINTED: Final = {
    "stream_openai.py": """\
Hello from the loopback.
  settled: 304 tokens held, used: 23
Hello
  closed: 307 tokens held, used: unknown
""",
    "stream_anthropic.py": """\
Hello from the loopback.
  settled: 4 input_tokens held, used: 420
  settled: 300 output_tokens held, used: 9
  the last event is here
""",
    "stream_gemini.py": """\
Hello from the loopback.
  settled: 304 tokens held, used: 81
Hello
  settled: 307 tokens held, used: 81
""",
    "stream_proxy.py": """\
300 tokens held, 23 used: 5 of 5 events of /v1/chat/completions, untouched: True
300 tokens held, 23 used: 4 of 5 events of /v1/chat/completions, untouched: True
300 tokens held, 429 used: 7 of 7 events of /v1/messages, untouched: True
300 tokens held, 81 used: 2 of 2 events of /v1/models/stand-in-1:streamGenerateContent, untouched: True
""",
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_examples_print_what_was_settled(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each runs here as a script would, where its SDK is imported already."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("NO_PROXY", "")  # which they set themselves
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert capsys.readouterr().out == PRINTED[name]
