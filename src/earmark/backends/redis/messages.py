"""The messages as the scripts read them, and their answers.

A message is a head, a body of JSON, and the keys that it touches. What a scope and its limits look like in a body is
made once and kept: a gateway asks about the same ones again and again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

from earmark.backends.redis.keys import Keys, TaggedKeys
from earmark.core.admission import States
from earmark.core.hold import Hold, Verb
from earmark.core.joint import Joint
from earmark.core.notation import (
    read_amounts,
    read_scope,
    write_amounts,
    write_limits,
    write_metric,
    write_scope,
)
from earmark.ids import name_of, next_id
from earmark.limits import CONCURRENCY, MICROSECONDS, Limit, Limits, Scope

# A bare key counts in these always, since it may not have been seen (R8). Amounts play no part in it.
_BARE_KEY: Final = Limits(tpm=0, tph=0, tpd=0)

# How a resolution is answered that is the one that counts, or withdraws what nobody else has heard of, or what nobody
# has any more.
_WON: Final = frozenset(("done", "buried", "freed"))


@dataclass(slots=True)  # frozen or a tuple, it would take longer to make: nobody changes it
class Message:
    """One message.

    Attributes:
        verb: what is to be done: the name of its script.
        id: names the message, and for a reservation's the reservation; the answer begins with it.
        keys: every key that it touches.
        body: JSON.
        named: 1 where the reservation answers to a name that its caller chose, 2 where that may mean one by its id.
        then: what is to be sent once this one has won: the same about its parts on other slots of a cluster.
        at_once: whether it does not wait for what else its caller may ask at the same moment.
    """

    verb: str
    id: str
    keys: tuple[str, ...]
    body: str
    named: int = 0
    then: tuple[Message, ...] = ()
    at_once: bool = False

    @property
    def resolves(self) -> bool:
        """Whether a reservation is over by it, whoever else was given that."""
        return self.verb == "resolve" and not self.body.startswith('["withdraw"')

    def follows(self, answer: str) -> tuple[Message, ...]:
        """What is to be sent once this was answered so.

        Where nobody is left who was given what another message has made, that is withdrawn on the other slots as well.
        """
        word, _, id_ = answer.partition(" ")
        if word not in _WON:
            return ()
        return self.then + tuple(_about(id_, one) for one in self.then if id_)

    def text(self, *, again: bool) -> str:
        """The argument of a call."""
        sent = "1" if again else "0"
        return f"{len(self.keys)} {self.named} {sent} {self.verb} {self.id} {self.body}"


def _about(id_: str, message: Message) -> Message:
    """The same about the reservation that another message has made."""
    own, *others = message.keys
    return replace(message, id=id_, keys=(own.removesuffix(message.id) + id_, *others))


class _Written(NamedTuple):
    """What a scope is in a message.

    Attributes:
        keys: of its counts and its slots.
        text: as it stands in a body.
        slots: whether it limits concurrency.
    """

    keys: tuple[str, ...]
    text: str
    slots: bool


@dataclass(slots=True)  # as `Message`
class Decided:
    """What the store answered to a reserve.

    Attributes:
        word: `held`, `refused`, `adopted`, `conflict`, or `gone` where it was cancelled before it came; to a look
            whether a name is free, also `free`.
        id: the reservation that stands.
        at: the instant of the decision.
        seen: the states of all limits, as text.
        body: the message that made the reservation, where it was another one.
        named: whether that answers to the name that was asked for, or else to its id.
    """

    word: str
    id: str
    at: int
    seen: Sequence[str]
    body: str
    named: bool = True


class Messages:
    """Makes the messages of one backend.

    Args:
        keys: the names of its keys.
        lease_us: microseconds for which a slot is held where a hold names no lease of its own.
    """

    def __init__(self, keys: Keys | TaggedKeys, lease_us: int) -> None:
        self._keys = keys
        self._lease_us = lease_us
        # By the value of the limits, which has their order in it.
        self._scope = lru_cache(maxsize=8_192)(self._encode_scope)

    def reserve(self, hold: Hold) -> Message:
        """Decide and debit."""
        if isinstance(hold, Joint):
            return self._reserve_parts(hold.parts)
        id_ = name_of(hold.id)
        keys = self._own_keys(hold, id_)
        if hold.request_id is not None:
            keys += self._keys.meant(hold.request_id)
        named = len(keys) - 1
        scopes = ""
        lease: float = 0
        for scope in hold.scopes:
            written = self._scope(scope.key, scope.limits, scope.enforce)
            keys += written.keys
            scopes += written.text
            if written.slots:
                lease = _seconds(self.lease_of(hold))
        body = f"[{lease},{_amounts(hold.asks)}{scopes}]"
        return Message("reserve", id_, keys, body, named, at_once=True)

    def claim(self, hold: Hold, seen: str = "") -> Message:
        """Have a reservation over several slots answer to its name, or look whether that is free.

        Args:
            hold: the whole of it.
            seen: when it was decided and what was seen then; where nothing is taken yet, nothing.
        """
        id_ = name_of(hold.id)
        body = f"{seen}\n{self.reserve(hold).body}"
        return Message("claim", id_, self._own_keys(hold, id_), body, named=1)

    def _reserve_parts(self, parts: tuple[Hold, ...]) -> Message:
        """All at once: the messages of the parts, a line each, with all records in front of the other keys."""
        messages = [self.reserve(part) for part in parts]
        keys = tuple(message.keys[0] for message in messages)
        keys += tuple(key for message in messages for key in message.keys[1:])
        body = "\n".join(message.body for message in messages)
        return Message("reserve", messages[0].id, keys, body, at_once=True)

    def lease_of(self, hold: Hold) -> int:
        """Microseconds for which a slot is held without a renewal."""
        return hold.lease_us or self._lease_us

    def resolve(
        self,
        hold: Hold,
        verb: Verb,
        exact: Mapping[str, int],
        at_least: Mapping[str, int],
        then: tuple[Message, ...] = (),
    ) -> Message:
        """True up and free; `then` is sent once this has won."""
        id_ = name_of(hold.id)
        keys = self._own_keys(hold, id_)
        named = len(keys) - 1
        for scope in hold.scopes:
            keys += self._scope(scope.key, scope.limits, scope.enforce).keys
        known = 2 if then else 0 if hold.is_private else 1
        told = f'"{verb}",{_amounts(exact)},{_amounts(at_least)},"{name_of(next_id())}"'
        body = f"[{told},{known}]"
        return Message("resolve", id_, keys, body, named, then, at_once=hold.settles_alone)

    def renew(self, hold: Hold) -> Message:
        """Keep the reservation, and its slots."""
        id_ = name_of(hold.id)
        keys = list(self._own_keys(hold, id_))
        named = len(keys) - 1
        for scope in hold.scopes:
            names = self._keys.beside(scope.key)
            if any(limit.algorithm == "token_bucket" for limit in scope.limits):
                keys.append(names.counts(scope.key))
            if limits_slots(scope):
                keys.append(names.slots(scope.key))
        return Message("renew", id_, tuple(keys), "", named)

    def add(
        self, target: Scope | str, amounts: Mapping[str, int], request_id: str | None
    ) -> Message:
        """Count what no hold covers."""
        id_ = name_of(next_id())
        bare = isinstance(target, str)
        key = target if isinstance(target, str) else target.key
        limits = _BARE_KEY if isinstance(target, str) else target.limits
        names = self._keys.beside(key)
        once = names.once(id_) if request_id is None else names.added(key, request_id)
        windows = [limit for limit in limits if limit.metric != CONCURRENCY]
        body = _json([int(not bare), write_amounts(amounts), *write_limits(windows)])
        return Message("add", id_, (once, names.counts(key)), body)

    def peek(self, scopes: tuple[Scope, ...]) -> Message:
        """Read."""
        keys, texts = self._scopes(scopes, ())
        return Message("peek", name_of(next_id()), keys, f"[0,{{}}{texts}]")

    def reset(self, scopes: tuple[Scope, ...]) -> Message:
        """Forgive."""
        id_ = name_of(next_id())
        once = self._keys.beside(scopes[0].key).once(id_)
        keys, texts = self._scopes(scopes, (once,))
        return Message("reset", id_, keys, f"[0,{{}}{texts}]")

    def present(self, id_: int) -> Message:
        """Say that this process is alive; a forked child says it under a name of its own."""
        key = self._keys.beside("replicas").replicas
        return Message("present", name_of(id_), (key,), str(self._lease_us))

    def _own_keys(self, hold: Hold, own: str) -> tuple[str, ...]:
        """Where its record is, and before that, where a caller chose its name, what stands under that."""
        if isinstance(hold.id, str) and hold.id.split() != [hold.id]:
            msg = f"no process has given this id to a reservation: {hold.id[:60]!r}"
            raise ValueError(msg)
        if hold.request_id is None:
            return (self._keys.beside(hold.scopes[0].key).record(own),)
        names = self._keys.beside(hold.request_id)
        return (names.named(hold.request_id), names.record(own))

    def _scopes(
        self, scopes: tuple[Scope, ...], keys: tuple[str, ...]
    ) -> tuple[tuple[str, ...], str]:
        """All keys, and all scopes as they stand in a body."""
        texts = ""
        for scope in scopes:
            written = self._scope(scope.key, scope.limits, scope.enforce)
            keys += written.keys
            texts += written.text
        return keys, texts

    def _encode_scope(
        self,
        key: str,
        limits: Limits,
        enforce: bool,  # noqa: FBT001 - the cache takes positions
    ) -> _Written:
        names = self._keys.beside(key)
        keys: tuple[str, ...] = (names.counts(key),)
        scope = Scope(key, limits, enforce)
        slots = limits_slots(scope)
        if slots:
            keys += (names.slots(key),)
        return _Written(keys, f",{_json(write_scope(scope))}", slots)


def limits_slots(scope: Scope) -> bool:
    """Whether a scope limits concurrency."""
    return CONCURRENCY in scope.limits.by_metric


def decided(answer: str, id_: str) -> Decided:
    """Read the answer to a reserve."""
    word, _, rest = answer.partition(" ")
    if word in {"held", "refused"}:
        at, *seen = rest.split(" ")
        return Decided(word, id_, int(at), seen, "")
    if word in {"adopted", "met"}:
        line, _, body = rest.partition("\n")
        id_, at, *seen = line.split(" ")
        return Decided("adopted", id_, int(at), seen, body, named=word == "adopted")
    return Decided(word, id_, 0, (), "")


def states(scopes: tuple[Scope, ...], seen: Sequence[str]) -> States:
    """The states of all limits, in order, as the core reads them."""
    found: list[object] = []
    numbers = iter(seen)
    for scope in scopes:
        for limit in scope.limits.all:
            if limit.algorithm == "fixed_window":  # slots as well: one number
                found.append(int(next(numbers)))
            elif limit.algorithm == "sliding_window":
                found.append((int(next(numbers)), int(next(numbers))))
            else:
                found.append((float(next(numbers)), int(next(numbers)), int(next(numbers))))
    return found


def numbers_of(limit: Limit) -> int:
    """How many numbers the state of a limit is told in."""
    return {"fixed_window": 1, "sliding_window": 2, "token_bucket": 3}[limit.algorithm]


def hold_of(decision: Decided, request_id: str) -> Hold:
    """The reservation that another process made."""
    lease, asks, *scopes = json.loads(decision.body)
    hold = Hold()
    hold.id = decision.id
    hold.request_id = request_id if decision.named else None
    hold.travels = True
    hold.scopes = tuple(map(read_scope, scopes))
    hold.asks = read_amounts(asks)
    hold.lease_us = round(lease * MICROSECONDS) or None
    hold.at = decision.at
    hold.seen = states(hold.scopes, decision.seen)
    return hold


def _amounts(amounts: Mapping[str, int]) -> str:
    """Amounts by metric, as they stand in a body. By hand, since a JSON encoder costs more than all the rest."""
    if not amounts:  # one of the two of every settlement
        return "{}"
    written = ""
    for metric, amount in amounts.items():
        written += f",{_quoted(metric)}:{amount}"
    return f"{{{written[1:]}}}"


def _seconds(lease_us: int) -> float:
    """Mostly whole ones, without a fraction: a record takes less memory so."""
    return lease_us / MICROSECONDS if lease_us % MICROSECONDS else lease_us // MICROSECONDS


@lru_cache(maxsize=1_024)
def _quoted(metric: str) -> str:
    return _json(write_metric(metric))


_json: Final = json.JSONEncoder(separators=(",", ":")).encode
