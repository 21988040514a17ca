"""Tokens that no hold covers: add_tokens_post_stream (B27–B30, R8)."""

from __future__ import annotations

from typing import Any, Final

from earmark.limits import Limit, Limits, Scope
from earmark.testing.contract.cases import Bench, Cases, each
from earmark.testing.rows import C, Empty, P, R, S, See, key, used
from earmark.testing.table import expect
from earmark.usage import Usage

cases: Final = Cases()


def limit_only(limit: Limit, name: str = "key") -> Scope:
    """A scope with one limit of its own kind."""
    return Scope(name, Limits(also=(limit,)))


@cases()
async def b27_tokens_of_a_closed_request_are_counted_afterwards(bench: Bench) -> None:
    """B27: pre_commit, close, add 750: tpm used 750, by the bare key and by the scope alike."""
    thousand = key(tpm=1_000)
    await bench.play(R("r1", thousand), C("r1"), P("key", 750), used("key.tpm", 750))
    await bench.play(R("r1", thousand), C("r1"), P(thousand, 750), used("key.tpm", 750))


@cases(each("nothing", [0, -1, -(2**60)]))
async def b28_nothing_to_add_creates_nothing(bench: Bench, nothing: int) -> None:
    """B28: 0 or less is a no-op, for a key never seen and for one in use."""
    thousand = key(tpm=1_000)
    await bench.play(
        P("never-seen", nothing), P(thousand, nothing), P("key", nothing, id="q"), Empty()
    )
    await bench.play(
        R("r1", thousand, tok=300), P("key", nothing), P(thousand, nothing), used("key.tpm", 300)
    )


@cases(each("nothing", [Usage(), Usage(0, 0), Usage(cached_input_tokens=9)]))
async def b28_a_usage_that_names_nothing_above_zero_creates_nothing(
    bench: Bench, nothing: Usage
) -> None:
    """B28: the same for a Usage of zeros, and for one that determines no metric."""
    await bench.play(P("never-seen", nothing), P(key(tpm=9, itpm=9, otpm=9), nothing), Empty())


@cases()
async def b29_the_exploit(bench: Bench) -> None:
    """B29: closing first and streaming later escapes no limit: the next pre_commit is refused by tokens."""
    thousand = key(rpm=60, tpm=1_000)
    await bench.play(
        R("r1", thousand),
        C("r1"),
        P("key", 1_500),
        R("r2", thousand, deny="key.tpm", after=60),
        See("key.tpm", used=1_500, left=0),
        used("key.rpm", 1),
    )


@cases(
    each(
        ("name", "inside", "window"),
        [("tpm", 59.999999, 60), ("tph", 3_599, 3_600), ("tpd", 86_399, 86_400)],
    )
)
async def b30_a_key_never_seen(bench: Bench, name: str, inside: float, window: int) -> None:
    """B30: an add by the bare key is found by a later pre_commit under tpm, tph or tpd, until the window ends."""
    thousand = key(**{name: 1_000})
    await bench.play(
        P("key", 1_500, at=0.5),
        R("r1", thousand, at=inside, deny=f"key.{name}", after=round(window - inside, 6)),
        used(f"key.{name}", 1_500),
        R("r2", thousand, at=window),
        used(f"key.{name}", 0),
    )


@cases()
async def b30_the_stream_ended_in_the_next_minute(bench: Bench) -> None:
    """B30: admitted in one minute, closed, added in the next: that next minute's tpm carries it."""
    thousand = key(tpm=1_000, tph=100_000)
    await bench.play(
        R("r1", thousand, tok=100, at=50),
        C("r1", at=55),
        P("key", 1_500, at=65),
        used("key.tpm", 1_500),
        used("key.tph", 1_600),
        R("r2", thousand, deny="key.tpm", after=55),
    )


@cases()
async def r8_a_scope_counts_in_each_of_its_token_limits_and_in_no_other(bench: Bench) -> None:
    """R8: n in every `tokens` limit, whatever its window and algorithm; not in requests, input or output."""
    wide = Scope(
        "key",
        Limits(
            rpm=60,
            tpm=1_000,
            tpd=10_000,
            itpm=1_000,
            otpm=1_000,
            concurrency=1,
            also=(
                Limit("tokens", 500, 10),
                Limit("tokens", 500, 20, "sliding_window"),
                Limit("tokens", 500, 30, "token_bucket"),
            ),
        ),
    )
    await bench.play(
        P(wide, 70),
        *(
            used(of, 70)
            for of in ("key.tpm", "key.tpd", "key.tokens/10", "key.tokens/20", "key.tokens/30")
        ),
        *(used(of, 0) for of in ("key.rpm", "key.itpm", "key.otpm", "key.conc")),
    )


@cases()
async def r8_a_usage_counts_in_each_metric_that_it_names(bench: Bench) -> None:
    """R8: tokens, input, output and the uncached ones, each by its own amount; unknown ones not at all."""
    wide = Scope(
        "key",
        Limits(
            tpm=1_000,
            itpm=1_000,
            otpm=1_000,
            also=(Limit("uncached_tokens", 1_000, 10), Limit("uncached_input_tokens", 1_000, 10)),
        ),
    )
    names = (
        "key.tpm",
        "key.itpm",
        "key.otpm",
        "key.uncached_tokens/10",
        "key.uncached_input_tokens/10",
    )
    for usage, counts in (
        (Usage(100, 20, cached_input_tokens=80), (120, 100, 20, 40, 20)),
        (Usage(100, 20), (120, 100, 20, 0, 0)),
        (Usage(output_tokens=20), (0, 0, 20, 0, 0)),
        (Usage(reported_total=90), (90, 0, 0, 0, 0)),
        (Usage(0, 20), (20, 0, 20, 20, 0)),
    ):
        await bench.play(
            P(wide, usage), *(used(of, n) for of, n in zip(names, counts, strict=True))
        )


@cases()
async def r8_a_bare_key_counts_the_total_of_a_usage(bench: Bench) -> None:
    """R8: with a bare key a Usage counts its total, where it is known."""
    wide = key(tpm=1_000, itpm=1_000)
    await bench.play(
        R("r1", wide),
        P("key", Usage(100, 20)),
        used("key.tpm", 120),
        used("key.itpm", 0),
        P("key", Usage(reported_total=30)),
        used("key.tpm", 150),
        P("key", Usage(100)),
        used("key.tpm", 150),
    )


@cases(
    each(
        ("limit", "of", "within", "beyond"),
        [
            (Limit("tokens", 500, 10), "key.tokens/10", 9.999999, 10),
            (Limit("tokens", 500, 60, "sliding_window"), "key.tpm", 119.999, 120),
            (Limit("tokens", 600, 60, "token_bucket"), "key.tpm", 59, 61),
        ],
    )
)
async def r8_a_bare_key_reaches_what_still_counts(
    bench: Bench, limit: Limit, of: str, within: float, beyond: float
) -> None:
    """R8: an admission with ask 0 brings a key's other token limits in reach, as long as its state counts."""
    scope = limit_only(limit)
    await bench.play(R("r1", scope), C("r1"), P("key", 90, at=within), used(of, 90))
    await bench.play(R("r1", scope), C("r1"), P("key", 90, at=beyond), used(of, 0))


@cases(each("algorithm", ["fixed_window", "sliding_window", "token_bucket"]))
async def r8_a_limit_that_others_use_is_out_of_reach(bench: Bench, algorithm: Any) -> None:
    """R8: under a limit of ten seconds only keys count that were admitted or counted there themselves."""
    limit = Limit("tokens", 500, 10, algorithm)
    other, mine = limit_only(limit, "other"), limit_only(limit, "mine")
    await bench.play(
        R("r1", other, tok=5),
        P("mine", 90),
        used("mine.tokens/10", 0, scope=mine),
        used("other.tokens/10", 5),
    )


@cases()
async def r8_a_refund_brings_nothing_in_reach(bench: Bench) -> None:
    """R8: admitted in the first window, refunded in the second: in the third nothing of it counts."""
    scope = limit_only(Limit("tokens", 500, 60, "sliding_window"))
    await bench.play(
        R("r1", scope, tok=40),
        S("r1", 0, at=70),
        P("key", 90, at=119.999999),
        used("key.tpm", 90),
    )
    await bench.play(
        R("r1", scope, tok=40), S("r1", 0, at=70), P("key", 90, at=125), used("key.tpm", 0)
    )


@cases()
async def r8_a_bucket_in_debt_is_in_reach_until_it_is_full(bench: Bench) -> None:
    """R8: 1,800 used of 600 a minute: in reach for three minutes, and not beyond."""
    bucket = limit_only(Limit("tokens", 600, 60, "token_bucket"))
    await bench.play(R("r1", bucket), S("r1", 1_800), P("key", 90, at=170), used("key.tpm", 190))
    await bench.play(R("r1", bucket), S("r1", 1_800), P("key", 90, at=181), used("key.tpm", 0))


@cases(each("algorithm", ["fixed_window", "sliding_window", "token_bucket"]))
async def r8_what_was_counted_by_its_scope_is_in_reach_of_the_bare_key(
    bench: Bench, algorithm: str
) -> None:
    """R8: admitted *or counted*: an add by the scope brings the key in reach as well."""
    scope = Scope("key", Limits(tpm=600, algorithm=algorithm))  # type: ignore[arg-type]
    await bench.play(P(scope, 100), P("key", 50), used("key.tpm", 150))


@cases()
async def r8_a_bare_key_counts_once_in_each_limit(bench: Bench) -> None:
    """R8: the minute, hour and day are added to always, and no limit twice for being known as well."""
    wide = Scope(
        "key",
        Limits(
            tpm=9_000, tph=9_000, tpd=9_000, also=(Limit("tokens", 9_000, 60, "sliding_window"),)
        ),
    )
    async with bench.table() as table:
        await table.play(R("r1", wide), P("key", 100))
        (scope,) = await table.limiter.peek(wide)
        expect(
            "[one.used for one in scope.limits]",
            [one.used for one in scope.limits],
            [100, 100, 100, 100],
        )


@cases()
async def r8_a_bare_key_leaves_other_keys_and_other_metrics_alone(bench: Bench) -> None:
    """R8: only `tokens`, only of that key."""
    mine, other = key("k", tpm=1_000, itpm=1_000, rpm=10), key("k2", tpm=1_000)
    await bench.play(
        R("r1", mine, other),
        P("k", 100),
        used("k.tpm", 100),
        used("k.itpm", 0),
        used("k.rpm", 1),
        used("k2.tpm", 0),
    )


@cases()
async def r8_a_repeated_id_counts_once_for_each_key(bench: Bench) -> None:
    """R8: with a request_id a repeated call for the same key counts once; another key or id counts."""
    one, other = key("a", tpm=1_000), key("b", tpm=1_000)
    await bench.play(
        P("a", 100, id="q"),
        P("a", 100, id="q"),
        P(one, 100, id="q", at=30),
        used("a.tpm", 100),
        P("b", 100, id="q"),
        used("b.tpm", 100, scope=other),
        P("a", 100, id="q2"),
        P("a", 100),
        P("a", 100),
        used("a.tpm", 400),
    )


@cases()
async def r8_an_id_is_remembered_over_the_end_of_a_window_and_not_for_ever(bench: Bench) -> None:
    """R8, R9: sent again seven seconds later, in the next minute, it counts once; two days later it is forgotten."""
    thousand = key(tpm=1_000, tpd=1_000)
    await bench.play(
        P(thousand, 100, id="q", at=55),
        P(thousand, 100, id="q", at=62),
        used("key.tpm", 0),
        used("key.tpd", 100),
        Empty(at=2 * 86_400),
        P(thousand, 100, id="q"),
        used("key.tpm", 100),
    )


@cases()
async def r8_ids_of_adds_are_apart_from_those_of_reservations(bench: Bench) -> None:
    """R8: a reservation "q" and an add "q" never meet, whichever comes first."""
    thousand = key(tpm=1_000)
    await bench.play(
        R("r1", thousand, tok=10, request_id="q"),
        P(thousand, 100, id="q"),
        used("key.tpm", 110),
        S("r1", 20),
        used("key.tpm", 120),
        P(thousand, 100, id="p"),
        R("r2", thousand, tok=10, request_id="p"),
        used("key.tpm", 230),
        C("r2"),
    )


@cases()
async def r8_no_op_does_not_spend_its_id(bench: Bench) -> None:
    """R8: an add of nothing remembers nothing: the same id may count afterwards."""
    thousand = key(tpm=1_000)
    await bench.play(P(thousand, 0, id="q"), P(thousand, 100, id="q"), used("key.tpm", 100))


@cases()
async def r8_an_add_is_told_once(bench: Bench) -> None:
    """R8: one post_stream event for what was counted; none for a no-op or a repeated id."""
    async with bench.table(start=7) as table:
        await table.play(P("key", 100, id="q"), P("key", 100, id="q"), P("key", 0), P("key", -5))
        expect("table.kinds()", table.kinds(), ["post_stream"])
        (event,) = table.events
        expect(
            "(event.request_id, event.keys, dict(event.used))",
            (event.request_id, event.keys, dict(event.used)),
            ("q", ("key",), {"tokens": 100}),
        )
