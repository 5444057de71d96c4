"""Renders a kind's CustomResourceDefinition from its types: the one schema by which both stores accept and refuse.

Owns the translation from pydantic's JSON schema to Kubernetes' structural schema: references inlined, optional fields
without null, 64-bit integers, defaults reduced to what no nested default says already. Knows no YAML and no files.

The translation is closed: a keyword that has no place in a structural schema raises when the CRD is rendered, and is
never dropped in silence. Rejected: a hand-written YAML per kind (two truths), and pydantic's own strictness (see
ADR 1).
"""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from covey_api.field_words import describe_fields
from covey_api.kinds import Kind
from covey_api.meta import GROUP, NAME_PATTERN, VERSION, Message
from covey_api.patterns import PATTERN_WORDS

JsonSchema: TypeAlias = dict[str, Any]

CATEGORY = "covey"
RULES = "x-kubernetes-validations"
LIST_TYPE = "x-kubernetes-list-type"
# What a new object has until a controller has looked: kstatus then takes it as in progress, not as ready.
UNSEEN_STATUS: dict[str, int] = {"observedGeneration": -1}

# Every keyword that a rendered node may carry, in the order in which it is written.
_KEYWORDS = (
    "description",
    "type",
    "format",
    "enum",
    "pattern",
    "default",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "required",
    "properties",
    "additionalProperties",
    "items",
    LIST_TYPE,
    "x-kubernetes-list-map-keys",
    RULES,
)


def render_crd(kind: type[Kind]) -> dict[str, Any]:
    """The whole CustomResourceDefinition of one kind, ready to be written as YAML."""
    name = kind.__name__
    names: dict[str, Any] = {
        "kind": name,
        "listKind": f"{name}List",
        "plural": kind.PLURAL,
        "singular": kind.SINGULAR,
        "categories": [CATEGORY],
    }
    if kind.SHORT_NAMES:
        names["shortNames"] = list(kind.SHORT_NAMES)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": names,
            "scope": "Namespaced" if kind.NAMESPACED else "Cluster",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": _render_columns(kind),
                    "subresources": _render_subresources(kind),
                    "schema": {"openAPIV3Schema": render_schema(kind, is_described=True)},
                }
            ],
        },
    }


def render_schema(kind: type[Kind], *, is_described: bool = False) -> JsonSchema:
    """The structural schema of one kind, with its defaults and CEL rules. `is_described`: with the words of fields."""
    document = kind.model_json_schema(by_alias=True, mode="validation")
    if is_described:
        describe_fields(document, kind)
    root = _render_node(document, document.get("$defs", {}), "")
    properties: dict[str, JsonSchema] = root["properties"]
    properties["apiVersion"] = {"description": f"`{GROUP}/{VERSION}`.", "type": "string"}
    properties["kind"] = {"description": f"`{kind.__name__}`.", "type": "string"}
    # ObjectMeta is Kubernetes' own; a CRD may restrict the name, and say nothing of its own here.
    properties["metadata"] = {"type": "object", "properties": {"name": _render_name(kind)}}
    # Status is written whole by its controller: a default inside it would speak where nobody has looked yet.
    properties["status"] = _order(_drop_defaults(properties["status"]) | {"default": dict(UNSEEN_STATUS)}, "status")
    # Kubernetes asks for metadata by itself; an empty `required` is none.
    required = [field for field in root.pop("required") if field != "metadata"]
    return _order(root | ({"required": required} if required else {}), "")


def render_document(document: type[Message]) -> JsonSchema:
    """The structural schema of what people write for one command, and nobody stores."""
    rendered = document.model_json_schema(by_alias=True, mode="validation")
    return _render_node(rendered, rendered.get("$defs", {}), "")


def _render_name(kind: type[Kind]) -> JsonSchema:
    if kind.ONLY_NAME:
        return {
            "description": f"The one name there is: `{kind.ONLY_NAME}`.",
            "type": "string",
            "enum": [kind.ONLY_NAME],
        }
    words = f"Lowercase letters, digits and `-`, at most {kind.MAX_NAME_LENGTH} characters."
    return {"description": words, "type": "string", "pattern": NAME_PATTERN, "maxLength": kind.MAX_NAME_LENGTH}


def _render_columns(kind: type[Kind]) -> list[dict[str, Any]]:
    return [
        {"name": column.name, "type": column.type, "jsonPath": column.json_path}
        | ({"priority": 1} if column.wide else {})
        for column in kind.COLUMNS
    ]


def _render_subresources(kind: type[Kind]) -> dict[str, Any]:
    subresources: dict[str, Any] = {"status": {}}
    if kind.SCALE:
        subresources["scale"] = {
            "specReplicasPath": kind.SCALE.spec_replicas,
            "statusReplicasPath": kind.SCALE.status_replicas,
            "labelSelectorPath": kind.SCALE.selector,
        }
    return subresources


def _render_node(source: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> JsonSchema:
    """One structural node and all below it. `path` names it as people write it, e.g. `spec.variants[].engines`."""
    node = _resolve(source, definitions, path)
    if "const" in node:
        node["enum"] = [node.pop("const")]
    if words := PATTERN_WORDS.get(node.get("pattern", "")):
        node[RULES] = [*node.get(RULES, []), _render_pattern_rule(node.pop("pattern"), words)]
    if "description" in node:
        node["description"] = " ".join(node["description"].split())
    if node.get("type") == "integer":
        node["format"] = "int64"
    if "properties" in node:
        prefix = f"{path}." if path else ""
        node["properties"] = {
            name: _render_node(child, definitions, prefix + name) for name, child in node["properties"].items()
        }
    if "items" in node:
        items = _render_node(node["items"], definitions, f"{path}[]")
        # Lists are ordered by preference or written whole: nobody but a list-map's owner merges into one. An API server
        # compares such a list whole, before defaults: one inside it would make who applies it again a conflict.
        is_whole = node.setdefault(LIST_TYPE, "atomic") == "atomic"
        told = _tell_defaults(items) if path.startswith("spec.") else items
        node["items"] = _drop_defaults(told) if is_whole else items
    if "additionalProperties" in node:
        node["additionalProperties"] = _render_node(node["additionalProperties"], definitions, f"{path}[]")
    if "default" in node:
        node["default"] = _reduce_default(node["default"], node)
    return _order(node, path)


def _resolve(source: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> JsonSchema:
    """A copy without `$ref`, `anyOf` with null, `title` and `propertyNames`; what the field itself says wins."""
    node = {key: value for key, value in source.items() if key not in ("$defs", "title")}
    if reference := node.pop("$ref", None):
        node = _merge(_resolve(definitions[reference.removeprefix("#/$defs/")], definitions, path), node)
    if options := node.pop("anyOf", None):
        node = _merge(_resolve(_choose_present(options, path), definitions, path), node)
        if node.get("default", ...) is None:
            del node["default"]
    if names := node.pop("propertyNames", None):
        # A structural schema can't bound the keys of a map; a rule can.
        node[RULES] = [*node.get(RULES, []), _render_key_rule(names, path)]
    return node


def _choose_present(options: list[dict[str, Any]], path: str) -> dict[str, Any]:
    """The one option beside null: `X | None` becomes an optional X."""
    present = [option for option in options if option.get("type") != "null"]
    if len(present) != 1:
        raise ValueError(f"`{path}` must have one type, or one type and None: a structural schema has no unions")
    return present[0]


def _merge(base: JsonSchema, field: JsonSchema) -> JsonSchema:
    rules = [*base.get(RULES, []), *field.get(RULES, [])]
    return base | field | ({RULES: rules} if rules else {})


def _render_key_rule(names: Mapping[str, Any], path: str) -> dict[str, str]:
    if set(names) != {"maxLength"}:
        raise ValueError(f"keys of `{path}` must be bounded by max_length and nothing else; got {dict(names)}")
    longest = names["maxLength"]
    return {
        "rule": f"self.all(key, size(key) <= {longest})",
        "message": f"keys of `{path}` must be at most {longest} characters",
    }


def _render_pattern_rule(pattern: str, words: str) -> dict[str, str]:
    """The pattern as a rule in words. Of a broken rule an API server tells the value's type only, so these tell it."""
    return {
        "rule": f"self.matches(r'{pattern}')",
        "message": words,
        "messageExpression": f'"{words}; got \'" + self + "\'"',
    }


def _reduce_default(default: Any, node: JsonSchema) -> Any:
    """The default without what nested defaults fill in anyway, and without nulls: usually `{}` for an object."""
    if "properties" not in node:
        return default
    given: dict[str, Any] = default
    properties: dict[str, JsonSchema] = node["properties"]
    reduced = {name: _reduce_default(value, properties[name]) for name, value in given.items() if value is not None}
    return {name: value for name, value in reduced.items() if properties[name].get("default", ...) != value}


def _tell_defaults(node: JsonSchema) -> JsonSchema:
    """The defaults of its fields in their descriptions, where no tool could read them else."""
    told = dict(node)
    if node.get("default") not in (None, "", [], {}) and "Default:" not in node.get("description", ""):
        told["description"] = f"{node.get('description', '')} Default: {json.dumps(node['default'])}.".lstrip()
    if "properties" in told:
        told["properties"] = {name: _tell_defaults(child) for name, child in told["properties"].items()}
    return told


def _drop_defaults(node: JsonSchema) -> JsonSchema:
    kept = {key: value for key, value in node.items() if key != "default"}
    if "properties" in kept:
        kept["properties"] = {name: _drop_defaults(child) for name, child in kept["properties"].items()}
    if "items" in kept:
        kept["items"] = _drop_defaults(kept["items"])
    return kept


def _order(node: JsonSchema, path: str) -> JsonSchema:
    if unknown := sorted(node.keys() - set(_KEYWORDS)):
        raise ValueError(f"`{path or 'the root'}` must use structural keywords only; got {', '.join(unknown)}")
    return {key: node[key] for key in _KEYWORDS if key in node}
