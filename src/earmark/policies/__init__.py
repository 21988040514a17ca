"""Limits from a file: a default, tenants, rules per model, limits across tenants, and aliases.

    file ── reading ── shape ── checking ── book
            a mapping   parts    two of a kind  scopes by tenant, model, …

Each step tells all the mistakes that it finds, with file, line, place and remedy; `Policies` asks the book, and swaps
it whole.
"""

from __future__ import annotations

from earmark.policies.mistakes import Mistake, PolicyError
from earmark.policies.policies import Policies, schema

__all__ = ["Mistake", "Policies", "PolicyError", "schema"]
