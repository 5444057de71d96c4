"""One control plane: etcd, API server and controller manager as child processes, in one folder, on free ports.

No kubelet and no scheduler: Pods are objects that nothing runs. Every process ends with `stop`, or with this process:
the kernel kills them when their parent dies.
"""

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
from kit.ports import free_port

from testbed.kube.programs import component_command

# Two seconds on an idle machine.
START_SECONDS = 120.0
STOP_SECONDS = 20.0
CALL_SECONDS = 60.0
# Deleting a kind waits for as long as the API server looks for its objects.
KUBECTL_SECONDS = 300.0
CRDS = Path(__file__).parents[3] / "manifests" / "crds"
SERVICE_RANGE = "10.255.0.0/24"
# What tests rely on: deletion of dependents and namespaces, default service accounts, aggregated roles.
CONTROLLERS = (
    "garbage-collector-controller,namespace-controller,serviceaccount-controller,"
    "root-ca-certificate-publisher-controller,clusterrole-aggregation-controller"
)
_PR_SET_PDEATHSIG = 1
_CORE, _RIGHTS = "/api/v1", "/apis/rbac.authorization.k8s.io/v1"
# Of requests by Covey's own controllers who, what and with what answer; of all others nothing.
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "users": ["system:serviceaccount:covey-system:covey-controller"]},
        {"level": "None"},
    ],
}
_NOT_BUILT_IN = {"labelSelector": "!kubernetes.io/bootstrapping"}
# What tests leave behind: API, kind, and which of them. The rest is the control plane's own.
_LEFT_IN_NAMESPACES: tuple[tuple[str, str, dict[str, str]], ...] = (
    (_CORE, "pods", {}),
    (_CORE, "services", {"fieldSelector": "metadata.name!=kubernetes"}),
    (_CORE, "endpoints", {"fieldSelector": "metadata.name!=kubernetes"}),
    (_CORE, "secrets", {}),
    (_CORE, "configmaps", {"fieldSelector": "metadata.name!=kube-root-ca.crt"}),
    (_CORE, "serviceaccounts", {"fieldSelector": "metadata.name!=default"}),
    (_CORE, "events", {}),
    ("/apis/coordination.k8s.io/v1", "leases", {}),
    (_RIGHTS, "roles", _NOT_BUILT_IN),
    (_RIGHTS, "rolebindings", _NOT_BUILT_IN),
)
_LEFT_IN_THE_CLUSTER = (
    (_CORE, "nodes", dict[str, str]()),
    (_RIGHTS, "clusterroles", _NOT_BUILT_IN),
    (_RIGHTS, "clusterrolebindings", _NOT_BUILT_IN),
)


@dataclass
class ControlPlane:
    """A running control plane. Paths and URLs stay the same over `stop_component` and `start_component`."""

    folder: Path
    port: int
    etcd_port: int
    peer_port: int
    token: str
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, "subprocess.Popen[bytes]"])

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        """An administrator's."""
        return self.folder / "admin.kubeconfig"

    @property
    def authority(self) -> Path:
        """The certificates to trust."""
        return self.folder / "certificates" / "apiserver.crt"

    def start(self) -> None:
        self.start_component("etcd")
        self.start_component("kube-apiserver")
        self.start_component("kube-controller-manager")

    def stop(self) -> None:
        for name in ("kube-controller-manager", "kube-apiserver", "etcd"):
            self.stop_component(name)

    def start_component(self, name: str) -> None:
        """Start one process; the API server is ready when this returns."""
        assert name not in self.processes, f"{name} runs already"
        log = (self.folder / f"{name}.log").open("ab")
        with log:
            self.processes[name] = subprocess.Popen(
                component_command(name) + _flags(self)[name],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
            )
        if name == "kube-apiserver":
            self._wait_ready()

    def stop_component(self, name: str, signal_number: signal.Signals = signal.SIGKILL) -> None:
        """End one process, at once unless told otherwise; nothing if it doesn't run."""
        process = self.processes.pop(name, None)
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal_number)
        process.wait(timeout=STOP_SECONDS)

    @contextmanager
    def without_api_server(self) -> Generator[None]:
        """The API server is gone during the block, and back after it."""
        self.stop_component("kube-apiserver")
        try:
            yield
        finally:
            self.start_component("kube-apiserver")

    def save(self) -> Path:
        """A backup of all that is stored, for `put_back`. Everything stands still meanwhile."""
        self.stop()
        backup = Path(tempfile.mkdtemp(prefix="backup-", dir=self.folder)) / "etcd"
        shutil.copytree(self.folder / "etcd", backup)
        self.start()
        return backup

    def put_back(self, backup: Path) -> None:
        """Come back at the same address with what was stored at the backup."""
        self.stop()
        shutil.rmtree(self.folder / "etcd")
        shutil.copytree(backup, self.folder / "etcd")
        self.start()

    def compact(self) -> None:
        """Forget all history in etcd: nobody can go on from an older version."""
        with httpx.Client(base_url=f"http://127.0.0.1:{self.etcd_port}", timeout=CALL_SECONDS) as etcd:
            found = etcd.post("/v3/kv/range", json={"key": "AA=="}).raise_for_status().json()
            body = {"revision": found["header"]["revision"], "physical": True}
            etcd.post("/v3/kv/compaction", json=body).raise_for_status()

    def begin_empty(self) -> None:
        """Come back at the same address with nothing in it, as after a lost etcd."""
        self.stop()
        shutil.rmtree(self.folder / "etcd")
        self.start()

    def kubectl(
        self, *arguments: str, text: str | None = None, check: bool = True, kubeconfig: Path | None = None
    ) -> str:
        """Run kubectl as the administrator, or by another kubeconfig; its output. AssertionError with both outputs."""
        command = [*component_command("kubectl"), f"--kubeconfig={kubeconfig or self.kubeconfig}", *arguments]
        # The discovery cache of a control plane that is gone is no help to the next one.
        environment = os.environ | {"HOME": str(self.folder), "KUBECACHEDIR": str(self.folder / "kubectl-cache")}
        answer = subprocess.run(
            command, env=environment, input=text, capture_output=True, text=True, timeout=KUBECTL_SECONDS, check=False
        )
        if check:
            assert answer.returncode == 0, f"kubectl {' '.join(arguments)}:\n{answer.stdout}{answer.stderr}"
        return answer.stdout if check else answer.stdout + answer.stderr

    def client(self, token: str | None = None) -> httpx.Client:
        """A plain HTTP client of the API server, the administrator's unless another token is given."""
        return httpx.Client(
            base_url=self.url,
            headers={"authorization": f"Bearer {token or self.token}"},
            verify=_context(self.authority),
            timeout=CALL_SECONDS,
        )

    def apply_crds(self) -> None:
        """Install Covey's kinds and wait until they are served."""
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
        self.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(CRDS))
        # An established kind still answers 429 while its storage begins.
        with self.client() as client:
            _wait(lambda: all(_is_served(client, plural) for plural in _plurals()), "every kind is served")

    def clear(self, *namespaces: str) -> None:
        """Remove every Covey object with its finalizers, and these namespaces' Secrets, ConfigMaps and Leases."""
        with self.client() as client:
            for plural in _plurals():
                # A kind whose schema was changed answers 429 while its storage begins anew.
                _wait(lambda plural=plural: _is_settled(client, plural), f"'{plural}' is served, or is no kind")
                _clear_kind(client, f"/apis/covey.dev/v1alpha1/{plural}")
            for namespace in namespaces:
                for path in (
                    f"/api/v1/namespaces/{namespace}/secrets",
                    f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases",
                ):
                    client.delete(path)
                client.delete(f"/api/v1/namespaces/{namespace}/configmaps/covey-authority")

    def forget_guests(self) -> None:
        """As just installed, whatever those before have left: empty namespaces stay, since their end takes seconds."""
        self.clear()
        with self.client() as client:
            listed = client.get("/api/v1/namespaces").raise_for_status().json()["items"]
            names = [each["metadata"]["name"] for each in listed]
            scopes = [f"namespaces/{name}/" for name in names if not name.startswith("kube-")]
            for base, kind, scope, selector in (
                *((base, kind, scope, selector) for base, kind, selector in _LEFT_IN_NAMESPACES for scope in scopes),
                *((base, kind, "", selector) for base, kind, selector in _LEFT_IN_THE_CLUSTER),
            ):
                options = {"gracePeriodSeconds": 0}
                answer = client.request("DELETE", f"{base}/{scope}{kind}", params=selector, json=options)
                assert answer.is_success, answer.text

    def read_audit(self, since: int = 0) -> list[dict[str, Any]]:
        """Every request of Covey's controllers up to now, but for the first `since`."""
        path = self.folder / "audit.log"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines[since:]]

    def create_namespace(self, name: str) -> None:
        self.kubectl("apply", "-f", "-", text=json.dumps(_object("v1", "Namespace", name)))

    def service_account_token(self, namespace: str, name: str, *extra: str) -> str:
        """A token for a ServiceAccount; `extra` are flags of `kubectl create token`."""
        return self.kubectl("create", "token", name, "-n", namespace, *extra).strip()

    def write_kubeconfig(self, path: Path, token: str) -> Path:
        """A kubeconfig that logs in with this token."""
        path.write_text(json.dumps(_kubeconfig(self.url, self.authority, token)))
        path.chmod(0o600)
        return path

    def issue_client_certificate(self, user: str, group: str) -> tuple[Path, Path]:
        """Certificate and key with which this user of this group logs in."""
        names = [f"{user}.{end}" for end in ("crt", "key", "csr")]
        certificate, key, request = names
        subject = f"/O={group}/CN={user}"
        _run_openssl(self, "req", *_NEW_KEY, "-subj", subject, "-keyout", key, "-out", request)
        signing = ("-CA", "clients.crt", "-CAkey", "clients.key", "-CAcreateserial")
        _run_openssl(self, "x509", "-req", "-in", request, *signing, "-days", "1", "-out", certificate)
        return self.folder / certificate, self.folder / key

    def _wait_ready(self) -> None:
        _wait(lambda: self._is_ready(), f"the API server answers; its log is '{self.folder / 'kube-apiserver.log'}'")

    def _is_ready(self) -> bool:
        process = self.processes["kube-apiserver"]
        assert process.poll() is None, (self.folder / "kube-apiserver.log").read_text()[-3000:]
        if not self.authority.exists():
            return False
        with contextlib.suppress(httpx.HTTPError, OSError), self.client() as client:
            return client.get("/readyz").status_code == HTTPStatus.OK
        return False


@contextmanager
def running_control_plane(*, has_kinds: bool = True) -> Generator[ControlPlane]:
    """A fresh control plane, up during the block, with Covey's kinds unless told else. NoPrograms where none can be.

    Kinds that were there and are made anew within seconds can take an API server minutes to take away again: it looks
    for their objects in a storage that it is still replacing.
    """
    component_command("etcd")
    folder = Path(tempfile.mkdtemp(prefix="covey-kube-"))
    plane = ControlPlane(folder, free_port(), free_port(), free_port(), secrets.token_hex(16))
    _write_files(plane)
    try:
        plane.start()
        if has_kinds:
            plane.apply_crds()
        yield plane
    finally:
        plane.stop()
        shutil.rmtree(folder, ignore_errors=True)


def local_address() -> str | None:
    """An address of this machine that isn't loopback: the API server's proxy refuses those. None without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return None


def _flags(plane: ControlPlane) -> Mapping[str, list[str]]:
    etcd, peer = f"http://127.0.0.1:{plane.etcd_port}", f"http://127.0.0.1:{plane.peer_port}"
    return {
        "etcd": [
            "--data-dir=etcd",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=error",
        ],
        "kube-apiserver": [
            f"--etcd-servers={etcd}",
            "--cert-dir=certificates",
            "--bind-address=127.0.0.1",
            f"--secure-port={plane.port}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--endpoint-reconciler-type=none",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=accounts.key",
            "--service-account-signing-key-file=accounts.key",
            "--authorization-mode=RBAC",
            "--token-auth-file=tokens.csv",
            "--client-ca-file=clients.crt",
            "--allow-privileged=true",
            "--audit-policy-file=audit.json",
            "--audit-log-path=audit.log",
            "--v=1",
        ],
        "kube-controller-manager": [
            f"--kubeconfig={plane.kubeconfig}",
            f"--authentication-kubeconfig={plane.kubeconfig}",
            f"--authorization-kubeconfig={plane.kubeconfig}",
            "--authentication-skip-lookup=true",
            "--secure-port=0",
            "--leader-elect=false",
            f"--controllers={CONTROLLERS}",
            "--use-service-account-credentials=false",
            "--service-account-private-key-file=accounts.key",
            f"--root-ca-file={plane.authority}",
            "--v=1",
        ],
    }


def _write_files(plane: ControlPlane) -> None:
    key = ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out"]
    subprocess.run([*key, str(plane.folder / "accounts.key")], capture_output=True, timeout=CALL_SECONDS, check=True)
    _run_openssl(
        plane, "req", "-x509", *_NEW_KEY, "-subj", "/CN=clients", "-keyout", "clients.key", "-out", "clients.crt"
    )
    (plane.folder / "audit.json").write_text(json.dumps(_AUDIT_POLICY))
    (plane.folder / "tokens.csv").write_text(f"{plane.token},admin,admin,system:masters\n")
    plane.write_kubeconfig(plane.kubeconfig, plane.token)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _run_openssl(plane: ControlPlane, *arguments: str) -> None:
    command = ["openssl", *arguments]
    subprocess.run(command, cwd=plane.folder, capture_output=True, timeout=CALL_SECONDS, check=True)


def _kubeconfig(url: str, authority: Path, token: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": str(authority)}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }


def _object(version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}}


def _plurals() -> list[str]:
    return sorted(path.name.split(".")[0] for path in CRDS.glob("*.yaml"))


def _is_served(client: httpx.Client, plural: str) -> bool:
    return client.get(f"/apis/covey.dev/v1alpha1/{plural}").status_code == HTTPStatus.OK


def _is_settled(client: httpx.Client, plural: str) -> bool:
    status = client.get(f"/apis/covey.dev/v1alpha1/{plural}").status_code
    return status in (HTTPStatus.OK, HTTPStatus.NOT_FOUND)


def _clear_kind(client: httpx.Client, path: str) -> None:
    """Also while a controller that died still holds its objects by finalizers."""
    answer = client.get(path)
    if answer.status_code == HTTPStatus.NOT_FOUND:
        return
    for item in answer.raise_for_status().json()["items"]:
        metadata = item["metadata"]
        namespace = metadata.get("namespace")
        one = f"{path.rsplit('/', 1)[0]}/namespaces/{namespace}/{path.rsplit('/', 1)[1]}" if namespace else path
        one = f"{one}/{metadata['name']}"
        if metadata.get("finalizers"):
            patch = {"content-type": "application/merge-patch+json"}
            client.patch(one, content=json.dumps({"metadata": {"finalizers": None}}), headers=patch)
        client.delete(one)


def _wait(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not within {START_SECONDS:.0f} s: {what}"
        time.sleep(0.05)


def _context(authority: Path) -> ssl.SSLContext:

    return ssl.create_default_context(cafile=str(authority))


def _die_with_parent() -> None:
    """In the child: be killed when the parent ends, however it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
