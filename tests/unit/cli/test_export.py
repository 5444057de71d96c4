"""What `covey export` prints makes the same objects again, and says nothing that nobody wished for."""

import copy
from typing import Any

from covey.export import EXPORTED_KINDS, drop_defaults, render_documents
from covey.tables import render_json, render_yaml
from covey_api.kinds import Kind
from covey_api.meta import Condition, ConditionStatus
from covey_api.node import Node
from covey_api.registry import KINDS
from covey_api.schema import JsonSchema, render_schema
from covey_controller.ports import InvalidSet
from covey_controller.stores.files.documents import ParsedDocument, parse_documents
from covey_controller.stores.files.edit import plan_apply
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

API = "covey.dev/v1alpha1"
# Texts that YAML's versions read differently, beside what a name or label usually is.
AWKWARD = [
    "y",
    "n",
    "no",
    "Off",
    "0o17",
    "017",
    "1e3",
    "1_000",
    "12:30:45",
    "null",
    "~",
    "2026-01-01",
    ".inf",
    "0x1F",
    "",
]
LABELS = st.dictionaries(
    st.sampled_from(["zone", "example.com/tier", "y", "no", "0x1"]),
    st.one_of(
        st.sampled_from([text for text in AWKWARD if text.isalnum() or not text]),
        st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True),
    ),
    max_size=3,
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(["note", "example.com/why"]), st.one_of(st.sampled_from(AWKWARD), st.text(max_size=20)), max_size=2
)


def values_of(schema: JsonSchema) -> st.SearchStrategy[Any]:
    """Values that a schema allows, mostly: rules that it can't say are left to the parser."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "object" if "properties" in schema:
            required = schema.get("required", [])
            fields = {name: values_of(child) for name, child in schema["properties"].items()}
            return st.fixed_dictionaries(
                {name: child for name, child in fields.items() if name in required},
                optional={name: child for name, child in fields.items() if name not in required},
            )
        case "object":
            return LABELS
        case "array":
            longest = min(2, schema.get("maxItems", 2))
            return st.lists(values_of(schema["items"]), min_size=schema.get("minItems", 0), max_size=longest)
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema.get("minimum", 0), min(schema.get("maximum", 4096), 4096))
        case _:
            return texts_of(schema)


def texts_of(schema: JsonSchema) -> st.SearchStrategy[str]:
    if "pattern" in schema:
        pattern: str = schema["pattern"].removesuffix("$")
        return st.from_regex(rf"{pattern}\Z", fullmatch=True).filter(
            lambda text: len(text) <= schema.get("maxLength", 64)
        )
    return st.sampled_from([text for text in AWKWARD if text])


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(EXPORTED_KINDS))
    metadata: dict[str, Any] = {"name": kind.ONLY_NAME or draw(st.sampled_from(["a", "b-1", "y", "no", "0x1", "1e3"]))}
    if kind.NAMESPACED and draw(st.booleans()):
        metadata["namespace"] = draw(st.sampled_from(["default", "team", "no"]))
    metadata |= {"labels": draw(LABELS), "annotations": draw(ANNOTATIONS)}
    spec = render_schema(kind)["properties"]["spec"]
    return {"apiVersion": API, "kind": kind.__name__, "metadata": metadata, "spec": draw(values_of(spec))}


def parse(text: str) -> tuple[ParsedDocument, ...]:
    return parse_documents({"x.yaml": text.encode()})


def as_stored(found: Kind) -> dict[str, Any]:
    """As the control API shows it: with all that the server adds."""
    server = {"uid": "u", "resource_version": "7", "generation": 3, "creation_timestamp": "2026-01-01T00:00:00Z"}
    condition = Condition(type="Ready", status=ConditionStatus.TRUE, reason="Serving")
    kind: Any = found
    status = kind.status.model_copy(update={"observed_generation": 3, "conditions": (condition,)})
    changed = {"metadata": found.metadata.model_copy(update=server), "status": status}
    return found.model_copy(update=changed).to_wire()


@settings(max_examples=150, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(documents())
def test_an_exported_object_is_the_same_object_again(document: dict[str, Any]) -> None:
    source = render_json(document)
    try:
        (before,) = parse(source)
    except InvalidSet:
        assume(False)
        return
    exported = render_documents(type(before.object), [as_stored(before.object)])
    if isinstance(before.object, Node) and not exported:
        assert before.object == Node(
            metadata=before.object.metadata.model_copy(update={"labels": {}, "annotations": {}})
        )
        return
    for text in (render_yaml(exported[0]), render_json(exported[0])):
        (after,) = parse(text)
        assert (after.key, after.object) == (before.key, before.object)
        # Applied to the source it came from, it changes nothing.
        edit = plan_apply({"x.yaml": source.encode()}, [before], [after], text, None, frozenset())
        assert [one.outcome for one in edit.results] == ["unchanged"]
        assert edit.files == {}
    assert set(exported[0]) <= {"apiVersion", "kind", "metadata", "spec"}
    assert set(exported[0]["metadata"]) <= {"name", "namespace", "labels", "annotations"}


def test_nothing_that_equals_a_default_is_exported() -> None:
    schema = render_schema(KINDS["Placement"])["properties"]["spec"]
    (written,) = parse(
        f"apiVersion: {API}\nkind: Placement\nmetadata: {{name: p}}\n"
        "spec: {modelRef: {name: m}, replicas: 1, rollout: {drainSeconds: 5}}\n"
    )
    spec = drop_defaults(as_stored(written.object)["spec"], schema)
    assert spec == {"modelRef": {"name": "m"}, "rollout": {"drainSeconds": 5}}


def test_what_a_list_is_filled_with_is_not_exported() -> None:
    variant = {"name": "q4", "format": "Gguf", "source": "file:///m.gguf", "engines": ["LlamaServer"]}
    document: dict[str, Any] = {"apiVersion": API, "kind": "Model", "metadata": {"name": "m"}}
    document |= {"spec": {"tasks": ["Chat"], "variants": [variant]}}
    (written,) = parse(render_json(document))
    (exported,) = render_documents(KINDS["Model"], [as_stored(written.object)])
    assert exported["spec"]["variants"] == [variant]
    later = as_stored(written.object)
    later["spec"]["fieldOfALaterVersion"] = 1
    assert render_documents(KINDS["Model"], [later])[0]["spec"]["fieldOfALaterVersion"] == 1


def test_documents_are_sorted_and_what_nobody_wishes_for_is_left_out() -> None:
    (node,) = parse(f"apiVersion: {API}\nkind: Node\nmetadata: {{name: b}}\n")
    joined = as_stored(node.object)
    limited = copy.deepcopy(joined)
    limited["metadata"]["name"] = "a"
    limited["spec"] = {**joined["spec"], "unschedulable": True}
    leaving = copy.deepcopy(limited)
    leaving["metadata"] |= {"name": "c", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    last = copy.deepcopy(limited)
    last["metadata"]["name"] = "z"
    exported = render_documents(Node, [last, leaving, joined, limited])
    assert [document["metadata"]["name"] for document in exported] == ["a", "z"]
