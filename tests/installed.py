"""Run where the wheel alone is installed: every public name that needs no extra is there, and the quickstart works.

    python -I tests/installed.py README.md

It imports nothing of the tests, and no pytest.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import time
from importlib import import_module, metadata
from pathlib import Path

WITHOUT_EXTRAS = (
    "earmark",
    "earmark.backends",
    "earmark.core",
    "earmark.estimates",
    "earmark.http",
    "earmark.policies",
    "earmark.streams",
    "earmark.testing",
    "earmark.testing.histories",
    "earmark.testing.oracle",
    "earmark.testing.plain",
    "earmark.testing.provider",
    "earmark.testing.rows",
    "earmark.testing.streams",
)

SAID = "1050 tokens used, 950 left"


def import_all() -> None:
    """Look at each name."""
    earmark = import_module("earmark")
    assert "site-packages" in Path(earmark.__file__ or "").parts, earmark.__file__
    assert metadata.version("earmark") == earmark.__version__
    for name in WITHOUT_EXTRAS:
        module = import_module(name)
        found = [getattr(module, public) for public in module.__all__]
        print(f"{name}: {len(found)} names")


def run_quickstart(readme: Path) -> None:
    """Run the first snippet of the README. Its minute has just begun, so that none ends while it runs."""
    snippet = re.search(
        r"^```python\n(.*?)^```$", readme.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert snippet is not None
    now, began = time.time_ns, time.time_ns()
    time.time_ns = lambda: now() - began % (60 * 10**9)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(snippet[1], str(readme), "exec"), {"__name__": "__main__"})  # noqa: S102 - our own
    print(said.getvalue(), end="")
    assert said.getvalue().splitlines()[-1] == SAID


if __name__ == "__main__":
    import_all()
    run_quickstart(Path(sys.argv[1]))
