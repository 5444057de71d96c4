"""From one Placement to its Instances: who leaves, who comes and where, who is tried again.

Order of decisions for one Placement:

1. Who leaves by counting alone (`rollout`).
2. Failed ones of the wished revision: a place elsewhere, else the next attempt where they are (`retrying`).
3. Missing ones: placed by the planner, beside old ones where memory allows and their window does not shrink by it;
   else, one after the other, an old one makes room, and only if the new one then fits (as few as it takes, where one
   is not enough). What has to go, and serves, leaves after that, or at once if nothing can replace it.
4. What still has no place: what nobody asks leaves for what clients ask for (`swapping`), what is of lower priority if
   the Placement says so (`preempting`).

A revision that fits nowhere, or whose Model is unknown, changes nothing that runs.
"""

from collections.abc import Sequence

from covey_api.instance import Instance, InstanceGoal, MemberPhase
from covey_api.kinds import ObjectKey
from covey_api.model import Model
from covey_api.placement import Placement, RolloutStrategy
from covey_planner.choice import choose
from covey_planner.types import Decision, Wish

from covey_controller.reconcile.draft import Draft, Progressing
from covey_controller.reconcile.failures import fault_of, plan_failures
from covey_controller.reconcile.making import InstanceMaker, next_wish
from covey_controller.reconcile.names import ordinal_of
from covey_controller.reconcile.preempting import make_way
from covey_controller.reconcile.retrying import choose_with_retries, retry_failed
from covey_controller.reconcile.revision import revision_of
from covey_controller.reconcile.rollout import (
    EVICTED,
    Replica,
    Standing,
    choose_evicted,
    choose_leaving,
    count_creatable,
    count_missing,
    order_of_leaving,
)
from covey_controller.reconcile.sights import Sight
from covey_controller.reconcile.wanted import model_key, wanted_replicas
from covey_controller.reconcile.world import Revised

_UNSERVED = frozenset({MemberPhase.PENDING, MemberPhase.FETCHING, MemberPhase.STARTING, MemberPhase.STOPPED})


def plan_placement(draft: Draft, key: ObjectKey, placement: Placement) -> None:
    """Decide about one Placement; what was decided is in `draft.progressing[key]`."""
    model = draft.models.get(model_key(key, placement))
    revision = _observe_revision(draft, key, placement, model) if model else None
    progressing = Progressing(revision=revision, wanted=wanted_replicas(placement, draft.scaled.get(key)))
    draft.progressing[key] = progressing
    progressing.failures = plan_failures(draft, key, placement, revision)
    replicas = _leave(draft, key, revision, progressing.wanted)
    is_whole = count_missing(replicas, progressing.wanted) == 0
    if (
        model is not None
        and revision is not None
        and not (is_whole and all(r.standing is not Standing.FAILED for r in replicas))
    ):
        wish = next_wish(draft, key, placement, model, progressing.failures)
        maker = InstanceMaker(draft, key, placement, model, revision)
        retry_failed(maker, wish, [replica.name for replica in replicas if replica.standing is Standing.FAILED])
        _place_missing(maker, wish, observe_replicas(draft, key, revision), progressing)
    _evict(draft, key, revision)


def _evict(draft: Draft, key: ObjectKey, revision: str | None) -> None:
    """Who has to go, goes: after what replaces it serves, if anything can; at once, if nothing can."""
    if draft.is_out_of_ids or any(s.instance.spec.goal is InstanceGoal.DRAIN for s in draft.sights_of(key)):
        return
    names = choose_evicted(observe_replicas(draft, key, revision))
    for name in names:
        draft.drain(draft.sights[ObjectKey("Instance", key.namespace, name)], EVICTED)


def _observe_revision(draft: Draft, key: ObjectKey, placement: Placement, model: Model) -> str:
    known = draft.world.memory.revisions.get(key)
    annotations = placement.metadata.annotations
    made_from = (placement.spec, annotations, model.spec)
    if known is None or any(
        old is not new for old, new in zip((known.placement, known.annotations, known.model), made_from, strict=True)
    ):
        known = Revised(*made_from, revision_of(placement, model))
    draft.revisions[key] = known
    return known.revision


def observe_replicas(draft: Draft, key: ObjectKey, revision: str | None) -> list[Replica]:
    """The Placement's Instances with goal Run, by name."""
    running = [sight for sight in draft.sights_of(key) if sight.instance.spec.goal is InstanceGoal.RUN]
    return [_replica(draft, sight, revision) for sight in running]


def _replica(draft: Draft, sight: Sight, revision: str | None) -> Replica:
    metadata = sight.instance.metadata
    nodes = [member.node.node for member in sight.members if member.node and member.node.node]
    is_evicted = any(each.deletion_timestamp is not None for each in (metadata, *(n.metadata for n in nodes)))
    return Replica(
        name=metadata.name,
        age=(metadata.creation_timestamp, ordinal_of(metadata.name)),
        standing=standing_of(draft, sight),
        is_current=not is_evicted and (revision is None or sight.instance.spec.revision == revision),
        is_evicted=is_evicted,
    )


def standing_of(draft: Draft, sight: Sight) -> Standing:
    """1. Failed. 2. Lost. 3. Ready, and its node is there to say so. 4. Has not served in this attempt. 5. Recovers."""
    if fault_of(draft, sight) is not None:
        return Standing.FAILED
    if sight.id in draft.lost:
        return Standing.LOST
    if sight.phase is MemberPhase.READY and sight.is_confirmed:
        return Standing.READY
    restarts = sum(member.report.restarts for member in sight.members if member.report)
    return Standing.STARTING if sight.phase in _UNSERVED and restarts == 0 else Standing.RECOVERING


def _leave(draft: Draft, key: ObjectKey, revision: str | None, wanted: int) -> list[Replica]:
    """Drain who leaves; return who stays."""
    replicas = observe_replicas(draft, key, revision)
    why = {leaving.name: leaving.why for leaving in choose_leaving(replicas, wanted)}
    for sight in draft.sights_of(key):
        if reason := why.get(sight.instance.metadata.name):
            draft.drain(sight, reason)
    return [replica for replica in replicas if replica.name not in why]


def _place_missing(maker: InstanceMaker, wish: Wish, replicas: Sequence[Replica], progressing: Progressing) -> None:
    """Create what is missing, or make room for it."""
    wanted = progressing.wanted
    if count_missing(replicas, wanted) == 0:
        return
    olds = order_of_leaving(replicas)
    if maker.placement.spec.rollout.strategy is RolloutStrategy.RECREATE and (olds or _has_old_draining(maker)):
        _recreate(maker, wish, olds, progressing)
        return
    count = count_creatable(replicas, wanted)
    if count == 0:
        return
    wish, decision = choose_with_retries(maker, wish, count)
    progressing.decision = decision if len(decision.chosen) < count else None
    leaving = [*maker.draining(), *(maker.sight(old.name).instance for old in olds[:1])]
    if leaving and decision.pending is None and not _is_room_beside(maker, wish, leaving, decision):
        _make_room(maker, wish, replicas, olds, progressing)
        return
    for chosen in decision.chosen:
        maker.create(chosen)
    if wish.spread is not None and decision.chosen:
        # Of several nodes one group is chosen at a time: the next turn tells what still fits, and who has to leave.
        progressing.decision = None
        return
    if decision.pending is None and len(decision.chosen) < count and not leaving:
        progressing.makes_room = make_way(maker, wish)


def _is_room_beside(maker: InstanceMaker, wish: Wish, leaving: Sequence[Instance], decision: Decision) -> bool:
    """Whether a new one may start beside those that leave: it fits, and not by giving up window for it.

    A window is stamped once. One that starts in what the others leave free would stay small when they are gone.
    """
    if not decision.chosen:
        return False
    beside = decision.chosen[0].options.context_tokens
    is_exact = wish.context_tokens is not None and wish.min_context_tokens is None
    if is_exact or beside >= max(i.spec.options.context_tokens for i in leaving):
        return True
    with maker.draft.without(*leaving) as roster:
        instead = choose(wish, roster, 1)
    return not instead.chosen or beside >= instead.chosen[0].options.context_tokens


def _recreate(maker: InstanceMaker, wish: Wish, olds: Sequence[Replica], progressing: Progressing) -> None:
    """Drain all old ones at once, if the new revision fits without them; what follows waits until they are gone."""
    sights = [maker.sight(old.name) for old in olds]
    with maker.draft.without(*(sight.instance for sight in sights)):
        _, decision = choose_with_retries(maker, wish, 1)
    if not decision.chosen:
        progressing.decision = decision
        return
    for sight in sights:
        maker.draft.drain(sight, "the new revision takes its place")


def _make_room(
    maker: InstanceMaker, wish: Wish, replicas: Sequence[Replica], olds: Sequence[Replica], progressing: Progressing
) -> None:
    """Drain one old one, if the new revision then fits; the next one only when what came before serves.

    Where it is larger than any old one and what is free, as few as it takes, in their order: else it would never come.
    """
    is_settling = any(replica.is_current and replica.standing is not Standing.READY for replica in replicas)
    if maker.draining() or is_settling:
        progressing.decision = None
        return
    sights = [maker.sight(old.name) for old in olds]
    what = "what replaces it" if all(old.is_evicted for old in olds) else "the new revision"
    together = [sights[:count] for count in range(2, len(sights) + 1)]
    for leaving in [*([sight] for sight in sights), *together]:
        with maker.draft.without(*(sight.instance for sight in leaving)) as roster:
            decision = choose(wish, roster, 1)
        progressing.decision = None if decision.chosen else decision
        if decision.chosen:
            for sight in leaving:
                maker.draft.drain(sight, f"it makes room for {what}, which does not fit beside it")
            return


def _has_old_draining(maker: InstanceMaker) -> bool:
    return any(instance.spec.revision != maker.revision for instance in maker.draining())
