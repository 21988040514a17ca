"""The exact public names of every public module, and that the typing test has each of them.

What a module exports is a contract: other projects import it. A name that is added, or goes, changes this table on
purpose.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from docs.gather import REFERENCE, exported
from earmark import RedisBackend
from earmark.backends.redis.settings import Settings
from tests.test_docs import DOCUMENTS, scripts

ROOT: Final = Path(__file__).parent.parent

PUBLIC: Final = {
    "earmark": "BackendUnavailable BudgetExceeded Denial EarmarkError Event Explanation Health Limit"
    " LimitExplanation LimitStatus Limiter Limits MemoryBackend Observed ObservedStream RateLimited RedisBackend"
    " Refused RequestIdConflict Reservation ReserveOnce Scope ScopeStatus UnknownPrice Usage ask_for_usage"
    " observe_stream usage_from_response",
    "earmark.backends": "CONCURRENCY MICROSECONDS Backend Clock Desk Hold Instant Seen TellsHeld Verb"
    " lease_microseconds name_of",
    "earmark.contrib.asgi": "Asks ReservedStream answer_refusals reserving style_of",
    "earmark.contrib.litellm": "ANONYMOUS Dims EarmarkHook Key dims_of tenant_of",
    "earmark.contrib.otel": "KINDS Telemetry Watched",
    "earmark.contrib.relay": "relay",
    "earmark.core": "Algorithm Refundable States algorithm_of at_window counts_until denials divided parts_of used",
    "earmark.estimates": "Counter approximate estimate tiktoken_counter",
    "earmark.http": "Admission Answer BudgetStatus Fields Style answer_to go_duration policy_name rate_limit_headers"
    " retry_headers upstream_retry_headers",
    "earmark.ledger": "Budget Drift GenaiPrices Ledger LedgerHealth LiteLLMPrices Price PriceList PriceTable Rates"
    " Spend Standing SummaryLine Tables UsageRow",
    "earmark.policies": "Mistake Policies PolicyError schema",
    "earmark.streams": "Dialect DialectFactory Observed ObservedStream observe_stream register",
    "earmark.testing": "CONTRACT LOST LOST_REPLY BackendFactory Case ContractBroken Failure Fault FaultyBackend"
    " ManualClock charged check_backend fake_redis_backend slow timeout_after_apply",
    "earmark.testing.histories": "Add Again Amend Bad Enforce Finish Gateway History Line Offer Peek PreCommit Replay"
    " Reset Settle Step Wait WaitFor play",
    "earmark.testing.machine": "Gateway LimiterMachine",
    "earmark.testing.oracle": "InvariantBroken Oracle",
    "earmark.testing.plain": "PlainBackend",
    "earmark.testing.provider": "Act Pause Provider ProviderProcess Recorded Seen running",
    "earmark.testing.pytest": "contract_test",
    "earmark.testing.rows": "ANY VERBS A C Empty Gone N P R Resolve S See Table X Z key resolve used",
    "earmark.testing.strategies": "bodies histories limits scope_sets scopes usages",
    "earmark.testing.streams": "ALL ENDINGS STREAMS Body Ending Piece Stream stream",
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


SOURCES: Final = [
    *(ROOT / "examples").rglob("*.py"),
    *(ROOT / "tests" / "typing").glob("*.py"),
    ROOT / "src" / "earmark" / "testing" / "plain.py",  # which is there to be copied
]


def sources() -> Iterator[tuple[str, str]]:
    """All Python that a reader copies, and where it stands: snippets, examples, and the plain backend."""
    for document in DOCUMENTS:
        for script in scripts(document):
            for snippet in script.snippets:
                yield str(script), snippet
    for file in SOURCES:
        yield str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")


def imports(code: str) -> Iterator[str]:
    """What is imported of the library, by its dotted name."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Import(names):
                yield from (one.name for one in names if one.name.split(".")[0] == "earmark")
            case ast.ImportFrom(str(module), names, 0) if module.split(".")[0] == "earmark":
                yield from (f"{module}.{one.name}" for one in names)
            case _:
                continue


def is_public(name: str) -> bool:
    """Whether a dotted name is a public module, or a public name of one."""
    module, _, last = name.rpartition(".")
    return name in PUBLIC or last in PUBLIC.get(module, "").split()


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import earmark, earmark.ids as i, os", ["earmark", "earmark.ids"]),
        ("async with x:\n    from earmark.core import used as u", ["earmark.core.used"]),
        ("await x\nfrom earmark import *", ["earmark.*"]),
        ("from earmarked import x\nfrom .earmark import y", []),
    ],
)
def test_an_import_of_the_library_is_found(code: str, names: list[str]) -> None:
    """The search above knows the ways to import, at any depth."""
    assert list(imports(code)) == names


@pytest.mark.parametrize(
    ("name", "public"),
    [
        ("earmark.Limiter", True),
        ("earmark.testing.strategies", True),
        ("earmark.limits", False),
        ("earmark.limits.Limits", False),
        ("earmark.core.joint", False),
        ("earmark.*", False),
    ],
)
def test_a_public_name_is_known(name: str, *, public: bool) -> None:
    """A name has to be in the `__all__` of the module that it is imported from."""
    assert is_public(name) == public


def test_what_readers_copy_imports_public_names_alone() -> None:
    """Guides, README, examples: whoever writes what they show depends on nothing that may change unseen."""
    found = {(place, name) for place, code in sources() for name in imports(code)}
    assert len(found) > 100
    assert sorted((place, name) for place, name in found if not is_public(name)) == []


def test_modules_that_documents_name_are_public() -> None:
    """A dotted name in prose that is a module of the library, or something in one, is one that can be imported."""
    wrong = [
        (document.name, name)
        for document in DOCUMENTS
        for name in re.findall(r"\bearmark(?:\.\w+)+", document.read_text(encoding="utf-8"))
        if not is_public(name) and (module_of(name) not in {"earmark", "earmark.contrib"})
    ]
    assert wrong == []


def module_of(name: str) -> str:
    """The module that a dotted name begins with: the longest that there is."""
    parts = name.split(".")
    stem = ROOT.joinpath("src", *parts)
    if stem.is_dir() or stem.with_suffix(".py").is_file() or len(parts) == 1:
        return name
    return module_of(".".join(parts[:-1]))
