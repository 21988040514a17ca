"""A reservation over several slots of a cluster: one message for each slot, in the order of the scopes.

No script reaches further than one slot, so that what is one message on a server becomes several here. Each part is a
reservation of its own, under the id of the whole, judged at its own node's instant. A name that a caller chose stands
on the slot of that name: it is looked at first, before anything is taken, and claimed last, with all that was seen.
Whoever resolves the name, or where there is none the first part, was the first to resolve the whole (R5).

Nothing is asked where a node among them is known to be out of reach: what the others have would be taken for a moment,
and somebody refused meanwhile.

Where a part is refused, or fails, the parts before it are given back by the id before the call returns (R2). Whoever is
cut off on the way leaves that to the outbox. Of a process that dies in between, debits stay to the end of their windows
and slots for one lease, as those of any other holder that dies (R10).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from earmark.backends.protocol import Seen
from earmark.backends.redis.asked import Again
from earmark.backends.redis.carrier import Carrier
from earmark.backends.redis.failures import Outage, StoreError, failure, is_owed
from earmark.backends.redis.keys import tag_of
from earmark.backends.redis.messages import (
    Decided,
    Message,
    Messages,
    decided,
    numbers_of,
    states,
)
from earmark.core.admission import States
from earmark.core.hold import Hold, Verb
from earmark.core.joint import Part, parts_of
from earmark.core.settlement import NOTHING
from earmark.ids import Id
from earmark.limits import Scope

Parts = Sequence[Hold]


def slices_of(hold: Hold) -> Parts:
    """What a hold is on each slot, in the order of the scopes; nothing, where all of it is on one."""
    tags = {tag_of(scope.key) for scope in hold.scopes}
    if hold.request_id is not None:
        tags.add(tag_of(hold.request_id))
    if len(tags) == 1:
        return ()
    return [_part(one, scopes) for one in parts_of(hold) for scopes in groups_of(one.scopes)]


def groups_of(scopes: Iterable[Scope]) -> list[tuple[Scope, ...]]:
    """The scopes of each slot, but for those without a limit, which nobody has to ask about."""
    groups: dict[str, tuple[Scope, ...]] = {}
    for scope in scopes:
        if scope.limits.all:
            tag = tag_of(scope.key)
            groups[tag] = (*groups.get(tag, ()), scope)
    return list(groups.values())


def _part(
    hold: Hold, scopes: tuple[Scope, ...], request_id: str | None = None, *, travels: bool = True
) -> Hold:
    """The same over some of its scopes; `travels`: whoever knows of the whole knows of this."""
    part = Part()
    part.id, part.request_id = hold.id, request_id
    part.scopes, part.asks, part.lease_us = scopes, hold.asks, hold.lease_us
    if travels and not hold.is_private:
        part.travels = True
    return part


class Several:
    """See above.

    Args:
        messages: makes the messages.
        carrier: what carries them from the loop that runs.
        owe: keeps a message for a store that cannot be reached.
        unsent: told of reservations for which nothing was sent.
    """

    def __init__(
        self,
        messages: Messages,
        carrier: Callable[[], Carrier],
        owe: Callable[[Message], None],
        unsent: set[Id],
    ) -> None:
        self._messages = messages
        self._carrier = carrier
        self._owe = owe
        self._unsent = unsent

    async def reserve(self, hold: Hold, parts: Parts) -> Decided:
        """Take the parts one after another, or none of them."""
        messages = [self._messages.reserve(part) for part in parts]
        look = self._messages.claim(hold) if hold.request_id is not None else None
        self._check_reach(messages if look is None else [look, *messages])
        if look is not None:
            found = await self._one(self._name_of(hold), look, begins=hold)
            if found.word != "free":
                return found
        taken: list[Hold] = []
        decisions: list[Decided] = []
        try:
            for part, message in zip(parts, messages, strict=True):
                begins = hold if part is parts[0] and look is None else None
                decision = await self._one(part, message, begins=begins)
                if decision.word != "held":
                    hold.shares = part.scopes
                    break
                taken.append(part)
                decisions.append(decision)
            else:
                decision = _whole(hold, parts, decisions)
                if hold.request_id is not None:
                    claimed = await self._claim(hold, decision)
                    decision = decision if claimed.word == "held" else claimed
        except (Outage, StoreError) as error:
            # After a claim that may have been applied somebody else may have the reservation by now.
            if len(taken) == len(parts) and error.sent:
                self._owe(self._resolution(hold, "withdraw", NOTHING, NOTHING))
            else:
                await self._give_back(taken)
            raise
        if decision.word != "held":
            await self._give_back(taken)
        if decision.word == "refused" and look is not None:
            return await self._look_again(hold, decision)
        return decision

    async def _look_again(self, hold: Hold, refused: Decided) -> Decided:
        """A name may have been taken since it was looked at, and what was refused by what stands under it."""
        try:
            found = await self._one(self._name_of(hold), self._messages.claim(hold))
        except Outage:
            return refused  # which is true as well
        return refused if found.word == "free" else found

    def _check_reach(self, messages: Iterable[Message]) -> None:
        """See that nothing is known to be in the way of any of them.

        Raises:
            Outage: a node is out of reach, and nothing was sent.
            StoreError: the same, by a mistake that somebody has to mend.
        """
        carrier = self._carrier()
        for message in messages:
            trouble = carrier.trouble(message)
            if trouble is not None:
                raise failure(trouble, sent=False)

    async def _claim(self, hold: Hold, whole: Decided) -> Decided:
        """Give the whole its name, unless somebody else has taken that meanwhile."""
        seen = " ".join((str(whole.at), *whole.seen))
        return await self._one(self._name_of(hold), self._messages.claim(hold, seen), claims=True)

    async def _one(
        self, part: Hold, message: Message, *, begins: Hold | None = None, claims: bool = False
    ) -> Decided:
        """Send one message of a reserve, and see to it that no copy of it comes late.

        Args:
            part: what it is about.
            message: the message.
            begins: of what it is the first message.
            claims: whoever sends it takes it back himself, together with the parts.
        """
        asked = self._carrier().place(message)
        try:
            answer = await asked.answer
        except (Outage, StoreError) as error:
            if error.sent and not claims:
                self._take_back(part)
            raise
        except asyncio.CancelledError:
            if asked.take_back() and begins is not None:
                self._unsent.update(one.id for one in parts_of(begins))
            raise
        decision = decided(answer, message.id)
        if isinstance(answer, Again) and decision.word not in {"held", "free", "gone"}:
            self._take_back(part)
        return decision

    def _take_back(self, part: Hold) -> None:
        self._owe(self._messages.resolve(part, "withdraw", NOTHING, NOTHING))

    async def _give_back(self, taken: Parts) -> None:
        """Undo what was taken: nobody else can know of it yet."""
        private = [_part(part, part.scopes, travels=False) for part in taken]
        cancels = [self._messages.resolve(part, "cancel", NOTHING, NOTHING) for part in private]
        await self._carry(cancels, has_begun=True)

    async def resolve(
        self, hold: Hold, verb: Verb, exact: Mapping[str, int], at_least: Mapping[str, int]
    ) -> bool:
        """True up every part; the first who resolves the name, or else the first part, has won."""
        if hold.is_private:  # there is nobody to be outrun by: all at once
            every = [
                self._messages.resolve(part, verb, exact, at_least) for part in slices_of(hold)
            ]
            answers = await self._carry(every)
        else:
            message = self._resolution(hold, verb, exact, at_least)
            answers = await self._carry((message,))
            if isinstance(answers[0], str):
                await self._carry(message.follows(answers[0]), has_begun=True)
        for answer in answers:
            if isinstance(answer, StoreError) and not answer.sent:
                raise answer
        return any(_counts(answer, hold) for answer in answers)

    def _resolution(
        self, hold: Hold, verb: Verb, exact: Mapping[str, int], at_least: Mapping[str, int]
    ) -> Message:
        """The message that decides, and those that follow where it has won."""
        holds = list(slices_of(hold))
        if hold.request_id is not None:
            holds.insert(0, self._name_of(hold))
        first, *rest = holds
        then = tuple(self._messages.resolve(one, verb, exact, at_least) for one in rest)
        return self._messages.resolve(first, verb, exact, at_least, then)

    async def _carry(
        self, messages: Sequence[Message], *, has_begun: bool = False
    ) -> list[str | Outage | StoreError]:
        """Send messages at once, and owe what was not answered.

        Args:
            messages: what is to be sent.
            has_begun: what they belong to is done in part: what fails is owed as well, whatever it fails at.
        """
        carrier = self._carrier()
        asked = [(message, carrier.ask(message)) for message in messages]
        answers: list[str | Outage | StoreError] = []
        try:
            for message, answer in asked:
                try:
                    answers.append(await answer)
                except (Outage, StoreError) as error:
                    if has_begun or is_owed(error):
                        self._owe(message)
                    answers.append(error)
        except BaseException:
            for message, answer in asked[len(answers) :]:
                self._owe_rest(message, answer)
            raise
        return answers

    def _owe_rest(self, message: Message, answer: asyncio.Future[str]) -> None:
        """The caller goes: what has not been answered is owed, or what follows from an answer that nobody heard."""
        if not answer.done() or answer.cancelled() or answer.exception() is not None:
            self._owe(message)
        else:
            for follows in message.follows(answer.result()):
                self._owe(follows)

    async def renew(self, hold: Hold, parts: Parts) -> str:
        """Keep every part and the name; a part that is gone was the slot of somebody who comes too late."""
        holds = [self._name_of(hold), *parts] if hold.request_id is not None else parts
        carrier = self._carrier()
        asked = [carrier.ask(self._messages.renew(one)) for one in holds]
        first, *rest = await _all(asked)
        if first == "gone":
            return first
        return "held" if {first, *rest} == {"held"} else "lapsed"

    async def peek(self, scopes: tuple[Scope, ...]) -> Seen:
        """Read every slot, each at its own instant."""
        groups = groups_of(scopes)
        carrier = self._carrier()
        answers = await _all([carrier.ask(self._messages.peek(group)) for group in groups])
        found: dict[str, States] = {}
        latest = 0
        for group, answer in zip(groups, answers, strict=True):
            _, at, *seen = answer.split(" ")
            latest = max(latest, int(at))
            found.update(_by_scope(group, states(group, seen)))
        return Seen([state for scope in scopes for state in found.get(scope.key, ())], latest)

    async def reset(self, scopes: tuple[Scope, ...]) -> None:
        """Forget on every slot."""
        carrier = self._carrier()
        await _all([carrier.ask(self._messages.reset(group)) for group in groups_of(scopes)])

    @staticmethod
    def _name_of(hold: Hold) -> Hold:
        """The name of a reservation, which stands by itself."""
        return _part(hold, (), hold.request_id)


def _counts(answer: str | Outage | StoreError, hold: Hold) -> bool:
    """Whether a resolution has won, as far as this process can know: what is owed has."""
    if not isinstance(answer, str):
        return True
    return answer.startswith(("done", "freed")) or (isinstance(answer, Again) and hold.is_private)


async def _all(asked: Sequence[asyncio.Future[str]]) -> list[str]:
    """Every answer, or the first failure; none is left that nobody has looked at."""
    answers = await asyncio.gather(*asked, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [str(answer) for answer in answers]


def _by_scope(scopes: Iterable[Scope], seen: States) -> Iterable[tuple[str, States]]:
    rest = iter(seen)
    for scope in scopes:
        yield scope.key, [next(rest) for _ in scope.limits.all]


def _whole(hold: Hold, parts: Parts, decisions: Sequence[Decided]) -> Decided:
    """What all parts have seen, in the order of the scopes, as one decision at the latest of their instants."""
    found: dict[str, list[str]] = {}
    for part, decision in zip(parts, decisions, strict=True):
        seen = iter(decision.seen)
        for scope in part.scopes:
            found[scope.key] = [
                next(seen) for limit in scope.limits.all for _ in range(numbers_of(limit))
            ]
    seen_of_all = [number for scope in hold.scopes for number in found.get(scope.key, ())]
    return replace(decisions[0], at=max(one.at for one in decisions), seen=seen_of_all)
