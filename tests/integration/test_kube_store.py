"""The kube store on a real API server: leadership, faults of network and server, and what people's tools see."""

import asyncio
import contextlib
import gc
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
from covey_api.instance import Instance, InstancePhase, InstanceStatus
from covey_api.kinds import Kind, ObjectKey, Unreadable
from covey_api.meta import DRAIN_FINALIZER, ObjectMeta
from covey_api.node import Node, NodeStatus
from covey_api.placement import Placement, PlacementStatus
from covey_api.reasons import EventReason
from covey_api.registry import KINDS
from covey_controller.ports import Conflict, Event, LeaseLost
from covey_controller.stores.kube.client import JsonObject, KubeClient
from covey_controller.stores.kube.credentials import KubeconfigLogin
from covey_controller.stores.kube.errors import KubeAway
from covey_controller.stores.kube.store import KubeStore
from covey_controller.stores.kube.sync import Sync
from kit import builders
from kit.documents import model_yaml, node_key, node_yaml, placement_key, placement_yaml
from kit.kube import ADDRESS, People, running_kube_store, until
from kit.live import Control, controller
from kit.processes import wait_for
from kit.tcp_proxy import TcpProxy, running_proxy
from kit.worlds import FakeAgent
from testbed.kube.controlplane import ControlPlane, running_control_plane
from testbed.kube.programs import NoPrograms

pytestmark = pytest.mark.integration

LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/default/leases/covey-controller"
MERGE = {"content-type": "application/merge-patch+json"}
INSTANCE = ObjectKey("Instance", "default", "smollm2-0")
# Kinds that go: where the API server still sees objects of one, it looks for a minute, then begins again.
GONE_SECONDS = 240.0


@pytest.fixture(autouse=True)
def no_connection_is_left_to_the_garbage_collector() -> Generator[None]:
    """It would warn of it, which fails whichever test runs then."""
    yield
    gc.collect()


@pytest.fixture
def plane(control_plane: ControlPlane) -> ControlPlane:
    control_plane.clear("default")
    return control_plane


@contextlib.contextmanager
def own_plane() -> Generator[ControlPlane]:
    """One that a test may stop and empty."""
    try:
        with running_control_plane() as plane:
            yield plane
    except NoPrograms as error:
        pytest.skip(str(error))


def edit_lease(plane: ControlPlane, body: object) -> None:
    with plane.client() as client:
        client.patch(LEASE_PATH, content=json.dumps(body), headers=MERGE).raise_for_status()


def read_lease(plane: ControlPlane) -> JsonObject:
    with plane.client() as client:
        return client.get(LEASE_PATH).raise_for_status().json()


@asynccontextmanager
async def proxied_store(plane: ControlPlane, folder: Path) -> AsyncGenerator[tuple[KubeStore, TcpProxy]]:
    """A leading store whose every byte goes through the proxy."""
    async with running_proxy(plane.port) as proxy:
        path = folder / "proxied.kubeconfig"
        path.write_text(plane.kubeconfig.read_text().replace(f":{plane.port}", f":{proxy.port}"))
        async with running_kube_store(plane, kubeconfig=path) as store:
            yield store, proxy


async def write_fleet(people: People, *, replicas: int = 1) -> None:
    await people.apply(f"{model_yaml()}---\n{placement_yaml(replicas=replicas)}")


async def ready(control: Control[KubeStore], count: int = 1) -> None:
    """Until so many endpoints are routed and every status is written."""
    await control.wait_routed(count)

    def is_told() -> bool:
        stored = control.store.sync.objects.get(placement_key())
        return isinstance(stored, Placement) and stored.status.ready_replicas == count

    await until(is_told, 60)


def instances(store: KubeStore) -> list[Instance]:
    return [item for item in store.sync.objects.values() if isinstance(item, Instance)]


# Leadership


def test_lease_says_who_leads_where_and_in_which_term(plane: ControlPlane) -> None:
    async def scenario() -> None:
        async with running_kube_store(plane, holder="one") as first, running_kube_store(plane, leads=False) as standby:
            assert first.leader_address() is None
            waiting = asyncio.create_task(standby.acquire_lease("two"))
            await until(lambda: standby.leader_address() is not None)
            assert standby.leader_address() == ADDRESS
            lease = read_lease(plane)
            assert lease["spec"]["holderIdentity"] == "one"
            assert lease["spec"]["leaseDurationSeconds"] == 15
            assert int(lease["metadata"]["annotations"]["covey.dev/term"]) >= 1
            waiting.cancel()

    asyncio.run(scenario())


def test_standby_leads_at_once_when_the_leader_ends_and_its_term_is_above_all_that_is_stored(
    plane: ControlPlane,
) -> None:
    async def scenario() -> None:
        async with running_kube_store(plane, leads=False) as standby:
            async with running_kube_store(plane, holder="one") as first:
                term = (await first.raise_term(40)).term
                assert term == 41
                await first.create(builders.instance(term=70))
            began = time.monotonic()
            lease = await standby.acquire_lease("two")
            assert lease.term > 70
            assert time.monotonic() - began < 15, "a released lease isn't waited for"

    asyncio.run(scenario())


def test_leader_that_is_cut_off_gives_up_before_another_one_leads_and_writes_nothing_then(
    plane: ControlPlane, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with proxied_store(plane, tmp_path) as (store, proxy), running_kube_store(plane, leads=False) as standby:
            lease = await store.raise_term(0)
            proxy.is_open = False
            proxy.cut()
            waiting = asyncio.create_task(standby.acquire_lease("two"))
            async with asyncio.timeout(14):
                await lease.lost.wait()
            assert not waiting.done(), "nobody leads before the one before has given up"
            taken = await asyncio.wait_for(waiting, 30)
            assert taken.term > lease.term
            proxy.is_open = True
            with pytest.raises(LeaseLost):
                await store.create(builders.instance())

    asyncio.run(scenario())


def test_leader_that_was_paused_writes_nothing_when_it_wakes(plane: ControlPlane) -> None:
    async def scenario() -> None:
        async with running_kube_store(plane) as store:
            lease = await store.raise_term(0)
            time.sleep(11)  # noqa: ASYNC251 - the whole process stands still, as by SIGSTOP
            with pytest.raises(LeaseLost):
                await store.create(builders.instance())
            assert lease.lost.is_set()
            again = await store.acquire_lease("test")
            assert again.term > lease.term
            await store.create(builders.instance())

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["deleted", "taken"])
def test_leader_whose_lease_is_taken_away_stops(plane: ControlPlane, how: str) -> None:
    async def scenario() -> None:
        async with running_kube_store(plane) as store:
            lease = await store.raise_term(0)
            if how == "deleted":
                with plane.client() as client:
                    client.delete(LEASE_PATH).raise_for_status()
            else:
                edit_lease(plane, {"spec": {"holderIdentity": "a person"}})
            async with asyncio.timeout(20):
                await lease.lost.wait()
            if how == "deleted":
                assert (await store.acquire_lease("test")).term > lease.term

    asyncio.run(scenario())


TERM = "covey.dev/term"


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {"annotations": {TERM: "9" * 20}}, "spec": {"leaseTransitions": (1 << 31) - 1}},
        {"metadata": {"annotations": {TERM: "9" * 5000}}},
        {"metadata": {"annotations": {TERM: "-5"}}},
        {"metadata": {"annotations": {TERM: "zwölf"}}, "spec": {"holderIdentity": "nobody\n"}},
        {"metadata": {"annotations": None}},
        {"spec": None},
    ],
    ids=["beyond", "far-beyond", "negative", "no-number", "no-annotations", "no-spec"],
)
def test_lease_with_anything_in_it_is_taken_with_a_term_above_all_that_is_stored(
    plane: ControlPlane, body: JsonObject
) -> None:
    async def scenario() -> None:
        async with running_kube_store(plane) as store:
            await store.create(builders.instance(term=70))
        edit_lease(plane, body)
        async with running_kube_store(plane, leads=False) as store, asyncio.timeout(30):
            lease = await store.acquire_lease("two")
            assert int(read_lease(plane)["metadata"]["annotations"][TERM]) == lease.term
            assert 70 < lease.term < 170

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "annotations", [{"note": "by a person"}, {TERM: "1"}, {TERM: "garbage"}, None], ids=["noted", "lower", "no", "none"]
)
def test_lease_whose_annotations_somebody_edits_is_kept_and_put_right(
    plane: ControlPlane, annotations: dict[str, str] | None
) -> None:
    async def scenario() -> None:
        async with running_kube_store(plane) as store:
            lease = await store.raise_term(40)
            renewed = read_lease(plane)["spec"]["renewTime"]
            edit_lease(plane, {"metadata": {"annotations": annotations}})
            await until(lambda: read_lease(plane)["spec"]["renewTime"] != renewed)
            assert read_lease(plane)["metadata"]["annotations"][TERM] == str(lease.term)
            assert not lease.lost.is_set()

    asyncio.run(scenario())


def test_store_that_was_put_back_from_a_backup_is_led_with_a_term_above_the_one_before() -> None:
    """Lease and Instances are older ones then; what runs is adopted, and nothing is started anew."""

    async def scenario(plane: ControlPlane) -> None:
        async with running_kube_store(plane) as store, controller(store, FakeAgent("a")) as control:
            await write_fleet(People(plane, store))
            await ready(control)
            saved = read_term(plane)
            backup = await asyncio.to_thread(plane.save)
            with plane.client() as client:
                client.delete(LEASE_PATH).raise_for_status()
            await until(lambda: read_term(plane) > saved, 60)
            term = read_term(plane)
            await write_fleet(People(plane, store), replicas=2)
            await ready(control, 2)
            running = control.routed()
            await asyncio.to_thread(plane.put_back, backup)
            await until(lambda: read_term(plane) > term, 90)
            await ready(control, 1)
            assert set(control.routed()) < set(running), "the backup wishes one replica, and none was started for it"

    with own_plane() as plane:
        asyncio.run(scenario(plane))


def read_term(plane: ControlPlane) -> int:
    """Zero where there is no Lease."""
    with plane.client() as client:
        answer = client.get(LEASE_PATH)
    return int(answer.json()["metadata"]["annotations"][TERM]) if answer.is_success else 0


def test_second_fleet_in_a_cluster_does_not_lead_and_says_whose_it_is(
    plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    plane.create_namespace("other")
    plane.clear("other")

    async def scenario() -> None:
        async with (
            running_kube_store(plane) as store,
            running_kube_store(plane, namespace="other", leads=False) as other,
        ):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5):
                    await other.acquire_lease("two")
            fleet = store.sync.objects[ObjectKey("Fleet", "", "default")].to_wire()
            assert fleet["status"]["claim"] == {"namespace": "default", "authority": "sha256:test"}
            with pytest.raises(LeaseLost):
                await other.create(builders.instance())

    asyncio.run(scenario())
    assert caplog.text.count("belongs to the controllers in namespace 'default'") == 1


# What people and their tools see


def test_person_who_applies_again_never_conflicts_and_finds_every_field_as_it_was(plane: ControlPlane) -> None:
    async def scenario() -> None:
        async with running_kube_store(plane) as store, controller(store, FakeAgent("a")) as control:
            people = People(plane, store)
            await write_fleet(people)
            await ready(control)
            before = await people.read(placement_key())
            owners = {each["manager"]: each for each in before["metadata"]["managedFields"]}
            ours = json.dumps(owners.get("covey-controller", {}).get("fieldsV1", {}))
            assert "f:spec" not in ours
            assert before["metadata"]["finalizers"] == [DRAIN_FINALIZER]
            await write_fleet(people, replicas=2)
            await people.apply(node_yaml())
            await ready(control, 2)
            after = await people.read(placement_key())
            assert after["spec"] == before["spec"] | {"replicas": 2}
            kept = ("labels", "annotations", "finalizers")
            assert [after["metadata"].get(name) for name in kept] == [before["metadata"].get(name) for name in kept]

    asyncio.run(scenario())


def test_events_are_what_kubectl_describe_shows_and_are_counted(plane: ControlPlane) -> None:
    async def scenario() -> None:
        async with running_kube_store(plane) as store:
            people = People(plane, store)
            await people.apply(f"{placement_yaml()}---\n{node_yaml()}")
            warned = Event(placement_key(), "NotPlaced", "no node has room for é", warning=True)
            joined = Event(node_key(), "NodeJoined", "its agent reported")
            for generation in range(3):
                await store.write_status(placement_key(), PlacementStatus(observed_generation=generation), (warned,))
                await store.write_status(node_key(), NodeStatus(observed_generation=generation), (joined,))

            def is_counted() -> bool:
                text = plane.kubectl("describe", "placement/smollm2", "cnode/a")
                return "(x3 over" in text and "no node has room for é" in text and text.count("(x3 over") == 2

            await until(is_counted)

    asyncio.run(scenario())


def test_instance_deleted_by_hand_is_drained_and_another_one_is_made(plane: ControlPlane) -> None:
    async def scenario() -> None:
        async with running_kube_store(plane) as store, controller(store, FakeAgent("a")) as control:
            people = People(plane, store)
            await write_fleet(people)
            await ready(control)
            (first,) = instances(store)
            await until(lambda: "placed on node 'a'" in plane.kubectl("describe", f"instance/{first.metadata.name}"))
            await people.delete(first.key)
            await until(lambda: [i.metadata.uid for i in instances(store)] not in ([], [first.metadata.uid]))
            await until(lambda: all(i.metadata.uid != first.metadata.uid for i in instances(store)), 60)
            await ready(control)
            assert first.spec.instance_id not in control.routed()

    asyncio.run(scenario())


def test_deleted_placement_is_drained_stopped_and_gone(plane: ControlPlane) -> None:
    async def scenario() -> None:
        async with running_kube_store(plane) as store, controller(store, FakeAgent("a")) as control:
            people = People(plane, store)
            await write_fleet(people)
            await ready(control)
            await people.delete(placement_key())
            await until(lambda: not instances(store) and placement_key() not in store.sync.objects, 60)
            left = plane.kubectl("get", "placements,instances", "-A", "-o", "name")
            assert left == ""

    asyncio.run(scenario())


def test_node_deleted_while_no_controller_runs_is_not_made_again(plane: ControlPlane) -> None:
    async def scenario() -> None:
        async with running_kube_store(plane) as store:
            await store.create(Node(metadata=ObjectMeta(name="a", finalizers=(DRAIN_FINALIZER,))))
        plane.kubectl("delete", "cnode", "a", "--wait=false")
        async with running_kube_store(plane) as store:
            leaving = store.sync.objects[node_key()]
            assert leaving.metadata.deletion_timestamp is not None
            await store.delete(node_key(), leaving.metadata.uid)
            assert node_key() not in store.sync.objects

    asyncio.run(scenario())


def test_namespace_deleted_while_the_controller_runs_ends_clean(plane: ControlPlane) -> None:
    plane.create_namespace("team")
    text = f"{model_yaml()}---\n{placement_yaml()}".replace("metadata: {", "metadata: {namespace: team, ")

    async def scenario() -> None:
        async with running_kube_store(plane) as store, controller(store, FakeAgent("a")) as control:
            people = People(plane, store)
            await people.apply(text)
            await control.wait_routed(1)
            plane.kubectl("delete", "namespace", "team", "--wait=false")
            await until(lambda: not instances(store), 60)
            await until(lambda: plane.kubectl("get", "ns", "team", "--ignore-not-found", "-o", "name") == "", 60)
            assert not any(key.namespace == "team" for key in store.sync.objects)

    asyncio.run(scenario())


def test_somebody_elses_finalizer_keeps_an_instance_and_nothing_turns_in_circles(plane: ControlPlane) -> None:
    async def scenario() -> None:
        async with running_kube_store(plane) as store, controller(store, FakeAgent("a")) as control:
            people = People(plane, store)
            await write_fleet(people)
            await ready(control)
            await people.patch(INSTANCE, {"metadata": {"finalizers": [DRAIN_FINALIZER, "example.com/backup"]}})
            await people.delete(INSTANCE)

            def is_replaced() -> bool:
                names = {i.metadata.name: i.metadata.finalizers for i in instances(store)}
                return names == {"smollm2-0": ("example.com/backup",), "smollm2-1": (DRAIN_FINALIZER,)}

            await until(is_replaced, 60)
            version = people.version(INSTANCE)
            await asyncio.sleep(2)
            assert people.version(INSTANCE) == version
            await people.patch(INSTANCE, {"metadata": {"finalizers": None}})
            await until(lambda: INSTANCE not in store.sync.objects)

    asyncio.run(scenario())


@contextlib.contextmanager
def no_instances_of(plane: ControlPlane, placement: str, operation: str = "CREATE") -> Generator[None]:
    """Somebody's admission policy."""
    seen = "object" if operation == "CREATE" else "oldObject"
    with house_rule(plane, "instances", operation, f"{seen}.spec.placement != '{placement}'"):
        yield


@contextlib.contextmanager
def house_rule(plane: ControlPlane, resource: str, operation: str, expression: str) -> Generator[None]:
    rules = [
        {"apiGroups": ["covey.dev"], "apiVersions": ["*"], "operations": [each], "resources": [kinds]}
        for each, kinds in ((operation, resource), ("CREATE", "models"))
    ]
    told = f"request.resource.resource == 'models' ? object.metadata.name != 'canary' : {expression}"
    spec = {
        "matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": told, "message": "house rule 7"}],
    }
    binding = {"policyName": "house-rules", "validationActions": ["Deny"]}
    kind, version = "ValidatingAdmissionPolicy", "admissionregistration.k8s.io/v1"
    for name, body in ((kind, spec), (f"{kind}Binding", binding)):
        written = {"apiVersion": version, "kind": name, "metadata": {"name": "house-rules"}, "spec": body}
        plane.kubectl("apply", "-f", "-", text=json.dumps(written))
    try:
        yield
    finally:
        plane.kubectl("delete", f"{kind}Binding,{kind}", "house-rules")


async def wait_in_force(plane: ControlPlane) -> None:
    """A policy is in force some moments after it is written."""

    def is_refused() -> bool:
        told = plane.kubectl("create", "--dry-run=server", "-f", "-", text=model_yaml("canary"), check=False)
        return "house rule 7" in told

    await asyncio.to_thread(wait_for, is_refused, "the policy is in force")


def test_admission_policy_that_refuses_one_placement_stops_no_other(plane: ControlPlane) -> None:
    async def scenario() -> None:
        agent = FakeAgent("a", total_bytes=64 * builders.GIB)
        async with running_kube_store(plane) as store, controller(store, agent) as control:
            people = People(plane, store)
            with no_instances_of(plane, "a-barred"):
                await people.apply(model_yaml())
                await wait_in_force(plane)
                await people.apply(f"{placement_yaml('a-barred')}---\n{placement_yaml('b')}")
                await control.wait_routed(1)
                await people.apply(placement_yaml("c"))
                await control.wait_routed(2)
                await people.delete(placement_key("b"))
                await until(lambda: placement_key("b") not in store.sync.objects, 60)
                assert {each.spec.placement for each in instances(store)} == {"c"}
                told = control.history.events(placement_key("a-barred"))
                assert ["house rule 7" in each.event.message for each in told] == [True]
                stalled = (await people.read(placement_key("a-barred")))["status"]["conditions"]
                assert [each["reason"] for each in stalled if each["type"] == "Stalled"] == ["WriteRefused"]
            await control.wait_routed(2)

    asyncio.run(scenario())


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE"])
def test_admission_policy_that_holds_one_placements_instances_stops_no_other(
    plane: ControlPlane, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A policy answers 422, as a broken rule of the kind does."""

    async def scenario() -> None:
        agent = FakeAgent("a", total_bytes=64 * builders.GIB)
        async with running_kube_store(plane) as store, controller(store, agent) as control:
            people = People(plane, store)
            await write_fleet(people)
            await ready(control)
            with no_instances_of(plane, "smollm2", operation):
                await wait_in_force(plane)
                await people.apply(placement_yaml(replicas=0))
                await until(lambda: any("house rule 7" in each.getMessage() for each in caplog.records))
                before = len(control.routed())
                await people.apply(placement_yaml("b"))
                await control.wait_routed(before + 1)
                assert INSTANCE in store.sync.objects
                if operation == "UPDATE":
                    stalled = (await people.read(placement_key()))["status"]["conditions"]
                    assert [each["reason"] for each in stalled if each["type"] == "Stalled"] == ["WriteRefused"]
            # Tried again 30 s later.
            await until(lambda: INSTANCE not in store.sync.objects, 90)
            assert len(control.routed()) == 1

    asyncio.run(scenario())


def test_status_that_a_policy_refuses_is_not_tried_again_and_again(
    plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    def refused() -> int:
        with plane.client() as client:
            lines = client.get("/metrics").raise_for_status().text.splitlines()
        words = ("apiserver_request_total{", 'resource="placements"', 'subresource="status"', 'code="4')
        return sum(int(line.rsplit(" ", 1)[1]) for line in lines if all(word in line for word in words))

    def is_told(item: Kind) -> bool:
        return isinstance(item, Placement) and bool(item.status.conditions)

    async def scenario() -> None:
        agent = FakeAgent("a", total_bytes=64 * builders.GIB)
        async with running_kube_store(plane) as store, controller(store, agent) as control:
            people = People(plane, store)
            await people.apply(model_yaml())
            with house_rule(plane, "placements/status", "UPDATE", "object.metadata.name != 'barred'"):
                await wait_in_force(plane)
                before = refused()
                await people.apply(f"{placement_yaml('barred')}---\n{placement_yaml('b')}")
                await control.wait_routed(2)
                await until(lambda: refused() > before)
                await asyncio.sleep(3)
                before = refused()
                await asyncio.sleep(15)
                assert refused() - before <= 1
                assert "conditions" not in (await people.read(placement_key("barred"))).get("status", {})
            await until(lambda: is_told(store.sync.objects[placement_key("barred")]), 90)

    asyncio.run(scenario())
    assert caplog.text.count("house rule 7") == 1


_WRITE = re.compile(r"^apiserver_request_total\{(.*)\} (\d+)", re.MULTILINE)


def count_writes(plane: ControlPlane) -> dict[str, int]:
    """Writes that the API server took of Covey's kinds, Leases in `default`'s scope, and Events, by resource."""
    with plane.client() as client:
        text = client.get("/metrics").raise_for_status().text
    counts: dict[str, int] = {}
    for labels, number in _WRITE.findall(text):
        named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        is_ours = named["group"] in ("covey.dev", "coordination.k8s.io") or named["resource"] == "events"
        if is_ours and named["verb"] in ("POST", "PUT", "PATCH", "APPLY", "DELETE"):
            counts[named["resource"]] = counts.get(named["resource"], 0) + int(number)
    return counts


def test_idle_fleet_writes_nothing_but_the_lease(plane: ControlPlane) -> None:
    async def scenario() -> None:
        agents = [FakeAgent(f"n{number:02d}", total_bytes=64 * builders.GIB) for number in range(20)]
        async with running_kube_store(plane) as store, controller(store, *agents) as control:
            documents = [model_yaml(), *(placement_yaml(f"p{number:02d}") for number in range(100))]
            start = count_writes(plane)
            plane.kubectl("apply", "--server-side", "-f", "-", text="---\n".join(documents))
            await control.wait_routed(100, 120)
            quiet = count_writes(plane)
            for _ in range(30):
                await asyncio.sleep(2)
                before, quiet = quiet, count_writes(plane)
                if before.keys() == quiet.keys() and all(
                    before[name] == quiet[name] for name in quiet if name != "leases"
                ):
                    break
            # Of the instances and their Placements; nodes that join and models that are read cost their own.
            written = {name: quiet[name] - start.get(name, 0) for name in ("instances", "placements", "events")}
            events = json.loads(plane.kubectl("get", "events", "-A", "-o", "json"))["items"]
            others = sum(each["involvedObject"]["kind"] not in ("Instance", "Placement") for each in events)
            begun = sum(written.values()) - others - 100  # the documents themselves
            assert begun / 100 <= 15, "API writes for each instance that was brought to Ready"
            await asyncio.sleep(60)
            after = count_writes(plane)
            written = {name: after[name] - quiet[name] for name in after if after[name] != quiet[name]}
            assert set(written) <= {"leases"}
            assert 1 <= written["leases"] <= 30, "ours every 5 s, and the API server's own every 10 s"

    asyncio.run(scenario())


def test_settings_of_another_version_keep_nobody_from_leading(plane: ControlPlane) -> None:
    """A newer version's CRD allows a value that this one doesn't know, and somebody has used it."""
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/fleets.covey.dev"
    fleet = "/apis/covey.dev/v1alpha1/fleets"
    with plane.client() as client:
        versions = client.get(crd).raise_for_status().json()["spec"]["versions"]
        newer = json.loads(json.dumps(versions).replace('"Q4_0"', '"Q4_0", "Q3_0"'))
        client.patch(crd, content=json.dumps({"spec": {"versions": newer}}), headers=MERGE).raise_for_status()
        body: JsonObject = {"apiVersion": "covey.dev/v1alpha1", "kind": "Fleet", "metadata": {"name": "default"}}
        body["spec"] = {"kvCache": {"type": "Q3_0"}}
        try:
            asyncio.run(_until_written(lambda: client.post(fleet, json=body).is_success))

            async def scenario() -> None:
                async with running_kube_store(plane, leads=False) as store:
                    async with asyncio.timeout(30):
                        assert (await store.acquire_lease("one")).holder == "one"

            asyncio.run(scenario())
        finally:
            client.delete(f"{fleet}/default")
            client.patch(crd, content=json.dumps({"spec": {"versions": versions}}), headers=MERGE).raise_for_status()


async def _until_written(write: Callable[[], bool]) -> None:
    """The API server takes a changed schema up a moment later."""
    async with asyncio.timeout(20):
        while not write():  # noqa: ASYNC110 - the API server tells nobody
            await asyncio.sleep(0.2)


def test_settings_follow_every_edit_with_the_generation_that_was_seen(plane: ControlPlane) -> None:
    """kstatus calls an object current whose `observedGeneration` is its generation."""
    fleet = "{apiVersion: covey.dev/v1alpha1, kind: Fleet, metadata: {name: default}, spec: {kvCache: {type: %s}}}"
    key = "{apiVersion: covey.dev/v1alpha1, kind: AccessKey, metadata: {name: me}, spec: {hash: 'sha256:%s'}}"
    keys = ObjectKey("Fleet", "", "default"), ObjectKey("AccessKey", "default", "me")

    async def scenario() -> None:
        async with running_kube_store(plane) as store, controller(store, FakeAgent("a")):
            people = People(plane, store)

            def is_followed(generation: int) -> bool:
                found = [store.sync.objects[each].to_wire() for each in keys]
                return all(
                    each["metadata"]["generation"] == each["status"]["observedGeneration"] >= generation
                    and {c["observedGeneration"] for c in each["status"]["conditions"]}
                    == {each["metadata"]["generation"]}
                    for each in found
                )

            for generation, (cache, digit) in enumerate([("F16", "a"), ("Q8_0", "b")], start=1):
                await people.apply(f"{fleet % cache}\n---\n{key % (digit * 64)}")
                await until(lambda generation=generation: is_followed(generation))

    asyncio.run(scenario())


# Other versions


@contextlib.contextmanager
def relaxed(plane: ControlPlane, crd: str) -> Generator[None]:
    """Whatever is stored as this kind during the block; Covey's own schema again after it."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    path = "/spec/versions/0/schema/openAPIV3Schema"
    patch = [{"op": "replace", "path": path, "value": schema}]
    plane.kubectl("patch", "crd", crd, "--type=json", "-p", json.dumps(patch))
    try:
        yield
    finally:
        plane.apply_crds()


def test_object_of_another_version_is_told_at_the_object_and_nothing_that_runs_is_hurt() -> None:
    async def scenario(plane: ControlPlane) -> None:
        async with running_kube_store(plane) as store, controller(store, FakeAgent("a"), FakeAgent("b")) as control:
            people = People(plane, store)
            await people.apply(f"{model_yaml()}---\n{placement_yaml()}---\n{placement_yaml('other')}")
            await control.wait_routed(2)
            routed = set(control.routed())
            with relaxed(plane, "placements.covey.dev"):
                await until_patched(people, placement_key(), {"spec": {"modelRef": None, "models": ["smollm2"]}})
            await until(lambda: isinstance(store.sync.objects[placement_key()], Unreadable))
            await people.patch(placement_key("other"), {"spec": {"replicas": 2}})
            await control.wait_routed(3)
            assert routed < set(control.routed()), "what runs by it goes on, and others' wishes are done"

            def is_told() -> bool:
                text = plane.kubectl("describe", "placement/smollm2")
                return f"{EventReason.UNREADABLE}" in text and "`spec.modelRef`: Field required" in text

            await until(is_told)
            await people.delete(placement_key("other"))
            await until(lambda: len(instances(store)) == 1, 60)

    with own_plane() as plane:
        asyncio.run(scenario(plane))


async def until_patched(people: People, key: ObjectKey, body: JsonObject) -> None:
    """A changed schema is in force some moments after it was accepted."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(AssertionError):
                if "models" in (await people.patch(key, body))["spec"]:
                    return
            await asyncio.sleep(0.2)


def test_controller_that_is_newer_than_the_kinds_says_so_once_and_serves(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(plane: ControlPlane) -> None:
        async with running_kube_store(plane) as store, controller(store, FakeAgent("a")) as control:
            path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/readyReplicas"
            patch = json.dumps([{"op": "remove", "path": path}])
            plane.kubectl("patch", "crd", "placements.covey.dev", "--type=json", "-p", patch)
            await asyncio.sleep(2)
            await write_fleet(People(plane, store))
            await control.wait_routed(1)
            await asyncio.sleep(5)
            assert sum("upgrade the CRDs first" in message for message in caplog.messages) == 1
            await asyncio.to_thread(plane.apply_crds)
            await ready(control)

    with own_plane() as plane:
        asyncio.run(scenario(plane))


# Faults


def test_watch_that_is_cut_off_again_and_again_misses_nothing(plane: ControlPlane, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with proxied_store(plane, tmp_path) as (store, proxy):
            people = People(plane, store)
            await people.apply(node_yaml("gone"))
            for number in range(4):
                proxy.cut()
                await people.apply(node_yaml(f"n{number}"))
            proxy.is_open = False
            proxy.cut()
            plane.kubectl("delete", "cnode", "gone")
            await asyncio.sleep(0.5)
            proxy.is_open = True
            await until(lambda: ObjectKey("Node", "", "gone") not in store.sync.objects, 90)

    asyncio.run(scenario())


def test_watch_that_is_silent_is_found_out_by_the_list_and_begun_anew(plane: ControlPlane, tmp_path: Path) -> None:
    """A zombie: its connections stand, and nothing comes through them any more."""

    async def scenario() -> None:
        async with running_proxy(plane.port) as proxy, KubeClient(KubeconfigLogin(plane.kubeconfig)) as client:
            path = tmp_path / "proxied.kubeconfig"
            path.write_text(plane.kubeconfig.read_text().replace(f":{plane.port}", f":{proxy.port}"))
            sync = Sync(client, KubeconfigLogin(path), lambda _: None, list_seconds=8.0)
            running = asyncio.create_task(sync.run())
            await asyncio.to_thread(plane.kubectl, "apply", "-f", "-", text=node_yaml("seen"))
            await until(lambda: ObjectKey("Node", "", "seen") in sync.objects)
            await asyncio.sleep(3)
            proxy.delay_seconds = 3600.0
            await asyncio.to_thread(plane.kubectl, "apply", "-f", "-", text=node_yaml("unseen"))
            await asyncio.sleep(1)
            proxy.delay_seconds, before = 0.0, proxy.accepted
            await until(lambda: ObjectKey("Node", "", "unseen") in sync.objects)
            assert proxy.accepted == before, "the list found it"
            await until(lambda: proxy.accepted >= before + len(KINDS), 60)
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    asyncio.run(scenario())


def test_watch_whose_version_was_compacted_away_begins_with_a_list_and_restarts_nothing(tmp_path: Path) -> None:
    """410 Gone: an API server that was started anew has no history of its own, and etcd has forgotten it."""

    async def scenario(plane: ControlPlane) -> None:
        async with proxied_store(plane, tmp_path) as (store, proxy), controller(store, FakeAgent("a")) as control:
            people = People(plane, store)
            await write_fleet(people)
            await ready(control)
            await people.apply(node_yaml("gone"))
            routed, version = control.routed(), people.version(ObjectKey("Node", "", "gone"))
            proxy.is_open = False
            proxy.cut()
            await asyncio.to_thread(plane.kubectl, "delete", "cnode", "gone", "--wait=false")
            await asyncio.to_thread(plane.kubectl, "apply", "-f", "-", text=node_yaml("new"))
            plane.stop_component("kube-apiserver")
            plane.compact()
            await asyncio.to_thread(plane.start_component, "kube-apiserver")
            assert "too old resource version" in await asyncio.to_thread(resume_watch, plane, version)
            proxy.is_open = True
            await until(lambda: ObjectKey("Node", "", "new") in store.sync.objects, 60)
            await until(lambda: ObjectKey("Node", "", "gone") not in store.sync.objects, 90)
            assert control.routed() == routed
            await people.apply(node_yaml("newest"))

    with own_plane() as plane:
        asyncio.run(scenario(plane))


def resume_watch(plane: ControlPlane, version: int) -> str:
    """The first answer to a watch of Nodes that goes on from there; again while the kind's storage begins (429)."""
    path, deadline = "/apis/covey.dev/v1alpha1/cnodes", time.monotonic() + 60
    query = {"watch": "true", "resourceVersion": str(version), "timeoutSeconds": "5"}
    with plane.client() as client:
        while (answer := client.get(path, params=query)).status_code == HTTPStatus.TOO_MANY_REQUESTS:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    return answer.text


def test_slow_api_server_delays_and_breaks_nothing(plane: ControlPlane, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with proxied_store(plane, tmp_path) as (store, proxy), controller(store, FakeAgent("a")) as control:
            proxy.delay_seconds = 0.2
            await write_fleet(People(plane, store))
            await ready(control)
            assert len(instances(store)) == 1

    asyncio.run(scenario())


def test_conflict_by_somebody_elses_write_is_observed_again(plane: ControlPlane) -> None:
    async def scenario() -> None:
        async with running_kube_store(plane) as store:
            people = People(plane, store)
            created = await store.create(builders.instance())
            with plane.client() as client:
                path = "/apis/covey.dev/v1alpha1/namespaces/default/instances/smollm2-0"
                body = json.dumps({"metadata": {"labels": {"a": "b"}}})
                client.patch(path, content=body, headers=MERGE).raise_for_status()
            # Written without a pause: the watch has not had the loop to show the label.
            with pytest.raises(Conflict, match="has changed: its resourceVersion is"):
                await store.write_status(created.key, InstanceStatus(phase=InstancePhase.READY))
            await until(lambda: store.sync.objects[created.key].metadata.labels == {"a": "b"})
            await store.write_status(created.key, InstanceStatus(phase=InstancePhase.READY))
            assert (await people.read(created.key))["status"]["phase"] == "Ready"

    asyncio.run(scenario())


def test_calls_that_are_turned_away_by_429_are_tried_again(plane: ControlPlane, tmp_path: Path) -> None:
    """By the API server's own priority levels: one seat, and no queue."""
    documents = """
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: closed}
spec: {type: Limited, limited: {nominalConcurrencyShares: 0, borrowingLimitPercent: 0, limitResponse: {type: Reject}}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: closed}
spec:
  priorityLevelConfiguration: {name: closed}
  matchingPrecedence: 2
  rules:
  - subjects: [{kind: ServiceAccount, serviceAccount: {name: default, namespace: default}}]
    resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], namespaces: ["*"], clusterScope: true}]
"""
    plane.kubectl("create", "clusterrolebinding", "busy", "--clusterrole=view", "--serviceaccount=default:default")
    token = plane.service_account_token("default", "default")
    kubeconfig = plane.write_kubeconfig(tmp_path / "busy.kubeconfig", token)

    async def scenario() -> None:
        path = "/api/v1/namespaces/default/configmaps"
        async with KubeClient(KubeconfigLogin(kubeconfig)) as client:
            assert (await client.request("GET", path))["items"]
            plane.kubectl("apply", "-f", "-", text=documents)
            try:
                async with asyncio.timeout(60):
                    while True:
                        before = count_rejected(plane)
                        calls = [client.request("GET", path) for _ in range(12)]
                        ends = await asyncio.gather(*calls, return_exceptions=True)
                        if (rejected := count_rejected(plane) - before) > 0:
                            break
            finally:
                plane.kubectl("delete", "flowschema/closed", "prioritylevelconfiguration/closed")
            refused = [end for end in ends if isinstance(end, BaseException)]
            assert len(refused) < min(len(ends), rejected), "some got through by trying again"
            assert all(isinstance(end, KubeAway) and end.reason == "TooManyRequests" for end in refused)

    try:
        asyncio.run(scenario())
    finally:
        plane.kubectl("delete", "clusterrolebinding", "busy")


def count_rejected(plane: ControlPlane) -> int:
    """Calls that priority level `closed` has turned away."""
    with plane.client() as client:
        text = client.get("/metrics").raise_for_status().text
    found = re.findall(
        r'apiserver_flowcontrol_rejected_requests_total\{[^}]*priority_level="closed"[^}]*\} (\d+)', text
    )
    return sum(int(number) for number in found)


def test_api_server_that_goes_away_leaves_the_fleet_as_it_is_and_is_caught_up_with() -> None:
    async def scenario(plane: ControlPlane) -> None:
        async with running_kube_store(plane) as store, controller(store, FakeAgent("a")) as control:
            people = People(plane, store)
            await write_fleet(people)
            await ready(control)
            routed = control.routed()
            plane.stop_component("kube-apiserver")
            await asyncio.sleep(12)
            assert control.routed() == routed
            assert (await store.list_objects())[placement_key()]
            with pytest.raises(LeaseLost):
                await store.create(builders.instance("other-0"))
            await asyncio.to_thread(plane.start_component, "kube-apiserver")
            await write_fleet(people, replicas=2)
            await ready(control, 2)
            assert set(routed) <= set(control.routed()), "no instance was started anew"

    with own_plane() as plane:
        asyncio.run(scenario(plane))


def test_etcd_that_comes_back_empty_stops_nothing_and_instances_are_adopted() -> None:
    async def scenario(plane: ControlPlane) -> None:
        async with running_kube_store(plane) as store, controller(store, FakeAgent("a")) as control:
            people = People(plane, store)
            await write_fleet(people)
            await ready(control)
            routed = control.routed()
            await asyncio.to_thread(plane.begin_empty)
            await asyncio.sleep(8)
            assert control.routed() == routed
            await asyncio.to_thread(plane.apply_crds)
            await until(lambda: not instances(store), 90)
            await asyncio.sleep(5)
            running = [each.instance_id for each in control.agents["a"].members.values()]
            assert running == routed, "an empty store stops no engine"
            # Not as `people`, who wait for the watch: it may be begun anew at this moment.
            wishes = f"{model_yaml()}---\n{placement_yaml()}"
            await asyncio.to_thread(plane.kubectl, "apply", "--server-side", "-f", "-", text=wishes)
            await until(lambda: [i.spec.instance_id for i in instances(store)] == routed, 90)
            await control.wait_routed(1)
            assert control.routed() == routed

    with own_plane() as plane:
        asyncio.run(scenario(plane))


@pytest.mark.timeout(900)
def test_kinds_that_come_back_are_watched_again_and_wishes_are_done() -> None:
    """Deleted under a controller that runs: what ran has ended with them.

    Nodes first: agents still report, and a Node that can't be made keeps nothing else from being let go of.
    """

    async def scenario(plane: ControlPlane) -> None:
        async with running_kube_store(plane) as store, controller(store, FakeAgent("a")) as control:
            await write_fleet(People(plane, store))
            await ready(control)
            crds = plane.kubectl("get", "crd", "-o", "name").split()
            nodes = [each for each in crds if each.endswith("/cnodes.covey.dev")]
            rest = [each for each in crds if each not in nodes]
            for each in (nodes, rest):
                await asyncio.to_thread(plane.kubectl, "delete", *each, f"--timeout={GONE_SECONDS:.0f}s")
            await until(lambda: not store.sync.objects, GONE_SECONDS)
            await until(lambda: not store.is_synced or not control.routed(), GONE_SECONDS)
            await asyncio.to_thread(plane.apply_crds)
            await until(lambda: node_key() in store.sync.objects, GONE_SECONDS)
            wishes = f"{model_yaml()}---\n{placement_yaml()}"
            await asyncio.to_thread(plane.kubectl, "apply", "--server-side", "-f", "-", text=wishes)
            await until(lambda: placement_key() in store.sync.objects, GONE_SECONDS)
            await ready(control)

    with own_plane() as plane:
        asyncio.run(scenario(plane))


@pytest.mark.timeout(900)
def test_crds_deleted_while_the_controller_runs_end_clean_and_are_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(plane: ControlPlane) -> None:
        async with running_kube_store(plane) as store, controller(store, FakeAgent("a")) as control:
            people = People(plane, store)
            await write_fleet(people)
            await ready(control)
            crds = plane.kubectl("get", "crd", "-o", "name").split()
            await asyncio.to_thread(plane.kubectl, "delete", *crds, f"--timeout={GONE_SECONDS:.0f}s")
            await until(lambda: not control.routed() or not instances(store), 60)
        async with running_kube_store(plane, leads=False) as store:
            words = "Covey's kinds must be installed"
            await until(lambda: words in caplog.text, 60)
            await asyncio.sleep(4)
            assert not store.is_synced
            assert caplog.text.count(words) == 1
            await asyncio.to_thread(plane.apply_crds)
            await until(lambda: store.is_synced)

    with own_plane() as plane:
        asyncio.run(scenario(plane))
