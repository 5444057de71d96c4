"""What is at rest: Nodes and Placements of which the last plan had nothing to do, to write or to note.

While all that this came from is the same, no plan has, and none looks closer. In a large fleet that is nearly all of it
in nearly every plan. It must not decide anything: forgetting what is at rest changes no plan (a test holds that).

What is compared is mostly the very same object, which is quick: the store and the board keep what didn't change.
"""

from collections.abc import Collection, Mapping

from covey_api.instance import InstanceGoal, MemberPhase
from covey_api.kinds import ObjectKey
from covey_api.messages import NODE_SILENCE_SECONDS
from covey_api.placement import Placement
from covey_api.reasons import ReadyReason

from covey_controller.reconcile.draft import Draft, Progressing
from covey_controller.reconcile.drains import GATEWAYS_RETURN_SECONDS
from covey_controller.reconcile.fleet import NodeSight, Sight
from covey_controller.reconcile.outcomes import Done, Outcome
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
    return (report.version, sight.node, sight.state, report.facts, report.lanes, report.members)


def keep_resting(draft: Draft, key: ObjectKey, placement: Placement) -> bool:
    """Whether the Placement and its Instances are as the last plan left them, with nothing to do."""
    known = draft.world.memory.resting_placements.get(key)
    if known is None or _observe_rest(draft, key, placement) != known.seen:
        return False
    wanted = wanted_replicas(placement)
    draft.progressing[key] = Progressing(known.revision, wanted, failures=placement.status.failures)
    if key in draft.world.memory.revisions:
        draft.revisions[key] = draft.world.memory.revisions[key]
    draft.resting_placements[key] = known
    draft.resting.add(key)
    draft.resting.update(sight.instance.key for sight in draft.sights_of(key))
    return True


def judge_resting(draft: Draft, key: ObjectKey) -> Outcome | None:
    """What was said of it; None when it is not at rest."""
    known = draft.resting_placements.get(key)
    return Done(known.reason, known.message) if known else None


def remember_resting(draft: Draft, outcomes: Mapping[ObjectKey, Outcome]) -> None:
    """After all was said: who has come to rest in this plan."""
    touched = {each.key for each in (*draft.actions, *draft.statuses, *draft.notes)}
    for key, outcome in outcomes.items():
        if key in draft.resting or key in touched or not isinstance(outcome, Done):
            continue
        if any(sight.instance.key in touched for sight in draft.sights_of(key)):
            continue
        seen = _observe_rest(draft, key, draft.placements[key])
        if seen is not None:
            draft.resting_placements[key] = RestingPlacement(
                seen, draft.progressing[key].revision, outcome.message, ReadyReason(outcome.reason)
            )


def _observe_rest(draft: Draft, key: ObjectKey, placement: Placement) -> tuple[object, ...] | None:
    """All that is decided and said about it comes from this; None while anything of it is under way."""
    parts: list[object] = [placement, draft.models.get(model_key(key, placement))]
    for sight in draft.sights_of(key):
        if not _is_serving(draft, sight):
            return None
        parts.append(sight.instance)
        for member in sight.members:
            node = member.node
            if node is None or node.report is None:
                return None
            parts += (member.report, node.node, node.report.address, node.report.machine)
    return tuple(parts)


def _is_serving(draft: Draft, sight: Sight) -> bool:
    if sight.phase is not MemberPhase.READY or not sight.is_confirmed:
        return False
    if sight.instance.spec.goal is not InstanceGoal.RUN or sight.instance.metadata.deletion_timestamp is not None:
        return False
    each = sight.id
    return not (each in draft.lost or each in draft.absent or each in draft.failed or each in draft.unreachable)
