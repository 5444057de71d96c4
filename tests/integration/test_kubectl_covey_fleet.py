"""`kubectl covey` against a whole fleet in Kubernetes: the controller in Kubernetes mode, an agent, an engine."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kit.cluster import Shell, expose
from kit.kube_fleet import NAMESPACE, KubeFleet, running_kube_fleet
from testbed.kube.controlplane import ControlPlane, local_address

pytestmark = [pytest.mark.integration]

OPERATOR = "covey-cli-operator"
READ_RULES = [{"apiGroups": ["covey.dev"], "resources": ["placements", "instancelogs"], "verbs": ["get"]}]
TOKEN_RULES = [{"apiGroups": ["covey.dev"], "resources": ["jointokens"], "verbs": ["create"]}]


@pytest.fixture(scope="module")
def served(control_plane: ControlPlane) -> Iterator[tuple[Shell, KubeFleet]]:
    address = local_address()
    if address is None:
        pytest.skip("the API server's proxy takes no loopback address, and this machine has no other")
    control_plane.clear()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kf")))
        fleet = stack.enter_context(running_kube_fleet(control_plane))
        admin = Shell.of(control_plane, folder)
        fleet.ensure("v1", "ServiceAccount", OPERATOR, NAMESPACE)
        fleet.grant("covey-cli", READ_RULES)
        fleet.grant(OPERATOR, TOKEN_RULES)
        replica = fleet.start_controller("a", control_host=address)
        expose(admin, "covey-controller", "control", address, replica.control_port)
        fleet.wait_leader()
        fleet.start_agent("n1")
        fleet.start_gateway("g")
        fleet.wish()
        fleet.wait_ready()
        yield admin, fleet


def test_logs_and_captures_come_from_the_node(served: tuple[Shell, KubeFleet]) -> None:
    admin, _ = served
    assert admin.done("logs", "instance/smollm2-0").strip()
    captured = admin.done("capture", "placement/smollm2")
    assert "on node 'n1'" in captured
    assert "Ready, goal Serve" in captured


def test_why_and_plan_are_the_leaders_words(served: tuple[Shell, KubeFleet]) -> None:
    admin, fleet = served
    words = admin.done("why", "placement/smollm2")
    assert "Ready is True: Serving: 1 of 1 replicas are ready" in words
    assert "on node 'n1'" in words
    document = fleet.get("placements", "smollm2")
    more = {
        "apiVersion": document["apiVersion"],
        "kind": "Placement",
        "metadata": {"name": "second"},
        "spec": {"modelRef": document["spec"]["modelRef"]},
    }
    found = json.loads(admin.done("plan", "-o", "json", "-f", "-", text=json.dumps(more)))
    assert [(each["placement"], each["members"][0]["node"]) for each in found["comes"]] == [("second", "n1")]
    assert fleet.get("placements", "second") == {}
    assert admin.done("plan").strip() == "no instance comes or goes"


def test_describe_and_wait_see_what_the_controller_wrote(served: tuple[Shell, KubeFleet]) -> None:
    admin, _ = served
    assert admin.done("wait", "placement/smollm2", "--for=condition=Ready") == "placement/smollm2 condition met\n"
    words = admin.done("describe", "placement/smollm2")
    assert "1 of 1 replicas are ready" in words
    assert "Events:\n  <none>" not in words
    ours = [line.split()[:3] for line in admin.done("get", "instances").splitlines()]
    theirs = [line.split()[:3] for line in admin.plane.kubectl("get", "instances").splitlines()]
    assert ours == theirs


def test_join_token_of_the_cluster_is_one(served: tuple[Shell, KubeFleet]) -> None:
    admin, _ = served
    assert admin.done("token", "create").startswith("covey-")
