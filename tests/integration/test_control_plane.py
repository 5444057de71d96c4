"""The test bed itself: a real API server that serves Covey's kinds."""

import json

from kit.fleet import EXAMPLE
from testbed.kube.controlplane import ControlPlane


def test_api_server_takes_the_smallest_example_and_says_nothing_is_ready_yet(control_plane: ControlPlane) -> None:
    control_plane.clear()
    control_plane.kubectl("apply", "--server-side", "-f", str(EXAMPLE))
    found = json.loads(control_plane.kubectl("get", "placement", "smollm2", "-o", "json"))
    assert found["spec"]["modelRef"] == {"name": "smollm2"}
    assert found["status"] == {"observedGeneration": -1}
    assert control_plane.kubectl("get", "cnodes", "-o", "name") == ""
