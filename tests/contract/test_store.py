"""What every adapter of the port `Store` does, whatever it is made of."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from covey_api.instance import Instance, InstanceGoal, InstancePhase, InstanceStatus, MemberStatus
from covey_api.kinds import Kind, ObjectKey
from covey_api.meta import DRAIN_FINALIZER, ObjectMeta
from covey_api.node import Node, NodeFacts, NodeStatus
from covey_api.placement import Placement, PlacementStatus
from covey_controller.ports import Conflict, Event, HeldT, Refused, Store
from covey_controller.reconcile.fleet import is_schedulable
from kit import builders
from kit.documents import model_key, model_yaml, node_key, node_yaml, placement_key, placement_yaml, running_store
from kit.kube import People, running_kube_store
from testbed.kube.controlplane import ControlPlane


@dataclass
class Adapter:
    """A store under test and how people put documents into it or take them out."""

    store: Store
    write: Callable[[str], Awaitable[None]]
    remove: Callable[[ObjectKey], Awaitable[None]]
    open_second: Callable[[], AbstractAsyncContextManager[Store]]
    """Another process's store on the same state, which doesn't lead yet."""


@asynccontextmanager
async def files_adapter(folder: Path) -> AsyncGenerator[Adapter]:
    source = folder / "source"
    source.mkdir(exist_ok=True)
    async with running_store(source, folder / "state") as store:

        async def write(text: str) -> None:
            await store.apply_documents(text, "test.yaml")

        async def remove(key: ObjectKey) -> None:
            await store.delete_documents((key,))

        yield Adapter(store, write, remove, lambda: running_store(source, folder / "state", leads=False))


@asynccontextmanager
async def kube_adapter(plane: ControlPlane) -> AsyncGenerator[Adapter]:
    async with running_kube_store(plane) as store:
        people = People(plane, store)
        yield Adapter(store, people.apply, people.delete, lambda: running_kube_store(plane, leads=False))


Open = Callable[[], AbstractAsyncContextManager[Adapter]]


@pytest.fixture(scope="module", params=["files", "kube"])
def plane(request: pytest.FixtureRequest) -> ControlPlane | None:
    """The API server that the store is on; None for files."""
    return request.getfixturevalue("control_plane") if request.param == "kube" else None


@pytest.fixture
def open_adapter(plane: ControlPlane | None, tmp_path: Path) -> Open:
    """Opens the adapter; again: as after a restart, with the same state."""
    if plane is None:
        return lambda: files_adapter(tmp_path)
    plane.clear("default")
    return lambda: kube_adapter(plane)


async def list_objects(store: Store) -> Mapping[ObjectKey, Kind]:
    """All but the Fleet, which the leader of a Kubernetes fleet makes by itself."""
    return {key: item for key, item in (await store.list_objects()).items() if key.kind != "Fleet"}


async def get_instance(store: Store, name: str = "smollm2-0") -> Instance:
    found = (await store.list_objects())[ObjectKey("Instance", "default", name)]
    assert isinstance(found, Instance)
    return found


async def get_placement(store: Store) -> Placement:
    found = (await store.list_objects())[placement_key()]
    assert isinstance(found, Placement)
    return found


async def get_node(store: Store) -> Node:
    found = (await store.list_objects())[node_key()]
    assert isinstance(found, Node)
    return found


def with_spec(instance: Instance, **changes: object) -> Instance:
    return instance.model_copy(update={"spec": instance.spec.model_copy(update=changes)})


FACTS = NodeStatus(facts=NodeFacts(os="linux", architecture="x86_64", cpu_cores=2, pools=()))


def test_written_documents_are_listed_with_metadata_and_wake_the_reconciler(open_adapter: Open) -> None:
    async def scenario() -> None:
        async with open_adapter() as adapter:
            assert await list_objects(adapter.store) == {}
            assert not await adapter.store.wait_changed(0.05)
            await adapter.write(f"{model_yaml()}---\n{placement_yaml()}")
            assert await adapter.store.wait_changed(60.0)
            objects = await list_objects(adapter.store)
            assert set(objects) == {model_key(), placement_key()}
            metadata = objects[placement_key()].metadata
            assert metadata.uid
            assert metadata.resource_version
            assert metadata.generation == 1
            assert metadata.creation_timestamp.endswith("Z")
            assert not await adapter.store.wait_changed(0.05)

    asyncio.run(scenario())


def test_generation_follows_the_spec_and_uid_and_status_stay(open_adapter: Open) -> None:
    async def scenario() -> None:
        async with open_adapter() as adapter:
            await adapter.write(placement_yaml())
            first = await get_placement(adapter.store)
            status = PlacementStatus(observed_generation=1, replicas=1)
            await adapter.store.write_status(placement_key(), status)
            reported = await get_placement(adapter.store)
            assert reported.status == status
            assert reported.metadata.generation == 1
            assert reported.metadata.resource_version != first.metadata.resource_version
            await adapter.write(placement_yaml(replicas=2))
            changed = await get_placement(adapter.store)
            assert changed.metadata.uid == first.metadata.uid
            assert changed.metadata.creation_timestamp == first.metadata.creation_timestamp
            assert changed.metadata.generation == 2
            assert changed.status == status
            labelled = placement_yaml(replicas=2).replace("{name: smollm2}", "{name: smollm2, labels: {a: b}}", 1)
            await adapter.write(labelled)
            after = await get_placement(adapter.store)
            assert after.metadata.labels == {"a": "b"}
            assert after.metadata.generation == 2

    asyncio.run(scenario())


def test_object_that_is_made_again_is_another_one(open_adapter: Open) -> None:
    async def scenario() -> None:
        async with open_adapter() as adapter:
            await adapter.write(placement_yaml())
            first = await get_placement(adapter.store)
            await adapter.remove(placement_key())
            assert placement_key() not in await adapter.store.list_objects()
            await adapter.write(placement_yaml())
            second = await get_placement(adapter.store)
            assert second.metadata.uid != first.metadata.uid
            assert second.status == PlacementStatus()

    asyncio.run(scenario())


def test_everything_is_there_again_after_a_restart(open_adapter: Open) -> None:
    async def scenario() -> None:
        async with open_adapter() as adapter:
            await adapter.write(f"{model_yaml()}---\n{placement_yaml()}---\n{node_yaml()}")
            await adapter.store.create(builders.instance())
            await adapter.store.write_status(node_key(), FACTS)
            before = await list_objects(adapter.store)
        async with open_adapter() as adapter:
            assert await list_objects(adapter.store) == before

    asyncio.run(scenario())


def test_instance_is_created_once_with_the_stores_own_metadata(open_adapter: Open) -> None:
    async def scenario() -> None:
        async with open_adapter() as adapter:
            created = await adapter.store.create(builders.instance())
            assert created.metadata.uid != "uid-smollm2-0"
            assert created.metadata.generation == 1
            assert created.spec == builders.instance().spec
            assert created == await get_instance(adapter.store)
            with pytest.raises(Conflict, match="exists already"):
                await adapter.store.create(builders.instance())

    asyncio.run(scenario())


def test_update_needs_the_stored_version(open_adapter: Open) -> None:
    async def scenario() -> None:
        async with open_adapter() as adapter:
            store = adapter.store
            created = await store.create(builders.instance())
            drained = await store.update(with_spec(created, goal=InstanceGoal.DRAIN))
            assert drained.metadata.generation == 2
            assert drained == await get_instance(store)
            with pytest.raises(Conflict, match="has changed: its resourceVersion is"):
                await store.update(with_spec(created, attempt=2))
            assert await store.update(drained) == drained, "an equal spec writes nothing"
            with pytest.raises(Conflict, match="doesn't exist"):
                await store.update(builders.instance("other-0"))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"term": 4}, "`spec.term` must never fall"),
        ({"attempt": 1}, "`spec.attempt` must never fall"),
        ({"instance_id": "00000000000000bb"}, "`spec.instanceId` must not change"),
        ({"goal": InstanceGoal.RUN}, "`spec.goal` must only go from 'Run' to 'Drain'"),
        ({"drain_seconds": 1}, "of `spec` only `goal`, `attempt` and `term` must change"),
        ({"revision": "r1-other"}, "of `spec` only `goal`, `attempt` and `term` must change"),
    ],
)
def test_update_keeps_the_transition_rules(open_adapter: Open, changes: dict[str, object], message: str) -> None:
    async def scenario() -> None:
        async with open_adapter() as adapter:
            created = await adapter.store.create(builders.instance(term=5, attempt=2, goal=InstanceGoal.DRAIN))
            with pytest.raises(Conflict, match=message):
                await adapter.store.update(with_spec(created, **changes))
            assert await get_instance(adapter.store) == created

    asyncio.run(scenario())


def test_delete_needs_the_uid_and_forgives_what_is_gone(open_adapter: Open) -> None:
    async def scenario() -> None:
        async with open_adapter() as adapter:
            created = await adapter.store.create(builders.instance())
            with pytest.raises(Conflict, match="was made again"):
                await adapter.store.delete(created.key, "another")
            await adapter.store.delete(created.key, created.metadata.uid)
            await adapter.store.delete(created.key, created.metadata.uid)
            assert await list_objects(adapter.store) == {}

    asyncio.run(scenario())


def test_equal_status_writes_nothing_and_a_missing_object_is_no_error(open_adapter: Open) -> None:
    async def scenario() -> None:
        async with open_adapter() as adapter:
            store = adapter.store
            created = await store.create(builders.instance())
            status = InstanceStatus(phase=InstancePhase.READY)
            await store.write_status(created.key, status)
            first = await get_instance(store)
            await store.write_status(created.key, status)
            assert await get_instance(store) == first
            await store.write_status(ObjectKey("Instance", "default", "none"), status, (Event(created.key, "A", "a"),))
            assert not await store.wait_changed(0.05), "what the reconciler writes itself is no news"

    asyncio.run(scenario())


def test_status_that_breaks_its_schema_is_refused_and_the_object_stays(open_adapter: Open) -> None:
    async def scenario() -> None:
        async with open_adapter() as adapter:
            created = await adapter.store.create(builders.instance())
            member = MemberStatus(name="0", node="a").changed(progress="p" * 81)
            with pytest.raises(Refused, match="progress"):
                await adapter.store.write_status(created.key, InstanceStatus(members=(member,)))
            assert await get_instance(adapter.store) == created

    asyncio.run(scenario())


def test_joining_creates_a_node_that_is_news_and_a_document_takes_it_over(open_adapter: Open) -> None:
    async def scenario() -> None:
        async with open_adapter() as adapter:
            store = adapter.store
            await store.list_objects()
            joined = await store.create(Node(metadata=ObjectMeta(name="a")))
            assert await store.wait_changed(60.0)
            with pytest.raises(Conflict):
                await store.create(Node(metadata=ObjectMeta(name="a")))
            await store.write_status(node_key(), FACTS)
            await adapter.write(node_yaml())
            declared = await get_node(store)
            assert declared.metadata.uid == joined.metadata.uid
            assert declared.spec.reserve.memory == "2Gi"
            assert declared.status == FACTS

    asyncio.run(scenario())


def hold(item: HeldT) -> HeldT:
    """The same with the finalizer that the reconciler adds."""
    held = item.metadata.model_copy(update={"finalizers": (DRAIN_FINALIZER,)})
    return item.model_copy(update={"metadata": held})


def test_holding_an_object_writes_its_finalizer_once_and_nothing_else(open_adapter: Open) -> None:
    async def scenario() -> None:
        async with open_adapter() as adapter:
            store = adapter.store
            await adapter.write(placement_yaml())
            before = await get_placement(store)
            await store.update(hold(before))
            held = await get_placement(store)
            assert held.metadata.finalizers == (DRAIN_FINALIZER,)
            assert (held.spec, held.metadata.generation) == (before.spec, before.metadata.generation)
            assert await store.update(held) == held
            assert await get_placement(store) == held
            assert not await store.wait_changed(0.05), "what the reconciler writes itself is no news"

    asyncio.run(scenario())


def test_deleted_node_is_drained_first_and_then_removed(open_adapter: Open) -> None:
    async def scenario() -> None:
        async with open_adapter() as adapter:
            store = adapter.store
            await adapter.write(node_yaml())
            await store.update(hold(await get_node(store)))
            await store.write_status(node_key(), FACTS)
            await store.list_objects()
            with pytest.raises(Conflict):
                await store.delete(node_key(), (await get_node(store)).metadata.uid)
            await adapter.remove(node_key())
            assert await store.wait_changed(60.0)
            leaving = await get_node(store)
            assert leaving.metadata.deletion_timestamp is not None
            assert not is_schedulable(leaving), "nothing new is placed on a node that leaves"
            await store.delete(node_key(), leaving.metadata.uid)
            assert node_key() not in await store.list_objects()

    asyncio.run(scenario())


def test_each_holding_of_the_lease_is_a_higher_term(open_adapter: Open) -> None:
    async def scenario() -> None:
        async with open_adapter() as adapter:
            first = await adapter.store.acquire_lease("one")
            raised = await adapter.store.raise_term(first.term + 10)
            assert raised.term > first.term + 10
            assert first.lost.is_set()
            assert not raised.lost.is_set()
            again = await adapter.store.acquire_lease("one")
            assert again.term > raised.term
            assert raised.lost.is_set()
        async with open_adapter() as adapter:
            assert (await adapter.store.acquire_lease("two")).term > again.term
            with pytest.raises(ValueError, match="term must be at most"):
                await adapter.store.raise_term(1 << 60)

    asyncio.run(scenario())


def test_second_controller_waits_and_may_not_write(open_adapter: Open) -> None:
    async def scenario() -> None:
        async with open_adapter() as adapter:
            first = await adapter.store.raise_term(0)
            async with adapter.open_second() as second:
                with pytest.raises(Conflict):
                    await second.create(builders.instance())
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await second.acquire_lease("second")
                assert not first.lost.is_set()
                await adapter.store.create(builders.instance())

    asyncio.run(scenario())
