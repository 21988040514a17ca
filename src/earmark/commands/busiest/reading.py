"""What limits have used, by the script of `peek` and on a connection of redis-py's: with rights to read, and no others.

A backend would try on a key of its own whether it may write, and write there after an outage. Whoever only looks on
need not be allowed to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from redis import exceptions
from redis.asyncio import Redis, RedisCluster

from earmark.answers import ScopeStatus
from earmark.backends.redis.failures import Outage, StoreError, failure, unavailable
from earmark.backends.redis.keys import Keys, TaggedKeys
from earmark.backends.redis.messages import Message, Messages, states
from earmark.backends.redis.scripts import scripts
from earmark.backends.redis.several import groups_of
from earmark.core.admission import statuses
from earmark.errors import EarmarkError
from earmark.limits import Scope

# The server's clock; and for how long things are kept, of which nothing is written here.
_HEADER: Final = ("", "0", "0", "0")

# A script's user may not run a command, as servers of several releases say it.
_DENIED: Final = re.compile(r"NOPERM|no permissions|can't (?:run|access)")

Read = ScopeStatus | EarmarkError


class Reader:
    """Reads scopes, each by itself: one that somebody else has taken the key of disturbs no other.

    Args:
        client: of the server, or of a cluster.
        namespace: what its keys begin with.
    """

    def __init__(self, client: Redis | RedisCluster, namespace: str) -> None:
        self._client: Any = client
        self._clustered = isinstance(client, RedisCluster)
        keys = TaggedKeys(namespace) if self._clustered else Keys(namespace)
        self._messages = Messages(keys, 0)
        self._script = scripts(allow_oom=False)["peek"]

    async def read(self, scopes: Sequence[Scope]) -> list[tuple[Scope, Read]]:
        """What they have used, those of one slot of a cluster together; of one that cannot be read, why.

        Raises:
            BackendUnavailable, redis.RedisError: the server cannot be reached.
            StoreError: a right is missing: what is read without it is not all there is.
        """
        limited = tuple(scope for scope in scopes if scope.limits.all)
        groups = groups_of(limited) if self._clustered else [limited]
        calls = [[self._messages.peek((scope,)) for scope in group] for group in groups if group]
        answers = await self._run(calls)
        if any(isinstance(answer, exceptions.NoScriptError) for answer in answers):
            await self._client.script_load(self._script.text)
            answers = await self._run(calls)
        found: list[tuple[Scope, Read]] = []
        for group, answer in zip(groups, answers, strict=False):
            found += zip(group, _told(group, answer), strict=True)
        return found

    async def _run(self, calls: Iterable[Sequence[Message]]) -> list[object]:
        """The answer to each call, or its error."""
        pipeline = self._client.pipeline(**({} if self._clustered else {"transaction": False}))
        for messages in calls:
            keys = [key for message in messages for key in message.keys]
            texts = [message.text(again=False) for message in messages]
            pipeline.execute_command(
                "EVALSHA", self._script.sha, len(keys), *keys, *_HEADER, *texts
            )
        answers: list[object] = await pipeline.execute(raise_on_error=False)
        return answers


def _told(scopes: Sequence[Scope], answer: object) -> Iterator[Read]:
    if isinstance(answer, Exception):
        failed = failure(answer, sent=False)
        if isinstance(failed, Outage):
            raise unavailable(failed) from answer
        yield from [failed] * len(scopes)
    elif isinstance(answer, bytes):
        for scope, text in zip(scopes, answer.decode().split("\0"), strict=True):
            yield _status(scope, text)


def _status(scope: Scope, text: str) -> Read:
    _, word, rest = text.split(" ", 2)
    if word == "failed":
        if _DENIED.search(rest):
            raise StoreError(rest)
        return StoreError(rest)
    at, *seen = rest.split(" ")
    (status,) = statuses((scope,), None, states((scope,), seen), int(at))
    return status
