"""The sixteen faults that the contract was made to find: which backends have each, and which cases find them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple
from unittest.mock import patch

from earmark.core import admission
from earmark.testing.plain import PlainBackend
from tests.mutants import (
    AdmitsAtTheLimit,
    CancelKeepsTheSlot,
    CutsOffAtTheAmount,
    ExpiryRenewed,
    FreesAnothersSlot,
    HeldAtItsEnd,
    KeepsWhatRemains,
    KeysCutShort,
    LastResolverWins,
    LateRenewalRevives,
    LeaseRenewedByOthers,
    OneWindowShort,
    PartialCommit,
    RefundAboveCapacity,
    RefundIntoNewWindow,
    RefusalCharges,
    ReplayDebitsTwice,
    ReplayedAddCountsTwice,
    SharedWindowMarker,
)


class Caught(NamedTuple):
    """A backend that has a fault, and how the contract finds it.

    Attributes:
        mutant: the backend.
        case: the name of the case that is about the fault.
        says: what that case says came out.
        spoilt: what else is broken while it plays.
    """

    mutant: type[PlainBackend]
    case: str
    says: str
    spoilt: Callable[[], AbstractContextManager[object]] = nullcontext


def unclamped() -> AbstractContextManager[object]:
    """The arithmetic shows what remains of a limit as it comes out, below nothing too."""
    return patch.object(admission, "max", lambda _nothing, left: left, create=True)


FAULTS: Final[Mapping[str, tuple[Caught, ...]]] = {
    "a refusal that still charges (C9)": (
        Caught(
            RefusalCharges,
            "c09_refused_by_concurrency_costs_no_request",
            "got key.rpm='1 used before, 2 after'",
        ),
    ),
    "partial commit over scopes (C10)": (
        Caught(
            PartialCommit,
            "c10_a_later_scopes_refusal_drains_no_earlier_one",
            "got key.rpd='1 used before, 2 after'",
        ),
    ),
    "refund into the new window (C17)": (
        Caught(
            RefundIntoNewWindow,
            "c17_a_refund_after_the_window_erases_nobody_elses_hold",
            "used of key.tpm: got 0, expected 80",
        ),
    ),
    "shared window marker (C19)": (
        Caught(
            SharedWindowMarker,
            "c19_each_limit_has_its_own_window",
            "got 'key.tpm used 31, left 155, resets 60.0', expected 'key.tpm used 217",
        ),
    ),
    "TTL renewed on each update (C2, C20)": (
        Caught(
            LeaseRenewedByOthers,
            "c02_steady_traffic_keeps_no_leaked_slot_alive",
            "refused by: got ('key.conc',), expected ()",
        ),
        Caught(
            ExpiryRenewed,
            "c20_steady_traffic_within_the_limit_is_never_denied",
            "refused by: got ('key.tpm',), expected ()",
        ),
    ),
    "release of another's slot (C5)": (
        Caught(
            FreesAnothersSlot,
            "c05_late_renewals_and_releases_touch_no_other_slot",
            "used of key.conc: got 0, expected 1",
        ),
    ),
    "late renewal revives (C5)": (
        Caught(
            LateRenewalRevives,
            "c05_late_renewals_and_releases_touch_no_other_slot",
            "renew: got True, expected False",
        ),
        Caught(
            LateRenewalRevives,
            "c05_a_late_renewal_revives_nothing_even_where_there_is_room",
            "renew: got True, expected False",
        ),
    ),
    "replay debits twice (C56)": (
        Caught(
            ReplayDebitsTwice,
            "c56_a_reserve_under_an_open_id_debits_nothing",
            "used of key.rpm: got 2, expected 1",
        ),
    ),
    "replayed add counts twice": (
        Caught(
            ReplayedAddCountsTwice,
            "r8_a_repeated_id_counts_once_for_each_key",
            "used of a.tpm: got 300, expected 100",
        ),
        Caught(
            ReplayedAddCountsTwice,
            "c56_an_addition_that_is_sent_twice_counts_once",
            "got [True, True], expected [True, False]",
        ),
    ),
    "the first resolver does not win (C24)": (
        Caught(
            LastResolverWins,
            "c24_the_first_resolve_wins_in_the_store",
            "the second resolve, settle: got True, expected False",
        ),
    ),
    "refund above capacity (C13)": (
        Caught(
            RefundAboveCapacity,
            "c13_a_rollback_returns_what_was_taken",
            "got a.tpm='0 used before, -5 after'",
        ),
    ),
    "retry_after one window short": (
        Caught(
            OneWindowShort,
            "r3_retry_after_is_exact_on_both_sides",
            "got (50.0, 50.0), expected (110, 110)",
        ),
        Caught(
            OneWindowShort,
            "b9_a_refusal_consumes_nothing_in_any_scope",
            "retry_after: got 60.0, expected 120",
        ),
    ),
    "`<=` for `<` at the boundary": (
        Caught(
            AdmitsAtTheLimit,
            "b5_an_exhausted_limit_refuses_even_an_ask_of_nothing",
            "admitted, where these should refuse: got (), expected ('key.tpm',)",
        ),
        Caught(
            HeldAtItsEnd,
            "r10_a_lapsed_lease_leaves_debits_and_the_reservation",
            "used of key.conc: got 1, expected 0",
        ),
    ),
    "two keys share state (C67)": (
        Caught(
            KeysCutShort,
            "c67_no_two_keys_share",
            "got '0123456789x.conc used 1, left 2",
        ),
    ),
    "a lowered limit shows negative remaining": (
        # The figure is the limiter's, for every backend: none can show it so while the arithmetic is sound.
        Caught(
            PlainBackend,
            "r17_what_was_used_stays_used",
            "remaining of key.tpm: got -30, expected 0",
            unclamped,
        ),
        Caught(
            PlainBackend,
            "r17_a_lower_amount_forgives_nothing_and_charges_nothing",
            "remaining of key.tpm: got -20, expected 0",
            unclamped,
        ),
        # What a backend can do of it: keep another figure than what was used, or cut that off at the amount.
        Caught(
            KeepsWhatRemains,
            "r17_a_lower_amount_forgives_nothing_and_charges_nothing",
            "used of key.tpm: got -20, expected 50",
        ),
        Caught(
            CutsOffAtTheAmount,
            "r17_what_was_used_stays_used",
            "used of key.tpm: got 50, expected 80",
        ),
    ),
    "cancel keeps the slot": (
        Caught(
            CancelKeepsTheSlot,
            "r7_every_verb_frees_the_slot",
            "used of key.conc: got 1, expected 0",
        ),
    ),
}
"""Each fault of the list by its name, with the numbers of the list; some have two faces."""
