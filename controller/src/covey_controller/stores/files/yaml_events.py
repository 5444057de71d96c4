"""Bytes of a file to libyaml's parser events; what can't be read is one problem with its line.

Messages never quote the text around a syntax error: it may hold a secret.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

# A request to the Kubernetes API server ends at 3 MiB; a file may hold several objects.
MAX_FILE_BYTES = 4 * 1024 * 1024

# YAML's own bound; libyaml says only that no key was found.
MAX_KEY_LENGTH = 1024
# Escapes of halves, after an even number of backslashes.
_PAIR = re.compile(r"((?<!\\)(?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_HALF = re.compile(r"((?<!\\)(?:\\\\)*)\\u[dD][89a-fA-F][0-9a-fA-F]{2}")

Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class YamlProblem:
    """One thing wrong with a file as YAML. `line` counts from 1."""

    line: int
    path: Path
    found: str
    message: str


class Unreadable(Exception):
    """Nothing after this can be read."""

    def __init__(self, problem: YamlProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def decode_text(data: bytes) -> str:
    if len(data) > MAX_FILE_BYTES:
        message = f"file must be at most {MAX_FILE_BYTES} bytes; got {len(data)}"
        raise Unreadable(YamlProblem(1, (), f"{len(data)} bytes", message))
    try:
        return _join_surrogates(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x}"
        line = data.count(b"\n", 0, error.start) + 1
        message = f"file must be UTF-8; got {found} at offset {error.start}"
        raise Unreadable(YamlProblem(line, (), found, message)) from None


def parse_events(text: str) -> Iterator[Any]:
    """Events of libyaml. Messages never quote the line: it may hold a secret."""
    try:
        yield from yaml.parse(text, Loader=yaml.CSafeLoader)
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        raise Unreadable(YamlProblem(line, (), "", f"file must be valid YAML: {error.reason}")) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        lines = text.splitlines()
        line = min(mark.line if mark else 0, len(lines) - 1)  # libyaml may point behind the last line
        raise Unreadable(YamlProblem(line + 1, (), "", _render_syntax_error(error, lines[line]))) from None


def _join_surrogates(text: str) -> str:
    """JSON's escapes of characters beyond 16 bits, two halves each, as the one escape that YAML knows.

    A half alone becomes what JSON readers in Go make of it, U+FFFD.
    """
    if not text.lstrip().startswith("{"):  # as kubectl tells JSON from YAML, which has no halves
        return text
    joined = _PAIR.sub(
        lambda it: f"{it[1]}\\U{0x10000 + (int(it[2], 16) - 0xD800) * 0x400 + int(it[3], 16) - 0xDC00:08x}", text
    )
    return _HALF.sub(r"\1\\ufffd", joined)


def _render_syntax_error(error: yaml.MarkedYAMLError, source: str) -> str:
    indentation = source[: len(source) - len(source.lstrip())]
    if "\t" in indentation:
        return "file must be valid YAML: indentation must be spaces; got a tab"
    hint = f"; a key must be at most {MAX_KEY_LENGTH} characters long" if len(source) > MAX_KEY_LENGTH else ""
    return f"file must be valid YAML: {error.problem}{f' {error.context}' if error.context else ''}{hint}"
