"""Helm on a real API server: from nothing to everything and back, and what stays behind."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.fleet import EXAMPLE
from testbed.kube.controlplane import ControlPlane, running_control_plane
from testbed.kube.programs import NoPrograms
from testbed.kube.tools import run_helm

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("kube_tools")]

CHART = Path(__file__).resolve().parents[2] / "manifests" / "chart"
OURS = "app.kubernetes.io/part-of=covey"
KEPT = {"CustomResourceDefinition", "Namespace"}


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    """A control plane without anything of Covey's."""
    try:
        with running_control_plane(has_kinds=False) as plane:
            yield plane
    except NoPrograms as error:
        pytest.skip(str(error))


def helm(plane: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Succeeds, and warns of nothing."""
    answer = run_helm(*arguments, kubeconfig=plane.kubeconfig)
    assert "arning" not in answer.stderr, answer.stderr
    return answer


def released(plane: ControlPlane) -> list[tuple[str, str, str]]:
    """Kind, namespace and name of all that the release holds."""
    manifest = helm(plane, "get", "manifest", "covey").stdout
    listed = json.loads(plane.kubectl("get", "-o", "json", "-f", "-", text=manifest))["items"]
    return sorted((each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in listed)


def exists(plane: ControlPlane, kind: str, namespace: str, name: str) -> bool:
    place = ["-n", namespace] if namespace else []
    return plane.kubectl("get", kind, name, "--ignore-not-found", "-o", "name", *place) != ""


def test_release_is_installed_upgraded_and_uninstalled_and_nothing_of_the_users_is_lost(plane: ControlPlane) -> None:
    tried = helm(plane, "install", "covey", str(CHART), "--dry-run=server").stdout
    assert "kubectl label node NODE covey.dev/agent=true" in tried
    assert plane.kubectl("get", "namespaces,crds", "-l", OURS, "-o", "name") == ""
    helm(plane, "install", "covey", str(CHART))
    objects = released(plane)
    assert len(objects) > 30

    plane.kubectl("apply", "--server-side", "-f", str(EXAMPLE))
    plane.kubectl("create", "secret", "generic", "covey-controller", "--from-literal=a=b", "-n", "covey-system")
    plane.kubectl("scale", "deployment/covey-gateway", "--replicas=5", "-n", "covey-system")
    exposed = ["--set", "ingress.enabled=true", "--set", "ingress.host=covey.example"]
    helm(plane, "upgrade", "covey", str(CHART), "--dry-run=server", *exposed)
    assert released(plane) == objects
    fewer = ["--set", "controller.replicas=3", "--set", "gateway.replicas=null", "--set-json", "agent.pools=[]"]
    helm(plane, "upgrade", "covey", str(CHART), *fewer)
    assert (replicas(plane, "covey-controller"), replicas(plane, "covey-gateway")) == (3, 5)
    assert not exists(plane, "daemonset", "covey-agents", "covey-agent")
    assert exists(plane, "placement", "default", "smollm2")

    said = helm(plane, "uninstall", "covey", "--wait").stdout
    assert "[CustomResourceDefinition] placements.covey.dev" in said
    left = [key for key in objects if exists(plane, *key)]
    assert left == [key for key in objects if key[0] in KEPT]
    assert exists(plane, "placement", "default", "smollm2")
    assert exists(plane, "secret", "covey-system", "covey-controller")

    helm(plane, "install", "covey", str(CHART))
    assert released(plane) == objects
    assert exists(plane, "placement", "default", "smollm2")


def replicas(plane: ControlPlane, deployment: str) -> int:
    return int(plane.kubectl("get", "deployment", deployment, "-n", "covey-system", "-o", "jsonpath={.spec.replicas}"))


def test_chart_refuses_a_server_without_the_rules_it_needs() -> None:
    answer = run_helm("template", "covey", str(CHART), "--kube-version", "v1.29.0", check=False)
    assert "chart requires kubeVersion: >=1.30.0-0 which is incompatible with Kubernetes v1.29.0" in answer.stderr
