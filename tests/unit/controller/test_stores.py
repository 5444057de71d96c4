"""What a node keeps for the fleet: every Model's files, as far as they are known."""

from covey_api.messages import MAX_KEPT, MAX_KEPT_BYTES, MAX_KEPT_FILES, UnkeptArtifact
from covey_api.meta import ObjectMeta
from covey_api.model import ArtifactFile, Model, ResolvedArtifact, VariantStatus
from covey_api.node import Keeps, Node, NodeSpec, NodeStore
from covey_api.reasons import EventReason, FailureCause
from covey_controller.reconcile.sights import NodeSight
from covey_controller.reconcile.stores import is_store, plan_kept
from covey_planner.types import NodeState
from kit import builders
from kit.worlds import FakeAgent, Worldlet


def resolved(source: str, number: int = 1, files: int = 0) -> ResolvedArtifact:
    parts = tuple(ArtifactFile(name=f"f{each}", size_bytes=1, sha256=f"{each:064x}") for each in range(files))
    return ResolvedArtifact(source=source, name="w.gguf", size_bytes=1, sha256=f"{number:064x}", files=parts)


def model(name: str, source: str, artifact: ResolvedArtifact | None) -> Model:
    made = builders.model(name)
    variant = made.spec.variants[0].model_copy(update={"source": source})
    made = made.model_copy(update={"spec": made.spec.model_copy(update={"variants": (variant,)})})
    status = VariantStatus(name=variant.name, source=source, artifact=artifact)
    return made.model_copy(update={"status": made.status.model_copy(update={"variants": (status,)})})


def test_each_file_of_each_model_is_kept_once() -> None:
    hub, wheel = "hf://org/model@main#w.gguf", "pypi://pack==1.0#w.gguf"
    models = [
        model("b", hub, resolved(hub, 2)),
        model("a", hub, resolved(hub, 2)),
        model("c", wheel, resolved(wheel, 1)),
        model("unresolved", hub, None),
    ]
    assert plan_kept(models) == plan_kept(reversed(models)) == ((resolved(wheel, 1), resolved(hub, 2)), ())


def test_what_is_another_machines_or_of_an_earlier_source_is_not_kept() -> None:
    local, new, old = "file:///srv/w.gguf", "hf://org/new@main#w.gguf", "hf://org/old@main#w.gguf"
    assert plan_kept([model("a", local, resolved(local)), model("b", new, resolved(old))]) == ((), ())


def test_what_is_kept_is_bounded() -> None:
    source = "hf://org/m@main#w.gguf"
    one, beyond = plan_kept(model(f"m{number}", source, resolved(source, number)) for number in range(MAX_KEPT + 5))
    assert (len(one), len(beyond)) == (MAX_KEPT, 5)
    many, _ = plan_kept(model(f"m{number}", source, resolved(source, number, files=256)) for number in range(100))
    assert sum(len(each.files) for each in many) <= MAX_KEPT_FILES


def test_what_is_kept_is_bounded_in_bytes() -> None:
    long = "hf://org/m@main#" + "\N{SNOWMAN}" * 900 + ".gguf"
    kept, _ = plan_kept(model(f"m{number}", long, resolved(long, number)) for number in range(MAX_KEPT))
    rendered = sum(len(each.to_json().encode()) for each in kept)
    assert 0 < len(kept) < MAX_KEPT
    assert rendered <= MAX_KEPT_BYTES
    kept, _ = plan_kept([model("m", long, resolved(long, 1, files=256))])
    assert len(kept) == 1


def test_a_new_model_takes_no_older_ones_place() -> None:
    source = "hf://org/m@main#w.gguf"

    def made(number: int, since: str) -> Model:
        found = model(f"m{number}", source, resolved(source, number))
        return found.model_copy(update={"metadata": found.metadata.model_copy(update={"creation_timestamp": since})})

    olds = [made(number, "2026-01-01T00:00:00Z") for number in range(2, MAX_KEPT + 2)]
    kept, beyond = plan_kept([made(1, "2026-02-01T00:00:00Z"), *olds])
    assert beyond == (resolved(source, 1),)
    assert len(kept) == MAX_KEPT


def test_a_store_says_what_it_lacks_how_large_it_is_and_why() -> None:
    story = Worldlet()
    story.put(
        builders.model(),
        builders.placement(),
        Node(metadata=ObjectMeta(name="a"), spec=NodeSpec(store=NodeStore(keeps=Keeps.MODELS))),
    )
    story.agents["a"] = FakeAgent("a")
    story.run(20)

    def condition() -> str | None:
        node = next(item for item in story.objects.values() if isinstance(item, Node))
        return next((each.message for each in node.status.conditions if each.type == "StoreIncomplete"), None)

    assert condition() is None
    source = builders.model().spec.variants[0].source
    stale = UnkeptArtifact(source="hf://org/gone", size_bytes=1, cause=FailureCause.DISK_FULL)
    lacking = UnkeptArtifact(source=source, size_bytes=98_362_432, cause=FailureCause.DISK_FULL)
    story.agents["a"].unkept = (lacking, stale)
    story.run(20)
    # What no Model names any more is nothing that lacks.
    assert condition() == f"does not keep '{source}' (93.8 MiB): DiskFull"
    assert [note.message for note in story.notes if note.reason == EventReason.STORE_INCOMPLETE] == [condition()]
    writes = story.writes
    story.run(60)
    assert story.writes == writes, "it is said once"
    story.agents["a"].unkept = ()
    story.run(20)
    assert condition() is None


def test_a_node_is_a_store_when_it_says_so() -> None:
    keeps = NodeSpec(store=NodeStore(keeps=Keeps.MODELS))
    assert is_store(sight(Node(metadata=ObjectMeta(name="a"), spec=keeps)))
    assert not is_store(sight(Node(metadata=ObjectMeta(name="a"))))
    assert not is_store(sight(None))


def sight(node: Node | None) -> NodeSight:
    return NodeSight("a", node, None, NodeState.READY, 0.0)


def test_a_store_is_told_what_to_keep_and_others_nothing() -> None:
    story = Worldlet()
    keeps = NodeSpec(store=NodeStore(keeps=Keeps.MODELS))
    source = "hf://org/new@main#w.gguf"
    story.put(Node(metadata=ObjectMeta(name="a"), spec=keeps), model("m", source, resolved(source)))
    story.add_agents("a", "b")
    story.run(15)
    found = story.published.assignments
    assert ([each.source for each in found["a"].kept or ()], found["b"].kept) == ([source], ())
    orders = {name: each.order for name, each in found.items()}
    story.run(60)
    assert {name: each.order for name, each in story.published.assignments.items()} == orders, "it is told once"
    story.put(Node(metadata=ObjectMeta(name="a")))
    story.run(5)
    assert story.published.assignments["a"].kept == ()
