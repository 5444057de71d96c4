"""What is at rest: Nodes and Placements of which the last plan had nothing to do, to write or to note.

While all that this came from is the same, no plan has, and none looks closer. In a large fleet that is nearly all of it
in nearly every plan. A Placement rests when it serves as wished, or when what is missing fits nowhere: then the whole
fleet is part of what it came from. It must not decide anything: forgetting what is at rest changes no plan.

What is compared is mostly the very same object, which is quick: the store and the board keep what didn't change.
"""

from collections.abc import Collection, Iterable, Mapping
from operator import is_

from covey_api.instance import InstanceGoal, MemberPhase
from covey_api.kinds import ObjectKey
from covey_api.messages import NODE_SILENCE_SECONDS
from covey_api.placement import Placement, Preemption
from covey_api.reasons import ReadyReason
from covey_planner.types import Decision

from covey_controller.reconcile.draft import Draft, Progressing
from covey_controller.reconcile.drains import GATEWAYS_RETURN_SECONDS
from covey_controller.reconcile.outcomes import Done, Outcome, Stalled
from covey_controller.reconcile.sights import NodeSight, Sight
from covey_controller.reconcile.stores import is_store, observe_kept
from covey_controller.reconcile.wanted import model_key, wanted_replicas
from covey_controller.reconcile.world import RestingPlacement


def observe_node_rest(draft: Draft, sight: NodeSight, failing: Collection[str]) -> tuple[object, ...] | None:
    """What the status of a Node is made from; None while there is more to it than its object and its report.

    Left to a closer look: strays, unsealed and contested ones, paths that fail, and a leader's first seconds, in which
    a moment is due.
    """
    agent, report = sight.agent, sight.report
    if sight.node is None or agent is None or report is None or draft.stray_instances or sight.name in failing:
        return None
    if sight.name in draft.unsealed or draft.now < draft.world.led_since + GATEWAYS_RETURN_SECONDS:
        return None
    if agent.rival is not None and draft.now < agent.rival + NODE_SILENCE_SECONDS:
        return None
    if is_store(sight):  # all Models are part of it
        seen = (report.version, sight.node, sight.state, report.facts, report.lanes, report.members, report.unusable)
        return (*seen, report.unkept, observe_kept(draft))
    last, known = draft.world.memory.fleet, draft.world.memory.resting_nodes.get(sight.name)
    if known is not None and last is not None and last.nodes.get(sight.name) is sight:
        return known
    return (report.version, sight.node, sight.state, report.facts, report.lanes, report.members, report.unusable)


def keep_resting(draft: Draft, key: ObjectKey, placement: Placement) -> bool:
    """Whether the Placement and its Instances are as the last plan left them, with nothing to do."""
    known = draft.world.memory.resting_placements.get(key)
    if known is None or (known.decision and (draft.has_reserved or draft.stray_instances)):
        return False
    wanted = wanted_replicas(placement, draft.scaled.get(key))
    if _observe_wish(draft, key, placement, wanted, known.decision) != known.seen:
        return False
    sights = draft.sights_of(key)
    if any(_is_out(draft, sight) for sight in sights):
        return False
    if len(sights) != len(known.sights) or not all(map(is_, sights, known.sights)):
        if _observe_serving(sights) != known.served:
            return False
        known = known._replace(sights=tuple(sights))
    draft.progressing[key] = Progressing(known.revision, wanted, known.decision, placement.status.failures)
    if key in draft.world.memory.revisions:
        draft.revisions[key] = draft.world.memory.revisions[key]
    draft.resting_placements[key] = known
    draft.resting.add(key)
    draft.resting_ids.update([sight.id for sight in sights])
    return True


def judge_resting(draft: Draft, key: ObjectKey) -> Outcome | None:
    """What was said of it; None when it is not at rest."""
    known = draft.resting_placements.get(key)
    if known is None:
        return None
    return Stalled(known.reason, known.message) if known.decision else Done(known.reason, known.message)


def remember_resting(draft: Draft, outcomes: Mapping[ObjectKey, Outcome]) -> None:
    """After all was said: who has come to rest in this plan."""
    if len(draft.resting) == len(outcomes):
        return
    touched = {each.key for each in (*draft.actions, *draft.statuses, *draft.notes)}
    for key, outcome in outcomes.items():
        if key in draft.resting or key in touched:
            continue
        sights = draft.sights_of(key)
        if any(sight.instance.key in touched or _is_out(draft, sight) for sight in sights):
            continue
        served = _observe_serving(sights)
        if served is not None and (isinstance(outcome, Done) or _is_refused(draft, key, outcome)):
            progressing = draft.progressing[key]
            decision = None if isinstance(outcome, Done) else progressing.decision
            placement = draft.placements[key]
            wanted = wanted_replicas(placement, draft.scaled.get(key))
            draft.resting_placements[key] = RestingPlacement(
                _observe_wish(draft, key, placement, wanted, decision),
                tuple(sights),
                served,
                progressing.revision,
                ReadyReason(outcome.reason),
                outcome.message,
                decision,
            )


def _is_refused(draft: Draft, key: ObjectKey, outcome: Outcome) -> bool:
    """Whether it waits for another fleet alone: no failure to try again, nothing of it that rolls or displaces."""
    progressing, placement = draft.progressing[key], draft.placements[key]
    if draft.actions or draft.has_reserved:
        return False
    if outcome.reason not in (ReadyReason.NOT_PLACED, ReadyReason.PARTLY_SERVING) or progressing.decision is None:
        return False
    if progressing.failures or placement.spec.preemption is not Preemption.NEVER or draft.stray_instances:
        return False
    if model_key(key, placement) in draft.asked:  # others may leave for it
        return False
    return all(sight.instance.spec.revision == progressing.revision for sight in draft.sights_of(key))


def _observe_fleet(draft: Draft) -> tuple[object, ...]:
    """All that a refusal depends on: nodes and what is reserved on them, but for strays; once per plan.

    Not the files on their disks: those make one place better than another, and none out of nothing, but for a node that
    is offline.
    """
    if draft.fleet_seen is None:
        nodes = tuple(
            (name, sight.node, sight.state, *((r.facts, r.lanes) if (r := sight.report) else ()))
            for name, sight in draft.nodes.items()
        )
        held = tuple(sight.instance.spec for sight in draft.sights.values())
        draft.fleet_seen = (draft.fleet, nodes, held, draft.held_digests())
    return draft.fleet_seen


def _observe_wish(
    draft: Draft, key: ObjectKey, placement: Placement, wanted: int, decision: Decision | None
) -> tuple[object, ...]:
    """What is wished; where replicas are without a place, the whole fleet too."""
    model = model_key(key, placement)
    wish = (placement, draft.models.get(model), wanted, model in draft.asked)
    return wish if decision is None else (*wish, *_observe_fleet(draft))


def _observe_serving(sights: Iterable[Sight]) -> tuple[object, ...] | None:
    """What is decided and said about Instances comes from this; None while any of them is under way."""
    parts: list[object] = []
    for sight in sights:
        if sight.phase is not MemberPhase.READY or not sight.is_confirmed:
            return None
        instance = sight.instance
        if instance.spec.goal is not InstanceGoal.RUN or instance.metadata.deletion_timestamp is not None:
            return None
        parts.append(instance)
        for member in sight.members:
            node = member.node
            if node is None or node.report is None:
                return None
            parts += (member.report, node.node, node.report.address, node.report.machine)
    return tuple(parts)


def _is_out(draft: Draft, sight: Sight) -> bool:
    """Whether this plan, or the one before, has more to say of it than its agent does."""
    each = sight.id
    is_gone = each in draft.failed or each in draft.unreachable or each in draft.lost or each in draft.absent
    return is_gone or each in draft.yields or each in draft.world.memory.yields
