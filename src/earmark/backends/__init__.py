"""Where limits are kept: the protocol of a backend and what whoever writes one needs beside `earmark.core`.

The words of the protocol are here (`Hold`, `Verb`, `Seen`), and so is what its messages are made of: clocks and their
microseconds, leases, and what a reservation is called outside of its process.
"""

from earmark.backends.protocol import Backend, Desk, Instant, Seen, TellsHeld
from earmark.clock import Clock
from earmark.core.hold import Hold, Verb
from earmark.ids import name_of
from earmark.limits import CONCURRENCY, MICROSECONDS, lease_microseconds

__all__ = [
    "CONCURRENCY",
    "MICROSECONDS",
    "Backend",
    "Clock",
    "Desk",
    "Hold",
    "Instant",
    "Seen",
    "TellsHeld",
    "Verb",
    "lease_microseconds",
    "name_of",
]
