"""Arbitrary worlds for properties of `plan`: whatever objects, reports and demands there may be, sensible or not."""

from covey_api.instance import Instance, InstanceGoal, MemberPhase
from covey_api.kinds import Kind
from covey_api.messages import AskAnswer, Demand, EndpointDemand, MemberReport, Order, PoolReading, Progress, Report
from covey_api.meta import ObjectMeta
from covey_api.node import Node, NodeSpec
from covey_api.placement import ContextWish, Rollout, RolloutStrategy
from covey_api.reasons import FailureCause
from covey_controller.reconcile.revision import revision_of
from covey_controller.reconcile.sights import AgentView
from covey_controller.reconcile.world import GatewayView, Memory, World
from hypothesis import strategies as st

from kit import builders, worlds

NODES = ("a", "b", "c")
NOW = 1000.0
MODEL = builders.model()
CURRENT = revision_of(builders.placement(), MODEL)
orders = st.none() | st.integers(0, 9).map(lambda serial: Order(term=1, serial=serial))


@st.composite
def instances(draw: st.DrawFn) -> tuple[Instance, ...]:
    made: list[Instance] = []
    for index in range(draw(st.integers(0, 4))):
        name = draw(st.sampled_from(("smollm2", "other")))
        made.append(
            builders.instance(
                f"{name}-{index}",
                node=draw(st.sampled_from(NODES)),
                instance_id=f"{index + 100:016x}",
                revision=draw(st.sampled_from((CURRENT, "r1-000000000000"))),
                goal=draw(st.sampled_from(InstanceGoal)),
                attempt=draw(st.integers(1, 3)),
            )
        )
    return tuple(made)


@st.composite
def agents(draw: st.DrawFn, known: tuple[Instance, ...]) -> tuple[AgentView, ...]:
    """Nodes that report some of what is known, and perhaps something that isn't."""
    stray = builders.instance("smollm2-9", node=draw(st.sampled_from(NODES)), instance_id="f" * 16)
    views: list[AgentView] = []
    for node in draw(st.lists(st.sampled_from(NODES), unique=True)):
        here = [each for each in (*known, stray) if each.spec.members[0].node == node and draw(st.booleans())]
        reports = [
            worlds.member_report(
                each,
                draw(st.sampled_from(MemberPhase)),
                attempt=draw(st.integers(1, 3)),
                cause=draw(st.none() | st.sampled_from(FailureCause)),
            )
            for each in here
        ]
        facts = draw(st.none() | st.sampled_from((worlds.facts(), worlds.facts(1 << 30))))
        report = worlds.report(
            reports,
            facts=facts,
            applied=draw(orders),
        )
        if draw(st.booleans()):
            report = report.model_copy(update={"members": None})
        views.append(
            AgentView(
                node,
                seen=draw(st.sampled_from((0.0, 900.0, 995.0, NOW))),
                report=report if draw(st.booleans()) else None,
                disconnected=draw(st.none() | st.sampled_from((900.0, 999.9))),
            )
        )
    return tuple(views)


@st.composite
def arbitrary_worlds(draw: st.DrawFn) -> World:
    known = draw(instances())
    objects: list[Kind] = list(known)
    if draw(st.booleans()):
        objects.append(draw(st.sampled_from((MODEL, builders.model(known=False)))))
    if draw(st.booleans()):
        objects.append(
            builders.placement(
                replicas=draw(st.integers(0, 4)),
                suspend=draw(st.booleans()),
                context=ContextWish(tokens=draw(st.none() | st.sampled_from((256, 8192)))),
                rollout=Rollout(strategy=draw(st.sampled_from(RolloutStrategy))),
            )
        )
    for node in draw(st.lists(st.sampled_from(NODES), unique=True)):
        deleted = draw(st.sampled_from((None, "2026-01-01T00:00:00Z")))
        objects.append(
            Node(
                metadata=ObjectMeta(name=node, uid=f"uid-{node}", deletion_timestamp=deleted, finalizers=builders.HELD),
                spec=NodeSpec(unschedulable=draw(st.booleans())),
            )
        )
    demand = Demand(
        gateway="g",
        address="http://127.0.0.1:1",
        applied=draw(orders),
        endpoints=tuple(
            EndpointDemand(instance_id=each.spec.instance_id, in_flight=draw(st.integers(0, 1))) for each in known
        ),
    )
    gateways = (
        GatewayView("g", seen=draw(st.sampled_from((0.0, NOW - 3, NOW))), connected=draw(st.booleans()), demand=demand),
    )
    is_complete = draw(st.booleans())
    return worlds.world(
        *objects,
        led_since=draw(st.sampled_from((0.0, NOW - 5, NOW - 2, NOW))),
        agents=draw(agents(known)),
        gateways=draw(st.sampled_from((gateways, ()))),
        answers={"x": AskAnswer(id="x", error="?")},
        memory=Memory(complete=is_complete, planned_at=draw(st.sampled_from((None, 10.0, NOW - 1)))),
    )


@st.composite
def next_reports(draw: st.DrawFn, before: Report) -> Report:
    """What an agent that said this may say next: little of it is new."""
    members = tuple(_next_member(draw, each) for each in before.members or ())
    changes: dict[str, object] = {
        "sequence": before.sequence + draw(st.sampled_from((1, 1, 1, 0, -1))),
        "full": draw(st.booleans()),
        "applied": draw(st.just(before.applied) | orders),
        "readings": (PoolReading(name="Host", available_bytes=draw(st.integers(0, 1 << 33))),),
        "members": draw(st.sampled_from((before.members, None, members, members[1:]))),
        "facts": draw(st.sampled_from((before.facts, None, worlds.facts(1 << 30)))),
        "blobs": draw(st.sampled_from((before.blobs, ("d" * 64,)))),
        "boot_id": draw(st.sampled_from((before.boot_id,) * 4 + ("another",))),
    }
    return before.model_copy(update=changes)


def _next_member(draw: st.DrawFn, member: MemberReport) -> MemberReport:
    progress = Progress(step="model", done_bytes=draw(st.integers(0, 10)), total_bytes=10)
    changes: dict[str, object] = {
        "phase": draw(st.sampled_from((member.phase, member.phase, *MemberPhase))),
        "progress": draw(st.sampled_from((member.progress, progress))),
        "port": draw(st.sampled_from((member.port, 40_001))),
        "restarts": draw(st.sampled_from((member.restarts, member.restarts + 1))),
        "instance": draw(st.sampled_from((member.instance, None))),
    }
    return member.model_copy(update=changes)
