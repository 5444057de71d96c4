"""Why something is as it is: computed when asked, by the functions that decide, from the last plan's world. Pure."""

from collections.abc import Mapping
from typing import Any

from covey_api.companion import CompanionRole
from covey_api.engines import Lane
from covey_api.instance import Instance, InstanceGoal
from covey_api.kinds import Kind, ObjectKey
from covey_api.messages import Progress
from covey_api.model import Model, Variant
from covey_api.node import Node
from covey_api.placement import Placement, Preemption
from covey_api.units import format_bytes, format_progress, seconds_left
from covey_planner.choice import choose, explain_nodes
from covey_planner.choice.builds import is_version_known
from covey_planner.fit.calibration import explain_factor, formula_of
from covey_planner.text import WhyPlacement, render_why, why_data

from covey_controller.reconcile.begin import begin_draft
from covey_controller.reconcile.better import list_better, render_better
from covey_controller.reconcile.companions import find_companion
from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.drains import why_quiet
from covey_controller.reconcile.fleet import pinned_versions, view_node
from covey_controller.reconcile.index import index_objects
from covey_controller.reconcile.making import next_wish
from covey_controller.reconcile.scaling import explain_scaling, observe_demand
from covey_controller.reconcile.sights import Sight
from covey_controller.reconcile.together import find_shape
from covey_controller.reconcile.wanted import fresh_status, model_key, wanted_replicas
from covey_controller.reconcile.world import World

Explanation = tuple[str, dict[str, Any]]


def explain(world: World, now: float, key: ObjectKey) -> Explanation:
    """Text for people and the same as data. KeyError if there is no such object."""
    draft, stored = _draft(world, now)
    item = stored[key]
    match item:
        case Placement():
            return _explain_placement(draft, key, item)
        case Model():
            return _explain_model(draft, key, item)
        case Instance():
            return _explain_instance(draft, draft.sights[key])
        case Node():
            return _explain_node(draft, item)
        case _:
            return f"{key} is read as it is: nothing is decided about it\n", {"object": str(key)}


def observe_progress(world: World, now: float, key: ObjectKey) -> Progress | None:
    """The least advanced step of an Instance's members, or of the first unready Instance of a Placement or Model."""
    draft, _ = _draft(world, now)
    if key.kind == "Instance":
        sights = [draft.sights[key]] if key in draft.sights else []
    elif key.kind == "Placement":
        sights = draft.sights_of(key)
    else:
        asking = [each for each, placement in draft.placements.items() if model_key(each, placement) == key]
        sights = [sight for each in asking for sight in draft.sights_of(each)]
    reports = [m.report for s in sights if s.instance.spec.goal is InstanceGoal.RUN for m in s.members if m.report]
    return next((report.progress for report in reports if report.progress), None)


def progress_data(progress: Progress) -> dict[str, Any]:
    """With how long the rest takes at the present rate, while it moves."""
    left = seconds_left(progress.done_bytes, progress.total_bytes, progress.bytes_per_second)
    return progress.to_wire() | ({} if left is None else {"secondsLeft": left})


def _draft(world: World, now: float) -> tuple[Draft, Mapping[ObjectKey, Kind]]:
    indexed = index_objects(world.objects)
    draft = begin_draft(world, indexed, now)
    observe_demand(draft)
    return draft, indexed.by_key


def _explain_placement(draft: Draft, key: ObjectKey, placement: Placement) -> Explanation:
    model = draft.models.get(model_key(key, placement))
    if model is None:
        text, data = _conditions(placement)
        return f"{key}: no Model '{placement.spec.model_ref.name}' in namespace '{key.namespace}'\n{text}", data
    wish = next_wish(draft, key, placement, model, placement.status.failures)
    decision = choose(wish, draft.roster(), 1)
    pending = decision.pending
    why = WhyPlacement(
        wish=wish,
        replicas=wanted_replicas(placement, draft.scaled.get(key)),
        instances=tuple(sight.instance for sight in draft.sights_of(key)),
        nodes=tuple(draft.roster()),
        results=() if pending else explain_nodes(wish, tuple(draft.roster())),
        pending=pending,
        shape=find_shape(draft, wish, decision),
    )
    text, data = _conditions(placement)
    text += _priority(placement) + explain_scaling(draft, key, placement)
    failures = "".join(
        f"failed on node '{each.node}' ({each.engine}{f', pool {each.pool!r}' if each.pool else ''}): {each.cause}: "
        f"{each.message}\n"
        for each in placement.status.failures
    )
    better = list_better(draft, key, wish)
    text += failures + render_why(why) + "".join(f"\n{line}\n" for line in render_better(better))
    return text, data | why_data(why) | {"better": better}


def _priority(placement: Placement) -> str:
    """Empty for a Placement of no special one."""
    spec = placement.spec
    displaces = spec.preemption is Preemption.LOWER_PRIORITY
    if not spec.priority and not displaces:
        return ""
    return (
        f"priority {spec.priority}; where it fits nowhere, {'lower ones leave for it' if displaces else 'it waits'}\n"
    )


def _explain_model(draft: Draft, key: ObjectKey, model: Model) -> Explanation:
    text, data = _conditions(model)
    lines = [text.rstrip("\n")] if text else []
    variants: list[dict[str, Any]] = []
    for variant in model.spec.variants:
        status = fresh_status(model, variant)
        artifact, geometry = (status.artifact, status.geometry) if status else (None, None)
        cached = [view.name for view in draft.roster() if artifact and artifact.digest in view.cached]
        size = format_bytes(artifact.size_bytes) if artifact else "size unknown"
        lines.append(f"variant '{variant.name}' ({variant.format}): {size}, from {variant.source}")
        if geometry:
            lines.append(
                f"  {geometry.architecture}, {geometry.layer_count} layers, weights "
                f"{format_bytes(geometry.weights_bytes)}, trained for {geometry.context_tokens} tokens"
            )
        lines.append(f"  on the disk of: {', '.join(cached) or 'no node'}")
        lines += [
            f"  on lane {each.engine}/{each.compute} loads took {explain_factor(each.percent)} of what is computed for "
            "host memory; new instances are stamped with it"
            for each in (status.calibrations if status else ())
            if each.percent != 100 and each.formula == formula_of(each.engine)
        ]
        lines += [_companion_line(draft, model, variant, role) for role, _ in variant.companions]
        variants.append({"name": variant.name, "cached": cached, "status": status.to_wire() if status else None})
    asking = sorted(each.name for each, placement in draft.placements.items() if model_key(each, placement) == key)
    lines.append(f"asked for by: {', '.join(f'placement/{name}' for name in asking) or 'no placement'}")
    return "\n".join(lines) + "\n", data | {"variants": variants, "placements": asking}


def _companion_line(draft: Draft, model: Model, variant: Variant, role: CompanionRole) -> str:
    source = dict(variant.companions)[role].source
    found = find_companion(model, variant, role)
    if found is None or found.artifact is None:
        return f"  {role.lower()}: {found.error if found and found.error else 'size unknown'}, from {source}"
    cached = [view.name for view in draft.roster() if found.artifact.digest in view.cached]
    size = format_bytes(found.artifact.size_bytes)
    return f"  {role.lower()}: {size}, from {source}; on the disk of: {', '.join(cached) or 'no node'}"


def _explain_instance(draft: Draft, sight: Sight) -> Explanation:
    instance, spec = sight.instance, sight.instance.spec
    progress: dict[str, Any] = {}
    text, data = _conditions(instance)
    lines = [
        f"{instance.key} is replica of placement/{spec.placement}, model '{spec.model}', variant '{spec.variant}'",
        text.rstrip("\n"),
        f"goal {spec.goal}, attempt {spec.attempt}, revision {spec.revision}, {spec.options.slots} slots of "
        f"{spec.options.context_tokens} tokens",
    ]
    if spec.engine_version:
        lines.append(f"engine {spec.engine}, pinned to version {spec.engine_version} when it was made")
    for member, stamped in zip(sight.members, spec.members, strict=True):
        costs = ", ".join(f"{format_bytes(each.total_bytes)} of pool '{each.pool}'" for each in stamped.costs)
        lines.append(f"member {member.name} on node '{stamped.node}': {member.phase}, holds {costs}")
        if member.report is not None and (moving := member.report.progress) is not None:
            amount = format_progress(moving.done_bytes, moving.total_bytes, moving.bytes_per_second)
            lines.append(f"member {member.name} gets its {moving.step}: {amount}")
            progress[member.name] = progress_data(moving)
    drain = draft.drains.get(sight.id)
    if drain is not None and not drain.stop:
        quiet = why_quiet(draft, sight, drain)
        lines.append(f"drains: {quiet or 'a gateway still routes to it or has requests on it'}")
    return "\n".join(line for line in lines if line) + "\n", data | {"spec": spec.to_wire(), "progress": progress}


def _explain_node(draft: Draft, node: Node) -> Explanation:
    name = node.metadata.name
    text, data = _conditions(node)
    here = [i for i in draft.instances() if any(member.node == name for member in i.spec.members)]
    view = view_node(draft.nodes[name], here, draft.fleet)
    lines = [f"node/{name} is {view.state}{'' if view.schedulable else ', takes nothing new'}", text.rstrip("\n")]
    pools: list[dict[str, Any]] = []
    for pool in view.pools:
        lines.append(
            f"pool '{pool.name}': {format_bytes(pool.total_bytes)} in total, {format_bytes(pool.reserve_bytes)} kept "
            f"back, {format_bytes(pool.reserved_bytes)} reserved, {format_bytes(pool.unreserved_bytes)} left"
        )
        pools.append({"name": pool.name, "totalBytes": pool.total_bytes, "reservedBytes": pool.reserved_bytes})
    lines += [_lane_line(lane, draft, node) for lane in view.lanes]
    lacks = {f"{lane.engine} {lane.version}".rstrip(): lane.lacks for lane in view.lanes if lane.lacks}
    lines += [f"{build} has no code for models of architecture {', '.join(names)}" for build, names in lacks.items()]
    short = {
        f"{lane.engine} {lane.version}".rstrip(): lane.lacks_features for lane in view.lanes if lane.lacks_features
    }
    lines += [f"{build} has no `{'`, `'.join(flags)}`" for build, flags in short.items()]
    names = sorted(instance.metadata.name for instance in here)
    lines.append(f"runs: {', '.join(names) or 'nothing'}")
    return "\n".join(line for line in lines if line) + "\n", data | {"pools": pools, "instances": names}


def _lane_line(lane: Lane, draft: Draft, node: Node) -> str:
    """As new Instances get it."""
    line = f"lane {lane.engine}/{lane.compute}: {lane.state} {lane.version}".rstrip()
    if not is_version_known(lane):
        return f"{line}, pinned, and its agent can install {' or '.join(lane.versions)}: nothing new is placed on it"
    return f"{line}, pinned" if lane.versions and lane.engine in pinned_versions(node, draft.fleet) else line


def _conditions(item: Placement | Model | Instance | Node) -> Explanation:
    """The object's conditions, as `describe` shows them."""
    conditions = item.status.conditions
    told = (
        *("Ready", "StrayInstances", "UnsealedInstances", "NameContested"),
        *("UnusableEngines", "StoreIncomplete", "DataPathReachable"),
    )
    ready = [each for each in conditions if each.type in told]
    text = "".join(f"{each.type} is {each.status}: {each.reason}: {each.message}\n" for each in ready)
    return text, {"conditions": [each.to_wire() for each in conditions]}
