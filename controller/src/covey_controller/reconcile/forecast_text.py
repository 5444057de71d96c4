"""A forecast in words and as data: what comes, goes and rolls, what stalls and by how many bytes, what waits, and what
all that means for each node. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from covey_api.instance import Instance, InstanceGoal, Member, MemberRole
from covey_api.kinds import Kind, ObjectKey
from covey_api.meta import Condition, ConditionStatus
from covey_api.placement import Placement
from covey_api.reasons import EventReason
from covey_api.units import format_bytes
from covey_planner.choice import choose
from covey_planner.text.shape import render_shape, shape_data

from covey_controller.reconcile.better import list_better, render_better
from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.forecast import Forecast, spec_of
from covey_controller.reconcile.forecast_nodes import (
    list_downloads,
    list_nodes,
    render_downloads,
    render_nodes,
)
from covey_controller.reconcile.forecast_sleeping import list_sleeping, render_sleeping
from covey_controller.reconcile.forecast_why import draft_of, list_reasons, wish_of
from covey_controller.reconcile.together import find_shape
from covey_controller.reconcile.world import World

Entry = dict[str, Any]


def render_forecast(
    made: Forecast, live: Sequence[Kind], documents: Sequence[Kind], *, is_every_node: bool = False
) -> tuple[str, Entry]:
    """Text for people and the same as data. `live`: the objects as they are now. The text has nodes that change, or
    every one."""
    comes, goes = _comes(made), _goes(made)
    rolls = _rolls(comes, goes)
    stalls, waits = _unready(made)
    found: Entry = {
        "settled": made.is_settled,
        "documents": _changes(live, documents),
        "comes": comes,
        "goes": goes,
        "rolls": rolls,
        "stalls": stalls,
        "waits": waits,
        "better": _better(made),
        "sleeps": list_sleeping(draft_of(made.end, made.now)),
        "downloads": list_downloads(made, _coming(made)),
        "nodes": list_nodes(made),
    }
    return "\n".join((*_lines(found), *render_nodes(found["nodes"], is_every=is_every_node))) + "\n", found


def _changes(live: Sequence[Kind], documents: Sequence[Kind]) -> list[Entry]:
    known = {item.key: item for item in live}
    return [{**_name(document.key), "change": _change(known.get(document.key), document)} for document in documents]


def _change(live: Kind | None, document: Kind) -> str:
    if live is None:
        return "created"
    written = (spec_of(document), document.metadata.labels, document.metadata.annotations)
    stored = (spec_of(live), live.metadata.labels, live.metadata.annotations)
    return "unchanged" if written == stored else "configured"


def _comes(made: Forecast) -> list[Entry]:
    coming = _coming(made)
    reasons = list_reasons(made, [each.spec.instance_id for each in coming])
    return [_instance(each) | {"why": reasons[each.spec.instance_id]} for each in coming]


def _coming(made: Forecast) -> list[Instance]:
    """Instances that run in the end and were not there before."""
    before = _instances(made.begin)
    return [
        each for key, each in _instances(made.end).items() if key not in before and each.spec.goal is InstanceGoal.RUN
    ]


def _goes(made: Forecast) -> list[Entry]:
    """Instances that drain in the end, or are gone."""
    after = _instances(made.end)
    reasons: dict[ObjectKey, str] = {}
    for note in made.notes:
        if note.reason == EventReason.DRAIN_STARTED:
            reasons.setdefault(note.key, note.message)  # a later one is of another that has its name by then
    return [
        _instance(each) | {"why": reasons.get(each.key, "it is draining already")}
        for instance_id, each in _instances(made.begin).items()
        if instance_id not in after or after[instance_id].spec.goal is InstanceGoal.DRAIN
    ]


def _rolls(comes: list[Entry], goes: list[Entry]) -> list[Entry]:
    """Placements of which Instances of one revision go and of another come."""
    rolls: list[Entry] = []
    for placement in sorted({(each["namespace"], each["placement"]) for each in comes}):
        new = [each for each in comes if (each["namespace"], each["placement"]) == placement]
        old = [each for each in goes if (each["namespace"], each["placement"]) == placement]
        revisions = {each["revision"] for each in new}
        replaced = [each for each in old if each["revision"] not in revisions]
        if replaced:
            names = {key: [each["name"] for each in group] for key, group in (("from", replaced), ("to", new))}
            rolls.append({"namespace": placement[0], "placement": placement[1], **names})
    return rolls


def _unready(made: Forecast) -> tuple[list[Entry], list[Entry]]:
    """Placements that are not served in the end, or are on their way there already."""
    draft = draft_of(made.end, made.now)
    first = {item.key: item for item in made.begin.objects}
    stalls: list[Entry] = []
    waits: list[Entry] = []
    for key, placement in draft.placements.items():
        ready, stalled = (_condition(placement, name) for name in ("Ready", "Stalled"))
        if ready is None:
            waits.append({**_name(key), "reason": "FleetNotSeen", "message": "nodes have not all reported yet"})
        elif ready.status is ConditionStatus.TRUE:
            earlier = first.get(key)
            before = _condition(earlier, "Reconciling") if isinstance(earlier, Placement) else None
            if before is not None:
                waits.append({**_name(key), "reason": before.reason, "message": f"for now: {before.message}"})
        elif stalled is not None:
            stalls.append(_unready_entry(key, ready) | _lacking(draft, key, placement))
        else:
            waits.append(_unready_entry(key, ready))
    return stalls, waits


def _unready_entry(key: ObjectKey, ready: Condition) -> Entry:
    return {**_name(key), "reason": ready.reason, "message": ready.message}


def _lacking(draft: Draft, key: ObjectKey, placement: Placement) -> Entry:
    """How much memory the closest node lacks for one more replica (0 where memory is not the reason), and the nodes
    that could hold it together."""
    wish = wish_of(draft, key, placement)
    decision = choose(wish, draft.roster(), 1) if wish else None
    closest = decision.closest if decision else None
    shape = find_shape(draft, wish, decision) if wish and decision else None
    return {
        "shortBytes": closest.short_bytes if closest else 0,
        "shape": shape_data(shape) if shape else None,
        "together": list(render_shape(shape, wish.spread)) if wish and shape else [],
    }


def _better(made: Forecast) -> list[Entry]:
    """What serves in the end, and would gain elsewhere."""
    draft = draft_of(made.end, made.now)
    return [
        {"namespace": key.namespace, "placement": key.name, **each}
        for key, placement in draft.placements.items()
        if (wish := wish_of(draft, key, placement)) is not None
        for each in list_better(draft, key, wish)
    ]


def _instances(world: World) -> Mapping[str, Instance]:
    """By instanceId, in the order of their names: one that is replaced may leave its name to another."""
    found = sorted((item for item in world.objects if isinstance(item, Instance)), key=lambda item: item.key)
    return {item.spec.instance_id: item for item in found}


def _condition(item: Placement, kind: str) -> Condition | None:
    return next((each for each in item.status.conditions if each.type == kind), None)


def _name(key: ObjectKey) -> Entry:
    return {"kind": key.kind, "namespace": key.namespace, "name": key.name}


def _instance(instance: Instance) -> Entry:
    spec = instance.spec
    return {
        "namespace": instance.metadata.namespace,
        "name": instance.metadata.name,
        "placement": spec.placement,
        "model": spec.model,
        "variant": spec.variant,
        "revision": spec.revision,
        "engine": spec.engine.value,
        "compute": spec.compute.value,
        "contextTokens": spec.options.context_tokens,
        "slots": spec.options.slots,
        "members": [
            {
                "name": member.name,
                "role": member.role.value,
                "node": member.node,
                "pools": [
                    {"name": pool, "bytes": member.bytes_in(pool), "layers": _layers_in(member, pool)}
                    for pool in dict.fromkeys(costs.pool for costs in member.costs)
                ],
            }
            for member in spec.members
        ],
    }


def _layers_in(member: Member, pool: str) -> int:
    return sum(costs.layers for costs in member.costs if costs.pool == pool)


def _lines(found: Entry) -> Iterator[str]:
    for each in found["documents"]:
        yield f"{each['kind'].lower()}/{each['name']} would be {each['change']}"
    for each in found["comes"]:
        yield f"comes:  {_instance_words(each)}"
        if each["why"]:
            yield f"        {each['why']}"
    for each in found["goes"]:
        yield f"goes:   {_instance_words(each)}"
        yield f"        {each['why']}"
    for each in found["rolls"]:
        yield f"rolls:  placement/{each['placement']}: {', '.join(each['from'])} replaced by {', '.join(each['to'])}"
    for each in found["stalls"]:
        short = f" ({each['shortBytes']} bytes short)" if each["shortBytes"] else ""
        yield f"stalls: placement/{each['name']}: {each['reason']}{short}: {each['message']}"
        yield from (f"        {line}" for line in each["together"])
    for each in found["waits"]:
        yield f"waits:  placement/{each['name']}: {each['reason']}: {each['message']}"
    yield from (f"could:  {line}" for line in render_better(found["better"]))
    yield from render_sleeping(found["sleeps"])
    if not any(found[name] for name in ("comes", "goes", "stalls", "waits")):
        yield "no instance comes or goes"
    yield from render_downloads(found["downloads"])
    if not found["settled"]:
        yield "This is the beginning: more follows than was looked at."


def _member_words(member: Entry) -> str:
    where = f"node '{member['node']}'"
    is_alone = member["role"] == MemberRole.SINGLE.value
    return where if is_alone else f"{member['role'].lower()} '{member['name']}' on {where}"


def _instance_words(each: Entry) -> str:
    places = "; ".join(
        f"{_member_words(member)}, "
        + ", ".join(
            f"{format_bytes(pool['bytes'])} ({pool['bytes']} bytes) of '{pool['name']}'"
            + (f" for {pool['layers']} layers" if pool["layers"] else "")
            for pool in member["pools"]
        )
        for member in each["members"]
    )
    return (
        f"instance/{each['name']} of placement/{each['placement']}: {places}, lane {each['engine']}/{each['compute']}, "
        f"window {each['contextTokens']} tokens x {each['slots']} slots"
    )
