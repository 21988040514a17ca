"""Windows and limits: what is admitted, when, and what a refusal says (B1–B12)."""

from __future__ import annotations

from typing import Final

import anyio
import anyio.lowlevel

from earmark.answers import ScopeStatus
from earmark.errors import RateLimited
from earmark.limits import Limits, Scope
from earmark.testing.contract.cases import Bench, Cases, each
from earmark.testing.rows import C, Empty, P, R, See, key, used
from earmark.testing.table import Row, expect

cases: Final = Cases()


WINDOWS = [("rps", 1), ("rpm", 60), ("rph", 3_600), ("rpd", 86_400)]


@cases(
    each("now", [0.0, 59.999999, 119.25, 100_000.5, 1_753_920_007.125]),
    each(("name", "window"), WINDOWS),
)
async def b1_fixed_windows_are_aligned_to_the_clock(
    bench: Bench, name: str, window: int, now: float
) -> None:
    """B1: a fixed window starts at now - now % window, whenever it is first used."""
    one = key(**{name: 1})
    micros = round(now * 1e6)
    end = (micros - micros % (window * 1_000_000) + window * 1_000_000) / 1e6
    left = (window * 1_000_000 - micros % (window * 1_000_000)) / 1e6
    await bench.play(
        R("r1", one, at=now),
        See(f"key.{name}", used=1, left=0, resets=left),
        R("r2", one, deny=f"key.{name}", after=left),
        R("r3", one, at=end - 1e-6, deny=f"key.{name}", after=1e-6) if left > 1e-6 else Row(),
        R("r4", one, at=end),
        See(f"key.{name}", used=1, left=0, resets=window),
    )


@cases()
async def b2_three_a_minute(bench: Bench) -> None:
    """B2: the fourth is refused until the window ends; then the count starts from nothing."""
    three = key(rpm=3)
    await bench.play(
        R("r1", three, at=100),
        R("r2", three),
        R("r3", three),
        R("r4", three, deny="key.rpm", after=20),
        R("r5", three, at=161),
        used("key.rpm", 1),
    )


@cases()
async def b3_retry_after_is_the_rest_of_the_window(bench: Bench) -> None:
    """B3: refused at t = 110 in the window 60–120: retry_after is exactly 10."""
    one = key(rpm=1)
    await bench.play(R("r1", one, at=61), R("r2", one, at=110, deny="key.rpm", after=10))


@cases(
    each(
        ("at", "after"),
        [(119.99, 0.01), (119.999999, 0.000001), (60.0, 60), (119.9999990001, 0.000001)],
    )
)
async def b4_retry_after_is_never_zero(bench: Bench, at: float, after: float) -> None:
    """B4: however late in its window a request is refused, there is a time to wait."""
    one = key(rpm=1)
    await bench.play(R("r1", one, at=60), R("r2", one, at=at, deny="key.rpm", after=after))


@cases(each(("counted", "admitted"), [(1_500, False), (1_000, False), (999, True), (0, True)]))
async def b5_an_exhausted_limit_refuses_even_an_ask_of_nothing(
    bench: Bench, counted: int, admitted: bool
) -> None:
    """B5, R1: a request needs room for one unit, whatever it asks."""
    thousand = key(tpm=1_000)
    last = R("r1", thousand) if admitted else R("r1", thousand, deny="key.tpm", after=60)
    await bench.play(P(thousand, counted), last, used("key.tpm", counted))


@cases(each(("name", "window"), WINDOWS))
async def b6_five_a_window_and_five_in_the_next(bench: Bench, name: str, window: int) -> None:
    """B6: ten at once admit five, per second, minute, hour and day alike; five more in the next window."""
    five = key(**{name: 5})
    for start in (0, window):
        await bench.play(
            *(R(f"ok{n}", five, at=start) for n in range(5)),
            *(R(f"no{n}", five, deny=f"key.{name}", after=window) for n in range(5)),
            used(f"key.{name}", 5),
            *(R(f"then{n}", five, at=start + window) for n in range(5)),
            used(f"key.{name}", 5),
        )


@cases()
async def b6_ten_tasks_at_once(bench: Bench) -> None:
    """B6: ten concurrent tasks under rps 5: exactly five run, and five more a second later."""
    five = key(rps=5)
    async with bench.table() as table:

        async def ask(name: str) -> None:
            await anyio.lowlevel.checkpoint()
            try:
                table.handles[name] = await table.limiter.pre_commit(five)
            except RateLimited:
                return

        for at in (0, 1):
            table.clock.set(at)
            async with anyio.create_task_group() as tasks:
                for n in range(10):
                    tasks.start_soon(ask, f"{at}.{n}")
            expect("len(table.handles)", len(table.handles), 5 * (at + 1))


@cases()
async def b6_an_unset_limit_never_refuses_and_never_counts(bench: Bench) -> None:
    """B6: None is no limit at all: `peek` has no line for it."""
    unset = key(rpm=None, tpm=1_000_000_000, rpd=None)
    async with bench.table() as table:
        await table.play(*(R(f"r{n}", unset, tok=10) for n in range(100)))
        expect("list(await table.look())", list(await table.look()), ["key.tpm"])


@cases(
    each("name", ["rps", "rpm", "rph", "rpd", "tpm", "tph", "tpd", "itpm", "otpm", "concurrency"])
)
async def b6_zero_admits_nothing_ever(bench: Bench, name: str) -> None:
    """B6: 0 is not "unlimited": nothing is admitted, and asking again can never help (R3)."""
    nothing = key(**{name: 0})
    of = "key.conc" if name == "concurrency" else f"key.{name}"
    await bench.play(
        R("r1", nothing, deny=of, after=None, never=True),
        R("r2", nothing, at=90_000, deny=of, after=None, never=True),
        Empty(),
    )


@cases()
async def b7_a_longer_window_neither_consumes_nor_resets_a_shorter_one(bench: Bench) -> None:
    """B7: at the end of the second minute both refuse; in the third the day alone, and the minute shows 0."""
    both = key(rpm=10, rpd=20)
    await bench.play(
        *(R(f"a{n}", both, at=n) for n in range(10)),
        *(R(f"b{n}", both, at=60 + n) for n in range(10)),
        R("c1", both, at=75, deny="key.rpm key.rpd", after=86_400 - 75),
        used("key.rpm", 10),
        used("key.rpd", 20),
        R("c2", both, at=120, deny="key.rpd", after=86_400 - 120),
        See("key.rpm", used=0, left=10),
        See("key.rpd", used=20, left=0),
        R("c3", both, at=86_400),
        used("key.rpm", 1),
        used("key.rpd", 1),
    )


@cases()
async def b7_the_counts_of_concurrent_siblings_survive_refusals(bench: Bench) -> None:
    """B7: thirty tasks at once under rpm 10 and rpd 15: refusals take nothing from those that run."""
    both = key(rpm=10, rpd=15)
    async with bench.table() as table:
        table.know((both,))
        for at, admitted, counts in ((0, 10, (10, 10)), (60, 15, (5, 15)), (120, 15, (0, 15))):
            table.clock.set(at)

            async def ask(name: str) -> None:
                await anyio.lowlevel.checkpoint()
                try:
                    table.handles[name] = await table.limiter.pre_commit(both)
                except RateLimited:
                    return

            async with anyio.create_task_group() as tasks:
                for n in range(30):
                    tasks.start_soon(ask, f"{at}.{n}")
            expect("len(table.handles)", len(table.handles), admitted)
            await table.play(used("key.rpm", counts[0]), used("key.rpd", counts[1]))


@cases()
async def b8_concurrency_refuses_without_a_time_and_without_a_request(bench: Bench) -> None:
    """B8: the third is refused, no retry_after, no request counted; resolving one admits one."""
    two = key(rpm=60, concurrency=2)
    await bench.play(
        R("r1", two),
        R("r2", two),
        R("r3", two, deny="key.conc", after=None),
        used("key.rpm", 2),
        See("key.conc", used=2, left=0, resets=None),
        C("r1"),
        R("r4", two),
        R("r5", two, deny="key.conc", after=None),
        used("key.rpm", 3),
    )


@cases(
    each(
        ("third", "of", "after"),
        [
            ({"rpm": 1}, "c.rpm", 60),
            ({"tpm": 10}, "c.tpm", 60),
            ({"concurrency": 1}, "c.conc", None),
            ({"rpm": 1, "algorithm": "token_bucket"}, "c.rpm", 60),
            ({"tpm": 10, "algorithm": "token_bucket"}, "c.tpm", 60),
            ({"tpm": 10, "algorithm": "sliding_window"}, "c.tpm", 120),
            ({"rpm": 1, "algorithm": "sliding_window"}, "c.rpm", 120),
        ],
    )
)
async def b9_a_refusal_consumes_nothing_in_any_scope(
    bench: Bench, third: dict[str, object], of: str, after: float | None
) -> None:
    """B9, R2: whichever limit refuses, no scope before or after it counts anything, and no slot is taken."""
    first = key("a", rpm=60, tpm=1_000, concurrency=5)
    sliding = key("b", rpd=60, tpd=1_000, algorithm="sliding_window")
    last = key("d", rph=60, itpm=50, algorithm="token_bucket")
    narrow = Scope("c", Limits(**third))  # type: ignore[arg-type]
    await bench.play(
        R("r1", narrow, tok=10),
        *(
            R(f"r{n}", first, sliding, narrow, last, tok=10, deny=of, after=after)
            for n in range(2, 6)
        ),
        *(used(f"{name}", 0) for name in ("a.rpm", "a.tpm", "a.conc", "b.rpd", "b.tpd", "d.rph")),
    )


@cases()
async def b10_no_limits_no_refusals_no_state(bench: Bench) -> None:
    """B10: 100 reservations of 1,000 tokens under no limits: none is refused, and nothing is kept."""
    free = key()
    await bench.play(
        *(row for n in range(100) for row in (R(f"r{n}", free, tok=1_000), C(f"r{n}"))),
        Empty(),
    )


@cases()
async def b11_peek_of_a_scope_without_limits_says_nothing(bench: Bench) -> None:
    """B11: an unknown scope without limits has nothing to show, and looking creates nothing."""
    async with bench.table() as table:
        expect(
            'await table.limiter.peek(key("nobody"))',
            await table.limiter.peek(key("nobody")),
            (ScopeStatus("nobody", ()),),
        )
        await table.play(Empty())


@cases()
async def b11_peek_of_an_unknown_scope_shows_its_limits_unused(bench: Bench) -> None:
    """B11: nothing is used yet; looking creates nothing, however often."""
    wide = key(rpm=60, tpm=500, concurrency=5)
    await bench.play(
        See("key.rpm", used=0, left=60, resets=23, refuses=False, scope=wide, at=37),
        See("key.tpm", used=0, left=500, resets=23, refuses=False),
        See("key.conc", used=0, left=5, resets=None, refuses=False),
        Empty(),
    )


@cases(each("now", [0, 37, 59.5, 60, 1_753_920_007.125]))
async def b11_peek_after_one_request(bench: Bench, now: float) -> None:
    """B11: rpm 60 after one request: used 1, remaining 59, reset_after = 60 - now % 60. It changes nothing."""
    sixty = key(rpm=60)
    seen = See("key.rpm", used=1, left=59, resets=60 - now % 60, refuses=False)
    await bench.play(R("r1", sixty, at=now), seen, seen)


@cases()
async def b11_remaining_is_never_below_zero(bench: Bench) -> None:
    """B11: 1,500 of 1,000 used: nothing remains, not less than nothing."""
    thousand = key(tpm=1_000)
    await bench.play(P(thousand, 1_500), See("key.tpm", used=1_500, left=0, refuses=True))


@cases()
async def b11_open_reservations_show_as_in_flight(bench: Bench) -> None:
    """B11: two open reservations show as 2 of 5."""
    five = key(concurrency=5)
    await bench.play(
        R("r1", five), R("r2", five), See("key.conc", used=2, left=3, resets=None, refuses=False)
    )


@cases()
async def b12_different_keys_never_share(bench: Bench) -> None:
    """B12: tenants at 90 of 100 each are both admitted."""
    one, other = key("tenant:1", tpm=100), key("tenant:2", tpm=100)
    await bench.play(
        P(one, 90),
        P(other, 90),
        R("r1", one, tok=10),
        used("tenant:2.tpm", 90),
        R("r2", other, tok=10),
        R("r3", one, tok=1, deny="tenant:1.tpm"),
        R("r4", other, tok=1, deny="tenant:2.tpm"),
    )
