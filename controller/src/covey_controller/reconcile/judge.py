"""Outcomes: what can be said about a Placement, a Model, an Instance or a Node as it stands.

Messages are functions of state: no times, counters, ports, process ids or free memory in them.
"""

from collections.abc import Mapping, Sequence

from covey_api.engines import EngineName
from covey_api.instance import InstanceGoal, MemberPhase
from covey_api.kinds import ObjectKey
from covey_api.model import CompanionStatus, Model, Variant, VariantStatus
from covey_api.placement import Placement
from covey_api.reasons import AccessKeyReason, ModelReason, NodeReason, ReadyReason
from covey_planner.text import render_refusals
from covey_planner.types import NodeState

from covey_controller.reconcile.asks import can_read
from covey_controller.reconcile.companions import find_companion
from covey_controller.reconcile.draft import Draft, Progressing
from covey_controller.reconcile.failures import fault_of
from covey_controller.reconcile.forming import waits_for
from covey_controller.reconcile.outcomes import Done, Outcome, Stalled, Waiting
from covey_controller.reconcile.sights import NodeSight, Sight
from covey_controller.reconcile.wanted import fresh_status, model_key

_REASON_OF_PHASE = {
    MemberPhase.PENDING: ReadyReason.ARTIFACTS_PENDING,
    MemberPhase.FETCHING: ReadyReason.ARTIFACTS_PENDING,
    MemberPhase.STOPPED: ReadyReason.ENGINE_STARTING,
    MemberPhase.BACKOFF: ReadyReason.ENGINE_STARTING,
    MemberPhase.STARTING: ReadyReason.ENGINE_STARTING,
}


def judge_placement(draft: Draft, key: ObjectKey, placement: Placement) -> Outcome:
    """The first of these that holds:

    1. Its Model is missing. 2. None wished: scaled to zero, once all are gone.
    3. As many ready of the wished revision as wished: serving. 4. Nothing runs, and no node has an engine for it.
    5. A replica failed. 6. The planner waits, or others make room. 7. A replica, or one in the place of a lost
    one, found no place. 8. A node is silent.
    9. A new revision is on its way. 10. Replicas are starting.
    """
    progressing = draft.progressing[key]
    sights = draft.sights_of(key)
    if progressing.wanted == 0:
        return _judge_zero(sights)
    if progressing.revision is None:
        return Stalled(ReadyReason.MODEL_NOT_FOUND, explain_missing_model(draft, model_key(key, placement)))
    running = [sight for sight in sights if sight.instance.spec.goal is InstanceGoal.RUN]
    current = [sight for sight in running if sight.instance.spec.revision == progressing.revision]
    olds = [sight for sight in running if sight.instance.spec.revision != progressing.revision]
    ready = [sight for sight in current if sight.phase is MemberPhase.READY and sight.is_confirmed]
    if len(ready) >= progressing.wanted:
        return Done(ReadyReason.SERVING, f"{progressing.wanted} of {progressing.wanted} replicas are ready")
    if not running and (words := explain_missing_engine(draft, draft.models[model_key(key, placement)])):
        return Stalled(ReadyReason.NO_USABLE_ENGINE, f"0 of {progressing.wanted} replicas are ready; {words}")
    return _judge_short(draft, progressing, current, olds, len(ready))


def explain_missing_model(draft: Draft, wanted: ObjectKey) -> str:
    """Words for a reference to nothing; also where else that name is, which is no help and the likely reason."""
    message = f"`spec.modelRef.name` must name a Model in namespace '{wanted.namespace}'; there is no '{wanted.name}'"
    elsewhere = sorted(key.namespace for key in draft.models if key.name == wanted.name)
    if not elsewhere:
        return message
    return (
        f"{message} in it. Namespace '{elsewhere[0]}' has one, which a Placement of another namespace can't name: add "
        f"the Model to '{wanted.namespace}', or the Placement to '{elsewhere[0]}'"
    )


def explain_missing_engine(draft: Draft, model: Model) -> str:
    """Words when every node that told its lanes has none for any variant; empty otherwise, or while none has told."""
    told = [
        node
        for node in draft.nodes.values()
        if node.state is NodeState.READY and node.report is not None and node.report.lanes is not None
    ]
    if not told or any(can_read(node, variant) for node in told for variant in model.spec.variants):
        return ""
    engines = sorted({engine.value for variant in model.spec.variants for engine in variant.engines})
    cure = _LLAMA_SERVER_CURE if EngineName.LLAMA_SERVER in engines else _NAMED_CURE
    found = [
        f"node '{node.name}' says of {each.engine}: {each.message}"
        for node in sorted(told, key=lambda node: node.name)
        for each in (node.report.unusable if node.report else None) or ()
        if each.engine.value in engines
    ]
    what = f". {found[0]}" if found else "; the agent's log says what it found"
    return f"no node offers {' or '.join(engines)}. {cure}{what}"


_LLAMA_SERVER_CURE = (
    "Install llama.cpp so that `llama-server` is on PATH of a node (macOS: `brew install llama.cpp`), give its path in "
    "the Node's `spec.engines`, or let Covey provide it (Linux x86-64, glibc 2.35 or newer)"
)
_NAMED_CURE = (
    "Name it in a Node's `spec.engines`, with the `path` of a program where Covey can't install it (MLX on an Apple "
    "processor is offered unnamed)"
)


def _judge_zero(sights: Sequence[Sight]) -> Outcome:
    if sights:
        return Waiting(ReadyReason.DRAINING, f"no replica is wished; draining {_names(sights)}")
    return Done(ReadyReason.SCALED_TO_ZERO, "no replica is wished")


def _judge_short(
    draft: Draft, progressing: Progressing, current: Sequence[Sight], olds: Sequence[Sight], ready: int
) -> Outcome:
    serving = f"{ready} of {progressing.wanted} replicas are ready"
    if olds:
        serving = f"{serving} at the new revision, {_names(olds)} {'serves' if len(olds) == 1 else 'serve'} meanwhile"
    for sight in current:
        if fault := fault_of(draft, sight):
            detail = f"instance '{sight.instance.metadata.name}' failed on node '{fault.node}': {fault.cause}"
            return Stalled(ReadyReason.ENGINE_FAILED, f"{serving}; {detail}: {fault.message}")
    decision = progressing.decision
    if decision is not None and decision.pending is not None:
        reason = ReadyReason(decision.pending.reason)
        kind = Stalled if reason is ReadyReason.GEOMETRY_UNAVAILABLE else Waiting
        return kind(reason, f"{serving}; {decision.pending.message}")
    if decision is not None and progressing.makes_room:
        return Waiting(ReadyReason.MAKING_ROOM, f"{serving}; {progressing.makes_room}")
    lost = [sight for sight in current if sight.id in draft.lost]
    if decision is not None and len(current) - len(lost) < progressing.wanted:
        if lost:
            serving = f"{serving}; the node of {_names(lost)} is lost"
        reason = ReadyReason.PARTLY_SERVING if ready else ReadyReason.NOT_PLACED
        return Stalled(reason, f"{serving}; {render_refusals(decision)}")
    silent = [sight for sight in current if sight.unknown_since <= draft.now]
    if silent:
        return Waiting(ReadyReason.NODE_UNKNOWN, f"{serving}; the node of {_names(silent)} is silent")
    if olds:
        return Waiting(ReadyReason.ROLLING_OUT, serving)
    return _judge_starting(current, serving)


def _judge_starting(current: Sequence[Sight], serving: str) -> Outcome:
    unready = [sight for sight in current if sight.phase is not MemberPhase.READY]
    if not unready:
        return Waiting(ReadyReason.ARTIFACTS_PENDING, f"{serving}; the rest is about to be placed")
    last = unready[0]
    phase, who = waits_for(last)
    detail = f"instance '{last.instance.metadata.name}' {who or f'is {last.phase}{_cause(last)}'}"
    return Waiting(_REASON_OF_PHASE.get(phase, ReadyReason.ENGINE_STARTING), f"{serving}; {detail}")


def judge_instance(draft: Draft, sight: Sight) -> Outcome:
    """1. Draining. 2. Failed. 3. Node silent. 4. Ready. 5. On its way."""
    if sight.instance.spec.goal is InstanceGoal.DRAIN:
        return Waiting(ReadyReason.DRAINING, "takes no new request; stops when none is in flight")
    if fault := fault_of(draft, sight):
        return Stalled(ReadyReason.ENGINE_FAILED, f"failed on node '{fault.node}': {fault.cause}: {fault.message}")
    if not sight.is_confirmed:
        return Waiting(ReadyReason.NODE_UNKNOWN, "its node is silent; what it runs may still serve")
    if sight.phase is MemberPhase.READY:
        return Done(ReadyReason.SERVING, "it generated a token")
    phase, who = waits_for(sight)
    reason = _REASON_OF_PHASE.get(phase, ReadyReason.ENGINE_STARTING)
    cause = _cause(sight)
    return Waiting(reason, who or f"{sight.phase}{cause}", warns=bool(cause))


def judge_key(*, is_refused: bool) -> Outcome:
    """It doesn't say whose the other key is: that may be in a namespace that isn't the reader's."""
    if is_refused:
        words = (
            "`spec.hash` must be no older key's; an older AccessKey has it, and this one counts for nothing. Delete it"
        )
        return Stalled(AccessKeyReason.HASH_CONFLICT, f"{words}, and make another key with `covey key create`")
    return Done(AccessKeyReason.ACCEPTED, "gateways take it until it expires")


def judge_model(draft: Draft, model: Model, refused: Mapping[str, str]) -> Outcome:
    """1. An alias is another Model's. 2. A header could not be read. 3. One has not been read. 4. All are known."""
    if refused:
        taken = ", ".join(f"'{alias}' belongs to model '{owner}'" for alias, owner in sorted(refused.items()))
        return Stalled(ModelReason.ALIAS_CONFLICT, f"`spec.aliases` must be unique in the namespace: {taken}")
    statuses = {variant.name: fresh_status(model, variant) for variant in model.spec.variants}
    errors = [f"variant '{name}': {s.error}" for name, s in statuses.items() if s and s.error]
    beside = [(each, role) for each in model.spec.variants for role, _ in each.companions]
    known = {(each.name, role): find_companion(model, each, role) for each, role in beside}
    errors += [f"{role.lower()} of variant '{name}': {s.error}" for (name, role), s in known.items() if s and s.error]
    if errors:
        return Stalled(ModelReason.GEOMETRY_UNAVAILABLE, "; ".join(errors))
    unread = {each.name: f"variant '{each.name}'" for each in model.spec.variants if not _is_read(statuses[each.name])}
    for (name, role), found in known.items():
        if not _is_read(found):
            unread.setdefault(name, f"the {role.lower()} of variant '{name}'")
    waiting = [each for each in model.spec.variants if each.name in unread]
    if len(waiting) == len(model.spec.variants) and (words := explain_missing_engine(draft, model)):
        return Stalled(ModelReason.NO_USABLE_ENGINE, words)
    # What no node here can run holds nothing back beside a variant that one can: a Model for Macs and for Linux is
    # whole on Linux alone.
    for variant in sorted(waiting, key=lambda each: not _can_be_read(draft, each)):
        what = f"the header of {unread[variant.name]} has not been read yet"
        if _can_be_read(draft, variant):
            return Waiting(ModelReason.GEOMETRY_PENDING, what)
        what += f": no node is there that offers {' or '.join(variant.engines)}"
        if len(waiting) == len(model.spec.variants):
            return Waiting(ModelReason.GEOMETRY_PENDING, what)
        return Done(ModelReason.RESOLVED, f"what nodes here can run is resolved; {what}")
    return Done(ModelReason.RESOLVED, "every variant is resolved and its header is read")


def _is_read(found: VariantStatus | CompanionStatus | None) -> bool:
    return found is not None and found.artifact is not None


def _can_be_read(draft: Draft, variant: Variant) -> bool:
    return any(can_read(node, variant) for node in draft.nodes.values())


def judge_node(node: NodeSight) -> Outcome:
    """1. Silent. 2. Being deleted. 3. Facts on their way. 4. Reporting."""
    if node.state is NodeState.UNKNOWN:
        return Waiting(NodeReason.NODE_UNKNOWN, "its agent is silent; what it runs may still serve")
    if node.node is not None and node.node.metadata.deletion_timestamp is not None:
        return Waiting(NodeReason.DELETING, "what it runs is being drained")
    if node.state is NodeState.FACTS_PENDING:
        return Waiting(NodeReason.FACTS_PENDING, "its agent has not reported its facts yet")
    return Done(NodeReason.REPORTING, "its agent reports")


def _names(sights: Sequence[Sight]) -> str:
    return ", ".join(f"'{sight.instance.metadata.name}'" for sight in sights)


def _cause(sight: Sight) -> str:
    for member in sight.members:
        if member.report is not None and member.report.cause is not None:
            return f" after {member.report.cause}: {member.report.message}"
    return ""
