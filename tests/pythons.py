"""A light part of the suite on every Python that is supported and on this machine, each in an environment of its own.

    python tests/pythons.py [--brief] FOLDER 3.11 3.12 3.13

An environment is made below the folder where there is none. Every module is imported, then tests run, all Pythons at
once; what each has to say is printed when it is done, and at the end what was run where. A version that is not there is
named and passed over. This Python's own is left out: it runs the whole suite.

Brief is what every change can wait for: fewer files, and a tenth of the random examples.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent

# Values, arithmetic, every transition, the contract in memory, one road of streams; and what depends on the interpreter
# most: cancellation, and finalisers at every instruction.
BRIEF: Final = (
    "tests/test_cancellation.py",
    "tests/test_cases.py",
    "tests/test_contract.py",
    "tests/test_explain.py",
    "tests/test_finalisers.py",
    "tests/test_laws.py",
    "tests/test_lifecycle.py",
    "tests/test_limiter.py",
    "tests/test_values.py",
    "tests/streams/test_endings.py",
    "tests/streams/test_reservation_streams.py",
)

LIGHT: Final = (
    *BRIEF,
    "tests/test_identity.py",
    "tests/test_leases.py",
    "tests/test_limiter_machine.py",
    "tests/test_once.py",
    "tests/test_threads.py",
    "tests/test_waiting.py",
    "tests/streams/test_closing.py",
    "tests/streams/test_framing.py",
    "tests/streams/test_observe.py",
)

# Of what modules import, the only package that the group "light" is without: it takes minutes to install.
TOO_LARGE: Final = "litellm"


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


def prepare(interpreter: str, folder: Path) -> str:
    """Make the environment that has what the light part needs, and return its interpreter.

    This Python's pip installs into it, which is newer than the one that comes with an interpreter.
    """
    inside = str(folder / "bin" / "python")
    stamp = folder / ".installed"
    if not stamp.exists() or stamp.stat().st_mtime < (ROOT / "pyproject.toml").stat().st_mtime:
        run(interpreter, "-m", "venv", "--without-pip", "--clear", str(folder))
        pip = (sys.executable, "-m", "pip", "--python", inside)
        what = ("--editable", str(ROOT), "--group", "light")
        run(*pip, "install", "--quiet", "--no-compile", *what)  # few of its modules are imported
        stamp.touch()
    return inside


def run(*command: str, **variables: str) -> str:
    """Run it from the root, and return what it has printed.

    Raises:
        CalledProcessError: it has failed; what it has printed is there.
    """
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    ).stdout


def tried(interpreter: str, folder: Path, *, brief: bool) -> str:
    """Run it all on one Python; what it has to say."""
    inside = prepare(interpreter, folder)
    imported = run(inside, "-P", "-W", "error", "tests/imports.py", TOO_LARGE)
    profile = {"EARMARK_PROFILE": "quick"} if brief else {}
    # Not in one cache: they run at the same time. One that hangs ends with the traceback of all threads.
    tests = run(
        inside,
        *("-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *("-o", "faulthandler_timeout=600", "-o", "faulthandler_exit_on_timeout=true"),
        *(BRIEF if brief else LIGHT),
        **profile,
    )
    return imported + tests


def closing_line(said: str) -> str:
    """What pytest counted, out of all that it said."""
    counted = re.findall(r"^\d+ passed.*$", said, re.MULTILINE)
    return counted[-1] if counted else "failed"


def main(folder: Path, versions: list[str], *, brief: bool) -> int:
    """Run them all; the exit code is 1 where one has failed."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    summary = {version: "the whole suite runs on it" for version in versions if version == own}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = {}
        for version in versions:
            interpreter = None if version == own else python(version)
            if interpreter is not None:
                place = folder / f"python{version}"
                runs[pool.submit(tried, interpreter, place, brief=brief)] = version
        for done in as_completed(runs):
            version = runs[done]
            try:
                said = done.result()
            except subprocess.CalledProcessError as error:
                summary[version] = "failed"
                said = f"{error.output}\nfailed: {error}\n"
            else:
                imported = said.partition("\n")[0]
                summary[version] = f"{imported}; {closing_line(said)}"
            print(f"--- Python {version}\n{said}", flush=True)
    for version in versions:
        print(f"Python {version}: {summary.get(version, 'not on this machine')}", flush=True)
    return int("failed" in summary.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("folder", type=Path)
    parser.add_argument("versions", nargs="+")
    options = parser.parse_args()
    sys.exit(main(options.folder, options.versions, brief=options.brief))
