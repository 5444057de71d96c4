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
from typing import Annotated, Any, cast

from covey_api.companion import Companion, CompanionRole
from covey_api.engines import HOST_POOL, Compute, EngineName, Lane, LaneState
from covey_api.kinds import Kind
from covey_api.meta import Document
from covey_api.model import (
    CompanionStatus,
    Geometry,
    Model,
    ModelStatus,
    ResolvedArtifact,
    Variant,
    VariantStatus,
)
from covey_api.node import MemoryPool, Node, NodeFacts, NodeStatus
from covey_api.registry import KINDS
from covey_api.units import Quantity, parse_quantity
from covey_controller.ports import InvalidSet
from covey_controller.reconcile.companions import explain_misfit
from covey_controller.stores.files.documents import parse_objects
from covey_controller.stores.files.strict import check_document
from covey_controller.stores.files.yaml_positions import YamlNode, parse_yaml
from pydantic import Field, ValidationError

from covey.documents import Documents
from covey.errors import CommandError, ExitCode
from covey.headers import read_source

# A managed build, as `covey fit` takes it: it keeps few rows of logits.
_MANAGED = "0" * 64
# What the engine calls a device; the pool has the same name.
_DEVICE_NAMES = {Compute.CUDA: "CUDA", Compute.ROCM: "ROCm", Compute.VULKAN: "Vulkan"}


class MachineDevice(Document):
    """One accelerator of a described machine."""

    compute: Compute
    memory: Quantity | None = None
    """Its own memory; absent for `Metal`, which fills the machine's."""


class Machine(Document):
    """What a machine is, in short."""

    memory: Quantity
    devices: Annotated[tuple[MachineDevice, ...], Field(max_length=16)] = ()


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
        status = _render_status(Machine.model_validate(machine))
    return node.model_copy(update={"status": status})


def _render_status(machine: Machine) -> NodeStatus:
    """What its agent would report. ValueError for a device that has too little or too much memory to it."""
    pools = [MemoryPool(name=HOST_POOL, total_bytes=parse_quantity(machine.memory))]
    lanes: list[Lane] = []
    counts = Counter[Compute]()
    for device in machine.devices:
        pool = _DEVICE_NAMES.get(device.compute)
        if (pool is None) != (device.memory is None):
            must = "must be given" if pool else "must be absent"
            raise ValueError(f"`memory` of a device with compute '{device.compute}' {must}")
        if pool is not None and device.memory is not None:
            pool = f"{pool}{counts[device.compute]}"
            counts[device.compute] += 1
            pools.append(MemoryPool(name=pool, total_bytes=parse_quantity(device.memory)))
        lanes.append(_lane(device.compute, pool or HOST_POOL))
        if device.compute is Compute.METAL:  # an agent offers it at home on Apple silicon
            lanes.append(_lane(device.compute, HOST_POOL, EngineName.MLX, ()))
    if not any(lane.compute is Compute.CPU for lane in lanes):
        lanes.append(_lane(Compute.CPU, HOST_POOL))
    # Neither system nor cores are asked for, and neither changes where something fits.
    facts = NodeFacts(os="", architecture="", cpu_cores=1, pools=tuple(pools))
    return NodeStatus(facts=facts, lanes=tuple(lanes))


def _lane(
    compute: Compute,
    pool: str,
    engine: EngineName = EngineName.LLAMA_SERVER,
    companions: tuple[CompanionRole, ...] = tuple(CompanionRole),
) -> Lane:
    return Lane(
        engine=engine,
        compute=compute,
        state=LaneState.INSTALLED,
        digest=_MANAGED,
        pool=pool,
        companions=companions,
    )


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
