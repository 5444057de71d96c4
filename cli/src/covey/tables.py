"""Output for people and for programs: tables as kubectl prints them, YAML, JSON, names."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import yaml
from covey_api.kinds import Column, Kind
from covey_api.text import escape_controls
from covey_controller.stores.files.yaml_scalars import parse_plain

from covey.jsonpath import find_values

JsonObject = dict[str, Any]


def render_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned by spaces, three apart; no trailing blanks. A cell is one line, whatever a node wrote into it."""
    rows = [[escape_controls(cell).replace("\n", "\\n") for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows))
    return "\n".join(line.rstrip() for line in lines)


def render_age(timestamp: str, now: datetime) -> str:
    """`45s`, `12m`, `3h`, `9d` since an RFC 3339 time."""
    try:
        seconds = int((now - datetime.fromisoformat(timestamp)).total_seconds())
    except ValueError:
        return ""
    for limit, unit, size in ((120, "s", 1), (7200, "m", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{max(seconds, 0) // size}{unit}"
    return f"{seconds // 86_400}d"


def render_cell(item: JsonObject, column: Column, now: datetime) -> str:
    values = find_values(item, column.json_path)
    if column.type == "date":
        return render_age(str(values[0]), now) if values else ""
    return ",".join(str(value) for value in values if value != "")


def render_objects(
    kind: type[Kind], items: Sequence[JsonObject], *, wide: bool, all_namespaces: bool, prefix: bool
) -> str:
    """One kind's objects as a table."""
    now = datetime.now(UTC)
    columns = [column for column in kind.COLUMNS if wide or not column.wide]
    spaced = all_namespaces and kind.NAMESPACED
    head = [*(["NAMESPACE"] if spaced else []), "NAME", *(column.name.upper() for column in columns)]
    rows = [
        [
            *([str(item["metadata"].get("namespace", ""))] if spaced else []),
            f"{kind.SINGULAR}/{item['metadata']['name']}" if prefix else str(item["metadata"]["name"]),
            *(render_cell(item, column, now) for column in columns),
        ]
        for item in items
    ]
    return render_table(head, rows)


def render_json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def render_yaml(value: object) -> str:
    """YAML that `covey apply` and kubectl read as the same value."""
    stubs: Any = yaml  # the type stubs leave `width` unknown
    text = stubs.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return str(text).rstrip("\n")


class _Dumper(yaml.SafeDumper):
    """Quotes the text that PyYAML would leave plain, but Kubernetes takes for something else (`y`, `0o17`)."""

    def represent_text(self, text: str) -> Any:
        stubs: Any = self  # the type stubs leave `value` unknown
        return stubs.represent_scalar("tag:yaml.org,2002:str", text, style=None if _is_plain(text) else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


def _is_plain(text: str) -> bool:
    """Whether this text means itself without quotes. What has a meaning in YAML's syntax PyYAML quotes by itself."""
    try:
        return not text or parse_plain(text) == text
    except ValueError:
        return False


def render_describe(kind: type[Kind], item: JsonObject, events: Sequence[JsonObject]) -> str:
    """An object whole, as kubectl's describe lays it out."""
    metadata, status = item["metadata"], item.get("status", {})
    lines = [f"Name:        {metadata['name']}"]
    if kind.NAMESPACED:
        lines.append(f"Namespace:   {metadata.get('namespace', '')}")
    for title, key in (("Labels", "labels"), ("Annotations", "annotations")):
        pairs: dict[str, str] = metadata.get(key) or {}
        lines.append(f"{title + ':':<13}" + (", ".join(f"{k}={v}" for k, v in sorted(pairs.items())) or "<none>"))
    lines.append(f"Generation:  {metadata.get('generation', 0)} (observed {status.get('observedGeneration', -1)})")
    lines += _section("Spec", item.get("spec", {}))
    lines += _section("Status", {key: value for key, value in status.items() if key != "conditions"})
    conditions = [(c["type"], c["status"], c["reason"], c.get("message", "")) for c in status.get("conditions", ())]
    lines += _rows("Conditions", ("TYPE", "STATUS", "REASON", "MESSAGE"), conditions)
    lines += _render_events(events, datetime.now(UTC))
    return "\n".join(lines)


def _render_events(events: Sequence[JsonObject], now: datetime) -> list[str]:
    """With how long ago each was seen last, where the fleet says it: an older controller of files doesn't."""
    head, has_age = ("TYPE", "REASON", "AGE", "MESSAGE"), any(event.get("seen") for event in events)
    rows: list[tuple[str, ...]] = []
    for event in events:
        severity, age = "Warning" if event.get("warning") else "Normal", render_age(str(event.get("seen")), now)
        rows.append((severity, event["reason"], age, event["message"]))
    if not has_age:
        head, rows = (*head[:2], *head[3:]), [(*row[:2], *row[3:]) for row in rows]
    return _rows("Events", head, rows)


def _section(title: str, value: JsonObject) -> list[str]:
    body = render_yaml(value).splitlines() if value else ["<none>"]
    return [f"{title}:", *(f"  {line}" for line in body)]


def _rows(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return [f"{title}:", "  <none>"]
    return [f"{title}:", *(f"  {line}" for line in render_table(head, rows).splitlines())]
