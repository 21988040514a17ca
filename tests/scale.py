"""How much the random tests try: one factor for all of them, chosen by EARMARK_PROFILE.

A random test asks `examples(n)` where it would have written n. `make test` runs the numbers as written, the
profile "long" (`make test-long`) ten times as many, "quick" a tenth of them, for the edit loop. The numbers
in the tests are thus those that count: what CI tries on each change.
"""

from __future__ import annotations

import os
from fractions import Fraction
from typing import Final

FACTORS: Final = {
    "quick": Fraction(1, 10),
    "default": Fraction(1),
    "ci": Fraction(1),
    "long": Fraction(10),
}

PROFILE: Final = os.environ.get("EARMARK_PROFILE", "default")

if PROFILE not in FACTORS:
    _MSG = f"EARMARK_PROFILE must be one of {', '.join(FACTORS)}, not {PROFILE!r}"
    raise ValueError(_MSG)


def examples(n: int, profile: str = PROFILE) -> int:
    """`n` examples under the default profile, a tenth or ten times as many under others; at least one."""
    return max(int(n * FACTORS[profile]), 1)
