"""How many tokens a text is: roughly by its length, or by a tokenizer that is at hand.

An estimate is trued up when the usage is known, so a rough count costs nobody anything but room for as long as the
request runs. It has to be quick, since nothing else runs on the event loop meanwhile.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TypeAlias

from earmark.logs import about

logger = logging.getLogger("earmark.estimates")

Counter: TypeAlias = Callable[[str], int]
"""Takes a text, and returns how many tokens it is."""

# English has about four bytes of UTF-8 a token, and what is written in three bytes a letter about one letter.
_BYTES_PER_TOKEN: Final = 4

# What tiktoken reads for an encoding, and its SHA-256, as tiktoken_ext/openai_public.py names them.
_FILES: Final = "https://openaipublic.blob.core.windows.net/encodings"
_PUBLIC: Final = {
    "cl100k_base": (
        f"{_FILES}/cl100k_base.tiktoken",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base": (
        f"{_FILES}/o200k_base.tiktoken",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
}

# A text is encoded in pieces: the time that one word without a blank takes grows faster than its length.
_PIECE: Final = 4_096


def approximate(text: str) -> int:
    """A text's tokens by its length: one for every four bytes of UTF-8, rounded up."""
    # A lone surrogate, which JSON may have, is no UTF-8 and has three bytes all the same.
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // _BYTES_PER_TOKEN)


def tiktoken_counter(encoding: str = "o200k_base") -> Counter:
    """A counter by tiktoken, or `approximate` where tiktoken or the encoding is not at hand.

    Nothing is ever downloaded. At hand is what this process has loaded, what a plugin of tiktoken's brings along, and
    `o200k_base` (GPT-4o and later) and `cl100k_base` where their files are in tiktoken's cache (`TIKTOKEN_CACHE_DIR`).
    A warning says so where it is not.

    Args:
        encoding: the name that tiktoken knows it by.
    """
    reason = _missing(encoding)
    if reason is None:
        return _by_tiktoken(encoding)
    logger.warning(
        "tokens are counted by the length of texts: %s",
        reason,
        extra=about("counter_missing", reason=reason),
    )
    return approximate


def _missing(encoding: str) -> str | None:
    """Why an encoding is not at hand; None where it is."""
    if find_spec("tiktoken") is None:
        return "tiktoken is not installed"
    from tiktoken import list_encoding_names, registry

    if encoding in registry.ENCODINGS:
        return None
    if encoding not in list_encoding_names():
        return f"tiktoken knows no encoding {encoding!r}"
    constructor = (registry.ENCODING_CONSTRUCTORS or {})[encoding]
    if constructor.__module__ != "tiktoken_ext.openai_public" or _cached(encoding):
        return None
    return f"tiktoken would have to download {encoding!r}"


def _cached(encoding: str) -> bool:
    """Whether tiktoken finds the whole file of a public encoding in its cache."""
    if encoding not in _PUBLIC:
        return False
    url, digest = _PUBLIC[encoding]
    names = ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR")
    folder = next((os.environ[name] for name in names if name in os.environ), None)
    if folder == "":
        return False
    cache = Path(tempfile.gettempdir(), "data-gym-cache") if folder is None else Path(folder)
    # As tiktoken names the file; a broken one it would delete, and download.
    file = cache / hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest() == digest
    except OSError:
        return False


def _by_tiktoken(encoding: str) -> Counter:
    import tiktoken

    encode = tiktoken.get_encoding(encoding).encode_ordinary

    def count(text: str) -> int:
        return sum(
            len(encode(text[begin : begin + _PIECE])) for begin in range(0, len(text), _PIECE)
        )

    return count
