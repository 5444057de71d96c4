"""A user's view of a test cluster: kubectl and `kubectl-covey` on PATH, kubeconfigs of several kinds, Services."""

import http.server
import json
import os
import shlex
import ssl
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
from testbed.kube.controlplane import ControlPlane
from testbed.kube.programs import component_command

FLEET_NAMESPACE = "covey-system"
JsonObject = dict[str, Any]
COMMAND_SECONDS = 120


@dataclass(slots=True)
class Shell:
    """Runs commands as one user. `kubeconfig` None: with none at all."""

    plane: ControlPlane
    folder: Path
    kubeconfig: Path | None

    @classmethod
    def of(cls, plane: ControlPlane, folder: Path) -> "Shell":
        """The administrator's, with the control plane's own kubectl first on PATH."""
        programs = folder / "bin"
        programs.mkdir(parents=True)
        kubectl = programs / "kubectl"
        kubectl.write_text(f'#!/bin/sh\nexec {shlex.join(component_command("kubectl"))} "$@"\n')
        kubectl.chmod(0o755)
        return cls(plane, folder, plane.kubeconfig)

    def as_user(self, kubeconfig: Path | None) -> "Shell":
        return Shell(self.plane, self.folder, kubeconfig)

    def environment(self) -> dict[str, str]:
        kept = {
            key: value for key, value in os.environ.items() if key not in ("KUBECONFIG", "COVEY_STATE", "COVEY_URL")
        }
        path = os.pathsep.join((str(self.folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
        own = {"PATH": path, "HOME": str(self.folder), "XDG_STATE_HOME": str(self.folder / "nothing")}
        return kept | own | ({"KUBECONFIG": str(self.kubeconfig)} if self.kubeconfig else {})

    def run(self, *command: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment(),
            input=text,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )

    def covey(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """`kubectl covey …`, as kubectl runs a plugin."""
        return self.run("kubectl", "covey", *arguments, text=text)

    def done(self, *arguments: str, text: str | None = None) -> str:
        """Its output; AssertionError with its words when it failed."""
        answer = self.covey(*arguments, text=text)
        assert answer.returncode == 0, f"kubectl covey {' '.join(arguments)}:\n{answer.stdout}{answer.stderr}"
        return answer.stdout

    def user_of(self, account: str, namespace: str = "default") -> "Shell":
        """The same shell as a ServiceAccount, which is made if need be."""
        self.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": namespace}}
        )
        token = self.plane.service_account_token(namespace, account)
        return self.as_user(self.plane.write_kubeconfig(self.folder / f"{account}.kubeconfig", token))

    def apply(self, *objects: JsonObject) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.plane.kubectl("apply", "--server-side", "-f", "-", text=json.dumps(listed))


def role(name: str, rules: list[JsonObject], namespace: str = "") -> JsonObject:
    scope = {"namespace": namespace} if namespace else {}
    kind = "Role" if namespace else "ClusterRole"
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, **scope},
        "rules": rules,
    }


def binding(name: str, subject: str, namespace: str = "", *, is_cluster_role: bool = True) -> JsonObject:
    """Role `name` for ServiceAccount `subject` of namespace `default`."""
    scope = {"namespace": namespace} if namespace else {}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": {"name": f"{name}-{subject}", **scope},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole" if is_cluster_role else "Role",
            "name": name,
        },
        "subjects": [{"kind": "ServiceAccount", "name": subject, "namespace": "default"}],
    }


def expose(shell: Shell, name: str, port_name: str, address: str, port: int) -> None:
    """A Service of the fleet's namespace whose one endpoint is this address."""
    shell.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": FLEET_NAMESPACE, "labels": {"app.kubernetes.io/name": name}},
            "spec": {"ports": [{"name": port_name, "port": port, "protocol": "TCP"}]},
        }
    )
    fill_service(shell, name, port_name, address, port)


def fill_service(shell: Shell, name: str, port_name: str, address: str, port: int) -> None:
    """Let this address be the one endpoint of a Service that is there.

    The API server's proxy takes only an address of Endpoints that is a Pod's: in a cluster, controllers and a kubelet
    write both. The Pod is one that Pod Security `restricted` admits.
    """
    metadata = {"name": name, "namespace": FLEET_NAMESPACE}
    target = {"kind": "Pod", "name": name, "namespace": FLEET_NAMESPACE}
    allowed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    shell.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {
                "containers": [{"name": "c", "image": "none", "securityContext": allowed}],
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "automountServiceAccountToken": False,
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": metadata,
            "subsets": [
                {
                    "addresses": [{"ip": address, "targetRef": target}],
                    "ports": [{"name": port_name, "port": port}],
                }
            ],
        },
    )
    status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps(status))
    shell.plane.kubectl("patch", "pod", name, "-n", FLEET_NAMESPACE, *patch)


@dataclass(slots=True)
class ControlFront:
    """TLS in front of a controller's control socket, which takes a reviewed token, as ADR 11 says."""

    plane: ControlPlane
    socket: Path
    allowed: dict[str, tuple[str, ...]]
    """By ServiceAccount: beginnings of the paths that it may call."""
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """`(account, path)` of each call."""

    def review(self, token: str) -> str:
        """Name of the ServiceAccount that the token was issued to, for the controller's audience; empty otherwise."""
        wish = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": ["covey-control"]},
        }
        with self.plane.client() as client:
            status = client.post("/apis/authentication.k8s.io/v1/tokenreviews", json=wish).json()["status"]
        prefix = f"system:serviceaccount:{FLEET_NAMESPACE}:"
        is_ours = bool(status.get("authenticated")) and "covey-control" in status.get("audiences", ())
        return str(status["user"]["username"]).removeprefix(prefix) if is_ours else ""

    def forward(self, method: str, path: str, token: str, body: bytes) -> tuple[int, bytes]:
        account = self.review(token)
        self.calls.append((account, path))
        if not any(path.startswith(each) for each in self.allowed.get(account, ())):
            words = {"error": {"reason": "Forbidden", "message": f"'{account}' may not call '{path}'"}}
            return HTTPStatus.FORBIDDEN, json.dumps(words).encode()
        transport = httpx.HTTPTransport(uds=str(self.socket))
        with httpx.Client(transport=transport, base_url="http://control", timeout=60) as client:
            answer = client.request(method, path, content=body, headers={"content-type": "application/json"})
        return answer.status_code, answer.content


@contextmanager
def serving_front(front: ControlFront, address: str, folder: Path) -> Generator[int]:
    """The front on a free port of this address, with a certificate that nobody knows; its port."""

    class Requests(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, content = front.forward(self.command, self.path, self.headers.get("x-covey-token", ""), body)
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = answer

    certificate, key = folder / "front.crt", folder / "front.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = [
        "-subj",
        "/CN=covey",
        "-addext",
        f"subjectAltName=IP:{address}",
        "-days",
        "1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run([*command, *subject], capture_output=True, timeout=60, check=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = http.server.ThreadingHTTPServer((address, 0), Requests)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
