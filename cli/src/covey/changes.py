"""Differences between a document and the object that it would become: field by field, as people name fields. Pure."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from covey.ports import JsonObject

# Longer values are cut: a difference is read by people.
MAX_VALUE = 200
_MISSING = object()


@dataclass(frozen=True, slots=True)
class FieldChange:
    """`before` or `after` is empty where the field is not there."""

    path: str
    before: str
    after: str


def diff_objects(live: JsonObject | None, wished: JsonObject) -> list[FieldChange]:
    """What would change: spec, labels and annotations. Metadata that the server owns and status are not written."""
    return list(_diff("", _written(live) if live is not None else _MISSING, _written(wished)))


def _written(item: JsonObject) -> JsonObject:
    metadata = cast(JsonObject, item.get("metadata") or {})
    kept: JsonObject = {key: metadata.get(key) or {} for key in ("labels", "annotations")}
    return {"metadata": kept, "spec": item.get("spec", {})}


def _diff(path: str, before: Any, after: Any) -> Iterator[FieldChange]:
    if before == after:
        return
    if _is_mapping(before, after):
        old, new = (cast(JsonObject, each) if isinstance(each, dict) else {} for each in (before, after))
        for key in (*new, *(key for key in old if key not in new)):
            yield from _diff(f"{path}.{key}" if path else key, old.get(key, _MISSING), new.get(key, _MISSING))
    elif isinstance(before, list) and isinstance(after, list):
        olds, news = cast(list[Any], before), cast(list[Any], after)
        for index in range(max(len(olds), len(news))):
            yield from _diff(
                f"{path}[{index}]", *(each[index] if index < len(each) else _MISSING for each in (olds, news))
            )
    else:
        yield FieldChange(path, _show(before), _show(after))


def _is_mapping(before: Any, after: Any) -> bool:
    """Whether to look into it: both are mappings, or one is and the other isn't there."""
    kinds = [isinstance(each, dict) for each in (before, after)]
    return all(kinds) or (any(kinds) and (before is _MISSING or after is _MISSING))


def _show(value: Any) -> str:
    if value is _MISSING:
        return ""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}… ({len(text)} characters)"


def render_changes(name: str, changes: list[FieldChange], *, is_new: bool) -> str:
    """An object's differences as lines; empty when there are none."""
    if is_new:
        return "\n".join((f"{name} would be created:", *(f"+ {each.path}: {each.after}" for each in changes)))
    if not changes:
        return ""
    return "\n".join((f"{name} would change:", *(_line(each) for each in changes)))


def _line(change: FieldChange) -> str:
    if not change.before:
        return f"+ {change.path}: {change.after}"
    if not change.after:
        return f"- {change.path}: {change.before}"
    return f"~ {change.path}: {change.before} -> {change.after}"
