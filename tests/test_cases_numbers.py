"""Faults of estimates, numbers, races and keys that such systems had, each named by its case (C31–C67).

Windows are 60 s from t = 0. Each docstring says what the faulty system did.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from earmark import Limit, Limiter, Limits, MemoryBackend, RateLimited, Scope, Usage
from earmark.testing import ManualClock
from tests.doubles import reachable_bytes
from tests.rows import C, P, R, S, See, Table, Z, key, play, used

pytestmark = pytest.mark.anyio

ALGORITHMS = ["fixed_window", "sliding_window", "token_bucket"]


# Estimates and check-then-act


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_c31_of_five_at_once_only_one_fits(algorithm: str) -> None:
    """C31: all five passed a check that one of them may pass."""
    hundred = key(tpm=100, algorithm=algorithm)
    refused: list[int] = []
    async with Table() as table:

        async def ask(name: str) -> None:
            await anyio.lowlevel.checkpoint()
            try:
                table.handles[name] = await table.limiter.pre_commit(hundred, tokens=58)
            except RateLimited as refusal:
                refused.extend(denial.used for denial in refusal.denials)

        async with anyio.create_task_group() as tasks:
            for n in range(5):
                tasks.start_soon(ask, f"r{n}")
        assert (len(table.handles), refused) == (1, [58] * 4)
        assert sorted(table.kinds()) == ["admitted"] + ["refused"] * 4


async def test_c32_an_estimate_holds_what_it_says_and_no_more() -> None:
    """C32: an unknown output size reserved the whole headroom; an estimate of 0 also did."""
    scope = key(tpm=100_000)
    await play(
        R("zero", scope),
        used("key.tpm", 0),
        *(R(f"r{n}", scope, tok=16_384) for n in range(6)),
        used("key.tpm", 98_304),
        R("r7", scope, tok=16_384, deny="key.tpm", after=60),
        R("hostile", scope, tok=10**9, deny="key.tpm", after=None, never=True),
    )


async def test_c34_n_multiplies_the_output_and_not_the_prompt() -> None:
    """C34: prompt 100, max_tokens 200: n = 4 asks 900, n = 5 asks 1,100; usage has the prompt once."""
    thousand = key(tpm=1_000)
    await play(
        R("n5", thousand, tok=100 + 5 * 200, deny="key.tpm", after=None, never=True),
        R("n4", thousand, tok=100 + 4 * 200),
        S("n4", Usage(100, 4 * 150)),
        used("key.tpm", 700),
    )


async def test_c37_no_estimate_is_demanded() -> None:
    """C37: an estimate was demanded even where no token limit applies."""
    requests, tokens = key("a", rpm=60), key("b", tpm=1_000)
    await play(
        R("r1", requests),
        S("r1", Usage(30, 20)),
        R("r2", tokens),
        used("b.tpm", 0),
        S("r2", Usage(900, 200)),
        used("b.tpm", 1_100),
        R("r3", tokens, deny="b.tpm"),
    )


# Numbers, races, keys


async def test_c62_debt_gives_nothing_away() -> None:
    """C62: in debt, "take what is there" returned a negative number and added tokens."""
    bucket = key(tpm=50, algorithm="token_bucket")
    debt = See("key.tpm", used=80, left=0, refuses=True)
    await play(
        R("r1", bucket),
        S("r1", 80),
        debt,
        R("r2", bucket, tok=10, deny="key.tpm", after=48),
        R("r3", bucket, deny="key.tpm", after=37.2),
        debt,
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_c62_ten_idle_years_leave_nothing_used(algorithm: str) -> None:
    """C62: long idleness overflowed; it must leave exactly nothing used, and everything admitted."""
    fifty = key(tpm=50, rpd=9, algorithm=algorithm)
    ten_years = 10 * 365 * 86_400.0
    await play(
        R("r1", fifty, tok=50, at=1.5),
        S("r1", 130),
        See("key.tpm", used=0, left=50, refuses=False, at=ten_years),
        See("key.rpd", used=0, left=9),
        R("r2", fifty, tok=50),
        See("key.tpm", used=50, left=0),
    )


TOP = 2**53 - 1


async def test_c62_amounts_up_to_the_top_are_exact() -> None:
    """C62, R12: every unit counts up to 2**53 - 1, and there the counter stays."""
    most = key(tpm=TOP, tpd=TOP)
    await play(
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


@pytest.mark.parametrize("algorithm", ["sliding_window", "token_bucket"])
async def test_c62_the_largest_amounts_overflow_nothing(algorithm: str) -> None:
    """C62: the top amount on the fractional algorithms: full, refused with a time, free at that time."""
    most = key(tpm=TOP, algorithm=algorithm)
    end = 120 if algorithm == "sliding_window" else 60
    await play(
        R("r1", most, tok=TOP),
        S("r1", TOP),
        See("key.tpm", resets=end),
        R("r2", most, tok=TOP, deny="key.tpm", after=end),
        P(most, TOP),
        R("r3", most, tok=TOP, at=10 * 365 * 86_400),
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_c65_a_thousand_at_once_on_ten_keys(algorithm: str) -> None:
    """C65: a cut-off computed outside the lock dropped fresh entries, and the limit was never hit."""
    scopes = [key(f"key{n}", rpd=4, algorithm=algorithm) for n in range(10)]
    async with Table() as table:

        async def ask(n: int) -> None:
            await anyio.lowlevel.checkpoint()
            try:
                table.handles[f"r{n}"] = await table.limiter.pre_commit(scopes[n % 10])
            except RateLimited:
                return

        async with anyio.create_task_group() as tasks:
            for n in range(1_000):
                tasks.start_soon(ask, n)
        assert len(table.handles) == 40
        await table.play(*(used(f"key{n}.rpd", 4, scope=scopes[n]) for n in range(10)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_c65_a_small_cost_after_a_large_one_counts(algorithm: str) -> None:
    """C65: a large cost followed by a small one was not counted."""
    ten = key(tpm=10, algorithm=algorithm)
    await play(R("r1", ten, tok=8), R("r2", ten, tok=1), R("r3", ten, tok=2, deny="key.tpm"))


AWKWARD = [
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


async def test_c67_no_two_keys_share() -> None:
    """C67, R13: delimiters inside keys, cut-off prefixes, control characters: each key is its own."""
    scopes = [key(name, tpm=1_000, rpm=10, concurrency=3) for name in AWKWARD]
    async with Table() as table:
        for n, scope in enumerate(scopes, 1):
            await table.play(R(f"r{n}", scope, tok=n))
        for n, status in enumerate(await table.limiter.peek(*scopes), 1):
            assert status.key == AWKWARD[n - 1]
            assert [one.used for one in status.limits] == [1, n, 1]


async def test_c67_a_delimiter_between_key_and_metric_joins_nothing() -> None:
    """C67: ("a", "b:c") and ("a:b", "c") never share."""
    one = Scope("a", Limits(also=(Limit("b:c", 10, 60),)))
    other = Scope("a:b", Limits(also=(Limit("c", 10, 60),)))
    await play(
        R("r1", one, amounts={"b:c": 7}),
        used("a:b.c/60", 0, scope=other),
        R("r2", other, amounts={"c": 2}),
        used("a.b:c/60", 7),
        used("a:b.c/60", 2),
    )


async def test_c67_two_rules_on_one_scope_are_two_counters() -> None:
    """C67: two limits of one scope that differ in metric, window or algorithm count apart."""
    scope = Scope(
        "key",
        Limits(
            tpm=1_000, tph=1_000, itpm=1_000, also=(Limit("tokens", 1_000, 60, "sliding_window"),)
        ),
    )
    async with Table() as table:
        await table.play(R("r1", scope, tok=Usage(30, 20), at=30))
        table.clock.set(90)
        (status,) = await table.limiter.peek(scope)
        assert [one.used for one in status.limits] == [0, 50, 0, 25]


async def flood(limits: Limits, keys: int) -> None:
    """Use each of so many keys once; two windows later nothing of it must be left."""
    clock = ManualClock()
    backend = MemoryBackend(clock=clock)
    limiter = Limiter(backend)
    traffic = Scope("traffic", limits)

    async def use(*scopes: Scope) -> None:
        await (await limiter.pre_commit(*scopes, tokens=5)).close_reserved_only()

    await use(traffic)
    gc.collect()
    held, blocks = reachable_bytes(limiter), sys.getallocatedblocks()
    for n in range(0, keys, 20):
        await use(*(Scope(f"user:{n + one}", limits) for one in range(20)))
    assert backend.size() >= keys
    for window in (1, 2):
        clock.set(60 * window)
        await use(traffic)
    gc.collect()
    assert reachable_bytes(limiter) - held < 10_000
    assert sys.getallocatedblocks() - blocks < 10_000
    clock.set(300)
    assert backend.size() == MemoryBackend().size()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_c67_a_million_keys_once_each_leave_nothing() -> None:
    """C67, R14: a million keys, each used once; two windows later, memory is back to what it was before."""
    await flood(Limits(tpm=1_000), 1_000_000)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_c67_no_kind_of_limit_keeps_a_key_that_is_over(algorithm: Any) -> None:
    """C67, R14: the same for every algorithm, and for several limits and a slot of one key."""
    await flood(Limits(rpm=60, tpm=1_000, concurrency=2, algorithm=algorithm), 5_000)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_c67_what_is_reset_again_and_again_grows_nothing(algorithm: str) -> None:
    """R14: a thousand resets of one key in use keep as much as one."""
    scope = key(tpm=1_000, algorithm=algorithm)
    once = (R("r", scope, tok=5), C("r"), Z(scope))
    async with Table() as table:
        await table.play(*once, *once)
        table.events.clear()
        held = reachable_bytes(table.backend)
        for _ in range(500):
            await table.play(*once)
        assert reachable_bytes(table.backend) - held < 1_000
