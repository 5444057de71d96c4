"""Reasons that a fleet goes through without a fault of its own, each seen in a condition or a Note."""

from collections.abc import Iterable

from covey_api.access_key import AccessKey, AccessKeySpec
from covey_api.engines import EngineName, UnusableEngine
from covey_api.fleet import Fleet
from covey_api.kinds import ObjectKey
from covey_api.messages import UnkeptArtifact
from covey_api.meta import ConditionStatus, ObjectMeta
from covey_api.model import Model
from covey_api.node import Keeps, Node, NodeSpec, NodeStore
from covey_api.placement import ContextWish, Placement
from covey_api.reasons import (
    AccessKeyReason,
    EventReason,
    FailureCause,
    FleetReason,
    ModelReason,
    NodeReason,
    ReadyReason,
)
from kit import builders
from kit.worlds import FakeGateway, Worldlet


def begin(*nodes: str) -> Worldlet:
    story = Worldlet()
    story.put(builders.model(), builders.placement())
    story.add_agents(*nodes)
    story.gateways["g"] = FakeGateway()
    return story


def reasons_of(story: Worldlet, kind: type[Placement] | type[Node], seconds: int) -> set[str]:
    """Every reason in a condition of this kind during the next seconds."""
    seen: set[str] = set()
    for _ in range(seconds):
        story.step()
        items = [item for item in story.objects.values() if isinstance(item, kind)]
        seen |= {condition.reason for item in items for condition in item.status.conditions}
    return seen


def noted(story: Worldlet) -> set[str]:
    return {note.reason for note in story.notes}


def delete_softly(story: Worldlet, keys: Iterable[ObjectKey]) -> None:
    for key in list(keys):
        item = story.objects[key]
        metadata = item.metadata.model_copy(update={"deletion_timestamp": "2026-01-01T00:00:00Z"})
        story.put(item.model_copy(update={"metadata": metadata}))


def test_start_roll_and_end_of_a_placement_name_their_reasons() -> None:
    story = begin("a")
    assert {ReadyReason.ENGINE_STARTING, ReadyReason.SERVING} <= reasons_of(story, Placement, 15)
    story.put(builders.placement(context=ContextWish(tokens=1024)))
    assert ReadyReason.ROLLING_OUT in reasons_of(story, Placement, 10)
    story.gateways["g"].in_flight = {story.instances()[0].spec.instance_id: 1}
    story.put(builders.placement(suspend=True))
    assert ReadyReason.DRAINING in reasons_of(story, Placement, 5)
    story.gateways["g"].in_flight = {}
    assert ReadyReason.SCALED_TO_ZERO in reasons_of(story, Placement, 20)
    told = {EventReason.NODE_JOINED, EventReason.CREATED, EventReason.DRAIN_STARTED, EventReason.DRAIN_ENDED}
    assert told | {EventReason.DELETED} <= noted(story)


def test_settings_and_access_keys_are_said_to_be_in_force_once() -> None:
    story = begin("a")
    fleet = Fleet(metadata=ObjectMeta(name="default", uid="uid-fleet", generation=3))
    key = AccessKey(
        metadata=ObjectMeta(name="me", namespace="default", uid="uid-key", generation=2),
        spec=AccessKeySpec(hash=f"sha256:{'0' * 64}"),
    )
    story.put(fleet, key)
    story.run(15)
    for item, reason in ((fleet, FleetReason.APPLIED), (key, AccessKeyReason.ACCEPTED)):
        stored = story.objects[item.key]
        assert isinstance(stored, Fleet | AccessKey)
        status = stored.status
        (ready,) = status.conditions
        assert (ready.type, ready.status, ready.reason) == ("Ready", ConditionStatus.TRUE, reason)
        assert status.observed_generation == item.metadata.generation
    before = story.writes
    story.run(60)
    assert story.writes == before


def test_failure_and_the_next_attempt_on_the_only_node_are_noted() -> None:
    story = begin("a")
    story.agents["a"].fail = lambda instance: FailureCause.EXITED if instance.spec.attempt == 1 else None
    story.run(120)
    assert story.routed() == ["smollm2-0"]
    assert {EventReason.FAILED, EventReason.ATTEMPT_STARTED} <= noted(story)


def test_node_that_reports_falls_silent_and_is_deleted_names_its_reasons() -> None:
    story = begin("a", "b")
    assert NodeReason.REPORTING in reasons_of(story, Node, 15)
    home = story.instances()[0].spec.members[0].node
    story.agents[home].paused = True
    assert NodeReason.NODE_UNKNOWN in reasons_of(story, Node, 15)
    story.agents[home].paused = False
    story.run(3)
    story.gateways["g"].in_flight = {story.instances()[0].spec.instance_id: 1}
    delete_softly(story, (key for key, item in story.objects.items() if isinstance(item, Node) and key.name == home))
    assert NodeReason.DELETING in reasons_of(story, Node, 3)


def test_node_whose_front_a_gateway_misses_names_its_reasons() -> None:
    story = begin("a")
    story.agents["a"].address, story.agents["a"].front_port = "192.0.2.7", 52500
    assert NodeReason.DATA_PATH_OPEN in reasons_of(story, Node, 20)
    story.gateways["g"].path_failures = {story.instances()[0].spec.instance_id: "it took no connection"}
    assert NodeReason.DATA_PATH_CLOSED in reasons_of(story, Node, 3)
    story.gateways["g"].path_failures = {}
    assert NodeReason.DATA_PATH_OPEN in reasons_of(story, Node, 3)
    assert {EventReason.DATA_PATH_CLOSED, EventReason.DATA_PATH_OPENED} <= noted(story)


def test_node_with_an_engine_that_cannot_start_names_its_reason() -> None:
    story = begin("a")
    words = UnusableEngine(engine=EngineName.MLX, cause=FailureCause.MISSING_LIBRARY, message="no library")
    story.agents["a"].unusable = (words,)
    assert NodeReason.ENGINE_UNUSABLE in reasons_of(story, Node, 20)
    assert EventReason.ENGINE_UNUSABLE in noted(story)


def test_node_of_a_far_version_names_its_reason_until_it_is_upgraded() -> None:
    story = begin("a")
    story.version = "1.4.0"
    for far, late in (("1.2.9", "Upgrade the node 'a'"), ("1.6", "Upgrade the controllers"), ("2.4.0", "controllers")):
        story.agents["a"].version = far
        assert NodeReason.VERSIONS_APART in reasons_of(story, Node, 20)
        (node,) = (item for item in story.objects.values() if isinstance(item, Node))
        (message,) = (each.message for each in node.status.conditions if each.type == "VersionSkew")
        assert message.startswith(f"its agent is of version {far}, this controller of 1.4.0")
        assert late in message
    for near in ("1.3.0", "1.5.0rc1", "1.4.0+local"):
        story.agents["a"].version = near
        story.run(3)
        assert NodeReason.VERSIONS_APART not in reasons_of(story, Node, 20)
    # What can't be read is told of, and nothing breaks.
    for strange in ("nightly", "1." + "9" * 63):
        story.agents["a"].version = strange
        assert NodeReason.VERSIONS_APART in reasons_of(story, Node, 20)


def test_store_that_lacks_what_models_name_names_its_reason() -> None:
    story = begin("a")
    story.put(Node(metadata=ObjectMeta(name="a"), spec=NodeSpec(store=NodeStore(keeps=Keeps.MODELS))))
    story.run(20)
    lacking = UnkeptArtifact(source=builders.artifact().source, size_bytes=7, cause=FailureCause.DISK_FULL)
    story.agents["a"].unkept = (lacking,)
    assert NodeReason.STORE_INCOMPLETE in reasons_of(story, Node, 20)
    assert EventReason.STORE_INCOMPLETE in noted(story)


def test_instance_that_nobody_wishes_for_is_named_at_its_node() -> None:
    story = begin("a")
    story.run(15)
    story.remove(builders.placement())
    story.put(builders.placement("other", model="missing"))
    story.lose_store()
    assert NodeReason.NOT_WISHED in reasons_of(story, Node, 20)


def test_fleet_without_an_engine_is_stalled_with_the_install_line_and_serves_once_one_is_there() -> None:
    story = begin("a")
    story.put(builders.model(known=False))
    story.agents["a"].lanes = ()
    assert ReadyReason.NO_USABLE_ENGINE in reasons_of(story, Placement, 15)
    placed = next(item for item in story.objects.values() if isinstance(item, Placement))
    assert {condition.type for condition in placed.status.conditions} >= {"Ready", "Stalled"}
    assert "brew install llama.cpp" in placed.status.conditions[0].message
    model = next(item for item in story.objects.values() if isinstance(item, Model))
    assert ModelReason.NO_USABLE_ENGINE in {condition.reason for condition in model.status.conditions}
    story.agents["a"].lanes = (builders.lane(),)
    story.run(15)
    assert story.routed() == ["smollm2-0"]


def test_alias_of_another_is_a_conflict() -> None:
    story = Worldlet()
    story.put(builders.model("a", aliases=("b",)), builders.model("b"))
    story.run(12)
    model = next(item for item in story.objects.values() if isinstance(item, Model) and item.metadata.name == "a")
    assert ModelReason.ALIAS_CONFLICT in {condition.reason for condition in model.status.conditions}
