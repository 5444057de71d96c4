"""What only the controller knows, asked through a real API server: a real controller, reviewed tokens, a gateway."""

import hashlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from kit.cluster import FLEET_NAMESPACE, ControlFront, Shell, binding, expose, role, serving_front
from kit.fleet import EXAMPLE, is_leading, wait_until
from kit.ports import free_port
from testbed.kube.controlplane import ControlPlane, local_address

pytestmark = [pytest.mark.integration]

KEY = "sk-covey-test"
READ = {"apiGroups": ["covey.dev"], "resources": ["*"], "verbs": ["get", "list", "watch"]}
ASK = [
    {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": ["covey-cli"], "verbs": ["create"]},
    {
        "apiGroups": [""],
        "resources": ["services/proxy"],
        "resourceNames": ["https:covey-controller:control"],
        "verbs": ["get", "create"],
    },
]


@dataclass(slots=True)
class Fleet:
    """A cluster whose controller runs on the same documents, behind the API server's proxy."""

    admin: Shell
    front: ControlFront
    port: int
    """Of the front."""


@pytest.fixture(scope="module")
def address() -> str:
    found = local_address()
    if found is None:
        pytest.skip("the API server's proxy takes no loopback address, and this machine has no other")
    return found


@pytest.fixture(scope="module")
def fleet(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory, address: str) -> Iterator[Fleet]:
    control_plane.clear()
    control_plane.create_namespace(FLEET_NAMESPACE)
    admin = Shell.of(control_plane, tmp_path_factory.mktemp("shell"))
    accounts = ("covey-cli", "covey-cli-operator")
    admin.apply(
        *(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": FLEET_NAMESPACE}}
            for name in accounts
        )
    )
    admin.done("apply", "-f", str(EXAMPLE))
    with ExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kc")))
        command = [sys.executable, "-m", "covey_controller", "--source", str(EXAMPLE), "--state", str(state)]
        log = stack.enter_context((state / "log").open("wb"))
        process = subprocess.Popen([*command, "--fleet-listen", "127.0.0.1:0"], stderr=log)
        stack.callback(process.wait, 20)
        stack.callback(process.terminate)
        wait_until(lambda: is_leading(state), "the controller leads")
        allowed = {
            "covey-cli": ("/api/v1/why", "/api/v1/plan", "/api/v1/gateways"),
            "covey-cli-operator": ("/api/v1/tokens",),
        }
        front = ControlFront(control_plane, state / "control.sock", allowed)
        port = stack.enter_context(serving_front(front, address, admin.folder))
        expose(admin, "covey-controller", "control", address, port)
        yield Fleet(admin, front, port)
    control_plane.clear()


def test_why_is_the_controllers_word_with_a_token_for_it_alone(fleet: Fleet) -> None:
    words = fleet.admin.done("why", "placement/smollm2")
    assert "placement/smollm2 wishes 1 replica of model 'smollm2'" in words
    assert fleet.front.calls[-1] == ("covey-cli", "/api/v1/why/placements/default/smollm2")
    answer = fleet.admin.covey("why", "placement/nope")
    assert answer.returncode == 3
    assert "there is no Placement 'nope'" in answer.stderr


def test_plan_says_what_documents_would_come_to_and_writes_nothing(fleet: Fleet) -> None:
    document = {
        "apiVersion": "covey.dev/v1alpha1",
        "kind": "Placement",
        "metadata": {"name": "second"},
        "spec": {"modelRef": {"name": "smollm2"}},
    }
    words = fleet.admin.done("plan", "-f", "-", text=json.dumps(document))
    assert "placement/second would be created" in words
    found = json.loads(fleet.admin.done("plan", "-o", "json", "-f", "-", text=json.dumps(document)))
    assert found["documents"] == [{"kind": "Placement", "namespace": "default", "name": "second", "change": "created"}]
    assert fleet.admin.covey("get", "placement", "second").returncode == 3
    assert "second" not in fleet.admin.done("plan")


def test_plan_refuses_what_an_apply_would_refuse(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD)
    plan, apply = (fleet.admin.covey(command, "-f", str(path)) for command in ("plan", "apply"))
    assert plan.returncode == apply.returncode == 1
    assert plan.stderr == apply.stderr
    assert f"{path}:6: `spec.replicas` must be at least 0; got -1" in plan.stderr


BAD = """\
apiVersion: covey.dev/v1alpha1
kind: Placement
metadata: {name: bad}
spec:
  modelRef: {name: smollm2}
  replicas: -1
"""


def test_join_token_is_made_with_the_operators_account(fleet: Fleet) -> None:
    token = fleet.admin.done("token", "create", "--role", "machine").strip()
    assert [part.count(".") for part in token.split(",")] == [2, 2]
    assert fleet.front.calls[-1] == ("covey-cli-operator", "/api/v1/tokens")


def test_who_may_read_asks_why_and_makes_no_token(fleet: Fleet) -> None:
    fleet.admin.apply(
        role("covey-view", [READ]),
        binding("covey-view", "asker", "default"),
        role("covey-ask", ASK, FLEET_NAMESPACE),
        binding("covey-ask", "asker", FLEET_NAMESPACE, is_cluster_role=False),
    )
    asker = fleet.admin.user_of("asker")
    assert "wishes 1 replica" in asker.done("why", "placement/smollm2")
    assert "no instance comes" in asker.done("plan") or "waits:" in asker.done("plan")
    answer = asker.covey("token", "create")
    assert answer.returncode == 1
    assert "must be allowed to create serviceaccounts" in answer.stderr
    assert "covey-cli-operator" in answer.stderr
    nobody = fleet.admin.user_of("nobody").covey("why", "placement/smollm2")
    assert nobody.returncode == 1
    assert "this is asked of the controller, in namespace 'covey-system'" in nobody.stderr


def test_questions_without_a_controller_say_where_it_was_looked_for(fleet: Fleet) -> None:
    answer = fleet.admin.covey("why", "placement/smollm2", "--fleet-namespace", "elsewhere")
    assert answer.returncode == 1
    assert "in namespace 'elsewhere'" in answer.stderr
    answer = fleet.admin.covey("get", "source")
    assert "there is no source in Kubernetes" in answer.stderr


@pytest.mark.parametrize(
    ("has_endpoints", "words"),
    [
        (True, ("installed in namespace 'waiting'", "none of its replicas is ready", "kubectl -n waiting get pods")),
        (False, ("with a replica that is ready", "kubectl -n waiting get services,pods")),
    ],
    ids=["nobody in its endpoints", "no endpoints"],
)
def test_a_controller_of_which_no_replica_is_ready_is_told_as_such(
    fleet: Fleet, has_endpoints: bool, words: tuple[str, ...]
) -> None:
    plane = fleet.admin.plane
    plane.create_namespace("waiting")
    metadata = {"name": "covey-controller", "namespace": "waiting"}
    ports = {"ports": [{"name": "control", "port": 52413}]}
    objects = [{"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": ports}]
    objects += [{"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata}] if has_endpoints else []
    accounts = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata | {"name": "covey-cli"}}]
    fleet.admin.apply(*objects, *accounts)
    try:
        answer = fleet.admin.covey("why", "placement/smollm2", "--fleet-namespace", "waiting")
    finally:
        plane.kubectl("delete", "service,endpoints", "covey-controller", "-n", "waiting", "--ignore-not-found")
    assert answer.returncode == 1
    assert [word for word in words if word not in answer.stderr] == [], answer.stderr


def test_chat_goes_through_the_api_server_with_a_key(fleet: Fleet, address: str, tmp_path: Path) -> None:
    engine = ThreadingHTTPServer(("127.0.0.1", 0), Greeter)
    port = free_port()
    table = {
        "models": [{"name": "m", "endpoints": [{"url": f"http://127.0.0.1:{engine.server_address[1]}"}]}],
        "keys": [{"name": "ann", "hash": "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()}],
    }
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table))
    gateway = [sys.executable, "-m", "covey_gateway", "--table", str(path), "--listen", f"{address}:{port}"]
    with ExitStack() as stack:
        thread = threading.Thread(target=engine.serve_forever, daemon=True)
        thread.start()
        for end in (engine.server_close, thread.join, engine.shutdown):
            stack.callback(end)
        process = subprocess.Popen(gateway, stderr=subprocess.DEVNULL)
        stack.callback(process.wait, 20)
        stack.callback(process.terminate)
        wait_until(lambda: _is_listening(f"http://{address}:{port}/health"), "the gateway listens")
        expose(fleet.admin, "covey-gateway", "http", address, port)
        answer = fleet.admin.covey("chat", "m", "hello")
        assert answer.returncode == 1
        assert "no key was sent" in answer.stderr
        environment = fleet.admin.environment() | {"COVEY_API_KEY": KEY}
        command = ["kubectl", "covey", "chat", "m", "hello"]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert said.returncode == 0, said.stderr
        assert said.stdout.strip() == "hello from here"


class Greeter(BaseHTTPRequestHandler):
    """An engine that says one thing."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for word in ("hello", " from", " here"):
            choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
            chunk = {"id": "c", "created": 1, "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")


def _is_listening(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code < 500
    except httpx.HTTPError:
        return False


def test_url_names_a_controller_by_its_control_api(fleet: Fleet, address: str) -> None:
    token = fleet.admin.plane.service_account_token(FLEET_NAMESPACE, "covey-cli", "--audience=covey-control")
    environment = fleet.admin.environment() | {
        "COVEY_CONTROL_TOKEN": token,
        "SSL_CERT_FILE": str(fleet.admin.folder / "front.crt"),
    }
    answer = subprocess.run(
        ["covey", "why", "placement/smollm2", "--url", f"https://{address}:{fleet.port}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "wishes 1 replica" in answer.stdout
