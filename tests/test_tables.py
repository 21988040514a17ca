"""The tables of the memory store keep what the pure core says, and no longer than it matters (R12, R14)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from earmark import Limit
from earmark.amounts import MAX_AMOUNT
from earmark.backends.tables import BucketTable, FixedTable, SlidingTable
from earmark.core.admission import FIXED_WINDOW
from tests.scale import examples

amounts = st.integers(0, 50) | st.integers(MAX_AMOUNT - 3, MAX_AMOUNT)
steps = st.lists(
    st.tuples(st.sampled_from(["debit", "give_back"]), amounts, st.integers(0, 12)), max_size=30
)


@settings(max_examples=examples(200))
@given(steps)
def test_r12_the_fixed_table_writes_out_the_arithmetic_of_the_fixed_window(
    history: list[tuple[str, int, int]],
) -> None:
    """R12: the commonest limit is written out for speed, and counts exactly as the pure functions do."""
    limit = Limit("tokens", 100, 0.00001)  # ten microseconds
    now = taken = 0
    table = FixedTable(limit, now)
    model: int | None = None
    for verb, amount, passed in history:
        if (now + passed) // limit.window_us != now // limit.window_us:
            model = None
        now += passed
        table.turn(now)
        if verb == "debit":
            table.debit("key", 1, limit, amount, now)
            model = FIXED_WINDOW.debit(limit, model or 0, amount, now)
            taken = now
        else:
            table.give_back("key", limit, amount, taken, now)
            if model is not None:
                model = FIXED_WINDOW.give_back(limit, model, amount, taken, now)
        assert table.look("key", now) == (model or 0)
        assert (table.counted("key", now) is not None) == (model is not None)


def test_r14_a_bucket_is_kept_until_it_is_full_and_no_longer() -> None:
    """R14: a refund brings the end forward, a charge puts it off, and a turn drops what is over."""
    limit = Limit("tokens", 10, 1, "token_bucket", burst=1_000)
    second = limit.window_us
    table = BucketTable(limit, 0)
    table.debit("refunded", 1, limit, 500, 0)
    table.give_back("refunded", limit, 495, 0, 0)
    table.debit("charged", 1, limit, 10, 0)
    table.debit("charged", 1, limit, 20, second // 2)
    table.debit("forgotten", 1, limit, 1_000, 0)
    table.forget("forgotten")
    for moment, kept in ((second, 2), (2 * second, 1), (3 * second, 1), (4 * second, 0)):
        table.turn(moment)
        assert len(table) == kept, moment


def test_r14_a_sliding_window_is_kept_for_two_windows() -> None:
    """R14: the previous window still counts, the one before it does not."""
    limit = Limit("tokens", 10, 1, "sliding_window")
    second = limit.window_us
    table = SlidingTable(limit, 0)
    table.debit("key", 1, limit, 4, 0)
    for moment, state in ((second, (0, 4)), (2 * second - 1, (0, 4)), (2 * second, (0, 0))):
        table.turn(moment)
        assert table.look("key", moment) == state
        assert len(table) == (1 if any(state) else 0)
