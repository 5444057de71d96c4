"""Replicas that failed: another lane or node at once where one has room, never for ever in one place, never without
a wait."""

from collections import Counter

import pytest
from covey_api.engines import Compute
from covey_api.instance import Costs, Instance, InstanceGoal, Member, MemberPhase
from covey_api.meta import Condition
from covey_api.placement import ContextWish, Failure, Placement, PlacementStatus
from covey_api.reasons import EventReason, FailureCause, ReadyReason
from covey_controller.reconcile.failures import Fault, barred_of
from covey_controller.reconcile.revision import revision_of
from covey_controller.reconcile.why import explain
from covey_planner.types import Barred
from kit import builders
from kit.worlds import FakeGateway, Worldlet

# Two replicas of 4 slots of 8192 tokens don't fit into this, beside the node's reserve of a GiB.
ONE_BYTES = 2_500_000_000
CARD = builders.lane(compute=Compute.CUDA, pool="Cuda0")
REFUSED = FailureCause.INSUFFICIENT_MEMORY


def fleet(*nodes: str, cards: int = 0, total_bytes: int = 8 * builders.GIB, **spec: object) -> Worldlet:
    """Nodes, each with a card of so many bytes where there are any, and one wish; nothing has happened yet."""
    story = Worldlet()
    story.put(builders.model(), builders.placement("smollm2", model=None, **spec))
    story.add_agents(*nodes, total_bytes=total_bytes)
    for agent in story.agents.values() if cards else ():
        agent.lanes, agent.cards = (CARD, builders.lane()), {"Cuda0": cards}
    story.gateways["g"] = FakeGateway()
    return story


def refuses_card(instance: Instance) -> FailureCause | None:
    return REFUSED if instance.spec.compute is Compute.CUDA else None


def status_of(story: Worldlet) -> PlacementStatus:
    return next(item for item in story.objects.values() if isinstance(item, Placement)).status


def ready(story: Worldlet) -> Condition:
    return next(each for each in status_of(story).conditions if each.type == "Ready")


def lanes_in_use(story: Worldlet) -> list[tuple[str, Compute]]:
    return [(each.spec.members[0].node, each.spec.compute) for each in story.instances()]


def starts(story: Worldlet) -> int:
    return sum(len(agent.started) for agent in story.agents.values())


def test_refused_replica_moves_to_another_lane_of_its_node_at_once() -> None:
    story = fleet("a", cards=8 * builders.GIB)
    story.agents["a"].fail = refuses_card
    story.run(20)
    assert lanes_in_use(story) == [("a", Compute.CPU)]
    assert ready(story).reason == ReadyReason.SERVING
    assert [(each.engine, each.pool, each.cause) for each in status_of(story).failures] == [
        (CARD.engine, "Cuda0", REFUSED)
    ]
    text, _ = explain(story.observe(), story.now, builders.placement().key)
    assert "failed on node 'a' (LlamaServer, pool 'Cuda0'): InsufficientMemory: it broke" in text
    story.run(600)
    assert starts(story) == 2, "what serves is not moved, and the lane that refused is not tried for it"


def test_failure_that_is_not_of_memory_keeps_its_replica_on_its_lane() -> None:
    story = fleet("a", cards=8 * builders.GIB)
    story.agents["a"].fail = lambda i: FailureCause.ARTIFACT_UNAVAILABLE if i.spec.attempt == 1 else None
    story.run(60)
    assert lanes_in_use(story) == [("a", Compute.CUDA)]
    assert story.instances()[0].spec.attempt == 2


def test_place_that_needs_what_the_refused_one_holds_is_taken_when_that_has_left() -> None:
    """Its engine on the card holds memory of the machine too; the CPU's lane fits only without it."""
    story = fleet("a", cards=8 * builders.GIB, total_bytes=ONE_BYTES, context=ContextWish(tokens=8192))
    story.agents["a"].fail = refuses_card
    held: list[int] = []
    for _ in range(30):
        story.step()
        held.append(sum(each.spec.members[0].bytes_in("Host") for each in story.instances()))
    assert lanes_in_use(story) == [("a", Compute.CPU)]
    assert max(held) <= ONE_BYTES - builders.GIB
    why = [note.message for note in story.notes if note.reason == EventReason.DRAIN_STARTED]
    assert why == ["it failed; lane LlamaServer/Cpu of node 'a' takes it when this one has left"]


def test_every_lane_refuses_and_each_is_tried_again_ever_less_often() -> None:
    story = fleet("a", "b", cards=8 * builders.GIB)
    for agent in story.agents.values():
        agent.fail = lambda _: REFUSED
    story.run(20)
    assert starts(story) == 4, "each lane of each node once, without a wait"
    assert ready(story).reason == ReadyReason.ENGINE_FAILED
    assert "InsufficientMemory: it broke" in ready(story).message
    story.run(1200)
    before = starts(story)
    story.run(600)
    placed = [note.message.split(",") for note in story.notes if note.reason == EventReason.CREATED]
    tried = Counter((node, lane) for node, lane, *_ in placed)
    assert len(tried) == 4
    assert min(tried.values()) >= 2, "none is forgotten for another"
    assert starts(story) - before <= 600 / 40, "the waits have grown"
    running = [each for each in story.instances() if each.spec.goal is InstanceGoal.RUN]
    assert len(running) == 1


def test_node_that_recovers_takes_what_another_refuses_for_ever() -> None:
    story = fleet("a", "b")
    story.agents["a"].fail = lambda _: FailureCause.EXITED
    story.agents["b"].fail = lambda _: REFUSED
    story.run(15)
    assert lanes_in_use(story) == [("b", Compute.CPU)]
    story.agents["a"].fail = lambda _: None
    story.run(60)
    assert lanes_in_use(story) == [("a", Compute.CPU)]
    assert ready(story).reason == ReadyReason.SERVING


def test_stamp_made_from_facts_that_were_wrong_is_given_up_when_they_are_corrected() -> None:
    story = fleet("a", total_bytes=64 * builders.GIB, concurrency=8)
    agent = story.agents["a"]
    small = ONE_BYTES - builders.GIB
    agent.fail = lambda i: REFUSED if i.spec.members[0].bytes_in("Host") > small else None
    story.run(30)
    wrong = story.instances()[0]
    assert ready(story).reason == ReadyReason.ENGINE_FAILED
    agent.total_bytes = ONE_BYTES
    story.run(15)
    assert ready(story).reason == ReadyReason.SERVING
    assert story.instances()[0].spec.options.context_tokens < wrong.spec.options.context_tokens


def test_stamp_from_before_the_reserve_of_devices_keeps_its_place_after_a_failure() -> None:
    """All of the card is its own, to the last byte."""
    story = fleet("a", cards=8 * builders.GIB)
    story.agents["a"].lanes = (CARD,)
    story.run(15)
    before = story.instances()[0]
    held = {"Cuda0": before.spec.members[0].bytes_in("Cuda0")}
    story.agents["a"].cards = held
    story.agents["a"].fail = lambda i: FailureCause.EXITED if i.spec.attempt == 1 else None
    member = story.agents["a"].members[before.spec.instance_id]
    failed = {"phase": MemberPhase.FAILED, "port": 0, "cause": FailureCause.EXITED, "message": "it broke"}
    story.agents["a"].members[before.spec.instance_id] = member.model_copy(update=failed)
    story.run(60)
    (after,) = story.instances()
    assert (after.spec.instance_id, after.spec.attempt) == (before.spec.instance_id, 2)
    assert ready(story).reason == ReadyReason.SERVING


def test_wish_that_true_facts_refuse_says_so_in_bytes_and_holds_nothing() -> None:
    story = fleet("a", total_bytes=64 * builders.GIB, context=ContextWish(tokens=8192), concurrency=16)
    agent = story.agents["a"]
    agent.fail = lambda _: REFUSED
    story.run(30)
    agent.total_bytes = ONE_BYTES
    story.run(10)
    assert story.instances() == []
    assert ready(story).reason == ReadyReason.NOT_PLACED
    assert "bytes) short" in ready(story).message
    writes = story.writes
    story.run(600)
    assert story.writes == writes


def test_replica_that_is_refused_beside_one_that_runs_is_not_tried_without_a_wait() -> None:
    """What runs says that the first of them fits, and nothing of a second."""
    story = fleet("a")
    story.run(15)
    first = story.instances()[0].spec.instance_id
    story.agents["a"].fail = lambda i: REFUSED if i.spec.instance_id != first else None
    story.put(builders.placement(replicas=2))
    story.run(300)
    assert starts(story) - 1 <= 6
    assert first in {each.spec.instance_id for each in story.instances()}


def test_old_revision_that_serves_says_nothing_of_a_new_one_that_fails() -> None:
    story = fleet("a", "b")
    story.run(15)
    old = story.instances()[0].spec.revision
    for agent in story.agents.values():
        agent.fail = lambda i: None if i.spec.revision == old else FailureCause.EXITED
    story.put(builders.placement(context=ContextWish(tokens=1024)))
    story.run(300)
    assert starts(story) - 1 <= 8
    assert len(story.routed()) == 1


def test_an_old_replica_makes_room_where_the_new_revision_failed_once() -> None:
    """What failed there is gone, and its wait is over."""
    story = fleet("a", total_bytes=ONE_BYTES, context=ContextWish(tokens=8192))
    story.run(20)
    rolled = builders.placement(context=ContextWish(tokens=8191))
    revision = revision_of(rolled, builders.model())
    failed = Failure(
        node="a", engine=CARD.engine, pool="", revision=revision, cause=FailureCause.NOT_READY_IN_TIME, message=""
    )
    story.put(rolled.model_copy(update={"status": PlacementStatus(failures=(failed,))}))
    story.run(20)
    assert [each.spec.revision for each in story.instances()] == [revision]
    assert ready(story).reason == ReadyReason.SERVING


def test_many_nodes_that_all_fail_are_not_gone_round_faster_than_one() -> None:
    story = fleet(*(f"n{index:02}" for index in range(12)))
    for agent in story.agents.values():
        agent.fail = lambda _: FailureCause.EXITED
    story.run(1200)
    before = starts(story)
    story.run(600)
    assert starts(story) - before <= 600 / 40


@pytest.mark.parametrize(
    ("pools", "short", "barred"),
    [
        (("Cuda0", "Host"), "Cuda0", "Cuda0"),
        (("Cuda0", "Host"), "Host", ""),
        (("Cuda0", "Cuda1", "Host"), "Cuda1", "Cuda1"),
        (("Host",), "Host", "Host"),
        (("Cuda0", "Host"), "", "Cuda0"),
    ],
    ids=[
        "the lane's own",
        "the host's: the processor needs more",
        "another of a split",
        "the processor's",
        "old",
    ],
)
def test_pool_that_is_short_says_which_lanes_are_not_tried_next(
    pools: tuple[str, ...], short: str, barred: str
) -> None:
    member = Member(node="a", costs=tuple(Costs(pool=pool, weights_bytes=1) for pool in pools))
    spec = builders.instance("smollm2-0", members=(member,)).spec
    assert barred_of(spec, Fault("a", REFUSED, "too little", short)) == Barred("a", spec.engine, barred)
