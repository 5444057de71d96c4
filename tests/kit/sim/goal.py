"""When a fleet is as it should be: as many ready replicas as wished and fit, and nothing else runs."""

from dataclasses import replace

from covey_api.engines import HOST_POOL, Lane
from covey_api.kinds import Kind, ObjectKey
from covey_api.model import Model
from covey_api.node import Node
from covey_api.placement import Placement, Preemption
from covey_api.reasons import ReadyReason
from covey_controller.reconcile.revision import revision_of
from covey_controller.reconcile.wanted import render_wish
from covey_planner.choice import choose
from covey_planner.types import NodeView, Pool, Wish
from covey_simulator.accounts import count_replicas
from covey_simulator.engine import Engine
from covey_simulator.machine import Keeper, Machine

from kit import planning
from kit.sim.seeded import SeededWorld

_UNREAD = frozenset({ReadyReason.GEOMETRY_PENDING, ReadyReason.GEOMETRY_UNAVAILABLE})


def why_not_converged(world: SeededWorld) -> str:
    """What is not as it should be yet; empty when all is."""
    controller = world.controller
    if controller is None or not controller.loop.is_leading:
        return "no controller leads"
    objects = controller.history.objects
    running: dict[str, list[tuple[Machine, Keeper]]] = {}
    for machine in world.machines.values():
        for keeper in machine.keepers.values():
            if keeper.engine.is_alive and keeper.answers:
                spec = keeper.instance.spec
                running.setdefault(spec.placement, []).append((machine, keeper))
    if unasked := running.keys() - world.people.wishes.keys():
        return f"engines of {sorted(unasked)} run, which nobody wishes"
    for name, wish in sorted(world.people.wishes.items()):
        key = ObjectKey("Placement", "default", name)
        placement, model = objects.get(key), objects.get(ObjectKey("Model", "default", wish.model))
        if not isinstance(placement, Placement) or not isinstance(model, Model):
            return f"{key} or its model is not in force"
        if placement.spec.replicas != wish.replicas or placement.spec.context.tokens != wish.context_tokens:
            return f"{key} is in force as it was before"
        if why := _why_not(world, name, placement, model, running.get(name, [])):
            return why
    ids = {keeper.engine.instance_id for found in running.values() for _, keeper in found}
    stored = {item.spec.instance_id for item in world.safety.instances}
    if ids != stored:
        return f"the store holds {sorted(stored)}, and {sorted(ids)} run"
    if why := _why_not_whole(world):
        return why
    for machine in world.machines.values():
        if why := _why_unknown(machine, objects.get(ObjectKey("Node", "", machine.name))):
            return why
    for key, model in objects.items():
        if isinstance(model, Model) and any(each.reason in _UNREAD for each in model.status.conditions):
            return f"the header of {key} is still to be read"
    return _why_not_routed(world, ids)


def _why_not_whole(world: SeededWorld) -> str:
    """All members of what is stored run and are ready, in its one attempt, and no others do."""
    stored = {
        (member.node, item.spec.instance_id, item.spec.attempt)
        for item in world.safety.instances
        for member in item.spec.members
    }
    keepers = [(machine, keeper) for machine in world.machines.values() for keeper in machine.keepers.values()]
    ready = {
        (machine.name, keeper.engine.instance_id, keeper.attempt)
        for machine, keeper in keepers
        if keeper.engine.generates
    }
    living = {
        (machine.name, keeper.engine.instance_id, keeper.attempt)
        for machine, keeper in keepers
        if keeper.engine.is_alive
    }
    if stored != ready or ready != living:
        return f"of members the store holds {sorted(stored)}, {sorted(ready)} are ready, and {sorted(living)} run"
    return ""


def _why_unknown(machine: Machine, node: Kind | None) -> str:
    if not isinstance(node, Node) or not any(
        each.type == "Ready" and each.status == "True" for each in node.status.conditions
    ):
        return f"node {machine.name} is not Ready"
    facts = node.status.facts
    known = {pool.name: pool.total_bytes for pool in facts.pools} if facts else {}
    return "" if known == machine.pools else f"node {machine.name} is known with pools {known}, not {machine.pools}"


def _why_not(
    world: SeededWorld, name: str, placement: Placement, model: Model, found: list[tuple[Machine, Keeper]]
) -> str:
    if unready := [keeper.engine.instance_id for _, keeper in found if keeper.engine.ready_told_at is None]:
        return f"{unready} of {name} are not ready"
    if wedged := [keeper.engine.instance_id for _, keeper in found if keeper.engine.is_wedged]:
        return f"{wedged} of {name} generate nothing any more"
    scaling = placement.spec.scaling
    wanted = count_replicas(placement)
    if len(found) > wanted:
        return f"{len(found)} of {name} run, {wanted} are wished"
    if scaling is not None and not placement.status.ready.endswith(f"/{wanted}"):
        return f"{name} is still wished as it was asked for: {placement.status.ready}"
    revision = _revision_of(world, placement, model)
    old = [pair for pair in found if _revision(pair[1]) != revision]
    if len(found) == wanted and not old:
        return ""
    wish = render_wish(placement, model, None, (), ())
    if wish.spread is not None and (why := _why_no_group(world, wish, old)):
        return f"{len(found)} of {wanted} of {name} run, {len(old)} old, and {why}"
    if wish.spread is not None and wish.spread.is_asked:
        return ""
    wish = replace(wish, spread=None)
    for machine in world.machines.values():
        leaving = [keeper.engine for at, keeper in old if at is machine]
        leaving += [each for each in _lower(world, placement, machine) if each not in leaving]
        free = {pool: machine.free_bytes(pool) + sum(each.taken[pool] for each in leaving) for pool in machine.pools}
        for lane in machine.ground.lanes if machine.is_on else ():
            for variant in wish.variants:
                decision = choose(replace(wish, variants=(variant,)), (_large_node(lane),), 1)
                if not decision.chosen:
                    return f"{name} can't be planned yet: {decision.pending}"
                if all(free[costs.pool] >= costs.total_bytes for costs in decision.chosen[0].costs):
                    counts = f"{len(found)} of {wanted} of {name} run, {len(old)} old"
                    return f"{counts}, and node {machine.name} has room for it on {lane.compute}"
    return ""


def _why_no_group(world: SeededWorld, wish: Wish, old: list[tuple[Machine, Keeper]]) -> str:
    """Several nodes have room for it; empty: none have. As the planner itself sees it, told the truth."""
    leaving = {keeper.engine.instance_id for _, keeper in old}
    views: list[NodeView] = []
    for machine in world.machines.values():
        free = {pool: machine.free_bytes(pool) for pool in machine.pools}
        for engine in machine.engines():
            if engine.instance_id in leaving:
                free = {pool: count + engine.taken[pool] for pool, count in free.items()}
        pools = tuple(Pool(pool, max(0, count), 0, 0) for pool, count in free.items())
        view = planning.node(machine.name)
        views.append(replace(view, pools=pools, lanes=machine.ground.lanes, cpu_cores=4))
    decision = choose(wish, tuple(views), 1)
    if not decision.chosen or not decision.chosen[0].others:
        return ""
    chosen = decision.chosen[0]
    return f"nodes {[chosen.node, *(each.node for each in chosen.others)]} have room for it"


def _revision_of(world: SeededWorld, placement: Placement, model: Model) -> str:
    """Hashed once while both say the same: it is asked for every second until a fleet has settled."""
    made_from = (placement.spec, placement.metadata.annotations, model.spec)
    known = world.revisions.get(placement.key)
    if known is None or any(old is not new for old, new in zip(known[0], made_from, strict=True)):
        known = world.revisions[placement.key] = (made_from, revision_of(placement, model))
    return known[1]


def _lower(world: SeededWorld, placement: Placement, machine: Machine) -> list[Engine]:
    """Engines on the machine that have to leave for it."""
    if placement.spec.preemption is not Preemption.LOWER_PRIORITY:
        return []
    return [
        keeper.engine
        for keeper in machine.keepers.values()
        if keeper.engine.is_alive
        and (world.people.wishes[keeper.instance.spec.placement].priority or 0) < placement.spec.priority
    ]


def _large_node(lane: Lane) -> NodeView:
    pools = tuple(Pool(name, 1 << 40, 0, 0) for name in dict.fromkeys((HOST_POOL, lane.pool)))
    return replace(planning.node("large"), pools=pools, lanes=(lane,), cpu_cores=4)


def _revision(keeper: Keeper) -> str:
    return keeper.instance.spec.revision


def _why_not_routed(world: SeededWorld, ids: set[str]) -> str:
    for name in world.gateway_names:
        gateway = world.gateways.get(name)
        if gateway is None:
            return f"gateway {name} is away"
        table = gateway.traffic.table
        routed = {target.instance_id for targets in table.targets.values() for target in targets if target.confirmed}
        if routed != ids:
            return f"gateway {name} routes to {sorted(routed)}, and {sorted(ids)} run"
    return ""


def living(world: SeededWorld) -> list[Engine]:
    return [engine for machine in world.machines.values() for engine in machine.engines()]
