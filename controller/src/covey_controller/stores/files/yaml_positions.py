"""Composes YAML (and JSON, which is YAML) into values that know their lines, within bounds.

Owns duplicate keys, anchors, merge keys and sizes. It must not know what a document means. Values are composed here
because every bound has to hold *before* memory is spent: an alias shares its value and only its size is counted, so a
YAML bomb costs a few additions. Rejected: PyYAML's constructors (they keep the last of two equal keys, know no lines,
expand without bound).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from covey_controller.stores.files.yaml_events import Path, Unreadable, YamlProblem, decode_text, parse_events
from covey_controller.stores.files.yaml_scalars import JsonScalar, parse_scalar

# The deepest kind has 8 levels; a list of objects adds two. More is no mistake but an attack on the stack.
MAX_DEPTH = 32
# Values of one document with every alias counted as if written out. The largest Model has about 5,000.
MAX_VALUES = 100_000
# Nobody reads more at a time, and each costs memory.
MAX_PROBLEMS = 50


@dataclass(slots=True)
class YamlNode:
    """One value with its line and what is below it. Aliases share their node; nobody changes one."""

    line: int
    value: Any
    size: int = 1
    depth: int = 0
    fields: dict[str, "YamlNode"] = field(default_factory=dict[str, "YamlNode"])
    key_lines: dict[str, int] = field(default_factory=dict[str, int])
    entries: list["YamlNode"] = field(default_factory=list["YamlNode"])

    def line_of(self, path: Path, *, key: bool = False) -> int:
        """Line of the value at a path, else of the nearest thing above it that is there.

        A mapping or list below a key begins, for people, at the key.
        """
        node, line = self, self.line
        for step in path:
            if isinstance(step, int):
                if step >= len(node.entries):
                    return line
                node = node.entries[step]
                line = node.line
            else:
                if step not in node.fields:
                    return line
                line = node.key_lines[step]
                node = node.fields[step]
        return line if key or node.depth else node.line


@dataclass(frozen=True, slots=True)
class YamlFile:
    """The non-empty documents of a file that are well-formed, and every problem with the others."""

    documents: tuple[YamlNode, ...]
    problems: tuple[YamlProblem, ...]


def parse_yaml(data: bytes) -> YamlFile:
    """All documents of one file. Never raises: what is wrong is in `problems`."""
    composer = _Composer()
    documents: list[YamlNode] = []
    try:
        documents.extend(composer.compose_documents(decode_text(data)))
    except Unreadable as error:
        composer.problems.append(error.problem)
    return YamlFile(tuple(documents), tuple(composer.problems))


class _Composer:
    """Builds nodes from the events of one file."""

    def __init__(self) -> None:
        self.problems: list[YamlProblem] = []
        self._events: Iterator[Any] = iter(())
        self._anchors: dict[str, YamlNode | None] = {}

    def compose_documents(self, text: str) -> Iterator[YamlNode]:
        self._events = parse_events(text)
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
                known = len(self.problems)
                node = self._compose(next(self._events), ())
                if node.value is not None and len(self.problems) == known:
                    yield node

    def _compose(self, event: Any, path: Path) -> YamlNode:
        line = int(event.start_mark.line) + 1
        anchor: str | None = event.anchor
        if isinstance(event, yaml.AliasEvent):
            node = self._follow(str(anchor), line, path)
        else:
            if anchor is not None:
                self._anchors[anchor] = None
            node = self._compose_new(event, line, path)
            if anchor is not None:
                self._anchors[anchor] = node
        if len(path) + node.depth > MAX_DEPTH:
            raise Unreadable(YamlProblem(line, path, "", f"a document must be at most {MAX_DEPTH} levels deep"))
        return node

    def _compose_new(self, event: Any, line: int, path: Path) -> YamlNode:
        if isinstance(event, yaml.ScalarEvent):
            return YamlNode(line, self._parse_scalar(event, line, path))
        if len(path) > MAX_DEPTH:  # before the stack grows with it
            raise Unreadable(YamlProblem(line, path, "", f"a document must be at most {MAX_DEPTH} levels deep"))
        if isinstance(event, yaml.MappingStartEvent):
            return self._compose_mapping(line, path)
        return self._compose_list(line, path)

    def _report(self, line: int, path: Path, found: str, message: str) -> None:
        problem = YamlProblem(line, path, found, message)
        if len(self.problems) + 1 >= MAX_PROBLEMS:
            raise Unreadable(problem)
        self.problems.append(problem)

    def _follow(self, name: str, line: int, path: Path) -> YamlNode:
        if name not in self._anchors:
            message = f"alias must name an anchor above it; got '*{name}'"
            raise Unreadable(YamlProblem(line, path, f"*{name}", message))
        node = self._anchors[name]
        if node is None:
            message = f"anchor '&{name}' must not hold itself; got '*{name}' inside it"
            raise Unreadable(YamlProblem(line, path, f"*{name}", message))
        return node

    def _parse_scalar(self, event: yaml.ScalarEvent, line: int, path: Path) -> JsonScalar:
        text = str(event.value)
        try:
            value = parse_scalar(text, event.tag, plain=event.implicit[0])
        except ValueError as error:
            self._report(line, path, text[:80], str(error))
            return ""
        if isinstance(value, str) and "\0" in value:
            self._report(line, path, "NUL", "text must not hold the NUL character")
            return ""
        return value

    def _compose_list(self, line: int, path: Path) -> YamlNode:
        node = YamlNode(line, [])
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            entry = self._compose(event, (*path, len(node.entries)))
            node.entries.append(entry)
            node.value.append(entry.value)
            self._grow(node, entry, path)
        return node

    def _compose_mapping(self, line: int, path: Path) -> YamlNode:
        node = YamlNode(line, {})
        merged: list[YamlNode] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key_line = int(event.start_mark.line) + 1
            is_merge = isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]
            key = self._parse_key(self._compose(event, path), key_line, path)
            value = self._compose(next(self._events), (*path, key))
            self._grow(node, value, path)
            if is_merge:
                merged.append(value)
            elif key in node.fields:
                self._refuse_duplicate(key, key_line, node.key_lines[key], path)
            else:
                self._put(node, key, key_line, value)
        for source in merged:
            self._merge(node, source, path)
        return node

    def _parse_key(self, key: YamlNode, line: int, path: Path) -> str:
        match key.value:
            case str(text):
                return text
            case bool(flag):
                return "true" if flag else "false"
            case int() | float():
                return str(key.value)
            case _:
                self._report(line, path, "", "a key must be a string")
                return ""

    def _refuse_duplicate(self, key: str, line: int, first_line: int, path: Path) -> None:
        message = f"key '{key[:80]}' must be given once in its mapping; got it on lines {first_line} and {line}"
        self._report(line, (*path, key), key[:80], message)

    @staticmethod
    def _grow(node: YamlNode, child: YamlNode, path: Path) -> None:
        """Count what is below, and stop before the next: neither an alias nor a long list costs what it claims."""
        node.size += child.size
        node.depth = max(node.depth, child.depth + 1)
        if node.size > MAX_VALUES:
            message = f"a document must hold at most {MAX_VALUES} values with its aliases written out"
            raise Unreadable(YamlProblem(node.line, path, f"{node.size} values", message))

    @staticmethod
    def _put(node: YamlNode, key: str, key_line: int, value: YamlNode) -> None:
        node.fields[key] = value
        node.key_lines[key] = key_line
        node.value[key] = value.value

    def _merge(self, node: YamlNode, source: YamlNode, path: Path) -> None:
        """`<<`: fields of another mapping, or of several, that this one does not have itself."""
        mappings = source.entries if isinstance(source.value, list) else [source]
        for mapping in mappings:
            if not isinstance(mapping.value, dict):
                self._report(source.line, path, "", "'<<' must name a mapping or a list of them")
                return
            for key, value in mapping.fields.items():
                if key not in node.fields:
                    self._put(node, key, mapping.key_lines[key], value)
