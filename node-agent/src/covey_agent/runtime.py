"""The shell of the supervisor: one loop that feeds it events, and carries its effects out as tasks that end in events.

Owns the tasks and the progress of fetches. Every decision is `step`'s. Nothing here may end the agent for one member's
sake: an effect that fails in whatever way ends in its failure event.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from covey_api.engines import EngineName
from covey_api.messages import Assignments, MemberAssignment, Progress
from covey_api.reasons import FailureCause
from covey_planner.fit.check import check_costs
from pydantic import ValidationError

from covey_agent.exits import explain_exit
from covey_agent.kept_file import KeptFile
from covey_agent.launching import choose_port, render_launch
from covey_agent.ports import (
    AgentError,
    Artifacts,
    EngineAdapter,
    EngineExit,
    EngineProcess,
    Engines,
    Facts,
    Keepers,
    OnTransfer,
    Transfer,
)
from covey_agent.supervisor.advance import next_due
from covey_agent.supervisor.effects import (
    CancelWork,
    CheckFit,
    Effect,
    EnsureEngine,
    FetchArtifact,
    FindKeeper,
    Forget,
    Keep,
    Probe,
    ReleaseKeeper,
    Slow,
    StartKeeper,
    StopKeeper,
)
from covey_agent.supervisor.events import (
    ArtifactFailed,
    ArtifactReady,
    AssignmentsReceived,
    CloseAsked,
    EngineExited,
    EngineFailed,
    EngineReady,
    Event,
    FitChecked,
    KeeperFailed,
    KeeperFound,
    KeeperMissed,
    KeeperReleased,
    KeeperStarted,
    Probed,
    Ticked,
)
from covey_agent.supervisor.state import State
from covey_agent.supervisor.step import begin, step

logger = logging.getLogger(__name__)

# Members of a node times their effects under way, several times over: who sends waits when the loop falls behind.
MAX_WAITING_EVENTS = 1024


@dataclass(frozen=True, slots=True)
class Outside:
    """What the supervisor's effects need of the world."""

    artifacts: Artifacts
    engines: Engines
    facts: Facts
    keepers: Keepers
    adapters: Mapping[EngineName, EngineAdapter]


class Runtime:
    """`members`: the folder of members. `on_change` is called after each step that changed the state."""

    def __init__(
        self, outside: Outside, members: Path, kept_file: KeptFile, boot_id: str, on_change: Callable[[], None]
    ) -> None:
        self._outside = outside
        self._members = members
        self._kept_file = kept_file
        self._boot_id = boot_id
        self._on_change = on_change
        self._events: asyncio.Queue[Event] = asyncio.Queue(MAX_WAITING_EVENTS)
        self._cancellable: dict[str, set[asyncio.Task[None]]] = {}
        self.state = State()
        self.progress: dict[str, Progress] = {}
        """Of members that are being fetched for."""

    async def receive(self, assignments: Assignments) -> None:
        await self._events.put(AssignmentsReceived(assignments))

    async def close(self) -> None:
        """Stop every member; `run` returns when all have ended."""
        await self._events.put(CloseAsked())

    async def run(self) -> None:
        """Until closed, or cancelled: then every keeper runs on."""
        self.state, effects = begin(self._kept_file.read(), self._observe_strays(), self._boot_id)
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            self._begin_all(group, effects)
            while not self.state.is_closed:
                event = await self._next_event(loop.time())
                before = self.state
                self.state, effects = step(before, event, loop.time())
                log_transitions(before, self.state)
                self._begin_all(group, effects)
                if self.state != before:
                    self._on_change()

    async def _next_event(self, now: float) -> Event:
        """What comes first: an event, or the time at which the supervisor wants to look again."""
        due = next_due(self.state, now)
        try:
            async with asyncio.timeout_at(due):
                return await self._events.get()
        except TimeoutError:
            return Ticked()

    def _observe_strays(self) -> tuple[MemberAssignment, ...]:
        """Members that live, as their own folders tell; those that are kept as well are known better from there."""
        strays: list[MemberAssignment] = []
        for instance_id, text in self._outside.keepers.observe_living().items():
            try:
                strays.append(MemberAssignment.model_validate_json(text))
            except ValidationError:
                logger.error(
                    "instance id '%s' runs, but nothing here says what it is: it can't be adopted", instance_id
                )
        return tuple(strays)

    def _begin_all(self, group: asyncio.TaskGroup, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Keep(kept):
                    self._kept_file.write(kept)
                case Forget(key):
                    self._outside.keepers.forget(key)
                case CancelWork(key):
                    for task in self._cancellable.pop(key, set()):
                        task.cancel()
                    self.progress.pop(key, None)
                case FetchArtifact(key) | EnsureEngine(key) | CheckFit(key):
                    task = group.create_task(self._carry_out(effect))
                    tasks = self._cancellable.setdefault(key, set())
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                case _:
                    group.create_task(self._carry_out(effect))

    async def _carry_out(self, effect: Slow) -> None:
        try:
            event = await self._perform(effect)
        except AgentError as error:
            event = fail(effect, error)
        except Exception as error:
            logger.exception("%s of instance id '%s' failed unexpectedly", type(effect).__name__, effect.instance_id)
            event = fail(effect, AgentError(FailureCause.EXITED, f"unexpected {type(error).__name__}: {error}"))
        if event is not None:
            await self._events.put(event)
        if isinstance(event, KeeperStarted | KeeperFound):
            await self._watch_exit(event.instance_id, event.process)

    async def _perform(self, effect: Slow) -> Event | None:
        outside = self._outside
        match effect:
            case FindKeeper(key):
                return self._explain_found(key, await outside.keepers.find(key))
            case FetchArtifact(key, artifact):
                return ArtifactReady(key, await outside.artifacts.fetch(artifact, self._follow(key, "model")))
            case EnsureEngine(key, engine, spec):
                return EngineReady(key, await outside.engines.ensure(engine, spec, self._follow(key, "engine")))
            case CheckFit(key, costs, promised):
                readings = {reading.name: reading.available_bytes for reading in outside.facts.observe_readings()}
                free = {pool: available - promised.get(pool, 0) for pool, available in readings.items()}
                return FitChecked(key, check_costs(costs, free))
            case StartKeeper(key, assignment):
                self.progress.pop(key, None)
                adapter = outside.adapters[assignment.instance.spec.engine]
                port = choose_port()
                launch = render_launch(adapter, effect, self._members / key, port)
                attempt = assignment.instance.spec.attempt
                return KeeperStarted(key, await outside.keepers.start(key, attempt, port, launch))
            case Probe(key, assignment, process):
                adapter = outside.adapters[assignment.instance.spec.engine]
                return Probed(key, process.identity, await adapter.is_ready(process.port, assignment.key))
            case StopKeeper(key, grace_seconds):
                await outside.keepers.stop(key, grace_seconds)
                return None
            case ReleaseKeeper(key):
                await outside.keepers.release(key)
                return KeeperReleased(key)

    def _explain_found(self, key: str, found: EngineProcess | EngineExit | None) -> Event:
        match found:
            case EngineProcess():
                logger.info("instance id '%s' is adopted: its engine runs on as process %d", key, found.pid)
                return KeeperFound(key, found)
            case EngineExit():
                return KeeperMissed(key, found.identity, *self._explain(key, found))
            case None:
                return KeeperMissed(key, "", None, "")

    async def _watch_exit(self, key: str, process: EngineProcess) -> None:
        try:
            cause, message = self._explain(key, await self._outside.keepers.wait_exit(key))
        except AgentError as error:
            cause, message = error.cause, error.message
        await self._events.put(EngineExited(key, process.identity, cause, message))

    def _explain(self, key: str, ended: EngineExit) -> tuple[FailureCause | None, str]:
        member = self.state.members.get(key)
        if member is None:
            return None, ""
        return explain_exit(self._outside.adapters[member.spec.engine], member.assignment.instance, ended)

    def _follow(self, key: str, what: str) -> OnTransfer:
        def follow(transfer: Transfer) -> None:
            done = Progress(
                step=what,
                done_bytes=transfer.done_bytes,
                total_bytes=transfer.total_bytes,
                bytes_per_second=transfer.bytes_per_second,
            )
            # Model and engine come at once; the one with more to go is what a person waits for.
            other = self.progress.get(key)
            if other is None or other.step == what or missing_bytes(done) >= missing_bytes(other):
                self.progress[key] = done

        return follow


def missing_bytes(progress: Progress) -> int:
    return progress.total_bytes - progress.done_bytes


def fail(effect: Slow, error: AgentError) -> Event | None:
    """The event with which a failed effect ends."""
    key = effect.instance_id
    match effect:
        case FindKeeper():
            return KeeperMissed(key, "", error.cause, error.message)
        case FetchArtifact():
            return ArtifactFailed(key, error.cause, error.message)
        case EnsureEngine():
            return EngineFailed(key, error.cause, error.message)
        case CheckFit():
            return FitChecked(key, error.message)
        case StartKeeper():
            return KeeperFailed(key, error.cause, error.message)
        case Probe(_, _, process):
            return Probed(key, process.identity, False)
        case StopKeeper():
            logger.error("instance id '%s' could not be asked to stop: %s", key, error.message)
            return None
        case ReleaseKeeper():
            logger.error("the keeper of instance id '%s' could not be released: %s", key, error.message)
            return KeeperReleased(key)


def log_transitions(before: State, after: State) -> None:
    """One line for each member that changed its phase."""
    for key, member in after.members.items():
        old = before.members.get(key)
        if old is not None and old.phase is member.phase:
            continue
        name = f"{member.assignment.instance.metadata.namespace}/{member.assignment.instance.metadata.name}"
        words = f" ({member.failure.cause}: {member.failure.message})" if member.failure else ""
        logger.info("instance %s attempt %d is %s%s", name, member.spec.attempt, member.phase, words)
