"""A real agent process under a steered fleet API, with an engine double or the real engine."""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from covey_api.engines import EngineName
from covey_api.instance import Costs, EngineOptions, Instance, Member, MemberPhase
from covey_api.messages import (
    Ask,
    AskAnswer,
    Assignments,
    CertificateRole,
    MemberAssignment,
    MemberGoal,
    MemberReport,
    Report,
    ReportAnswer,
)
from covey_api.model import ResolvedArtifact
from covey_api.node import EngineOverride, NodeSpec
from fleet_rig import Rig, SteeredBoard, eventually, running_fleet
from kit import builders
from kit.processes import engine_double, is_running, processes_of

NODE = "a"
A, B = "00000000000000aa", "00000000000000bb"
# Generous: two cores, shared.
SECONDS = 30.0


class WishBoard(SteeredBoard):
    """Assigns what a test wishes, and keeps the newest of what the agent reported."""

    def __init__(self, spec: NodeSpec) -> None:
        super().__init__()
        self.spec = spec
        self.wishes: tuple[MemberAssignment, ...] = ()
        self.asks: tuple[Ask, ...] = ()
        self.is_complete = True
        self.members: dict[str, MemberReport] = {}
        self.last: Report | None = None
        self.resend = False
        self._dead_boots: set[str] = set()

    def forget_agent(self) -> None:
        """The agent is dead: what it has still on the wire is nobody's word any more."""
        if self.last is not None:
            self._dead_boots.add(self.last.boot_id)
        self.members = {}

    def on_beat(self, node: str, report: Report) -> ReportAnswer | None:
        """Every report goes by the route, which keeps it."""

    def wish(self, *members: MemberAssignment, complete: bool = True) -> None:
        self.wishes, self.is_complete = members, complete
        self.publish()

    def ask(self, *asks: Ask) -> None:
        self.asks = asks
        self.publish()

    def answer(self, ask_id: str) -> AskAnswer | None:
        return next((answer for _, answer in self.answers if answer.id == ask_id), None)

    def _assignments(self, node: str, serial: int) -> Assignments:
        return Assignments(
            term=1,
            serial=serial,
            complete=self.is_complete,
            node=node,
            spec=self.spec,
            members=self.wishes,
            asks=self.asks,
        )

    def on_report(self, node: str, report: Report) -> ReportAnswer:
        if report.boot_id in self._dead_boots:
            return super().on_report(node, report)
        self.last = report
        if report.members is not None:
            self.members = {member.instance_id: member for member in report.members}
        answer = super().on_report(node, report)
        resend, self.resend = self.resend, False
        return answer.model_copy(update={"resend": resend})


@dataclass
class AgentRig:
    folder: Path
    fleet: Rig
    board: WishBoard
    weights: Path
    cache: Path
    agent: "subprocess.Popen[bytes] | None" = None
    grace_seconds: float = 60.0
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.folder / "agent.log"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def token(self) -> Path:
        return self.folder / "token"

    @property
    def members(self) -> Path:
        return self.state / "agent" / "members"

    def command(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "covey_agent", "--state", str(self.state), *more]

    def start(self, *more: str, pass_fds: tuple[int, ...] = ()) -> "subprocess.Popen[bytes]":
        flags = ["--controller", self.fleet.url, "--token-file", str(self.token), "--cache", str(self.cache)]
        flags += ["--name", NODE, "--orphan-grace-seconds", str(self.grace_seconds), *more]
        with self.log.open("ab") as log:
            self.agent = subprocess.Popen(self.command(*flags), stderr=log, start_new_session=True, pass_fds=pass_fds)
        return self.agent

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal the agent and wait for its end; its exit status."""
        assert self.agent is not None
        self.agent.send_signal(number)
        status = self.agent.wait(SECONDS)
        self.board.forget_agent()
        return status

    def assign(self, key: str = A, goal: MemberGoal = MemberGoal.SERVE, **spec: object) -> MemberAssignment:
        return MemberAssignment(instance=self.instance(key, **spec), member="0", goal=goal, key=f"key-of-{key}")

    def instance(self, key: str, **spec: object) -> Instance:
        fields: dict[str, object] = {
            "instance_id": key,
            "artifact": spec.get("artifact") or self.artifact(),
            "options": EngineOptions(context_tokens=512, slots=2),
            "members": (Member(node=NODE, costs=(Costs(weights_bytes=1_000_000),)),),
            "startup_seconds": 60,
        }
        return builders.instance(f"i{key[-2:]}-0", node=NODE, **(fields | spec))

    def artifact(self) -> ResolvedArtifact:
        with self.weights.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return ResolvedArtifact(
            source=f"file://{self.weights}",
            name=self.weights.name,
            size_bytes=self.weights.stat().st_size,
            sha256=digest,
        )

    async def wait(self, is_so: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
        """Until it is so; fails with what the agent said."""
        try:
            await eventually(is_so, seconds)
        except TimeoutError:
            found = f"{self.board.members}\n{self.log.read_text()}"
            raise AssertionError(f"not within {seconds} s: {what}\n{found}") from None

    async def wait_phase(self, phase: MemberPhase, key: str = A, **also: object) -> MemberReport:
        def is_so() -> bool:
            member = self.board.members.get(key)
            return (
                member is not None
                and member.phase is phase
                and all(getattr(member, name) == value for name, value in also.items())
            )

        await self.wait(is_so, f"member {key} is {phase} {also or ''}")
        return self.board.members[key]

    def engines(self) -> list[psutil.Process]:
        """Living engine processes of this rig's members."""
        return [process for process in processes_of(self.members) if is_engine(process)]

    def end(self) -> None:
        if self.agent is not None and self.agent.poll() is None:
            self.agent.kill()
            self.agent.wait()
        for process in processes_of(self.folder):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def is_keeper(process: psutil.Process) -> bool:
    return any(word.endswith("keeper.py") for word in _words(process))


def is_engine(process: psutil.Process) -> bool:
    """What has just ended is neither."""
    return bool(_words(process)) and not is_keeper(process)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


@asynccontextmanager
async def running_rig(folder: Path, **knobs: str) -> AsyncGenerator[AgentRig]:
    """A fleet with one node whose engine is the double."""
    weights = folder / "weights.gguf"
    weights.write_bytes(b"GGUF" + bytes(1000))
    spec = given(engine_double(folder, **knobs))
    async with running_with(folder, spec, weights, folder / "cache") as rig:
        yield rig


def given(program: Path) -> NodeSpec:
    """The spec of a Node whose operator names the engine's program."""
    return NodeSpec(engines=(EngineOverride(engine=EngineName.LLAMA_SERVER, path=str(program)),))


@asynccontextmanager
async def running_with(folder: Path, spec: NodeSpec, weights: Path, cache: Path) -> AsyncGenerator[AgentRig]:
    board = WishBoard(spec)
    async with running_fleet(folder, board) as fleet:
        rig = AgentRig(folder, fleet, board, weights, cache)
        rig.token.write_text(await fleet.token(CertificateRole.AGENT))
        try:
            yield rig
        finally:
            rig.end()


def assert_gone(pid: int) -> None:
    assert not is_running(pid), f"process {pid} must have ended"


def environment_of(pid: int) -> dict[str, str]:
    return dict(item.split("=", 1) for item in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in item)


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
