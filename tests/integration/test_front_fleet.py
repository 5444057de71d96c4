"""Processes as on several machines: a controller, an agent at 127.0.0.2 with the real engine, and a gateway that takes
nothing to be on its own machine.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from covey.control import Control
from covey.errors import CommandError
from covey_agent.keeper.front import PORTS
from kit.cache import shared_cache
from kit.fleet import EXAMPLE, START_SECONDS, free_port, wait_until
from kit.processes import processes_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ADDRESS = "127.0.0.2"


@dataclass
class Apart:
    """Three parts, each with a state folder of its own."""

    base: Path
    port: int
    parts: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, "subprocess.Popen[bytes]"])

    @property
    def controller_url(self) -> str:
        return json.loads((self.base / "c" / "controller" / "fleet.json").read_text())["url"]

    @property
    def gateway_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self, part: str) -> str:
        return (self.base / f"{part}.log").read_text()

    def start(self, part: str, *flags: str) -> None:
        command = [sys.executable, "-m", f"covey_{part}", "--state", str(self.base / part[0]), *flags]
        with (self.base / f"{part}.log").open("ab") as log:
            self.parts[part] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start_controller(self) -> None:
        self.start("controller", "--source", str(self.base / "fleet"), "--fleet-listen", "127.0.0.1:0")

        def is_ready() -> bool:
            with suppress(CommandError), Control(self.base / "c") as control:
                control.list_objects("cnodes")
                return True
            return False

        wait_until(lambda: (self.base / "c" / "controller" / "fleet.json").exists() and is_ready(), "it leads")

    def start_agent(self, address: str) -> None:
        flags = ["--controller", self.controller_url, "--token-file", str(self.base / "agent.token"), "--name", "a"]
        self.start("agent", *flags, "--cache", str(shared_cache()), "--address", address)

    def start_gateway(self) -> None:
        flags = ["--controller", self.controller_url, "--token-file", str(self.base / "gateway.token"), "--remote"]
        self.start("gateway", *flags, "--listen", f"127.0.0.1:{self.port}")

    def end(self, part: str, number: signal.Signals = signal.SIGTERM) -> None:
        self.parts[part].send_signal(number)
        self.parts[part].wait(30)

    def objects(self, plural: str) -> list[dict[str, Any]]:
        with Control(self.base / "c") as control:
            return control.list_objects(plural)

    def path_condition(self) -> dict[str, Any]:
        """`DataPathReachable` of the node; empty while there is none."""
        conditions = self.objects("cnodes")[0]["status"]["conditions"]
        found: list[dict[str, Any]] = [each for each in conditions if each["type"] == "DataPathReachable"]
        return found[0] if found else {}

    def engine(self) -> psutil.Process:
        (found,) = (p for p in processes_of(self.base / "a") if "llama-server" in p.name())
        return found


@pytest.fixture  # not shared: the second test starts parts of its own, which must end with it
def fleet() -> Generator[Apart]:
    base = Path(tempfile.mkdtemp(prefix="cv"))  # short: Unix sockets live below it
    made = Apart(base, free_port())
    try:
        shutil.copytree(EXAMPLE, base / "fleet")
        made.start_controller()
        with Control(base / "c") as control:
            for role in ("agent", "gateway"):
                (base / f"{role}.token").write_text(control.create_token(role, 1, 600))
        made.start_agent(ADDRESS)
        made.start_gateway()
        wait_until(lambda: is_ready(made), f"an Instance is ready\n{made.log('agent')}", START_SECONDS)
        yield made
    finally:
        for part in made.parts.values():
            part.kill()
            part.wait()
        for process in processes_of(base):
            process.kill()
        shutil.rmtree(base, ignore_errors=True)


def is_ready(fleet: Apart) -> bool:
    return any(each.get("status", {}).get("phase") == "Ready" for each in fleet.objects("instances"))


def chat(fleet: Apart, look: Callable[[], None] = lambda: None) -> list[str]:
    """The tokens of one streamed answer; `look` is called with the first."""
    body = {
        "model": "smollm2",
        "stream": True,
        "max_tokens": 64,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    tokens: list[str] = []
    with httpx.stream("POST", f"{fleet.gateway_url}/v1/chat/completions", json=body, timeout=120) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                if not tokens:
                    look()
                delta = json.loads(line[6:])["choices"]
                tokens += [choice["delta"].get("content") or "" for choice in delta]
    return [token for token in tokens if token]


def test_a_stream_of_tokens_comes_by_the_front(fleet: Apart) -> None:
    gateway, remote = psutil.Process(fleet.parts["gateway"].pid), set[tuple[str, int]]()

    def look() -> None:
        remote.update((each.raddr.ip, each.raddr.port) for each in gateway.net_connections("tcp") if each.raddr)

    assert len(chat(fleet, look)) > 8
    (status,) = (each["status"] for each in fleet.objects("instances"))
    found = re.fullmatch(rf"tls://{ADDRESS}:(\d+)", status["front"])
    assert found is not None, status
    assert int(found[1]) in PORTS
    assert status["endpoint"].startswith("http://127.0.0.1:")
    # The engine's own port is never dialled by the gateway.
    assert (ADDRESS, int(found[1])) in remote
    assert ("127.0.0.1", int(status["endpoint"].rpartition(":")[2])) not in remote
    wait_until(lambda: fleet.path_condition().get("status") == "True", "the node's fronts are reached", 30)


def test_a_closed_way_is_a_condition_of_the_node_and_is_taken_back_without_a_restart(fleet: Apart) -> None:
    wait_until(lambda: fleet.path_condition().get("status") == "True", "the node's fronts are reached", 30)
    engine = fleet.engine()
    fleet.end("agent")
    fleet.start_agent("127.0.0.9")  # nobody listens there, as behind a firewall
    wait_until(lambda: fleet.path_condition().get("status") == "False", "the gateway misses the way", 60)
    found = fleet.path_condition()
    assert found["reason"] == "DataPathClosed"
    assert re.search(r"gateway '\S+' can't reach 'smollm2-0' at address 127\.0\.0\.9, port 52\d{3}", found["message"])
    assert "it took no connection: Connection refused" in found["message"]
    assert "open TCP ports 52500-52599 of node 'a'" in found["message"]
    fleet.end("agent")
    fleet.start_agent(ADDRESS)
    wait_until(lambda: fleet.path_condition().get("status") == "True", "the gateway has its way again", 60)
    assert fleet.engine() == engine
    assert len(chat(fleet)) > 8
    with Control(fleet.base / "c") as control:
        reasons = [each["reason"] for each in control.list_events("cnodes", "-", "a")]
    assert {"DataPathClosed", "DataPathOpened"} <= set(reasons)
