"""Faults of estimates, numbers, races and keys that such systems had, each named by its case (C31–C67)."""

from __future__ import annotations

from typing import Final

import anyio
import anyio.lowlevel

from earmark.errors import RateLimited
from earmark.limits import Limit, Limits, Scope
from earmark.testing.contract.cases import ALGORITHMS, Bench, Cases, each
from earmark.testing.rows import P, R, S, See, key, used
from earmark.testing.table import expect
from earmark.usage import Usage

cases: Final = Cases()


@cases(each("algorithm", ALGORITHMS))
async def c31_of_five_at_once_only_one_fits(bench: Bench, algorithm: str) -> None:
    """C31: all five passed a check that one of them may pass."""
    hundred = key(tpm=100, algorithm=algorithm)
    refused: list[int] = []
    async with bench.table() as table:

        async def ask(name: str) -> None:
            await anyio.lowlevel.checkpoint()
            try:
                table.handles[name] = await table.limiter.pre_commit(hundred, tokens=58)
            except RateLimited as refusal:
                refused.extend(denial.used for denial in refusal.denials)

        async with anyio.create_task_group() as tasks:
            for n in range(5):
                tasks.start_soon(ask, f"r{n}")
        expect("(len(table.handles), refused)", (len(table.handles), refused), (1, [58] * 4))
        expect("sorted(table.kinds())", sorted(table.kinds()), ["admitted"] + ["refused"] * 4)


@cases()
async def c32_an_estimate_holds_what_it_says_and_no_more(bench: Bench) -> None:
    """C32: an unknown output size reserved the whole headroom; an estimate of 0 also did."""
    scope = key(tpm=100_000)
    await bench.play(
        R("zero", scope),
        used("key.tpm", 0),
        *(R(f"r{n}", scope, tok=16_384) for n in range(6)),
        used("key.tpm", 98_304),
        R("r7", scope, tok=16_384, deny="key.tpm", after=60),
        R("hostile", scope, tok=10**9, deny="key.tpm", after=None, never=True),
    )


@cases()
async def c34_n_multiplies_the_output_and_not_the_prompt(bench: Bench) -> None:
    """C34: prompt 100, max_tokens 200: n = 4 asks 900, n = 5 asks 1,100; usage has the prompt once."""
    thousand = key(tpm=1_000)
    await bench.play(
        R("n5", thousand, tok=100 + 5 * 200, deny="key.tpm", after=None, never=True),
        R("n4", thousand, tok=100 + 4 * 200),
        S("n4", Usage(100, 4 * 150)),
        used("key.tpm", 700),
    )


@cases()
async def c37_no_estimate_is_demanded(bench: Bench) -> None:
    """C37: an estimate was demanded even where no token limit applies."""
    requests, tokens = key("a", rpm=60), key("b", tpm=1_000)
    await bench.play(
        R("r1", requests),
        S("r1", Usage(30, 20)),
        R("r2", tokens),
        used("b.tpm", 0),
        S("r2", Usage(900, 200)),
        used("b.tpm", 1_100),
        R("r3", tokens, deny="b.tpm"),
    )


@cases()
async def c62_debt_gives_nothing_away(bench: Bench) -> None:
    """C62: in debt, "take what is there" returned a negative number and added tokens."""
    bucket = key(tpm=50, algorithm="token_bucket")
    debt = See("key.tpm", used=80, left=0, refuses=True)
    await bench.play(
        R("r1", bucket),
        S("r1", 80),
        debt,
        R("r2", bucket, tok=10, deny="key.tpm", after=48),
        R("r3", bucket, deny="key.tpm", after=37.2),
        debt,
    )


@cases(each("algorithm", ALGORITHMS))
async def c62_ten_idle_years_leave_nothing_used(bench: Bench, algorithm: str) -> None:
    """C62: long idleness overflowed; it must leave exactly nothing used, and everything admitted."""
    fifty = key(tpm=50, rpd=9, algorithm=algorithm)
    ten_years = 10 * 365 * 86_400.0
    await bench.play(
        R("r1", fifty, tok=50, at=1.5),
        S("r1", 130),
        See("key.tpm", used=0, left=50, refuses=False, at=ten_years),
        See("key.rpd", used=0, left=9),
        R("r2", fifty, tok=50),
        See("key.tpm", used=50, left=0),
    )


TOP = 2**53 - 1


@cases()
async def c62_amounts_up_to_the_top_are_exact(bench: Bench) -> None:
    """C62, R12: every unit counts up to 2**53 - 1, and there the counter stays."""
    most = key(tpm=TOP, tpd=TOP)
    await bench.play(
        R("r1", most, tok=TOP - 2),
        See("key.tpm", used=TOP - 2, left=2),
        R("r2", most, tok=3, deny="key.tpm key.tpd"),
        R("r3", most, tok=1),
        See("key.tpm", used=TOP - 1, left=1),
        S("r1", TOP - 3),
        See("key.tpd", used=TOP - 2, left=2),
        R("r4", most, tok=2),
        R("r5", most, deny="key.tpm key.tpd", after=86_400),
        P(most, TOP),
        P("key", TOP),
        See("key.tpm", used=TOP, left=0),
        R("r6", most, at=60, deny="key.tpd"),
        R("r7", most, tok=TOP, at=86_400),
        See("key.tpd", used=TOP, left=0),
    )


@cases(each("algorithm", ["sliding_window", "token_bucket"]))
async def c62_the_largest_amounts_overflow_nothing(bench: Bench, algorithm: str) -> None:
    """C62: the top amount on the fractional algorithms: full, refused with a time, free at that time."""
    most = key(tpm=TOP, algorithm=algorithm)
    end = 120 if algorithm == "sliding_window" else 60
    await bench.play(
        R("r1", most, tok=TOP),
        S("r1", TOP),
        See("key.tpm", resets=end),
        R("r2", most, tok=TOP, deny="key.tpm", after=end),
        P(most, TOP),
        R("r3", most, tok=TOP, at=10 * 365 * 86_400),
    )


@cases(each("algorithm", ALGORITHMS))
async def c65_a_thousand_at_once_on_ten_keys(bench: Bench, algorithm: str) -> None:
    """C65: a cut-off computed outside the lock dropped fresh entries, and the limit was never hit."""
    scopes = [key(f"key{n}", rpd=4, algorithm=algorithm) for n in range(10)]
    async with bench.table() as table:

        async def ask(n: int) -> None:
            await anyio.lowlevel.checkpoint()
            try:
                table.handles[f"r{n}"] = await table.limiter.pre_commit(scopes[n % 10])
            except RateLimited:
                return

        async with anyio.create_task_group() as tasks:
            for n in range(1_000):
                tasks.start_soon(ask, n)
        expect("len(table.handles)", len(table.handles), 40)
        await table.play(*(used(f"key{n}.rpd", 4, scope=scopes[n]) for n in range(10)))


@cases(each("algorithm", ALGORITHMS))
async def c65_a_small_cost_after_a_large_one_counts(bench: Bench, algorithm: str) -> None:
    """C65: a large cost followed by a small one was not counted."""
    ten = key(tpm=10, algorithm=algorithm)
    await bench.play(R("r1", ten, tok=8), R("r2", ten, tok=1), R("r3", ten, tok=2, deny="key.tpm"))


AWKWARD: Final = [
    *(
        "a",
        "a:",
        ":a",
        "a:b",
        "a:b:c",
        "a::b",
        "{a}",
        "{a",
        "a}",
        "a{b}c",
        "%",
        "%3A",
        "a%3Ab",
        "a%00",
    ),
    *(
        "a\0",
        "\0",
        "a\0b",
        "a\nb",
        "a\n",
        " a",
        "a ",
        "A",
        "é",
        "e\u0301",
        "0123456789x",
        "0123456789y",
    ),
    *(
        "a:tokens",
        "a:fixed_window:60000000:tokens",
        "fixed_window:60000000:tokens",
        "a\r\n",
        "*",
        "a*",
        "\\",
        "🙂",
    ),
]


def met(what: str, other: str | None) -> None:
    """Fail: something is kept where another thing is, which is named where that is known."""
    whose = "another" if other is None else ascii(other)
    msg = f"{what}: got what is kept of {whose}, expected what is its own"
    raise AssertionError(msg)


@cases()
async def c67_no_two_keys_share(bench: Bench) -> None:
    """C67, R13: delimiters inside keys, cut-off prefixes, control characters: each key is its own."""
    scopes = [key(name, tpm=1_000, rpm=10, concurrency=3) for name in AWKWARD]
    async with bench.table() as table:
        for n, scope in enumerate(scopes, 1):
            (fresh,) = await table.limiter.peek(scope)
            if shared := fresh["tokens"].used:  # each key has an amount of its own
                other = AWKWARD[shared - 1] if shared < n else None
                met(f"the key {scope.key!a}", other)
            await table.play(R(f"r{n}", scope, tok=n))
        for n, status in enumerate(await table.limiter.peek(*scopes), 1):
            expect("status.key", status.key, AWKWARD[n - 1])
            expect(
                "[one.used for one in status.limits]",
                [one.used for one in status.limits],
                [1, n, 1],
            )


@cases()
async def c67_a_delimiter_between_key_and_metric_joins_nothing(bench: Bench) -> None:
    """C67: ("a", "b:c") and ("a:b", "c") never share."""
    one = Scope("a", Limits(also=(Limit("b:c", 10, 60),)))
    other = Scope("a:b", Limits(also=(Limit("c", 10, 60),)))
    await bench.play(
        R("r1", one, amounts={"b:c": 7}),
        used("a:b.c/60", 0, scope=other),
        R("r2", other, amounts={"c": 2}),
        used("a.b:c/60", 7),
        used("a:b.c/60", 2),
    )


@cases()
async def c67_two_rules_on_one_scope_are_two_counters(bench: Bench) -> None:
    """C67: two limits of one scope that differ in metric, window or algorithm count apart."""
    scope = Scope(
        "key",
        Limits(
            tpm=1_000, tph=1_000, itpm=1_000, also=(Limit("tokens", 1_000, 60, "sliding_window"),)
        ),
    )
    async with bench.table() as table:
        await table.play(R("r1", scope, tok=Usage(30, 20), at=30))
        table.clock.set(90)
        (status,) = await table.limiter.peek(scope)
        expect(
            "[one.used for one in status.limits]",
            [one.used for one in status.limits],
            [0, 50, 0, 25],
        )
