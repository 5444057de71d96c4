"""Which version of an engine a new Instance is stamped with: the Node's, or else the Fleet's; what runs stays."""

from covey_api.engines import EngineName, Lane, LaneBuild, LaneState
from covey_api.fleet import EnginePin, Fleet, FleetSpec
from covey_api.instance import InstanceGoal, InstancePhase, MemberPhase
from covey_api.meta import ObjectMeta
from covey_api.node import EngineOverride, Node, NodeSpec
from covey_api.placement import Placement
from covey_api.reasons import FailureCause
from kit import builders
from kit.worlds import FakeAgent, Worldlet, member_report

OLD, NEW = "0.9", "1.0"
MANAGED = builders.lane().model_copy(update={"version": NEW, "versions": (NEW, OLD)})


def fleet_of(*versions: str) -> Fleet:
    pins = tuple(EnginePin(engine=EngineName.LLAMA_SERVER, version=each) for each in versions)
    return Fleet(metadata=ObjectMeta(name="default", uid="uid-fleet"), spec=FleetSpec(engines=pins))


def node_of(version: str) -> Node:
    override = EngineOverride(engine=EngineName.LLAMA_SERVER, version=version)
    return Node(metadata=ObjectMeta(name="a", uid="uid-a"), spec=NodeSpec(engines=(override,)))


def begin(*objects: Fleet | Node, lane: Lane = MANAGED) -> Worldlet:
    story = Worldlet()
    story.put(builders.model(), builders.placement(), *objects)
    story.agents["a"] = FakeAgent("a", lanes=(lane,))
    story.run(20)
    return story


def versions_of(story: Worldlet) -> list[str]:
    return [instance.spec.engine_version for instance in story.instances()]


def test_without_a_pin_the_agent_chooses() -> None:
    assert versions_of(begin()) == [""]
    assert versions_of(begin(fleet_of())) == [""]


def test_the_fleets_pin_is_stamped_and_the_nodes_beats_it() -> None:
    assert versions_of(begin(fleet_of(OLD))) == [OLD]
    assert versions_of(begin(fleet_of(OLD), node_of(NEW))) == [NEW]
    assert versions_of(begin(node_of(OLD))) == [OLD]


def test_a_program_of_the_operators_is_what_it_is() -> None:
    assert versions_of(begin(fleet_of(OLD), lane=builders.lane())) == [""]


def test_a_pin_that_changes_touches_nothing_that_runs_and_counts_for_the_next() -> None:
    story = begin(fleet_of(NEW))
    before = story.instances()
    story.put(fleet_of(OLD))
    story.run(60)
    assert [each.spec for each in story.instances()] == [each.spec for each in before]
    story.put(builders.placement(replicas=2))
    story.run(30)
    assert versions_of(story) == [NEW, OLD]


def refusal_of(story: Worldlet) -> str:
    (placement,) = (item for item in story.objects.values() if isinstance(item, Placement))
    ready = next(each for each in placement.status.conditions if each.type == "Ready")
    return ready.message


def test_a_pin_that_a_node_does_not_know_is_a_filter_with_its_reason_and_touches_nothing_that_runs() -> None:
    story = begin(fleet_of("7"))
    assert versions_of(story) == []
    assert "LlamaServer 7 is pinned, and its agent can install 1.0 or 0.9" in refusal_of(story)
    story.put(fleet_of(OLD))
    story.run(30)
    assert versions_of(story) == [OLD]
    before = [each.spec for each in story.instances()]
    story.put(fleet_of("7"))
    story.run(60)
    assert [each.spec for each in story.instances()] == before
    assert story.instances()[0].status.phase is InstancePhase.READY


def test_what_only_the_pinned_build_lacks_counts_for_the_pin_alone() -> None:
    build = LaneBuild(version=OLD, state=LaneState.INSTALLABLE, lacks=("llama",))
    story = begin(fleet_of(OLD), lane=MANAGED.changed(builds=(build,)))
    assert versions_of(story) == []
    assert "LlamaServer 0.9 has no code for architecture 'llama'" in refusal_of(story)
    story.put(fleet_of(NEW))
    story.run(30)
    assert versions_of(story) == [NEW]


def test_a_pin_that_was_wrong_is_mended_where_there_is_no_other_node() -> None:
    story = begin(fleet_of(OLD))

    def fail() -> None:
        for each in story.instances():
            if each.spec.engine_version == OLD and each.spec.goal is InstanceGoal.RUN:
                failed = member_report(each, MemberPhase.FAILED, cause=FailureCause.NO_USABLE_ENGINE)
                story.agents["a"].members[each.spec.instance_id] = failed

    fail()
    story.run(3)
    assert versions_of(story) == [OLD]
    story.put(fleet_of(NEW))
    for _ in range(120):
        fail()
        story.step()
    story.run(60)
    assert versions_of(story) == [NEW]
    assert story.instances()[0].status.phase is InstancePhase.READY
