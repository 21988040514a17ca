"""Reading JSON as it comes: with numbers of any length.

Python reads no integer of more than some thousand digits, and one such number, wherever it stands, would hide all
that an event says. It is read as a float, as other readers of JSON do: infinity, which is no count.
"""

from __future__ import annotations

import json
from typing import Any, Final


def _number(digits: str) -> float:
    try:
        return int(digits)
    except ValueError:
        return float(digits)


# Only what the first cannot read is read by the second: asked about each number, Python takes several times as long.
_raw_decode: Final = json.JSONDecoder().raw_decode
_raw_decode_any: Final = json.JSONDecoder(parse_int=_number).raw_decode


def value_at(text: str, at: int = 0) -> tuple[Any, int]:
    """The JSON value that begins there, and where it ends.

    Raises:
        ValueError: none begins there, or it is broken.
        RecursionError: it is nested too deeply.
    """
    try:
        return _raw_decode(text, at)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return _raw_decode_any(text, at)


def decoded(text: str) -> Any:  # noqa: ANN401 - whatever the JSON holds
    """The JSON value that a text is, which begins without blanks.

    Raises:
        ValueError: it is none.
        RecursionError: it is nested too deeply.
    """
    try:
        value, end = _raw_decode(text)  # as in `value_at`, without a call: this reads every event
    except json.JSONDecodeError:
        raise
    except ValueError:
        value, end = _raw_decode_any(text)
    if end != len(text) and not text[end:].isspace():
        msg = f"something follows at character {end}"
        raise ValueError(msg)
    return value


def loaded(body: str | bytes | bytearray) -> Any:  # noqa: ANN401 - as above
    """The JSON value that a body is, in any encoding that JSON may have and with blanks around it.

    Raises:
        ValueError: it is none.
        RecursionError: it is nested too deeply.
    """
    try:
        return json.loads(body)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return json.loads(body, parse_int=_number)
