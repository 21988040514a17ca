"""One limit of many processes: the six messages, each one round trip to a Redis server.

The server decides, by scripts that mirror the memory backend, at its own clock; what they saw comes back and the core
computes the answers. Where the server cannot be reached, `on_outage` says who decides, and what it should have heard
is owed to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, Self, Unpack, get_args

from earmark.backends.health import Health
from earmark.backends.protocol import Desk, Seen
from earmark.backends.redis.asked import Again, Asked
from earmark.backends.redis.carrier import Carrier
from earmark.backends.redis.carriers import topology as topology_of
from earmark.backends.redis.client import Client
from earmark.backends.redis.failures import Outage, StoreError, is_owed, told, unavailable
from earmark.backends.redis.fallback import LocalShare
from earmark.backends.redis.lines import Lines, Post, of_every_loop, of_one_loop
from earmark.backends.redis.messages import Decided, Message, Messages, decided, hold_of, states
from earmark.backends.redis.renewal import Renewal
from earmark.backends.redis.replicas import Presence, Replicas
from earmark.backends.redis.settings import OnOutage, Settings, count, seconds, share
from earmark.backends.redis.several import Parts, Several, slices_of
from earmark.backends.redis.standing import Standing
from earmark.backends.redis.trips import PATIENCE
from earmark.clock import Clock, injected, locked, wall_clock
from earmark.core.admission import algorithm_of
from earmark.core.hold import Hold, Verb
from earmark.core.joint import divided, parts_of
from earmark.core.settlement import NOTHING
from earmark.errors import BackendUnavailable, RequestIdConflict
from earmark.ids import Id, id_of, name_of, next_id
from earmark.limits import HOUR, MICROSECONDS, Scope, lease_microseconds

# How long an open reservation is kept after its last renewal (R10).
_KEEP_US: Final = HOUR * MICROSECONDS

# A key outlives what it holds by this much, in milliseconds. An injected clock may stand still while the server's
# runs: what is over is judged by that clock, and the TTL is there for what nobody comes back to (R14).
_GRACE_MS: Final = 1_000
_GRACE_OF_INJECTED_MS: Final = 86_400_000

CLOSING_SECONDS: Final = 5.0
"""How long `aclose` tries to deliver what the store is owed."""


class RedisBackend:
    """Limits in Redis, shared by every process that uses the same server and namespace.

    Args:
        client: a client of `redis.asyncio`, whose settings are used: a `Redis`, also one of a `Sentinel`, or a
            `RedisCluster`. It serves one event loop; `from_url` serves as many as there are.
        namespace: what every key begins with: letters, digits, `_`, `.` and `-`.
        clock: a callable that returns seconds since the epoch; by default the server's own, which all processes
            share.
        lease: seconds for which a slot is held without a renewal, where a reservation names no lease of its own;
            at most an hour.
        timeout: seconds for which an answer is waited for before the store counts as unreachable.
        on_outage: who decides while the store cannot be reached: `local`, the memory of this process with a share
            of every amount; `open`, nobody, every request is admitted; `closed`, nobody, `BackendUnavailable` is
            raised.
        local_share: of every amount, above 0 and at most 1. The worst case of an outage is as many shares as there
            are processes. With `auto` the processes count one another, and each gives out its part.
        outbox: how many messages are kept for a store that cannot be reached.
        horizon: seconds for which it is remembered that a reservation is over, where a late copy of a message
            could count it twice; at most an hour, and four times `timeout` at least.

    Raises:
        ValueError: an argument out of its range.
        TypeError: another kind of client.
    """

    instant = None
    assured = True

    def __init__(
        self,
        client: Client,
        *,
        namespace: str = "earmark",
        clock: Clock | None = None,
        lease: float = 60.0,
        timeout: float = 0.5,
        on_outage: OnOutage = "local",
        local_share: float | Literal["auto"] = 1.0,
        outbox: int = 10_000,
        horizon: float = 60.0,
    ) -> None:
        topology = topology_of(
            client,
            namespace,
            count("outbox", outbox),
            seconds("timeout", timeout),
            check_clock=clock is None,
        )
        if on_outage not in get_args(OnOutage):
            msg = f"on_outage must be one of {', '.join(get_args(OnOutage))}, not {on_outage!r}"
            raise ValueError(msg)
        lease_us = lease_microseconds(lease)
        self.desk = Desk(tells_loops=True)
        self.name = f"redis:{namespace}"
        self._topology = topology
        self._messages = Messages(topology.keys, lease_us)
        self.clock = clock
        self._reading = locked(wall_clock() if clock is None else injected(clock))
        self._on_outage = on_outage
        # A message may be sent again for so long, and what it meets then has to know of the first copy.
        remembered = max(seconds("horizon", horizon), PATIENCE * timeout)
        self._lengths = (str(_KEEP_US), str(round(remembered * MICROSECONDS)))
        self._local = LocalShare(share(local_share), self._reading, lease_us, self.desk)
        counts = (on_outage, local_share) == ("local", "auto")
        self._replicas = Replicas(self._local, lease_us / MICROSECONDS) if counts else None
        self._present = next_id()
        self._outbox = self.desk.owed = topology.outbox
        self._standing = Standing(on_outage, self._local.worst_case, self._outbox)
        self._lines = Lines(of_one_loop(client), self._post)
        self._unsent = set[Id]()  # reserves that were cancelled before anything was sent for them
        self._several = Several(self._messages, self._line, self._owe, self._unsent)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        cluster: bool = False,
        client_options: Mapping[str, Any] | None = None,
        **options: Unpack[Settings],
    ) -> Self:
        """Return a backend for the server or cluster at `url`, with connections of its own for every event loop.

        Args:
            url: as `redis.asyncio.Redis.from_url` takes it: `redis://`, `rediss://` (TLS) or `unix://`, with user,
                password and database. Of a cluster, one node: it tells of the others.
            cluster: whether it is a cluster.
            client_options: further arguments of that function.
            options: those of `RedisBackend`.
        """
        client_of_loop = of_every_loop(url, client_options or {}, cluster=cluster)
        backend = cls(client_of_loop(), **options)
        backend._lines = Lines(client_of_loop, backend._post)
        return backend

    async def reserve(self, hold: Hold) -> Hold | None:
        """Decide over every limit of every scope at one instant, and debit all of them or none."""
        name = hold.request_id
        if name is not None and (known := self._taken_without_store(name, hold)) is not None:
            return known
        if self._topology.is_clustered and (parts := slices_of(hold)):
            return await self._reserve_parts(hold, parts)
        message = self._messages.reserve(hold)
        asked = self._line().place(message)
        try:
            answer = await asked.answer
        except (Outage, StoreError) as error:
            if error.sent:
                self._take_back(hold)  # it may have been applied
            if isinstance(error, StoreError):
                raise
            return self._without_store(hold, error)
        except asyncio.CancelledError:
            if asked.take_back():
                self._unsent.update(part.id for part in parts_of(hold))
            raise
        decision = decided(answer, message.id)
        if isinstance(answer, Again) and decision.word not in {"held", "gone"}:
            # Its first copy may be late, and find room by then: it is taken back before it comes.
            self._take_back(hold)
        return self._stands(hold, hold.scopes, decision)

    async def _reserve_parts(self, hold: Hold, parts: Parts) -> Hold | None:
        """The same, over several slots of a cluster."""
        try:
            decision = await self._several.reserve(hold, parts)
        except Outage as outage:
            return self._without_store(hold, outage)
        return self._stands(hold, hold.judged, decision)

    def _stands(self, hold: Hold, judged: tuple[Scope, ...], decision: Decided) -> Hold | None:
        """What the store has answered to a reserve."""
        self._local.tidy()
        if decision.word == "conflict":
            raise RequestIdConflict(hold.name)
        if decision.word == "adopted":
            return self._adopted(hold_of(decision, hold.name))
        if decision.word == "gone":
            msg = "the reservation was cancelled before the store had heard of it"
            raise BackendUnavailable(msg)
        hold.at = decision.at
        hold.seen = states(judged, decision.seen)
        hold.place, hold.travels = None, False  # see `Hold`
        return divided(hold) if decision.word == "held" else None

    async def resolve(
        self,
        hold: Hold,
        verb: Verb,
        exact: Mapping[str, int],
        at_least: Mapping[str, int],
    ) -> bool:
        """True up the holds of one reservation and free its slots; the first one wins (R5), also where its caller goes.

        Where the store cannot be reached the message is owed to it, and the answer is True.
        """
        if hold.degraded:
            return hold.place == "open" or self._local.resolve(hold, verb, exact, at_least)
        if verb == "withdraw" and hold.id in self._unsent:
            self._unsent.discard(hold.id)  # there is nothing to take back
            return True
        if self._topology.is_clustered and slices_of(hold):
            return await self._resolve_parts(hold, verb, exact, at_least)
        asked = self._line().place(self._messages.resolve(hold, verb, exact, at_least))
        try:
            answer = await asked.stays()
        except BaseException as error:
            if is_owed(error):
                self._lines.drop(hold)
            if not self._will_hear(asked, error):
                raise
            return True
        self._lines.drop(hold)
        if isinstance(answer, Again) and hold.is_private:
            return True  # nobody else knows this reservation: if it is gone, the first copy has resolved it
        return answer == "done"

    async def _resolve_parts(
        self, hold: Hold, verb: Verb, exact: Mapping[str, int], at_least: Mapping[str, int]
    ) -> bool:
        """The same, over several slots of a cluster."""
        try:
            won = await self._several.resolve(hold, verb, exact, at_least)
        except BaseException as error:
            if is_owed(error):
                self._lines.drop(hold)
            raise
        self._lines.drop(hold)
        return won

    async def add(
        self, target: Scope | str, amounts: Mapping[str, int], request_id: str | None
    ) -> bool:
        """Count what no hold covers (R8); owed to a store that cannot be reached."""
        asked = self._line().place(self._messages.add(target, amounts, request_id))
        try:
            return await asked.stays() == "counted"
        except BaseException as error:
            if not self._will_hear(asked, error):
                raise
            return True

    async def renew(self, holds: Sequence[Hold]) -> list[bool]:
        """Extend leases that have not lapsed; a lapsed one is never revived (C5)."""
        asked = [None if hold.degraded else self._renewal(hold) for hold in holds]
        held: list[bool] = []
        for hold, answer in zip(holds, asked, strict=True):
            if answer is None:
                held.append(hold.place == "open" or self._local.renew(hold))
            else:
                held.append(await told(answer) == "held")
        return held

    async def peek(self, scopes: tuple[Scope, ...]) -> Seen:
        """Read the state of every limit at one instant; on a cluster, of every slot."""
        if self._topology.is_clustered:
            return await told(self._several.peek(scopes))
        answer = await told(self._line().ask(self._messages.peek(scopes)))
        _, at, *seen = answer.split(" ")
        return Seen(states(scopes, seen), int(at))

    async def reset(self, scopes: tuple[Scope, ...]) -> None:
        """Forget counts; open holds on them then have nothing to give back."""
        if self._topology.is_clustered:
            await told(self._several.reset(scopes))
            return
        await told(self._line().ask(self._messages.reset(scopes)))

    def attend(self, hold: Hold) -> None:
        """Renew a reservation from now on, every third of its lease, until it is resolved (R10)."""
        if not hold.degraded:
            self._lines.here().renewal.attend(hold)
        elif hold.place == "local":
            self._local.attend(hold)

    def release(self, hold: Hold) -> None:
        """Its holder may be another process: it is renewed no longer."""
        if hold.degraded:
            self._local.release(hold)
        else:
            self._lines.drop(hold)

    def health(self) -> Health:
        """Whether the store can be reached, and what it is owed."""
        return self._standing.health()

    async def aclose(self) -> None:
        """Close what this loop has, once all is answered and delivered, or `CLOSING_SECONDS` have passed.

        What could not be delivered is logged, and stays in `health()`. Who asks later has another connection made.
        """
        await self._lines.close(CLOSING_SECONDS, owed=bool(self._outbox))
        self._standing.closed()

    def _line(self) -> Carrier:
        return self._lines.here().line

    def _post(self, client: Client, before: Post | None, *, brief: bool) -> Post:
        """What a loop gets that has nothing yet, or whose line is over: what is at work there is renewed as before."""
        self.desk.serve_here()
        carrier = self._topology.carrier(client, self._header, self._standing, brief=brief)
        sleep: Callable[[float], Awaitable[object]] = getattr(self.clock, "sleep", asyncio.sleep)
        now = time.monotonic if sleep is asyncio.sleep or self.clock is None else self.clock
        renewal = Renewal(self._line, self._messages, self._renewal, _KEEP_US, now, sleep)
        presence = None
        if self._replicas is not None:
            message = self._messages.present(self._present)
            presence = Presence(carrier, message, self._replicas, now, sleep, brief=brief)
        return Post(carrier, before.renewal if before else renewal, presence)

    def _renewal(self, hold: Hold) -> Awaitable[str]:
        """Ask the store to keep a reservation and its slots."""
        if self._topology.is_clustered and (parts := slices_of(hold)):
            return self._several.renew(hold, parts)
        return self._line().ask(self._messages.renew(hold))

    def _header(self) -> tuple[str, ...]:
        """What every call of a script begins with: the clock, if it is not the server's, and the lengths of time."""
        if self.clock is None:
            return ("", str(_GRACE_MS), *self._lengths)
        now = self._reading.nanoseconds() // 1000 + self._reading.ahead
        return (str(now), str(_GRACE_OF_INJECTED_MS), *self._lengths)

    def _will_hear(self, asked: Asked, error: BaseException) -> bool:
        """See to it that the store hears what it has to in any case; False: the caller has to know of the error."""
        if isinstance(error, (Outage, StoreError)):
            owed = is_owed(error)
            if owed:
                self._owe(asked.message)
            return owed
        message = asked.message
        if not asked.leave(lambda: self._owe(message)):
            self._owe(message)
        return False

    def _owe(self, message: Message) -> None:
        self._outbox.add(message)
        self._lines.wake()

    def _take_back(self, hold: Hold) -> None:
        """Have the store undo a reserve, and forget one that comes after this."""
        for part in parts_of(hold):
            self._owe(self._messages.resolve(part, "withdraw", NOTHING, NOTHING))

    def _without_store(self, hold: Hold, outage: Outage) -> Hold | None:
        """Decide in the store's place."""
        known = self.desk.known(hold.name)
        if known is not None and known.holder_of(known.hold) is not None:
            return _repeated(hold, known.hold)
        if self._on_outage == "closed":
            raise unavailable(outage) from outage
        if self._on_outage == "local":
            standing = self._local.reserve(hold)
        else:
            standing = hold
            hold.place = "open"
            hold.at = self._reading.nanoseconds() // 1000 + self._reading.ahead
            limits = [limit for scope in hold.scopes for limit in scope.limits]
            hold.seen = [algorithm_of(limit).unused() for limit in limits]
        if standing is hold:
            self._standing.admitted()
            divided(hold)
        return standing

    def _taken_without_store(self, name: str, hold: Hold) -> Hold | None:
        """The open reservation of this name that the store does not know of."""
        known = self.desk.known(name)
        if known is None or not known.hold.degraded or known.holder_of(known.hold) is None:
            return None
        return _repeated(hold, known.hold)

    def _adopted(self, found: Hold) -> Hold:
        """The hold that is open under a name: this process's own record of it, if it has one."""
        found.id = id_of(name_of(found.id)) or found.id
        known = self.desk.handles.get(found.alias)
        if known is not None and known.hold.id == found.id:
            return known.hold
        for noted in tuple(self.desk.dropped):
            if noted.hold.id == found.id:
                return noted.hold
        return found


def _repeated(hold: Hold, known: Hold) -> Hold:
    if not hold.repeats(known):
        raise RequestIdConflict(hold.name)
    return known
