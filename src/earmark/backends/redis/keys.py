"""What the keys are called on the server.

A namespace has no colon, and the letter after it tells what a key is for, so that no two of them are ever the
same, whatever a scope's key or a request id contains (R13). Behind the letter stands the format of what is under
the key, a number, but for the first one, which has none: `earmark:c2:...`. Releases of two formats that share a server
during an upgrade see nothing of each other, where one could not read what the other has written.

On a cluster a tag stands behind the namespace, `earmark{866}:c:...`: the number of the slot on which Redis would put
the scope's key itself, by its own `{tag}` if it has one. So the keys of one scope are on one slot, that of the number,
whatever the scope's key contains, and whoever writes `{tenant}` into several keys has those scopes side by side, though
not beside other keys of that tag. A namespace has no brace.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import Final

from redis.crc import key_slot

from earmark.ids import is_name

FORMAT: Final = ""
"""Of what the scripts keep: another one, "2" and so on, whenever a release could not read what the last one wrote."""

_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}\Z")


class Keys:
    """The names under one namespace.

    Args:
        namespace: letters, digits, `_`, `.` and `-`.
        tag: of the slot on which all of them are; by default none, on a server that is not part of a cluster.

    Raises:
        ValueError: another namespace.
    """

    __slots__ = ("_counts", "_once", "_record", "_slots", "probe", "replicas")

    def __init__(self, namespace: str, tag: str = "") -> None:
        if not _NAMESPACE.match(namespace):
            msg = f"namespace must be 1 to 64 letters, digits, '_', '.' or '-', not {namespace!r}"
            raise ValueError(msg)
        prefix = f"{namespace}{{{tag}}}" if tag else namespace
        self._counts = f"{prefix}:c{FORMAT}:"
        self._slots = f"{prefix}:s{FORMAT}:"
        self._record = f"{prefix}:r{FORMAT}:"
        self._once = f"{prefix}:o{FORMAT}:"
        self.probe = f"{prefix}:p"
        self.replicas = f"{prefix}:n{FORMAT}"

    def beside(self, key: str) -> Keys:
        """The names of what is on one server with a scope's key, or with the name of a reservation."""
        return self

    def counts(self, key: str) -> str:
        """What the limits of a scope have used."""
        return self._counts + key

    def slots(self, key: str) -> str:
        """Who holds a slot of a scope."""
        return self._slots + key

    def record(self, id_: str) -> str:
        """An open reservation, by the library's own id of it; that it is over, whatever it was called."""
        return self._record + id_

    def named(self, request_id: str) -> str:
        """An open reservation, by the name that its caller chose, which is no id: none of these begins like this."""
        return f"{self._record}={request_id}"

    def meant(self, request_id: str) -> tuple[str, ...]:
        """What a name may mean that reads like an id of the library's: the reservation of that id."""
        return (self.record(request_id),) if is_name(request_id) else ()

    def once(self, message: str) -> str:
        """That a message without a reservation was applied."""
        return self._once + message

    def added(self, key: str, request_id: str) -> str:
        """That a request id was counted for a key."""
        return f"{self._once}{len(key)}:{key}{request_id}"


@lru_cache(maxsize=8_192)
def tag_of(key: str) -> str:
    """What stands between the braces, by a scope's key or by the name of a reservation."""
    return str(key_slot(key.encode()))


class TaggedKeys:
    """The names under one namespace, on a cluster.

    Args:
        namespace: as for `Keys`.
    """

    __slots__ = ("at",)

    def __init__(self, namespace: str) -> None:
        self.at = lru_cache(maxsize=4_096)(partial(Keys, namespace))

    def meant(self, _request_id: str) -> tuple[str, ...]:
        """Nothing: an id leads to no slot."""
        return ()

    def beside(self, key: str) -> Keys:
        """The names of what is on one slot with a scope's key, or with the name of a reservation."""
        return self.at(tag_of(key))
