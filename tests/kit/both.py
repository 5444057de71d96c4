"""One fleet for one scenario, whichever store it lives in: what people type, what clients see, what can be killed.

A scenario takes a `Fleet` and knows nothing of the store. `FilesFleet` is `covey up` on a folder; `ClusterFleet` is a
real API server with the parts as processes. Both have the real engine and the real small model.

Waits look at objects directly, so that they are quick; what a person would read is asked of the command.
"""

import json
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import pytest
from testbed.kube.controlplane import ControlPlane, local_address

from kit.cache import shared_cache
from kit.cluster import Shell, expose
from kit.fleet import EXAMPLE, JsonObject, RunningFleet, Served, Traffic, running_fleet, wait_until
from kit.kube_fleet import CLI, KubeFleet, Part, running_kube_fleet
from kit.parts import (
    AGENT,
    CONTROLLER,
    GATEWAY,
    Member,
    assert_no_engine_doubled,
    engine_commands,
    has_condition,
    kill_part,
    kill_process,
    members_in,
    paused,
    read,
    wait_part_again,
)
from kit.processes import processes_of

MODEL = (EXAMPLE / "model.yaml").read_text()
PLACEMENT = (EXAMPLE / "placement.yaml").read_text()
NODE = "node-1"
CONVERGE_SECONDS = 120.0
# What the command's account needs to ask the leader why.
ASK_RULES: list[JsonObject] = [{"apiGroups": ["covey.dev"], "resources": ["placements"], "verbs": ["get"]}]


class Fleet(Protocol):
    """What both have."""

    @property
    def served(self) -> Served:
        """The gateway, for clients."""
        ...

    def apply(self, text: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Documents, as people of this store apply them."""
        ...

    def delete(self, *references: str) -> None:
        """Objects by `kind/name`, as people of this store delete them; returns at once."""
        ...

    def covey(self, *arguments: str, check: bool = True, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Covey's command, as people of this store call it."""
        ...

    def objects(self, plural: str) -> list[JsonObject]:
        """All objects of a kind; none while nobody answers."""
        ...

    @property
    def agent_folder(self) -> Path:
        """What the agent keeps: its members, each in a folder."""
        ...

    def engines(self) -> dict[int, list[str]]:
        """Command lines of engines that serve, by process id."""
        ...

    def has_leader(self) -> bool: ...

    def kill_part(self, name: str) -> None:
        """SIGKILL to controller, agent or gateway, which comes back as it does in this mode."""
        ...

    def held_down(self, name: str) -> AbstractContextManager[None]:
        """The part is killed, and is not there before the block ends."""
        ...

    def log_of(self, name: str) -> str:
        """All that controller, agent or gateway logged."""
        ...


class FilesFleet:
    """`covey up` on a folder of YAML."""

    def __init__(self, running: RunningFleet) -> None:
        self.running = running

    @property
    def served(self) -> Served:
        return self.running

    def apply(self, text: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.covey("apply", "-f", "-", check=check, text=text)

    def delete(self, *references: str) -> None:
        self.covey("delete", *references)

    def covey(self, *arguments: str, check: bool = True, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return self.running.covey(*arguments, check=check, text=text)

    def objects(self, plural: str) -> list[JsonObject]:
        return read(self.running, lambda control: control.list_objects(plural), [])

    @property
    def agent_folder(self) -> Path:
        return self.running.state / "agent"

    def engines(self) -> dict[int, list[str]]:
        return engine_commands(self.running.processes())

    def has_leader(self) -> bool:
        return read(self.running, lambda control: control.is_ready(), False)

    def kill_part(self, name: str) -> None:
        kill_part(self.running, name)

    @contextmanager
    def held_down(self, name: str) -> Generator[None]:
        """What is started in its place is stopped before it does anything."""
        with paused(wait_part_again(self.running, name, kill_part(self.running, name))):
            yield

    def log_of(self, name: str) -> str:
        return (self.running.state / "log" / f"{name}.log").read_text(errors="replace")


class ClusterFleet:
    """A real API server; one controller, the agent of one node and one gateway run as processes in place of pods."""

    def __init__(self, running: KubeFleet, shell: Shell) -> None:
        self.running = running
        self._shell = shell
        self._served = Served()
        self._served.url = running.gateway_url

    @property
    def served(self) -> Served:
        return self._served

    def apply(self, text: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self._checked(self._shell.run("kubectl", "apply", "-f", "-", text=text), check)

    def delete(self, *references: str) -> None:
        self._checked(self._shell.run("kubectl", "delete", "--wait=false", *references), True)

    def covey(self, *arguments: str, check: bool = True, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return self._checked(self._shell.covey(*arguments, text=text), check)

    def objects(self, plural: str) -> list[JsonObject]:
        return self.running.list_objects(plural)

    @property
    def agent_folder(self) -> Path:
        return self.running.agent_state(NODE)

    def engines(self) -> dict[int, list[str]]:
        return engine_commands(processes_of(self.running.folder))

    def has_leader(self) -> bool:
        leader = self.running.leader()
        return leader is not None and leader.probe("/readyz") == 200

    def kill_part(self, name: str) -> None:
        with self.held_down(name):
            pass

    @contextmanager
    def held_down(self, name: str) -> Generator[None]:
        """A kubelet starts it again with a token that is still good; here at the end of the block."""
        part = self._part(name)
        kill_process(part.pid)
        part.kill()
        try:
            yield
        finally:
            part.start()

    def _part(self, name: str) -> Part:
        parts = {
            CONTROLLER: self.running.replicas["a"].part,
            AGENT: self.running.agents[NODE],
            GATEWAY: self.running.gateways["gateway-1"],
        }
        return parts[name]

    def log_of(self, name: str) -> str:
        return self._part(name).log.read_text(errors="replace")

    @staticmethod
    def _checked(result: subprocess.CompletedProcess[str], check: bool) -> subprocess.CompletedProcess[str]:
        assert not check or result.returncode == 0, f"{result.args}:\n{result.stdout}{result.stderr}"
        return result


@contextmanager
def files_fleet() -> Generator[FilesFleet]:
    with running_fleet() as running:
        yield FilesFleet(running)


@contextmanager
def cluster_fleet(plane: ControlPlane) -> Generator[ClusterFleet]:
    """On the example. Skips where the API server's proxy can't reach this machine: the command needs it."""
    address = local_address()
    if address is None:
        pytest.skip("the API server's proxy takes no loopback address, and this machine has no other")
    plane.clear()
    with ExitStack() as stack:
        shell = Shell.of(plane, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cs"))))
        running = stack.enter_context(running_kube_fleet(plane, shared_cache()))
        running.grant(CLI, ASK_RULES)
        replica = running.start_controller("a", control_host=address)
        expose(shell, "covey-controller", "control", address, replica.control_port)
        running.wait_leader()
        running.start_agent(NODE)
        running.start_gateway("gateway-1", "--insecure", host=address)
        expose(shell, "covey-gateway", "http", address, int(running.gateway_url.rpartition(":")[2]))
        fleet = ClusterFleet(running, shell)
        fleet.apply(f"{MODEL}---\n{PLACEMENT}")
        yield fleet


def members(fleet: Fleet) -> list[Member]:
    """Living engines with their keepers, as the agent's folder tells."""
    return members_in(fleet.agent_folder)


def ready_instances(fleet: Fleet) -> list[JsonObject]:
    return [each for each in fleet.objects("instances") if each.get("status", {}).get("phase") == "Ready"]


def identities(fleet: Fleet) -> dict[str, str]:
    return {each["metadata"]["name"]: each["spec"]["instanceId"] for each in fleet.objects("instances")}


def restarts(fleet: Fleet) -> dict[str, int]:
    """Of each Instance's engine, as its status says; none before the agent has told."""
    return {
        each["spec"]["instanceId"]: told[0]["restarts"]
        for each in fleet.objects("instances")
        if (told := each.get("status", {}).get("members"))
    }


def find_object(fleet: Fleet, plural: str, name: str) -> JsonObject:
    """Empty while there is none."""
    found = [each for each in fleet.objects(plural) if each["metadata"]["name"] == name]
    return found[0] if found else {}


def is_converged(fleet: Fleet, replicas: int) -> bool:
    """As wished: a leader that has seen it all, so many Ready instances, each with its one engine, and all served."""
    found, placements = fleet.objects("instances"), fleet.objects("placements")
    return (
        fleet.has_leader()
        and len(found) == replicas == len(ready_instances(fleet))
        and all(has_condition(each, "Ready") for each in (*placements, *fleet.objects("cnodes")))
        and all(each["status"]["observedGeneration"] == each["metadata"]["generation"] for each in placements)
        and set(identities(fleet).values()) == {each.instance_id for each in members(fleet)}
        and len(fleet.engines()) == replicas
    )


def wait_converged(fleet: Fleet, replicas: int) -> None:
    try:
        wait_until(lambda: is_converged(fleet, replicas), f"{replicas} replicas converge", CONVERGE_SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{members(fleet)}\n{last_words(fleet)}") from None


def last_words(fleet: Fleet) -> str:
    """What the parts logged last."""
    logs = {name: fleet.log_of(name).splitlines()[-25:] for name in (CONTROLLER, AGENT, GATEWAY)}
    return "\n".join(f"--- {name}\n" + "\n".join(lines) for name, lines in logs.items())


def wait_answered(traffic: Traffic, more: int = 3) -> None:
    target = traffic.done + more
    wait_until(lambda: traffic.done >= target, f"{more} more requests are answered; {traffic.failures}")


def assert_nothing_doubled(fleet: Fleet) -> None:
    assert_no_engine_doubled(fleet.engines())


def wished(name: str = "smollm2", **spec: object) -> str:
    """The example's placement with these fields, as JSON is YAML too."""
    lines = "".join(f"  {key}: {json.dumps(value)}\n" for key, value in spec.items())
    return PLACEMENT.replace("name: smollm2}\nspec", f"name: {name}}}\nspec") + lines
