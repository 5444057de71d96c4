"""`kubectl covey` on a real API server: what each user sees, changes and is refused, and what is left running."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from kit.cluster import Shell, binding, role
from kit.fleet import EXAMPLE, wait_until
from testbed.kube.controlplane import ControlPlane, running_control_plane

pytestmark = [pytest.mark.integration]

PLACEMENT = """\
apiVersion: covey.dev/v1alpha1
kind: Placement
metadata:
  name: qwen
spec:
  modelRef: {name: smollm2}
"""
READ = {"apiGroups": ["covey.dev"], "resources": ["*"], "verbs": ["get", "list", "watch"]}


@pytest.fixture(scope="module")
def admin(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    control_plane.clear()
    control_plane.create_namespace("team")
    return Shell.of(control_plane, tmp_path_factory.mktemp("shell"))


@pytest.fixture
def example(admin: Shell) -> Iterator[Shell]:
    """The administrator, and the smallest example applied."""
    admin.done("apply", "-f", str(EXAMPLE))
    yield admin
    admin.plane.clear()


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_apply_says_created_then_unchanged_then_configured_as_kubectl_does(admin: Shell, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(PLACEMENT)
    assert admin.done("apply", "-f", str(path)) == "placement/qwen created\n"
    assert admin.done("apply", "-f", str(path)) == "placement/qwen unchanged\n"
    path.write_text(PLACEMENT + "  replicas: 3\n")
    assert admin.done("apply", "-f", str(path)) == "placement/qwen configured\n"
    found = json.loads(admin.done("get", "placement", "qwen", "-o", "json"))
    assert found["spec"]["replicas"] == 3
    assert "managedFields" not in found["metadata"]
    assert admin.done("delete", "-f", str(path)) == "placement/qwen deleted\n"


def test_get_prints_the_columns_that_kubectl_prints(example: Shell) -> None:
    ours = rows(example.done("get", "placements"))
    theirs = rows(example.plane.kubectl("get", "placements"))
    assert ours[0] == theirs[0]
    assert ours[1][:2] == theirs[1][:2] == ["smollm2", "smollm2"]
    assert rows(example.done("get", "placements", "-A"))[1][0] == "default"
    assert example.done("get", "models,placements", "-o", "name") == "model/smollm2\nplacement/smollm2\n"


def test_get_takes_the_namespace_from_the_context(example: Shell, tmp_path: Path) -> None:
    config = json.loads(example.plane.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = "team"
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    there = example.as_user(path)
    assert there.covey("get", "placement", "smollm2").returncode == 3
    assert "in namespace 'team'" in there.covey("get", "placement", "smollm2").stderr
    assert there.done("apply", "-f", "-", text=PLACEMENT) == "placement/qwen created\n"
    assert there.done("get", "placement", "qwen", "-n", "team", "-o", "name") == "placement/qwen\n"


def test_kubectl_itself_gets_scales_waits_and_explains(example: Shell) -> None:
    plane = example.plane
    assert "placement.covey.dev/smollm2" in plane.kubectl("get", "covey", "-A")
    assert "FIELDS" in plane.kubectl("explain", "placement.spec.context")
    plane.kubectl("scale", "placement/smollm2", "--replicas=3")
    assert json.loads(example.done("get", "placement", "smollm2", "-o", "json"))["spec"]["replicas"] == 3
    status = {"status": {"observedGeneration": 2, "conditions": [CONDITION]}}
    plane.kubectl("patch", "placement/smollm2", "--subresource=status", "--type=merge", "-p", json.dumps(status))
    plane.kubectl("wait", "--for=condition=Ready", "placement/smollm2", "--timeout=20s")
    assert example.done("wait", "placement/smollm2", "--for=condition=Ready") == "placement/smollm2 condition met\n"


CONDITION = {
    "type": "Ready",
    "status": "True",
    "reason": "Serving",
    "message": "3 of 3 replicas are ready",
    "observedGeneration": 2,
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def test_wait_ends_by_itself_with_code_4(example: Shell) -> None:
    answer = example.covey("wait", "placement/smollm2", "--for=condition=Ready", "--timeout", "1")
    assert (answer.returncode, answer.stdout) == (4, "")
    assert "timed out waiting for condition=Ready on placement/smollm2" in answer.stderr


def test_describe_shows_the_events_of_the_object_and_no_others(example: Shell) -> None:
    for name, message in (("smollm2", "placed on node 'á'"), ("other", "nobody's")):
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name}.1", "namespace": "default"},
            "involvedObject": {
                "apiVersion": "covey.dev/v1alpha1",
                "kind": "Placement",
                "namespace": "default",
                "name": name,
            },
            "reason": "Created",
            "message": message,
            "type": "Warning",
            "lastTimestamp": "2026-01-01T00:00:00Z",
        }
        example.plane.kubectl("create", "-f", "-", text=json.dumps(event))
    words = example.done("describe", "placement/smollm2")
    assert "placed on node 'á'" in words
    assert "Warning" in words
    assert "nobody's" not in words
    example.plane.kubectl("delete", "events", "--all")


def test_delete_leaves_everything_when_one_is_not_there(example: Shell) -> None:
    answer = example.covey("delete", "placement", "smollm2", "nope")
    assert answer.returncode == 3
    assert "nothing was deleted" in answer.stderr
    assert example.done("delete", "placement/smollm2") == "placement/smollm2 deleted\n"
    example.done("wait", "placement/smollm2", "--for=delete", "--timeout", "30")


def test_diff_shows_fields_and_ends_with_1_as_kubectl_does(example: Shell, tmp_path: Path) -> None:
    path = tmp_path / "placement.yaml"
    document = yaml.safe_load(PLACEMENT) | {"metadata": {"name": "smollm2", "labels": {"team": "a"}}}
    document["spec"] |= {"replicas": 2, "context": {"tokens": 4096}}
    path.write_text(json.dumps(document))
    answer = example.covey("diff", "-f", str(path))
    assert answer.returncode == 1, answer.stderr
    assert "~ spec.replicas: 1 -> 2" in answer.stdout
    assert "+ spec.context.tokens: 4096" in answer.stdout
    assert '+ metadata.labels.team: "a"' in answer.stdout
    assert "concurrency" not in answer.stdout
    path.write_text(json.dumps(document | {"metadata": {"name": "new"}}))
    assert example.covey("diff", "-f", str(path)).stdout.splitlines() == [
        "placement/new would be created:",
        '+ spec.modelRef.name: "smollm2"',
        "+ spec.replicas: 2",
        "+ spec.context.tokens: 4096",
    ]
    same = example.covey("diff", "-f", str(EXAMPLE))
    assert (same.returncode, same.stdout) == (0, ""), same.stderr
    path.write_text("spec: [")
    assert example.covey("diff", "-f", str(path)).returncode == 2


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        ("  replicas: two\n", 7, "`spec.replicas`"),
        ("  replicas: -1\n", 7, "`spec.replicas` must be at least 0; got -1"),
        ("  replcas: 2\n", 7, "did you mean 'replicas'"),
        ("  context:\n    tokens: 300\n    minTokens: 500\n", 7, "`spec.context.minTokens` must be at most"),
    ],
)
def test_refused_documents_are_told_by_file_line_and_field(
    admin: Shell, tmp_path: Path, change: str, line: int, words: str
) -> None:
    good, bad = tmp_path / "0-good.yaml", tmp_path / "1-bad.yaml"
    good.write_text(PLACEMENT.replace("qwen", "good"))
    bad.write_text(PLACEMENT + change)
    answer = admin.covey("apply", "-f", str(tmp_path))
    assert answer.returncode == 1
    assert f"{bad}:{line}: " in answer.stderr
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr
    assert admin.covey("get", "placement", "good").returncode == 3, "nothing of a refused set may be written"


def test_conflict_names_the_field_and_who_manages_it(example: Shell) -> None:
    owned = PLACEMENT.replace("qwen", "smollm2") + "  replicas: 2\n"
    example.plane.kubectl(
        "apply", "--server-side", "--force-conflicts", "--field-manager=argocd", "-f", "-", text=owned
    )
    answer = example.covey("apply", "-f", "-", text=owned.replace("replicas: 2", "replicas: 5"))
    assert answer.returncode == 1
    assert "standard input:7: `spec.replicas` of placement 'smollm2' is managed by 'argocd'" in answer.stderr


def test_million_characters_are_refused_in_one_line(admin: Shell) -> None:
    document = yaml.safe_load(PLACEMENT)
    document["spec"]["nodes"] = {"selector": {"zone": "b" * 1_000_000}}
    answer = admin.covey("apply", "-f", "-", text=json.dumps(document))
    assert answer.returncode == 1
    assert len(answer.stderr.splitlines()) == 1
    assert len(answer.stderr) < 400
    assert "`spec.nodes.selector.zone` must be at most 63 characters long; got 1000000" in answer.stderr


def test_what_is_no_name_is_refused_in_one_line_and_what_is_no_word_is_kept(admin: Shell) -> None:
    for name in ("schön", "模型", "a/../b", ".."):
        answer = admin.covey("get", "placement", name)
        assert answer.returncode in (2, 3), answer.stderr
        answer = admin.covey("describe", "placement", name)
        assert answer.returncode in (1, 2, 3), answer.stderr
        assert len(answer.stderr.splitlines()) == 1
        assert "Traceback" not in answer.stderr
    noted = PLACEMENT.replace("  name: qwen\n", "  name: noted\n  annotations: {covey.dev/note: 雪だるま ☃}\n")
    assert admin.done("apply", "-f", "-", text=noted) == "placement/noted created\n"
    assert "雪だるま ☃" in admin.done("describe", "placement/noted")
    answer = admin.covey("apply", "-f", "-", text=PLACEMENT.replace("qwen", "schön"))
    assert answer.returncode == 1
    assert "`metadata.name`" in answer.stderr
    admin.done("delete", "placement/noted")


def test_who_may_only_read_reads_and_is_told_what_is_missing_for_more(example: Shell) -> None:
    example.apply(role("covey-view", [READ]), binding("covey-view", "viewer", "default"))
    viewer = example.user_of("viewer")
    assert "smollm2" in viewer.done("get", "placements")
    words = viewer.covey("describe", "placement/smollm2")
    assert words.returncode == 0
    assert "without events: user 'system:serviceaccount:default:viewer' must be allowed to list events" in words.stderr
    for arguments in (("apply", "-f", str(EXAMPLE)), ("diff", "-f", str(EXAMPLE)), ("plan", "-f", str(EXAMPLE))):
        answer = viewer.covey(*arguments)
        assert answer.returncode in (1, 2)
        assert "must be allowed to patch" in answer.stderr
        assert "--clusterrole=covey-operate" in answer.stderr
    answer = viewer.covey("get", "placements", "-A")
    assert "must be allowed to list placements.covey.dev in the whole cluster" in answer.stderr
    assert "kubectl create clusterrolebinding" in answer.stderr
    assert viewer.covey("delete", "placement/smollm2").stderr.count("must be allowed to delete") == 1
    assert "must be allowed to create accesskeys" in viewer.covey("key", "create", "laptop").stderr


def test_key_is_shown_once_and_its_hash_alone_is_stored(admin: Shell) -> None:
    text = admin.done("key", "create", "laptop").strip()
    stored = admin.done("get", "accesskey", "laptop", "-o", "yaml")
    assert text.startswith("sk-covey-")
    assert text not in stored
    again = admin.covey("key", "create", "laptop")
    assert again.returncode == 1
    assert "access key 'laptop' exists in namespace 'default'" in again.stderr
    assert admin.done("key", "delete", "laptop") == "accesskey/laptop deleted\n"


def test_client_certificate_logs_in(example: Shell, tmp_path: Path) -> None:
    certificate, key = example.plane.issue_client_certificate("ann", "system:masters")
    config = json.loads(example.plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"client-certificate": str(certificate), "client-key": str(key)}
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    assert "smollm2" in example.as_user(path).done("get", "placements")


def exec_config(shell: Shell, folder: Path, script: str) -> Path:
    plugin = folder / "login"
    plugin.write_text(f"#!/bin/sh\n{script}\n")
    plugin.chmod(0o755)
    config = json.loads(shell.plane.kubeconfig.read_text())
    plugin_config = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(plugin),
        "interactiveMode": "IfAvailable",
    }
    config["users"][0]["user"] = {"exec": plugin_config}
    path = folder / "config"
    path.write_text(json.dumps(config))
    return path


def test_exec_plugin_logs_in_and_what_it_says_is_shown(example: Shell, tmp_path: Path) -> None:
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": example.plane.token},
    }
    script = f"echo 'open https://login.example and type XYZ' >&2\necho '{json.dumps(credential)}'"
    answer = example.as_user(exec_config(example, tmp_path, script)).covey("get", "placements")
    assert answer.returncode == 0, answer.stderr
    assert "smollm2" in answer.stdout
    assert "open https://login.example and type XYZ" in answer.stderr


def test_login_that_fails_is_told_with_its_own_words(admin: Shell, tmp_path: Path) -> None:
    answer = admin.as_user(exec_config(admin, tmp_path, "exit 7")).covey("get", "placements")
    assert answer.returncode == 1
    assert "could not log in to the cluster of context 'test'" in answer.stderr
    assert "exit code 7" in answer.stderr
    wrong = admin.plane.write_kubeconfig(tmp_path / "wrong", "no-such-token")
    answer = admin.as_user(wrong).covey("get", "placements")
    assert answer.returncode == 1
    assert "does not accept the credentials (Unauthorized)" in answer.stderr


def test_what_is_missing_is_named(admin: Shell, tmp_path: Path) -> None:
    answer = admin.covey("get", "placements", "--context", "nope")
    assert answer.returncode == 2
    assert "nope" in answer.stderr
    nobody = json.loads(admin.plane.kubeconfig.read_text())
    nobody["clusters"][0]["cluster"] = {"server": "https://127.0.0.1:1"}
    path = tmp_path / "config"
    path.write_text(json.dumps(nobody))
    answer = admin.as_user(path).covey("get", "placements")
    assert answer.returncode == 1
    assert "the cluster of context 'test' (https://127.0.0.1:1) can't be reached" in answer.stderr
    # Another module of tests may have left one in the shared cluster.
    service = ("service", "covey-controller", "-n", "covey-system", "--ignore-not-found")
    admin.plane.kubectl("delete", *service)
    answer = admin.covey("why", "placement/qwen")
    assert answer.returncode == 1
    assert "app.kubernetes.io/name=covey-controller" in answer.stderr
    environment = admin.environment() | {"PATH": str(tmp_path)}
    command = [sys.executable, "-m", "covey", "get", "placements", "--kubeconfig", str(admin.plane.kubeconfig)]
    bare = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert bare.returncode == 1
    assert "`kubectl` must be on PATH" in bare.stderr


def test_which_fleet_is_meant_is_said_where_it_may_surprise(example: Shell, tmp_path: Path) -> None:
    answer = example.run("covey", "get", "placements")
    assert "smollm2" in answer.stdout
    assert "no Covey runs on this machine: using context 'test'" in answer.stderr
    assert example.covey("get", "placements").stderr == ""
    environment = example.environment() | {"COVEY_STATE": str(tmp_path)}
    command = ["kubectl", "covey", "get", "placements"]
    plugin = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "smollm2" in plugin.stdout
    assert "and not COVEY_STATE" in plugin.stderr
    answer = example.covey("get", "placements", "--state", str(tmp_path))
    assert "no Covey is running with the state folder" in answer.stderr
    answer = example.covey("get", "placements", "--state", str(tmp_path), "--context", "test")
    assert answer.returncode == 2


def watching(shell: Shell, *kinds: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "covey", "get", ",".join(kinds), "-w", "--kubeconfig", str(shell.kubeconfig)],
        env=shell.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_watch_prints_what_changes_and_survives_a_server_that_goes_away(tmp_path: Path) -> None:
    with running_control_plane() as plane:
        admin = Shell.of(plane, tmp_path)
        admin.done("apply", "-f", str(EXAMPLE))
        with watching(admin, "placements") as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("NAME")
            assert process.stdout.readline().startswith("smollm2")
            with plane.without_api_server():
                pass
            admin.done("apply", "-f", "-", text=PLACEMENT)
            assert process.stdout.readline().startswith("qwen")
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == -signal.SIGINT  # a shell says 130


def test_watch_of_several_kinds_begins_with_all_that_there_is(example: Shell) -> None:
    with watching(example, "models", "placements") as process:
        assert process.stdout is not None
        seen = {process.stdout.readline().split()[0] for _ in range(4)}
        assert seen == {"NAME", "model/smollm2", "placement/smollm2"}
        process.send_signal(signal.SIGINT)
        process.wait(20)


def proxies(shell: Shell) -> list[psutil.Process]:
    """`kubectl proxy` processes of this shell's user."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if "proxy" in process.cmdline() and process.environ().get("HOME") == str(shell.folder):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_kubectl_outlives_a_command_however_it_ends(example: Shell, number: signal.Signals) -> None:
    with watching(example, "placements") as process:
        assert process.stdout is not None
        process.stdout.readline()
        running = proxies(example)
        assert running
        sockets = [part for one in running for part in one.cmdline() if part.startswith("--unix-socket=")]
        process.send_signal(number)
        process.wait(20)
        wait_until(lambda: not proxies(example), "kubectl ended", 20)
    folder = Path(sockets[0].removeprefix("--unix-socket=")).parent
    wait_until(lambda: not folder.exists(), "its folder is removed", 20)


def test_socket_of_the_proxy_is_for_its_user_alone(example: Shell) -> None:
    with watching(example, "placements") as process:
        assert process.stdout is not None
        process.stdout.readline()
        command = next(one.cmdline() for one in proxies(example) if "--keepalive=10s" in one.cmdline())
        path = next(Path(part.removeprefix("--unix-socket=")) for part in command if part.startswith("--unix-socket="))
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert path.parent.stat().st_uid == os.getuid()
        process.send_signal(signal.SIGINT)
        process.wait(20)
        time.sleep(0.1)
