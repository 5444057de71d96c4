"""The command as a process: exit codes and words, with nothing running."""

import fcntl
import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from version import observe_version


def covey(*arguments: str, state: Path, key: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COVEY_STATE": str(state), "COVEY_API_KEY": key}
    command = [sys.executable, "-m", "covey", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("get", "models"), 1, "no Covey is running with the state folder"),
        (("get", "modles"), 2, "kind must be one of"),
        (("describe", "placement"), 2, "say which placement"),
        (("join", "http://127.0.0.1:1"), 2, "must be 'https://HOST:PORT'; got 'http://127.0.0.1:1'"),
        (("join", "127.0.0.1:1"), 2, "must be 'https://HOST:PORT'"),
        (("why", "smollm2"), 2, "KIND/NAME, such as placement/smollm2"),
        (("wait", "model/x", "--for", "sunshine"), 2, "--for must be"),
        (("delete",), 2, "give either objects or -f FILE"),
        (("apply", "-f", "/nowhere.yaml"), 2, "cannot read '/nowhere.yaml'"),
        (("up", "/nowhere"), 2, "must be a folder or a file"),
        (("up", "git+https://ada:pass@forge.example/f"), 2, "source must not hold a user or password"),
        (("up", "git+http://forge.example/f"), 2, "got the scheme 'git+http'"),
        (("up", ".", "--push"), 2, "--push must be given with a git source only"),
        (("up", ".", "--webhook-listen", "127.0.0.1:0"), 2, "must be given together"),
        (("up", ".", "--age-key-file", "/nowhere"), 2, "--age-key-file:"),
        (("export",), 1, "no Covey is running with the state folder"),
        (("frobnicate",), 2, "No such command"),
        (("key", "create", "Läp top"), 2, "the name of a key must be lowercase letters"),
        (("get", "models", "-w", "-o", "json"), 2, "--watch prints tables"),
    ],
)
def test_command_fails_with_a_code_and_words(tmp_path: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    result = covey(*arguments, state=tmp_path)
    assert result.returncode == code
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("part", ["agent", "controller", "gateway"])
def test_help_of_a_part_names_the_command_that_was_typed(tmp_path: Path, part: str) -> None:
    result = covey(part, "--help", state=tmp_path)
    assert result.returncode == 0
    assert result.stdout.startswith(f"usage: covey {part} ")


def test_chat_says_in_words_that_a_clusters_gateway_is_not_there(tmp_path: Path) -> None:
    refusal = b'{"kind":"Status","status":"Failure","message":"no endpoints available for service","code":503}'

    class Cluster(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(503)
            self.send_header("content-length", str(len(refusal)))
            self.end_headers()
            self.wfile.write(refusal)

    with HTTPServer(("127.0.0.1", 0), Cluster) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        result = covey("chat", "m", "hi", "--url", f"http://127.0.0.1:{server.server_port}", state=tmp_path)
        server.shutdown()
    assert result.returncode == 1
    assert "no gateway answers through the cluster: no endpoints available for service" in result.stderr
    assert "{" not in result.stderr


def test_chat_says_where_its_key_comes_from_and_ends_the_line_of_an_answer_that_breaks_off(tmp_path: Path) -> None:
    refusal = b'{"error":{"code":"invalid_api_key","message":"no key was sent"}}'
    pieces = b'data: {"choices":[{"delta":{"content":"Hel"}}]}\n\ndata: {"error":{"message":"it broke"}}\n\n'

    class Gateway(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            answer = pieces if self.headers["x-api-key"] else refusal
            self.send_response(200 if self.headers["x-api-key"] else 401)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        arguments = ("chat", "m", "hi", "--url", f"http://127.0.0.1:{server.server_port}")
        refused = covey(*arguments, state=tmp_path)
        broken = covey(*arguments, state=tmp_path, key="sk-covey-x")
        server.shutdown()
    assert refused.stdout == ""
    assert "COVEY_API_KEY; `covey key create NAME` makes one" in refused.stderr
    assert (broken.stdout, broken.returncode) == ("Hel\n", 1)
    assert "it broke" in broken.stderr


class SteeringSource(BaseHTTPRequestHandler):
    """A control API whose repository and git server chose names and words that steer a terminal."""

    def do_GET(self) -> None:
        error = {"file": "a\x1b]0;owned\x07.yaml", "line": 1, "field": "", "found": "", "message": "\x1b[2J"}
        state = {"source": "git+file:///x", "applied": "1", "wanted": "2", "errors": [error], "notices": ["\x1b[31m"]}
        body = json.dumps(state).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing; a Unix socket's client has no address to name."""


def test_nothing_of_a_source_steers_the_terminal(tmp_path: Path) -> None:
    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "control.sock"), SteeringSource) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        result = covey("get", "source", state=tmp_path)
        server.shutdown()
    assert "a\\x1b]0;owned\\x07.yaml:1: \\x1b[2J" in result.stdout
    assert "Note:     \\x1b[31m" in result.stdout
    assert "\x1b" not in result.stdout


def test_up_starts_nothing_when_the_port_is_taken(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = covey("up", str(tmp_path / "source"), "--wait", "--port", port, state=tmp_path / "state")
    assert result.returncode == 1
    assert f"port {port} on 127.0.0.1 is taken by another process" in result.stderr
    assert "--port" in result.stderr
    assert not (tmp_path / "state" / "controller").exists()
    assert "Covey serves" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("up", "."), 2),
        (("join", "https://127.0.0.1:1"), 2),
        (("controller", "--source", "."), 1),
        (("agent", "--controller", "https://127.0.0.1:1"), 1),
        (("gateway", "--controller", "https://127.0.0.1:1", "--listen", "127.0.0.1:0"), 1),
    ],
)
def test_state_folder_that_is_a_symlink_is_refused_in_words(
    tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    result = covey(*arguments, "--state", str(link), state=tmp_path / "unused")
    assert (result.returncode, "Traceback" in result.stderr) == (code, False), result.stderr
    assert f"'{link}' must be a folder; found a symlink. Name the folder itself." in result.stderr
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_second_interrupt_ends_a_start_at_once(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    command = [sys.executable, "-m", "covey", "up", str(tmp_path / "source"), "--port", port]
    with subprocess.Popen(
        [*command, "--state", str(tmp_path / "state")], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Starting Covey")
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        words = process.communicate(timeout=30)[1]
    assert "nothing that Covey started is left running" in words


def test_command_interrupted_while_it_imports_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "covey", "--version"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (130, "")


@pytest.mark.parametrize("part", ["", "controller", "agent", "gateway"])
def test_every_part_prints_the_version_that_all_have(part: str, tmp_path: Path) -> None:
    said = covey(*part.split(), "--version", state=tmp_path).stdout
    assert said == f"{' '.join(['covey', *part.split()])}, version {observe_version()}\n"


def test_command_prints_its_help(tmp_path: Path) -> None:
    words = covey("--help", state=tmp_path).stdout
    assert "up" in words
    assert "..." not in words.partition("Commands:")[2], "a summary is cut off"


def test_command_waits_out_a_controller_that_is_started_anew_and_never_takes_a_cluster_for_it(tmp_path: Path) -> None:
    """Killed a moment ago; a kubeconfig is at hand, and what was asked here must not be done there."""
    state = tmp_path / "covey"
    state.mkdir()
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "config")}
    environment.pop("COVEY_STATE", None)
    cluster = {"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}
    context: dict[str, object] = {"name": "a", "context": {"cluster": "a", "user": "a"}}
    named: dict[str, object] = {
        "clusters": [cluster],
        "contexts": [context],
        "users": [{"name": "a", "user": {}}],
        "current-context": "a",
    }
    (tmp_path / "config").write_text(json.dumps({"apiVersion": "v1", "kind": "Config"} | named))
    command = [sys.executable, "-m", "covey", "get", "placements"]

    def ask() -> str:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False).stderr

    (state / "up.json").write_text(json.dumps({"pid": "1", "source": "/fleet"}))
    with (state / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = ask()
        assert "'covey up' is starting it. Try again in some seconds" in words
        assert "using context" not in words
        (state / "up.json").write_text(json.dumps({"pid": "1", "controller": "https://elsewhere"}))
        assert "no Covey runs on this machine: using context 'a'" in ask()
    (state / "up.json").write_text(json.dumps({"pid": "1", "source": "/fleet"}))
    assert "no Covey runs on this machine: using context 'a'" in ask()
