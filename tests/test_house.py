"""The house checks itself: who imports whom, the exact public names, what is in the wheel, how large rooms are.

Each of these is a promise that no single change breaks visibly: a convenient import upwards, a name that slips into
the public surface, a test that waits for the clock on the wall.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import earmark

ROOT: Final = Path(__file__).parent.parent
LIBRARY: Final = ROOT / "src" / "earmark"

# A module imports only from rows above its own; the modules of one package import one another. `__init__` is what
# `earmark` itself hands on, for what stands on it as users do.
ROWS: Final = (
    {"logs"},
    {"errors", "amounts", "ids", "forking", "frozen"},
    {"usage", "shielding"},
    {"limits"},
    {"answers", "asks", "clock"},
    {"events", "core"},
    {"budgets"},
    {"prices"},
    {"backends", "ledger"},
    {"ending", "moves", "policies", "streams", "tokens"},
    {"estimates", "office"},
    {"reservation", "waiting"},
    {"asking", "looking", "spending"},
    {"attempt"},
    {"once"},
    {"limiter"},
    {"__init__"},
    {"http"},
    {"contrib"},
    {"testing"},
    {"commands"},
    {"__main__"},
)

PUBLIC: Final = [
    "BackendUnavailable",
    "BudgetExceeded",
    "Denial",
    "EarmarkError",
    "Event",
    "Explanation",
    "Health",
    "Limit",
    "LimitExplanation",
    "LimitStatus",
    "Limiter",
    "Limits",
    "MemoryBackend",
    "Observed",
    "ObservedStream",
    "RateLimited",
    "RedisBackend",
    "Refused",
    "RequestIdConflict",
    "Reservation",
    "ReserveOnce",
    "Scope",
    "ScopeStatus",
    "UnknownPrice",
    "Usage",
    "ask_for_usage",
    "observe_stream",
    "usage_from_response",
]

MAX_FILE_LINES: Final = 400
MAX_FUNCTION_LINES: Final = 60

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(folder: Path) -> list[Path]:
    """Every Python file below a folder, which has some."""
    files = sorted(folder.rglob("*.py"))
    assert files, f"no Python files in {folder}"
    return files


def parsed(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def executed(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree that run: what stands under `if TYPE_CHECKING` only a type checker reads."""
    yield tree
    children = ast.iter_child_nodes(tree)
    if (
        isinstance(tree, ast.If)
        and isinstance(tree.test, ast.Name)
        and tree.test.id == "TYPE_CHECKING"
    ):
        children = iter(tree.orelse)
    for child in children:
        yield from executed(child)


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the dotted name of every import that runs, those inside functions included."""
    for node in executed(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def room(dotted: str) -> str:
    """The module or package right below `earmark` that a dotted name belongs to, or `earmark` itself."""
    parts = dotted.split(".")
    if len(parts) > 1 and {path.stem for path in LIBRARY.glob(f"{parts[1]}*")} & {parts[1]}:
        return parts[1]
    return "__init__"


def row(name: str) -> int | None:
    """The row of a room, from the top."""
    return next((index for index, rooms in enumerate(ROWS) if name in rooms), None)


def test_every_module_has_a_row() -> None:
    """The layers name every module of the library: a new one is put on its row on purpose."""
    rooms = {
        file.relative_to(LIBRARY).parts[0].removesuffix(".py") for file in python_files(LIBRARY)
    }
    assert rooms == set().union(*ROWS)


def test_a_module_imports_only_from_rows_above_its_own() -> None:
    """Pure core below, one message per store, thin objects above; what is above is never imported."""
    wrong = []
    for file in python_files(LIBRARY):
        inside = file.relative_to(LIBRARY)
        own = inside.parts[0].removesuffix(".py")
        for line, name in imported(parsed(file)):
            if name.startswith("."):
                wrong.append(f"{inside}:{line} imports {name}: write the whole name")
            elif name.split(".")[0] == "earmark" and room(name) != own:
                mine, its = row(own), row(room(name))
                if mine is None or its is None or its >= mine:
                    wrong.append(f"{inside}:{line} imports {name}")
    assert not wrong


def test_the_library_never_imports_its_testing_kit() -> None:
    """`earmark.testing` is for users and tests: the library works without it."""
    users = {
        file.relative_to(LIBRARY).parts[0]
        for file in python_files(LIBRARY)
        for _, name in imported(parsed(file))
        if name.startswith("earmark.testing")
    }
    assert users <= {"testing"}


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import a.b, c", ["a.b", "c"]),
        ("from a import b as c, d", ["a.b", "a.d"]),
        ("from . import b", ["..b"]),
        ("def f():\n    import a", ["a"]),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import b", ["b"]),
    ],
)
def test_an_import_is_found(code: str, names: list[str]) -> None:
    """The search above knows every way to import, and leaves out what only a type checker reads."""
    assert [name for _, name in imported(ast.parse(code))] == names


def test_the_core_is_pure() -> None:
    """No clock, no I/O, no await and no lock in the core: its functions take the time as an argument (R11)."""
    impure = {"anyio", "asyncio", "datetime", "logging", "random", "socket", "threading", "time"}
    awaits = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    wrong = []
    for file in python_files(LIBRARY / "core"):
        tree = parsed(file)
        wrong += [f"{file}: {name}" for _, name in imported(tree) if name.split(".")[0] in impure]
        wrong += [f"{file}:{node.lineno}" for node in ast.walk(tree) if isinstance(node, awaits)]
    assert not wrong


def test_the_public_names_are_exactly_these() -> None:
    """What `earmark` exports is a contract: every name of it, nothing else, and each can be had."""
    assert sorted(earmark.__all__) == PUBLIC
    assert {name for name in dir(earmark) if not name.startswith("_")} >= set(PUBLIC)
    for name in PUBLIC:
        assert getattr(earmark, name).__module__.startswith("earmark.")
    unknown = "no_such_name"
    with pytest.raises(AttributeError, match=unknown):
        getattr(earmark, unknown)


@pytest.mark.parametrize(
    "statement", ["import earmark", "from earmark import Limiter, MemoryBackend"]
)
def test_importing_earmark_loads_no_store_and_no_pydantic(statement: str) -> None:
    """A limiter in memory costs no import of redis, pydantic or SQLAlchemy."""
    code = f"""{statement}
import sys
print(*sorted({{"redis", "pydantic", "sqlalchemy"}} & set(sys.modules)))"""
    command = [sys.executable, "-W", "error", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == ""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (file,) = folder.glob("earmark-*.whl")
    return zipfile.ZipFile(file)


def test_the_wheel_has_the_whole_library_and_no_tests(wheel: zipfile.ZipFile) -> None:
    """Every file of src/earmark is in the wheel, `py.typed` among them, and beside its metadata nothing else."""
    source = {
        file.relative_to(LIBRARY.parent).as_posix()
        for file in LIBRARY.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert "earmark/py.typed" in inside
    assert inside == source


def test_the_wheel_names_its_licence_and_three_dependencies(wheel: zipfile.ZipFile) -> None:
    """At run time earmark needs redis, anyio and pydantic, and nothing else."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = wheel.read(name).decode()
    needed = re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", metadata, re.MULTILINE)
    assert sorted(needed) == ["anyio", "pydantic", "redis"]
    assert "License-Expression: Apache-2.0" in metadata
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_files_and_functions_are_small() -> None:
    """A newcomer reads a file in ten minutes, and a function fits on a screen."""
    large = []
    for file in python_files(LIBRARY):
        lines = len(file.read_text(encoding="utf-8").splitlines())
        if lines > MAX_FILE_LINES:
            large.append(f"{file.relative_to(ROOT)}: {lines} lines")
        for node in ast.walk(parsed(file)):
            if isinstance(node, FunctionNode) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    large.append(
                        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines"
                    )
    assert not large


def sleeps(tree: ast.AST) -> Iterator[int]:
    """The lines that sleep by the clock on the wall: any but `sleep(0)`, which only gives others a turn."""
    clocks = {"anyio", "asyncio", "time", "trio"}
    bare = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in clocks
        for alias in node.names
        if alias.name == "sleep"
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="sleep")) if (
                owner in clocks
            ):
                pass
            case ast.Call(func=ast.Name(id=name)) if name in bare:
                owner = ""
            case _:
                continue
        zero = [ast.dump(argument) for argument in node.args] == [ast.dump(ast.Constant(0))]
        if owner == "time" or not zero:
            yield node.lineno


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("await asyncio.sleep(0)", []),
        ("await clock.sleep(5)", []),
        ("await anyio.sleep_forever()", []),
        ("await asyncio.sleep(0.1)", [1]),
        ("await anyio.sleep(delay)", [1]),
        ("time.sleep(0)", [1]),
        ("from trio import sleep as nap\nawait nap(3)", [2]),
    ],
)
def test_a_sleep_is_found(code: str, lines: list[int]) -> None:
    """The search below knows a sleep when it sees one."""
    tree = compile(code, "<case>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert list(sleeps(tree)) == lines


def test_no_test_sleeps() -> None:
    """Tests inject the clock and wait for events: a sleep is slow where it is long enough, and flaky where not."""
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in python_files(ROOT / "tests")
        for line in sleeps(parsed(file))
    ]
    assert not found


def test_nothing_is_left_for_later() -> None:
    """What is not done is an issue, not a note in the code."""
    notes = re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X])\b")
    folders = [
        file for name in ("src", "tests", "docs", "examples") for file in (ROOT / name).rglob("*.*")
    ]
    files = [*folders, *ROOT.glob("*.*"), ROOT / "Makefile", ROOT / ".ci" / "run"]
    found = [
        str(file.relative_to(ROOT))
        for file in files
        if file.suffix in {".py", ".md", ".toml", ".lua", ".sql", ""}
        and file.is_file()
        and notes.search(file.read_text(encoding="utf-8"))
    ]
    assert not found
