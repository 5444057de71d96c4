"""How many replicas clients ask for: what gateways hold and have in flight becomes a number per Placement.

| requests in flight and held, per `target` | then |
|---|---|
| as many replicas as are wished now, or more | that many, at most `max` |
| fewer, for less than `idleSeconds` | as before |
| fewer, for longer | that many, at least `min` |
| none, but a replica gave a byte within `idleSeconds` | one |
| none, but a replica starts for the first time, and isn't lost | one: else what loads for longer would never be ready |

A request between two reports of a gateway is seen by the byte it got. A gateway that isn't heard may serve on by its
table: nothing is judged idle before all that are known have been heard for `idleSeconds`. What is held for a Model
counts for each of its Placements: which of them can start is not known yet. A new leader begins with what runs.
"""

from collections.abc import Sequence

from covey_api.instance import InstanceGoal, MemberPhase
from covey_api.kinds import ObjectKey
from covey_api.messages import REFUSED_COUNTS_SECONDS, ModelDemand
from covey_api.model import Model
from covey_api.placement import Placement, Scaling

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.drains import live_gateways
from covey_controller.reconcile.sights import Sight
from covey_controller.reconcile.wanted import model_key
from covey_controller.reconcile.world import Asked, GatewayView, Scaled, Serving

_STARTING = (MemberPhase.PENDING, MemberPhase.FETCHING, MemberPhase.STARTING)


def observe_demand(draft: Draft) -> None:
    """What is asked for, how long each replica has served and gone unused, and how many are wished."""
    heard: dict[str, float] = {}
    table = draft.world.published.endpoints
    served = {(each.namespace, each.model) for each in table.endpoints} if table else set[tuple[str, str]]()
    for gateway in live_gateways(draft):
        if gateway.demand is None:
            continue
        for each in gateway.demand.endpoints:
            if each.in_flight:
                draft.in_flight[each.instance_id] = draft.in_flight.get(each.instance_id, 0) + each.in_flight
            if each.last_byte_seconds is not None:
                at = gateway.seen - each.last_byte_seconds
                heard[each.instance_id] = max(at, heard.get(each.instance_id, at))
        for model in gateway.demand.models:
            if (model.namespace, model.name) not in served:  # else it is about to hear of its endpoint
                _observe_model(draft, gateway, model)
    for key, placement in draft.placements.items():
        if placement.spec.scaling is not None:
            _scale(draft, key, placement, placement.spec.scaling, heard)


def _observe_model(draft: Draft, gateway: GatewayView, asked: ModelDemand) -> None:
    since = draft.now - gateway.seen
    if not asked.held:
        if asked.refused_seconds is None or asked.refused_seconds + since >= REFUSED_COUNTS_SECONDS:
            return
        draft.wake_at(gateway.seen - asked.refused_seconds + REFUSED_COUNTS_SECONDS)
    key = ObjectKey(Model.__name__, asked.namespace, asked.name)
    known = draft.world.memory.asked.get(key)
    before = draft.asked.get(key) or Asked(0, known.since if known is not None else draft.now)
    began = gateway.seen - asked.oldest_seconds if asked.held else draft.now
    draft.asked[key] = Asked(before.held + asked.held, min(before.since, began))


def _scale(draft: Draft, key: ObjectKey, placement: Placement, scaling: Scaling, heard: dict[str, float]) -> None:
    running = [each for each in draft.sights_of(key) if each.instance.spec.goal is InstanceGoal.RUN]
    used_at = max((_observe_use(draft, sight, heard) for sight in running), default=float("-inf"))
    asked = draft.asked.get(model_key(key, placement))
    load = sum(draft.in_flight.get(sight.id, 0) for sight in running) + (max(1, asked.held) if asked else 0)
    before = draft.world.memory.scaled.get(key) or Scaled(_bound(scaling, len(running)), draft.now)
    heard_since = draft.watching_since if _are_all_heard(draft) else draft.now
    before = Scaled(before.count, max(before.needed_at, heard_since))
    draft.scaled[key] = scale(scaling, before, load, used_at, draft.now)
    draft.wake_at(max(before.needed_at, used_at) + scaling.idle_seconds)


def _are_all_heard(draft: Draft) -> bool:
    """Whether every gateway that is known says what it has in flight."""
    return 0 < len(live_gateways(draft)) == len(draft.world.gateways)


def scale(scaling: Scaling, before: Scaled, load: int, used_at: float, now: float) -> Scaled:
    """By the table above. `load`: requests in flight and held; `used_at`: when a replica was last seen to be used."""
    count = _bound(scaling, before.count)
    loaded = _bound(scaling, -(-load // scaling.target))
    if loaded >= count:
        return Scaled(loaded, now)
    needed = max(loaded, _bound(scaling, int(now < used_at + scaling.idle_seconds)))
    if needed >= count or now < before.needed_at + scaling.idle_seconds:
        return Scaled(count, before.needed_at)
    return Scaled(needed, now)


def _bound(scaling: Scaling, count: int) -> int:
    return min(max(count, scaling.min), scaling.max)


def _observe_use(draft: Draft, sight: Sight, heard: dict[str, float]) -> float:
    """When it was last used: now, while its first start goes on; what else doesn't serve was not.

    Only the first: one that fails again and again would stay for ever. So would one that was lost while it started:
    its node's last word stands until somebody says otherwise.
    """
    if _is_first_start(sight) and sight.id not in draft.lost:
        return draft.now
    if sight.phase is not MemberPhase.READY or not sight.is_confirmed:
        return float("-inf")
    before = draft.world.memory.serving.get(sight.id, Serving(draft.now, draft.now))
    seen = draft.now if draft.in_flight.get(sight.id) else heard.get(sight.id, before.used_at)
    used_at = max(before.used_at, seen)
    draft.serving[sight.id] = Serving(before.since, used_at)
    return used_at


def _is_first_start(sight: Sight) -> bool:
    restarts = sum(member.report.restarts for member in sight.members if member.report is not None)
    return sight.phase in _STARTING and sight.instance.spec.attempt == 1 and not restarts


def spare_count(placement: Placement, running: Sequence[Sight]) -> int:
    """Replicas above the minimum; of a Placement without `scaling` none is."""
    scaling = placement.spec.scaling
    return max(0, len(running) - scaling.min) if scaling is not None else 0


def explain_scaling(draft: Draft, key: ObjectKey, placement: Placement) -> str:
    """How many replicas are asked for, and what of it may yield to others; empty without `scaling`."""
    scaling = placement.spec.scaling
    if scaling is None:
        return ""
    count = draft.scaled[key].count if key in draft.scaled else scaling.min
    asked = draft.asked.get(model_key(key, placement))
    running = [each for each in draft.sights_of(key) if each.instance.spec.goal is InstanceGoal.RUN]
    in_flight = sum(draft.in_flight.get(sight.id, 0) for sight in running)
    lines = [
        f"scales from {scaling.min} to {scaling.max} replicas, {scaling.target} requests each; {count} wished now: "
        f"{in_flight} requests in flight, {asked.held if asked else 0} held"
    ]
    if asked is not None and not asked.held:
        lines[0] += ", and one was refused of late"
    if spare_count(placement, running):
        lines.append(
            f"above its minimum: unused for {scaling.idle_seconds} s it leaves; after {scaling.min_dwell_seconds} s of "
            "serving it makes room for a model that is asked for and fits nowhere, once no request is on it"
        )
    yields = draft.world.memory.yields
    lines += [
        f"'{sight.instance.metadata.name}' takes no new request: it makes room for {yields[sight.id].by}"
        for sight in running
        if sight.id in yields
    ]
    return "".join(f"{line}\n" for line in lines)
