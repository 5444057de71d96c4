"""The kinds as kubectl shows them, on a real API server: applied, explained, listed, scaled, waited for, upgraded."""

import copy
import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from covey.tables import render_cell, render_objects
from covey_api.kinds import Kind
from covey_api.placement import Placement
from covey_api.registry import KINDS
from covey_api.schema import JsonSchema, render_crd, render_schema
from covey_api.source import SOURCE_WORDS
from covey_controller.ports import InvalidSet
from covey_controller.stores.files.documents import parse_documents
from kit.edges import whole_document
from testbed.kube.controlplane import CRDS, ControlPlane

ROOT = Path(__file__).resolve().parents[2]
# kubectl's client-side apply keeps the whole document in an annotation; Kubernetes ends annotations there.
MAX_ANNOTATION_BYTES = 262_144
# A new CRD is read by within a second or two on an idle machine.
CRD_SECONDS = 60.0
MERGE = {"content-type": "application/merge-patch+json"}
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Serving",
    "message": "2 of 2 replicas are ready",
    "observedGeneration": 1,
    "lastTransitionTime": "2027-01-31T00:00:00Z",
}
STATUSES: dict[str, dict[str, Any]] = {
    "Model": {"conditions": [READY | {"reason": "Resolved"}]},
    "Placement": {
        "ready": "2/2",
        "replicas": 2,
        "readyReplicas": 2,
        "selector": "covey.dev/placement=m",
        "contextTokens": 8192,
        "engine": "LlamaServer/Cpu",
        "nodes": ["a", "b"],
        "nodeNames": "a,b",
        "conditions": [READY],
    },
    "Node": {
        "version": "0.1.0",
        "facts": {"os": "linux", "architecture": "x86_64", "cpuCores": 8, "pools": [{"name": "Host", "totalBytes": 9}]},
        "lanes": [{"engine": "LlamaServer", "compute": c, "state": "Installed"} for c in ("Cpu", "Cuda")],
        "laneNames": "LlamaServer/Cpu,LlamaServer/Cuda",
        "unusableNames": "Mlx",
        "conditions": [READY | {"reason": "Reporting"}],
    },
    "Instance": {
        "phase": "Failed",
        "endpoint": "http://127.0.0.1:1",
        "members": [{"name": "0", "node": "a", "phase": "Failed", "progress": "load 50 %", "message": "out of memory"}],
    },
    "Fleet": {},
    "AccessKey": {},
}


def path_of(kind: type[Kind], name: str = "", namespace: str = "default") -> str:
    scope = f"/namespaces/{namespace}" if kind.NAMESPACED else ""
    return f"/apis/covey.dev/v1alpha1{scope}/{kind.PLURAL}{f'/{name}' if name else ''}"


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """One object of each kind, with a status as the controller writes it."""
    control_plane.clear("default")
    with control_plane.client() as client:
        for name, kind in KINDS.items():
            document = whole_document(kind)
            client.post(path_of(kind), json=document).raise_for_status()
            status = {"status": {"observedGeneration": 1} | STATUSES[name]}
            path = f"{path_of(kind, document['metadata']['name'])}/status"
            client.patch(path, content=json.dumps(status), headers=MERGE).raise_for_status()
    yield control_plane
    control_plane.clear("default")


def walk(node: JsonSchema, path: str) -> Iterator[tuple[str, JsonSchema]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if keyword in node:
            yield from walk(node[keyword], path)


def table(text: str) -> list[list[str]]:
    """Cells of what kubectl prints; every cell has a value here, and columns are three spaces apart."""
    return [re.split(r" {2,}", line.rstrip()) for line in text.rstrip().splitlines()]


def test_crds_are_applied_from_either_side_without_a_warning(plane: ControlPlane) -> None:
    for flags in (["--server-side", "--force-conflicts"], []):
        said = plane.kubectl("apply", *flags, "--dry-run=server", "-f", str(CRDS), check=False)
        # kubectl takes over what was applied from the other side; that is its own matter.
        warnings = [
            line for line in said.splitlines() if "Warning" in line and "last-applied-configuration" not in line
        ]
        assert warnings == []
        assert said.count("(server dry run)") == len(KINDS), said


def test_crds_fit_into_the_annotation_of_a_client_side_apply() -> None:
    sizes = {path.name: len(json.dumps(yaml.safe_load(path.read_text()))) for path in CRDS.glob("*.yaml")}
    assert max(sizes.values()) < MAX_ANNOTATION_BYTES // 4, sizes


def documents_in_docs() -> list[tuple[str, str]]:
    """Each YAML block of the documentation that is an object of ours, and each example that is a source."""
    found = [(str(path.relative_to(ROOT)), path.read_text()) for path in sorted(ROOT.glob("examples/[0-9]*/**/*.yaml"))]
    for path in sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]):
        for index, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)):
            if "apiVersion: covey.dev/" in block:
                found.append((f"{path.relative_to(ROOT)}#{index}", block))
    return found


@pytest.mark.parametrize(("place", "text"), documents_in_docs(), ids=[place for place, _ in documents_in_docs()])
def test_every_document_in_examples_and_docs_is_taken(plane: ControlPlane, place: str, text: str) -> None:
    ours = [it for it in yaml.safe_load_all(text) if it and it["apiVersion"].startswith("covey.dev/")]
    assert ours, place
    said = plane.kubectl("apply", "--dry-run=server", "-f", "-", text=yaml.safe_dump_all(ours))  # pyright: ignore[reportUnknownMemberType]  # its stubs
    assert said.count("(server dry run)") == len(ours)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_kubectl_explains_every_field(plane: ControlPlane, kind: type[Kind]) -> None:
    undescribed = [
        path
        for path, node in walk(render_schema(kind, is_described=True), kind.SINGULAR)
        if not node.get("description") and node["type"] == "object" and not path.endswith(".metadata")
    ]
    assert undescribed == []
    for path in (kind.SINGULAR, f"{kind.SINGULAR}.spec", f"{kind.SINGULAR}.status.conditions"):
        text = plane.kubectl("explain", path)
        assert "<no description>" not in text, text
    assert "<empty>" not in plane.kubectl("explain", f"{kind.SINGULAR}.status")


def test_kubectl_explains_a_field_with_its_words_type_and_default(plane: ControlPlane) -> None:
    assert "The window of one slot" in plane.kubectl("explain", "placement.spec.context")
    text = plane.kubectl("explain", "plc.spec.rollout.strategy")
    assert "FIELD: strategy <string>" in text
    assert re.search(r"ENUM:\s+Surge\s+Recreate\s", text), text
    assert "`Surge` starts the new revision beside the old one" in text


@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_kubectl_and_covey_print_the_same_columns(plane: ControlPlane, kind: type[Kind], wide: bool) -> None:
    flags = ["-o", "wide"] if wide else []
    theirs = table(plane.kubectl("get", kind.PLURAL, *flags))
    item = json.loads(plane.kubectl("get", kind.PLURAL, "-o", "json"))["items"][0]
    columns = [column for column in kind.COLUMNS if wide or not column.wide]
    assert theirs[0] == ["NAME", *(column.name.upper() for column in columns)]
    now = datetime.now(UTC)
    for column, cell in zip(columns, theirs[1][1:], strict=True):
        ours = render_cell(item, column, now)
        if column.type != "date":
            assert cell == ours, column.name
    ours_whole = render_objects(kind, [item], wide=wide, all_namespaces=False, prefix=False)
    assert table(ours_whole)[0] == theirs[0]


def test_placements_are_told_in_the_columns_that_a_person_wants(plane: ControlPlane) -> None:
    head, row = table(plane.kubectl("get", "placements", "-o", "wide"))
    assert head == ["NAME", "MODEL", "READY", "CONTEXT", "ENGINE", "AGE", "NODES", "REASON"]
    assert row[:5] + row[6:] == ["m", "a", "2/2", "8192", "LlamaServer/Cpu", "a,b", "Serving"]
    assert table(plane.kubectl("get", "cnodes"))[1][4] == "LlamaServer/Cpu,LlamaServer/Cuda"


def test_an_object_that_nobody_has_looked_at_yet_leaves_its_columns_empty(plane: ControlPlane) -> None:
    plane.kubectl("apply", "-f", "-", text=json.dumps(small_placement("fresh")))
    assert re.split(r" +", plane.kubectl("get", "placement", "fresh", "--no-headers").strip())[:2] == ["fresh", "m"]
    said = plane.kubectl("wait", "--for=condition=Ready", "--timeout=1s", "placement/fresh", check=False)
    assert "timed out waiting for the condition on placements/fresh" in said
    plane.kubectl("delete", "placement", "fresh")


def test_one_word_lists_everything_of_covey(plane: ControlPlane) -> None:
    listed = plane.kubectl("get", "covey", "-A", "-o", "name").split()
    assert sorted(listed) == sorted(
        f"{kind.__name__.lower()}.covey.dev/{kind.ONLY_NAME or 'm'}" for kind in KINDS.values()
    )


def test_kubectls_own_nodes_stay_its_own(plane: ControlPlane) -> None:
    assert "node.covey.dev/m" in plane.kubectl("get", "cnodes", "-o", "name")
    for word in ("nodes", "node", "no"):
        assert "m" not in plane.kubectl("get", word, "-o", "name", check=False).split("/")


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_name_of_a_kind_finds_it(plane: ControlPlane, kind: type[Kind]) -> None:
    for word in (kind.PLURAL, kind.SINGULAR, *kind.SHORT_NAMES):
        assert f"{kind.__name__.lower()}.covey.dev/" in plane.kubectl("get", word, "-o", "name")


def test_kubectl_scales_and_waits(plane: ControlPlane) -> None:
    plane.kubectl("apply", "-f", "-", text=json.dumps(small_placement("s")))
    assert "scaled" in plane.kubectl("scale", "placement/s", "--replicas=3")
    assert json.loads(plane.kubectl("get", "plc", "s", "-o", "json"))["spec"]["replicas"] == 3
    refused = plane.kubectl("scale", "placement/s", "--replicas=65", check=False)
    assert "spec.replicas in body should be less than or equal to 64" in refused
    with plane.client() as client:
        status = {"status": {"observedGeneration": 2, "conditions": [READY | {"observedGeneration": 2}]}}
        client.patch(f"{path_of(Placement, 's')}/status", content=json.dumps(status), headers=MERGE).raise_for_status()
    plane.kubectl("wait", "--for=condition=Ready", "--timeout=10s", "placement/s")
    plane.kubectl("delete", "placement", "s")


def test_kubectl_describes_a_placement_readably(plane: ControlPlane) -> None:
    text = plane.kubectl("describe", "placement", "m")
    for line in ("Ready:            2/2", "Reason:                Serving", "Node Names:      a,b"):
        assert re.sub(r" +", " ", line) in re.sub(r" +", " ", text), text


def small_placement(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "covey.dev/v1alpha1",
        "kind": "Placement",
        "metadata": {"name": name},
        "spec": {"modelRef": {"name": "m"}, **spec},
    }


BAD = [
    ({"nodes": {"selector": {"zone": "a b"}}}, "must be letters, digits, '-', '_' and '.', with a letter or digit at"),
    ({"context": {"tokens": 256, "minTokens": 512}}, "`spec.context.minTokens` must be at most `spec.context.tokens`"),
    (
        {"engines": ["Vlllm"]},
        'spec.engines[0]: Unsupported value: "Vlllm": supported values: "LlamaServer", "LlamaCpp", "Mlx", "Vllm"',
    ),
    ({"replicas": 65}, "spec.replicas in body should be less than or equal to 64"),
    ({"kvCache": {"type": "F32"}}, 'Unsupported value: "F32": supported values: "F16", "Q8_0", "Q4_0"'),
]


@pytest.mark.parametrize(("spec", "words"), BAD)
@pytest.mark.parametrize("flags", [[], ["--server-side"]], ids=["client-side", "server-side"])
def test_kubectl_says_what_must_hold(plane: ControlPlane, flags: list[str], spec: Any, words: str) -> None:
    said = plane.kubectl("apply", *flags, "-f", "-", text=json.dumps(small_placement("bad", **spec)), check=False)
    assert words in said, said


@pytest.mark.parametrize("flags", [[], ["--server-side"]], ids=["client-side", "server-side"])
def test_kubectl_names_a_field_that_there_is_not(plane: ControlPlane, flags: list[str]) -> None:
    text = json.dumps(small_placement("bad", replica=2))
    said = plane.kubectl("apply", *flags, "-f", "-", text=text, check=False)
    assert 'unknown field "spec.replica"' in said or ".spec.replica: field not declared in schema" in said


def test_a_source_that_is_none_is_refused_in_words_and_not_by_a_pattern(plane: ControlPlane) -> None:
    document = whole_document(KINDS["Model"])
    document["spec"]["variants"][0]["source"] = "store://org/model"
    said = plane.kubectl("apply", "--dry-run=server", "-f", "-", text=json.dumps(document), check=False)
    assert f"spec.variants[0].source: Invalid value: \"string\": {SOURCE_WORDS}; got 'store://org/model'" in said


def test_an_upgrade_gives_stored_objects_the_defaults_that_came_with_it(plane: ControlPlane) -> None:
    """An older CRD without `concurrency`, an object made under it, and the CRD of today."""
    crd = render_crd(Placement)
    older = copy.deepcopy(crd)
    spec = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["concurrency"]
    with plane.client() as client:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
        put_crd(client, path, older)
        client.post(path_of(Placement), json=small_placement("old")).raise_for_status()
        assert "concurrency" not in client.get(path_of(Placement, "old")).json()["spec"]
        put_crd(client, path, crd)
        found = client.get(path_of(Placement, "old")).json()
        assert found["spec"]["concurrency"] == Placement.model_validate(found).spec.concurrency == 4
        client.delete(path_of(Placement, "old")).raise_for_status()


def test_what_a_newer_version_wrote_is_read_without_what_is_unknown(plane: ControlPlane) -> None:
    """A newer CRD, an object and a status made under it, and the CRD of today again: a downgrade."""
    crd = render_crd(Placement)
    newer = copy.deepcopy(crd)
    properties = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    for part in ("spec", "status"):
        properties[part]["properties"]["weather"] = {"type": "string", "maxLength": 9}
    with plane.client() as client:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
        put_crd(client, path, newer)
        client.post(path_of(Placement), json=small_placement("new", weather="fine")).raise_for_status()
        status = {"status": {"observedGeneration": 1, "ready": "1/1", "weather": "fine"}}
        answer = client.patch(f"{path_of(Placement, 'new')}/status", content=json.dumps(status), headers=MERGE)
        assert answer.raise_for_status().json()["status"]["weather"] == "fine"
        assert Placement.model_validate(answer.json()).status.ready == "1/1"
        put_crd(client, path, crd)
        found = client.get(path_of(Placement, "new")).json()
        assert "weather" not in found["spec"] | found["status"]
        assert Placement.model_validate(found).status.ready == "1/1"
        client.delete(path_of(Placement, "new")).raise_for_status()


def put_crd(client: httpx.Client, path: str, crd: dict[str, Any]) -> None:
    """Replace a CRD and wait until the API server reads objects by it."""
    version = client.get(path).json()["metadata"]["resourceVersion"]
    metadata = crd["metadata"] | {"resourceVersion": version}
    client.put(path, json=crd | {"metadata": metadata}).raise_for_status()
    known = set(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])
    tried = {"weather", "probe", "concurrency"}
    deadline = time.monotonic() + CRD_SECONDS
    while True:
        answer = client.post(
            path_of(Placement),
            params={"dryRun": "All", "fieldValidation": "Strict"},
            json=small_placement("probe", **dict.fromkeys(tried, "x")),
        ).text
        if set(re.findall(r'unknown field \\"spec\.(\w+)', answer)) == tried - known:
            return
        assert time.monotonic() < deadline, f"the API server must read by the new CRD; it says {answer}"
        time.sleep(0.05)


def test_only_kubernetes_lets_a_stored_value_be_that_a_newer_rule_refuses(plane: ControlPlane) -> None:
    """The API server takes an update that leaves such a value as it is; a document is always checked whole."""
    crd = render_crd(Placement)
    older = copy.deepcopy(crd)
    replicas = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["replicas"]
    replicas["maximum"] = 1000
    with plane.client() as client:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
        del older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["concurrency"]
        put_crd(client, path, older)
        client.post(path_of(Placement), json=small_placement("many", replicas=100)).raise_for_status()
        put_crd(client, path, crd)
        patch = json.dumps({"spec": {"suspend": True}})
        client.patch(path_of(Placement, "many"), content=patch, headers=MERGE).raise_for_status()
        refused = client.patch(path_of(Placement, "many"), content='{"spec": {"replicas": 101}}', headers=MERGE)
        assert "should be less than or equal to 64" in refused.text
        client.delete(path_of(Placement, "many")).raise_for_status()
    document = small_placement("many", replicas=100, suspend=True)
    with pytest.raises(InvalidSet, match=r"`spec.replicas` must be at most 64; got 100"):
        parse_documents({"many.json": json.dumps(document).encode()})
