"""A light part of the suite on every Python that is supported and on this machine, each in an environment of its own.

    python tests/pythons.py FOLDER 3.11 3.12 3.13

An environment is made below the folder where there is none. A version that is not there is named and passed over. This
Python's own is left out: it runs the whole suite.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent

LIGHT: Final = (
    "tests/test_contract.py",
    "tests/test_identity.py",
    "tests/test_leases.py",
    "tests/test_limiter.py",
    "tests/test_limiter_machine.py",
    "tests/test_finalisers.py",
    "tests/test_once.py",
    "tests/test_threads.py",
    "tests/test_waiting.py",
    "tests/streams/test_closing.py",
    "tests/streams/test_endings.py",
    "tests/streams/test_framing.py",
    "tests/streams/test_observe.py",
    "tests/streams/test_reservation_streams.py",
)


def candidates(version: str) -> Iterator[str]:
    """Where a Python of this version may be: on the path, or among those of pyenv."""
    if found := shutil.which(f"python{version}"):
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True))


def python(version: str) -> str | None:
    """The first that runs and is of this version: a shim of pyenv's may not."""
    tell = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in candidates(version):
        said = subprocess.run([candidate, "-c", tell], capture_output=True, text=True, check=False)
        if said.stdout.strip() == version:
            return candidate
    return None


def prepared(interpreter: str, folder: Path) -> str:
    """The interpreter of an environment that has what the light part needs."""
    inside = str(folder / "bin" / "python")
    stamp = folder / ".installed"
    if not stamp.exists() or stamp.stat().st_mtime < (ROOT / "pyproject.toml").stat().st_mtime:
        subprocess.run([interpreter, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [inside, "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--upgrade", "pip>=25.1"], check=True)
        subprocess.run([*pip, "--editable", str(ROOT), "--group", "light"], cwd=ROOT, check=True)
        stamp.touch()
    return inside


def main(folder: Path, versions: list[str]) -> int:
    """Run them one after another; the exit code is that of the first that fails."""
    for version in versions:
        if version == f"{sys.version_info.major}.{sys.version_info.minor}":
            continue
        interpreter = python(version)
        if interpreter is None:
            print(f"no Python {version} on this machine", flush=True)
            continue
        print(f"Python {version}: {interpreter}", flush=True)
        command = [prepared(interpreter, folder / f"python{version}"), "-m", "pytest", "-q", *LIGHT]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
