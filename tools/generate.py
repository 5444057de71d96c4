"""Writes what is made from code: the CRDs, `docs/reference/kinds.md` and `docs/reference/cli.md`.

Run by `make verify`, which fails when the files in git differ. The output depends on nothing but the types.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from covey.reference import render_cli
from covey_api.kinds import Kind
from covey_api.meta import API_VERSION
from covey_api.registry import KINDS, WRITABLE_KINDS
from covey_api.schema import RULES, JsonSchema, render_crd, render_schema

ROOT = Path(__file__).resolve().parent.parent
CRDS = ROOT / "manifests" / "crds"
COMMAND = ROOT / "docs" / "reference" / "cli.md"
REFERENCE = ROOT / "docs" / "reference" / "kinds.md"

_HEADER = "# Generated from crds/src/covey_api by tools/generate.py; do not edit.\n"
_INTRODUCTION = f"""# Kinds

<!-- Generated from crds/src/covey_api by tools/generate.py; do not edit. -->

Every object is `apiVersion: {API_VERSION}` with `kind`, `metadata` and `spec`. A name is a DNS label of at most 53
characters. Unknown fields are refused. A field with a default may be left out; *required* ones may not. Rules are
checked after the table holds. `status` is the controller's: what a document says of it is not read.
"""


def render_yaml(document: Mapping[str, Any]) -> str:
    """One generated YAML file."""
    unshared = json.loads(json.dumps(document))  # equal lists are written out instead of as YAML aliases
    # PyYAML's stubs name an unknown type for `width`.
    text = yaml.safe_dump(unshared, sort_keys=False, width=120, allow_unicode=True)  # pyright: ignore[reportUnknownMemberType]
    return _HEADER + text


def render_files() -> dict[Path, str]:
    """Every generated file and its text."""
    files = {CRDS / f"{crd['metadata']['name']}.yaml": render_yaml(crd) for crd in map(render_crd, KINDS.values())}
    return files | {REFERENCE: render_reference(), COMMAND: render_cli()}


def render_reference() -> str:
    """The reference of all kinds, in Markdown."""
    return "\n".join([_INTRODUCTION, *(_render_kind(kind) for kind in KINDS.values())])


def _render_kind(kind: type[Kind]) -> str:
    schema = render_schema(kind)
    fields = list(_walk(schema["properties"]["spec"], "spec"))
    rules = [rule["message"] for _, node in fields for rule in node.get(RULES, [])]
    parts = [
        f"## {kind.__name__}\n",
        f"{schema['description']}\n",
        f"{_render_names(kind)}\n",
        _render_spec(fields, schema),
    ]
    if rules:
        parts.append("Rules:\n\n" + "".join(f"- {message}\n" for message in rules))
    parts.append(_render_status(list(_walk(schema["properties"]["status"], "status"))))
    return "\n".join(parts)


def _render_names(kind: type[Kind]) -> str:
    scope = "namespaced" if kind.NAMESPACED else "cluster-scoped"
    names = ", ".join(f"`{name}`" for name in (kind.PLURAL, kind.SINGULAR, *kind.SHORT_NAMES))
    writer = "" if kind.__name__ in WRITABLE_KINDS else " Written by the controller only."
    only = f" Its one name is `{kind.ONLY_NAME}`." if kind.ONLY_NAME else ""
    return f"Names for kubectl: {names}; {scope}.{writer}{only}"


def _walk(node: JsonSchema, path: str) -> Iterator[tuple[str, JsonSchema]]:
    """A node and all below it, as people write their paths: `spec.variants[].name`, `spec.nodes.selector[]`."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from _walk(child, f"{path}.{name}")
    for entry in (node.get("items"), node.get("additionalProperties")):
        if entry is not None:
            yield from _walk(entry, f"{path}[]")


def _render_spec(fields: list[tuple[str, JsonSchema]], schema: JsonSchema) -> str:
    required = {"spec"} if "spec" in schema.get("required", []) else set[str]()
    required |= {f"{path}.{name}" for path, node in fields for name in node.get("required", [])}
    rows = ["| field | type | default | bounds | what |", "|---|---|---|---|---|"]
    for path, node in fields:
        default = "required" if path in required else _render_default(node)
        bounds = ", ".join(_render_bounds(node))
        rows.append(f"| `{path}` | {node['type']} | {default} | {bounds} | {_render_description(node)} |")
    return "\n".join(rows) + "\n"


def _render_status(fields: list[tuple[str, JsonSchema]]) -> str:
    rows = ["| field | type | what |", "|---|---|---|"]
    rows.extend(f"| `{path}` | {node['type']} | {_render_description(node)} |" for path, node in fields[1:])
    return "\n".join(rows) + "\n"


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


def _render_range(lowest: int | None, highest: int) -> str:
    if lowest is None:
        return f"≤ {highest}"
    return f"{lowest}" if lowest == highest else f"{lowest} to {highest}"


def _render_description(node: JsonSchema) -> str:
    return _escape(node.get("description", ""))


def _escape(text: str) -> str:
    return text.replace("|", r"\|")


def main() -> None:
    """Write every generated file and remove CRDs that no kind makes any more."""
    files = render_files()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in CRDS.glob("*.yaml"):
        if path not in files:
            path.unlink()


if __name__ == "__main__":
    main()
