"""Real agents of several nodes under a steered fleet API, each at an address of loopback of its own."""

import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from covey_api.instance import Costs, EngineOptions, Instance, Member, MemberPhase, MemberRole
from covey_api.messages import (
    Assignments,
    CertificateRole,
    MemberAssignment,
    MemberFront,
    MemberGoal,
    MemberReport,
    Report,
    ReportAnswer,
)
from covey_api.node import NodeSpec
from fleet_rig import Rig, SteeredBoard, eventually, running_fleet
from kit import builders
from kit.cache import shared_cache
from kit.processes import processes_of
from kit.real import provide_real_parts

ID = "00000000000000aa"
KEY = "key-of-the-group"
ADDRESSES = {"a": "127.0.0.2", "b": "127.0.0.3", "c": "127.0.0.4"}
# Generous: two cores, shared. The first run on a machine downloads 160 MB.
SECONDS = 90.0


class GroupBoard(SteeredBoard):
    """Each node is assigned what a test wishes of it; what each reported last is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.wishes: dict[str, MemberAssignment] = {}
        self.members: dict[str, MemberReport] = {}
        """By node."""
        self.addresses: dict[str, str] = {}

    def on_beat(self, node: str, report: Report) -> ReportAnswer | None:
        """Every report goes by the route, which keeps it."""

    def on_report(self, node: str, report: Report) -> ReportAnswer:
        self.addresses[node] = report.address
        if report.members is not None:
            self.members.pop(node, None)
            for member in report.members:
                self.members[node] = member
        return super().on_report(node, report)

    def _assignments(self, node: str, serial: int) -> Assignments:
        wish = self.wishes.get(node)
        return Assignments(
            term=1, serial=serial, complete=True, node=node, spec=NodeSpec(), members=(wish,) if wish else ()
        )


@dataclass
class GroupRig:
    folder: Path
    fleet: Rig
    board: GroupBoard
    agents: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict[str, "subprocess.Popen[bytes]"])

    async def start(self, node: str) -> None:
        """Its agent, which joins if it hasn't."""
        self._start(node, await self.fleet.token(CertificateRole.AGENT))

    def _start(self, node: str, secret: str) -> None:
        token = self.folder / f"token-{node}"
        token.write_text(secret)
        argv = [sys.executable, "-m", "covey_agent", "--state", str(self.state(node)), "--name", node]
        argv += ["--controller", self.fleet.url, "--token-file", str(token), "--cache", str(shared_cache())]
        argv += ["--address", ADDRESSES[node]]
        with (self.folder / f"{node}.log").open("ab") as log:
            self.agents[node] = subprocess.Popen(argv, stderr=log, start_new_session=True)

    def state(self, node: str) -> Path:
        return self.folder / node

    def instance(self, *donors: str, attempt: int = 1, layers: int = 30) -> Instance:
        """Of a model that is on the disk already, driven on node a; the model's layers in equal parts."""
        share = layers // (len(donors) + 1)
        own = layers - share * len(donors)
        members = [Member(name="0", node="a", role=MemberRole.DRIVER, costs=(costs(own),))]
        for number, node in enumerate(donors, 1):
            members.append(Member(name=str(number), node=node, role=MemberRole.DONOR, costs=(costs(share),)))
        return builders.instance(
            "group-0",
            instance_id=ID,
            attempt=attempt,
            artifact=provide_real_parts().artifact,
            options=EngineOptions(context_tokens=512, slots=1, repack=False),
            members=tuple(members),
            startup_seconds=120,
        )

    def wish(self, instance: Instance, goal: MemberGoal = MemberGoal.SERVE) -> None:
        """As a controller does: all members at once, the driver with the fronts of donors that are ready."""
        fronts = tuple(
            MemberFront(member=member.name, address=self.board.addresses[member.node], port=report.front_port)
            for member in instance.spec.members[1:]
            if (report := self.board.members.get(member.node)) is not None
            and report.phase is MemberPhase.READY
            and report.attempt == instance.spec.attempt
        )
        self.board.wishes = {
            member.node: MemberAssignment(
                instance=instance, member=member.name, goal=goal, key=KEY, fronts=() if index else fronts
            )
            for index, member in enumerate(instance.spec.members)
        }
        self.board.publish()

    async def form(self, instance: Instance) -> MemberReport:
        """Donors first, then the driver; what the driver reports once it is ready."""
        self.wish(instance)
        for member in instance.spec.members[1:]:
            await self.wait_phase(member.node, MemberPhase.READY, instance.spec.attempt)
        assert self.board.members["a"].phase in (MemberPhase.PENDING, MemberPhase.FETCHING)
        self.wish(instance)
        return await self.wait_phase("a", MemberPhase.READY, instance.spec.attempt)

    async def wait_phase(self, node: str, phase: MemberPhase, attempt: int = 1) -> MemberReport:
        def is_so() -> bool:
            report = self.board.members.get(node)
            if report is None or report.attempt != attempt:
                return False
            assert report.phase is phase or report.phase is not MemberPhase.FAILED, report
            return report.phase is phase

        await self.wait(is_so, f"the member on node {node} is {phase} in attempt {attempt}")
        return self.board.members[node]

    async def wait(self, is_so: Callable[[], bool], what: str) -> None:
        try:
            await eventually(is_so, SECONDS)
        except TimeoutError:
            logs = "\n".join(f"{node}:\n{(self.folder / f'{node}.log').read_text()}" for node in self.agents)
            raise AssertionError(f"not within {SECONDS} s: {what}\n{self.board.members}\n{logs}") from None

    def engine(self, node: str) -> psutil.Process:
        return psutil.Process(self.board.members[node].pid)

    async def stop(self, instance: Instance) -> None:
        self.wish(instance, MemberGoal.STOP)
        over = (MemberPhase.STOPPED, MemberPhase.FAILED)
        await self.wait(lambda: all(each.phase in over for each in self.board.members.values()), "all have ended")
        self.board.wishes = {}
        self.board.publish()
        await self.wait(lambda: not self.board.members, "nothing is left")

    def end(self) -> None:
        for agent in self.agents.values():
            agent.kill()
            agent.wait()
        for process in processes_of(self.folder):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def costs(layers: int) -> Costs:
    return Costs(weights_bytes=5_000_000 * layers, floor_bytes=60_000_000, layers=layers)


@asynccontextmanager
async def running_group(folder: Path, *nodes: str) -> AsyncGenerator[GroupRig]:
    async with running_fleet(folder / "fleet", GroupBoard()) as fleet:
        assert isinstance(fleet.board, GroupBoard)
        rig = GroupRig(folder, fleet, fleet.board)
        try:
            for node in nodes:
                await rig.start(node)
            await rig.wait(lambda: fleet.board.addresses.keys() == set(nodes), "every agent has reported")
            yield rig
        finally:
            rig.end()
