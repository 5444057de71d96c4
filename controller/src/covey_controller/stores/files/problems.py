"""The words for what is wrong with a document: which field, what must hold, what was found, what was probably meant.

Knows schema keywords and patterns, no files and no lines. Values are shown short, and a client's key is never shown.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from covey_api.access_key import KEY_HASH_PATTERN, KEY_PREFIX
from covey_api.meta import LABEL_VALUE_PATTERN, NAME_PATTERN, SHA256_PATTERN
from covey_api.model import ALIAS_PATTERN
from covey_api.patterns import PATTERN_WORDS
from jsonschema import ValidationError

from covey_controller.stores.files.metadata import (
    ANNOTATION_KEY_PATTERN,
    LABEL_KEY_PATTERN,
    NAMESPACE_PATTERN,
    PREFIX_PATTERN,
    TIME_PATTERN,
)
from covey_controller.stores.files.yaml_events import Path

# End of text in Python's patterns: its `$` also matches before a newline at the end, RE2's doesn't.
END = r"\Z"
_MAX_SHOWN = 80
# Fields of a mapping that are named when none is close to what was written: one line of them.
_MAX_NAMED = 10
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPE_NAMES = {
    "string": "a string",
    "integer": "an integer",
    "boolean": "true or false",
    "object": "a mapping",
    "array": "a list",
}
PATTERN_NAMES = {
    NAME_PATTERN: "lowercase letters, digits and '-', with a letter or digit at both ends",
    NAMESPACE_PATTERN: "lowercase letters, digits and '-', with a letter or digit at both ends",
    PREFIX_PATTERN: "lowercase letters, digits, '-' and '.', beginning with a letter or digit",
    LABEL_VALUE_PATTERN: PATTERN_WORDS[LABEL_VALUE_PATTERN].removeprefix("must be "),
    LABEL_KEY_PATTERN: "a name such as 'zone' or 'example.com/zone'",
    ANNOTATION_KEY_PATTERN: "a name such as 'note' or 'example.com/note'",
    TIME_PATTERN: "a time such as '2027-01-31T00:00:00Z'",
    SHA256_PATTERN: "64 lowercase hex digits",
    ALIAS_PATTERN: "letters, digits and '/', ':', '.', '_', '-', beginning with a letter or digit",
    KEY_HASH_PATTERN: "'sha256:' and 64 lowercase hex digits, as `covey key create` writes it",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a document; its line is that of the value at `path`, or of its key."""

    path: Path
    found: str
    message: str
    at_key: bool = False


def render_path(path: Path) -> str:
    """As Kubernetes writes it: `spec.variants[0].engines[0]`, `metadata.labels[example.com/zone]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _WORD.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{_shorten(step)}]"
    return text


def render_field(path: Path) -> str:
    """The field that is refused, as the API server names it: what metadata holds is named no deeper."""
    return render_path(path[:2] if path[:1] == ("metadata",) else path)


def show(value: Any) -> str:
    """A value for people: short, on one line, and without a client's key."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f"'{KEY_PREFIX}…'" if value.startswith(KEY_PREFIX) else f"'{_shorten(value)}'"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case _:
            return _shorten(str(value))


def suggest(word: str, choices: Iterable[str]) -> str:
    """` (did you mean 'X'?)` when one of the choices is close, else nothing."""
    by_lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower()[:_MAX_SHOWN], by_lower, n=1)
    return f" (did you mean '{by_lower[close[0]]}'?)" if close else ""


def quote_all(words: Iterable[str]) -> str:
    """`'a', 'b'`."""
    return ", ".join(f"'{word}'" for word in words)


def render_broken_rule(path: Path, value: Any, message: str) -> Problem:
    """A broken rule in the rule's own words. Words that begin with 'must' lack the field, which is put in front."""
    if message.startswith("must "):
        message = f"`{render_path(path)}` {message}; got {show(value)}"
    return Problem(path, show(value), message)


def render_problems(error: ValidationError) -> Iterator[Problem]:
    """One error of the schema as problems: several when it speaks of several fields."""
    path: Path = tuple(error.absolute_path)
    keyword = str(error.validator)
    value: Any = error.instance
    schema: dict[str, Any] = error.schema if isinstance(error.schema, dict) else {}
    if keyword == "required":
        for name in (name for name in schema["required"] if name not in value):
            wanted = _render_wanted(schema.get("properties", {}).get(name, {}))
            yield Problem((*path, name), "", f"`{render_path((*path, name))}` must be given{wanted}")
    elif keyword == "additionalProperties":
        yield from _render_unknown(path, value, schema["properties"])
    elif "propertyNames" in error.schema_path:
        message = f"keys of `{render_path(path)}` {_render_rule(keyword, value, schema)}; got {show(value)}"
        yield Problem((*path, value), show(value), message, at_key=True)
    else:
        found = _render_found(keyword, value)
        message = f"`{render_path(path)}` {_render_rule(keyword, value, schema)}; got {found}"
        yield Problem(path, found, message + _render_hint(keyword, value, schema))


def _render_unknown(path: Path, value: dict[str, Any], properties: dict[str, Any]) -> Iterator[Problem]:
    place = f"`{render_path(path)}`" if path else "the document"
    for name in (name for name in value if name not in properties):
        hint = suggest(name, properties) or f"; it has {_list_fields(properties)}"
        message = f"`{render_path((*path, name))}` must not be given: {place} has no such field{hint}"
        yield Problem((*path, name), _shorten(name), message, at_key=True)


def _render_wanted(schema: dict[str, Any]) -> str:
    """What is to be written, where few words say it: `: a list of 'Chat', 'Embedding'`, `: a mapping with 'name'`."""
    if "enum" in schema:
        return f": one of {quote_all(schema['enum'])}"
    if "enum" in schema.get("items", {}):
        return f": a list of {quote_all(schema['items']['enum'])}"
    if schema.get("type") == "object" and schema.get("required"):
        return f": a mapping with {quote_all(schema['required'])}"
    return ""


def _list_fields(properties: dict[str, Any]) -> str:
    return quote_all([*properties][:_MAX_NAMED]) + (", …" if len(properties) > _MAX_NAMED else "")


def _render_rule(keyword: str, value: Any, schema: dict[str, Any]) -> str:
    limit = schema[keyword]
    match keyword:
        case "type":
            return f"must be {_TYPE_NAMES[limit]}"
        case "enum":
            return f"must be one of {quote_all(limit)}"
        case "pattern":
            return f"must be {_name_pattern(limit)}"
        case "minimum":
            return f"must be at least {limit}"
        case "maximum":
            return f"must be at most {limit}"
        case "minLength":
            return f"must have at least {_count(limit, 'character')}"
        case "maxLength":
            return f"must be at most {_count(limit, 'character')} long"
        case "minItems":
            return f"must have at least {_count(limit, 'entry')}"
        case _:  # maxItems, maxProperties: the schema's keywords are a closed list
            return f"must have at most {_count(limit, 'entry')}"


def _name_pattern(pattern: str) -> str:
    """Words for a pattern of the types; `strict` ends it with `\\Z` where they say `$`."""
    written = f"{pattern.removesuffix(END)}$" if pattern.endswith(END) else pattern
    return PATTERN_NAMES.get(written, f"text that matches '{written}'")


def _render_found(keyword: str, value: Any) -> str:
    match keyword:
        case "minLength" | "maxLength":
            return _count(len(value), "character")
        case "minItems" | "maxItems" | "maxProperties":
            return _count(len(value), "entry")
        case _:
            return show(value)


def _render_hint(keyword: str, value: Any, schema: dict[str, Any]) -> str:
    if keyword == "enum" and isinstance(value, str):
        return suggest(value, schema["enum"])
    if keyword == "type" and schema["type"] == "string" and isinstance(value, bool | int | float):
        return " (put it in quotes to make it a string)"
    if keyword == "type" and schema["type"] in ("integer", "boolean") and isinstance(value, str):
        return " (write it without quotes)" if _is_bare(value, schema["type"]) else ""
    return ""


def _is_bare(text: str, wanted: str) -> bool:
    return text in ("true", "false") if wanted == "boolean" else bool(re.fullmatch(r"-?[0-9]{1,18}", text))


def _count(number: int, word: str) -> str:
    if number == 1:
        return f"1 {word}"
    return f"{number} {word.removesuffix('y')}ies" if word.endswith("y") else f"{number} {word}s"


def _shorten(text: str) -> str:
    shown = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text[:_MAX_SHOWN])
    return f"{shown}…" if len(text) > _MAX_SHOWN else shown
