"""Files mode and a real API server take and refuse the same documents, at the same fields, rules with the same words.

What must differ is in docs/reference/modes.md, and pinned at the end.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from covey_api.registry import KINDS, WRITABLE_KINDS
from covey_api.schema import RULES, JsonSchema, render_schema
from covey_controller.stores.files.documents import parse_documents
from covey_controller.stores.files.strict import check_document
from covey_controller.stores.files.yaml_positions import MAX_VALUES
from hypothesis import HealthCheck, example, given, settings
from kit.conformance import ApiDoor, Verdict, ask_files, find_difference
from kit.edges import EDGES, Edge, damaged_documents, put, whole_document
from testbed.kube.controlplane import ControlPlane

# Namespaces that generated documents name; one that isn't there is refused by Kubernetes alone.
NAMESPACES = ("3", "a", "true")
# Some 10 s. Every edge by itself, and 12,000 combinations, were compared once.
MAX_EXAMPLES = 800
SHA = "0" * 64
TWO_TAINTS = Edge(("spec", "taints"), [{"key": "a", "effect": "NoSchedule"}] * 2)


@pytest.fixture(scope="module")
def door(control_plane: ControlPlane) -> Iterator[ApiDoor]:
    for namespace in NAMESPACES:
        control_plane.create_namespace(namespace)
    with control_plane.client() as client:
        yield ApiDoor(client)


def ask_both(door: ApiDoor, document: dict[str, Any]) -> tuple[Verdict, Verdict]:
    kind = KINDS[document["kind"]]
    return door.ask(kind, document), ask_files(kind, document)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_both_stores_take_the_whole_document_of_each_kind(door: ApiDoor, kind: Any) -> None:
    document = whole_document(kind)
    assert [verdict.text for verdict in ask_both(door, document)] == ["", ""]


@settings(
    max_examples=MAX_EXAMPLES,
    deadline=None,  # a stall of the API server is no difference
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(document=damaged_documents())
@example(document=put(put(whole_document(KINDS["Node"]), Edge(("spec", "reserve"), True)), TWO_TAINTS))
@example(document=put(whole_document(KINDS["Model"]), EDGES["Model"][0]))
def test_both_stores_say_the_same_of_any_document(door: ApiDoor, document: dict[str, Any]) -> None:
    assert find_difference(*ask_both(door, document)) == ""


# Each was a difference once, or is the corner of a rule. The last column: taken?
CASES: dict[str, tuple[str, tuple[str | int, ...], Any, bool]] = {
    "letters beyond 16 bits, escaped in JSON": ("Model", ("spec", "geometry", "architecture"), "😀", True),
    "length counts letters, not bytes": ("Model", ("spec", "geometry", "architecture"), "é" * 64, True),
    "one letter too many": ("Model", ("spec", "geometry", "architecture"), "é" * 65, False),
    "a key of 128 letters of three bytes": ("Placement", ("spec", "nodes", "selector"), {"名" * 128: "a"}, True),
    "a key of 129 letters": ("Placement", ("spec", "nodes", "selector"), {"名" * 129: "a"}, False),
    "a selector of a million letters": ("Placement", ("spec", "nodes", "selector"), {"a": "x" * 1_000_000}, False),
    "too many labels": ("Placement", ("spec", "nodes", "selector"), {f"k{n}": "" for n in range(17)}, False),
    "null where there is a default": ("Placement", ("spec", "replicas"), None, True),
    "null where there is none": ("Placement", ("spec", "context", "tokens"), None, True),
    "null where a value is required": ("Placement", ("spec", "modelRef"), None, False),
    "null in a list": ("Placement", ("spec", "engines"), [None], False),
    "null in a map": ("Placement", ("spec", "nodes", "selector"), {"a": None}, True),
    "null for an object with defaults below": ("Placement", ("spec", "nodes"), None, True),
    "an unknown field that is null": ("Placement", ("spec", "replica"), None, False),
    "two taints of one key": ("Node", TWO_TAINTS.path, TWO_TAINTS.value, False),
    "two taints without a key": ("Node", ("spec", "taints"), [{}, {}], False),
    "two taints that are null": ("Node", ("spec", "taints"), [None, None], False),
    "two taints that are text": ("Node", ("spec", "taints"), ["a", "a"], False),
    "three taints of one key that is none": ("Node", ("spec", "taints"), [{"key": 1}, {"key": 1}, {"key": 1}], False),
    "keys of taints that Python takes for one": ("Node", ("spec", "taints"), [{"key": 1}, {"key": True}], False),
    "two engines of one name": ("Node", ("spec", "engines"), [{"engine": "LlamaServer"}] * 2, False),
    "no engines, by default": ("Node", ("spec",), {}, True),
    "a window below its least": ("Placement", ("spec", "context"), {"tokens": 300, "minTokens": 301}, False),
    "a least number above the most": ("Placement", ("spec", "scaling"), {"min": 3, "max": 2}, False),
    "a least number above the usual most": ("Placement", ("spec", "scaling"), {"min": 2}, False),
    "a most number alone": ("Placement", ("spec", "scaling"), {"max": 2}, True),
    "an empty scaling": ("Placement", ("spec", "scaling"), {}, True),
    "a least window alone": ("Placement", ("spec", "context"), {"minTokens": 301}, True),
    "a line feed after a pattern's end": ("Model", ("spec", "variants", 0, "sha256"), SHA + "\n", False),
    "digits of another script": ("Model", ("spec", "memory", "workspace"), "٣Gi", False),
    "a control character in a path": ("Node", ("spec", "engines", 0, "path"), "/a\x1bb", False),
    "a control character in a source": ("Model", ("spec", "variants", 0, "source"), "file:///a\nb", False),
    "a path with letters of all scripts": ("Node", ("spec", "engines", 0, "path"), "/模型/é 😀", True),
    "a number beyond 64 bits": ("Model", ("spec", "geometry", "weightsBytes"), 2**63, False),
    "the largest number": ("Model", ("spec", "geometry", "weightsBytes"), 2**63 - 1, True),
    "a fraction": ("Placement", ("spec", "replicas"), 1.5, False),
    "a switch as text": ("Placement", ("spec", "suspend"), "true", False),
    "a status with an unknown field": ("Placement", ("status",), {"weather": "fine"}, False),
    "a status of the wrong type": ("Placement", ("status",), {"replicas": "x"}, True),
    "no metadata": ("Placement", ("metadata",), None, False),
    "capitals in an annotation's domain": ("Model", ("metadata", "annotations"), {"A.example/b": ""}, True),
    "capitals in a label's domain": ("Model", ("metadata", "labels"), {"A.example/b": ""}, False),
    "a domain of 254 letters": ("Model", ("metadata", "labels"), {"b" * 254 + "/a": ""}, False),
    "annotations of 256 KiB": ("Model", ("metadata", "annotations"), {"a": "x" * 262_143}, True),
    "annotations beyond 256 KiB, in bytes": ("Model", ("metadata", "annotations"), {"a": "é" * 131_072}, False),
    "a namespace of what has none": ("Node", ("metadata", "namespace"), "A B", True),
    "a time that is none": ("Model", ("metadata", "creationTimestamp"), "yesterday", False),
    "a finalizer without a name": ("Model", ("metadata", "finalizers"), [""], False),
    "a finalizer that is null": ("Model", ("metadata", "finalizers"), [None], False),
    "an owner of nothing": ("Model", ("metadata", "ownerReferences"), [{}], False),
    "another name for the fleet": ("Fleet", ("metadata", "name"), "main", False),
    "a name of 53 letters": ("Placement", ("metadata", "name"), "a" * 53, True),
    "a name of 54 letters": ("Placement", ("metadata", "name"), "a" * 54, False),
    "a name of another script": ("Placement", ("metadata", "name"), "名前", False),
}


@pytest.mark.parametrize("case", CASES)
def test_both_stores_say_the_same_at_each_corner_that_was_found(door: ApiDoor, case: str) -> None:
    kind, path, value, is_taken = CASES[case]
    api, files = ask_both(door, put(whole_document(KINDS[kind]), Edge(path, value)))
    assert find_difference(api, files) == ""
    assert files.accepted is is_taken, files.text


def test_rules_run_beside_patterns_that_are_broken_and_not_beside_broken_types(door: ApiDoor) -> None:
    document = whole_document(KINDS["Placement"])
    document["spec"]["context"] = {"tokens": 300, "minTokens": 400}
    rule = "`spec.context.minTokens` must be at most `spec.context.tokens`"
    for name, rules in (("Capital", {rule}), (3, set[str]())):
        document["spec"]["modelRef"]["name"] = name
        api, files = ask_both(door, document)
        assert find_difference(api, files) == ""
        assert files.rules == rules


def test_some_edge_breaks_every_rule() -> None:
    """Rules that no document breaks are compared by nobody."""
    for name in sorted(WRITABLE_KINDS):
        kind = KINDS[name]
        document = whole_document(kind)
        wanted = {rule["message"] for rule in rules_below(render_schema(kind)["properties"]["spec"])}
        edges = [edge for edge in EDGES[name] if edge.path[0] == "spec"]
        found = {problem.message for edge in edges for problem in check_document(put(document, edge), kind)[1]}
        assert [rule for rule in wanted if not any(rule in message for message in found)] == []


def test_no_kind_that_people_write_has_a_rule_over_its_past() -> None:
    """Files mode knows no object before this one: such a rule would hold in Kubernetes alone."""
    for name in WRITABLE_KINDS:
        assert not [rule for rule in rules_below(render_schema(KINDS[name])) if "oldSelf" in rule["rule"]]


def rules_below(node: JsonSchema) -> Iterator[dict[str, str]]:
    yield from node.get(RULES, [])
    for child in (*node.get("properties", {}).values(), node.get("items"), node.get("additionalProperties")):
        if child:
            yield from rules_below(child)


# What differs, as docs/reference/modes.md says.


def test_only_kubernetes_refuses_a_namespace_that_is_not_there(door: ApiDoor) -> None:
    document = put(whole_document(KINDS["Model"]), Edge(("metadata", "namespace"), "nowhere"))
    api, files = ask_both(door, document)
    assert (api.accepted, api.text) == (False, 'namespaces "nowhere" not found')
    assert files.accepted


def test_only_files_mode_refuses_the_nul_character(door: ApiDoor) -> None:
    document = put(whole_document(KINDS["Model"]), Edge(("metadata", "annotations", "a"), "a\0b"))
    api, files = ask_both(door, document)
    assert api.accepted
    assert (files.accepted, files.text) == (False, "text must not hold the NUL character")


def test_only_files_mode_refuses_a_field_that_is_given_twice(control_plane: ControlPlane, door: ApiDoor) -> None:
    text = "apiVersion: covey.dev/v1alpha1\nkind: Placement\nmetadata: {name: m}\nspec:\n  modelRef: {name: m}\n"
    twice = text + "  replicas: 1\n  replicas: 2\n"
    taken = json.loads(control_plane.kubectl("apply", "--dry-run=server", "-o", "json", "-f", "-", text=twice))
    assert taken["spec"]["replicas"] == 2
    with pytest.raises(Exception, match="key 'replicas' must be given once in its mapping; got it on lines 6 and 7"):
        parse_documents({"f.yaml": twice.encode()})


def test_a_mapping_in_the_place_of_text_is_refused_deeper_by_kubernetes(door: ApiDoor) -> None:
    api, files = ask_both(door, put(whole_document(KINDS["Placement"]), Edge(("spec", "engines"), {"a": 1})))
    assert (api.fields, files.fields) == ({"spec.engines.a"}, {"spec.engines"})


def test_kubernetes_tells_unknown_fields_first_and_alone(door: ApiDoor) -> None:
    document = put(whole_document(KINDS["Placement"]), Edge(("spec", "replica"), 1))
    document = put(document, Edge(("spec", "suspend"), "yes"))
    api, files = ask_both(door, document)
    assert (api.fields, files.fields) == ({"spec.replica"}, {"spec.replica", "spec.suspend"})


def test_files_mode_tells_first_and_alone_what_it_cannot_read(door: ApiDoor) -> None:
    document = put(whole_document(KINDS["Model"]), Edge(("spec", "contextTokens"), 2**63))
    document = put(document, Edge(("spec", "tasks"), []))
    api, files = ask_both(door, document)
    assert (files.fields, files.text) == ({"spec.contextTokens"}, "number must fit 64 bits; got 9223372036854775808")
    assert api.fields == {"spec.contextTokens", "spec.tasks"}


def test_both_stores_have_words_for_objects_that_are_too_large(door: ApiDoor) -> None:
    model = whole_document(KINDS["Model"])
    for value, words in (
        ([1] * 4097, "`spec.geometry.kvHeadCounts` must have at most 4096 entries; got 4097 entries"),
        ([1] * 150_000, f"a document must hold at most {MAX_VALUES} values with its aliases written out"),
    ):
        api, files = ask_both(door, put(model, Edge(("spec", "geometry", "kvHeadCounts"), value)))
        assert find_difference(api, files) == ""
        assert files.text == words
    api, files = ask_both(door, put(model, Edge(("metadata", "name"), "é" * 1_000_000)))
    assert api.text == "Request entity too large: limit is 3145728"
    assert re.match(r"file must be at most 4194304 bytes; got 600\d{4}$", files.text)


def test_a_label_of_a_million_letters_is_refused_with_a_word_for_it(door: ApiDoor) -> None:
    document = put(whole_document(KINDS["Placement"]), Edge(("spec", "nodes", "selector"), {"a" * 1_000_000: "x"}))
    api, files = ask_both(door, document)
    assert "keys of `spec.nodes.selector` must be at most 128 characters" in api.text
    assert "a key must be at most 1024 characters long" in files.text
