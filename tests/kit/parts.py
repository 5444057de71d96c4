"""The processes of a running fleet by what they are: parts, keepers, engines; to be killed, paused and counted."""

import contextlib
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil
from covey.control import Control
from covey.errors import CommandError

from kit.fleet import JsonObject, RunningFleet, wait_until

CONTROLLER, AGENT, GATEWAY = "controller", "agent", "gateway"
T = TypeVar("T")
PARTS = (CONTROLLER, AGENT, GATEWAY)


@dataclass(frozen=True, slots=True)
class Member:
    """One member as its keeper wrote it down: what an adoption must leave as it is."""

    instance_id: str
    keeper_pid: int
    engine_pid: int
    port: int


def find_part(fleet: RunningFleet, name: str) -> int | None:
    """Process id of a part of this `covey up`; None while there is none."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(fleet.process.pid).children():
            with contextlib.suppress(psutil.Error):
                if f"covey_{name}" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                    return child.pid
    return None


def count_wakeups(processes: list[psutil.Process]) -> int:
    """How often their threads have waited for something and been woken since they began. Linux only."""
    return sum(
        int(match[1])
        for process in processes
        for status in Path(f"/proc/{process.pid}/task").glob("*/status")
        if (match := re.search(r"^voluntary_ctxt_switches:\s+(\d+)$", status.read_text(), re.MULTILINE))
    )


def part_pid(fleet: RunningFleet, name: str) -> int:
    pid = find_part(fleet, name)
    assert pid is not None, f"the {name} must run"
    return pid


def kill_part(fleet: RunningFleet, name: str) -> int:
    """SIGKILL to a part; the process id that it had."""
    pid = part_pid(fleet, name)
    kill_process(pid)
    return pid


def kill_process(pid: int) -> None:
    """SIGKILL, and until the kernel has torn it down: its sockets take connections until then."""
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.001)


def wait_part_again(fleet: RunningFleet, name: str, before: int) -> int:
    wait_until(lambda: find_part(fleet, name) not in (None, before), f"the {name} is started again", 120)
    return part_pid(fleet, name)


@contextmanager
def paused(pid: int) -> Generator[None]:
    """The process is stopped (SIGSTOP) during the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def members(fleet: RunningFleet) -> list[Member]:
    """Living members, sorted, as the folder of the agent tells: no part is asked."""
    return members_in(fleet.state / "agent")


def members_in(folder: Path) -> list[Member]:
    """Living members of the agent whose folder this is, sorted."""
    found: list[Member] = []
    for path in (folder / "members").glob("*/keeper.json"):
        with contextlib.suppress(OSError, ValueError):
            record = json.loads(path.read_text())
            member = Member(path.parent.name, record["pid"], record["enginePid"], record["port"])
            if psutil.pid_exists(member.keeper_pid) and is_alive(member.engine_pid):
                found.append(member)
    return sorted(found, key=lambda member: member.instance_id)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def read(fleet: RunningFleet, ask: Callable[[Control], T], default: T) -> T:
    """What the controller answers; the default while there is none to answer."""
    if not answers(fleet):
        return default
    with contextlib.suppress(CommandError), Control(fleet.state) as control:
        return ask(control)
    return default


def answers(fleet: RunningFleet) -> bool:
    """Whether somebody accepts connections on the control socket (httpx leaks a Unix socket when nobody does)."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(fleet.state / "control.sock")) == 0


def instances(fleet: RunningFleet) -> list[JsonObject]:
    return read(fleet, lambda control: control.list_objects("instances"), [])


def is_converged(fleet: RunningFleet, replicas: int) -> bool:
    """As wished: a leader that has seen the fleet, so many Ready instances, each with its one engine, all routed."""

    def ask(control: Control) -> bool:
        placements = control.list_objects("placements")
        found = control.list_objects("instances")
        nodes = control.list_objects("cnodes")
        return (
            control.is_ready()
            and is_listening(fleet)
            and all(has_condition(item, "Ready") for item in (*placements, *nodes))
            and all(item["status"]["observedGeneration"] == item["metadata"]["generation"] for item in placements)
            and len(found) == replicas
            and all(item.get("status", {}).get("phase") == "Ready" for item in found)
            and {item["spec"]["instanceId"] for item in found} == {each.instance_id for each in members(fleet)}
            and any(gateway["current"] for gateway in control.list_gateways())
        )

    return read(fleet, ask, False)


def is_listening(fleet: RunningFleet) -> bool:
    """Whether the gateway takes connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(fleet.url.rpartition(":")[2]))) == 0


def has_condition(item: JsonObject, kind: str) -> bool:
    conditions = item.get("status", {}).get("conditions", ())
    return any(condition["type"] == kind and condition["status"] == "True" for condition in conditions)


def wait_converged(fleet: RunningFleet, replicas: int, seconds: float = 120.0) -> float:
    """Seconds until the fleet is as wished."""
    began = time.monotonic()
    try:
        wait_until(lambda: is_converged(fleet, replicas), f"{replicas} replicas converge", seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{describe(fleet)}") from None
    return time.monotonic() - began


def describe(fleet: RunningFleet) -> str:
    """What there is, for the words of a failure."""
    paths = (*(fleet.state / "log").glob("*.log"), *(fleet.state / "agent" / "members").glob("*/output.log"))
    logs = "\n".join(
        f"--- {path}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:]) for path in sorted(paths)
    )
    return f"members: {members(fleet)}\n{logs}"


def engine_commands(processes: list[psutil.Process]) -> dict[int, list[str]]:
    """Command lines of the engines among them that serve; an engine that is asked for its version isn't one."""
    found: dict[int, list[str]] = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if _is_engine(command) and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = command
    return found


def _is_engine(command: list[str]) -> bool:
    return "--port" in command and "llama-server" in "".join(command[:2])


def is_kept(pid: int) -> bool:
    """Whether a keeper is the process's parent, or the process is gone."""
    try:
        parent = psutil.Process(pid).parent()
        return parent is not None and any(word.endswith("keeper.py") for word in parent.cmdline())
    except psutil.Error:
        return not is_alive(pid)


def write_wish(fleet: RunningFleet, text: str) -> None:
    """Save the placement, and wait until the set with it is in force."""
    path = fleet.folder / "placement.yaml"
    if path.exists() and path.read_text() == text:
        return
    before = applied_set(fleet)
    path.write_text(text)
    wait_until(lambda: applied_set(fleet) not in ("", before), "the controller reads the wish", 120)


def applied_set(fleet: RunningFleet) -> str:
    """The digest of the set in force; empty while no controller answers."""
    return str(read(fleet, lambda control: control.get_source(), {}).get("applied", ""))


def assert_nothing_doubled(fleet: RunningFleet) -> None:
    """No two engines for one Instance, none on one port, and none without a keeper."""
    assert_no_engine_doubled(engine_commands(fleet.processes()))


def assert_no_engine_doubled(engines: dict[int, list[str]]) -> None:
    for option in ("--port", "--api-key-file"):  # the file is in the member's own folder
        values = [command[command.index(option) + 1] for command in engines.values()]
        assert len(values) == len(set(values)), f"two engines with one {option}: {engines}"
    wait_until(lambda: all(map(is_kept, engines)), f"engines without a keeper end: {engines}", 30)


def events(fleet: RunningFleet, plural: str) -> dict[str, list[str]]:
    """Reasons and messages recorded about each object of a kind."""
    with Control(fleet.state) as control:
        return {
            item["metadata"]["name"]: [
                f"{event['reason']}: {event['message']}"
                for event in control.list_events(
                    plural, item["metadata"].get("namespace", ""), item["metadata"]["name"]
                )
            ]
            for item in control.list_objects(plural)
        }
