"""Lists whose entries have keys (`x-kubernetes-list-type: map`): no two entries may have the same.

The API server looks at this apart from the schema and before the rules, and says it whatever else is wrong. Values are
compared as JSON writes them: `1`, `1.0`, `true` and `"1"` are four.
"""

import json
from collections.abc import Iterator
from typing import Any, cast

from covey_api.schema import LIST_TYPE, JsonSchema

from covey_controller.stores.files.problems import Problem, render_path, show
from covey_controller.stores.files.yaml_events import Path

_LIST_KEYS = "x-kubernetes-list-map-keys"


def find_repeated(value: Any, schema: JsonSchema, path: Path = ()) -> Iterator[Problem]:
    """The second entry of each key that is there several times."""
    if isinstance(value, dict):
        properties: dict[str, JsonSchema] = schema.get("properties", {})
        others: JsonSchema = schema.get("additionalProperties") or {}
        for name, field in cast("dict[str, Any]", value).items():
            yield from find_repeated(field, properties.get(name, others), (*path, name))
    elif isinstance(value, list):
        entries = cast("list[Any]", value)
        if schema.get(LIST_TYPE) == "map":
            yield from _find_twins(entries, schema[_LIST_KEYS], path)
        for index, entry in enumerate(entries):
            yield from find_repeated(entry, schema.get("items", {}), (*path, index))


def _find_twins(entries: list[Any], names: list[str], path: Path) -> Iterator[Problem]:
    if not all(entry is None or isinstance(entry, dict) for entry in entries):
        return  # the schema says so
    counts: dict[str, int] = {}
    for index, entry in enumerate(entries):
        fields = cast("dict[str, Any]", entry or {})
        keys = {name: fields[name] for name in names if name in fields}
        written = json.dumps(keys, sort_keys=True)
        counts[written] = counts.get(written, 0) + 1
        if counts[written] == 2:  # told once, however many there are
            place = (*path, index)
            found = ", ".join(f"`{name}` {show(keys.get(name))}" for name in names)
            message = f"`{render_path(place)}` must differ in {_quote(names)} from every other entry; got {found} again"
            yield Problem(place, found, message)


def _quote(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
