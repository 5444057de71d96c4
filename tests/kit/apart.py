"""Parts as processes of their own, each with its own state folder, as on several machines."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from covey.control import Control

from kit.cache import shared_cache
from kit.fleet import is_leading, wait_until
from kit.ports import free_port
from kit.processes import processes_of


@dataclass
class Apart:
    """A controller on a folder of YAML, and whatever parts a test starts beside it, by names of its own."""

    base: Path
    port: int
    """Of the gateway."""
    parts: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, "subprocess.Popen[bytes]"])
    environment: dict[str, str] = field(default_factory=dict[str, str])
    """Further variables of parts that start from now on."""

    @property
    def state(self) -> Path:
        """The controller's."""
        return self.base / "controller"

    @property
    def controller_url(self) -> str:
        return json.loads((self.state / "controller" / "fleet.json").read_text())["url"]

    @property
    def gateway_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self, name: str) -> str:
        return (self.base / f"{name}.log").read_text()

    def start(self, part: str, name: str, *flags: str) -> None:
        command = [sys.executable, "-m", f"covey_{part}", "--state", str(self.base / name), *flags]
        with (self.base / f"{name}.log").open("ab") as log:
            self.parts[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | self.environment
            )

    def start_controller(self) -> None:
        self.start("controller", "controller", "--source", str(self.base / "fleet"), "--fleet-listen", "127.0.0.1:0")
        wait_until(lambda: (self.state / "controller" / "fleet.json").exists() and is_leading(self.state), "it leads")

    def start_agent(self, address: str = "127.0.0.1", *, name: str = "agent", node: str = "a") -> None:
        flags = ["--controller", self.controller_url, "--token-file", self._token("agent", name), "--name", node]
        self.start("agent", name, *flags, "--cache", str(shared_cache()), "--address", address)

    def start_gateway(self, *flags: str, host: str = "127.0.0.1") -> None:
        always = ["--controller", self.controller_url, "--token-file", self._token("gateway", "gateway")]
        self.start("gateway", "gateway", *always, "--name", "gw", "--listen", f"{host}:{self.port}", *flags)

    def _token(self, role: str, name: str) -> str:
        """A file with a join token, made once for each part."""
        path = self.base / f"{name}.token"
        if not path.exists():
            self.renew_token(role, name)
        return str(path)

    def renew_token(self, role: str, name: str) -> None:
        with Control(self.state) as control:
            (self.base / f"{name}.token").write_text(control.create_token(role, 5, 600))

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> int:
        self.parts[name].send_signal(number)
        return self.parts[name].wait(30)

    def covey(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """The command on this fleet."""
        command = [sys.executable, "-m", "covey", *arguments, "--state", str(self.state)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def objects(self, plural: str) -> list[dict[str, Any]]:
        with Control(self.state) as control:
            return control.list_objects(plural)

    def condition(self, kind: str, node: str = "a") -> dict[str, Any]:
        """A condition of a node; empty while there is none."""
        found: list[dict[str, Any]] = [
            each
            for item in self.objects("cnodes")
            if item["metadata"]["name"] == node
            for each in item.get("status", {}).get("conditions", ())
            if each["type"] == kind
        ]
        return found[0] if found else {}


@contextmanager
def running_apart(source: Path | None = None) -> Generator[Apart]:
    """A controller on a copy of `source` (none: an empty folder); whatever was started is ended with the block."""
    base = Path(tempfile.mkdtemp(prefix="cv"))  # short: Unix sockets live below it
    made = Apart(base, free_port())
    try:
        if source is None:
            (base / "fleet").mkdir()
        else:
            shutil.copytree(source, base / "fleet")
        made.start_controller()
        yield made
    finally:
        for part in made.parts.values():
            part.kill()
            part.wait()
        for process in processes_of(base):
            with suppress(psutil.NoSuchProcess):  # members of one group end as one
                process.kill()
        shutil.rmtree(base, ignore_errors=True)
