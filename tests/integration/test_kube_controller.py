"""Controllers in Kubernetes mode as processes, on a real API server, with the rights that they need and no others.

An agent and a gateway join as pods. Engines are doubles; everything else is real.
"""

from collections.abc import Generator

import psutil
import pytest
from kit.kube_fleet import KubeFleet, running_kube_fleet
from testbed.kube.controlplane import ControlPlane, running_control_plane
from testbed.kube.programs import NoPrograms

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

NODE = "gpu-1"


@pytest.fixture(scope="module")
def plane() -> Generator[ControlPlane]:
    """A control plane of its own: these tests stop it."""
    try:
        with running_control_plane() as running:
            yield running
    except NoPrograms as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def fleet(plane: ControlPlane) -> Generator[KubeFleet]:
    """Two controllers, one agent that runs one engine: each test leaves it so."""
    with running_kube_fleet(plane) as running:
        running.start_controller("a")
        running.start_controller("b")
        running.wait_leader()
        running.start_agent(NODE)
        running.wish()
        running.wait_ready()
        yield running


def test_fleet_in_kubernetes_serves(fleet: KubeFleet) -> None:
    assert len(fleet.engines(NODE)) == 1
    assert fleet.has_condition("cnodes", NODE)
    assert psutil.pid_exists(next(iter(fleet.engines(NODE).values())))
