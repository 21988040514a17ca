"""The keys of the scopes that policies make.

No two scopes share one, whatever their parts contain (C67): the first part has no colon in it, every further one but
the last has its colons written out, and the number of parts follows from the first. A key tells nothing of where in the
file its scope stands, so what was used stays used when the file changes (R17).
"""

from __future__ import annotations


def tenant_key(tenant: str) -> str:
    """The key of a tenant's own scope."""
    return f"tenant:{tenant}"


def rule_key(rule: str, tenant: str) -> str:
    """The key of a rule of a tenant."""
    return f"rule:{_written_out(rule)}:{tenant}"


def scope_key(own: str, values: list[str]) -> str:
    """The key of a scope across tenants, for these values of what it is by."""
    return ":".join([own, *map(_written_out, values[:-1]), *values[-1:]])


def _written_out(part: str) -> str:
    return part.replace("%", "%25").replace(":", "%3A")
