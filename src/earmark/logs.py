"""What records of the library's log are given beside their text: fields for programs, all by one name.

`record.earmark_event` is a stable word for what has happened, and what else there is to know of it stands beside it,
`record.earmark_reason` and so on. No key of a scope, no amount and no text of a request is ever among them, nor in a
message; a request's id is told at the level of errors alone, where somebody has to look for it.
"""

from __future__ import annotations


def about(event: str, **fields: str | float) -> dict[str, str | float]:
    """The fields of a record, as `extra` takes them.

    Args:
        event: what has happened.
        fields: what else is to be known: names without the library's own in front.
    """
    return {"earmark_event": event, **{f"earmark_{name}": value for name, value in fields.items()}}
