"""A whole Covey on this machine for tests: `covey up` on a folder, with the real engine and the real small model.

The artifact cache is the tests' shared one, so that model and engine are fetched once.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, cast

import httpx
import psutil
from covey.control import Control
from covey.errors import CommandError

from kit.cache import shared_cache
from kit.ports import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "01-one-model"
# Generous: the first start in a fresh cache fetches 170 MB.
START_SECONDS = 600.0
SETTLE_SECONDS = 120.0

JsonObject = dict[str, Any]


def wait_until(holds: Callable[[], object], what: str, seconds: float = SETTLE_SECONDS) -> None:
    """Poll until it holds; fail with words otherwise."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.1)


def is_leading(state: Path) -> bool:
    """Whether a controller answers on the control socket of this state folder, and leads."""
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(str(state / "control.sock")) != 0:  # it is there before anybody listens on it
            return False
    with suppress(CommandError), Control(state) as control:
        return control.is_ready()
    return False


class Served:
    """What a client sees of a fleet: the gateway's address and its answers."""

    url: str

    def chat(self, model: str = "smollm2", *, stream: bool = False, **fields: object) -> JsonObject:
        """The body of a chat request."""
        defaults: JsonObject = {"max_tokens": 8, "messages": [{"role": "user", "content": "Say hello."}]}
        return {"model": model, "stream": stream} | defaults | fields

    def ask(self, **fields: object) -> httpx.Response:
        headers = {"X-Covey-Hold": "0"}
        body = self.chat(**cast(Any, fields))
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=120)


class RunningFleet(Served):
    """One `covey up`, its folder of YAML and its state folder."""

    def __init__(
        self,
        folder: Path,
        state: Path,
        port: int,
        environment: dict[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        """`python`: of the environment in which Covey is installed."""
        self.folder = folder
        self._python = python
        self.state = state
        self._extra_environment = environment or {}
        self.url = f"http://127.0.0.1:{port}"
        self.output_path = state.parent / "up.out"
        self.error_path = state.parent / "up.err"
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the fleet has not been started"
        return self._process

    def start(self, *extra: str) -> None:
        command = [self._python, "-m", "covey", "up", str(self.folder), "--wait", "--port", str(self.port), *extra]
        with self.output_path.open("wb") as output, self.error_path.open("wb") as errors:
            self._process = subprocess.Popen(
                command, env=self._environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=errors
            )

    def wait_started(self) -> str:
        """Until `covey up --wait` has printed how to use it; returns that text."""

        def is_printed() -> bool:
            assert self.process.poll() is None, f"covey up ended:\n{self.error_path.read_text()}"
            return "Ctrl-C stops everything." in self.output_path.read_text()

        wait_until(is_printed, f"covey up --wait says how to use it:\n{self.error_path.read_text()}", START_SECONDS)
        return self.output_path.read_text()

    def stop(self, signal_number: signal.Signals = signal.SIGINT) -> float:
        """Interrupt it as Ctrl-C would; the seconds it took."""
        began = time.monotonic()
        self.process.send_signal(signal_number)
        self.process.wait(timeout=30)
        return time.monotonic() - began

    def processes(self) -> list[psutil.Process]:
        """Every process of this fleet: parts, keepers, engines."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def processes_of(self, word: str) -> list[psutil.Process]:
        """Those whose command line has `word`, such as `covey_agent` or `llama-server`."""
        return [process for process in self.processes() if any(word in part for part in _command_line(process))]

    def _is_ours(self, process: psutil.Process) -> bool:
        if any(str(self.state.parent) in part for part in _command_line(process)):
            return True
        try:
            return process.environ().get("COVEY_STATE") == str(self.state) or any(
                any(str(self.state.parent) in part for part in _command_line(parent)) for parent in process.parents()
            )
        except psutil.Error:
            return False

    def covey(self, *arguments: str, check: bool = True, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run the command against this fleet, found as a user's would be."""
        result = subprocess.run(
            [self._python, "-m", "covey", *arguments],
            env=self._environment(),
            capture_output=True,
            text=True,
            input=text,
            timeout=120,
            check=False,
        )
        assert not check or result.returncode == 0, result.stderr
        return result

    def _environment(self) -> dict[str, str]:
        return (
            os.environ
            | {"COVEY_CACHE": str(shared_cache())}
            | self._extra_environment
            | {"COVEY_STATE": str(self.state)}
        )

    def objects(self, plural: str) -> list[JsonObject]:
        """All objects of a kind, asked over the control socket as the command does."""
        with Control(self.state) as control:
            return control.list_objects(plural)

    def instances(self) -> dict[str, JsonObject]:
        return {item["metadata"]["name"]: item for item in self.objects("instances")}

    def ready_instances(self) -> list[JsonObject]:
        return [item for item in self.objects("instances") if item.get("status", {}).get("phase") == "Ready"]

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@contextmanager
def running_fleet(
    source: Path = EXAMPLE, *extra: str, environment: dict[str, str] | None = None
) -> Generator[RunningFleet]:
    """A started fleet on a copy of `source`; everything is ended and removed afterwards, whatever happened."""
    base = Path(tempfile.mkdtemp(prefix="cv"))  # short: Unix sockets live below it
    fleet = RunningFleet(base / "fleet", base / "state", free_port(), environment)
    shutil.copytree(source, fleet.folder)
    fleet.start(*extra)
    try:
        fleet.wait_started()
        yield fleet
    finally:
        if fleet.process.poll() is None:
            fleet.stop()
        left = fleet.processes()
        for process in left:
            process.kill()
        shutil.rmtree(base, ignore_errors=True)
        assert not left, f"left running: {[_command_line(process) for process in left]}"


@dataclass(frozen=True, slots=True)
class Sent:
    """One request: when it was sent and had ended (monotonic), and why it failed."""

    began: float
    ended: float
    failure: str = ""


class Traffic:
    """Steady streamed chat requests from a few threads, counted by outcome.

    `waits_for_gateway`: a refused connection, a 503 (nothing serves now), and any answer with `Retry-After`, are tried
    again, as clients do: nothing was lost by it. `models`: asked in turn by the workers. `rest_seconds`: of each worker
    after each request.
    """

    def __init__(
        self,
        fleet: Served,
        workers: int = 2,
        *,
        waits_for_gateway: bool = False,
        models: Sequence[str] = ("smollm2",),
        rest_seconds: float = 0.0,
    ) -> None:
        self._fleet = fleet
        self._workers = workers
        self._models = models
        self._rest_seconds = rest_seconds
        self._waits_for_gateway = waits_for_gateway
        self.sent: list[Sent] = []
        self.refused = 0
        self.told_to_wait: list[Sent] = []
        self._under_way: set[object] = set()

    @property
    def in_flight(self) -> int:
        return len(self._under_way)

    @property
    def done(self) -> int:
        return sum(not one.failure for one in self.sent)

    @property
    def failures(self) -> list[str]:
        return [one.failure for one in self.sent if one.failure]

    @contextmanager
    def flowing(self) -> Generator["Traffic"]:
        """Requests flow during the block; afterwards all have been answered."""
        ending = Event()

        def work(number: int) -> None:
            with httpx.Client(timeout=120) as client:
                while not ending.is_set():
                    self._send(client, self._models[number % len(self._models)])
                    ending.wait(self._rest_seconds)

        with ThreadPoolExecutor(self._workers) as pool:
            working = [pool.submit(work, number) for number in range(self._workers)]
            try:
                yield self
            finally:
                ending.set()
            for future in working:
                future.result(timeout=120)

    def _send(self, client: httpx.Client, model: str) -> None:
        request = object()
        self._under_way.add(request)
        try:
            self._exchange(client, model)
        finally:
            self._under_way.discard(request)

    def _exchange(self, client: httpx.Client, model: str) -> None:
        body = self._fleet.chat(model, stream=True, max_tokens=16)
        began = time.monotonic()
        try:
            response = client.post(f"{self._fleet.url}/v1/chat/completions", json=body)
            text = response.text
        except httpx.ConnectError as error:
            if not self._waits_for_gateway:
                self._count(began, repr(error))
            self.refused += 1
            time.sleep(0.05)
            return
        except httpx.HTTPError as error:
            self._count(began, repr(error))
            return
        if self._waits_for_gateway and (response.status_code == 503 or "retry-after" in response.headers):
            self.told_to_wait.append(Sent(began, time.monotonic(), f"{response.status_code}: {text}"))
            time.sleep(0.2)
            return
        is_whole = response.status_code == 200 and "data: [DONE]" in text and '"error"' not in text
        self._count(began, "" if is_whole else f"{response.status_code}: {text[-300:]}")

    def _count(self, began: float, failure: str) -> None:
        self.sent.append(Sent(began, time.monotonic(), failure))
