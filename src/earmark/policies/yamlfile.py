"""YAML (by PyYAML, read safely) with the line of every value, and the names that stand twice in one mapping."""

from __future__ import annotations

from typing import Any

import yaml

from earmark.policies.mistakes import Path


def read_yaml(text: str) -> tuple[object, dict[Path, int], list[Path]]:
    """The value that a text is, the line of each place in it, and the places of names that stand twice.

    Raises:
        yaml.YAMLError: it is no YAML, or has a tag of somebody's own, or is several documents.
        ValueError: it has a number or a date that is none.
        RecursionError: it is nested too deeply.
    """
    try:
        return _read(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return _read(text, yaml.SafeLoader)  # which knows best what is wrong where


def _read(text: str, loader_of: Any) -> tuple[object, dict[Path, int], list[Path]]:  # noqa: ANN401 - its stubs are open
    """The same by a loader of PyYAML's: that of libyaml, where there is one, takes a third of the time."""
    loader = loader_of(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None, {}, []
        walk = _Walk()
        walk.node((), root)
        return loader.construct_document(root), walk.lines, walk.repeated
    finally:
        loader.dispose()


class _Walk:
    """Goes once through each node: what an alias repeats is told by the place of its anchor."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self.lines: dict[Path, int] = {}
        self.repeated: list[Path] = []

    def node(self, path: Path, node: yaml.Node) -> None:
        """Go through a node and what is in it."""
        self.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in self._seen:
            return
        self._seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                self.node((*path, number), item)
        elif isinstance(node, yaml.MappingNode):
            self._mapping(path, node)

    def _mapping(self, path: Path, node: yaml.MappingNode) -> None:
        names: set[str] = set()
        for name, value in node.value:
            if not isinstance(name, yaml.ScalarNode):
                continue  # a name that is no text: the shape says so
            below = (*path, name.value)
            if name.value in names:
                self.repeated.append(below)
            names.add(name.value)
            self.lines[below] = name.start_mark.line + 1
            self.node(below, value)
