"""Whole plans of large fleets, as the leader makes them: 20 kinds of machine. One JSON line a figure, best CPU of some.

`cold`: everything has to be placed. `quiet`: everything runs as wished and nothing changed. `report`: one node says
something new. The last two are what a leader pays all day. `full`: the same where nothing fits anywhere. `bound` is
what a figure must stay within; the run ends with code 1 where one doesn't, unless the machine has more to do than
cores (`isBusy`): then its CPU seconds are no measure.
"""

import gc
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

from covey_api.engines import HOST_POOL, ArtifactFormat, Compute, EngineName, Lane, LaneState, Task
from covey_api.instance import Instance, MemberPhase
from covey_api.kinds import Kind
from covey_api.messages import Assignments, Endpoints, MemberReport, Order, Report
from covey_api.meta import DRAIN_FINALIZER, ObjectMeta
from covey_api.model import Archive, Geometry, Model, ModelSpec, ModelStatus, ResolvedArtifact, Variant, VariantStatus
from covey_api.node import MemoryPool, Node, NodeFacts, NodeSpec
from covey_api.placement import ContextWish, ModelReference, NodeChoice, Placement, PlacementSpec
from covey_controller.reconcile.outcomes import CreateInstance, Plan
from covey_controller.reconcile.plan import plan
from covey_controller.reconcile.sights import AgentView
from covey_controller.reconcile.world import Memory, Published, World
from covey_controller.seal import seal_instance

SIZES = ((200, 100), (1000, 300), (5000, 1000))
# Milliseconds of CPU by figure, nodes and placements; MB of the process.
BOUNDS_MS = {
    ("cold", 1000, 300): 300.0,
    ("quiet", 1000, 300): 50.0,
    ("report", 1000, 300): 20.0,
    ("cold", 5000, 1000): 2000.0,
}
MEMORY_BOUND_MB = {(1000, 300): 200}
KINDS = 20
# Best of: other work on the machine only ever adds.
COLD_ROUNDS, ROUNDS = 4, 20
GIB = 2**30
NOW = 1000.0


def make_model(index: int) -> Model:
    """Of 1 to 28 GiB."""
    name = f"m{index:04d}"
    source = f"file:///models/{name}.gguf"
    size = (1 + index % 7 * 4) * GIB
    artifact = ResolvedArtifact(
        source=source,
        name=f"{name}.gguf",
        size_bytes=size,
        archive=Archive(filename=f"{name}.whl", sha256=f"{index:064x}", size_bytes=size),
    )
    layers = 16 + index % 4 * 16
    geometry = Geometry(
        architecture="llama",
        weights_bytes=size,
        layer_count=layers,
        context_tokens=131_072,
        embedding_length=4096,
        feed_forward_length=14_336,
        head_count=32,
        vocabulary_size=128_256,
        kv_head_counts=(8,) * layers,
        key_length=128,
        value_length=128,
    )
    variant = Variant(name="q4", format=ArtifactFormat.GGUF, source=source, engines=(EngineName.LLAMA_SERVER,))
    status = VariantStatus(name="q4", source=source, artifact=artifact, geometry=geometry)
    return Model(
        metadata=ObjectMeta(name=name, namespace="default", uid=name, generation=1),
        spec=ModelSpec(tasks=(Task.CHAT,), variants=(variant,), context_tokens=32_768),
        status=ModelStatus(variants=(status,)),
    )


def grow(item: Kind) -> Kind:
    """A Model that fits nowhere."""
    if not isinstance(item, Model):
        return item
    (known,) = item.status.variants
    geometry = known.geometry.model_copy(update={"weights_bytes": 900 * GIB}) if known.geometry else None
    variants = (known.model_copy(update={"geometry": geometry}),)
    return item.model_copy(update={"status": item.status.model_copy(update={"variants": variants})})


def make_placement(index: int) -> Placement:
    """Every third bound to a zone; every second with a window of its own."""
    name = f"m{index:04d}"
    return Placement(
        metadata=ObjectMeta(name=name, namespace="default", uid=name, generation=1, finalizers=(DRAIN_FINALIZER,)),
        spec=PlacementSpec(
            model_ref=ModelReference(name=name),
            nodes=NodeChoice(selector={"zone": f"z{index % 3}"} if index % 3 == 0 else {}),
            context=ContextWish(tokens=8192 if index % 2 else None),
        ),
    )


def make_node(index: int) -> Node:
    """Some are cordoned; each has a label of its own."""
    name = f"node-{index:04d}"
    labels = {"zone": f"z{index % 3}", "kubernetes.io/hostname": name}
    metadata = ObjectMeta(name=name, uid=name, labels=labels, generation=1, finalizers=(DRAIN_FINALIZER,))
    return Node(metadata=metadata, spec=NodeSpec(unschedulable=index % 23 == 5))


def make_report(index: int, members: tuple[MemberReport, ...] = ()) -> Report:
    """Kinds differ in memory; every second one has a device with memory of its own."""
    kind = index % KINDS
    host = (16 + kind * 8) * GIB
    pools = [MemoryPool(name=HOST_POOL, total_bytes=host)]
    lanes = [Lane(engine=EngineName.LLAMA_SERVER, compute=Compute.CPU, state=LaneState.INSTALLED, digest="0" * 64)]
    if kind % 2:
        pools.append(MemoryPool(name="CUDA0", total_bytes=(8 + kind * 4) * GIB))
        state = LaneState.INSTALLED if kind % 4 == 1 else LaneState.INSTALLABLE
        cuda = Lane(engine=EngineName.LLAMA_SERVER, compute=Compute.CUDA, state=state, digest="1" * 64, pool="CUDA0")
        lanes.insert(0, cuda)
    facts = NodeFacts(os="linux", architecture="x86_64", cpu_cores=16 + kind, pools=tuple(pools))
    return Report(
        boot_id="b",
        sequence=1,
        version="1",
        full=True,
        facts=facts,
        lanes=tuple(lanes),
        blobs=(f"{index % 50:064x}",),
        members=members,
    )


def make_world(objects: list[Kind], reports: list[Report], placements: int) -> World:
    nodes = [make_node(index) for index in range(len(reports))]
    return World(
        term=1,
        led_since=0.0,
        objects=(*objects, *nodes),
        agents=tuple(AgentView(node.metadata.name, NOW, each) for node, each in zip(nodes, reports, strict=True)),
        gateways=(),
        answers={},
        published=Published(),
        memory=Memory(complete=True, expected=frozenset(), planned_at=NOW - 1, watching_since=0.0),
        fresh_ids=tuple(f"{index:016x}" for index in range(placements)),
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


def settle(world: World) -> World:
    """Plan, act, publish and report until nothing is left to do."""
    for _ in range(4):
        made = plan(world, NOW)
        objects = {item.key: item for item in world.objects}
        for action in made.actions:
            if isinstance(action, CreateInstance):
                objects[action.instance.key] = action.instance
        for write in made.statuses:
            objects[write.key] = objects[write.key].model_copy(update={"status": write.status})
        published = publish(world.published, made)
        agents = tuple(follow(each, published.assignments[each.node]) for each in world.agents)
        world = replace(world, objects=tuple(objects.values()), agents=agents, published=published, memory=made.memory)
    return world


def publish(before: Published, made: Plan) -> Published:
    """As the board does: what didn't change stays the very same object."""
    assignments = dict(before.assignments)
    for node, new in made.assignments.items():
        old = assignments.get(node)
        if old is None or old != new.model_copy(update={"serial": old.serial}):
            assignments[node] = new.model_copy(update={"serial": 1})
    table: Endpoints | None = before.endpoints
    if made.endpoints is not None and (table is None or table != made.endpoints.model_copy(update={"serial": 1})):
        table = made.endpoints.model_copy(update={"serial": 1})
    return Published(table, assignments)


def follow(agent: AgentView, wanted: Assignments) -> AgentView:
    known = {each.instance_id: each for each in agent.report.members or ()} if agent.report else {}
    ready = tuple(known.get(each.instance.spec.instance_id) or report_ready(each.instance) for each in wanted.members)
    if agent.report is None or (ready == (agent.report.members or ()) and agent.report.applied is not None):
        return agent
    applied = Order(term=1, serial=1)
    return replace(agent, report=agent.report.model_copy(update={"members": ready, "applied": applied}))


def say_something_new(world: World) -> World:
    """One node has another file on its disk."""
    first, *others = world.agents
    assert first.report is not None
    report = first.report.model_copy(update={"sequence": first.report.sequence + 1, "blobs": ("f" * 64,)})
    return replace(world, agents=(replace(first, report=report, seen=NOW), *others))


def tell(figure: dict[str, object], value: float, bound: float | None) -> bool:
    """False where it is beyond its bound, and that means something."""
    is_within, is_busy = bound is None or value <= bound, os.getloadavg()[0] > (os.cpu_count() or 1)
    more = {} if bound is None else {"bound": bound, "isWithin": is_within, "isBusy": is_busy}
    print(json.dumps(figure | more), flush=True)
    return is_within or is_busy


def measure(name: str, world: World, nodes: int, placements: int, rounds: int = ROUNDS) -> bool:
    walls: list[float] = []
    cpus: list[float] = []
    made = plan(world, NOW)
    for _ in range(rounds):
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        made = plan(world, NOW)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    figure: dict[str, object] = {
        "bench": f"reconcile.{name}",
        "nodes": nodes,
        "placements": placements,
        "actions": len(made.actions),
        "statuses": len(made.statuses),
        "bestCpuMs": round(min(cpus) * 1000, 1),
        "bestWallMs": round(min(walls) * 1000, 1),
        "load": round(os.getloadavg()[0], 1),
    }
    return tell(figure, min(cpus) * 1000, BOUNDS_MS.get((name, nodes, placements)))


def measure_fleet(nodes: int, placements: int) -> bool:
    objects: list[Kind] = []
    for index in range(placements):
        objects += [make_model(index), make_placement(index)]
    world = make_world(objects, [make_report(index) for index in range(nodes)], placements)
    within = [measure("cold", world, nodes, placements, COLD_ROUNDS)]
    settled = settle(world)
    within.append(measure("quiet", settled, nodes, placements))
    within.append(measure("report", say_something_new(settled), nodes, placements))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // 1_000_000
    figure: dict[str, object] = {
        "bench": "reconcile.memory",
        "nodes": nodes,
        "placements": placements,
        "peakMB": peak,
    }
    within.append(tell(figure, peak, MEMORY_BOUND_MB.get((nodes, placements))))
    full = settle(make_world([grow(item) for item in objects], [make_report(i) for i in range(nodes)], placements))
    within.append(measure("full.quiet", full, nodes, placements))
    within.append(measure("full.report", say_something_new(full), nodes, placements))
    return all(within)


def main() -> int:
    if sizes := [int(each) for each in sys.argv[1:]]:
        return int(not measure_fleet(*sizes))
    # Each in a process of its own: its memory is its own.
    ends = [subprocess.run([sys.executable, __file__, *map(str, size)], check=False).returncode for size in SIZES]
    return max(ends)


if __name__ == "__main__":
    sys.exit(main())
