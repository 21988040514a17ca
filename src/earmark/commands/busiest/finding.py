"""The scopes that a server counts, found by SCAN a piece at a time, and the limits that they are known to have.

A server keeps what limits have used, by name, and not how much they allow: that stands in the records of open
reservations, and in policies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, cast

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import NoPermissionError

from earmark.backends.redis.keys import FORMAT, Keys
from earmark.core.notation import read_limit, read_scope
from earmark.limits import CONCURRENCY, Limit, Limits, Scope

CALLS: Final = 10
"""How often a server is asked for a piece of its keys each time: what it costs is bounded, however many there are."""
KEYS_PER_CALL: Final = 1_000
MOST_SCOPES: Final = 2_000
"""How many scopes are looked at."""
MOST_RECORDS: Final = 500
"""How many open reservations are read each time."""


class _Piece(NamedTuple):
    """Some of a server's keys: where scopes are counted, who has slots, and open reservations."""

    counts: dict[str, bytes]
    slots: set[str]
    records: list[bytes]


class Finder:
    """Finds scopes, a piece of the server's keys at a time, again and again from the beginning.

    Args:
        client: of the server, or of a cluster.
        namespace: what its keys begin with.
        limits_of: says what a key may use, where somebody knows.

    Attributes:
        found: the scopes by key. A limit of which nobody knows how much it allows has the amount 0.
        more: whether there are more scopes than are looked at.
        rounds: how often the whole of the server has been seen.
    """

    def __init__(
        self,
        client: Redis | RedisCluster,
        namespace: str,
        limits_of: Callable[[str], Scope | None],
    ) -> None:
        self._client: Any = client
        self._clustered = isinstance(client, RedisCluster)
        keys = Keys(namespace, "*") if self._clustered else Keys(namespace)
        self._pattern = keys.counts("*").replace(f":c{FORMAT}:", f":[crs]{FORMAT}:")
        tag = r"(?:\{\d+\})?" if self._clustered else ""
        name = f"{re.escape(namespace)}{tag}:([crs]){FORMAT}:(.+)"
        self._name = re.compile(name.encode(), re.DOTALL)
        self._limits_of = limits_of
        self._cursors: dict[str | None, int] = {}  # of the nodes that have keys left
        self._known: dict[str, Scope] = {}  # as open reservations, or policies, have them
        self.found: dict[str, Scope] = {}
        self.more = False
        self.rounds = 0

    async def look(self) -> None:
        """Look at the next piece of the server's keys."""
        piece = self._sorted(await self._names())
        for key in await self._learn(piece.records[:MOST_RECORDS]):
            if key in self.found:
                self._take(key, ())
        texts = await self._get(piece.counts.values())
        for key, text in zip(piece.counts, texts, strict=True):
            if text is not None and (counted := _counted(text)) is not None:
                self._take(key, counted)
        for key in piece.slots:
            self._take(key, [Limit(CONCURRENCY, 0)])

    def _sorted(self, names: list[bytes]) -> _Piece:
        """What names are for; scopes beyond the most are left out."""
        piece = _Piece({}, set(), [])
        taken = set(self.found)
        for match in filter(None, map(self._name.fullmatch, names)):
            letter, key = match[1], match[2].decode(errors="replace")
            if letter == b"r":
                piece.records.append(match[0])
            elif key not in taken and len(taken) >= MOST_SCOPES:
                self.more = True
            else:
                taken.add(key)
                if letter == b"c":
                    piece.counts[key] = match[0]
                else:
                    piece.slots.add(key)
        return piece

    def forget(self, keys: Iterable[str]) -> None:
        """Look at these no more: nothing of them is used."""
        for key in keys:
            self.found.pop(key, None)
            self._known.pop(key, None)

    async def _names(self) -> list[bytes]:
        """The next names of keys, of every node that has some left."""
        if not self._cursors:
            self._cursors = dict.fromkeys(await self._nodes(), 0)
        names: list[bytes] = []
        for node in list(self._cursors):
            for _ in range(CALLS):
                self._cursors[node], some = await self._scan(node, self._cursors[node])
                names += some
                if not self._cursors[node]:
                    del self._cursors[node]
                    break
        self.rounds += not self._cursors
        return names

    async def _nodes(self) -> list[str | None]:
        if not self._clustered:
            return [None]
        await self._client.initialize()
        return [node.name for node in self._client.get_primaries()]

    async def _scan(self, node: str | None, cursor: int) -> tuple[int, list[bytes]]:
        if node is None:
            found = await self._client.scan(cursor, self._pattern, KEYS_PER_CALL)
            return cast("tuple[int, list[bytes]]", found)
        target = self._client.get_node(node_name=node)
        if target is None:  # it has left the cluster
            return 0, []
        cursors, names = await self._client.scan(
            cursor, self._pattern, KEYS_PER_CALL, target_nodes=target
        )
        return cursors[node], names

    async def _get(self, names: Iterable[bytes]) -> list[bytes | None]:
        pipeline = self._client.pipeline(**({} if self._clustered else {"transaction": False}))
        for name in names:
            pipeline.get(name)
        answers: list[object] = await pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, NoPermissionError):  # else it would look as if nothing were there
                raise answer
        # What is no string is somebody else's.
        return [answer if isinstance(answer, bytes) else None for answer in answers]

    async def _learn(self, records: list[bytes]) -> set[str]:
        """Read what open reservations say of the limits of their scopes; return their keys."""
        if len(self._known) > 2 * MOST_SCOPES:
            self._known = {key: self._known[key] for key in self.found if key in self._known}
        learnt = {
            scope.key: scope for text in await self._get(records) for scope in _scopes_of(text)
        }
        self._known.update(learnt)
        return set(learnt)

    def _take(self, key: str, counted: Iterable[Limit]) -> None:
        """Make of a key a scope with all the limits that it is known to have, and those that it counts.

        Its counts and its slots may be found at different times.
        """
        known = self._limits_of(key) or self._known.get(key) or Scope(key, Limits())
        before = self.found[key].limits if key in self.found else ()
        limits: dict[str, Limit] = {}
        for limit in (*known.limits, *before, *counted):
            limits.setdefault(limit.id, limit)
        self.found[key] = Scope(key, Limits(also=limits.values()), known.enforce)


def amount_is_known(limit: Limit) -> bool:
    """Whether anybody knows how much a limit allows; what allows nothing counts nothing."""
    return limit.amount > 0


def _counted(text: bytes) -> list[Limit] | None:
    """The limits that are counted under a key; of a bucket the amount by which it was written last.

    None: it is of another release, or somebody else's.
    """
    try:
        _, *counts = json.loads(text)
        names = [at for at, one in enumerate(counts) if isinstance(one, str)]
        return [_limit(*counts[at : at + 4]) for at in names]
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


def _limit(name: str, *numbers: float | str) -> Limit:
    """A limit that is counted, from its name and what stands behind that."""
    return read_limit(name, int(numbers[2]) if name.startswith("b") else 0)


def _scopes_of(text: bytes | None) -> list[Scope]:
    """The scopes of an open reservation; of one that is over there is nothing to read."""
    try:
        _, body, *_ = (text or b"").decode().split("\n")
        return [read_scope(scope) for scope in json.loads(body)[2:]]
    except (ValueError, TypeError, LookupError):
        return []
