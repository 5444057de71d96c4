"""Whole lines through `plan` in virtual time: from a wish to served replicas and out again, with things going wrong."""

import pytest
from covey_api.engines import EngineName
from covey_api.instance import Instance, InstanceGoal, InstancePhase, MemberPhase
from covey_api.kinds import ObjectKey
from covey_api.messages import ModelState
from covey_api.meta import MAX_NAME_LENGTH, RETRY_ANNOTATION, Condition, ObjectMeta
from covey_api.model import Model, ModelStatus, VariantStatus
from covey_api.node import Node, NodeReserve, NodeSpec, Taint
from covey_api.placement import (
    ContextWish,
    NodeChoice,
    Placement,
    PlacementStatus,
    Rollout,
    RolloutStrategy,
    Toleration,
)
from covey_api.reasons import EventReason, FailureCause, ModelReason, NodeReason, ReadyReason, RefusalReason
from covey_controller.reconcile.begin import FIRST_REPORTS_SECONDS, LOST_STORE_SECONDS, UNKNOWN_FLEET_SECONDS
from covey_controller.reconcile.outcomes import UpdateInstance
from covey_controller.reconcile.plan import plan
from covey_controller.reconcile.sights import AgentView
from covey_controller.reconcile.status import join_names
from covey_controller.seal import seal_instance
from kit import builders, worlds
from kit.worlds import FakeAgent, FakeGateway, Worldlet

# Of this a GiB is the node's reserve; two replicas of 4 slots of 8192 tokens don't fit into the rest.
TIGHT_BYTES = 2_500_000_000


def fleet(*nodes: str, replicas: int = 1, total_bytes: int = 8 * builders.GIB, **spec: object) -> Worldlet:
    """Nodes, one gateway, one Model and its Placement, run until it serves."""
    story = Worldlet()
    story.put(builders.model(), builders.placement("smollm2", model=None, replicas=replicas, **spec))
    story.add_agents(*(nodes or ("a",)), total_bytes=total_bytes)
    story.gateways["g"] = FakeGateway()
    story.run(15)
    return story


def placement_status(story: Worldlet) -> PlacementStatus:
    return next(o for o in story.objects.values() if isinstance(o, Placement)).status


def ready_condition(story: Worldlet) -> Condition:
    return next(c for c in placement_status(story).conditions if c.type == "Ready")


def test_wish_becomes_served_replicas_and_then_all_is_quiet() -> None:
    story = Worldlet()
    story.put(builders.model(known=False), builders.placement(replicas=2))
    story.add_agents("a", "b")
    story.gateways["g"] = FakeGateway()
    story.run(15)
    assert story.routed() == ["smollm2-0", "smollm2-1"]
    assert ready_condition(story).reason == ReadyReason.SERVING
    assert (placement_status(story).ready, placement_status(story).replicas) == ("2/2", 2)
    assert story.published.endpoints is not None
    (listed,) = story.published.endpoints.models
    weights = builders.artifact()
    assert weights.archive is not None
    assert (listed.weights_bytes, listed.weights_digest) == (weights.size_bytes, weights.archive.sha256)
    writes, serial = story.writes, story.serial
    story.run(300)
    assert (story.writes, story.serial) == (writes, serial)


def test_size_and_digest_of_a_model_are_of_the_first_variant_that_could_be_read() -> None:
    story, known = Worldlet(), builders.model()
    unread = known.spec.variants[0].model_copy(update={"name": "unread", "source": "hf://org/away@main#w.gguf"})
    status = VariantStatus(name=unread.name, source=unread.source, error="404")
    model = known.model_copy(
        update={
            "spec": known.spec.model_copy(update={"variants": (unread, *known.spec.variants)}),
            "status": ModelStatus(variants=(status, *known.status.variants)),
        }
    )
    story.put(model, builders.placement())
    story.run(60)
    assert story.published.endpoints is not None
    (listed,) = story.published.endpoints.models
    assert (listed.weights_bytes, bool(listed.weights_digest)) == (builders.artifact().size_bytes, True)


def test_identity_is_random_and_engines_are_started_once() -> None:
    story = fleet("a", "b", replicas=2)
    ids = [instance.spec.instance_id for instance in story.instances()]
    assert sorted(each for agent in story.agents.values() for each, _ in agent.started) == sorted(ids)
    assert len(set(ids)) == 2


def test_scale_up_and_down_keeps_what_is_healthy() -> None:
    story = fleet("a", "b")
    first = story.instances()[0]
    story.put(builders.placement(replicas=2))
    story.run(10)
    assert story.routed() == ["smollm2-0", "smollm2-1"]
    story.put(builders.placement(replicas=1))
    story.run(10)
    assert [i.spec.instance_id for i in story.instances()] == [first.spec.instance_id]


@pytest.mark.parametrize("spec", [{"replicas": 0}, {"suspend": True}])
def test_no_replica_wished_drains_all_and_is_healthy(spec: dict[str, object]) -> None:
    story = fleet("a", replicas=1)
    wish = story.objects[builders.placement().key]
    assert isinstance(wish, Placement)
    story.put(wish.model_copy(update={"spec": wish.spec.model_copy(update=spec)}))
    story.run(10)
    assert story.instances() == []
    assert (ready_condition(story).status, ready_condition(story).reason) == ("True", ReadyReason.SCALED_TO_ZERO)


def test_deleted_placement_drains_and_stops_even_as_the_last_one() -> None:
    story = fleet("a", replicas=2)
    story.remove(builders.placement())
    story.run(10)
    assert story.instances() == []
    assert story.agents["a"].members == {}


def test_deleted_placement_is_finished_when_nothing_of_it_runs() -> None:
    story = fleet("a")
    placed = builders.placement()
    story.put(placed.model_copy(update={"metadata": placed.metadata.model_copy(update={"deletion_timestamp": "x"})}))
    story.run(10)
    assert story.instances() == []
    assert placed.key not in story.objects


def test_instance_of_a_node_that_was_removed_by_force_is_replaced() -> None:
    """Its finalizer taken away by hand, its machine gone for good: nobody is there to fall silent."""
    story = fleet("a", "b")
    (lost,) = story.instances()
    node = lost.spec.members[0].node
    story.remove(Node(metadata=ObjectMeta(name=node)))
    del story.agents[node]
    story.restart_leader()
    story.run(60)
    assert [each.spec.instance_id for each in story.instances()] == [lost.spec.instance_id]
    story.run(60)
    (kept,) = story.instances()
    assert kept.spec.instance_id != lost.spec.instance_id
    assert kept.spec.members[0].node in story.agents
    assert ready_condition(story).reason == ReadyReason.SERVING


def test_drain_waits_for_requests_in_flight() -> None:
    story = fleet("a")
    instance_id = story.instances()[0].spec.instance_id
    story.gateways["g"].in_flight = {instance_id: 2}
    story.remove(builders.placement())
    story.run(30)
    assert story.routed() == []
    assert story.agents["a"].members[instance_id].phase is MemberPhase.DRAINING
    story.gateways["g"].in_flight = {}
    story.run(5)
    assert story.instances() == []


def test_drain_ends_at_its_deadline() -> None:
    story = fleet("a", rollout=Rollout(drain_seconds=20))
    story.gateways["g"].in_flight = {story.instances()[0].spec.instance_id: 2}
    story.remove(builders.placement())
    story.run(15)
    assert len(story.instances()) == 1
    story.run(10)
    assert story.instances() == []


def test_drain_waits_for_every_gateway_to_apply_the_table() -> None:
    story = fleet("a")
    story.gateways["slow"] = FakeGateway("slow")
    story.run(2)
    story.gateways["slow"].stuck = True
    story.remove(builders.placement())
    story.run(30)
    assert story.agents["a"].members[story.instances()[0].spec.instance_id].phase is MemberPhase.DRAINING
    story.gateways["slow"].stuck = False
    story.run(5)
    assert story.instances() == []


def test_drain_without_any_gateway_waits_a_short_grace() -> None:
    story = fleet("a")
    story.gateways.clear()
    story.remove(builders.placement())
    story.run(5)
    assert len(story.instances()) == 1
    story.run(10)
    assert story.instances() == []


def test_drain_goes_on_under_a_new_leader() -> None:
    story = fleet("a")
    story.gateways["g"].in_flight = {story.instances()[0].spec.instance_id: 1}
    story.remove(builders.placement())
    story.run(5)
    story.restart_leader()
    story.run(5)
    assert story.routed() == []
    assert len(story.instances()) == 1
    story.gateways["g"].in_flight = {}
    story.run(15)
    assert story.instances() == []


def test_drain_under_a_new_leader_waits_for_gateways_that_it_has_not_heard_yet() -> None:
    story = fleet("a")
    instance_id = story.instances()[0].spec.instance_id
    late = FakeGateway("late")
    story.gateways["late"] = late
    story.run(2)
    late.in_flight = {instance_id: 1}
    story.remove(builders.placement())
    story.run(5)
    del story.gateways["late"]  # the controller's new process has heard nothing of it
    story.restart_leader()
    story.run(9)
    assert story.agents["a"].members[instance_id].phase is MemberPhase.DRAINING
    story.gateways["late"] = late
    story.run(30)
    assert story.agents["a"].members[instance_id].phase is MemberPhase.DRAINING
    late.in_flight = {}
    story.run(5)
    assert story.instances() == []


def test_roll_surges_and_never_leaves_the_model_unserved() -> None:
    story = fleet("a", replicas=2)
    old = {i.spec.instance_id for i in story.instances()}
    story.put(builders.placement(replicas=2, context=ContextWish(tokens=1024)))
    for _ in range(60):
        story.step()
        running = [i for i in story.instances() if i.spec.goal is InstanceGoal.RUN]
        assert len(story.routed()) >= 2
        assert len(running) <= 3
    assert old.isdisjoint(i.spec.instance_id for i in story.instances())
    assert [i.spec.options.context_tokens for i in story.instances()] == [1024, 1024]
    assert ready_condition(story).reason == ReadyReason.SERVING


def test_roll_without_room_recreates() -> None:
    story = fleet("a", total_bytes=TIGHT_BYTES)
    old = story.instances()[0]
    story.put(builders.placement(context=ContextWish(tokens=8000, min_tokens=8000)))
    story.run(30)
    new = story.instances()
    assert [i.spec.options.context_tokens for i in new] == [8000]
    assert new[0].spec.instance_id != old.spec.instance_id
    assert any("does not fit beside it" in note.message for note in story.notes)


def test_roll_to_what_is_larger_than_any_old_replica_takes_the_room_of_several() -> None:
    """One of them and what is free beside it isn't enough: it would wait for ever."""
    story = fleet("a", replicas=3, total_bytes=TIGHT_BYTES, context=ContextWish(tokens=1024))
    assert len(story.instances()) == 3
    story.put(builders.placement(replicas=3, concurrency=8, context=ContextWish(tokens=3072)))
    story.run(60)
    assert sorted(i.spec.options.context_tokens for i in story.instances()) == [1024, 3072]
    assert ready_condition(story).message.startswith("1 of 3 replicas are ready at the new revision")


def test_revision_that_fits_nowhere_leaves_the_old_one_serving() -> None:
    story = fleet("a", total_bytes=TIGHT_BYTES, context=ContextWish(tokens=1024))
    old = story.instances()
    story.put(builders.placement(concurrency=64, context=ContextWish(tokens=8192)))
    story.run(60)
    assert [i.spec for i in story.instances()] == [i.spec for i in old]
    assert story.routed() == ["smollm2-0"]
    assert ready_condition(story).reason == ReadyReason.NOT_PLACED
    assert ready_condition(story).message.startswith(
        "0 of 1 replicas are ready at the new revision, 'smollm2-0' serves meanwhile; "
    )
    assert placement_status(story).closest_refusal.startswith("a: ContextTooSmall")


def test_several_that_serve_meanwhile_are_told_in_the_plural() -> None:
    story = fleet("a", replicas=2, context=ContextWish(tokens=1024))
    story.put(builders.placement(replicas=2, context=ContextWish(tokens=900_000)))
    story.run(5)
    assert "'smollm2-0', 'smollm2-1' serve meanwhile; " in ready_condition(story).message


def test_roll_never_gives_up_window_to_start_beside_the_old_one() -> None:
    """Without `tokens` the window is what fits: beside the old one it would be small for good."""
    story = fleet("a", total_bytes=4_200_000_000, concurrency=8)
    before = story.instances()[0].spec.options.context_tokens
    story.put(builders.placement(concurrency=7))
    story.run(40)
    assert [i.spec.options.context_tokens >= before for i in story.instances()] == [True]


def test_recreate_stops_the_old_revision_before_the_new_one_starts() -> None:
    recreate = Rollout(strategy=RolloutStrategy.RECREATE)
    story = fleet("a", replicas=2, rollout=recreate)
    story.put(builders.placement(replicas=2, rollout=recreate, context=ContextWish(tokens=1024)))
    for _ in range(30):
        story.step()
        assert len({i.spec.revision for i in story.instances()}) <= 1
    assert [i.spec.options.context_tokens for i in story.instances()] == [1024, 1024]


def test_change_in_mid_roll_settles_on_the_newest() -> None:
    story = fleet("a")
    story.put(builders.placement(context=ContextWish(tokens=1024)))
    story.run(2)
    story.put(builders.placement(context=ContextWish(tokens=2048)))
    for _ in range(30):
        story.step()
        assert story.routed()
    assert [i.spec.options.context_tokens for i in story.instances()] == [2048]


def test_failed_new_revision_leaves_the_old_one_serving_and_is_not_hammered() -> None:
    story = fleet("a")
    old = story.instances()[0].spec.instance_id
    story.agents["a"].fail = lambda i: FailureCause.EXITED if i.spec.options.context_tokens == 1024 else None
    story.put(builders.placement(context=ContextWish(tokens=1024)))
    story.run(600)
    assert old in {i.spec.instance_id for i in story.instances()}
    assert story.routed() == ["smollm2-0"]
    assert ready_condition(story).reason == ReadyReason.ENGINE_FAILED
    attempts = [attempt for each, attempt in story.agents["a"].started if each != old]
    assert attempts == [1, 2, 3, 4, 5, 6]
    assert [f.cause for f in placement_status(story).failures] == [FailureCause.EXITED]


def test_failed_replica_is_tried_on_another_node() -> None:
    story = Worldlet()
    story.put(builders.model(), builders.placement())
    story.add_agents("a", "b")
    story.gateways["g"] = FakeGateway()
    story.agents["a"].fail = lambda _: FailureCause.INSUFFICIENT_MEMORY
    story.run(30)
    assert [i.spec.members[0].node for i in story.instances()] == ["b"]
    assert [f.node for f in placement_status(story).failures] == ["a"]
    assert ready_condition(story).reason == ReadyReason.SERVING
    assert len(story.agents["a"].started) == 1


def test_cured_node_clears_its_failure_at_the_next_attempt() -> None:
    story = Worldlet()
    story.put(builders.model(), builders.placement())
    story.add_agents("a")
    story.gateways["g"] = FakeGateway()
    story.agents["a"].fail = lambda _: FailureCause.OUT_OF_MEMORY
    story.run(10)
    assert story.instances()[0].status.phase is InstancePhase.FAILED
    story.agents["a"].fail = lambda _: None
    story.run(30)
    assert story.instances()[0].spec.attempt == 2
    assert placement_status(story).failures == ()
    assert story.routed() == ["smollm2-0"]


def test_retry_annotation_tries_at_once() -> None:
    story = Worldlet()
    story.put(builders.model(), builders.placement())
    story.add_agents("a")
    story.agents["a"].fail = lambda _: FailureCause.DISK_FULL
    story.run(20)
    assert len(story.agents["a"].started) == 1
    asked = next(o for o in story.objects.values() if isinstance(o, Placement))
    metadata = asked.metadata.model_copy(update={"annotations": {RETRY_ANNOTATION: "1"}})
    story.put(asked.model_copy(update={"metadata": metadata}))
    story.run(10)
    assert len(story.agents["a"].started) == 2
    story.run(60)
    assert len(story.agents["a"].started) == 2


def test_member_that_is_never_reported_fails_its_attempt() -> None:
    story = Worldlet()
    story.put(builders.model(), builders.placement())
    story.add_agents("a")
    story.agents["a"].deaf = True
    story.run(40)
    assert [f.cause for f in placement_status(story).failures] == [FailureCause.NEVER_REPORTED]


def test_placement_that_fits_nowhere_says_the_closest_refusal_and_does_nothing() -> None:
    story = fleet("a", "b", concurrency=64, total_bytes=TIGHT_BYTES, context=ContextWish(tokens=8192))
    assert story.instances() == []
    status = placement_status(story)
    assert ready_condition(story).reason == ReadyReason.NOT_PLACED
    assert [(count.reason, count.nodes) for count in status.refusals] == [("ContextTooSmall", 2)]
    writes = story.writes
    story.run(300)
    assert story.writes == writes


def test_silent_node_keeps_its_endpoint_unconfirmed_and_is_replaced_after_its_grace() -> None:
    story = fleet("a", "b")
    first = story.instances()[0]
    home = first.spec.members[0].node
    story.agents[home].paused = True
    story.run(20)
    assert story.published.endpoints is not None
    assert [(e.instance, e.confirmed) for e in story.published.endpoints.endpoints] == [("default/smollm2-0", False)]
    assert ready_condition(story).reason == ReadyReason.NODE_UNKNOWN
    story.run(120)
    assert [i.spec.members[0].node for i in story.instances()] != [home]
    assert len(story.instances()) == 1
    assert any(note.reason == EventReason.LOST for note in story.notes)


def test_lost_replica_that_fits_nowhere_else_says_why() -> None:
    """It would be told as `NodeUnknown` for ever, and nobody would know what to do."""
    story = fleet("a", "b", replicas=2, total_bytes=3 * builders.GIB, context=ContextWish(tokens=8192))
    assert ready_condition(story).reason == ReadyReason.SERVING
    story.agents["b"].paused = True
    story.run(200)
    ready = ready_condition(story)
    assert ready.reason == ReadyReason.PARTLY_SERVING
    assert ready.message.startswith("1 of 2 replicas are ready; the node of 'smollm2-")
    assert "is lost; 1 node ContextTooSmall, 1 node NodeUnknown; closest is node 'a'" in ready.message
    story.agents["b"].paused = False
    story.run(20)
    assert ready_condition(story).reason == ReadyReason.SERVING


def test_silent_node_that_serves_requests_is_not_replaced() -> None:
    story = fleet("a", "b")
    first = story.instances()[0]
    story.agents[first.spec.members[0].node].paused = True
    story.gateways["g"].in_flight = {first.spec.instance_id: 1}
    story.run(200)
    assert [i.spec.instance_id for i in story.instances()] == [first.spec.instance_id]


def test_requests_of_a_gateway_that_died_with_the_node_keep_nothing_from_being_replaced() -> None:
    story = fleet("a", "b")
    first = story.instances()[0]
    home = first.spec.members[0].node
    beside = FakeGateway("beside", in_flight={first.spec.instance_id: 1})
    story.gateways["beside"] = beside
    story.run(5)
    story.agents[home].paused, beside.dead = True, True
    story.run(120)
    assert [i.spec.members[0].node for i in story.instances()] == ["b" if home == "a" else "a"]


def test_silent_node_that_no_gateway_reaches_loses_its_endpoint() -> None:
    story = fleet("a")
    first = story.instances()[0]
    story.agents["a"].paused = True
    story.run(15)
    story.gateways["g"].unreachable = {first.spec.instance_id}
    story.run(2)
    assert story.routed() == []
    story.gateways["g"].unreachable = set()
    story.run(5)
    assert story.routed() == []
    story.agents["a"].paused = False
    story.run(3)
    assert story.routed() == ["smollm2-0"]
    assert len(story.agents["a"].started) == 1


def test_only_node_that_comes_back_late_has_lost_nothing() -> None:
    story = fleet("a")
    story.agents["a"].paused = True
    story.run(300)
    assert story.routed() == ["smollm2-0"]
    story.agents["a"].paused = False
    story.run(10)
    assert len(story.agents["a"].started) == 1
    assert ready_condition(story).reason == ReadyReason.SERVING


def test_node_that_comes_back_after_its_replacement_gives_up_the_surplus() -> None:
    story = fleet("a", "b")
    home = story.instances()[0].spec.members[0].node
    story.agents[home].paused = True
    story.run(150)
    story.agents[home].paused = False
    for _ in range(20):
        story.step()
        assert story.routed()
    assert len(story.instances()) == 1
    assert sum(len(agent.members) for agent in story.agents.values()) == 1


def test_paused_leader_that_wakes_undoes_nothing() -> None:
    story = fleet("a", "b", replicas=2)
    ids = [i.spec.instance_id for i in story.instances()]
    seen = story.agents["a"].seen
    story.now += 600
    for agent in story.agents.values():
        agent.paused, agent.seen = True, seen
    writes = story.writes
    story.step(1)
    for agent in story.agents.values():
        agent.paused = False
    story.run(60)
    assert [i.spec.instance_id for i in story.instances()] == ids
    assert story.writes == writes
    assert story.routed() == ["smollm2-0", "smollm2-1"]


def test_dead_endpoint_is_withdrawn_though_no_action_can_be_stored() -> None:
    """Its next attempt, its drain or its replacement may wait; requests to it may not."""
    story = fleet("a", "b", replicas=2)
    dead, alive = story.instances()
    agent = story.agents[dead.spec.members[0].node]
    agent.members[dead.spec.instance_id] = worlds.member_report(dead, MemberPhase.FAILED, cause=FailureCause.EXITED)
    story.put(builders.placement(replicas=1))
    made = plan(story.observe(), story.now)
    assert any(isinstance(a, UpdateInstance) and a.instance.key == dead.key for a in made.actions)
    assert made.endpoints_unacted is not None
    assert [each.instance_id for each in made.endpoints_unacted.endpoints] == [alive.spec.instance_id]


def test_drain_that_can_not_be_stored_keeps_its_endpoint_while_it_serves() -> None:
    story = fleet("a")
    (only,) = story.instances()
    story.put(builders.placement(replicas=0))
    made = plan(story.observe(), story.now)
    assert made.endpoints is not None
    assert made.endpoints.endpoints == ()
    assert story.published.endpoints is not None
    assert made.endpoints_unacted is not None
    assert made.endpoints_unacted.endpoints == story.published.endpoints.endpoints
    story.agents["a"].members[only.spec.instance_id] = worlds.member_report(only, MemberPhase.STOPPED)
    made = plan(story.observe(), story.now)
    assert made.endpoints_unacted is not None
    assert made.endpoints_unacted.endpoints == ()


def test_new_leader_restarts_nothing_and_publishes_no_table_before_it_has_seen_the_fleet() -> None:
    story = fleet("a", "b", replicas=2)
    story.agents["a"].paused = True
    writes = story.writes
    story.restart_leader()
    story.agents["a"].seen = -1.0
    story.run(FIRST_REPORTS_SECONDS - 1)
    assert story.published.endpoints is None
    assert not any(each.complete for each in story.published.assignments.values())
    story.agents["a"].paused = False
    story.run(2)
    assert story.routed() == ["smollm2-0", "smollm2-1"]
    story.run(30)
    assert story.writes == writes
    assert all(len(agent.started) == 1 for agent in story.agents.values())


def test_new_leader_goes_on_without_a_node_that_stays_away_and_trusts_the_store_about_it() -> None:
    story = fleet("a", "b", replicas=2)
    story.agents["a"].paused, story.agents["a"].seen = True, -1.0
    story.restart_leader()
    story.run(FIRST_REPORTS_SECONDS + 2)
    assert story.published.endpoints is not None
    confirmed = {e.node: (e.confirmed, e.port) for e in story.published.endpoints.endpoints}
    assert confirmed == {"a": (False, 40_000), "b": (True, 40_000)}
    assert not story.published.assignments["a"].complete


def test_lost_store_is_rebuilt_from_source_and_agents() -> None:
    story = fleet("a", "b", replicas=2)
    before = {i.spec.instance_id: i.spec.members for i in story.instances()}
    story.lose_store()
    story.run(20)
    assert {i.spec.instance_id: i.spec.members for i in story.instances()} == before
    assert all(i.spec.term == 2 for i in story.instances())
    assert all(len(agent.started) == 1 for agent in story.agents.values())
    assert story.routed() == ["smollm2-0", "smollm2-1"]


@pytest.mark.parametrize("back_after", [0, 4, 8, 11])
def test_lost_store_leaves_no_table_without_a_healthy_node_that_dials_again_late(back_after: int) -> None:
    story = fleet("a", "b", replicas=2)
    late = story.agents["b"]
    late.paused, late.seen = True, -1.0
    story.lose_store()
    for second in range(20):
        if second == back_after:
            late.paused = False
        story.step()
        assert story.published.endpoints is None or story.routed() == ["smollm2-0", "smollm2-1"]
    assert story.published.endpoints is not None
    assert all(len(agent.started) == 1 for agent in story.agents.values())


@pytest.mark.parametrize("gateways", [{}, {"g": FakeGateway()}])
def test_lost_store_waits_for_late_nodes_also_where_no_gateway_names_them(gateways: dict[str, FakeGateway]) -> None:
    story = fleet("a", "b", replicas=2)
    late = story.agents["b"]
    late.paused, late.seen = True, -1.0
    story.gateways = gateways
    story.lose_store()
    story.run(8)
    assert story.published.endpoints is None
    late.paused = False
    story.run(10)
    assert story.routed() == ["smollm2-0", "smollm2-1"]
    assert all(len(agent.started) == 1 for agent in story.agents.values())


def test_lost_store_whose_whole_fleet_has_reported_is_not_waited_for() -> None:
    story = fleet("a", "b", replicas=2)
    story.lose_store()
    story.run(UNKNOWN_FLEET_SECONDS + 1)
    assert story.routed() == ["smollm2-0", "smollm2-1"]


def test_lost_store_goes_on_without_a_node_that_stays_away() -> None:
    story = fleet("a", "b", replicas=2)
    gone = story.agents["b"]
    gone.paused, gone.seen = True, -1.0
    story.lose_store()
    story.run(LOST_STORE_SECONDS + 5)
    assert story.published.endpoints is not None
    assert len(story.routed()) >= 1


@pytest.mark.parametrize("lie", [{"attempt": 2**31 - 1}, {"attempt": 70_000, "phase": MemberPhase.FAILED}])
def test_number_that_a_node_makes_up_stops_nothing_and_is_not_taken_over(lie: dict[str, object]) -> None:
    story = fleet("a", "b", replicas=2)
    liar = story.agents["b"]
    liar.deaf = True
    liar.members = {key: each.model_copy(update=lie) for key, each in liar.members.items()}
    story.run(20)
    assert all(each.spec.attempt < 100 for each in story.instances())
    assert "smollm2-0" in story.routed()


def test_lost_store_and_a_node_that_reports_late_ends_with_what_is_wished() -> None:
    story = fleet("a", "b", replicas=1)
    home = story.instances()[0].spec.members[0].node
    story.agents[home].paused, story.agents[home].seen = True, -1.0
    story.lose_store()
    story.run(20)
    story.agents[home].paused = False
    for _ in range(30):
        story.step()
        assert story.routed()
    assert len(story.instances()) == 1
    assert sum(len(agent.members) for agent in story.agents.values()) == 1


def test_stray_is_kept_and_routed_then_drained() -> None:
    story = fleet("a")
    story.put(builders.placement("other", model="smollm2", replicas=0))
    story.remove(builders.placement())
    for instance in story.instances():
        story.remove(instance)
    story.restart_leader()
    story.run(60)
    assert story.routed() == ["smollm2-0"]
    node = next(o for o in story.objects.values() if isinstance(o, Node))
    assert "StrayInstances" in {condition.type for condition in node.status.conditions}
    story.run(900, each=5)
    assert story.routed() == []
    assert story.agents["a"].members == {}
    story.run(10)
    node = next(o for o in story.objects.values() if isinstance(o, Node))
    assert "StrayInstances" not in {condition.type for condition in node.status.conditions}


@pytest.mark.parametrize("others", [0, 1])
def test_what_was_deleted_while_its_node_was_silent_ends_when_the_node_is_back(others: int) -> None:
    """Also when it was the last Placement: an empty store is no lost one to the leader that saw the deletion."""
    story = fleet("a")
    if others:
        story.put(builders.placement("other", model="smollm2"))
    story.agents["a"].paused = True
    story.run(20)
    story.remove(builders.placement())
    story.run(120)
    assert "smollm2-0" not in [each.metadata.name for each in story.instances()]
    story.agents["a"].paused = False
    story.run(30)
    assert "smollm2-0" not in story.routed()
    left = {each.name for each in story.agents["a"].members.values()}
    assert left == ({"other-0"} if others else set())


def test_what_was_replaced_while_its_node_was_silent_is_not_taken_in_and_its_memory_is_given_to_nobody() -> None:
    """Its agent takes it to be known, and reports it without its Instance."""
    story = fleet("a", total_bytes=TIGHT_BYTES)
    old = story.instances()[0].spec.instance_id
    story.agents["a"].paused = True
    story.put(builders.placement(replicas=0))
    story.run(120)
    assert not story.instances()
    story.put(builders.placement(replicas=1))
    story.agents["a"].paused = False
    while story.agents["a"].members.get(old) is not None:
        assert not any(each.spec.instance_id == old for each in story.instances())
        assert not story.instances(), "it doesn't fit beside what still runs"
        story.run(1)
    story.run(30)
    assert [each.spec.instance_id != old for each in story.instances()] == [True]


@pytest.mark.parametrize(("allow_empty", "kept"), [(False, 1), (True, 0)])
def test_stray_is_never_drained_without_any_placement_unless_empty_is_meant(allow_empty: bool, kept: int) -> None:
    story = fleet("a")
    story.allow_empty = allow_empty
    story.remove(builders.placement())
    story.lose_store()
    story.run(2000, each=5)
    assert len(story.agents["a"].members) == kept


def test_store_that_is_filled_again_long_after_it_was_emptied_stops_nothing_that_comes_back_within_minutes() -> None:
    story = fleet("a")
    placement = builders.placement()
    story.remove(placement)
    story.lose_store()
    story.run(2000, each=5)
    before = set(story.agents["a"].members)
    story.put(builders.placement("other", model="smollm2", replicas=0))
    story.run(300, each=5)
    story.put(placement)
    story.run(60)
    assert set(story.agents["a"].members) == before
    assert len(story.routed()) == 1


def test_header_is_asked_of_one_node_at_a_time_and_of_the_next_when_one_fails() -> None:
    story = Worldlet()
    story.put(builders.model(known=False))
    story.add_agents("a", "b")
    story.agents["a"].unreadable = True
    story.run(5)
    model = next(o for o in story.objects.values() if isinstance(o, Model))
    assert [(v.error, v.artifact is not None) for v in model.status.variants] == [("", True)]
    said = [note.reason for note in story.notes if note.reason.startswith("Header")]
    assert said == [EventReason.HEADER_UNREAD, EventReason.HEADER_READ]


def test_a_source_of_two_variants_is_asked_of_whoever_runs_either() -> None:
    story = Worldlet()
    (first,) = builders.model(known=False).spec.variants
    other = first.model_copy(update={"name": "another-engine", "engines": (EngineName.LLAMA_CPP,)})
    story.put(builders.model(known=False, variants=(other, first)), builders.placement())
    story.add_agents("a")
    story.run(15)
    assert len(story.routed()) == 1


def test_a_variant_for_engines_that_no_node_has_leaves_its_model_ready() -> None:
    story = Worldlet()
    (first,) = builders.model(known=False).spec.variants
    for_macs = first.model_copy(update={"name": "mlx", "engines": (EngineName.MLX,), "source": "hf://a/b"})
    story.put(builders.model(known=False, variants=(for_macs, first)), builders.placement())
    story.add_agents("a")
    story.run(15)
    model = next(o for o in story.objects.values() if isinstance(o, Model))
    ready = next(each for each in model.status.conditions if each.type == "Ready")
    assert (ready.status, ready.reason) == ("True", ModelReason.RESOLVED)
    assert ready.message == (
        "what nodes here can run is resolved; the header of variant 'mlx' has not been read yet: "
        "no node is there that offers Mlx"
    )
    story.run(60)
    story.add_agents("mac")
    story.agents["mac"].lanes = (builders.lane(engine=EngineName.MLX),)
    story.agents["mac"].headers = {"hf://a/b": builders.geometry()}
    story.run(30)
    model = next(o for o in story.objects.values() if isinstance(o, Model))
    assert [each.artifact is not None for each in model.status.variants] == [True, True], "it was asked for"
    ready = next(each for each in model.status.conditions if each.type == "Ready")
    assert ready.message == "every variant is resolved and its header is read"


def test_unreadable_header_is_said_and_asked_for_with_backoff() -> None:
    story = Worldlet()
    story.put(builders.model(known=False), builders.placement())
    story.add_agents("a")
    story.agents["a"].unreadable = True
    story.run(600)
    asked = sum(note.reason == EventReason.HEADER_UNREAD for note in story.notes)
    assert 5 <= asked <= 9
    assert ready_condition(story).reason == ReadyReason.GEOMETRY_UNAVAILABLE


def test_declared_geometry_places_what_nobody_has_measured() -> None:
    story = Worldlet()
    story.put(builders.model(known=False), builders.placement())
    story.add_agents("a")
    story.agents["a"].unmeasured = "whose memory was not measured yet; give `spec.geometry`"
    story.run(60)
    assert ready_condition(story).reason == ReadyReason.GEOMETRY_UNAVAILABLE
    assert "give `spec.geometry`" in ready_condition(story).message
    story.put(builders.model(known=False, geometry=builders.geometry()))
    story.run(60)
    assert len(story.routed()) == 1
    status = story.objects[ObjectKey("Model", "default", "smollm2")]
    assert isinstance(status, Model)
    (variant,) = status.status.variants
    assert (variant.error, variant.geometry, variant.artifact is None) == ("", None, False)


def test_answer_of_a_node_that_falls_silent_is_asked_of_another() -> None:
    story = Worldlet()
    story.put(builders.model(known=False))
    story.add_agents("a", "b")
    story.agents["a"].paused = True
    story.agents["a"].seen = 1.0
    story.run(30)
    model = next(o for o in story.objects.values() if isinstance(o, Model))
    assert model.status != ModelStatus()
    assert model.status.variants[0].artifact is not None


def test_deleted_node_is_drained_and_removed_and_does_not_come_back_while_silent() -> None:
    story = fleet("a", "b")
    home = story.instances()[0].spec.members[0].node
    node = next(o for o in story.objects.values() if isinstance(o, Node) and o.metadata.name == home)
    gone = node.model_copy(update={"metadata": node.metadata.model_copy(update={"deletion_timestamp": "x"})})
    story.put(gone)
    story.run(3)
    story.agents[home].paused = False
    story.run(20)
    assert [i.spec.members[0].node for i in story.instances()] == ["b" if home == "a" else "a"]


@pytest.mark.parametrize("others", [0, 1])
def test_what_serves_on_a_node_that_is_to_go_leaves_after_its_replacement_serves_where_there_is_one(
    others: int,
) -> None:
    story = fleet("a")
    story.add_agents(*"b"[:others])
    story.run(5)
    node = next(o for o in story.objects.values() if isinstance(o, Node) and o.metadata.name == "a")
    story.put(node.model_copy(update={"metadata": node.metadata.model_copy(update={"deletion_timestamp": "x"})}))
    served: list[bool] = []
    for _ in range(60):
        story.step()
        served.append(bool(story.routed()))
        if not story.agents["a"].members:
            break
    assert story.agents["a"].members == {}
    assert all(served) is bool(others)


def test_cordoned_node_keeps_what_runs_and_takes_nothing_new() -> None:
    story = fleet("a")
    node = next(o for o in story.objects.values() if isinstance(o, Node))
    story.put(node.model_copy(update={"spec": NodeSpec(unschedulable=True)}))
    story.put(builders.placement(replicas=2))
    story.run(20)
    assert story.routed() == ["smollm2-0"]
    assert ready_condition(story).reason == ReadyReason.PARTLY_SERVING


def test_tainted_node_keeps_what_runs_and_takes_what_tolerates_it() -> None:
    story = fleet("a")
    node = next(o for o in story.objects.values() if isinstance(o, Node))
    story.put(node.model_copy(update={"spec": NodeSpec(taints=(Taint(key="owner", value="ann"),))}))
    story.put(builders.placement(replicas=2))
    story.run(20)
    assert story.routed() == ["smollm2-0"]
    placement = next(o for o in story.objects.values() if isinstance(o, Placement))
    assert [(each.reason, each.nodes) for each in placement.status.refusals] == [(RefusalReason.TAINTED, 1)]
    assert "'owner=ann:NoSchedule'" in placement.status.closest_refusal
    story.put(builders.placement(replicas=2, nodes=NodeChoice(tolerations=(Toleration(key="owner", value="ann"),))))
    story.run(20)
    assert story.routed() == ["smollm2-0", "smollm2-1"]


def test_nodes_reserve_is_never_planned_with() -> None:
    story = Worldlet()
    story.put(builders.model(), builders.placement(context=ContextWish(tokens=8192)))
    story.put(
        Node(
            metadata=builders.ObjectMeta(name="a", finalizers=builders.HELD),
            spec=NodeSpec(reserve=NodeReserve(memory="7680Mi")),
        )
    )
    story.add_agents("a")
    story.run(20)
    assert story.instances() == []


def test_model_states_as_gateways_see_them() -> None:
    story = Worldlet()
    story.put(builders.model("idle"), builders.model(), builders.placement())
    story.add_agents("a")
    idle_states: list[ModelState] = []
    states: list[ModelState] = []
    for _ in range(15):
        story.step()
        if story.published.endpoints is not None:
            idle, wished = story.published.endpoints.models
            idle_states.append(idle.state)
            states.append(wished.state)
    assert set(idle_states) == {ModelState.NOT_PLACED}
    assert (states[0], states[-1]) == (ModelState.LOADING, ModelState.READY)


def test_younger_of_two_equal_aliases_is_refused_with_a_condition() -> None:
    story = Worldlet()
    for name, created in (("young", "2026-02-01T00:00:00Z"), ("zold", "2026-01-01T00:00:00Z")):
        model = builders.model(name, aliases=("same", name + "-own"))
        metadata = model.metadata.model_copy(update={"creation_timestamp": created})
        story.put(model.model_copy(update={"metadata": metadata}))
    story.run(12)
    assert story.published.endpoints is not None
    aliases = {served.name: served.aliases for served in story.published.endpoints.models}
    assert aliases == {"young": ("young-own",), "zold": ("same", "zold-own")}
    young = next(o for o in story.objects.values() if isinstance(o, Model) and o.metadata.name == "young")
    assert "belongs to model 'zold'" in young.status.conditions[0].message


def test_alias_that_is_another_models_name_is_refused_however_old_it_is() -> None:
    story = Worldlet()
    for name, alias, created in (("a", "b", "2026-01-01T00:00:00Z"), ("b", "b", "2026-02-01T00:00:00Z")):
        model = builders.model(name, aliases=(alias,))
        metadata = model.metadata.model_copy(update={"creation_timestamp": created})
        story.put(model.model_copy(update={"metadata": metadata}))
    story.run(12)
    assert story.published.endpoints is not None
    assert {served.name: served.aliases for served in story.published.endpoints.models} == {"a": (), "b": ("b",)}
    taken = next(o for o in story.objects.values() if isinstance(o, Model) and o.metadata.name == "a")
    assert "'b' belongs to model 'b'" in taken.status.conditions[0].message


def test_missing_model_is_a_condition_and_keeps_what_runs() -> None:
    story = fleet("a")
    story.remove(builders.model())
    story.run(20)
    assert story.routed() == ["smollm2-0"]
    assert ready_condition(story).reason == ReadyReason.MODEL_NOT_FOUND


def test_nodes_and_lanes_are_told_as_one_text_for_printer_columns() -> None:
    story = fleet("a", "b", replicas=2)
    status = placement_status(story)
    assert (status.nodes, status.node_names) == (("a", "b"), "a,b")
    node = next(o for o in story.objects.values() if isinstance(o, Node) and o.metadata.name == "a")
    assert node.status.lane_names == "LlamaServer/Cpu"


def test_a_column_tells_four_names_and_how_many_more() -> None:
    assert join_names(["b", "a", "b"]) == "a,b"
    assert join_names("edcba") == "a,b,c,d + 1 more"
    assert join_names([]) == ""
    widest = join_names(letter * MAX_NAME_LENGTH for letter in "abcdefgh")
    assert len(widest) <= 256


def test_a_model_of_another_namespace_is_no_model_and_the_message_says_where_it_is() -> None:
    story = fleet("a")
    model = builders.model()
    metadata = model.metadata.model_copy(update={"namespace": "team", "uid": "uid-elsewhere"})
    story.put(model.model_copy(update={"metadata": metadata}))
    story.remove(model)
    story.run(20)
    ready = ready_condition(story)
    assert ready.reason == ReadyReason.MODEL_NOT_FOUND
    assert ready.message == (
        "`spec.modelRef.name` must name a Model in namespace 'default'; there is no 'smollm2' in it. Namespace 'team' "
        "has one, which a Placement of another namespace can't name: add the Model to 'default', or the Placement to "
        "'team'"
    )


def test_change_under_a_new_leader_carries_its_term() -> None:
    story = fleet("a")
    story.restart_leader()
    story.run(5)
    assert [i.spec.term for i in story.instances()] == [1], "a new leadership alone writes nothing"
    story.gateways["g"].in_flight = {story.instances()[0].spec.instance_id: 1}
    story.remove(builders.placement())
    story.run(3)
    assert [(i.spec.goal, i.spec.term) for i in story.instances()] == [(InstanceGoal.DRAIN, 2)]


@pytest.mark.parametrize("wished", [False, True], ids=["stray", "adoption"])
@pytest.mark.parametrize("seen", [0.0, 100.0])
def test_nothing_is_taken_in_by_what_a_node_said_before_it_fell_silent(seen: float, wished: bool) -> None:
    stray = builders.instance()
    agent = AgentView("a", seen, worlds.report([worlds.member_report(stray)]))
    objects = [builders.model(), builders.placement("smollm2" if wished else "other", model="smollm2", replicas=0)]
    made = plan(worlds.world(*objects, agents=(agent,)), 100.0)
    taken_in = any(note.reason in (EventReason.ADOPTED, EventReason.STRAY_FOUND) for note in made.notes)
    assert taken_in is (seen == 100.0)


def test_nothing_is_taken_in_that_a_node_may_not_say() -> None:
    ours = builders.instance("smollm2-0", node="b")
    there = builders.instance("x-1", instance_id="e" * 16, node="b")
    member = builders.instance("x-2").spec.members[0]
    spread = builders.instance("x-2", instance_id="f" * 16)
    both = (member.model_copy(update={"node": "b"}), member.model_copy(update={"name": "1"}))
    spread = spread.model_copy(update={"spec": spread.spec.model_copy(update={"members": both})})
    later = builders.instance("x-3", instance_id="d" * 16, term=2)
    unnamed = builders.instance("../x\x1b[2J", instance_id="c" * 16)
    stolen = builders.instance("x-4", instance_id=ours.spec.instance_id)
    said = [worlds.member_report(each) for each in (there, spread, later, unnamed)]
    said.append(worlds.member_report(stolen, instance_id="b" * 16))
    agent = AgentView("a", 100.0, worlds.report(said))
    made = plan(worlds.world(builders.model(), builders.placement(replicas=9), ours, agents=(agent,)), 100.0)
    assert not [note for note in made.notes if note.reason in (EventReason.ADOPTED, EventReason.STRAY_FOUND)]


def forged(real: Instance, number: int, placement: str) -> Instance:
    """One more of the same on the node 'liar', as its agent would make it up."""
    own = real.spec.members[0].model_copy(update={"node": "liar"})
    changes = {"instance_id": f"{0xF000 + number:016x}", "placement": placement, "members": (own,)}
    metadata = real.metadata.model_copy(update={"name": f"smollm2-{100 + number}"})
    return real.model_copy(update={"spec": real.spec.model_copy(update=changes), "metadata": metadata})


@pytest.mark.parametrize("seal", ["", "0" * 64, "real"], ids=["none", "wrong", "of another"])
@pytest.mark.parametrize("wished", [True, False])
def test_made_up_instances_are_neither_adopted_nor_routed_and_told_once(seal: str, wished: bool) -> None:
    story = fleet("a")
    real = story.instances()[0]
    placement = "smollm2" if wished else "gone"
    seal = worlds.SEAL_OF(real) if seal == "real" else seal
    said = [worlds.member_report(forged(real, number, placement), seal=seal) for number in range(20)]
    story.agents["liar"] = FakeAgent("liar", deaf=True, members={each.instance_id: each for each in said})
    story.run(30)
    assert [each.spec.instance_id for each in story.instances()] == [real.spec.instance_id]
    assert story.routed() == [real.metadata.name]
    assert not any(node.members for name, node in story.published.assignments.items() if name == "liar")
    told = [note for note in story.notes if note.reason == EventReason.UNSEALED_FOUND]
    assert [note.key.name for note in told] == ["liar"]
    assert "'default/smollm2-100'" in told[0].message
    assert "and 12 more" in told[0].message
    conditions = [c for node in story.objects.values() if isinstance(node, Node) for c in node.status.conditions]
    assert [c.reason for c in conditions if c.type == "UnsealedInstances"] == [NodeReason.NOT_SEALED]


def test_instance_of_an_agent_without_seals_runs_on_after_the_store_was_lost() -> None:
    story = fleet("a")
    old = {key: each.model_copy(update={"seal": ""}) for key, each in story.agents["a"].members.items()}
    before = story.instances()[0].spec.instance_id
    story.agents["a"].members = dict(old)
    story.agents["a"].deaf = True
    story.lose_store()
    story.run(30)
    assert before not in {each.spec.instance_id for each in story.instances()}
    assert all(member.instance.spec.instance_id != before for member in story.published.assignments["a"].members)


@pytest.mark.parametrize(
    "changes",
    [
        {"instance_id": "00000000000000ab"},
        {"placement": "other"},
        {"model": "other"},
        {"variant": "other"},
        {"revision": "r1-000000000001"},
        {"engine": "Other"},
        {"artifact": builders.artifact(sha256="b" * 64)},
        {"members": builders.instance(node="b").spec.members},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_seal_is_of_one_identity_and_of_every_goal_attempt_and_term(changes: dict[str, object]) -> None:
    instance = builders.instance()
    moved = builders.instance(goal=InstanceGoal.DRAIN, attempt=4, term=9)
    assert worlds.SEAL_OF(moved) == worlds.SEAL_OF(instance)
    other = instance.model_copy(update={"spec": instance.spec.model_copy(update=changes)})
    assert worlds.SEAL_OF(other) != worlds.SEAL_OF(instance)
    assert worlds.SEAL_OF(builders.instance("smollm2-1", placement="smollm2")) != worlds.SEAL_OF(instance)
    assert seal_instance(b"another secret", instance) != worlds.SEAL_OF(instance)


def test_engine_that_died_is_told_as_a_warning_though_its_agent_restarts_it() -> None:
    """Conditions say it only for a second; what is told as a Warning is kept as an Event on both stores."""
    story = fleet("a")
    (instance,) = story.instances()
    back_off = worlds.member_report(instance, MemberPhase.BACKOFF, cause=FailureCause.KILLED, message="by SIGKILL")
    story.agents["a"].members = {instance.spec.instance_id: back_off}
    told = len(story.notes)
    story.step()
    (note,) = [each for each in story.notes[told:] if each.key.kind == "Instance"]
    assert (note.message, note.warning) == ("Backoff after Killed: by SIGKILL", True)
