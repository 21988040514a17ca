"""What of a provider's headers is passed on to a client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def passed_on(headers: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Those of the headers that have one of these names, and something that can be sent.

    A value that is no printable ASCII is left out: many a server cannot send it.

    Args:
        headers: the provider's, of any case.
        names: in lower case.
    """
    found = {name.lower(): value for name, value in headers.items()}
    return {
        name: value
        for name in names
        if (value := found.get(name)) and value.isascii() and value.isprintable()
    }
