"""What the controller may do, and what it does: a life from its first start to its end, in the API server's audit log.

It runs with the rights of the chart alone. Nothing is refused to it, and what is granted is used, or listed here with
the reason.
"""

import json
import ssl
from collections.abc import Generator, Iterable
from functools import partial
from http import HTTPStatus
from typing import Any

import httpx
import pytest
from covey_api.meta import API_VERSION
from kit.kube_fleet import (
    AGENTS,
    CLI,
    CONTROL_AUDIENCE,
    CONTROLLER,
    NAMESPACE,
    JsonObject,
    KubeFleet,
    Replica,
    read_rights,
    running_kube_fleet,
)
from kit.metrics import OPENMETRICS, parse_metrics
from kit.ports import free_port
from testbed.kube.controlplane import ControlPlane

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

NODE = "gpu-1"
# Granted, and in no log: why it is there.
UNSEEN = {
    "create covey.dev/cnodes": "server-side apply of an object that isn't there needs it, and is logged as a patch",
    "create covey.dev/fleets": "the same",
    "get /events": "an Event that a leader before this one wrote is read before it is counted up",
}

# Seen where an Event of an earlier leader happens to be repeated.
SELDOM = {"get /events"}


class Life:
    """The fleet at its end, with what was seen on the way."""

    def __init__(self, fleet: KubeFleet) -> None:
        self.fleet = fleet
        self.figures: dict[str, float] = {}
        self.standby_figures: dict[str, float] = {}
        self.requests: list[dict[str, Any]] = []


@pytest.fixture(scope="module")
def life(control_plane: ControlPlane) -> Generator[Life]:
    """Every kind of write there is, once."""
    began = len(control_plane.read_audit())
    with running_kube_fleet(control_plane) as fleet:
        lived, ports = Life(fleet), (free_port(), free_port())
        first = fleet.start_controller("a", f"--metrics-listen=127.0.0.1:{ports[0]}")
        fleet.wait_leader()
        fleet.start_agent(NODE)
        fleet.start_gateway("gateway-1")
        fleet.ensure(API_VERSION, "AccessKey", "me", "default", spec={"hash": f"sha256:{'0' * 64}"})
        fleet.wish()
        fleet.wait_ready()
        fleet.wait(lambda: is_accepted(fleet), "the key is accepted")
        fleet.wait(lambda: streams(ports[0]) == (1, 1), "both follow")
        lived.figures = scrape(ports[0])
        call_control(fleet, first, "tokens", {"role": "agent", "uses": 1, "ttlSeconds": 60})
        rotate_authority(fleet, first)
        replace_instance(fleet)
        stop_and_start(fleet)
        second = fleet.start_controller("b", f"--metrics-listen=127.0.0.1:{ports[1]}")
        fleet.wait(lambda: second.probe("/readyz") == HTTPStatus.OK, "the second is ready")
        lived.standby_figures = scrape(ports[1])
        first.part.end()
        fleet.wait_leader(other_than=first)
        remove_everything(fleet)
        lived.requests = control_plane.read_audit(began)
        yield lived


def is_accepted(fleet: KubeFleet) -> bool:
    return fleet.has_condition("accesskeys", "me")


def scrape(port: int) -> dict[str, float]:
    answer = httpx.get(f"http://127.0.0.1:{port}/metrics", headers={"accept": OPENMETRICS}, timeout=20)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0"), answer.headers
    return parse_metrics(answer.text)


def streams(port: int) -> tuple[float, float]:
    found = scrape(port)
    agents, gateways = (found[f'covey_controller_connected_streams{{role="{role}"}}'] for role in ("agent", "gateway"))
    return agents, gateways


def call_control(fleet: KubeFleet, replica: Replica, path: str, body: JsonObject) -> JsonObject:
    """As who may do all that there is to be done there."""
    rules: list[JsonObject] = [
        {"apiGroups": ["covey.dev"], "resources": ["jointokens"], "verbs": ["create"]},
        {"apiGroups": ["covey.dev"], "resources": ["authorities"], "verbs": ["update"]},
    ]
    fleet.grant(CLI, rules, name="operator")
    headers = {"x-covey-token": fleet.request_token(CLI, NAMESPACE, CONTROL_AUDIENCE)}
    context = ssl.create_default_context(cadata=fleet.authority())
    url = f"https://127.0.0.1:{replica.control_port}/api/v1/{path}"
    answer = httpx.post(url, json=body, headers=headers, verify=context, timeout=20)
    assert answer.is_success, answer.text
    return answer.json()


def rotate_authority(fleet: KubeFleet, replica: Replica) -> None:
    """A new authority beside the old one; ConfigMaps carry both."""
    before = fleet.authority()
    call_control(fleet, replica, "authority/rotate", {})
    fleet.wait(lambda: fleet.authority() not in ("", before), "the new authority is published")


def replace_instance(fleet: KubeFleet) -> None:
    """Deleted by hand: drained, and another one is made."""
    (before,) = fleet.list_objects("instances")
    name = before["metadata"]["name"]
    fleet.admin.delete(f"/apis/{API_VERSION}/namespaces/default/instances/{name}").raise_for_status()

    def is_replaced() -> bool:
        uids = [each["metadata"]["uid"] for each in fleet.ready_instances()]
        return bool(uids) and before["metadata"]["uid"] not in uids

    fleet.wait(is_replaced, "another instance is ready")


def stop_and_start(fleet: KubeFleet) -> None:
    """It serves once more, which is the same Event again: that is counted up."""
    path, headers = (
        f"/apis/{API_VERSION}/namespaces/default/placements/smollm2",
        {"content-type": "application/merge-patch+json"},
    )
    for replicas in (0, 1):
        body = json.dumps({"spec": {"replicas": replicas}})
        fleet.admin.patch(path, content=body, headers=headers).raise_for_status()
        fleet.wait(partial(_are_ready, fleet, replicas), f"{replicas} are ready")
    fleet.wait(lambda: len(fleet.list_objects("instances")) == 1, "one is left")


def _are_ready(fleet: KubeFleet, count: int) -> bool:
    return len(fleet.ready_instances()) == count


def remove_everything(fleet: KubeFleet) -> None:
    fleet.admin.delete(f"/apis/{API_VERSION}/namespaces/default/placements/smollm2").raise_for_status()
    fleet.wait(lambda: not fleet.list_objects("placements"), "the placement is let go")
    fleet.wait(lambda: not fleet.list_objects("instances"), "its instances are gone")
    fleet.agents[NODE].end()
    fleet.admin.delete(f"/apis/{API_VERSION}/cnodes/{NODE}").raise_for_status()
    fleet.wait(lambda: not fleet.list_objects("cnodes"), "the node is let go")


def granted(kind: str, namespace: str = "") -> set[str]:
    """`VERB GROUP/RESOURCE` of every rule of the chart."""
    rules = [
        rule
        for each in read_rights()
        if each["kind"] == kind and each["metadata"].get("namespace", "") == namespace
        for rule in each["rules"]
    ]
    return {
        f"{verb} {group}/{resource}"
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(requests: Iterable[dict[str, Any]]) -> set[tuple[str, str]]:
    """The same of what was asked, with the namespace. What is no resource (`/version`) is everybody's."""
    found: set[tuple[str, str]] = set()
    for asked, request in ((each["objectRef"], each) for each in requests if "objectRef" in each):
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        found.add((f"{request['verb']} {asked.get('apiGroup', '')}/{resource}", asked.get("namespace", "")))
    return found


def test_nothing_that_the_controller_asks_for_is_refused_to_it(life: Life) -> None:
    assert len(life.requests) > 100
    refused = [each for each in life.requests if each["responseStatus"]["code"] == HTTPStatus.FORBIDDEN]
    assert refused == []


def test_every_right_of_the_controller_is_used_or_has_a_reason(life: Life) -> None:
    asked = used(life.requests)
    everywhere = granted("ClusterRole")
    unseen = everywhere - {right for right, _ in asked}
    assert unseen - SELDOM == set(UNSEEN) - SELDOM
    assert unseen <= set(UNSEEN)
    for namespace in (NAMESPACE, AGENTS):
        own = granted("Role", namespace)
        assert own - {right for right, where in asked if where == namespace} == set(), namespace


def test_server_side_apply_of_what_is_not_there_needs_the_right_to_create(life: Life) -> None:
    rules: list[JsonObject] = [{"apiGroups": ["covey.dev"], "resources": ["cnodes"], "verbs": ["get", "patch"]}]
    life.fleet.grant(CLI, rules, name="patches-only")
    body = {"apiVersion": API_VERSION, "kind": "Node", "metadata": {"name": "new"}, "spec": {}}
    headers = {"content-type": "application/apply-patch+yaml"}
    with life.fleet.plane.client(life.fleet.request_token(CLI, NAMESPACE)) as client:
        path, query = f"/apis/{API_VERSION}/cnodes/new", {"fieldManager": "x"}
        answer = client.patch(path, content=json.dumps(body), params=query, headers=headers)
    assert answer.status_code == HTTPStatus.FORBIDDEN
    assert 'cannot create resource "cnodes"' in answer.json()["message"]


def test_the_controller_reads_one_secret_by_name_and_no_other_anywhere(life: Life) -> None:
    plane = life.fleet.plane
    for namespace in (NAMESPACE, AGENTS, "default"):
        life.fleet.ensure("v1", "Secret", "other", namespace, stringData={"a": "b"})
    life.fleet.ensure("v1", "Secret", CONTROLLER, "default", stringData={"a": "b"})
    with plane.client(life.fleet.request_token(CONTROLLER, NAMESPACE)) as client:
        own = f"/api/v1/namespaces/{NAMESPACE}/secrets"
        assert client.get(f"{own}/{CONTROLLER}").status_code == HTTPStatus.OK
        closed = [f"{own}/other", own, "/api/v1/secrets", "/api/v1/secrets?watch=true"]
        closed += [f"/api/v1/namespaces/{where}/secrets/other" for where in (AGENTS, "default", "kube-system")]
        closed += ["/api/v1/namespaces/default/secrets", f"/api/v1/namespaces/default/secrets/{CONTROLLER}"]
        assert {path: client.get(path).status_code for path in closed} == dict.fromkeys(closed, HTTPStatus.FORBIDDEN)


def test_the_leader_tells_the_fleet_in_figures_and_its_standby_nothing_of_it(life: Life) -> None:
    found = life.figures
    assert (found["covey_controller_leader"], found["covey_controller_term"]) == (1, 1)
    assert found['covey_controller_objects{kind="Placement"}'] == 1
    assert found['covey_controller_placements{ready="True"}'] == 1
    assert found['covey_controller_instances{phase="Ready"}'] == 1
    assert found['covey_controller_nodes{ready="True"}'] == 1
    assert found['covey_controller_reconcile_turns_total{outcome="done"}'] > 1
    assert found['covey_controller_writes_total{kind="Instance",outcome="done",verb="create"}'] == 1
    assert found['covey_controller_writes_total{kind="Node",outcome="done",verb="create"}'] == 1
    assert 0 <= found["covey_controller_listed_age_seconds"] < 120
    standby = life.standby_figures
    assert (standby["covey_controller_leader"], standby['covey_controller_objects{kind="Placement"}']) == (0, 0)
    assert standby["covey_controller_listed_age_seconds"] < 120
