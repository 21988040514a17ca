"""Tools for testing what is built on earmark. The library itself never imports this package.

ManualClock         a clock that moves when a test says so
check_backend       holds a backend to the contract of all backends
rows, contract      the notation of that contract, and its cases
"""

from earmark.testing.checking import ContractBroken, Failure, check_backend
from earmark.testing.clock import ManualClock
from earmark.testing.contract import CONTRACT, Case
from earmark.testing.table import BackendFactory

__all__ = [
    "CONTRACT",
    "BackendFactory",
    "Case",
    "ContractBroken",
    "Failure",
    "ManualClock",
    "check_backend",
]
