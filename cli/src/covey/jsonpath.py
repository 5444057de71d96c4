"""The subset of kubectl's JSON paths that printer columns use: `.a.b`, `.a[*].b`, `.a[?(@.type=='Ready')].status`."""

import re
from functools import cache
from typing import Any, cast

_STEP = re.compile(r"\.(?P<key>\w+)|\[(?P<every>\*)\]|\[\?\(@\.(?P<field>\w+)=='(?P<value>[^']*)'\)\]")

Step = tuple[str, str, str]


@cache
def parse_path(path: str) -> tuple[Step, ...]:
    """Steps of a path: ("key", name, ""), ("every", "", ""), ("where", field, value). ValueError if it isn't one."""
    steps: list[Step] = []
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise ValueError(f"'{path}' is not a column path (at character {position})")
        if match["key"]:
            steps.append(("key", match["key"], ""))
        elif match["every"]:
            steps.append(("every", "", ""))
        else:
            steps.append(("where", match["field"], match["value"]))
        position = match.end()
    return tuple(steps)


def find_values(document: object, path: str) -> list[Any]:
    """Every value at the path, in order; a list at its end counts as its items."""
    found: list[Any] = [document]
    for kind, name, wanted in parse_path(path):
        following: list[Any] = []
        for value in found:
            if kind == "key" and isinstance(value, dict):
                entry = cast(dict[str, Any], value).get(name)
                following += [] if entry is None else [entry]
            elif kind == "every" and isinstance(value, list):
                following += cast(list[Any], value)
            elif kind == "where" and isinstance(value, list):
                items = [cast(dict[str, Any], item) for item in cast(list[Any], value) if isinstance(item, dict)]
                following += [item for item in items if item.get(name) == wanted]
        found = following
    flat: list[Any] = []
    for value in found:
        flat += cast(list[Any], value) if isinstance(value, list) else [value]
    return flat
