"""Which engines are doubted: what gateways see of silence becomes `suspectSince` of an assignment.

A doubt ends nothing. It asks the member's agent to look (`covey_agent.supervisor`), which alone can tell an engine that
computes for minutes from one that is dead: a gateway sees the same of both.

| what live gateways see of a Ready Instance | its members are doubted |
|---|---|
| a request without a byte for `SILENT_SECONDS`, nobody has one meanwhile | from then on, anew each `RENEW_SECONDS` |
| no byte for `IDLE_SECONDS`, whatever is in flight | from then on, anew each `IDLE_SECONDS` |
| anything else, or no gateway lives | not, and no longer |

A renewed doubt is another one: its agent looks again, as what it saw may have changed. The second line finds what
breaks while nobody asks, and what clients give up on too soon for the first. Ages count as they were reported, never
with the time since: a leader that was paused would find everybody silent.
"""

from collections.abc import Mapping

from covey_api.instance import InstanceGoal, MemberPhase
from covey_api.messages import Demand, EndpointDemand
from covey_api.reasons import EventReason

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.drains import live_gateways
from covey_controller.reconcile.sights import Sight
from covey_controller.reconcile.world import Doubt

# Most prompts are read in less; a person begins to wonder.
SILENT_SECONDS = 30.0
# A probe this seldom costs nothing, and a dead engine is found before most who come back.
IDLE_SECONDS = 600.0
# A look takes its agent 20 s on a CPU and 120 s on an accelerator.
RENEW_SECONDS = 120.0


def is_silent(endpoint: EndpointDemand) -> bool:
    """Whether one gateway has waited in vain for `SILENT_SECONDS`, for whatever request."""
    waited, heard = endpoint.oldest_silent_seconds, endpoint.last_byte_seconds
    return waited is not None and waited >= SILENT_SECONDS and (heard is None or heard >= SILENT_SECONDS)


def silent_ids(demand: Demand) -> tuple[str, ...]:
    """instanceIds that wait in vain, sorted: a change is worth a plan."""
    return tuple(sorted(each.instance_id for each in demand.endpoints if is_silent(each)))


def observe_doubts(draft: Draft) -> None:
    """Who is doubted now, by the table above. Each doubt of requests in flight is noted when it begins."""
    heard, silent = _observe_bytes(draft)
    has_gateway = bool(live_gateways(draft))
    doubts: dict[str, Doubt] = {}
    memory: dict[str, float] = {}
    for sight in draft.sights.values():
        if not _is_serving(sight):
            continue
        memory[sight.id] = max(draft.heard.get(sight.id, draft.now), heard.get(sight.id, float("-inf")))
        is_waited_for = sight.id in silent and draft.now >= heard.get(sight.id, float("-inf")) + SILENT_SECONDS
        is_idle = has_gateway and draft.now >= memory[sight.id] + IDLE_SECONDS
        if is_waited_for or is_idle:
            doubts[sight.id] = _renew(draft, sight, is_waited_for=is_waited_for)
    draft.heard, draft.doubts = memory, doubts


def _observe_bytes(draft: Draft) -> tuple[Mapping[str, float], frozenset[str]]:
    """When each was last heard by any gateway, and who is silent for one."""
    heard: dict[str, float] = {}
    silent: set[str] = set()
    for gateway in live_gateways(draft):
        for each in gateway.demand.endpoints if gateway.demand else ():
            if each.last_byte_seconds is not None:
                at = gateway.seen - each.last_byte_seconds
                heard[each.instance_id] = max(at, heard.get(each.instance_id, at))
            if is_silent(each):
                silent.add(each.instance_id)
    return heard, frozenset(silent)


def _is_serving(sight: Sight) -> bool:
    return sight.phase is MemberPhase.READY and sight.is_confirmed and sight.instance.spec.goal is InstanceGoal.RUN


def _renew(draft: Draft, sight: Sight, *, is_waited_for: bool) -> Doubt:
    """The doubt as it was, or another one where it is of another kind, or old."""
    seconds = RENEW_SECONDS if is_waited_for else IDLE_SECONDS
    before = draft.doubts.get(sight.id)
    is_old = before is None or before.is_waited_for is not is_waited_for or draft.now >= before.began + seconds
    doubt = Doubt(draft.world.timestamp, draft.now, is_waited_for) if before is None or is_old else before
    if is_waited_for:
        draft.wake_at(doubt.began + seconds)
        if before is None or not before.is_waited_for:
            message = (
                f"no request on it had a byte for {int(SILENT_SECONDS)} s: its node looks whether the engine still "
                "computes. If it doesn't, it is stopped and replaced"
            )
            draft.note(sight.instance.key, EventReason.DOUBTED, message)
    return doubt
