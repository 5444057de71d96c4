"""One plan of a large fleet: 200 nodes, 100 placements. Prints a JSON line per figure; run by `make bench`.

`first`: everything has to be placed. `quiet`: everything runs as wished, which is what a leader pays every few seconds.
"""

import json
import statistics
import time
from dataclasses import replace
from functools import partial

from covey_api.engines import ArtifactFormat, Compute, EngineName, Lane, LaneState, Task
from covey_api.instance import Instance, MemberPhase
from covey_api.kinds import Kind
from covey_api.messages import MemberReport, Report
from covey_api.meta import ObjectMeta
from covey_api.model import Archive, Geometry, Model, ModelSpec, ModelStatus, ResolvedArtifact, Variant, VariantStatus
from covey_api.node import MemoryPool, Node, NodeFacts
from covey_api.placement import ModelReference, Placement, PlacementSpec
from covey_controller.reconcile.outcomes import CreateInstance, Plan
from covey_controller.reconcile.plan import plan
from covey_controller.reconcile.world import AgentView, Memory, Published, World
from covey_controller.seal import seal_instance

NODES, PLACEMENTS, REPLICAS, ROUNDS = 200, 100, 2, 5
GIB = 2**30
NOW = 1000.0


def make_model(name: str) -> Model:
    source = f"file:///models/{name}.gguf"
    artifact = ResolvedArtifact(
        source=source,
        name=f"{name}.gguf",
        size_bytes=4 * GIB,
        archive=Archive(filename=f"{name}.whl", sha256="a" * 64, size_bytes=4 * GIB),
    )
    geometry = Geometry(
        architecture="llama",
        weights_bytes=4 * GIB,
        layer_count=32,
        context_tokens=32_768,
        embedding_length=4096,
        head_count=32,
        vocabulary_size=128_000,
        kv_head_counts=(8,) * 32,
        key_length=128,
        value_length=128,
    )
    variant = Variant(name="q4", format=ArtifactFormat.GGUF, source=source, engines=(EngineName.LLAMA_SERVER,))
    status = VariantStatus(name="q4", source=source, artifact=artifact, geometry=geometry)
    return Model(
        metadata=ObjectMeta(name=name, namespace="default", uid=name, generation=1),
        spec=ModelSpec(tasks=(Task.CHAT,), variants=(variant,)),
        status=ModelStatus(variants=(status,)),
    )


def make_placement(name: str) -> Placement:
    return Placement(
        metadata=ObjectMeta(name=name, namespace="default", uid=name, generation=1),
        spec=PlacementSpec(model_ref=ModelReference(name=name), replicas=REPLICAS),
    )


def make_report(members: tuple[MemberReport, ...] = ()) -> Report:
    facts = NodeFacts(
        os="linux", architecture="x86_64", cpu_cores=32, pools=(MemoryPool(name="Host", total_bytes=256 * GIB),)
    )
    lane = Lane(engine=EngineName.LLAMA_SERVER, compute=Compute.CPU, state=LaneState.INSTALLED)
    return Report(
        boot_id="b", sequence=1, version="1", full=True, facts=facts, lanes=(lane,), blobs=(), members=members
    )


def make_world(objects: list[Kind], members: dict[str, tuple[MemberReport, ...]]) -> World:
    names = [f"node-{index:03d}" for index in range(NODES)]
    return World(
        term=1,
        led_since=0.0,
        objects=(*objects, *(Node(metadata=ObjectMeta(name=name)) for name in names)),
        agents=tuple(AgentView(name, NOW, make_report(members.get(name, ()))) for name in names),
        gateways=(),
        answers={},
        published=Published(),
        memory=Memory(complete=True, expected=frozenset(), planned_at=NOW - 1, watching_since=0.0),
        fresh_ids=tuple(f"{index:016x}" for index in range(PLACEMENTS * REPLICAS)),
        timestamp="2026-01-01T00:00:00Z",
        engine_key=lambda instance_id: instance_id,
        seal_of=partial(seal_instance, b"fleet secret"),
    )


def report_ready(instance: Instance) -> MemberReport:
    return MemberReport(
        instance_id=instance.spec.instance_id,
        namespace="default",
        name=instance.metadata.name,
        member="0",
        attempt=1,
        phase=MemberPhase.READY,
        port=40_000,
        instance=instance,
    )


def measure(name: str, world: World) -> Plan:
    walls: list[float] = []
    cpus: list[float] = []
    made = plan(world, NOW)
    for _ in range(ROUNDS):
        wall, cpu = time.perf_counter(), time.process_time()
        made = plan(world, NOW)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    figure = {
        "bench": f"reconcile.{name}",
        "nodes": NODES,
        "placements": PLACEMENTS,
        "actions": len(made.actions),
        "wall_ms": round(statistics.median(walls) * 1000, 1),
        "cpu_ms": round(statistics.median(cpus) * 1000, 1),
    }
    print(json.dumps(figure))
    return made


def main() -> None:
    objects: list[Kind] = []
    for index in range(PLACEMENTS):
        objects += [make_model(f"m{index:03d}"), make_placement(f"m{index:03d}")]
    first = measure("first", make_world(objects, {}))
    created = [action.instance for action in first.actions if isinstance(action, CreateInstance)]
    members: dict[str, tuple[MemberReport, ...]] = {}
    for instance in created:
        node = instance.spec.members[0].node
        members[node] = (*members.get(node, ()), report_ready(instance))
    world = make_world([*objects, *created], members)
    statuses = {write.key: write.status for write in plan(world, NOW).statuses}
    settled = tuple(
        item.model_copy(update={"status": statuses[item.key]}) if item.key in statuses else item
        for item in world.objects
    )
    measure("quiet", replace(world, objects=settled))


if __name__ == "__main__":
    main()
