"""What is published: both archives are whole and have no tests in them, and the version is the same everywhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import earmark

ROOT: Final = Path(__file__).parent.parent

# What the source archive has beside the library: what is read, and what is needed to build a wheel of it.
BESIDE: Final = {"README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO", "pyproject.toml", ".gitignore"}


class Archives(NamedTuple):
    """The names in what was built, those of the source archive below its one folder."""

    sdist: set[str]
    wheel: set[str]
    wheel_of_sdist: set[str]


def build(source: Path, kind: str, target: Path) -> Path:
    """Build one archive."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (built,) = (file for file in target.iterdir() if file.is_file())
    return built


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    """Both, and the wheel that somebody builds who has the source archive alone."""
    folder = tmp_path_factory.mktemp("archives")
    with tarfile.open(build(ROOT, "sdist", folder / "sdist")) as sdist:
        names = {member.name for member in sdist.getmembers() if member.isfile()}
        sdist.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    with (
        zipfile.ZipFile(build(ROOT, "wheel", folder / "wheel")) as wheel,
        zipfile.ZipFile(build(unpacked, "wheel", folder / "again")) as again,
    ):
        inside = {name.removeprefix(f"{unpacked.name}/") for name in names}
        return Archives(inside, set(wheel.namelist()), set(again.namelist()))


def library(folder: str) -> set[str]:
    """Every file of the library, below this folder."""
    source = ROOT / "src"
    return {
        f"{folder}{file.relative_to(source).as_posix()}"
        for file in source.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_both_archives_have_the_whole_library(archives: Archives) -> None:
    """Scripts for Redis and the marker for type checkers among it."""
    files = library("")
    assert "earmark/py.typed" in files
    assert sum(file.endswith(".lua") for file in files) > 1
    assert files <= archives.wheel
    assert library("src/") <= archives.sdist


def test_no_archive_has_tests(archives: Archives) -> None:
    """Beside the library the source archive has documents and examples, and the wheel its own description."""
    beside = archives.sdist - library("src/")
    assert {name for name in beside if "/" not in name} == BESIDE
    assert {name.split("/")[0] for name in beside if "/" in name} == {"docs", "examples"}
    assert {name for name in archives.wheel if ".dist-info/" not in name} == library("")
    every = archives.sdist | archives.wheel
    assert not [name for name in every if name.endswith(".pyc") or "/tests/" in f"/{name}"]


def test_the_source_archive_builds_the_same_wheel(archives: Archives) -> None:
    """Whoever builds from it needs nothing else."""
    assert archives.wheel_of_sdist == archives.wheel


def test_the_changelog_has_this_version() -> None:
    """Its latest release, with the day; what comes next is above it."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.+?)\](.*)$", changelog, re.MULTILINE)
    assert headings[0] == ("Unreleased", "")
    version, day = headings[1]
    assert version == earmark.__version__
    assert re.fullmatch(r" - \d{4}-\d\d-\d\d", day)


def test_every_python_that_is_supported_is_named_alike() -> None:
    """README, contributing, the package's classifiers and `make test-pythons` say the same versions."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    versions = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    assert f'requires-python = ">={versions[0]}"' in text
    named = f"{', '.join(versions[:-1])} and {versions[-1]}"
    for page in ("README.md", "docs/contributing.md", "CHANGELOG.md"):
        shown = (ROOT / page).read_text(encoding="utf-8").replace(" or ", " and ")
        assert f"Python {named}" in shown, page
    pythons = re.search(r"^PYTHONS := (.+)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert pythons is not None
    assert pythons[1].split() == versions
