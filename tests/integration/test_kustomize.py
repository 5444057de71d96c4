"""The overlays on a real API server: applied twice, admitted under Pod Security, with the rights that are meant."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from testbed.kube.controlplane import ControlPlane, running_control_plane
from testbed.kube.programs import NoPrograms, module_folder
from testbed.kube.tools import run_helm

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
OVERLAYS = ROOT / "manifests" / "overlays"
CHART = ROOT / "manifests" / "chart"
Rendered = dict[str, list[dict[str, Any]]]
KINDS = ("models", "placements", "cnodes", "instances", "fleets", "accesskeys")


def rights(group: str, resources: str, verbs: str) -> set[str]:
    """`VERB GROUP/RESOURCE` for each pair."""
    return {f"{verb} {group}/{resource}" for resource in resources.split() for verb in verbs.split()}


# All that each ServiceAccount may do beyond what everybody who logs in may, by namespace.
EVERYWHERE = {
    "covey-controller": rights("covey.dev", " ".join(KINDS), "list watch")
    | rights("covey.dev", "placements cnodes instances fleets", "get")
    | rights("covey.dev", "instances", "create patch delete")
    | rights("covey.dev", "cnodes", "create patch")
    | rights("covey.dev", "placements", "patch")
    | rights("covey.dev", "fleets", "create")
    | rights("covey.dev", "fleets/=default", "patch")
    | rights("covey.dev", " ".join(f"{kind}/status" for kind in KINDS), "patch")
    | rights("", "events", "get create patch")
    | rights("authentication.k8s.io", "tokenreviews", "create")
    | rights("authorization.k8s.io", "subjectaccessreviews", "create"),
    "covey-gateway": set[str](),
    "covey-agent": set[str](),
    "covey-cli": rights("covey.dev", "placements instancelogs", "get"),
    "covey-cli-operator": rights("covey.dev", "jointokens", "create")
    | rights("covey.dev", "gateways", "delete")
    | rights("covey.dev", "authorities", "update"),
}
AUTHORITY = rights("", "configmaps", "create") | rights("", "configmaps/=covey-authority", "get patch")
IN_NAMESPACE = {
    ("covey-controller", "covey-system"): AUTHORITY
    | rights("", "secrets", "create")
    | rights("", "secrets/=covey-controller", "get patch")
    | rights("coordination.k8s.io", "leases", "create")
    | rights("coordination.k8s.io", "leases/=covey-controller", "get patch"),
    ("covey-controller", "covey-agents"): AUTHORITY,
}
HOMES = {account: "covey-agents" if account == "covey-agent" else "covey-system" for account in EVERYWHERE}
# What people may do by the cluster's own roles, bound in namespace `team`, and what they may not.
PEOPLE = {
    "view": (
        ("get placements", "list models", "watch instances"),
        ("get accesskeys", "create placements", "get secrets", "delete instances"),
    ),
    "edit": (
        ("create placements", "delete models", "patch placements/scale", "get instances"),
        ("create accesskeys", "delete instances", "create instances"),
    ),
    "admin": (("create accesskeys", "delete instances", "patch placements"), ("create instances", "patch instances")),
}


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane with nothing of Covey's but the default overlay, applied as the guide says."""
    try:
        with running_control_plane(has_kinds=False) as plane:
            plane.kubectl("apply", "-k", str(OVERLAYS / "default"))
            yield plane
    except NoPrograms as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def rendered(plane: ControlPlane) -> Rendered:
    """Every object of each overlay."""
    texts = {path.name: plane.kubectl("kustomize", str(path)) for path in sorted(OVERLAYS.iterdir())}
    return {name: list(yaml.load_all(text, Loader=yaml.CSafeLoader)) for name, text in texts.items()}


def pod_of(workload: Mapping[str, Any]) -> dict[str, Any]:
    """The Pod that a Deployment's or DaemonSet's controller would create."""
    template = workload["spec"]["template"]
    metadata = template["metadata"] | {"generateName": "pod-", "namespace": workload["metadata"]["namespace"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def workloads(objects: Iterable[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] in (kinds or ("Deployment", "DaemonSet"))]


def test_second_apply_writes_nothing_and_shows_no_difference(plane: ControlPlane) -> None:
    plane.kubectl("wait", "--for=condition=Established", "--timeout=120s", "crd", "--all")  # and its status written
    before = versions(plane)
    again = plane.kubectl("apply", "-k", str(OVERLAYS / "default")).splitlines()
    assert len(before) == len(again) > 30
    # kubectl sends a budget's selector each time; the API server finds nothing to change.
    said = [line for line in again if not line.endswith(" unchanged") and not line.startswith("poddisruptionbudget")]
    assert said == []
    assert versions(plane) == before
    assert plane.kubectl("diff", "-k", str(OVERLAYS / "default")) == ""


@pytest.mark.usefixtures("kube_tools")
def test_optional_objects_of_the_chart_pass_a_server_side_dry_run_without_a_warning(plane: ControlPlane) -> None:
    """With the real HTTPRoute and ServiceMonitor, of the Gateway API's and the Prometheus operator's own releases."""
    routes = module_folder("sigs.k8s.io/gateway-api", "v1.4.0") / "config" / "crd" / "standard"
    monitors = module_folder("github.com/prometheus-operator/prometheus-operator", "v0.85.0") / "example"
    for crd in (
        routes / "gateway.networking.k8s.io_httproutes.yaml",
        monitors / "prometheus-operator-crd" / "monitoring.coreos.com_servicemonitors.yaml",
    ):
        plane.kubectl("apply", "--server-side", "-f", str(crd))
    values = [
        "ingress.enabled=true",
        "ingress.host=covey.example",
        "ingress.tlsSecretName=covey-tls",
        "httpRoute.enabled=true",
        "httpRoute.parentRefs[0].name=public",
        "httpRoute.hostnames[0]=covey.example",
        "fleetService.enabled=true",
        "fleetService.names[0]=fleet.example",
        "metrics.enabled=true",
        "metrics.serviceMonitor.enabled=true",
        "metrics.serviceMonitor.labels.release=prometheus",
        "agent.pools[0].name=amd-4",
        "agent.pools[0].devices.amd\\.com/gpu=4",
        "agent.pools[0].supplementalGroups[0]=44",
    ]
    sets = [word for value in values for word in ("--set", value)]
    text = run_helm("template", "covey", str(CHART), *sets).stdout
    said = plane.kubectl("apply", "--dry-run=server", "-f", "-", text=text, check=False).splitlines()
    assert [line for line in said if not line.endswith("(server dry run)")] == []
    kinds = {line.split("/")[0] for line in said}
    optional = {"httproute.gateway.networking.k8s.io", "ingress.networking.k8s.io"}
    assert optional | {"servicemonitor.monitoring.coreos.com"} <= kinds
    assert {
        "service/covey-fleet created (server dry run)",
        "daemonset.apps/covey-agent-amd-4 created (server dry run)",
    } <= set(said)


def versions(plane: ControlPlane) -> dict[str, str]:
    """`resourceVersion` of every object of the default overlay."""
    found = json.loads(plane.kubectl("get", "-o", "json", "-k", str(OVERLAYS / "default")))["items"]
    keys = [(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in found]
    return {"/".join(key): each["metadata"]["resourceVersion"] for key, each in zip(keys, found, strict=True)}


def test_every_overlay_passes_a_server_side_dry_run_without_a_warning(plane: ControlPlane, rendered: Rendered) -> None:
    """Of the vendors' only what they change, which is all that differs."""
    changed = [each for overlay in rendered.values() for each in overlay if each not in rendered["default"]]
    assert [each["kind"] for each in changed] == ["DaemonSet"] * (len(rendered) - 1)
    asked = json.dumps({"apiVersion": "v1", "kind": "List", "items": rendered["default"] + changed})
    said = plane.kubectl("apply", "--dry-run=server", "-f", "-", text=asked, check=False).splitlines()
    assert [line for line in said if not line.endswith("(server dry run)")] == []
    assert len(said) == len(rendered["default"]) + len(changed)


@pytest.mark.parametrize("overlay", ["default", "amd", "intel"])
def test_pods_are_admitted_where_they_belong_without_a_warning(
    plane: ControlPlane, rendered: Rendered, overlay: str
) -> None:
    found = workloads(rendered[overlay])
    assert [each["metadata"]["name"] for each in found] == ["covey-controller", "covey-gateway", "covey-agent"]
    for workload in found:
        pod = json.dumps(pod_of(workload))
        said = plane.kubectl("create", "--dry-run=server", "-f", "-", text=pod, check=False)
        assert said.endswith("created (server dry run)\n"), said
        assert "arning" not in said


def test_pod_of_the_nvidia_overlay_wants_the_vendors_runtime_class_first(
    plane: ControlPlane, rendered: Rendered
) -> None:
    agent = pod_of(*workloads(rendered["nvidia"], "DaemonSet"))
    create = ("create", "--dry-run=server", "-f", "-")
    assert 'RuntimeClass "nvidia" not found' in plane.kubectl(*create, text=json.dumps(agent), check=False)
    kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}
    plane.kubectl("apply", "-f", "-", text=json.dumps(kind))
    assert plane.kubectl(*create, text=json.dumps(agent)).endswith("created (server dry run)\n")


def test_vendor_overlays_take_the_devices_of_whole_nodes(rendered: Rendered) -> None:
    for overlay, device in (("nvidia", "nvidia.com/gpu"), ("amd", "amd.com/gpu"), ("intel", "gpu.intel.com/xe")):
        (agent,) = workloads(rendered[overlay], "DaemonSet")
        (container,) = agent["spec"]["template"]["spec"]["containers"]
        assert set(container["resources"]["limits"]) == {device}


def test_pod_security_is_in_force(plane: ControlPlane, rendered: Rendered) -> None:
    """The same pods elsewhere: what the profiles are for."""
    agent = pod_of(*workloads(rendered["default"], "DaemonSet"))
    agent["metadata"]["namespace"] = "covey-system"
    agent["spec"]["serviceAccountName"] = "default"
    refused = plane.kubectl("create", "--dry-run=server", "-f", "-", text=json.dumps(agent), check=False)
    assert 'violates PodSecurity "restricted:latest": host namespaces (hostNetwork=true)' in refused
    controller = pod_of(workloads(rendered["default"], "Deployment")[0])
    controller["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    refused = plane.kubectl("create", "--dry-run=server", "-f", "-", text=json.dumps(controller), check=False)
    assert 'violates PodSecurity "restricted:latest": privileged' in refused


def test_agents_have_the_least_of_the_privileged_profile(plane: ControlPlane, rendered: Rendered) -> None:
    """Nothing but the node's network, its folder, and one capability of the init container."""
    agent = pod_of(*workloads(rendered["default"], "DaemonSet"))
    agent["spec"]["hostNetwork"] = False
    agent["spec"]["dnsPolicy"] = "ClusterFirst"
    agent["spec"]["volumes"] = [each for each in agent["spec"]["volumes"] if "hostPath" not in each]
    agent["spec"]["volumes"].append({"name": "node", "emptyDir": {}})
    del agent["spec"]["initContainers"]
    agent["metadata"]["namespace"] = "covey-system"
    agent["spec"]["serviceAccountName"] = "default"
    said = plane.kubectl("create", "--dry-run=server", "-f", "-", text=json.dumps(agent), check=False)
    assert said.endswith("created (server dry run)\n"), said


@pytest.mark.parametrize("account", EVERYWHERE)
def test_each_account_has_exactly_its_rights(plane: ControlPlane, account: str) -> None:
    anybody, itself = (token_of(plane, *each) for each in (("default", "default"), (HOMES[account], account)))
    for namespace in ("covey-system", "covey-agents", "default", "kube-system"):
        found = rights_of(plane, itself, namespace) - rights_of(plane, anybody, namespace)
        assert found == EVERYWHERE[account] | IN_NAMESPACE.get((account, namespace), set[str]()), namespace


def token_of(plane: ControlPlane, namespace: str, account: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    with plane.client() as client:
        answer = client.post(path, json={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"})
    return str(answer.raise_for_status().json()["status"]["token"])


def rights_of(plane: ControlPlane, token: str, namespace: str) -> set[str]:
    """What the API server lists for who has this token, in a namespace."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    with plane.client(token) as client:
        answer = client.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", json=review).raise_for_status()
    status = answer.json()["status"]
    assert not status["incomplete"]
    return {
        f"{verb} {group}/{resource}" + (f"/={name}" if name else "")
        for rule in status["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames") or [""]
        for verb in rule["verbs"]
    }


def test_people_get_their_rights_by_the_clusters_own_roles(plane: ControlPlane) -> None:
    plane.create_namespace("team")
    for role, (may, may_not) in PEOPLE.items():
        plane.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}-person", "-n", "team")
        for right in may:
            assert can(plane, f"{role}-person", "team", right), right
        for right in may_not:
            assert not can(plane, f"{role}-person", "team", right), right
        assert not can(plane, f"{role}-person", "", "create cnodes")
        assert not can(plane, f"{role}-person", "default", "get placements")


def test_who_may_use_the_command_may_ask_for_its_token_and_reach_the_control_port(plane: ControlPlane) -> None:
    reading, operating = "serviceaccounts/token covey-cli", "serviceaccounts/token covey-cli-operator"
    for user, roles in (("reader", ["covey-cli-user"]), ("operator", ["covey-cli-user", "covey-cli-operator-user"])):
        for role in roles:
            plane.kubectl(
                "create", "rolebinding", f"{user}-{role}", f"--role={role}", f"--user={user}", "-n", "covey-system"
            )
        for service in ("https:covey-controller:control", "http:covey-gateway:http"):
            assert can(plane, user, "covey-system", f"create services/proxy {service}")
        assert can(plane, user, "covey-system", f"create {reading}")
        assert can(plane, user, "covey-system", f"create {operating}") == (user == "operator")
        for right in (
            "create serviceaccounts/token covey-controller",
            "get services/proxy https:covey-controller:fleet",
            "get secrets covey-controller",
        ):
            assert not can(plane, user, "covey-system", right), right


def can(plane: ControlPlane, user: str, namespace: str, right: str) -> bool:
    """`VERB RESOURCE[/SUBRESOURCE] [NAME]`, asked with SubjectAccessReview."""
    verb, resource, *name = right.split()
    resource, _, subresource = resource.partition("/")
    group = "" if resource in ("secrets", "serviceaccounts", "services") else "covey.dev"
    asked = {
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
        "name": name[0] if name else "",
        "namespace": namespace,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": asked},
    }
    with plane.client() as client:
        answer = client.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json=review).raise_for_status()
    return bool(answer.json()["status"]["allowed"])
