"""What is kept apart: keys by all of their bytes, and the names that callers choose (R8, R9, R13)."""

from __future__ import annotations

from typing import Final

from earmark.core.hold import Hold
from earmark.limits import Limit, Limits, Scope
from earmark.testing.contract.cases import Bench, Cases, each
from earmark.testing.contract.messages import WIDE, hold_of, open_of
from earmark.testing.contract.numbers import AWKWARD, met
from earmark.testing.rows import C, P, R, key, used
from earmark.testing.table import expect

cases: Final = Cases()

LONG: Final = {
    "300 bytes": "k" * 299,
    "1,024 bytes": "k" * 1_023,
    "of two bytes each": "é" * 511 + "k",
}
"""Beginnings of keys, to which one more byte may be added."""


def in_ten_seconds(name: str) -> Scope:
    """A scope whose tokens count where a bare key counts them only if it was seen there."""
    return Scope(name, Limits(also=(Limit("tokens", 500, 10),)))


@cases(each("long", LONG))
async def r13_a_key_is_known_by_all_of_its_bytes(bench: Bench, long: str) -> None:
    """R13: keys of up to 1,024 bytes that differ in their last byte alone are two keys."""
    async with bench.table() as table:
        for last in "xy":
            scope = key(LONG[long] + last, tpm=1_000, rpm=10, concurrency=3)
            (status,) = await table.limiter.peek(scope)
            expect(
                "what a new key has used before it was asked for",
                [one.used for one in status.limits],
                [0, 0, 0],
            )
            await table.play(R(last, scope, tok=7))


@cases()
async def r9_no_two_request_ids_share(bench: Bench) -> None:
    """R9: ids that differ by case, by a blank, by their form or by their last byte name two reservations."""
    names = [*AWKWARD, *(long + last for long in LONG.values() for last in "xy")]
    async with bench.table() as table:
        backend = open_of(table)
        many = key(rpd=1_000, tpd=1_000)
        mine: dict[object, str] = {}
        for name in names:
            hold = hold_of(many, tokens=1, request_id=name)
            mine[hold.id] = name
            stands = await backend.reserve(hold)
            if isinstance(stands, Hold) and stands.id != hold.id:
                met(f"the request id {name!a}", mine.get(stands.id))
            expect(f"a reserve with the request id {name!a}", stands is not None, True)
        await table.play(used("key.rpd", len(names), scope=many))


@cases()
async def r8_no_two_ids_of_additions_share(bench: Bench) -> None:
    """R8: so it is with the ids of additions: each counts once, and none for another."""
    names = [*AWKWARD, *(long + last for long in LONG.values() for last in "xy")]
    async with bench.table() as table:
        backend = open_of(table)
        for name in names:
            counted = await backend.add(WIDE, {"tokens": 1}, name)
            expect(f"an addition with the id {name!a}", counted, True)
        await table.play(used("key.tpm", len(names)))


@cases()
async def r8_a_bare_key_is_found_whatever_is_in_it(bench: Bench) -> None:
    """R8, R13: a bare key with a delimiter, or with what is a pattern elsewhere, counts where it was admitted."""
    for name in ("api_key:alice", "model[1]", *AWKWARD):
        scope = in_ten_seconds(name)
        await bench.play(
            R("r1", scope), C("r1"), P(name, 90), used(f"{name}.tokens/10", 90, scope=scope)
        )


@cases(
    each(
        ("bare", "other"),
        [
            ("team", "team:x"),
            ("team:x", "team"),
            ("x", "team:x"),
            ("a*", "ab"),
            ("a?", "ab"),
            ("a%", "ab"),
            ("a_", "ab"),
            ("a.", "ab"),
            ("[ab]", "a"),
            ("A", "a"),
            ("a ", "a"),
        ],
    )
)
async def r8_a_bare_key_reaches_no_key_that_it_resembles(
    bench: Bench, bare: str, other: str
) -> None:
    """R8, R13: a bare key is no prefix and no pattern: what only another key was admitted under is out of reach."""
    mine, theirs = in_ten_seconds(bare), in_ten_seconds(other)
    await bench.play(
        R("r1", theirs, tok=5),
        P(bare, 90),
        used(f"{bare}.tokens/10", 0, scope=mine),
        used(f"{other}.tokens/10", 5),
    )
