"""What becomes of replicas whose attempt failed: another lane or node, or the next attempt where they are.

A failed Instance holds its memory from its stamp, although nothing of it runs. So places are looked for as they are
without it, and what it holds is given back (it leaves) where another place needs that, or where its stamp is more than
its node has by the facts of now: such a stamp, made from facts that were wrong, never fits again.

It must not try for ever in one place what another one has room for, and it must not go round without a wait:

1. Lanes and nodes on which the revision has not failed are tried at once, each once.
2. When its own lane is due again, others whose backoff is over come first, those that failed least often before all:
   a preferred lane that always fails must not hide another one. Then its own.

So each try after the first round waits for the backoff of the lane that failed last. What an agent found free decides
no window: that is the ceiling's, from totals alone, and a program that takes memory for a minute would narrow a replica
for good.
"""

from collections.abc import Sequence
from dataclasses import replace

from covey_api.engines import Lane
from covey_api.instance import Costs, InstanceSpec
from covey_api.reasons import EventReason
from covey_planner.choice import Roster, choose
from covey_planner.types import Barred, Chosen, Decision, Wish

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.failures import barred_of, due_at, fault_of
from covey_controller.reconcile.holding import held_bytes
from covey_controller.reconcile.making import InstanceMaker, find_pin
from covey_controller.reconcile.sights import Sight
from covey_controller.reconcile.world import Spot


def retry_failed(maker: InstanceMaker, wish: Wish, names: Sequence[str]) -> None:
    """Of this revision.

    1. There is a place elsewhere: another Instance takes it, at once where there is room beside what this one holds,
       else when this one is gone.
    2. By the facts of now it does not fit its node: it leaves, and is placed anew.
    3. Else its next attempt, when that is due; another Instance where its engine would be of another version now, or
       its members' of different ones.
    """
    draft = maker.draft
    for name in names:
        sight = maker.sight(name)
        fault = fault_of(draft, sight)
        if fault is None:
            continue
        own = Spot(maker.key, maker.revision, barred_of(sight.instance.spec, fault))
        with draft.without(sight.instance) as roster:
            place = _choose_elsewhere(maker, wish, own, roster)
            fits = not sight.is_confirmed or _has_room(roster, sight.instance.spec)
        if place is not None:  # 1
            _move(maker, sight, place)
        elif not fits:  # 2
            draft.backoffs.pop(own, None)
            draft.drain(sight, "it failed, and its node has less memory than it needs")
        else:  # 3
            _start_attempt(draft, sight, due_at(draft, own))


def choose_with_retries(maker: InstanceMaker, wish: Wish, count: int) -> tuple[Wish, Decision]:
    """What to ask for, and the planner's answer.

    Where replicas are left without a place, lanes whose backoff is over are asked again: also by whoever looks next for
    a place that somebody else would have to leave.
    """
    decision = choose(wish, maker.draft.roster(), count)
    if decision.pending is not None or len(decision.chosen) == count or not wish.failed:
        return wish, decision
    barred = _not_due(maker, wish)
    if barred == wish.failed:
        return wish, decision
    asked = replace(wish, failed=barred)
    return asked, choose(asked, maker.draft.roster(), count)


def _choose_elsewhere(maker: InstanceMaker, wish: Wish, own: Spot, roster: Roster) -> Chosen | None:
    """Without waits where it has not failed; else, when its own lane is due, where it has failed least often."""
    chosen = choose(wish, roster, 1).chosen
    if chosen or due_at(maker.draft, own) > maker.draft.now:
        return next(iter(chosen), None)
    backoffs = maker.draft.backoffs
    due = wish.failed - _not_due(maker, wish) - {own.barred}
    counts = {each: known.count if (known := backoffs.get(own._replace(barred=each))) else 0 for each in due}
    for most in sorted(set(counts.values())):
        asked = wish.failed - {each for each in due if counts[each] <= most}
        if chosen := choose(replace(wish, failed=asked), roster, 1).chosen:
            return chosen[0]
    return None


def _not_due(maker: InstanceMaker, wish: Wish) -> frozenset[Barred]:
    due = {barred: due_at(maker.draft, Spot(maker.key, maker.revision, barred)) for barred in wish.failed}
    barred = frozenset(each for each, when in due.items() if when > maker.draft.now)
    for each in sorted(barred):
        maker.draft.wake_at(due[each])
    return barred


def _has_room(roster: Roster, spec: InstanceSpec) -> bool:
    """Whether what was stamped is there, by totals and reservations: what is never planned with counts for new places
    only, else a stamp from before that reserve would lose its place by any failure."""
    for node in dict.fromkeys(member.node for member in spec.members):
        view = roster.view(node)
        if view is None:
            return False
        free = {pool.name: pool.keepable_bytes for pool in view.pools}
        if any(count > free.get(pool, 0) for pool, count in held_bytes(view, spec).items()):
            return False
    return True


def _move(maker: InstanceMaker, sight: Sight, place: Chosen) -> None:
    others = ", ".join(f"'{other.node}'" for other in place.others)
    where = f"lane {place.lane.engine}/{place.lane.compute} of node '{place.node}'"
    where += f" together with {others}" if others else ""
    if not all(_is_free(maker, node, costs) for node, costs in place.places):
        maker.draft.drain(sight, f"it failed; {where} takes it when this one has left")
    elif (created := maker.create(place)) is not None:
        maker.draft.drain(sight, f"it failed; '{created.metadata.name}' takes its place on {where}")


def _is_free(maker: InstanceMaker, node: str, taken: Sequence[Costs]) -> bool:
    view = maker.draft.roster().view(node)
    free = {pool.name: pool.unreserved_bytes for pool in view.pools} if view else {}
    return all(costs.total_bytes <= free.get(costs.pool, 0) for costs in taken)


def _start_attempt(draft: Draft, sight: Sight, due: float) -> None:
    spec = sight.instance.spec
    if draft.now < due:
        draft.wake_at(due)
        return
    if (pin := _find_pin_now(draft, spec)) not in (None, spec.engine_version):
        was, now = (f"'{each}'" if each else "none" for each in (spec.engine_version, pin))
        draft.drain(sight, f"it failed, and its pin changed: the version of {spec.engine} was {was} and is {now}")
        return
    if words := _explain_builds(draft, spec):
        draft.drain(sight, f"it failed, and {words}")
        return
    changed = spec.model_copy(update={"attempt": spec.attempt + 1, "term": max(spec.term, draft.world.term)})
    draft.absent.pop(sight.id, None)
    draft.update(sight.instance.model_copy(update={"spec": changed}))
    draft.note(sight.instance.key, EventReason.ATTEMPT_STARTED, f"attempt {changed.attempt}: no other place takes it")


def _find_pin_now(draft: Draft, spec: InstanceSpec) -> str | None:
    """Which version its engine would be stamped with; None: its node has no such lane now."""
    node = spec.members[0].node
    lane = _find_lane(draft, spec, node)
    return find_pin(draft, node, lane) if lane else None


def _explain_builds(draft: Draft, spec: InstanceSpec) -> str:
    """Of several members: which two nodes have another build of the engine by now; empty: all that tell have the same.
    What engines say to each other is one build's own business."""
    told = [(member.node, _find_lane(draft, spec, member.node)) for member in spec.members]
    builds = [(node, lane) for node, lane in told if lane is not None]
    for node, lane in builds[1:]:
        first, known = builds[0]
        if (lane.version, lane.digest) != (known.version, known.digest):
            return (
                f"its nodes have different builds of {spec.engine} now: '{first}' {_build(known)} and '{node}' "
                f"{_build(lane)}"
            )
    return ""


def _build(lane: Lane) -> str:
    return f"{lane.version or 'an unknown version'}{f' ({lane.digest[:12]})' if lane.digest else ''}"


def _find_lane(draft: Draft, spec: InstanceSpec, node: str) -> Lane | None:
    report = known.report if (known := draft.nodes.get(node)) else None
    lanes = (report.lanes if report else None) or ()
    return next((each for each in lanes if (each.engine, each.compute) == (spec.engine, spec.compute)), None)
