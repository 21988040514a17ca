"""What the documents show is true: every Python snippet and every example runs, every link leads somewhere.

A snippet runs as a reader would paste it: a script of its own, warnings being errors. It may `await` at its top
level. One that goes on where the one before it stopped has `<!-- continues -->` on a line above it, and runs after
that one in the same script. A code block that is no Python has another word than `python` after its fence.
Where one uses the server at redis://localhost:6379, an empty database of the tests' own server is put in its place.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.servers import HOST, RedisServer

ROOT: Final = Path(__file__).parent.parent
DOCUMENTS: Final = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)
EXAMPLES: Final = sorted((ROOT / "examples").glob("*.py"))

FENCE: Final = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<word>[\w-]*)[^\n`]*\n(?P<body>.*?)^(?P=indent)(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)
CONTINUES: Final = "<!-- continues -->"
FROM: Final = re.compile(r"<!-- from (?P<path>\S+) -->\s*\Z")

SERVER: Final = re.compile(r"redis://localhost:6379(?:/\d+)?")
DATABASE: Final = 15

# Runs the snippets of one script in one namespace, on one event loop where they await. Each keeps its place in the
# document, so that a traceback names the document's own line. Their minute and their hour have just begun: no window
# ends while a snippet runs.
RUNNER: Final = """
import ast, asyncio, inspect, sys, time
document, *snippets = sys.argv[1:]
now, began = time.time_ns, time.time_ns()
time.time_ns = lambda: now() - began % (3_600 * 10**9)
namespace = {"__name__": "__main__"}
with asyncio.Runner() as runner:
    for snippet in snippets:
        code = compile(snippet, document, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        coroutine = eval(code, namespace)
        if inspect.iscoroutine(coroutine):
            runner.run(coroutine)
"""


@dataclass(frozen=True)
class Script:
    """A snippet of a document and those that continue it."""

    document: Path
    line: int
    snippets: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def scripts(document: Path) -> Iterator[Script]:
    """The scripts of a document, in order."""
    text = document.read_text(encoding="utf-8")
    script: Script | None = None
    after = 0
    for block in FENCE.finditer(text):
        between, after = text[after : block.start()], block.end()
        if block["word"] not in {"python", "py"} or FROM.search(between):
            continue
        above = text.count("\n", 0, block.start("body"))
        body = "".join(
            line.removeprefix(block["indent"]) for line in block["body"].splitlines(keepends=True)
        )
        snippet = "\n" * above + body
        if between.rstrip().endswith(CONTINUES):
            assert script is not None, f"{document}: {CONTINUES} above the first snippet"
            script = Script(document, script.line, (*script.snippets, snippet))
            continue
        if script is not None:
            yield script
        script = Script(document, above + 1, (snippet,))
    if script is not None:
        yield script


def excerpts(document: Path) -> Iterator[tuple[str, str]]:
    """What a document shows of files: the path of each, and the lines."""
    text = document.read_text(encoding="utf-8")
    after = 0
    for block in FENCE.finditer(text):
        between, after = text[after : block.start()], block.end()
        if shown := FROM.search(between):
            yield shown["path"], block["body"]


EXCERPTS: Final = [
    (document, path, body) for document in DOCUMENTS for path, body in excerpts(document)
]
SCRIPTS: Final = [script for document in DOCUMENTS for script in scripts(document)]


def run(*command: str, timeout: float) -> None:
    """Run a command of Python's, which has to succeed and may not complain about anything left open."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    # An error in a finaliser, a forgotten reservation's warning among them, changes no exit code.
    assert "Exception ignored" not in done.stdout, done.stdout


def empty_database(server: RedisServer) -> str:
    """The URL of a database that is empty."""
    with server.client(db=DATABASE) as client:
        client.flushdb()
    return f"redis://{HOST}:{server.port}/{DATABASE}"


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_the_snippets_of_the_documents_run(script: Script, request: pytest.FixtureRequest) -> None:
    """Every Python snippet of README, CHANGELOG and docs runs as it stands."""
    snippets = script.snippets
    if any(SERVER.search(snippet) for snippet in snippets):
        url = empty_database(request.getfixturevalue("shared_redis"))
        snippets = tuple(SERVER.sub(url, snippet) for snippet in snippets)
    run("-c", RUNNER, str(script.document), *snippets, timeout=60)


PROMPT: Final = "python -m asyncio"
PASTED: Final = [script for script in SCRIPTS if PROMPT in script.document.read_text("utf-8")]


@pytest.mark.parametrize("script", PASTED, ids=str)
def test_what_is_to_be_pasted_can_be(script: Script, request: pytest.FixtureRequest) -> None:
    """Python's prompt takes a statement at a time: what is indented ends at an empty line, and at none within."""
    text = "\n".join(textwrap.dedent(snippet).lstrip("\n") for snippet in script.snippets)
    if SERVER.search(text):
        text = SERVER.sub(empty_database(request.getfixturevalue("shared_redis")), text)
    said = subprocess.run(
        [sys.executable, *PROMPT.split()[1:]],
        cwd=ROOT,
        input=text + "\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stderr
    assert "Error" not in said, said


def test_what_a_document_shows_of_a_file_stands_there() -> None:
    """Each excerpt is a part of the file that it names, but for the indentation."""
    assert EXCERPTS
    for document, path, body in EXCERPTS:
        file = (ROOT / path).read_text(encoding="utf-8")
        shown = [textwrap.indent(body, " " * width) for width in (0, 4, 8, 12)]
        assert any(one in file for one in shown), f"{document}: not in {path}:\n{body}"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_the_examples_run(example: Path, request: pytest.FixtureRequest) -> None:
    """Every script in examples/ runs to its end and is content with what it saw."""
    arguments = []
    if example.name.endswith("_redis.py"):
        arguments = [empty_database(request.getfixturevalue("shared_redis"))]
    run(str(example), *arguments, timeout=120)


def slugs(text: str) -> set[str]:
    """The anchors that a document's headings have on the web."""
    headings = re.findall(r"^#+ +(.+?) *#*$", FENCE.sub("", text), re.MULTILINE)
    found: dict[str, int] = {}
    for heading in headings:
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {
        slug if not n else f"{slug}-{n}" for slug, last in found.items() for n in range(last + 1)
    }


def links(text: str) -> list[str]:
    """The targets of a document's links inside the project, those in code left out."""
    prose = re.sub(r"`[^`\n]*`", "``", FENCE.sub("", text))
    inline = re.findall(r"\]\(<?([^)\s>]+)>?(?: +\"[^\"]*\")?\)", prose)
    apart = re.findall(r"^ *\[[^\]]+\]: +<?(\S+?)>?(?: |$)", prose, re.MULTILINE)
    return [
        link for link in inline + apart if not re.match(r"[a-z][a-z0-9+.-]*:", link, re.IGNORECASE)
    ]


@pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT))
)
def test_relative_links_resolve(document: Path) -> None:
    """Every link to a file of the project, and to a heading in one, leads there."""
    broken = []
    for link in links(document.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        there = target.exists() and target.is_relative_to(ROOT)
        if not there or (anchor and anchor not in slugs(target.read_text(encoding="utf-8"))):
            broken.append(link)
    assert not broken


def test_every_test_that_a_document_names_is_there() -> None:
    """A row of a table that names its proof names one that is run."""
    there = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(
            r"^(?:async )?def (test_\w+)\(", file.read_text("utf-8"), re.MULTILINE
        )
    }
    named = {
        (document.name, name)
        for document in DOCUMENTS
        for name in re.findall(r"`(test_\w+)`", document.read_text("utf-8"))
    }
    assert len(named) > 100
    assert sorted((where, name) for where, name in named if name not in there) == []


def test_what_is_asked_of_prometheus_is_there() -> None:
    """Whatever the queries of docs/observability.md name is what examples/prometheus.py serves, and labels with it.

    A label that a query sums by, or asks for with a value, is one that each of its metrics has, that value among them.
    """
    text = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    queries = [
        line
        for block in blocks
        for line in block.splitlines()
        if "earmark_" in line and not line.startswith("#")
    ]
    served = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "prometheus.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    series = re.findall(r"^(earmark_\w+)(?:\{(.*)\})? ", served, re.MULTILINE)
    assert len(queries) > 8
    for query in queries:
        sums = " ".join(re.findall(r"\bby \((.*?)\)", query))
        asked = dict(re.findall(r'(\w+)="(.*?)"', query)) | dict.fromkeys(
            sums.replace(",", " ").split()
        )
        metrics = set(re.findall(r"\bearmark_\w+", query)) - set(asked)
        assert metrics, query
        for metric in metrics:
            labels = [
                dict(re.findall(r'(\w+)="(.*?)"', found))
                for name, found in series
                if name == metric
            ]
            assert labels, f"{metric} of {query}"
            for label, value in asked.items():
                values = {one.get(label) for one in labels}
                assert None not in values, f"{label} of {metric} of {query}"
                assert value is None or value in values, f"{label}={value} of {metric} of {query}"


def test_a_ratio_of_estimates_is_told_by_metric() -> None:
    """Tokens and slots of one sum say nothing: every query of what is counted by metric sums by it, or asks for one."""
    text = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    counted = r"earmark_(?:asked|settled|estimate_ratio|held)(?:_[a-z]+)?\b"
    queries = re.findall(rf"^[^#|`\n]*\b{counted}.*$", text, re.MULTILINE)
    assert queries
    assert [query for query in queries if "earmark_metric" not in query] == []


def test_the_retries_example_charges_what_was_sent() -> None:
    """Whatever the loop: what its second attempt has answered counts once, and what all refuse unbilled no tokens."""
    said = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "retries.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()
    assert sum("alice has used 1 request and 15 tokens; 0 slots" in line for line in said) == 3
    assert (
        sum("nobody has answered: alice has used 1 request and 0 tokens" in line for line in said)
        == 3
    )
    assert sum("is refused and sends 0" in line for line in said) == 3
