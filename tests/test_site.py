"""The site shows every page once, in the order in which a newcomer reads them, and leads nowhere else.

`make docs` builds it, strictly; what is held here is what its builder does not look at.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from docs import gather

ROOT: Final = gather.ROOT
NAVIGATION: Final = re.findall(
    r"^ +- [^:\n]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
)

FIRST: Final = ["index.md", "quickstart.md", "tutorial.md", "concepts.md"]

# Modules with an `__all__` that says what they hand on inside the package.
INSIDE: Final = {"earmark.backends.redis", "earmark.streams.observe", "earmark.testing.contract"}


def test_every_page_is_in_the_navigation_once() -> None:
    """Pages of docs/, the README and the changelog, and no other but the reference."""
    pages = {gather.place_of(file).as_posix() for file in gather.DOCS.rglob("*.md")}
    pages |= {place.as_posix() for place in gather.NAMES.values()}
    shown = [page for page in NAVIGATION if not gather.REFERENCE.fullmatch(page)]
    assert sorted(shown) == sorted(pages)


def test_a_newcomer_is_led_from_why_to_the_reference() -> None:
    """Why, quickstart, tutorial, concepts; then guides; the reference after them."""
    assert NAVIGATION[: len(FIRST)] == FIRST
    reference = [i for i, page in enumerate(NAVIGATION) if gather.REFERENCE.fullmatch(page)]
    guides = [NAVIGATION.index(page) for page in ("gateway.md", "backends.md", "performance.md")]
    assert len(FIRST) <= min(guides) <= max(guides) < min(reference)


def test_every_public_module_has_a_page_of_the_reference() -> None:
    """A module with an `__all__` is public, unless it is named above; what contrib has is public."""
    library = ROOT / "src"
    public: set[str] = set()
    for file in library.rglob("*.py"):
        inside = file.relative_to(library).with_suffix("").as_posix().removesuffix("/__init__")
        is_public = re.search(r"^__all__ = ", file.read_text(encoding="utf-8"), re.MULTILINE)
        if is_public or file.parent.name == "contrib":
            public.add(inside.replace("/", "."))
    public -= INSIDE | {"earmark.contrib"}
    assert set(gather.REFERENCE.findall("\n".join(NAVIGATION))) == public


def test_the_reference_is_made_of_what_a_module_exports() -> None:
    """Its docstring, and one entry for each name."""
    page = gather.reference("earmark.policies")
    assert re.findall(r"^::: (.+)$", page, re.MULTILINE) == [
        "earmark.policies",
        "earmark.policies.Mistake",
        "earmark.policies.Policies",
        "earmark.policies.PolicyError",
        "earmark.policies.schema",
    ]


def test_a_link_to_a_file_of_the_project_becomes_one_to_its_page() -> None:
    """What lies outside of docs/ is a page of the site as well, whatever it is."""
    pages = gather.gathered()
    redis = pages[Path("redis.md")]
    assert "](files/examples/processes_redis.py.md)" in redis
    assert "](failure.md#who-decides-in-an-outage)" in redis
    example = (ROOT / "examples" / "processes_redis.py").read_text(encoding="utf-8")
    assert example in pages[Path("files/examples/processes_redis.py.md")]
    assert "](streams.md)" in pages[Path("quickstart.md")]
    assert "](quickstart.md#which-verb)" in pages[Path("tutorial.md")]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see [it](../README.md)", "see [it](quickstart.md)"),
        ("see [it](../README.md#install)", "see [it](quickstart.md#install)"),
        ("see [it](#below) or [that](https://example.org/a.md)", None),
        ("`[0](nowhere.md)` is code", None),
        ("```python\na[0](nowhere)\n```\n", None),
    ],
)
def test_a_link_is_moved_and_code_is_not(
    text: str, shown: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only prose has links."""
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "page.md"
    page.write_text(text, encoding="utf-8")
    readme = tmp_path / "README.md"
    readme.write_text("# it", encoding="utf-8")
    monkeypatch.setattr(gather, "ROOT", tmp_path)
    monkeypatch.setattr(gather, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(gather, "NAMES", {readme: Path("quickstart.md")})
    assert gather.moved(page, set()) == (text if shown is None else shown)


@pytest.mark.parametrize("target", ["nowhere.md", "../../outside.md", "../docs"])
def test_a_link_that_leads_nowhere_is_an_error(target: str, tmp_path: Path) -> None:
    """To no file, out of the project, or to a folder."""
    (tmp_path / "outside.md").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(target)):
        gather.linked(target, gather.DOCS / "page.md")
