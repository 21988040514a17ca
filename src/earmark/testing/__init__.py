"""Tools for testing what is built on earmark. The library itself never imports this package."""

from earmark.testing.clock import ManualClock

__all__ = ["ManualClock"]
