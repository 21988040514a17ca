"""A policies file as data, and the line of each place in it where the format can tell.

JSON and YAML let a name stand twice in one mapping and keep the last, so that a limit would be gone unseen: that is a
mistake. TOML's reader refuses it by itself, and tells no lines but those of its own errors.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Final, NamedTuple

from earmark.policies.jsonfile import read_json
from earmark.policies.mistakes import Mistake, Path, PolicyError, place_of
from earmark.policies.translating import Found


class Document(NamedTuple):
    """What a file says."""

    data: object
    lines: Mapping[Path, int]
    repeated: list[Path]
    """The places of fields that stand twice."""


class Source(NamedTuple):
    """Where policies come from: a file that can be read again, or an object that somebody made."""

    name: str
    data: object
    lines: Mapping[Path, int]
    mistakes: tuple[Mistake, ...] = ()

    def mistake(self, found: Found) -> Mistake:
        """A mistake, with the file and the line where it stands."""
        kind, path, problem, remedy = found
        return Mistake(kind, place_of(path), problem, remedy, self.name, nearest(self.lines, path))


def of_mapping(data: object) -> Source:
    """Policies that are no file."""
    return Source("policies", data, {})


def read(path: str | os.PathLike[str]) -> Source:
    """Read a file.

    Raises:
        PolicyError: it is missing, unreadable, in none of the formats, or broken.
    """
    name = os.fspath(path)
    reader = _READERS.get(FilePath(name).suffix.lower())
    if reader is None:
        problem = "is in no known format, as its name ends"
        raise broken(name, "unknown_format", problem, f"call it {', '.join(_READERS)}")
    try:
        text = FilePath(name).read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise broken(name, "no_file", "there is no such file", "write it, or name it") from error
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
        raise broken(name, "unreadable", problem, "let this process read it") from error
    except UnicodeDecodeError as error:
        problem = f"is no UTF-8 at byte {error.start}"
        raise broken(name, "unreadable", problem, "save it as UTF-8") from error
    document = reader(name, text)
    source = Source(name, document.data, document.lines)
    repeated = (
        Found("duplicate_field", path, "stands twice in one mapping", "keep one of the two")
        for path in document.repeated
    )
    return source._replace(mistakes=tuple(map(source.mistake, repeated)))


def broken(name: str, kind: str, problem: str, remedy: str, line: int | None = None) -> PolicyError:
    """A file of which nothing can be said but that it is broken."""
    return PolicyError([Mistake(kind, "", problem, remedy, name, line)])


def _toml(name: str, text: str) -> Document:
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        said = _TOML_LINE.search(str(error))
        line = int(said[1]) if said else None
        problem = f"is no TOML ({error})"
        raise broken(name, "syntax", problem, "mend what stands there", line) from error
    return Document(data, {}, [])


_TOML_LINE: Final = re.compile(r"at line (\d+)")


def _json(name: str, text: str) -> Document:
    try:
        return Document(*read_json(text))
    except (ValueError, RecursionError) as error:
        line: int | None = getattr(error, "lineno", None)
        problem = f"is no JSON ({error})"
        raise broken(name, "syntax", problem, "mend what stands there", line) from error


def _yaml(name: str, text: str) -> Document:
    try:
        import yaml
    except ImportError as error:
        problem = "is YAML, for which PyYAML is not installed"
        raise broken(name, "no_yaml", problem, "pip install 'earmark[yaml]'") from error
    from earmark.policies.yamlfile import read_yaml

    try:
        return Document(*read_yaml(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        problem = f"is no YAML ({error.problem or error.context})"
        raise broken(name, "syntax", problem, "mend what stands there", line) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = f"is no YAML ({error})"
        raise broken(name, "syntax", problem, "mend what stands there") from error


def nearest(lines: Mapping[Path, int], path: Path) -> int | None:
    """The line of a place, or of the nearest one above it: what is missing stands nowhere."""
    for length in range(len(path), -1, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


_READERS: Final[dict[str, Callable[[str, str], Document]]] = {
    ".yaml": _yaml,
    ".yml": _yaml,
    ".toml": _toml,
    ".json": _json,
}
