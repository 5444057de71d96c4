"""`covey join`: a machine that serves for a controller elsewhere, from a token to an answer; and what is no token."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from covey.control import Control
from kit.cache import shared_cache
from kit.fleet import EXAMPLE, is_leading, wait_until
from kit.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@dataclass(slots=True)
class Elsewhere:
    """A controller process."""

    state: Path

    @property
    def url(self) -> str:
        return str(json.loads((self.state / "controller" / "fleet.json").read_text())["url"])

    def covey(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "covey", *arguments, "--state", str(self.state)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@dataclass(slots=True)
class Machine:
    """Where `covey join` runs."""

    folder: Path
    url: str
    port: int = field(default_factory=free_port)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def command(self, *extra: str) -> list[str]:
        listen = ["--listen", f"127.0.0.1:{self.port}", "--name", "joined"]
        return [sys.executable, "-m", "covey", "join", self.url, "--state", str(self.state), *listen, *extra]

    def environment(self, token: str | None = None) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key not in ("COVEY_STATE", "COVEY_TOKEN")}
        return kept | {"COVEY_CACHE": str(shared_cache())} | ({"COVEY_TOKEN": token} if token else {})

    def refused(self, *extra: str, token: str | None = None) -> tuple[int, str]:
        """Exit code and words of a join that doesn't come about."""
        answer = subprocess.run(
            self.command(*extra),
            env=self.environment(token),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "Traceback" not in answer.stderr
        return answer.returncode, answer.stderr

    @contextmanager
    def running(self, *extra: str, token: str | None = None) -> "Generator[subprocess.Popen[str]]":
        with (self.folder / "err").open("w") as errors:
            process = subprocess.Popen(
                self.command(*extra), env=self.environment(token), stdin=subprocess.DEVNULL, stderr=errors, text=True
            )
        try:
            wait_until(lambda: "Serving for" in self.words() or process.poll() is not None, "it serves", 120)
            assert process.poll() is None, self.words()
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)

    def words(self) -> str:
        return (self.folder / "err").read_text()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    with tempfile.TemporaryDirectory(prefix="kc") as folder:
        state = Path(folder) / "s"
        command = [sys.executable, "-m", "covey_controller", "--source", str(EXAMPLE), "--state", str(state)]
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen([*command, "--fleet-listen", "127.0.0.1:0"], stderr=log)
        try:
            wait_until(lambda: is_leading(state), "the controller leads")
            yield Elsewhere(state)
        finally:
            process.terminate()
            process.wait(20)


@pytest.fixture
def machine(elsewhere: Elsewhere) -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="kj") as folder:
        yield Machine(Path(folder), elsewhere.url)


def words_of_parts(pid: int) -> set[str]:
    found: set[str] = set()
    for child in psutil.Process(pid).children():
        with suppress(psutil.Error):  # it ends
            found.update(child.cmdline())
    return found


def is_serving(elsewhere: Elsewhere) -> bool:
    with Control(elsewhere.state) as control:
        conditions = control.get_object("placements", "default", "smollm2").get("status", {}).get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def test_machine_joins_by_a_token_serves_and_needs_none_the_second_time(elsewhere: Elsewhere, machine: Machine) -> None:
    token = elsewhere.covey("token", "create", "--role", "machine")
    with machine.running(token=token) as process:
        wait_until(lambda: is_serving(elsewhere), f"the model is served: {machine.words()}", 300)
        said = subprocess.run(
            [sys.executable, "-m", "covey", "chat", "smollm2", "Say hello.", "--max-tokens", "8"],
            env=machine.environment() | {"COVEY_STATE": str(elsewhere.state)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert said.returncode == 0, said.stderr
        assert said.stdout.strip()
        secrets = [part.split(".")[1] for part in token.split(",")]
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # a program that was only asked something
                words, environment = child.cmdline(), child.environ()
                shown = " ".join([*words, *environment.values()])
                assert not any(secret in shown for secret in secrets), f"{words} shows the token"
    assert "nothing that Covey started is left running" in machine.words()
    with machine.running():
        wait_until(lambda: is_serving(elsewhere), "the model is served again", 300)


def test_agent_alone_joins_without_a_gateway(elsewhere: Elsewhere, machine: Machine) -> None:
    path = machine.folder / "token"
    path.write_text(elsewhere.covey("token", "create") + "\n")
    with machine.running("--no-gateway", "--token-file", str(path)) as process:
        # It says that it serves before its part is there.
        wait_until(lambda: "covey_agent" in words_of_parts(process.pid), "the agent runs")
        assert machine.refused("--no-gateway")[0] == 1
        assert "belongs to a running Covey" in machine.refused("--no-gateway")[1]
        assert "covey_gateway" not in words_of_parts(process.pid)  # by now one would be there
    path.unlink()  # as one does with a secret that was used; a service's words stay as they were
    with machine.running("--no-gateway", "--token-file", str(path)):
        pass


def test_tokens_that_let_nobody_in_are_told_apart(elsewhere: Elsewhere, machine: Machine) -> None:
    code, words = machine.refused()
    assert (code, "a token is needed to join for the first time" in words) == (2, True)
    one = elsewhere.covey("token", "create")
    code, words = machine.refused(token=one)
    assert code == 2
    assert "covey token create --role machine" in words
    gateway = elsewhere.covey("token", "create", "--role", "gateway")
    code, words = machine.refused("--no-gateway", token=gateway)
    assert code == 1
    assert "agent 'joined' could not join the fleet" in words
    assert "is for role 'gateway'" in words
    with Control(elsewhere.state) as control:
        short = control.create_token("agent", 1, 1)
    time.sleep(1.5)
    code, words = machine.refused("--no-gateway", token=short)
    assert (code, "has expired" in words) == (1, True)
    code, words = machine.refused("--no-gateway", token="not a token")
    assert code == 1
    assert "must be 'covey-ID.SECRET.AUTHORITY-DIGEST'" in words
    assert "not a token" not in words
    identity, secret, digest = one.split(".")
    code, words = machine.refused("--no-gateway", token=f"{identity}.{secret[::-1]}.{digest}")
    assert (code, "is not known here" in words) == (1, True)
    code, words = machine.refused("--no-gateway", token=f"{identity}.{secret}.{'0' * 64}")
    assert (code, "The token was not sent" in words) == (1, True)


def test_used_token_says_so_and_a_controller_that_is_away_is_no_refusal(elsewhere: Elsewhere, machine: Machine) -> None:
    token = elsewhere.covey("token", "create")
    with machine.running("--no-gateway", token=token):
        pass
    again = Machine(machine.folder / "other", machine.url)
    again.folder.mkdir()
    code, words = again.refused("--no-gateway", token=token)
    assert (code, "is used up" in words) == (1, True)
    away = Machine(again.folder, f"https://127.0.0.1:{free_port()}")
    code, words = away.refused("--no-gateway", token=elsewhere.covey("token", "create"))
    assert code == 4
    assert "could not join the fleet" in words
