"""Objects of another version that this one can't read: what runs by them goes on, and nothing is made of them."""

from covey_api.instance import Instance
from covey_api.kinds import Kind, ObjectKey, Unreadable
from covey_api.meta import DRAIN_FINALIZER
from covey_controller.reconcile.outcomes import DeleteObject
from covey_controller.reconcile.plan import plan
from kit import builders
from kit.worlds import FakeGateway, Worldlet, world

PLACEMENT = ObjectKey("Placement", "default", "smollm2")
LEAVING = "2026-01-01T00:00:00Z"


def fleet() -> Worldlet:
    story = Worldlet()
    story.put(builders.model(), builders.placement())
    story.add_agents("a", "b")
    story.gateways["g"] = FakeGateway()
    story.run(20)
    assert story.routed() == ["smollm2-0"]
    return story


def rewrite(story: Worldlet, key: ObjectKey) -> Unreadable:
    """Another version's controller stores it in a way that this one can't read."""
    item = unreadable(story.objects[key])
    story.put(item)
    return item


def unreadable(item: Kind, deleted: str | None = None) -> Unreadable:
    metadata = item.metadata.model_copy(
        update={"namespace": "default", "deletion_timestamp": deleted, "finalizers": (DRAIN_FINALIZER,)}
    )
    return Unreadable(kind=item.key.kind, metadata=metadata)


def test_instance_of_an_unreadable_placement_is_neither_drained_nor_added_to() -> None:
    story = fleet()
    before = dict(story.agents["a"].members) | dict(story.agents["b"].members)
    rewrite(story, PLACEMENT)
    story.restart_leader()
    story.run(1200, each=5)
    assert story.routed() == ["smollm2-0"]
    assert (story.agents["a"].members | story.agents["b"].members).keys() == before.keys()
    story.put(builders.placement(replicas=2))
    story.run(30)
    assert story.routed() == ["smollm2-0", "smollm2-1"]


def test_instance_of_an_unreadable_placement_that_is_deleted_by_hand_is_drained() -> None:
    story = fleet()
    rewrite(story, PLACEMENT)
    (instance,) = story.instances()
    metadata = instance.metadata.model_copy(update={"deletion_timestamp": LEAVING})
    story.put(instance.model_copy(update={"metadata": metadata}))
    story.run(30)
    assert story.routed() == []
    assert story.instances() == []


def test_engine_of_an_unreadable_instance_runs_on_and_its_name_is_not_given_away() -> None:
    story = fleet()
    (instance,) = story.instances()
    rewrite(story, instance.key)
    story.run(1200, each=5)
    assert instance.spec.instance_id in story.agents["a"].members.keys() | story.agents["b"].members.keys()
    assert "smollm2-0" in story.routed(), "as a stray of the node"
    assert isinstance(story.objects[instance.key], Unreadable)
    assert [each.metadata.name for each in story.instances() if isinstance(each, Instance)] in ([], ["smollm2-1"])


def test_unreadable_placement_that_is_deleted_is_let_go_of_when_nothing_of_it_runs() -> None:
    leaving = unreadable(builders.placement(), LEAVING)
    running = plan(world(leaving, builders.instance()), 100.0)
    assert not any(isinstance(each, DeleteObject) and each.key == PLACEMENT for each in running.actions)
    ended = plan(world(leaving), 100.0)
    assert [each for each in ended.actions if isinstance(each, DeleteObject)] == [
        DeleteObject(PLACEMENT, leaving.metadata.uid)
    ]


def test_unreadable_object_that_stays_is_left_alone() -> None:
    kinds = (builders.placement(), builders.instance(), builders.model())
    for item in kinds:
        stays = plan(world(unreadable(item)), 100.0)
        assert stays.actions == ()
        assert stays.statuses == ()
