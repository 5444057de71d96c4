"""A fleet that exists as a description only, read from files: Nodes with what they are, Models with what they need.

A Node is described by `status`, as `covey get nodes -o yaml` prints it, or shortly by `machine`, which stands beside
`spec` and in such files alone. Rejected: a kind of its own (its taints, labels and reserve are a Node's), and the short
form in `status` (a real document could then say what no agent ever reports). Models get their geometry from
`spec.geometry` or from the header, as `covey fit` reads it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from covey_api.companion import Companion, CompanionRole
from covey_api.kinds import Kind
from covey_api.model import (
    CompanionStatus,
    Geometry,
    Model,
    ModelStatus,
    ResolvedArtifact,
    Variant,
    VariantStatus,
)
from covey_api.node import Node, NodeStatus
from covey_api.registry import KINDS
from covey_controller.ports import InvalidSet
from covey_controller.reconcile.companions import explain_misfit
from covey_controller.stores.files.documents import parse_objects
from covey_controller.stores.files.strict import check_document
from covey_controller.stores.files.yaml_positions import YamlNode, parse_yaml
from pydantic import ValidationError

from covey.described_machine import Machine, render_status
from covey.documents import Documents
from covey.errors import CommandError, ExitCode
from covey.headers import read_source


@dataclass(frozen=True, slots=True)
class DescribedFleet:
    nodes: tuple[Node, ...]
    """Each with facts and lanes in its status."""
    documents: tuple[Kind, ...]
    """Everything else; Models know their geometry, or why it can't be read."""


def read_described_fleet(fleet: Documents, documents: Documents, namespace: str) -> DescribedFleet:
    """`namespace`: of documents that name none. CommandError with file and line of what is wrong."""
    return describe(read_entries((*fleet.texts, *documents.texts)), namespace)


def describe(entries: Iterable[tuple[str, YamlNode]], namespace: str) -> DescribedFleet:
    """The same of documents that are composed already, each with the name of its file."""
    nodes: list[Node] = []
    others: dict[object, Kind] = {}
    for file, entry in entries:
        item = _object(file, entry, namespace)
        if isinstance(item, Node):
            nodes.append(item)
        else:
            others[item.key] = _with_geometry(item) if isinstance(item, Model) else item
    if twice := [name for name, count in Counter(node.metadata.name for node in nodes).items() if count > 1]:
        raise CommandError(f"node '{twice[0]}' must be described once", ExitCode.WRONG_USE)
    return DescribedFleet(tuple(nodes), tuple(others.values()))


def read_entries(texts: Iterable[tuple[str, str]]) -> Iterator[tuple[str, YamlNode]]:
    """Every document of these texts. CommandError with file and line of what is no YAML."""
    for file, text in texts:
        source = parse_yaml(text.encode())
        for problem in source.problems:
            raise CommandError(f"{file}:{problem.line}: {problem.message}", ExitCode.WRONG_USE)
        for node in source.documents:
            for entry in _entries(node):
                yield file, entry


def _entries(node: YamlNode) -> Iterator[YamlNode]:
    """Entries of a `List`, as `covey get -o yaml` prints several objects."""
    items = node.fields.get("items")
    is_list = items is not None and "kind" in node.fields and node.fields["kind"].value == "List"
    yield from items.entries if items is not None and is_list else (node,)


def _object(file: str, node: YamlNode, namespace: str) -> Kind:
    value: Any = node.value
    if not isinstance(value, dict):
        raise _wrong(file, node.line, "a document must be a mapping with `apiVersion`, `kind` and `metadata`")
    document = dict(cast("dict[str, Any]", value))
    kind = KINDS.get(str(document.get("kind")))
    described = {name: document.pop(name, None) for name in ("machine", "status")} if kind is Node else {}
    if kind is not None and kind.NAMESPACED and isinstance(document.get("metadata"), dict):
        document["metadata"] = {"namespace": namespace} | document["metadata"]
    if kind is not None:
        for problem in check_document(document, kind)[1]:
            raise _wrong(file, node.line_of(problem.path, key=problem.at_key), problem.message)
    try:
        (item,) = parse_objects(json.dumps(document), file)
        return _with_status(item, described) if isinstance(item, Node) else item
    except InvalidSet as invalid:
        raise _wrong(file, node.line, invalid.errors[0].message) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise _wrong(file, node.line, f"`machine` or `status` of a Node: `{field}`: {first['msg']}") from None
    except ValueError as error:
        raise _wrong(file, node.line, str(error)) from None


def _wrong(file: str, line: int, message: str) -> CommandError:
    return CommandError(f"{file}:{line}: {message}", ExitCode.WRONG_USE)


def _with_status(node: Node, described: Mapping[str, Any]) -> Node:
    """ValueError or ValidationError if it isn't said, once, what the machine is."""
    machine, status = described["machine"], NodeStatus.model_validate(described["status"] or {})
    if (machine is None) == (status.facts is None):
        raise ValueError(
            f"node '{node.metadata.name}' must say what it is by `machine` (such as `machine: {{memory: 64Gi}}`) or by "
            "`status.facts` and `status.lanes`"
        )
    if machine is not None:
        status = render_status(Machine.model_validate(machine), node.spec)
    return node.model_copy(update={"status": status})


def _with_geometry(model: Model) -> Model:
    known = model.spec.geometry
    variants = tuple(_read_variant(each, known) for each in model.spec.variants)
    return model.model_copy(update={"status": ModelStatus(variants=variants)})


def _read_variant(variant: Variant, known: Geometry | None) -> VariantStatus:
    try:
        geometry = known or read_source(variant.source).geometry
    except CommandError as error:
        return VariantStatus(name=variant.name, source=variant.source, error=str(error)[:1024])
    if error := explain_misfit(None, geometry):
        return VariantStatus(name=variant.name, source=variant.source, error=error)
    return VariantStatus(
        name=variant.name,
        source=variant.source,
        artifact=_artifact(variant, geometry),
        geometry=geometry,
        companions=tuple(_read_companion(role, each) for role, each in variant.companions),
    )


def _read_companion(role: CompanionRole, companion: Companion) -> CompanionStatus:
    try:
        geometry = read_source(companion.source).geometry
    except CommandError as error:
        return CompanionStatus(role=role, source=companion.source, error=str(error)[:1024])
    error = explain_misfit(role, geometry)
    if error:
        return CompanionStatus(role=role, source=companion.source, error=error)
    artifact = _artifact(companion, geometry)
    return CompanionStatus(role=role, source=companion.source, artifact=artifact, geometry=geometry)


def _artifact(named: Variant | Companion, geometry: Geometry) -> ResolvedArtifact:
    return ResolvedArtifact(
        source=named.source,
        name=named.source.rsplit("/", 1)[-1][-255:],
        size_bytes=max(1, geometry.weights_bytes),
        # Nothing is fetched by it: it tells one artifact from another.
        sha256=named.sha256 or hashlib.sha256(named.source.encode()).hexdigest(),
    )
