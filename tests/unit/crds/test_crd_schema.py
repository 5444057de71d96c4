"""The CRDs as Kubernetes demands them: structural, bounded, described, with rules in core CEL."""

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import pytest
from covey_api.kinds import Kind
from covey_api.meta import Message
from covey_api.registry import KINDS
from covey_api.schema import JsonSchema, render_crd, render_schema
from covey_controller.stores.files.cel_rules import compile_rule
from covey_controller.stores.files.strict import fill_defaults
from jsonschema import Draft202012Validator
from pydantic import Field

CORE_CEL = {"has", "size", "matches", "all", "exists", "exists_one"}
ALL_KINDS = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def walk(node: JsonSchema, path: str = "") -> Iterator[tuple[str, JsonSchema]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if keyword in node:
            yield from walk(node[keyword], f"{path}[]")


def rules_of(kind: type[Kind]) -> list[str]:
    """Every expression: the rules, and those that make a message."""
    rules = [rule for _, node in walk(render_schema(kind)) for rule in node.get("x-kubernetes-validations", [])]
    return [rule[part] for rule in rules for part in ("rule", "messageExpression") if part in rule]


@ALL_KINDS
def test_every_node_has_one_type_and_no_reference(kind: type[Kind]) -> None:
    for path, node in walk(render_schema(kind)):
        assert node["type"] in ("object", "array", "string", "integer", "boolean"), path
        assert not node.keys() & {"$ref", "anyOf", "oneOf", "allOf", "title", "const", "propertyNames"}, path
        assert not ("properties" in node and "additionalProperties" in node), path


@ALL_KINDS
def test_every_string_list_and_map_is_bounded(kind: type[Kind]) -> None:
    for path, node in walk(render_schema(kind)):
        if path in (".apiVersion", ".kind"):
            continue  # Kubernetes' own
        match node["type"]:
            case "string":
                assert "maxLength" in node or "enum" in node, path
            case "array":
                assert "maxItems" in node, path
            case "object":
                assert "properties" in node or "maxProperties" in node, path
            case _:
                assert node.get("format") == "int64" or node["type"] == "boolean", path


@ALL_KINDS
def test_every_field_is_described(kind: type[Kind]) -> None:
    """Entries that are no objects are what their list's words say; `metadata` must have no words of ours."""
    undescribed = [
        path
        for path, node in walk(render_schema(kind, is_described=True))
        if not node.get("description") and not (path.endswith("]") and node["type"] != "object")
    ]
    assert undescribed == [".metadata"]


@ALL_KINDS
def test_defaults_satisfy_their_own_schema(kind: type[Kind]) -> None:
    for path, node in walk(render_schema(kind)):
        if "default" in node:
            errors = [*Draft202012Validator(node).iter_errors(fill_defaults(node["default"], node))]  # pyright: ignore[reportUnknownMemberType]  # stubs
            assert errors == [], path


@ALL_KINDS
def test_lists_that_are_compared_whole_hold_no_default_and_say_it(kind: type[Kind]) -> None:
    """Applied by two managers with the same text, such a list must be the same to both."""
    lists = [node for _, node in walk(render_schema(kind)) if node.get("x-kubernetes-list-type") == "atomic"]
    assert [path for node in lists for path, below in walk(node["items"]) if "default" in below] == []


def test_a_default_that_no_schema_may_hold_is_said_in_words() -> None:
    engine = render_schema(KINDS["Node"])["properties"]["spec"]["properties"]["engines"]["items"]["properties"]
    assert engine["provisioning"]["description"].endswith('Default: "Managed".')


@ALL_KINDS
def test_required_fields_exist_and_have_no_default(kind: type[Kind]) -> None:
    for path, node in walk(render_schema(kind)):
        for name in node.get("required", []):
            assert "default" not in node["properties"][name], f"{path}.{name}"


@ALL_KINDS
def test_patterns_read_the_same_in_every_regex_dialect(kind: type[Kind]) -> None:
    patterns = [(path, node["pattern"]) for path, node in walk(render_schema(kind)) if "pattern" in node]
    patterns += [(rule, pattern) for rule in rules_of(kind) for pattern in re.findall(r"matches\(r'([^']*)'\)", rule)]
    assert patterns or kind.ONLY_NAME
    for path, pattern in patterns:
        assert pattern.startswith("^"), path
        assert "$" not in pattern[:-1], path
        assert not re.search(r"\\[dwsbDWSBAZz]|\(\?|[*+?}][+?]", pattern), path


@ALL_KINDS
def test_rules_are_core_cel(kind: type[Kind]) -> None:
    for rule in rules_of(kind):
        compile_rule(rule)
        without_text = re.sub(r"'[^']*'", "''", rule)
        assert set(re.findall(r"(\w+)\s*\(", without_text)) - CORE_CEL == set(), rule


@ALL_KINDS
def test_status_of_a_new_object_is_not_taken_as_ready(kind: type[Kind]) -> None:
    status = render_schema(kind)["properties"]["status"]
    assert status["default"] == {"observedGeneration": -1}
    assert [path for path, node in walk(status) if path and "default" in node] == []
    assert status["properties"]["conditions"]["x-kubernetes-list-type"] == "map"
    assert status["properties"]["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert "type" in status["properties"]["conditions"]["items"]["required"]


@ALL_KINDS
def test_crd_names_one_served_and_stored_version(kind: type[Kind]) -> None:
    crd = render_crd(kind)
    assert crd["metadata"]["name"] == f"{kind.PLURAL}.covey.dev"
    assert crd["spec"]["names"]["categories"] == ["covey"]
    assert crd["spec"]["scope"] == ("Namespaced" if kind.NAMESPACED else "Cluster")
    (version,) = crd["spec"]["versions"]
    assert (version["served"], version["storage"], version["subresources"]["status"]) == (True, True, {})
    assert ("scale" in version["subresources"]) == (kind.__name__ == "Placement")


@ALL_KINDS
def test_printer_columns_point_at_fields_that_exist(kind: type[Kind]) -> None:
    properties = {re.sub(r"\[\]", "", path) for path, _ in walk(render_schema(kind))} | {".metadata.creationTimestamp"}
    for column in kind.COLUMNS:
        assert re.sub(r"\[[^]]*\]", "", column.json_path) in properties, column.name


def test_scale_paths_point_at_fields_that_exist() -> None:
    placement = KINDS["Placement"]
    assert placement.SCALE is not None
    paths = {path for path, _ in walk(render_schema(placement))}
    assert {placement.SCALE.spec_replicas, placement.SCALE.status_replicas, placement.SCALE.selector} <= paths


def test_names_leave_room_for_the_ordinal_of_an_instance() -> None:
    def longest(name: str) -> int:
        return render_schema(KINDS[name])["properties"]["metadata"]["properties"]["name"]["maxLength"]

    assert longest("Placement") == 53
    assert longest("Instance") == 63


def test_the_fleet_has_one_name() -> None:
    assert render_schema(KINDS["Fleet"])["properties"]["metadata"]["properties"]["name"]["enum"] == ["default"]


def test_instance_may_change_only_forward() -> None:
    rules = " ".join(rules_of(KINDS["Instance"]))
    for field in ("term", "attempt", "instanceId", "goal"):
        assert f"oldSelf.{field}" in rules


class Shape(StrEnum):
    ROUND = "Round"


class Inner(Message):
    """Inner."""

    shape: Shape = Shape.ROUND
    count: Annotated[int, Field(ge=0)] = 3


class OuterSpec(Message):
    inner: Inner = Inner(count=4)
    plain: Inner = Inner()
    maybe: Inner | None = None


class Outer(Kind):
    PLURAL = "outers"
    SINGULAR = "outer"
    kind: str = "Outer"
    spec: OuterSpec
    status: Message = Message()


def test_default_of_an_object_says_only_what_its_fields_do_not() -> None:
    properties = render_schema(Outer)["properties"]["spec"]["properties"]
    assert properties["inner"]["default"] == {"count": 4}
    assert properties["plain"]["default"] == {}
    assert "default" not in properties["maybe"]
    assert fill_defaults({}, render_schema(Outer)["properties"]["spec"]) == {
        "inner": {"shape": "Round", "count": 4},
        "plain": {"shape": "Round", "count": 3},
    }


def outer_with(annotation: Any) -> type[Kind]:
    """A kind whose spec has one field `field` of that type."""
    spec = type("Spec", (Message,), {"__annotations__": {"field": annotation}})
    members = {"PLURAL": "outers", "__annotations__": {"spec": spec}}
    return type("Outer", (Outer,), members)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (int | str, "must have one type"),
        (tuple[int, str], "structural keywords only; got prefixItems"),
        (dict[Annotated[str, Field(pattern="^a$")], int], "structural keywords only; got patternProperties"),
        (dict[Shape, int], "must be bounded by max_length and nothing else"),
    ],
)
def test_types_without_a_structural_schema_are_refused_by_field(annotation: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        render_schema(outer_with(annotation))
    assert "`spec.field`" in str(caught.value)
