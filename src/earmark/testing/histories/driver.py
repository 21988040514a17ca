"""Runs one history twice, through what is tested and through the plain model, and compares them.

After each step every scope is looked at, so that a step that changed what it should not is caught there, and not where
it first matters.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NoReturn

from earmark.errors import RateLimited, RequestIdConflict
from earmark.reservation import Reservation
from earmark.testing.clock import ManualClock
from earmark.testing.histories import steps as do
from earmark.testing.histories.differing import expect_alike
from earmark.testing.histories.gateway import Gateway, Run
from earmark.testing.histories.model import Model
from earmark.testing.histories.player import AGES, START, Player
from earmark.testing.histories.translation import by_hand, first_when, line_of, scope_of, us_of
from earmark.testing.histories.values import Hold, Line, Refusal, Statuses, asks_of
from earmark.testing.table import expect


def fail(what: str) -> NoReturn:
    """Fail, and say what came out otherwise."""
    raise AssertionError(what)


@dataclass(eq=False)
class Pair:
    """One reservation on both sides."""

    hold: Hold
    handle: Reservation | None
    step: do.PreCommit
    entered: bool = False


class Driver(Player):
    """One history, through a gateway and through the model.

    Args:
        offers: the scopes of the history.
        make: makes the gateway, on a clock that the history moves.
        run: runs its calls; by default each must be done without suspending.

    Attributes:
        sound: whether every step came out alike so far.
    """

    def __init__(
        self,
        offers: tuple[do.Offer, ...],
        make: Callable[[ManualClock], Gateway],
        run: Run = by_hand,
    ) -> None:
        super().__init__(offers)
        self._run = run
        self.gateway = make(self.clock)
        self.model = Model()
        self.model.now = START
        self.pairs: list[Pair] = []
        self.names: set[str] = set()
        self.refused: list[RateLimited] = []
        self.turn = 0
        self.sound = True
        self.check()

    def run(self, steps: tuple[do.Step, ...]) -> None:
        """Do every step, check after each, and see at the end that nothing is kept."""
        for number, step in enumerate((step for step in steps if step != do.Peek()), 1):
            at = self.us
            try:
                self.step(step)
            except BaseException as error:
                error.add_note(f"in step {number}, {step!r}, when the clock stood at {at} us")
                raise
        self.end()

    def step(self, step: do.Step) -> None:
        """Do one step and check what shows."""
        self.turn += 1
        try:
            getattr(self, f"do_{type(step).__name__.lower()}")(step)
            self.check()
        except BaseException:
            self.sound = False
            self.let_go()
            raise

    def let_go(self) -> None:
        """Resolve what is open, so that a failure is not buried under warnings about dropped handles."""
        for pair in self.pairs:
            if pair.handle is not None:
                self._run(pair.handle.abandon())

    # What is looked at after each step.

    def check(self) -> None:
        """The present time, every scope, and every handle."""
        self.model.now = max(self.model.now, self.us)
        self.compare(self.look(), self.model.peek(tuple(offer.place for offer in self.offers)))
        for pair in self.pairs:
            if pair.handle is not None and self.model.now < pair.hold.keep_until:
                expect("the state of a reservation (R5)", pair.handle.state, pair.hold.state)
            lapsed = pair.hold.slots_until <= self.model.now and pair.hold.has_slots()
            if lapsed and pair.hold.is_open(self.model.now):
                self.marks.add("lapsed lease")

    def look(self) -> Any:
        """What every scope shows."""
        return self._run(self.gateway.peek(*map(scope_of, self.offers)))

    def compare(self, got: Any, expected: Statuses) -> None:
        """Statuses equal the model's, and each `reset_after` is when nothing is used, and no later."""
        expect_alike("what the scopes show (R1-R8, R10, R17)", got, expected)
        for status in got:
            for one in status.limits:
                self.check_reset(status.key, line_of(one.limit), one.reset_after)

    def check_reset(self, key: str, line: Line, reset_after: float | None) -> None:
        """A fixed window's end; for the others the first microsecond at which nothing is used."""
        now = self.model.now
        if line.metric == "concurrency" or (line.algorithm == "token_bucket" and not line.amount):
            expect(f"reset_after of {key!r}: {line}", reset_after, None)
            return
        if reset_after is None:
            fail(f"reset_after of {key!r}: {line}: got None, expected a time")
        us = us_of(reset_after)
        self.resets.append(us)
        if line.algorithm == "fixed_window":
            expect(f"reset_after of {key!r}: {line}", us, line.window - now % line.window)
            return
        exact = first_when(us, lambda d: self.model.used(key, line, now + d) == 0)
        expect(
            f"{us} us is when nothing is used any more, and no later: {key!r}: {line}", exact, True
        )

    def check_refusal(self, refused: RateLimited, expected: list[Refusal]) -> None:
        """R3: each refusal with its figures, in order; each wait is the shortest that helps; the longest of them."""
        got = [(d.key, line_of(d.limit), d.used, d.asked) for d in refused.denials]
        wanted = [(e.place.key, e.line, e.used, e.asked) for e in expected]
        expect("every limit that refused, used and asked (R1, R3)", got, wanted)
        now = self.model.now
        waits: list[float] = []
        for denial, want in zip(refused.denials, expected, strict=True):
            key, line = want.place.key, want.line
            self.check_reset(key, line, denial.reset_after)
            if want.never or line.metric == "concurrency":
                expect("retry_after of what no clock frees (R3)", denial.retry_after, None)
                continue
            if denial.retry_after is None:
                fail(f"retry_after of {want} (R3): got None, expected a time")
            us = us_of(denial.retry_after)
            exact = first_when(us, lambda d: self.model.admits(key, line, want.asked, now + d))  # noqa: B023
            expect(f"{us} us is the shortest wait that helps (R3): {want}", exact, True)
            waits.append(denial.retry_after)
        never = any(want.never for want in expected)
        expect("retryable (R3)", refused.retryable, not never)
        whole = None if never or not waits else max(waits)
        expect("retry_after of the whole (R3)", refused.retry_after, whole)
        self.retry = us_of(max(waits, default=0))
        self.marks |= {"refusal"} | ({"impossible ask"} if never else set())

    # The steps.

    def pick(self, number: int) -> Pair | None:
        """The reservation of a number, from the last one backwards, if its handle is still there."""
        pair = self.pairs[-1 - number % len(self.pairs)] if self.pairs else None
        return pair if pair and pair.handle is not None else None

    def do_precommit(self, step: do.PreCommit) -> None:
        """Ask, under an id of the caller's or a new one."""
        name = None if step.name is None else f"id{step.name}"
        if step.name is not None and step.name < 0 and self.pairs:
            name = self.pairs[step.name % len(self.pairs)].hold.request_id
        self.ask(step, name)

    def do_again(self, step: do.Again) -> None:
        """Ask for the same id: the reservation that is open (R9), else a new one."""
        if self.pairs:
            pair = self.pairs[-1 - step.hold % len(self.pairs)]
            self.ask(pair.step._replace(offers=pair.step.offers[::-1]), pair.hold.request_id)

    def ask(self, step: do.PreCommit, name: str | None) -> None:
        """Ask both; they answer alike."""
        offers = self.chosen(step.offers)
        places = tuple(offer.place for offer in offers)
        if name is not None:
            self.marks |= {"reused id"} if name in self.names else set()
            self.names.add(name)
        lease = None if step.lease is None else us_of(step.lease)
        asks = asks_of(step.tokens, dict(step.amounts))
        expected = self.model.pre_commit(places, asks, name or f"own{self.turn}", lease)
        call = self.gateway.pre_commit(
            *map(scope_of, offers),
            tokens=step.tokens,
            amounts=dict(step.amounts) or None,
            request_id=name,
            lease=step.lease,
        )
        answer: Reservation | RateLimited | RequestIdConflict
        try:
            answer = self._run(call)
        except (RateLimited, RequestIdConflict) as refused:
            answer = refused.with_traceback(None)  # whose frames would keep the handles
        if isinstance(answer, RateLimited):
            if not isinstance(expected, list):
                fail(f"refused, and should not be (R1): {answer}")
            self.refused.append(answer)
            self.check_refusal(answer, expected)
        elif isinstance(answer, RequestIdConflict):
            expect("what the model says of a RequestIdConflict (R9)", expected, "conflict")
            expect("the id that conflicts", answer.request_id, name)
            self.marks.add("conflict of ids")
        else:
            if not isinstance(expected, Hold):
                self._run(answer.abandon())
                fail(f"admitted, and should not be (R1, R9): expected {expected}")
            self.admitted(answer, expected, step)

    def admitted(self, handle: Reservation, expected: Hold, step: do.PreCommit) -> None:
        """The same reservation where it was open (R9), else a new one that says what the model says."""
        for pair in self.pairs:
            if pair.hold is expected:
                expect("an open id, asked again (R9): the same object", handle is pair.handle, True)
                self.marks.add("open id asked again")
                return
        if expected.request_id.startswith("own"):
            expected.request_id = handle.request_id
        expect("request_id", handle.request_id, expected.request_id)
        self.pairs.append(Pair(expected, handle, step))
        keys = [place.key for place in expected.places]
        expect("the scopes of the reservation", [scope.key for scope in handle.scopes], keys)
        for debit in expected.debits:
            held = handle.held[debit.line.metric]
            expect(f"held of {debit.line.metric} (R4)", held, debit.amount)
        self.compare(handle.statuses, expected.statuses)
        if any(one.would_refuse for _, lines in expected.statuses for one in lines):
            self.marks.add("would refuse")

    def resolve(self, pair: Pair, verb: str, *arguments: Any) -> bool:
        """Resolve what is tested."""
        if pair.handle is None:
            fail("there is no handle any more")
        return bool(self._run(self.gateway.resolve(pair.handle, verb, *arguments)))

    def do_settle(self, step: do.Settle) -> None:
        """Settle: the same call resolves it on both sides."""
        pair = self.pick(step.hold)
        if pair is None:
            return
        self.see_rollover(pair.hold)
        used = dict(step.used) if type(step.used) is tuple else step.used
        done = self.model.settle(pair.hold, used)  # type: ignore[arg-type]
        expect("settle_success (R5, R6)", self.resolve(pair, "settle_success", used), done)

    def see_rollover(self, hold: Hold) -> None:
        """Note a hold whose window has gone when it is settled, and one that is kept no longer."""
        now = self.model.now
        windows = {(d.line.window, d.at) for d in hold.debits if d.line.algorithm != "token_bucket"}
        if hold.is_open(now) and any(now // window > at // window for window, at in windows):
            self.marks.add("rollover between hold and settle")
        if hold.state == "open" and not hold.is_open(now):
            self.marks.add("resolved after keep")

    def do_finish(self, step: do.Finish) -> None:
        """Every way to end a reservation but settling it, and renewal."""
        pair = self.pick(step.hold)
        if pair is None or (step.how == "drop" and pair.entered):
            return
        model, hold, handle = self.model, pair.hold, pair.handle
        if handle is None:
            return
        self.marks.add(step.how)
        if step.how == "close":
            done = model.close(hold, "closed")
            expect("close_reserved_only (R5, R7)", self.resolve(pair, "close_reserved_only"), done)
        elif step.how == "abandon":
            done = model.close(hold, "abandoned")
            expect("abandon (R5, R7)", self.resolve(pair, "abandon"), done)
        elif step.how == "cancel":
            self.see_rollover(hold)
            done = model.cancel(hold)
            expect("cancel (R5, R7)", self.resolve(pair, "cancel"), done)
        elif step.how == "renew":
            renewed = model.renew(hold)
            expect("renew (R10)", self._run(self.gateway.renew(handle)), renewed)
        elif step.how == "drop":
            del handle
            self.drop(pair)
        elif step.how == "enter" and hold.is_open(model.now) and not pair.entered:
            pair.entered = True
            self._run(handle.__aenter__())
            model.enter(hold)
        elif step.how == "leave" and pair.entered:
            pair.entered = False
            self._run(handle.__aexit__(None, None, None))
            model.close(hold, "closed")

    def drop(self, pair: Pair) -> None:
        """R15: an open handle that is collected warns, and is abandoned by the next message."""
        if pair.handle is None:
            return
        gone, number = weakref.ref(pair.handle), id(pair.handle)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pair.handle = None
            told = [(one.category, id(one.source)) for one in caught]
            caught.clear()  # a warning keeps its source
            if gone() is not None:
                gc.collect()  # a task that failed is kept by its own traceback
        told += [(one.category, id(one.source)) for one in caught]
        caught.clear()
        kinds = {category for category, source in told if source == number}
        expect("what keeps a handle that was dropped (R15)", gone(), None)
        if pair.hold.state != "open":
            expect("warnings of a resolved handle that is dropped", kinds, set[type[Warning]]())
        elif pair.hold.is_open(self.model.now):
            expect("warnings of an open handle that is dropped (R15)", kinds, {ResourceWarning})
        self.model.close(pair.hold, "abandoned")

    def do_add(self, step: do.Add) -> None:
        """Count afterwards; a repeated id counts once (R8)."""
        offer = self.offers[step.offer % len(self.offers)]
        name = None if step.name is None else f"id{step.name}"
        self.model.add(offer.key if step.bare else offer.place, step.used, name)
        target = offer.key if step.bare else scope_of(offer)
        self._run(self.gateway.add(target, step.used, name))
        self.marks.add("post-stream")

    def do_reset(self, step: do.Reset) -> None:
        """Forgive."""
        offers = self.chosen(step.offers)
        self.model.reset(tuple(offer.place for offer in offers))
        self._run(self.gateway.reset(*map(scope_of, offers)))

    @property
    def now(self) -> int:
        """The model's time."""
        return self.model.now

    def end_of(self, what: str, number: int) -> float | None:
        """What the model says."""
        pair = self.pick(number)
        if pair is None:
            return None
        return pair.hold.slots_until if what == "lease" else pair.hold.keep_until

    def do_bad(self, step: do.Bad) -> None:
        """R12: an error, and the check after this step finds nothing changed."""
        scope = scope_of(self.offers[step.offer % len(self.offers)])
        value, limiter = step.value, self.gateway.limiter
        calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
            lambda: limiter.pre_commit(scope, tokens=value),
            lambda: limiter.pre_commit(scope, amounts={"images": value}),
        ]
        if value != -1:
            calls.append(lambda: limiter.add_tokens_post_stream(scope, value))
        pair = self.pick(0)
        if pair and pair.handle:
            settle = pair.handle.settle_success
            calls += [lambda: settle(value), lambda: settle({"tokens": value})]
        for call in calls:
            try:
                self._run(call())
            except (ValueError, TypeError):
                continue
            msg = f"{value!r} was taken for an amount"
            raise AssertionError(msg)

    def end(self) -> None:
        """Let everything be over, and see that nothing is used any more (R14)."""
        try:
            self._end()
        except BaseException:
            self.let_go()
            raise

    def _end(self) -> None:
        for pair in self.pairs:
            if pair.entered:
                self.do_finish(do.Finish("leave", self.pairs[::-1].index(pair)))
        for pair in self.pairs:
            if pair.handle is not None:
                self.drop(pair)
        self.check()
        self.set_clock(self.model.now + AGES)
        self.check()
        self.do_reset(do.Reset(tuple(range(len(self.offers)))))
        self.check()
