"""An Instance of several members from its wish to its end: who starts first, whose end it was, what is adopted."""

from covey_api.engines import ArtifactFormat, EngineName
from covey_api.instance import Instance, MemberPhase, MemberRole
from covey_api.messages import MemberAssignment, MemberGoal, MemberReport
from covey_api.meta import Condition, ConditionStatus
from covey_api.model import ModelStatus, Variant, VariantStatus
from covey_api.node import Node
from covey_api.placement import ContextWish, NodeChoice, Placement, Preemption, ShapeType, ShapeWish, Timeouts
from covey_api.reasons import FailureCause, ReadyReason
from covey_controller.reconcile.adoption import STRAY_SECONDS
from covey_controller.seal import seal_instance
from kit import builders
from kit.worlds import FakeGateway, Worldlet, member_report

ROLES = (MemberRole.DRIVER.value, MemberRole.DONOR.value)
NODES = ("a", "b", "c")


def begin(*nodes: str, **shape: object) -> Worldlet:
    story = Worldlet()
    story.put(builders.model(), builders.placement(shape=ShapeWish.model_validate({"type": ShapeType.RPC} | shape)))
    story.add_agents(*nodes)
    for index, name in enumerate(nodes):
        agent = story.agents[name]
        agent.lanes, agent.front_port, agent.address = (builders.lane(roles=ROLES),), 52500, f"10.0.0.{index + 1}"
    story.gateways["g"] = FakeGateway()
    return story


def formed(*nodes: str, **shape: object) -> Worldlet:
    story = begin(*nodes, **shape)
    story.run(20)
    assert story.routed() == ["smollm2-0"]
    return story


def assigned(story: Worldlet, node: str) -> MemberAssignment:
    (found,) = story.published.assignments[node].members
    return found


def driver_of(instance: Instance) -> str:
    return instance.spec.members[0].node


def test_donors_are_ready_before_their_driver_is_told_where_they_are() -> None:
    story = begin(*NODES, min_nodes=3)
    seen: list[tuple[int, list[MemberPhase]]] = []
    for _ in range(20):
        story.step()
        if not story.instances():
            continue
        driver, *donors = story.instances()[0].spec.members
        assert [member.role for member in donors] == [MemberRole.DONOR] * 2
        assert assigned(story, donors[0].node).fronts == ()
        phases = [story.agents[each.node].members for each in donors]
        fronts = len(assigned(story, driver.node).fronts)
        seen.append((fronts, [next(iter(each.values())).phase for each in phases if each]))
    (instance,) = story.instances()
    assert story.routed() == ["smollm2-0"]
    assert story.published.endpoints is not None
    assert [each.node for each in story.published.endpoints.endpoints] == [driver_of(instance)]
    assert {fronts for fronts, _ in seen} == {0, 2}
    assert all(phases == [MemberPhase.READY] * 2 for fronts, phases in seen if fronts == 2)
    found = {each.member: each.address for each in assigned(story, driver_of(instance)).fronts}
    assert found == {member.name: story.agents[member.node].address for member in instance.spec.members[1:]}


def break_group(story: Worldlet) -> str:
    """The first donor's engine ends; every other member is told by its neighbour. The donor's node."""
    (instance,) = story.instances()
    broken = instance.spec.members[1]
    words = f"member '{broken.name}' on node '{broken.node}' lost its engine: it ended by SIGKILL"
    for member in instance.spec.members:
        if member is broken:
            changes = {"cause": FailureCause.KILLED, "message": "'LlamaServer' ended by SIGKILL"}
        else:
            changes = {"cause": FailureCause.NEIGHBOUR_ENDED, "message": words}
        found = member_report(instance, MemberPhase.FAILED, member=member.name, **changes)
        story.agents[member.node].members[instance.spec.instance_id] = found
    return broken.node


def test_a_members_end_is_the_attempts_and_the_next_one_is_formed_after_a_wait() -> None:
    story = formed("a", "b")
    node = break_group(story)
    story.step()
    assert story.routed() == []
    (placement,) = [item for item in story.objects.values() if isinstance(item, Placement)]
    (failure,) = placement.status.failures
    assert (failure.node, failure.cause) == (node, FailureCause.KILLED)
    assert assigned(story, driver_of(story.instances()[0])).fronts == ()
    story.run(40)
    (instance,) = story.instances()
    assert instance.spec.attempt == 2
    assert story.routed() == ["smollm2-0"]


def test_whose_end_it_was_is_known_before_its_own_agent_tells() -> None:
    story = formed("a", "b")
    (instance,) = story.instances()
    node = break_group(story)
    story.agents[node].members[instance.spec.instance_id] = member_report(instance, member="1")
    story.step()
    assert any(f"attempt 1 on node '{node}' failed: NeighbourEnded" in note.message for note in story.notes)


def test_a_group_moves_to_a_node_where_it_has_not_failed() -> None:
    story = formed(*NODES)
    (before,) = story.instances()
    node = break_group(story)
    story.run(40)
    (after,) = story.instances()
    assert after.spec.instance_id != before.spec.instance_id
    first, *others = (member.node for member in after.spec.members)
    assert node not in {first, *others}
    assert story.routed() == [after.metadata.name]
    named = ", ".join(f"'{each}'" for each in others)
    where = f"of node '{first}' together with {named}"
    assert any("it failed; " in note.message and where in note.message for note in story.notes)


def test_what_is_not_wished_any_more_ends_on_every_node() -> None:
    story = formed("a", "b")
    story.put(builders.placement(suspend=True, shape=ShapeWish(type=ShapeType.RPC)))
    story.run(30)
    assert story.instances() == []
    assert not any(agent.members for agent in story.agents.values())


def test_a_group_is_adopted_whole_when_the_store_was_lost() -> None:
    story = formed("a", "b")
    (before,) = story.instances()
    story.lose_store()
    story.run(30)
    (after,) = story.instances()
    assert after.spec.members == before.spec.members
    assert (after.spec.instance_id, after.spec.attempt) == (before.spec.instance_id, 1)
    assert story.routed() == ["smollm2-0"]


def test_donors_run_on_while_only_their_driver_that_is_away_could_tell_of_the_group() -> None:
    story = formed("a", "b")
    (before,) = story.instances()
    driver, donor = (story.agents[member.node] for member in before.spec.members)
    driver.paused, driver.seen = True, -1.0  # this leader has never heard it
    story.lose_store()
    story.run(60)
    assert [each.phase for each in donor.members.values()] == [MemberPhase.READY]
    driver.paused = False
    story.run(20)
    (after,) = story.instances()
    assert (after.spec.instance_id, after.spec.attempt, story.routed()) == (before.spec.instance_id, 1, ["smollm2-0"])
    assert donor.started == [(before.spec.instance_id, 1)]


def test_donors_of_a_driver_that_never_comes_back_are_forgotten_in_time() -> None:
    story = formed("a", "b")
    (before,) = story.instances()
    driver, donor = (story.agents[member.node] for member in before.spec.members)
    driver.paused, driver.seen = True, -1.0  # this leader has never heard it
    story.lose_store()
    story.run(10)
    story.now += STRAY_SECONDS
    story.run(20)
    assert donor.members == {}


def test_a_donor_whose_driver_ended_before_the_store_was_lost_is_told_to_stop() -> None:
    """Agents run on what a snapshot leaves out: a donor that its driver had never reached would wait for ever."""
    story = formed("a", "b")
    (before,) = story.instances()
    driver, donor = (story.agents[member.node] for member in before.spec.members)
    instance_id = before.spec.instance_id
    driver.members[instance_id] = driver.members[instance_id].model_copy(update={"phase": MemberPhase.FAILED})
    told: list[MemberGoal] = []
    story.lose_store()
    for _ in range(40):
        story.run(1)
        members = story.published.assignments[donor.name].members if donor.name in story.published.assignments else ()
        told += [each.goal for each in members if each.instance.spec.instance_id == instance_id]
    assert set(told) == {MemberGoal.STOP}
    assert instance_id not in donor.members
    assert story.routed() == ["smollm2-0"]
    assert [each.spec.instance_id for each in story.instances()] != [instance_id]


def test_what_a_donor_holds_that_nobody_claims_is_promised_to_nobody_until_it_ended() -> None:
    story = formed("a", "b")
    (before,) = story.instances()
    driver, donor = (story.agents[member.node] for member in before.spec.members)
    instance_id = before.spec.instance_id
    driver.members[instance_id] = driver.members[instance_id].model_copy(update={"phase": MemberPhase.FAILED})
    donor.total_bytes = builders.GIB + before.spec.members[1].bytes_in("Host")  # with what is kept back: not twice
    story.lose_store()
    donor.deaf = True
    story.run(20)
    assert (instance_id in donor.members, story.instances()) == (True, [])
    donor.deaf = False
    story.run(20)
    assert instance_id not in donor.members
    assert story.routed() == ["smollm2-0"]


def test_a_node_that_lies_about_who_is_what_breaks_the_seal() -> None:
    (instance,) = formed("a", "b").instances()
    driver, donor = instance.spec.members
    swapped = (driver.model_copy(update={"role": donor.role}), donor.model_copy(update={"role": driver.role}))
    lie = instance.model_copy(update={"spec": instance.spec.model_copy(update={"members": swapped})})
    assert seal_instance(b"s", lie) != seal_instance(b"s", instance)


def test_a_donor_is_not_believed_when_it_tells_of_the_drivers_engine() -> None:
    story = formed("a", "b")
    (before,) = story.instances()
    liar = story.agents[before.spec.members[1].node]
    (report,) = liar.members.values()
    assert report.instance is not None
    options = report.instance.spec.options.model_copy(update={"threads": 63})
    spec = report.instance.spec.model_copy(update={"options": options})
    lie = report.instance.model_copy(update={"spec": spec})
    liar.members[before.spec.instance_id] = report.model_copy(update={"instance": lie})
    story.lose_store()
    story.run(30)
    (after,) = story.instances()
    assert (after.spec.instance_id, after.spec.options) == (before.spec.instance_id, before.spec.options)


def test_gateways_have_a_way_to_the_driver_and_nothing_is_said_of_donors() -> None:
    story = formed("a", "b")
    (instance,) = story.instances()
    for member in instance.spec.members:
        node = next(item for item in story.objects.values() if isinstance(item, Node) and item.key.name == member.node)
        told = [each.status for each in node.status.conditions if each.type == "DataPathReachable"]
        assert told == ([ConditionStatus.TRUE] if member.role is MemberRole.DRIVER else [])


def test_what_leaves_a_donors_node_is_named_to_the_group_that_waits_for_it() -> None:
    context = ContextWish(tokens=8192)
    story = begin("a", "b")
    story.agents["a"].total_bytes, story.agents["b"].total_bytes = 2_600_000_000, 2_500_000_000
    shape = ShapeWish(type=ShapeType.RPC)
    story.put(
        builders.placement(suspend=True, context=context, shape=shape),
        builders.placement("first", model="smollm2", context=context, nodes=NodeChoice(include=("b",))),
    )
    story.run(20)
    (held,) = story.instances()
    story.gateways["g"].in_flight = {held.spec.instance_id: 1}
    story.put(
        builders.placement("first", model="smollm2", context=context, suspend=True),
        builders.placement(context=context, shape=shape, preemption=Preemption.LOWER_PRIORITY, priority=1),
    )
    story.run(5)
    placement = next(i for i in story.objects.values() if isinstance(i, Placement) and i.key.name == "smollm2")
    ready = next(each for each in placement.status.conditions if each.type == "Ready")
    assert "waits for 'first-0' to leave node 'b'" in ready.message


def test_a_member_that_is_never_reported_is_named() -> None:
    story = begin("a", "b")
    story.run(3)
    (instance,) = story.instances()
    donor = instance.spec.members[1].node

    def forget(agent_members: dict[str, MemberReport]) -> None:
        agent_members.clear()

    for _ in range(40):
        story.agents[donor].deaf = True
        forget(story.agents[donor].members)
        story.step()
    assert any(f"agent of node '{donor}' did not report it" in note.message for note in story.notes)


def test_a_shape_that_nobody_can_run_says_what_is_missing() -> None:
    story = begin("a")
    story.run(10)
    assert story.instances() == []
    (placement,) = [item for item in story.objects.values() if isinstance(item, Placement)]
    assert "no 2 to 4 nodes hold model 'smollm2' together as `Rpc`" in placement.status.closest_refusal


def ring(*nodes: str) -> Worldlet:
    story = Worldlet()
    shape = ShapeWish(type=ShapeType.PIPELINE, min_nodes=len(nodes))
    variant = Variant(name="v", format=ArtifactFormat.MLX, source=builders.SOURCE, engines=(EngineName.MLX,))
    geometry = builders.geometry(architecture="ministral3", model_type="ministral3")
    known = VariantStatus(name="v", source=builders.SOURCE, artifact=builders.artifact(), geometry=geometry)
    model = builders.model(variants=(variant,)).model_copy(update={"status": ModelStatus(variants=(known,))})
    story.put(model, builders.placement(shape=shape))
    story.add_agents(*nodes)
    for index, name in enumerate(nodes):
        agent = story.agents[name]
        agent.lanes = (builders.lane(engine=EngineName.MLX, roles=(MemberRole.RANK.value,)),)
        agent.front_port, agent.address = 52500, f"10.0.0.{index + 1}"
    story.gateways["g"] = FakeGateway()
    return story


def test_ranks_are_told_of_all_others_and_rank_0_is_routed() -> None:
    story = ring(*NODES)
    story.run(20)
    (instance,) = story.instances()
    assert [member.role for member in instance.spec.members] == [MemberRole.RANK] * 3
    assert sum(member.layers for member in instance.spec.members) == 30
    assert story.routed() == ["smollm2-0"]
    assert story.published.endpoints is not None
    assert [each.node for each in story.published.endpoints.endpoints] == [driver_of(instance)]
    for member in instance.spec.members:
        assert {each.member for each in assigned(story, member.node).fronts} == {"0", "1", "2"}


def test_a_rank_that_failed_is_nowhere_to_be_reached_and_the_next_attempt_is_of_all() -> None:
    story = ring("a", "b")
    story.run(20)
    node = break_group(story)
    story.step()
    assert story.routed() == []
    assert assigned(story, node).fronts == ()
    story.run(40)
    (instance,) = story.instances()
    assert (instance.spec.attempt, story.routed()) == (2, ["smollm2-0"])


def test_a_ring_is_adopted_whole_by_rank_0s_word() -> None:
    story = ring("a", "b")
    story.run(20)
    (before,) = story.instances()
    story.lose_store()
    story.run(30)
    (after,) = story.instances()
    assert (after.spec.members, story.routed()) == (before.spec.members, ["smollm2-0"])


def test_a_locked_group_is_never_moved_and_is_formed_again_where_it_is_locked() -> None:
    story = begin(*NODES, topology_lock=("c", "a"))
    story.run(20)
    (before,) = story.instances()
    assert [member.node for member in before.spec.members] == ["c", "a"]
    node = break_group(story)
    story.run(60)
    (after,) = story.instances()
    assert node == "a"
    assert (after.spec.instance_id, after.spec.attempt) == (before.spec.instance_id, 2)
    assert story.routed() == [after.metadata.name]


def test_a_locked_group_waits_for_its_node_and_says_so() -> None:
    story = begin("a", "b", topology_lock=("a", "c"))
    story.run(30)
    assert story.instances() == []
    (placement,) = [item for item in story.objects.values() if isinstance(item, Placement)]
    assert "it waits for 'c' (it has not joined)" in placement.status.closest_refusal
    story.add_agents("c")
    agent = story.agents["c"]
    agent.lanes, agent.front_port, agent.address = (builders.lane(roles=ROLES),), 52500, "10.0.0.9"
    story.run(20)
    (instance,) = story.instances()
    assert [member.node for member in instance.spec.members] == ["a", "c"]


def test_a_locked_group_whose_node_is_lost_is_replaced_by_nothing_and_comes_back_with_it() -> None:
    story = begin(*NODES, topology_lock=("c", "a"))
    story.run(20)
    (before,) = story.instances()
    story.agents["a"].paused = True
    story.run(200)
    assert [each.spec.instance_id for each in story.instances()] == [before.spec.instance_id]
    (placement,) = [item for item in story.objects.values() if isinstance(item, Placement)]
    assert "it waits for 'a' (NodeUnknown)" in placement.status.closest_refusal
    story.agents["a"].paused = False
    story.run(20)
    assert [each.spec.instance_id for each in story.instances()] == [before.spec.instance_id]
    assert story.routed() == [before.metadata.name]


def test_a_group_whose_nodes_have_different_builds_by_now_is_not_started_again() -> None:
    story = formed("a", "b")
    (before,) = story.instances()
    node = break_group(story)
    lane = builders.lane(roles=ROLES).model_copy(update={"version": "b9999", "digest": "d" * 64})
    story.agents[node].lanes = (lane,)
    story.run(60)
    assert [each.spec.attempt for each in story.instances() if each.spec.instance_id == before.spec.instance_id] == []
    assert any(
        f"different builds of LlamaServer now: '{driver_of(before)}'" in note.message
        and f"'{node}' b9999 (dddddddddddd)" in note.message
        for note in story.notes
    )
    story.agents[driver_of(before)].lanes = (lane,)
    story.run(60)
    assert story.routed() == ["smollm2-0"]


def test_how_long_a_groups_members_may_take_to_meet_is_the_placements_word() -> None:
    story = begin("a", "b")
    story.put(builders.placement(shape=ShapeWish(type=ShapeType.RPC), timeouts=Timeouts(form_seconds=600)))
    story.run(20)
    assert [each.spec.form_seconds for each in story.instances()] == [600]


def tell(story: Worldlet, node: str, message: str) -> None:
    """Its member has ended for another one's end."""
    (instance,) = story.instances()
    (member,) = [each.name for each in instance.spec.members if each.node == node]
    changes = {"cause": FailureCause.NEIGHBOUR_ENDED, "message": message}
    found = member_report(instance, MemberPhase.FAILED, member=member, **changes)
    story.agents[node].members[instance.spec.instance_id] = found


def failures_of(story: Worldlet) -> list[str]:
    (placement,) = [item for item in story.objects.values() if isinstance(item, Placement)]
    return [each.node for each in placement.status.failures]


def test_a_member_that_says_another_one_ended_is_believed_no_more_than_what_that_ones_node_says() -> None:
    """Its driver passes the lie on, and ends for it; so does the one that it is about."""
    story = formed(*NODES, min_nodes=3)
    (instance,) = story.instances()
    driver, liar, victim = instance.spec.members
    lie = f"member '{victim.name}' on node '{victim.node}' lost its engine"
    at_driver = f"{lie} (heard from member '{liar.name}' on node '{liar.node}')"
    at_victim = f"{at_driver} (heard from member '{driver.name}' on node '{driver.node}')"
    tell(story, driver.node, at_driver)
    story.step()
    assert (story.routed(), failures_of(story)) == ([], []), "its own node has said nothing yet"
    tell(story, victim.node, at_victim)
    story.step()
    assert failures_of(story) == [liar.node]


def test_who_was_only_told_waits_for_whoever_saw_it() -> None:
    story = formed(*NODES, min_nodes=3)
    (instance,) = story.instances()
    driver, dead, other = instance.spec.members
    words = f"member '{dead.name}' on node '{dead.node}' lost its engine"
    tell(story, other.node, f"{words} (heard from member '{driver.name}' on node '{driver.node}')")
    story.step()
    assert failures_of(story) == []
    tell(story, driver.node, words)
    story.step()
    assert failures_of(story) == [dead.node]


def test_who_told_an_end_that_nobody_else_says_is_blamed_in_the_end() -> None:
    story = formed(*NODES, min_nodes=3)
    (instance,) = story.instances()
    driver, liar, victim = instance.spec.members
    lie = f"member '{victim.name}' on node '{victim.node}' lost its engine"
    tell(story, driver.node, f"{lie} (heard from member '{liar.name}' on node '{liar.node}')")
    story.run(40)
    assert f"on node '{liar.node}' failed" in "".join(note.message for note in story.notes)
    assert f"on node '{victim.node}' failed" not in "".join(note.message for note in story.notes)


def test_what_is_of_lower_priority_makes_room_on_all_nodes_of_a_group() -> None:
    """No node alone could take the group, so leaving one of them alone is of no use to it."""
    story = Worldlet()
    story.put(
        builders.model(), builders.placement("low", model="smollm2", replicas=2, context=ContextWish(tokens=1024))
    )
    story.add_agents(*NODES[:2], total_bytes=1_700_000_000)
    for index, name in enumerate(NODES[:2]):
        agent = story.agents[name]
        agent.lanes, agent.front_port, agent.address = (builders.lane(roles=ROLES),), 52500, f"10.0.0.{index + 1}"
    story.gateways["g"] = FakeGateway()
    story.run(20)
    assert story.routed() == ["low-0", "low-1"]
    wished = ShapeWish.model_validate({"type": ShapeType.RPC, "min_nodes": 2})
    story.put(
        builders.placement(
            "group",
            model="smollm2",
            shape=wished,
            priority=1,
            preemption=Preemption.LOWER_PRIORITY,
            concurrency=4,
            context=ContextWish(tokens=4096),
        )
    )
    story.run(60)
    assert story.routed() == ["group-0"]


def test_a_group_whose_node_is_to_go_is_replaced_before_it_leaves() -> None:
    story = formed(*NODES)
    gone = story.instances()[0].spec.members[0].node
    node = next(o for o in story.objects.values() if isinstance(o, Node) and o.metadata.name == gone)
    story.put(node.model_copy(update={"metadata": node.metadata.model_copy(update={"deletion_timestamp": "x"})}))
    for _ in range(60):
        story.step()
        assert story.routed()
    (instance,) = story.instances()
    assert gone not in {member.node for member in instance.spec.members}


def ready_of(story: Worldlet) -> Condition:
    return next(each for each in placement_of(story).status.conditions if each.type == "Ready")


def hold(story: Worldlet, name: str, phase: MemberPhase, **changes: object) -> None:
    """The first donor or rank but rank 0 stands still there, and the others go on."""
    agent = story.agents[name]
    (instance,) = story.instances()
    (member,) = [each.name for each in instance.spec.members if each.node == name]
    agent.deaf = True
    agent.members[instance.spec.instance_id] = member_report(instance, phase, member=member, **changes)
    story.run(8)


def test_a_group_that_waits_says_for_whom_and_why() -> None:
    story = begin(*NODES, min_nodes=3)
    while not story.instances():
        story.step()
    (instance,) = story.instances()
    node = instance.spec.members[1].node
    words = "can't be installed: no space"
    hold(story, instance.spec.members[0].node, MemberPhase.PENDING)  # as an agent tells it
    hold(story, node, MemberPhase.FETCHING, cause=FailureCause.DISK_FULL, message=words)
    (after,) = story.instances()
    assert f"waits for donor '1' on node '{node}', which is Fetching after DiskFull: {words}" in ready_of(story).message
    assert ready_of(story).reason == ReadyReason.ARTIFACTS_PENDING
    assert f"donor '1' on node '{node}'" in next(e for e in after.status.conditions if e.type == "Ready").message
    hold(story, node, MemberPhase.STARTING)
    assert ready_of(story).message.endswith(f"donor '1' on node '{node}', which is Starting")


def test_ranks_that_lack_nothing_are_not_waited_for() -> None:
    story = ring(*NODES)
    while not story.instances():
        story.step()
    (instance,) = story.instances()
    node = instance.spec.members[2].node
    hold(story, node, MemberPhase.FETCHING)
    for each in instance.spec.members[:2]:  # as agents tell it
        hold(story, each.node, MemberPhase.PENDING, front_port=52500)
    assert ready_of(story).message.endswith(
        f"instance 'smollm2-0' waits for rank '2' on node '{node}', which is Fetching"
    )
    hold(story, node, MemberPhase.PENDING, front_port=52500)
    assert ready_of(story).message.endswith("every member has what it needs, and they are about to start")


def test_of_several_groups_the_next_is_about_to_be_placed_and_not_refused_without_a_word() -> None:
    story = begin("a", "b", "c", "d")
    wished = ShapeWish.model_validate({"type": ShapeType.RPC, "min_nodes": 2, "max_nodes": 2})
    story.put(builders.placement(shape=wished, replicas=2))
    told: set[str] = set()
    for _ in range(30):
        story.step()
        told |= {each.message for each in (ready_of(story),)} if placement_of(story).status.conditions else set()
    assert not any(each.rstrip().endswith(";") for each in told), told
    assert story.routed() == ["smollm2-0", "smollm2-1"]


def placement_of(story: Worldlet) -> Placement:
    (placement,) = [item for item in story.objects.values() if isinstance(item, Placement)]
    return placement
