"""Renders `docs/spec/`: a page for each kind with its fields, rules, conditions and reasons, and an index.

Everything comes from the types but the examples in `tools/spec/`, which a test validates in both modes, and the words
for conditions below. Reasons are those of the enums, with the line that stands under each in `reasons.py`; a kind shows
only those that its judgement can give.
"""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

from covey_api import reasons
from covey_api.kinds import Kind
from covey_api.meta import API_VERSION
from covey_api.reasons import ModelReason, NodeReason, ReadyReason
from covey_api.registry import KINDS, WRITABLE_KINDS
from covey_api.schema import RULES, JsonSchema, render_schema

ROOT = Path(__file__).resolve().parent.parent
SPEC = ROOT / "docs" / "spec"
EXAMPLES = ROOT / "tools" / "spec"
NOTICE = "<!-- Generated from crds/src/covey_api by tools/generate.py; do not edit. -->"

_INTRODUCTION = f"""# Kinds

{NOTICE}

Every object is `apiVersion: {API_VERSION}` with `kind`, `metadata` and `spec`. A name is a DNS label of at most 53
characters. Unknown fields are refused. A field with a default may be left out; *required* ones may not. `status` is the
controller's: what a document says of it is not read.

[Modes](../reference/modes.md) has what differs between Kubernetes and files.

| kind | what |
|---|---|"""
_KSTATUS = {
    "Ready": "`True` when all is as wished. Always there once a controller has looked.",
    "Reconciling": "Only while it is on its way.",
    "Stalled": "Only while it can't go on by itself; the message says what to do.",
}
_CONDITIONS: dict[str, dict[str, str]] = {
    "Model": _KSTATUS,
    "Placement": _KSTATUS
    | {
        "Planned": "Every wished replica has its place.",
        "ArtifactsReady": "Model and engine are there for all of them.",
        "EngineReady": "Each generated a token.",
        "Serving": "At least one takes requests.",
    },
    "Node": {name: _KSTATUS[name] for name in ("Ready", "Reconciling")}
    | {
        "StrayInstances": "Only while it runs Instances that no Placement asks for.",
        "UnsealedInstances": "Only while it reports Instances that this controller did not seal.",
        "NameContested": "Only while another machine reports under the same name.",
        "UnusableEngines": "Only while an engine that somebody counts on there can't be started.",
        "StoreIncomplete": "Only while it is a store and lacks some of what Models name.",
        "VersionSkew": "Only while its agent and the controller are more than one minor version apart.",
    },
    "Instance": _KSTATUS,
}
_ERRORS = "[Errors](../reference/errors.md) says of each what to do."
# What `judge` can say of each kind; a test compares them with its code.
_INSTANCE_REASONS = (
    ReadyReason.SERVING,
    ReadyReason.ARTIFACTS_PENDING,
    ReadyReason.ENGINE_STARTING,
    ReadyReason.ENGINE_FAILED,
    ReadyReason.DRAINING,
    ReadyReason.NODE_UNKNOWN,
)
REASONS: dict[str, tuple[ModelReason | ReadyReason | NodeReason, ...]] = {
    "Model": tuple(ModelReason),
    "Placement": tuple(reason for reason in ReadyReason if reason is not ReadyReason.DRAINING),
    "Node": tuple(NodeReason),
    "Instance": _INSTANCE_REASONS,
}


def render_pages() -> dict[Path, str]:
    """The index and every kind's page."""
    pages = {SPEC / f"{kind.__name__.lower()}.md": render_page(kind) for kind in KINDS.values()}
    return {SPEC / "README.md": render_index()} | pages


def render_index() -> str:
    """What holds for all kinds, and a line for each."""
    rows = [f"| [{name}]({name.lower()}.md) | {render_schema(kind)['description']} |" for name, kind in KINDS.items()]
    return "\n".join([_INTRODUCTION, *rows, ""])


def render_page(kind: type[Kind]) -> str:
    """One kind's page."""
    schema = render_schema(kind, is_described=True)
    fields = list(walk(schema["properties"]["spec"], "spec"))
    name = kind.__name__
    example = (EXAMPLES / f"{name.lower()}.yaml").read_text(encoding="utf-8")
    parts = [
        f"# {name}\n\n{NOTICE}\n",
        f"{schema['description']}\n\n{_render_names(kind)}\n",
        f"```yaml\n{example}```\n",
        f"## Spec\n\n{_render_spec(fields, schema)}",
        *_render_rules(fields),
        f"## Status\n\n{_render_status(list(walk(schema['properties']['status'], 'status')))}",
        *_render_conditions(name),
    ]
    return "\n".join(parts)


def walk(node: JsonSchema, path: str) -> Iterator[tuple[str, JsonSchema]]:
    """A node and all below it, as people write their paths: `spec.variants[].name`, `spec.nodes.selector[]`."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    for entry in (node.get("items"), node.get("additionalProperties")):
        if entry is not None:
            yield from walk(entry, f"{path}[]")


def read_reason_lines() -> dict[str, dict[str, str]]:
    """The line under each member of each enum in `reasons.py`, by enum and value."""
    lines: dict[str, dict[str, str]] = {}
    for node in ast.parse(Path(reasons.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            pairs = zip(node.body, node.body[1:], strict=False)
            lines[node.name] = {
                str(before.value.value): str(after.value.value)
                for before, after in pairs
                if isinstance(before, ast.Assign)
                and isinstance(before.value, ast.Constant)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            }
    return lines


def _render_names(kind: type[Kind]) -> str:
    scope = "namespaced" if kind.NAMESPACED else "cluster-scoped"
    names = ", ".join(f"`{name}`" for name in (kind.PLURAL, kind.SINGULAR, *kind.SHORT_NAMES))
    writer = "" if kind.__name__ in WRITABLE_KINDS else " Written by the controller only."
    only = f" Its one name is `{kind.ONLY_NAME}`." if kind.ONLY_NAME else ""
    return f"Names for kubectl: {names}; {scope}.{writer}{only}"


def _render_spec(fields: list[tuple[str, JsonSchema]], schema: JsonSchema) -> str:
    required = {"spec"} if "spec" in schema.get("required", []) else set[str]()
    required |= {f"{path}.{name}" for path, node in fields for name in node.get("required", [])}
    rows = ["| field | type | default | bounds | what |", "|---|---|---|---|---|"]
    for path, node in fields:
        default = "required" if path in required else _render_default(node)
        bounds = ", ".join(_render_bounds(node))
        rows.append(f"| `{path}` | {node['type']} | {default} | {bounds} | {_render_description(node)} |")
    return "\n".join(rows) + "\n"


def _render_rules(fields: list[tuple[str, JsonSchema]]) -> Iterator[str]:
    """Rules that speak of more than one value; the others are bounds of their field."""
    rules = [rule["message"] for _, node in fields for rule in node.get(RULES, []) if not _is_bound(rule)]
    if rules:
        yield "### Rules\n\n" + "".join(f"- {message}\n" for message in rules)


def _render_status(fields: list[tuple[str, JsonSchema]]) -> str:
    rows = ["| field | type | what |", "|---|---|---|"]
    rows.extend(f"| `{path}` | {node['type']} | {_render_description(node)} |" for path, node in fields[1:])
    return "\n".join(rows) + "\n"


def _render_conditions(name: str) -> Iterator[str]:
    if name not in _CONDITIONS:
        return
    rows = "".join(f"| `{condition}` | {words} |\n" for condition, words in _CONDITIONS[name].items())
    yield f"## Conditions\n\n| condition | what |\n|---|---|\n{rows}"
    lines = read_reason_lines()
    rows = "".join(f"| `{reason}` | {_escape(lines[type(reason).__name__][reason])} |\n" for reason in REASONS[name])
    yield f"## Reasons\n\n{_ERRORS}\n\n| reason | what |\n|---|---|\n{rows}"


def _render_default(node: JsonSchema) -> str:
    return f"`{json.dumps(node['default'])}`" if "default" in node else ""


def _render_bounds(node: JsonSchema) -> Iterator[str]:
    if "enum" in node:
        yield ", ".join(f"`{choice}`" for choice in node["enum"])
    for keyword, sign in (("minimum", "≥"), ("maximum", "≤")):
        if keyword in node:
            yield f"{sign} {node[keyword]}"
    for lowest, highest, unit in (
        ("minLength", "maxLength", "characters"),
        ("minItems", "maxItems", "entries"),
        ("", "maxProperties", "keys"),
    ):
        if highest in node:
            yield f"{_render_range(node.get(lowest), node[highest])} {unit}"
    if "pattern" in node:
        yield f"`{_escape(node['pattern'])}`"
    yield from (_escape(rule["message"]) for rule in node.get(RULES, []) if _is_bound(rule))


def _is_bound(rule: dict[str, str]) -> bool:
    """A rule about its own field's value, whose words begin without the field."""
    return rule["message"].startswith("must ")


def _render_range(lowest: int | None, highest: int) -> str:
    if lowest is None:
        return f"≤ {highest}"
    return f"{lowest}" if lowest == highest else f"{lowest} to {highest}"


def _render_description(node: JsonSchema) -> str:
    return _escape(node.get("description", ""))


def _escape(text: str) -> str:
    return text.replace("|", r"\|")
