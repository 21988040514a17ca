"""Runs one history through two limiters, one in memory and one on Redis, and compares whatever either of them shows.

Memory is held to the plain model by the machine, so that what agrees with it here is right for the same reasons.
Numbers are compared as they are, a `retry_after` to the last bit (R12). A message of the store may come once more at
any time (`Replay`): it must change nothing, and be answered as the first was (R9).

Reservations that renew themselves are left out: what lives in this process needs no lease in memory, and one in Redis
(R10).
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from earmark import Limiter, MemoryBackend, RateLimited, RequestIdConflict, Reservation
from earmark.backends.book import KEEP_US
from earmark.backends.protocol import Backend
from earmark.backends.redis.asked import Again
from earmark.backends.redis.messages import Message
from earmark.core.hold import Hold
from earmark.ids import name_of
from earmark.testing.histories import steps as do
from earmark.testing.histories.player import AGES, START, Player
from earmark.testing.histories.translation import scope_of, us_of
from tests.stores import Recording, Sent

HORIZON_US: Final = 60_000_000

# A look costs as much as a step: there is one before what would hide a difference.
_HIDES: Final = (do.Wait, do.WaitFor, do.Reset, do.Amend, do.Peek)

_VERBS: Final = {"close": "close_reserved_only", "leave": "close_reserved_only", "enter": "renew"}


class Side:
    """One of the two limiters, with its reservations in the order of their admission."""

    def __init__(self, backend: Backend) -> None:
        self.limiter = Limiter(backend)
        self.handles: list[Reservation | None] = []
        self.holds: list[Hold] = []

    def name(self, number: int) -> str:
        """What a reservation answers to."""
        handle = self.handles[number]
        return self.holds[number].name if handle is None else handle.request_id

    async def ask(self, scopes: list[Any], name: str | None, step: do.PreCommit) -> object:
        """Ask, and tell everything that the answer says."""
        try:
            handle = await self.limiter.pre_commit(
                *scopes,
                tokens=step.tokens,
                amounts=dict(step.amounts) or None,
                request_id=name,
                lease=step.lease,
            )
        except RateLimited as refused:
            return ("refused", refused.denials, refused.retry_after, refused.retryable)
        except RequestIdConflict as conflict:
            return ("conflict", conflict.request_id == name)
        for number, known in enumerate(self.handles):
            if known is handle:
                return ("again", number)
        self.handles.append(handle)
        self.holds.append(handle._hold)
        keys = [scope.key for scope in handle.scopes]
        return ("admitted", keys, handle.held, handle.statuses, handle.degraded)

    def shown(self) -> list[tuple[str, Mapping[str, int]] | None]:
        """What every handle shows."""
        return [None if one is None else (one.state, one.held) for one in self.handles]

    def drop(self, number: int) -> set[type[Warning]]:
        """Drop a handle, and tell of what that warns."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.handles[number] = None
        kinds = {warning.category for warning in caught if isinstance(warning.source, Reservation)}
        caught.clear()  # a warning names its source
        return kinds


class Twins(Player):
    """One history, through memory and through Redis."""

    def __init__(
        self, offers: tuple[do.Offer, ...], make: Callable[[Any], Recording], start: int = START
    ) -> None:
        super().__init__(offers, start)
        self.backend = make(self.clock)
        self.latest = start
        self.begin()

    def begin(self) -> None:
        """Begin a life: memory knows of nothing, and for Redis whatever was before must be as if it had not been."""
        self.memory_backend = MemoryBackend(clock=self.clock)
        self.memory = Side(self.memory_backend)
        self.redis = Side(self.backend)
        self.backend.sent.clear()
        self.turn = 0
        self.names: set[str] = set()
        self.replayed: set[str] = set()

    @property
    def now(self) -> int:
        """The present time."""
        self.latest = max(self.latest, self.us)
        return self.latest

    @property
    def book(self) -> Any:
        """The open reservations of the memory backend."""
        return self.memory_backend.instant._book

    async def both(self, call: Callable[[Side], Awaitable[object]]) -> Any:
        """Do the same on both sides; they answer alike."""
        expected = await call(self.memory)
        answer = await call(self.redis)
        assert answer == expected
        return answer

    async def run(self, steps: tuple[do.Step, ...], lives: int = 1) -> None:
        """Do every step; then, when everything is over, so many times again."""
        try:
            for life in range(lives):
                if life:
                    self.begin()
                for step in steps:
                    await self.step(step)
                await self.end()
        finally:
            await self.let_go()

    async def step(self, step: do.Step) -> None:
        """Do one step, and look."""
        self.turn += 1
        self.backend.turn = self.turn
        self.backend.now = self.now
        if isinstance(step, _HIDES):
            await self.look()
        doing = getattr(self, f"do_{type(step).__name__.lower()}")(step)
        if inspect.isawaitable(doing):
            await doing
        assert self.redis.shown() == self.memory.shown()
        if any(note.lapsed for note in self.book.notes.values()):
            self.marks.add("lapsed lease")

    async def look(self) -> None:
        """Every scope."""
        scopes = [scope_of(offer) for offer in self.offers]
        seen = await self.both(lambda side: side.limiter.peek(*scopes))
        self.resets = [
            us_of(one.reset_after) for scope in seen for one in scope.limits if one.reset_after
        ]

    def is_open(self, number: int) -> bool:
        """Whether a reservation is open in the store at this moment."""
        hold = self.memory.holds[number]
        return hold.id in self.book.open and self.now < self.kept_until(hold)

    def kept_until(self, hold: Hold) -> int:
        """For how long an open reservation is kept."""
        note = self.book.notes.get(hold.id)
        return max(hold.at, note.renewed if note else 0) + KEEP_US

    def pick(self, number: int) -> int | None:
        """The reservation of a number, from the last one backwards, if its handle is still there."""
        index = -1 - number % len(self.memory.holds) if self.memory.holds else 0
        return index if index and self.memory.handles[index] else None

    def end_of(self, what: str, number: int) -> float | None:
        """What the memory backend says."""
        index = self.pick(number)
        if index is None or not self.is_open(index):
            return None
        hold = self.memory.holds[index]
        if what == "lease":
            note = self.book.notes.get(hold.id)
            return note.lease_end or None if note else None
        return self.kept_until(hold)

    # The steps.

    async def do_precommit(self, step: do.PreCommit) -> None:
        """Ask, under an id of the caller's or a new one."""
        holds = self.memory.holds
        if step.name is None or step.name >= 0 or not holds:
            name = None if step.name is None else f"id{step.name}"
            await self.ask(step, lambda side: name)
        else:
            number = step.name % len(holds)
            await self.ask(step, lambda side: side.name(number))

    async def do_again(self, step: do.Again) -> None:
        """Ask for the same id: the reservation that is open (R9), else a new one."""
        if self.memory.holds:
            number = -1 - step.hold % len(self.memory.holds)
            asks = dict(self.memory.holds[number].asks)
            keys = [scope.key for scope in self.memory.holds[number].scopes]
            offers = tuple(n for n, offer in enumerate(self.offers) if offer.key in keys)[::-1]
            tokens = asks.pop("tokens", 0)
            again = do.PreCommit(offers, tokens, tuple(asks.items()))
            await self.ask(again, lambda side: side.name(number))

    async def ask(self, step: do.PreCommit, name_of_side: Callable[[Side], str | None]) -> None:
        """Ask both."""
        scopes = [scope_of(offer) for offer in self.chosen(step.offers)]
        name = name_of_side(self.memory)
        if name is not None:
            if not any(scope.limits.all for scope in scopes) and self.is_given_up(name):
                return
            self.marks |= {"reused id"} if name in self.names else set()
            self.names |= {name, name_of_side(self.redis) or ""}
        word, *rest = await self.both(lambda side: side.ask(scopes, name_of_side(side), step))
        if word == "refused":
            denials, _, retryable = rest
            self.retry = max((us_of(one.retry_after or 0) for one in denials), default=0)
            self.marks |= {"refusal"} | (set() if retryable else {"impossible ask"})
        elif word == "conflict":
            self.marks.add("conflict of ids")
        elif word == "again":
            self.marks.add("open id asked again")

    def is_given_up(self, name: str) -> bool:
        """Whether a name is that of a reservation which its store has given up, and its holder has not.

        A request that no limit concerns sends nothing: on Redis it finds that the name is taken, until somebody asks.
        """
        return any(
            hold.name == name
            and not self.is_open(n)
            and (self.memory.shown()[n] or ("",))[0] == "open"
            for n, hold in enumerate(self.memory.holds)
        )

    async def resolve(self, index: int, verb: str, *arguments: Any) -> None:
        """Resolve by the limiter's verb or by the handle's, in turns."""
        if self.turn % 2:
            await self.both(
                lambda side: getattr(side.limiter, verb)(side.handles[index], *arguments)
            )
        else:
            await self.both(lambda side: getattr(side.handles[index], verb)(*arguments))

    async def do_settle(self, step: do.Settle) -> None:
        """Settle."""
        index = self.pick(step.hold)
        if index is not None:
            self.see_rollover(index)
            used = dict(step.used) if type(step.used) is tuple else step.used
            await self.resolve(index, "settle_success", used)

    def see_rollover(self, index: int) -> None:
        """Note a hold whose window has gone when it is settled, and one that is kept no longer."""
        hold, now = self.memory.holds[index], self.now
        windows = {
            limit.window_us
            for scope in hold.scopes
            for limit in scope.limits
            if limit.window and limit.algorithm != "token_bucket"
        }
        if self.is_open(index) and any(now // w > hold.at // w for w in windows):
            self.marks.add("rollover between hold and settle")
        state = self.memory.shown()[index]
        if windows and state is not None and state[0] == "open" and not self.is_open(index):
            self.marks.add("resolved after keep")

    async def do_finish(self, step: do.Finish) -> None:
        """Every way to end a reservation but settling it, and renewal."""
        index = self.pick(step.hold)
        if index is None:
            return
        verb = _VERBS.get(step.how, step.how)
        self.marks.add(verb)
        if verb == "renew":
            await self.both(lambda side: side.handles[index].renew())  # type: ignore[union-attr]
        elif verb == "drop":
            assert self.redis.drop(index) == self.memory.drop(index)
        else:
            self.see_rollover(index)
            await self.resolve(index, verb)

    async def do_add(self, step: do.Add) -> None:
        """Count afterwards."""
        offer = self.offers[step.offer % len(self.offers)]
        name = None if step.name is None else f"id{step.name}"
        target = offer.key if step.bare else scope_of(offer)
        await self.both(
            lambda side: side.limiter.add_tokens_post_stream(target, step.used, request_id=name)
        )
        self.marks.add("post-stream")

    async def do_reset(self, step: do.Reset) -> None:
        """Forgive."""
        scopes = [scope_of(offer) for offer in self.chosen(step.offers)]
        await self.both(lambda side: side.limiter.reset(*scopes))

    async def do_bad(self, step: do.Bad) -> None:
        """R12: an error, and the look after this step finds nothing changed."""
        scope = scope_of(self.offers[step.offer % len(self.offers)])
        for side in (self.memory, self.redis):
            try:
                await side.limiter.pre_commit(scope, tokens=step.value)
            except (ValueError, TypeError):
                continue
            msg = f"{step.value!r} was taken for an amount"
            raise AssertionError(msg)

    async def do_replay(self, step: do.Replay) -> None:
        """Send a message once more, by the connection: it changes nothing, and the answer is the first one (R9)."""
        sent = self.backend.sent[-1 - step.back :]
        if not sent:
            return
        expected = self.expected_of(sent[0])
        if expected is None:
            return
        message = sent[0].message
        answer = await self.backend.again(message)
        assert answer == expected, (answer, expected, message)
        await self.look()
        self.marks.add(f"replay of {message.verb}")
        if message.verb == "reserve":
            self.replayed |= {message.id, *answer.split(" ")[1:2]}

    def expected_of(self, sent: Sent) -> str | None:
        """The answer to a message that comes once more; None where no copy of it can be under way any more."""
        message, answer = sent.message, sent.answer
        word = answer.partition(" ")[0]
        at_once = sent.turn == self.turn - 1 and sent.at == self.now
        soon = self.now < sent.at + HORIZON_US
        if message.verb == "reserve" and word == "held":
            holds = [hold for n, hold in enumerate(self.redis.holds) if self.is_open(n)]
            if message.id in {name_of(hold.id) for hold in holds}:
                return answer
            if not self.is_traced(message) or not self.resolved_soon(message.id):
                return None
            reused = message.id in self.names
            return "gone" if not reused or message.id in {h.request_id for h in holds} else None
        if message.verb == "resolve" and soon:
            # One that nobody else can name leaves no trace: its process knows that it was this message.
            traced = answer if self.is_traced(message) else "gone"
            return None if message.id in self.names else traced
        if (message.verb, word) in {("add", "counted"), ("reset", "done")} and soon:
            return answer
        # One whose connection had broken, and that took nothing, is taken back before its first copy comes.
        taken_back = message.verb == "reserve" and isinstance(answer, Again)
        return answer if at_once and not taken_back else None

    def is_traced(self, message: Message) -> bool:
        """Whether a resolution of this reservation leaves a trace: a late copy could count."""
        return bool(message.named) or message.id in self.replayed or self.was_sent_again(message.id)

    def was_sent_again(self, id_: str) -> bool:
        """Whether the reserve of a reservation was sent twice, since its connection had broken."""
        return any(
            (one.message.verb, one.message.id) == ("reserve", id_) and isinstance(one.answer, Again)
            for one in self.backend.sent
        )

    def resolved_soon(self, id_: str) -> bool:
        """Whether a reservation was resolved within the horizon."""
        return any(
            (one.message.verb, one.message.id, one.answer) == ("resolve", id_, "done")
            and self.now < one.at + HORIZON_US
            for one in self.backend.sent
        )

    # The end.

    async def let_go(self) -> None:
        """Resolve what is open, so that a failure is not buried under warnings about dropped handles."""
        for side in (self.memory, self.redis):
            for handle in side.handles:
                if handle is not None:
                    await handle.abandon()

    async def end(self) -> None:
        """R14: once everything is over, whatever is read is as if nothing had been.

        Only what was overdrawn by more than a year's refill still counts then, and is forgiven.
        """
        for number in range(len(self.memory.handles)):
            if self.memory.handles[number] is not None:
                assert self.redis.drop(number) == self.memory.drop(number)
        await self.look()
        self.set_clock(self.now + AGES)
        await self.look()
        await self.do_reset(do.Reset(tuple(range(len(self.offers)))))
        await self.look()
