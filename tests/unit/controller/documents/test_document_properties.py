"""However a document is damaged, it is parsed or refused, and each refusal can be found in the file."""

import copy
import json
from typing import Any, cast

import yaml
from covey_controller.ports import InvalidSet, SourceError
from covey_controller.stores.files.documents import MAX_ERRORS, parse_documents
from hypothesis import given
from hypothesis import strategies as st

API = "covey.dev/v1alpha1"
GEOMETRY = {
    "architecture": "llama",
    "weightsBytes": 1000,
    "layerCount": 2,
    "contextTokens": 512,
    "embeddingLength": 64,
    "headCount": 2,
    "vocabularySize": 100,
    "kvHeadCounts": [1, 1],
    "keyLength": 32,
    "valueLength": 32,
}
VARIANT = {"name": "a", "format": "Gguf", "source": "file:///a.gguf", "sha256": "0" * 64, "engines": ["LlamaServer"]}
DOCUMENTS: list[dict[str, Any]] = [
    {
        "apiVersion": API,
        "kind": "Model",
        "metadata": {"name": "m", "namespace": "x", "labels": {"a": "b"}, "annotations": {"example.com/a": "b"}},
        "spec": {
            "aliases": ["org/m:1"],
            "tasks": ["Chat"],
            "contextTokens": 512,
            "variants": [VARIANT, VARIANT | {"name": "b"}],
            "geometry": GEOMETRY,
            "memory": {"workspace": "1Gi"},
        },
    },
    {
        "apiVersion": API,
        "kind": "Placement",
        "metadata": {"name": "p"},
        "spec": {
            "modelRef": {"name": "m"},
            "replicas": 2,
            "engines": ["LlamaServer"],
            "nodes": {
                "selector": {"example.com/zone": "a"},
                "include": ["a"],
                "exclude": ["b"],
                "tolerations": [{"key": "k", "value": "v"}],
            },
            "context": {"tokens": 512, "minTokens": 256},
            "kvCache": {"type": "Q8_0"},
            "rollout": {"strategy": "Recreate", "drainSeconds": 5},
            "timeouts": {"startupSeconds": 9},
            "suspend": True,
        },
    },
    {
        "apiVersion": API,
        "kind": "Node",
        "metadata": {"name": "a"},
        "spec": {
            "unschedulable": True,
            "taints": [{"key": "example.com/k", "value": "v", "effect": "NoSchedule"}],
            "reserve": {"memory": "2Gi"},
            "engines": [{"engine": "LlamaServer", "path": "/bin/x", "provisioning": "Off", "disabled": True}],
        },
    },
    {"apiVersion": API, "kind": "Fleet", "metadata": {"name": "default"}, "spec": {"kvCache": {"type": "F16"}}},
    {
        "apiVersion": API,
        "kind": "AccessKey",
        "metadata": {"name": "k"},
        "spec": {"hash": "sha256:" + "0" * 64, "expiry": "2027-01-31T00:00:00Z"},
    },
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(max_size=8),
    st.sampled_from(["Chat", "LlamaServer", "name", "1Gi", "a" * 70, "a\n", "sk-covey-x"]),
)
VALUES = st.recursive(
    SCALARS, lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3)
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a document."""
    match value:
        case dict():
            keys: list[Any] = list(cast("dict[str, Any]", value))
        case list():
            keys = list(range(len(cast("list[Any]", value))))
        case _:
            return []
    found: list[tuple[Any, Any]] = []
    for key in keys:
        found += [(value, key), *places(value[key])]
    return found


@st.composite
def damaged_documents(draw: st.DrawFn) -> dict[str, Any]:
    document = copy.deepcopy(draw(st.sampled_from(DOCUMENTS)))
    for _ in range(draw(st.integers(0, 3))):
        container, key = draw(st.sampled_from(places(document)))
        match draw(st.sampled_from(["replace", "remove", "add", "wrap"])):
            case "replace":
                container[key] = draw(VALUES)
            case "remove":
                del container[key]
            case "add" if isinstance(container, dict):
                container[draw(st.text(max_size=8))] = draw(VALUES)
            case _:
                container[key] = [container[key], copy.deepcopy(container[key])]
        if not places(document):
            break
    return document


def errors_of(data: bytes) -> tuple[SourceError, ...]:
    """What is wrong with a set: nothing, or errors that a person can find in it."""
    try:
        parse_documents({"folder/file.yaml": data})
    except InvalidSet as invalid:
        errors = invalid.errors
    else:
        return ()
    lines = data.count(b"\n") + data.count(b"\r") + 1
    assert 0 < len(errors) <= MAX_ERRORS
    for error in errors:
        assert error.file == "folder/file.yaml"
        assert 1 <= error.line <= lines
        assert error.message
        assert "\n" not in error.message
        assert "sk-covey-x" not in error.message
    return errors


def test_the_documents_that_are_damaged_below_are_valid() -> None:
    assert errors_of("\n---\n".join(json.dumps(document) for document in DOCUMENTS).encode()) == ()


@given(damaged_documents())
def test_a_damaged_document_is_parsed_or_refused_with_places(document: dict[str, Any]) -> None:
    text = yaml.safe_dump(document, allow_unicode=True)  # pyright: ignore[reportUnknownMemberType]  # its stubs
    for error in errors_of(text.encode()):
        assert error.field or error.found == "NUL"  # a key that can't be one has no path


@given(st.sampled_from(DOCUMENTS), st.integers(0, 2000), st.binary(min_size=1, max_size=3))
def test_damaged_text_is_parsed_or_refused_with_places(document: dict[str, Any], at: int, bytes_there: bytes) -> None:
    text = json.dumps(document, indent=1).encode()
    at %= len(text)
    errors_of(text[:at] + bytes_there + text[at + len(bytes_there) :])


@given(st.binary(max_size=60) | st.text(alphabet="a1: -[]{}&*!|>'\"\n\t#%<?,", max_size=60).map(str.encode))
def test_any_bytes_are_parsed_or_refused_with_places(data: bytes) -> None:
    errors_of(data)
