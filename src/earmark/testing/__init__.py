"""Tools for testing what is built on earmark. The library itself never imports this package.

    ManualClock                  a clock that moves when a test says so
    check_backend                holds a backend to the contract of all backends
    charged                      what a stream must have cost, by what an observer saw of it
    FaultyBackend                a backend whose messages go wrong as a script says
    fake_redis_backend           the Redis backend on fakeredis (`fakeredis[lua]` has to be installed)
    provider                     a stand-in for a provider over HTTP
    rows, contract, plain        the notation of the contract, its cases, and a backend to start from
    pytest                       the contract as a test of pytest
    oracle                       an observer that knows what cannot be
    streams                      what providers send in every dialect, and what it means
    histories                    what may happen to a limiter, and `play`, which plays it beside a plain model
    machine, strategies          for hypothesis: `LimiterMachine`, and what it and others draw

What needs pytest or hypothesis (`pip install "earmark[testing]"`), or fakeredis, imports it where it is used.
"""

from earmark.testing.charging import charged
from earmark.testing.checking import ContractBroken, Failure, check_backend
from earmark.testing.clock import ManualClock
from earmark.testing.contract import CONTRACT, Case
from earmark.testing.fakes import fake_redis_backend
from earmark.testing.faults import LOST, LOST_REPLY, Fault, FaultyBackend, slow, timeout_after_apply
from earmark.testing.shape import BackendFactory

__all__ = [
    "CONTRACT",
    "LOST",
    "LOST_REPLY",
    "BackendFactory",
    "Case",
    "ContractBroken",
    "Failure",
    "Fault",
    "FaultyBackend",
    "ManualClock",
    "charged",
    "check_backend",
    "fake_redis_backend",
    "slow",
    "timeout_after_apply",
]
