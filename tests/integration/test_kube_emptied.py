"""An API server that comes back with nothing in it: engines run on, and Instances are adopted once they are wished.

Controllers, an agent and a gateway as processes, joined as pods. Engines are doubles; everything else is real.
"""

import json
from collections.abc import Generator
from typing import Any

import pytest
from kit.kube_fleet import CONTROLLER, NAMESPACE, KubeFleet, running_kube_fleet, wait_seconds
from testbed.kube.controlplane import ControlPlane, running_control_plane
from testbed.kube.programs import NoPrograms

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.restarts_processes]

NODE = "gpu-1"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/{CONTROLLER}"


@pytest.fixture(scope="module")
def plane() -> Generator[ControlPlane]:
    try:
        with running_control_plane() as running:
            yield running
    except NoPrograms as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def fleet(plane: ControlPlane) -> Generator[KubeFleet]:
    """One controller, one agent that runs one engine."""
    with running_kube_fleet(plane) as running:
        running.start_controller("a")
        running.wait_leader()
        running.start_agent(NODE)
        running.wish()
        running.wait_ready()
        yield running


def instance_ids(fleet: KubeFleet) -> set[str]:
    return {each["spec"]["instanceId"] for each in fleet.list_objects("instances")}


def read_secret(fleet: KubeFleet) -> dict[str, Any]:
    answer = fleet.admin.get(SECRET)
    return answer.json()["data"] if answer.is_success else {}


def install_again(plane: ControlPlane, fleet: KubeFleet) -> None:
    """What a person does with the manifests, and the kubelet with the pods' tokens."""
    plane.apply_crds()
    fleet.install()
    for name in fleet.replicas:
        fleet.renew_controller_token(name)


def test_engine_runs_on_and_is_adopted_by_a_controller_that_ran_all_the_while(
    plane: ControlPlane, fleet: KubeFleet
) -> None:
    engines, ids, secret = fleet.engines(NODE), instance_ids(fleet), read_secret(fleet)
    assert len(engines) == len(ids) == 1
    plane.begin_empty()
    install_again(plane, fleet)
    fleet.wait(lambda: fleet.has_condition("cnodes", NODE), "the node is there again")
    fleet.wait(lambda: fleet.has_condition("cnodes", NODE, "StrayInstances"), "the engine is known, and nobody's")
    wait_seconds(5)
    assert fleet.engines(NODE) == engines
    assert read_secret(fleet) == secret, "the fleet's identity is written again as it was"
    fleet.wish()
    fleet.wait_ready()
    assert instance_ids(fleet) == ids
    assert fleet.engines(NODE) == engines


def test_engine_runs_on_and_is_adopted_by_a_controller_that_starts_after_its_secret_was_put_back(
    plane: ControlPlane, fleet: KubeFleet
) -> None:
    engines, ids, secret = fleet.engines(NODE), instance_ids(fleet), read_secret(fleet)
    assert len(engines) == len(ids) == 1
    controller = fleet.replicas["a"].part
    controller.kill()
    plane.begin_empty()
    install_again(plane, fleet)
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": CONTROLLER}, "data": secret}
    fleet.admin.post(SECRET.rpartition("/")[0], content=json.dumps(body)).raise_for_status()
    controller.start()
    fleet.wait(lambda: fleet.has_condition("cnodes", NODE, "StrayInstances"), "the engine is known, and nobody's")
    wait_seconds(5)
    assert fleet.engines(NODE) == engines
    fleet.wish()
    fleet.wait_ready()
    assert instance_ids(fleet) == ids
    assert fleet.engines(NODE) == engines


def test_controller_that_starts_on_the_emptied_store_makes_no_second_identity(
    plane: ControlPlane, fleet: KubeFleet
) -> None:
    engines, ids, secret = fleet.engines(NODE), instance_ids(fleet), read_secret(fleet)
    plane.begin_empty()
    install_again(plane, fleet)
    second = fleet.start_controller("b")
    fleet.wait(lambda: second.probe("/readyz") == 200, "the second controller could lead")
    fleet.replicas["a"].part.kill()
    fleet.wait(lambda: fleet.leader() is second, "the second controller leads")
    fleet.wait(lambda: fleet.has_condition("cnodes", NODE, "StrayInstances"), "the agent knows this fleet")
    assert {name: secret[name] for name in ("authority.key", "authority.pem", "fleet.secret")}.items() <= read_secret(
        fleet
    ).items()
    fleet.wish()
    fleet.wait_ready()
    assert instance_ids(fleet) == ids
    assert fleet.engines(NODE) == engines
