"""A fleet in Kubernetes on one machine: Covey's parts as processes, each with the ServiceAccount token of a pod.

The API server is real; nothing runs pods, so what a kubelet does is done here: Pod objects bound to Node objects,
tokens bound to them in files that are replaced, the mounted ConfigMap, and a Service that spreads connections.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import yaml
from testbed.kube.controlplane import ControlPlane

from kit.balancer import Balancer
from kit.fleet import wait_until
from kit.gguf import Shape, build_model
from kit.ports import free_port
from kit.processes import assert_none_left, engine_double, is_running

JsonObject = dict[str, Any]

NAMESPACE, AGENTS = "covey-system", "covey-agents"
CONTROLLER, AGENT, GATEWAY, CLI = "covey-controller", "covey-agent", "covey-gateway", "covey-cli"
FLEET_AUDIENCE, CONTROL_AUDIENCE = "covey-fleet", "covey-control"
# The lease is 15 s long; a busy machine needs more.
SETTLE_SECONDS = 90.0
# As a kubelet asks for; longer than a module of tests takes, since nobody renews them by the clock.
TOKEN_SECONDS = 3600

# What the controller may do is what an install gives it: every test of it runs with the chart's own rights.
RIGHTS = Path(__file__).parents[2] / "manifests" / "base" / "controller-rights.yaml"


@dataclass
class Part:
    """One process that can be killed, paused and started again with the same state."""

    name: str
    command: list[str]
    log: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=os.environ | self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} must have been started"
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            try:
                self.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(timeout=15)

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    @contextmanager
    def paused(self) -> Generator[None]:
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:]) if self.log.exists() else ""


@dataclass
class Replica:
    """A controller with its ports."""

    part: Part
    fleet_port: int
    control_port: int
    probe_port: int
    token_file: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.fleet_port}"

    def probe(self, path: str) -> int:
        """Status of `/readyz` or `/healthz`; 0 if nobody answers."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.probe_port}{path}", timeout=30).status_code
        except httpx.HTTPError:
            return 0


class KubeFleet:
    """Two namespaces, Covey's accounts and rights, and the parts that a test starts.

    With a `cache` of real engines and models these are used; without, a double and a model's file of a few kilobytes.
    """

    def __init__(self, plane: ControlPlane, folder: Path, cache: Path | None = None) -> None:
        self.plane = plane
        self.folder = folder
        self.replicas: dict[str, Replica] = {}
        self.agents: dict[str, Part] = {}
        self.gateways: dict[str, Part] = {}
        self.gateway_url = ""
        self.service = Balancer()
        self.admin = plane.client()
        self.model = folder / "model.gguf"
        self.engine_folder = folder / "bin"
        self.cache = cache or folder / "cache"
        self._has_doubles = cache is None

    # Setting up.

    def install(self) -> None:
        for namespace in (NAMESPACE, AGENTS):
            self.plane.create_namespace(namespace)
        for namespace, account in ((NAMESPACE, CONTROLLER), (NAMESPACE, GATEWAY), (NAMESPACE, CLI), (AGENTS, AGENT)):
            self.ensure("v1", "ServiceAccount", account, namespace)
        for each in read_rights():
            metadata = each.pop("metadata")
            place = metadata["name"], metadata.get("namespace", "")
            self.ensure(each.pop("apiVersion"), each.pop("kind"), *place, **each)
        if self._has_doubles:
            self.write_model()

    def grant(self, account: str, rules: list[JsonObject], namespace: str = "", name: str = "") -> None:
        """Let a ServiceAccount of the controller's namespace do this, everywhere or in one namespace."""
        kind, name = ("Role" if namespace else "ClusterRole"), name or account
        group = "rbac.authorization.k8s.io"
        self.ensure(f"{group}/v1", kind, name, namespace, rules=rules)
        self.ensure(
            f"{group}/v1",
            f"{kind}Binding",
            name,
            namespace,
            roleRef={"apiGroup": group, "kind": kind, "name": name},
            subjects=[{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}],
        )

    def ensure(self, version: str, kind: str, name: str, namespace: str = "", **fields: object) -> None:
        """Server-side apply of one object, as the administrator."""
        base = "/api/v1" if version == "v1" else f"/apis/{version}"
        place = f"/namespaces/{namespace}" if namespace else ""
        metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
        body = {"apiVersion": version, "kind": kind, "metadata": metadata} | fields
        path = f"{base}{place}/{kind.lower()}s/{name}"
        headers = {"content-type": "application/apply-patch+yaml"}
        query = {"fieldManager": "people", "force": "true"}
        answer = self.admin.patch(path, content=json.dumps(body), params=query, headers=headers)
        assert answer.is_success, answer.text

    def write_model(self) -> None:
        """A model's file of a few kilobytes, and the engine double under the engine's name."""
        build_model(Shape()).write(self.model)
        self.engine_folder.mkdir(exist_ok=True)
        engine_double(self.engine_folder).rename(self.engine_folder / "llama-server")

    # What a kubelet does.

    def bind_pod(self, pod: str, account: str, namespace: str, node: str) -> None:
        """A Pod object of this account on this Node object, which Pod Security `restricted` admits."""
        self.ensure("v1", "Node", node)
        allowed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        spec = {
            "serviceAccountName": account,
            "nodeName": node,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "c", "image": "covey", "securityContext": allowed}],
        }
        self.ensure("v1", "Pod", pod, namespace, spec=spec)

    def delete_pod(self, pod: str, namespace: str) -> None:
        """At once: its tokens are good no more."""
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
        self.admin.request("DELETE", path, json={"gracePeriodSeconds": 0}).raise_for_status()
        wait_until(lambda: self.admin.get(path).status_code == 404, f"pod '{pod}' is gone")

    def request_token(self, account: str, namespace: str, audience: str = "", pod: str = "") -> str:
        """A token, bound to the pod if one is named."""
        spec: JsonObject = {"expirationSeconds": TOKEN_SECONDS}
        if audience:
            spec["audiences"] = [audience]
        if pod:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer = self.admin.post(path, json={"spec": spec})
        assert answer.is_success, answer.text
        return str(answer.json()["status"]["token"])

    def write_token(self, path: Path, account: str, namespace: str, audience: str = "", pod: str = "") -> None:
        """Replace a token's file, as a kubelet does before the old one expires."""
        token = self.request_token(account, namespace, audience, pod)
        temporary = path.with_suffix(".new")
        temporary.write_text(token)
        temporary.chmod(0o600)
        temporary.replace(path)

    def mount_authority(self, namespace: str = AGENTS) -> Path:
        """The ConfigMap's file; waits until the leader has written it, as a pod does."""
        path = self.folder / f"{namespace}-authorities.pem"
        self.wait(lambda: self.authority(namespace), "the leader writes ConfigMap 'covey-authority'")
        path.write_text(self.authority(namespace))
        return path

    def authority(self, namespace: str = AGENTS) -> str:
        answer = self.admin.get(f"/api/v1/namespaces/{namespace}/configmaps/covey-authority")
        return str(answer.json()["data"]["authorities.pem"]) if answer.is_success else ""

    # Parts.

    def start_controller(self, name: str, *extra: str, control_host: str = "127.0.0.1") -> Replica:
        pod = f"controller-{name}"
        self.bind_pod(pod, CONTROLLER, NAMESPACE, "system")
        token_file = self.folder / f"{pod}.token"
        self.write_token(token_file, CONTROLLER, NAMESPACE, pod=pod)
        kubeconfig = self.plane.write_kubeconfig(self.folder / f"{pod}.kubeconfig", "")
        config = json.loads(kubeconfig.read_text())
        config["users"][0]["user"] = {"tokenFile": str(token_file)}
        kubeconfig.write_text(json.dumps(config))
        ports = free_port(), free_port(), free_port()
        flags = [f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}", f"--agent-namespace={AGENTS}"]
        hosts = {"fleet": "127.0.0.1", "control": control_host, "probe": "127.0.0.1"}
        flags += [f"--{api}-listen={host}:{port}" for (api, host), port in zip(hosts.items(), ports, strict=True)]
        flags += ["--advertise=127.0.0.1", f"--fleet-name={CONTROLLER}.{NAMESPACE}.svc", f"--state={self.folder / pod}"]
        command = [sys.executable, "-m", "covey_controller", "--kube", *flags, *extra]
        replica = Replica(Part(name, command, self.folder / f"{pod}.log"), *ports, token_file)
        replica.part.start()
        self.replicas[name] = replica
        self.service.backends[name] = ports[0]
        return replica

    def expire_controller_token(self, name: str) -> None:
        """Its token is good no more, and no new one is there."""
        self.delete_pod(f"controller-{name}", NAMESPACE)

    def renew_controller_token(self, name: str) -> None:
        pod = f"controller-{name}"
        self.bind_pod(pod, CONTROLLER, NAMESPACE, "system")
        self.write_token(self.replicas[name].token_file, CONTROLLER, NAMESPACE, pod=pod)

    def start_agent(self, node: str, *extra: str, url: str = "") -> Part:
        """The agent of a Kubernetes node, through the Service unless another URL is given."""
        pod = f"agent-{node}"
        self.bind_pod(pod, AGENT, AGENTS, node)
        token_file = self.folder / f"{pod}.token"
        self.write_token(token_file, AGENT, AGENTS, FLEET_AUDIENCE, pod)
        flags = [f"--controller={url or self.service.url}", f"--token-file={token_file}", f"--name={node}"]
        flags += [f"--authority-file={self.mount_authority()}", f"--state={self.folder / f'a{len(self.agents)}'}"]
        command = [sys.executable, "-m", "covey_agent", *flags, f"--cache={self.cache}", *extra]
        path = f"{self.engine_folder}{os.pathsep}{os.environ.get('PATH', '')}"
        part = Part(node, command, self.folder / f"{pod}.log", {"PATH": path})
        part.start()
        self.agents[node] = part
        return part

    def agent_state(self, node: str) -> Path:
        """The agent's own folder."""
        return self.folder / f"a{list(self.agents).index(node)}" / "agent"

    def start_gateway(self, pod: str, *extra: str, url: str = "", host: str = "127.0.0.1") -> Part:
        """A gateway, which clients reach at `gateway_url` from then on."""
        self.bind_pod(pod, GATEWAY, NAMESPACE, "system")
        token_file, port = self.folder / f"{pod}.token", free_port()
        self.write_token(token_file, GATEWAY, NAMESPACE, FLEET_AUDIENCE, pod)
        flags = [f"--controller={url or self.service.url}", f"--token-file={token_file}", f"--name={pod}"]
        flags += [
            f"--authority-file={self.mount_authority(NAMESPACE)}",
            f"--state={self.folder / f'g{len(self.gateways)}'}",
        ]
        command = [sys.executable, "-m", "covey_gateway", *flags, f"--listen={host}:{port}", *extra]
        part = Part(pod, command, self.folder / f"{pod}.log")
        part.start()
        self.gateways[pod] = part
        self.gateway_url = f"http://{host}:{port}"
        return part

    # Looking.

    def get(self, plural: str, name: str, namespace: str = "default") -> JsonObject:
        """One of Covey's objects; empty if there is none."""
        place = "" if plural in ("cnodes", "fleets") else f"/namespaces/{namespace}"
        answer = self._read(f"/apis/covey.dev/v1alpha1{place}/{plural}/{name}")
        return answer.json() if answer.is_success else {}

    def list_objects(self, plural: str) -> list[JsonObject]:
        return self._read(f"/apis/covey.dev/v1alpha1/{plural}").raise_for_status().json()["items"]

    def _read(self, path: str) -> httpx.Response:
        """An API server that came back says 429 of custom kinds while their storage begins."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (answer := self.admin.get(path)).status_code == HTTPStatus.TOO_MANY_REQUESTS:
            assert time.monotonic() < deadline, f"{path}: {answer.text}"
            time.sleep(0.2)
        return answer

    def lease(self) -> JsonObject:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{CONTROLLER}"
        answer = self.admin.get(path)
        return answer.json() if answer.is_success else {}

    def leader(self) -> Replica | None:
        """Whom the Lease names."""
        lease = self.lease()
        if not lease or not lease["spec"].get("holderIdentity"):
            return None
        address = lease["metadata"]["annotations"]["covey.dev/fleet-address"]
        return next((replica for replica in self.replicas.values() if replica.address == address), None)

    def term(self) -> int:
        return int(self.lease()["metadata"]["annotations"]["covey.dev/term"])

    def standby(self) -> Replica:
        return next(replica for replica in self.replicas.values() if replica is not self.leader())

    def wait_leader(self, other_than: Replica | None = None) -> Replica:
        self.wait(lambda: self.leader() not in (None, other_than), "a controller leads")
        leader = self.leader()
        assert leader is not None
        return leader

    def wish(self, replicas: int = 1, name: str = "smollm2") -> None:
        """A Model of the small file, and a Placement of it."""
        variant = {"name": "v", "format": "Gguf", "source": f"file://{self.model}", "engines": ["LlamaServer"]}
        self.ensure("covey.dev/v1alpha1", "Model", name, "default", spec={"tasks": ["Chat"], "variants": [variant]})
        spec = {"modelRef": {"name": name}, "replicas": replicas}
        self.ensure("covey.dev/v1alpha1", "Placement", name, "default", spec=spec)

    def has_condition(self, plural: str, name: str, kind: str = "Ready") -> bool:
        conditions = self.get(plural, name).get("status", {}).get("conditions", ())
        return any(each["type"] == kind and each["status"] == "True" for each in conditions)

    def wait_ready(self, name: str = "smollm2") -> None:
        self.wait(lambda: self.has_condition("placements", name), f"placement '{name}' is Ready")

    def ready_instances(self) -> list[JsonObject]:
        return [each for each in self.list_objects("instances") if each.get("status", {}).get("phase") == "Ready"]

    def followed_term(self, node: str) -> int:
        """The term of the assignments that the node's agent holds."""
        with suppress(OSError, ValueError, KeyError):
            return int(json.loads((self.agent_state(node) / "assignments.json").read_text())["order"]["term"])
        return 0

    def engines(self, node: str) -> dict[str, int]:
        """Process ids of the engines that run on a node by instance id, as its keepers wrote them down."""
        found: dict[str, int] = {}
        for path in (self.agent_state(node) / "members").glob("*/keeper.json"):
            with suppress(OSError, ValueError):
                pid = int(json.loads(path.read_text())["enginePid"])
                if is_running(pid):
                    found[path.parent.name] = pid
        return found

    def wait(self, holds: Callable[[], object], what: str, seconds: float = SETTLE_SECONDS) -> None:
        """As `wait_until`, with the parts' logs in the words of the failure."""
        try:
            wait_until(holds, what, seconds)
        except AssertionError as error:
            parts = [each.part for each in self.replicas.values()] + [*self.agents.values(), *self.gateways.values()]
            logs = "\n".join(f"--- {part.name}\n{part.tail()}" for part in parts)
            raise AssertionError(f"{error}\n{logs}") from None

    # Ending.

    def stop(self) -> None:
        for part in (*self.gateways.values(), *self.agents.values()):
            part.end()
        for node, part in self.agents.items():
            command = [sys.executable, "-m", "covey_agent", "--stop-all", f"--state={self.agent_state(node).parent}"]
            subprocess.run(command, env=os.environ | part.environment, capture_output=True, timeout=60, check=False)
        for replica in self.replicas.values():
            replica.part.end()
        self.service.close()
        self.admin.close()


@contextmanager
def running_kube_fleet(plane: ControlPlane, cache: Path | None = None) -> Generator[KubeFleet]:
    """Installed, nothing started; everything is ended and removed afterwards, also what a failed test left behind."""
    plane.clear(NAMESPACE, AGENTS)
    with bare_kube_fleet(plane, cache) as fleet:
        fleet.install()
        yield fleet


@contextmanager
def bare_kube_fleet(plane: ControlPlane, cache: Path | None = None) -> Generator[KubeFleet]:
    """As `running_kube_fleet`, for who installs by other means."""
    folder = Path(tempfile.mkdtemp(prefix="ck"))  # short: Unix sockets live below it
    fleet = KubeFleet(plane, folder, cache)
    try:
        yield fleet
    finally:
        fleet.stop()
        assert_none_left(folder)
        shutil.rmtree(folder, ignore_errors=True)


def read_rights() -> list[JsonObject]:
    """The controller's roles and their bindings."""
    return list(yaml.load_all(RIGHTS.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader))


def wait_seconds(seconds: float) -> None:
    """Time passes, and nothing is waited for."""
    time.sleep(seconds)
