"""Run where the wheel alone is installed: every public name that needs no extra is there, and how many there are.

    python -I tests/installed.py

It imports nothing of the tests, and no pytest.
"""

from __future__ import annotations

from importlib import import_module, metadata
from pathlib import Path

WITHOUT_EXTRAS = (
    "earmark",
    "earmark.backends",
    "earmark.estimates",
    "earmark.http",
    "earmark.policies",
    "earmark.streams",
    "earmark.testing",
    "earmark.testing.oracle",
    "earmark.testing.plain",
    "earmark.testing.provider",
    "earmark.testing.rows",
)


def main() -> None:
    """Look at each."""
    earmark = import_module("earmark")
    assert "site-packages" in Path(earmark.__file__ or "").parts
    assert metadata.version("earmark") == earmark.__version__
    for name in WITHOUT_EXTRAS:
        module = import_module(name)
        found = [getattr(module, public) for public in module.__all__]
        print(f"{name}: {len(found)} names")


if __name__ == "__main__":
    main()
