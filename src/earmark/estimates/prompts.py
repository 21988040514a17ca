"""What a model would read of a request body, whichever provider's it is.

The parts that are read have names of their own in each API, and mean the same wherever they stand, so one walk serves
OpenAI's (chat, completions, Responses, embeddings), Anthropic's and Gemini's bodies. Pictures, sound and files are no
text, however long their base64 is: each stands for a number of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from earmark.streams.counts import items_of, mapping_of

# At the top of a body: what the model reads, and descriptions, of which it reads the names of fields too.
_TEXTS: Final = (
    "messages",
    "prompt",
    "input",
    "instructions",
    "system",
    "contents",
    "systemInstruction",
    "system_instruction",
    "suffix",
)
_DESCRIBED: Final = ("tools", "functions", "response_format", "text", "output_config")

# What has a picture, sound or a file in it, or names one.
_MEDIA: Final = frozenset(
    {
        "image_url",
        "input_audio",
        "file",
        "file_data",
        "file_id",
        "file_url",
        "fileData",
        "inlineData",
        "inline_data",
        "source",
        "video_url",
    }
)
# What says how a part is meant and is read by nobody.
_LABELS: Final = frozenset(
    {
        "type",
        "role",
        "id",
        "call_id",
        "tool_call_id",
        "tool_use_id",
        "cache_control",
        "status",
        "signature",
        "thoughtSignature",
        "thought_signature",
        "encrypted_content",
        "detail",
    }
)

# A mapping of this process, unlike JSON, may contain itself.
_MOST_PARTS: Final = 1_000_000


class Read(NamedTuple):
    """What a model would read."""

    texts: list[str]
    tokens: int
    """Prompts that are tokens already (completions and embeddings take them)."""
    media: int
    """Pictures, sounds and files."""
    messages: int
    """Messages, each of which has some tokens round it."""


def read(body: Mapping[str, Any]) -> Read:
    """Everything that a model would read of a body."""
    texts: list[str] = []
    media = tokens = parts = 0
    waiting: list[tuple[object, bool]] = [(body.get(name), False) for name in _TEXTS]
    waiting += [(body.get(name), True) for name in _DESCRIBED]
    while waiting and parts < _MOST_PARTS:
        value, described = waiting.pop()
        parts += 1
        if isinstance(value, str):
            texts.append(value)
            continue
        for name, inner in mapping_of(value).items():
            if described:
                texts.append(name)
            elif name in _LABELS:
                continue
            elif name in _MEDIA and not _is_text(name, inner):
                media += inner is not None
                continue
            waiting.append((inner, described))
        for item in items_of(value):
            if type(item) is int:
                tokens += 1
            else:
                waiting.append((item, described))
    return Read(texts, tokens, media, max(len(items_of(body.get("messages"))), 1))


def _is_text(name: str, inner: object) -> bool:
    """Whether a source is text (a document or a search's result of Anthropic's), which is read as such."""
    if name != "source":
        return False
    return isinstance(inner, str) or mapping_of(inner).get("type") in {"text", "content"}


def prompts_of(body: Mapping[str, Any]) -> int:
    """How many prompts a body has, each of which is answered: a completion may have several (B45)."""
    prompts = items_of(body.get("prompt"))
    texts = sum(1 for prompt in prompts if isinstance(prompt, (str, list, tuple)))
    return max(texts, 1)
