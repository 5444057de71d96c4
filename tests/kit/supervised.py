"""A world around the supervisor: it carries out effects as the shell would, one at a time, as well as a test says.

It holds what the real world would hold (which keepers live, what is on disk) and checks the rules that no interleaving
may break: never two keepers for one member, nothing is started while something runs, what is kept is kept before.
"""

from dataclasses import dataclass, field
from pathlib import Path

from covey_agent.ports import EngineProcess, EngineProgram
from covey_agent.supervisor.advance import next_due
from covey_agent.supervisor.effects import (
    CancelWork,
    CheckFit,
    Effect,
    EnsureEngine,
    Examine,
    FetchArtifact,
    FindKeeper,
    Forget,
    Keep,
    KeepPort,
    Probe,
    ReleaseKeeper,
    StartKeeper,
    StopKeeper,
)
from covey_agent.supervisor.events import (
    ArtifactFailed,
    ArtifactReady,
    AssignmentsReceived,
    EngineExited,
    EngineReady,
    Event,
    Examined,
    Finding,
    FitChecked,
    KeeperFailed,
    KeeperFound,
    KeeperMissed,
    KeeperReleased,
    KeeperStarted,
    PortKept,
    PortMissed,
    Probed,
    Ticked,
)
from covey_agent.supervisor.kept import Kept
from covey_agent.supervisor.state import MemberState, State
from covey_agent.supervisor.step import begin, step
from covey_api.instance import Instance
from covey_api.messages import Assignments, MemberAssignment, MemberGoal
from covey_api.node import NodeSpec
from covey_api.reasons import FailureCause

from kit import builders

BOOT = "boot"
PROGRAM = EngineProgram(Path("/bin/llama-server"), {}, "1", "")


def assign(
    key: str = "00000000000000aa",
    goal: MemberGoal = MemberGoal.SERVE,
    attempt: int = 1,
    suspect_since: str = "",
    engine_key: str = "k",
) -> MemberAssignment:
    instance: Instance = builders.instance(f"i{key[-2:]}-0", instance_id=key, attempt=attempt)
    return MemberAssignment(instance=instance, member="0", goal=goal, key=engine_key, suspect_since=suspect_since)


def snapshot(*members: MemberAssignment, serial: int = 1, term: int = 1, complete: bool = True) -> AssignmentsReceived:
    return AssignmentsReceived(
        Assignments(term=term, serial=serial, complete=complete, node="a", spec=NodeSpec(), members=members)
    )


@dataclass
class World:
    state: State = field(default_factory=lambda: begin(Kept(), (), BOOT)[0])
    now: float = 1000.0
    pending: list[Effect] = field(default_factory=list[Effect])
    living: dict[str, EngineProcess] = field(default_factory=dict[str, EngineProcess])
    """Engines that run, by member."""
    unreleased: dict[str, str] = field(default_factory=dict[str, str])
    """Members whose engine ended and whose keeper still waits."""
    kept: Kept = field(default_factory=Kept)
    starts: int = 0
    stopped: list[str] = field(default_factory=list[str])
    forgotten: list[str] = field(default_factory=list[str])
    history: list[Event] = field(default_factory=list[Event])

    def member(self, key: str = "00000000000000aa") -> MemberState:
        return self.state.members[key]

    def send(self, event: Event) -> None:
        self.history.append(event)
        self.state, effects = step(self.state, event, self.now)
        assert not any(isinstance(effect, Keep) for effect in effects[1:]), "what is kept is kept first"
        for effect in effects:
            self._begin(effect)

    def restart_agent(self) -> None:
        """The agent dies with all it had under way; a new one starts from the disk. Launchers may still finish."""
        launches = [effect for effect in self.pending if isinstance(effect, StartKeeper)]
        for launch in launches[::2]:
            self.living[launch.instance_id] = self._engine(launch)
        strays = tuple(assign(key) for key in self.living)
        self.state, effects = begin(self.kept, strays, BOOT)
        self.pending = list(effects)
        self.history.clear()  # what was on its way to the old one reaches no other

    def _begin(self, effect: Effect) -> None:
        match effect:
            case Keep(kept):
                self.kept = kept
            case Forget(key):
                assert key not in self.living, "nothing that runs is forgotten"
                self.forgotten.append(key)
            case CancelWork(key):
                cancelled = (FetchArtifact, EnsureEngine, CheckFit)
                self.pending = [
                    one for one in self.pending if not (isinstance(one, cancelled) and one.instance_id == key)
                ]
            case _:
                doubled = any(_is_same(one, effect) for one in self.pending)
                assert not doubled or isinstance(effect, Probe | Examine), f"{effect} is under way already"
                if isinstance(effect, StartKeeper):
                    assert effect.instance_id not in self.living, "never two keepers for one member"
                    assert effect.instance_id not in self.unreleased, "the last keeper must be gone before the next"
                if isinstance(effect, StopKeeper):
                    assert effect.instance_id in self.living, "only what runs is stopped"
                self.pending.append(effect)

    def _engine(self, effect: StartKeeper) -> EngineProcess:
        self.starts += 1
        attempt = effect.assignment.instance.spec.attempt
        return EngineProcess(attempt, 5000 + self.starts, self.starts, f"{self.starts}@{BOOT}")

    def end_pending(self, index: int, *, well: bool = True, cause: FailureCause = FailureCause.EXITED) -> None:
        """One effect ends, well or not."""
        effect = self.pending.pop(index)
        match effect:
            case FetchArtifact(key, _):
                self.send(ArtifactReady(key, Path("/w")) if well else ArtifactFailed(key, cause, "no"))
            case EnsureEngine(key, _, _, _):
                self.send(EngineReady(key, PROGRAM))
            case KeepPort(key):
                self.send(PortKept(key, 52599) if well else PortMissed(key, cause, "no"))
            case CheckFit(key, _, _):
                self.send(FitChecked(key, "" if well else "too little"))
            case StartKeeper(key, _, _, _):
                if not well:
                    self.send(KeeperFailed(key, cause, "no"))
                    return
                self.living[key] = self._engine(effect)
                self.send(KeeperStarted(key, self.living[key]))
            case Probe(key, _, process):
                self.send(Probed(key, process.identity, "" if well and self.living.get(key) == process else "it loads"))
            case Examine(key, assignment, process):
                finding = Finding.GENERATES if well and self.living.get(key) == process else Finding.DEAD
                self.send(Examined(key, process.identity, assignment.suspect_since, finding, "nothing moves"))
            case StopKeeper(key, _):
                if key in self.living:
                    self.stopped.append(key)
                    self.end_engine(key, None)
            case ReleaseKeeper(key):
                self.unreleased.pop(key, None)
                self.send(KeeperReleased(key))
            case FindKeeper(key, _):
                self._find(key)
            case Keep() | CancelWork() | Forget():
                raise AssertionError(f"{effect} has no end")

    def _find(self, key: str) -> None:
        if process := self.living.get(key):
            self.send(KeeperFound(key, process))
        else:
            identity = self.unreleased.pop(key, "")
            self.send(KeeperMissed(key, identity, FailureCause.KILLED if identity else None, ""))

    def end_engine(self, key: str, cause: FailureCause | None = FailureCause.KILLED) -> None:
        """The engine ends, and its keeper tells."""
        process = self.living.pop(key)
        self.unreleased[key] = process.identity
        self.send(EngineExited(key, process.identity, cause, "gone"))

    def settle(self, seconds: float = 600.0) -> None:
        """Everything goes well until nothing more happens, within this much virtual time."""
        until = self.now + seconds
        while True:
            if self.pending:
                self.end_pending(0)
                continue
            due = next_due(self.state, self.now)
            if due is None or due > until:
                return
            self.now = due
            self.send(Ticked())


def _is_same(one: Effect, other: Effect) -> bool:
    if isinstance(one, Keep) or isinstance(other, Keep):
        return False
    return type(one) is type(other) and one.instance_id == other.instance_id
