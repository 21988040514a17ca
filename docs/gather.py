"""Gathers what the site shows: the pages of docs/, the README, the changelog, and what is made of the code.

    python docs/gather.py FOLDER

The pages are written to be read where they lie as well, so that their links lead to files of the project. On the site
such a file is a page of its own, below `files/`, and the README is the quickstart. A link that leads nowhere, or
out of the project, is an error.

A page of mkdocs.yml's navigation that is called `reference/MODULE.md` is the reference of that module: its
docstring, and that of every name in its `__all__`.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"

NAMES: Final = {
    ROOT / "README.md": Path("quickstart.md"),
    ROOT / "CHANGELOG.md": Path("changelog.md"),
}
"""What the pages that lie elsewhere are called on the site."""

LANGUAGES: Final = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".lua": "lua"}

FENCED: Final = re.compile(r"^ *(`{3,}).*?^ *\1 *$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"(\]\(<?)([^)\s>]+)")
ELSEWHERE: Final = re.compile(r"[a-z][a-z0-9+.-]*:|#", re.IGNORECASE)

REFERENCE: Final = re.compile(r"reference/([\w.]+)\.md")

OVERVIEW: Final = """\
# {module}

::: {module}
    options:
      members: false
      show_root_heading: false
      show_root_toc_entry: false
"""

Pages = dict[Path, str]
"""What is shown, by its place on the site."""


def place_of(file: Path) -> Path:
    """Where a file of the project is on the site."""
    if file in NAMES:
        return NAMES[file]
    if file.is_relative_to(DOCS) and file.suffix == ".md":
        return file.relative_to(DOCS)
    return Path("files") / f"{file.relative_to(ROOT)}.md"


def linked(target: str, page: Path) -> Path:
    """The file that a link of a page leads to.

    Raises:
        ValueError: there is none in the project.
    """
    file = (page.parent / target).resolve()
    if not file.is_file() or not file.is_relative_to(ROOT):
        msg = f"{page.relative_to(ROOT)} has a link to {target}, which is no file of the project"
        raise ValueError(msg)
    return file


def prose(text: str) -> Iterator[tuple[str, bool]]:
    """The text in pieces, and whether each is prose; the others are code."""
    end = 0
    for code in FENCED.finditer(text):
        yield text[end : code.start()], True
        yield code.group(), False
        end = code.end()
    yield text[end:], True


def moved(page: Path, shown: set[Path]) -> str:
    """The text of a page with its links as they are on the site; the files that it links to join `shown`."""
    here = place_of(page).parent

    def link(found: re.Match[str]) -> str:
        opening, target = found.groups()
        path, mark, anchor = target.partition("#")
        if ELSEWHERE.match(target):
            return found.group()
        file = linked(path, page)
        shown.add(file)
        return f"{opening}{os.path.relpath(place_of(file), here)}{mark}{anchor}"

    pieces = prose(page.read_text(encoding="utf-8"))
    return "".join(LINK.sub(link, piece) if is_prose else piece for piece, is_prose in pieces)


def listing(file: Path) -> str:
    """A page that shows a file."""
    name = file.relative_to(ROOT).as_posix()
    language = LANGUAGES.get(file.suffix, "text")
    return f"# {name}\n\n``````{language}\n{file.read_text(encoding='utf-8')}``````\n"


def exported(module: str) -> list[str]:
    """The names in a module's `__all__`."""
    stem = ROOT.joinpath("src", *module.split("."))
    file = stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name("__all__")], value=names):
                return list(ast.literal_eval(names))
            case _:
                continue
    msg = f"{module} has no __all__"
    raise ValueError(msg)


def reference(module: str) -> str:
    """The page of a module."""
    names = "".join(f"\n::: {module}.{name}\n" for name in exported(module))
    return OVERVIEW.format(module=module) + names


def gathered() -> Pages:
    """All that the site shows."""
    shown: set[Path] = {*DOCS.rglob("*.md"), *NAMES}
    pages: Pages = {}
    for page in sorted(shown):
        pages[place_of(page)] = moved(page, shown)
    files = {place_of(file): file for file in shown}
    for place in files.keys() - pages.keys():
        pages[place] = listing(files[place])
    for module in REFERENCE.findall((ROOT / "mkdocs.yml").read_text(encoding="utf-8")):
        pages[Path(f"reference/{module}.md")] = reference(module)
    return pages


def main(folder: Path) -> None:
    """Write the pages into a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    for place, text in gathered().items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
