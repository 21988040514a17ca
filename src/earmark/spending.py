"""Where limits and money meet: what a request holds of its budgets, and what is posted when it is resolved.

The limits come first, since they are cheaper, and get back what they gave where a budget refuses (R2, B57). When a
reservation is resolved the slots are free before SQL is asked; the ledger's row says who was first.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from earmark.core.bill import Bill
from earmark.core.hold import Hold, Verb
from earmark.errors import BudgetExceeded, RequestIdConflict, UnknownPrice
from earmark.events import Event, tell
from earmark.ids import name_of, told_apart
from earmark.logs import about
from earmark.office import Office
from earmark.reservation import Dropped
from earmark.usage import Usage

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.budgets import Spend
    from earmark.ledger import Ledger, PriceTable
    from earmark.ledger.charge import Charge
    from earmark.prices import Price


logger = logging.getLogger("earmark.ledger")


class Till:
    """The cashier of one limiter.

    Args:
        ledger: where money is kept.
        prices: what models cost, or None.
        office: that of reservations that spend nothing.

    Attributes:
        limited: the office of what is limited, and spends.
        unlimited: the office of what only spends.
    """

    def __init__(self, ledger: Ledger, prices: PriceTable | None, office: Office) -> None:
        self._ledger = ledger
        self._prices = prices
        self._office = office
        common = (office.observers, office.tokens, self)
        self.limited = Office(office.backend, office.participants, *common)
        self.unlimited = Office(office.backend, (), *common)
        self.limited.task_groups = self.unlimited.task_groups = office.task_groups

    def charge(self, hold: Hold, spend: Spend) -> None:
        """Write into a hold what it is to spend, at the prices of this moment.

        Raises:
            UnknownPrice: nobody knows what the model costs, and the estimate does not say.
            ValueError: an estimate in tokens without a price; a price in another currency than the budgets'.
            TypeError: no `Spend`.
        """
        from earmark.budgets import Spend
        from earmark.ledger.charge import Charge

        if not isinstance(spend, Spend):
            msg = f"expected a Spend, not {spend!r}"
            raise TypeError(msg)
        at = self._ledger.now()
        price = self._price(spend.model, at)
        if price is None and spend.estimate_nano is None:
            if isinstance(spend.estimate, Usage) and (spend.model is None or self._prices is None):
                msg = "an estimate in tokens takes a model, and a limiter with prices"
                raise ValueError(msg)
            if spend.model is not None and self._prices is not None:
                raise UnknownPrice(spend.model)
        currency = spend.currency or ("USD" if price is None else price.currency)
        if price is not None and price.currency != currency:
            msg = f"the price of {spend.model!r} is in {price.currency}, and its budgets are in {currency}"
            raise ValueError(msg)
        amount = spend.estimate_nano or 0
        if price is not None and isinstance(spend.estimate, Usage):
            amount = price.cost(spend.estimate).nano
        keys = [*(scope.key for scope in hold.scopes), *(one.key for one in spend.budgets)]
        hold.charge = Charge(
            request_id=_called(hold),
            reservation=name_of(hold.id),
            key=keys[0] if keys else "",
            budgets=spend.budgets,
            model=spend.model,
            currency=currency,
            estimate=spend.estimate if isinstance(spend.estimate, Usage) else None,
            amount=amount,
            price=price,
            metadata=spend.metadata_text,
            at=at,
        )

    def _as_of_now(self, charge: Charge) -> Charge:
        """A charge whose request had to wait for room: its period and its price are those of its admission (C48)."""
        at = self._ledger.now()
        price = self._price(charge.model, at)
        if price is None or price.currency != charge.currency:
            return replace(charge, at=at)
        amount = charge.amount if charge.estimate is None else price.cost(charge.estimate).nano
        return replace(charge, at=at, price=price, amount=amount)

    async def set_aside(
        self, hold: Hold, standing: Hold, *, limited: bool = True, waited: bool = False
    ) -> None:
        """Hold the money of what was admitted; refused, or cut off, nothing is left of either.

        Args:
            hold: what was asked.
            standing: what the limits hold for it, which may be that of an earlier call with its request id.
            limited: whether they hold anything.
            waited: whether it had to wait for that.

        Raises:
            BudgetExceeded, RequestIdConflict, BackendUnavailable: as `Ledger.hold`.
        """
        asked = cast("Charge", hold.charge)
        if standing is not hold and self._is_set_aside(standing, asked):
            return
        charge = replace(
            asked,
            request_id=_called(standing),
            reservation=name_of(standing.id),
            gone=False,
            asker=name_of(hold.id),
        )
        if not hasattr(standing, "charge") or standing is hold:
            standing.charge = charge
        try:
            if waited:
                charge = self._as_of_now(charge)
            await self._ledger.hold(charge)
        except BaseException as error:
            if standing is not hold:
                hold.charge = charge
            await self._give_back(hold, standing, error, limited=limited)
            if isinstance(error, BudgetExceeded):
                keys = tuple(scope.key for scope in hold.scopes)
                event = Event("refused", hold.request_id, keys, asked=hold.asks)
                tell(self._office.observers, event)
            raise
        self._office.desk.serve_here()
        charge.placed = True
        standing.charge = charge
        if charge.adopted and not limited:
            standing.id = charge.reservation

    def _is_set_aside(self, standing: Hold, asked: Charge) -> bool:
        """Whether an earlier call with this request id has the money; one that is under way still has to be asked for.

        Raises:
            RequestIdConflict: it was made for something else, or spends nothing.
        """
        charge = cast("Charge | None", getattr(standing, "charge", None))
        if charge is None:
            if self._office.handle_of(standing) is not None:
                raise RequestIdConflict(standing.name)
            return False  # another process has made it
        if charge != asked:
            raise RequestIdConflict(standing.name)
        return charge.placed

    async def _give_back(
        self, hold: Hold, standing: Hold, error: BaseException, *, limited: bool
    ) -> None:
        """Undo what was asked: of what stands only that which nobody else was given (R9)."""
        # A ledger that has refused, or could not be asked, holds nothing; one whose caller has gone may.
        refused = isinstance(error, Exception)
        if refused and not limited:
            return
        office = self._office if refused else self.limited if limited else self.unlimited
        noted = Dropped(office, hold, "withdraw")
        nobodys = standing is not hold and self._office.handle_of(standing) is None
        if nobodys and isinstance(error, BudgetExceeded):
            # It has no money, and is over: a store need not know who has left.
            noted = Dropped(office, standing, "cancel")
        if isinstance(error, GeneratorExit):  # nothing can be awaited any more
            office.desk.note(noted)
        else:
            await noted.do()

    async def leave(self, hold: Hold, standing: Hold) -> None:
        """Undo what was asked for, and was given: by now it is over, and its asker begins again."""
        going = hold.once_more()
        going.id = hold.id
        going.charge = replace(cast("Charge", hold.charge), request_id=_called(standing))
        await Dropped(self.limited, going, "withdraw").do()

    async def resolve(self, hold: Hold, verb: Verb, bill: Bill | None) -> bool:
        """Post what it has cost, or give it back; True iff this was the first who did."""
        from earmark.ledger.charge import Charge, Resolution, withdrawal

        charge = cast("Charge | None", hold.charge) or Charge(_called(hold), name_of(hold.id))
        if verb == "withdraw":  # in the asker's own name: what stands may be another's
            return await self._ledger.resolve(withdrawal(charge.request_id, name_of(hold.id)))
        price = None
        if bill is not None and bill.model is not None and bill.model != charge.model:
            price = self._served(bill.model, charge.at or self._ledger.now())
        return await self._ledger.resolve(Resolution(charge, verb, bill, price))

    def _price(self, model: str | None, at: int) -> Price | None:
        if model is None or self._prices is None:
            return None
        return self._prices.price(model, _moment(at))

    def _served(self, model: str, at: int) -> Price | None:
        """What the model that answered costs. It is paid for already: a table that fails keeps nothing back."""
        try:
            return self._price(model, at)
        except Exception:
            logger.exception(
                "the price of a model that has answered cannot be had: that of the one that was asked for counts",
                extra=about("price_failed"),
            )
            return None

    async def aclose(self) -> None:
        """Close the ledger."""
        await self._ledger.aclose()


def there(till: Till | None) -> Till:
    """The till that spending takes.

    Raises:
        ValueError: there is none.
    """
    if till is None:
        msg = "this spends money, and this limiter has no ledger: Limiter(…, ledger=Ledger(…))"
        raise ValueError(msg)
    return till


def office_of(hold: Hold, office: Office, till: Till | None) -> Office:
    """Where a hold is resolved: at the till, if it spends, else at this office.

    Raises:
        ValueError: there is no till.
    """
    if not hasattr(hold, "charge"):
        return office
    return there(till).limited if office.participants else there(till).unlimited


def _called(hold: Hold) -> str:
    """What the ledger calls a request: its log has the names that callers chose beside ids of the library's."""
    return hold.name if hold.request_id is None else told_apart(hold.request_id)


def _moment(at: int) -> datetime:
    from earmark.ledger.periods import moment

    return moment(at)
