"""The exact public names of every public module, and that the typing test has each of them.

What a module exports is a contract: other projects import it. A name that is added, or goes, changes this table on
purpose.
"""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from docs.gather import REFERENCE, exported
from earmark import RedisBackend
from earmark.backends.redis.settings import Settings

ROOT: Final = Path(__file__).parent.parent

PUBLIC: Final = {
    "earmark": "BackendUnavailable BudgetExceeded Denial EarmarkError Event Explanation Health Limit"
    " LimitExplanation LimitStatus Limiter Limits MemoryBackend Observed ObservedStream RateLimited RedisBackend"
    " Refused RequestIdConflict Reservation ReserveOnce Scope ScopeStatus UnknownPrice Usage ask_for_usage"
    " observe_stream usage_from_response",
    "earmark.backends": "Backend Desk Hold Instant Seen Verb",
    "earmark.contrib.asgi": "Asks ReservedStream answer_refusals reserving style_of",
    "earmark.contrib.litellm": "ANONYMOUS Dims EarmarkHook Key dims_of tenant_of",
    "earmark.contrib.otel": "KINDS Telemetry Watched",
    "earmark.contrib.relay": "relay",
    "earmark.estimates": "Counter approximate estimate tiktoken_counter",
    "earmark.http": "Admission Answer BudgetStatus Fields Style answer_to go_duration policy_name rate_limit_headers"
    " retry_headers upstream_retry_headers",
    "earmark.ledger": "Budget Drift GenaiPrices Ledger LedgerHealth LiteLLMPrices Price PriceList PriceTable Rates"
    " Spend Standing SummaryLine Tables UsageRow",
    "earmark.policies": "Mistake Policies PolicyError schema",
    "earmark.streams": "Dialect DialectFactory Observed ObservedStream observe_stream register",
    "earmark.testing": "CONTRACT LOST LOST_REPLY BackendFactory Case ContractBroken Failure Fault FaultyBackend"
    " ManualClock charged check_backend fake_redis_backend slow timeout_after_apply",
    "earmark.testing.machine": "Gateway LimiterMachine",
    "earmark.testing.oracle": "InvariantBroken Oracle",
    "earmark.testing.plain": "PlainBackend",
    "earmark.testing.provider": "Act Pause Provider ProviderProcess Recorded Seen running",
    "earmark.testing.pytest": "contract_test",
    "earmark.testing.rows": "ANY VERBS A C Empty Gone N P R Resolve S See Table X Z key resolve used",
    "earmark.testing.strategies": "bodies histories limits scope_sets scopes usages",
}

# What can be imported where LiteLLM is not installed is not this module.
NEEDS_LITELLM: Final = {"earmark.contrib.litellm"}


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_module_exports_exactly_these(module: str) -> None:
    """Each name once, and no other; each can be had."""
    assert exported(module) == PUBLIC[module].split()
    if module not in NEEDS_LITELLM:
        found = import_module(module)
        assert found.__all__ == PUBLIC[module].split()
        assert all(hasattr(found, name) for name in PUBLIC[module].split())


def test_every_module_of_the_reference_is_in_the_table() -> None:
    """What the site shows as public is public."""
    shown = REFERENCE.findall((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert set(shown) == set(PUBLIC)


def test_the_typing_test_has_every_public_name() -> None:
    """The checkers read tests/typing, where an import that is not used is an error."""
    used: defaultdict[str, set[str]] = defaultdict(set)
    for file in (ROOT / "tests" / "typing").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                used[node.module] |= {alias.name for alias in node.names}
    missing = {
        f"{module}.{name}"
        for module, names in PUBLIC.items()
        for name in names.split()
        if name not in used[module]
    }
    assert not missing


def test_a_url_takes_every_setting_of_a_redis_backend() -> None:
    """`from_url` hands them on, and a checker knows each by its name and type."""
    own = inspect.signature(RedisBackend.__init__).parameters
    settings = {name: one.annotation for name, one in own.items() if name not in {"self", "client"}}
    assert {name: one.__forward_arg__ for name, one in Settings.__annotations__.items()} == settings
    assert (
        inspect.signature(RedisBackend.from_url).parameters["options"].annotation
        == "Unpack[Settings]"
    )
