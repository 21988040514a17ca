"""The arithmetic of limits: pure functions of (state, limit, amount, now).

No I/O, no clock, no await. The memory backend runs these functions under its lock; a store that decides in
a script of its own mirrors them and returns the states that it saw, from which `admission` computes every
word of an answer. Time is whole microseconds and amounts are integers; where a fraction cannot be avoided
the operations on doubles are written out in the order in which a mirror must repeat them (R12).

Whoever writes a backend finds here what it calls of them; the rest of the package is the library's own.
"""

from earmark.core.admission import States, algorithm_of, denials
from earmark.core.algorithm import Algorithm, Refundable
from earmark.core.joint import divided, parts_of
from earmark.core.settlement import used
from earmark.core.sliding_window import at_window
from earmark.core.token_bucket import counts_until

__all__ = [
    "Algorithm",
    "Refundable",
    "States",
    "algorithm_of",
    "at_window",
    "counts_until",
    "denials",
    "divided",
    "parts_of",
    "used",
]
