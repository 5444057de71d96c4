"""Carries out one effect of the supervisor: what to call, and with which event it ends, well or not.

Holds the progress of fetches, and no state of members: that is the supervisor's.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from covey_api.engines import HOST_POOL, EngineName
from covey_api.instance import Costs, MemberRole
from covey_api.messages import Progress
from covey_api.model import ResolvedArtifact
from covey_api.reasons import FailureCause
from covey_planner.fit.check import find_shortages, pools_of, promise_left

from covey_agent.engines.donors import explain_not_listening
from covey_agent.examining import examine
from covey_agent.exits import explain_exit
from covey_agent.facts.host import observe_cpu_cores
from covey_agent.launching import choose_group, choose_port, render_launch
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
from covey_agent.supervisor.effects import (
    CheckFit,
    EnsureEngine,
    Examine,
    FetchArtifact,
    FindKeeper,
    KeepPort,
    Loading,
    Probe,
    ReleaseKeeper,
    Slow,
    StartKeeper,
    StopKeeper,
)
from covey_agent.supervisor.events import (
    ArtifactFailed,
    ArtifactReady,
    EngineExited,
    EngineFailed,
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
)
from covey_agent.supervisor.state import MemberState, member_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outside:
    """What the supervisor's effects need of the world."""

    artifacts: Artifacts
    engines: Engines
    facts: Facts
    keepers: Keepers
    adapters: Mapping[EngineName, EngineAdapter]
    choose_port: Callable[[], int] = choose_port
    """A port of loopback that is free now."""


class Performer:
    """`members`: their folder. `observe_member`: what the supervisor knows of one."""

    def __init__(self, outside: Outside, members: Path, observe_member: Callable[[str], MemberState | None]) -> None:
        self._outside = outside
        self._members = members
        self._observe_member = observe_member
        self.progress: dict[str, Progress] = {}
        """Of members that are being fetched for."""

    async def carry_out(self, effect: Slow) -> Event | None:
        """The effect, to its end. Whatever goes wrong is an event too: no member ends the agent."""
        try:
            return await self._perform(effect)
        except AgentError as error:
            return fail(effect, error)
        except Exception as error:
            logger.exception("%s of instance id '%s' failed unexpectedly", type(effect).__name__, effect.instance_id)
            return fail(effect, AgentError(FailureCause.EXITED, f"unexpected {type(error).__name__}: {error}"))

    async def wait_exit(self, key: str, process: EngineProcess) -> EngineExited:
        """How this engine ends, once it has."""
        try:
            cause, message = self._explain(key, await self._outside.keepers.wait_exit(key))
        except AgentError as error:
            cause, message = error.cause, error.message
        return EngineExited(key, process.identity, cause, message)

    async def _check_fit(self, key: str, costs: tuple[Costs, ...], loading: tuple[Loading, ...]) -> FitChecked:
        """Against readings of now: a device's are as old as the engine's last list of them."""
        outside = self._outside
        if any(each.pool != HOST_POOL for each in costs):
            await outside.engines.refresh_devices()
        readings = {reading.name: reading.available_bytes for reading in outside.facts.observe_readings()}
        promised: dict[str, int] = {}
        for each in loading:
            taken = outside.facts.observe_taken_bytes(each.pid) if each.pid else 0
            for pool, count in promise_left(each.costs, taken).items():
                promised[pool] = promised.get(pool, 0) + count
        shared = outside.facts.observe_shared_devices()
        short = find_shortages(costs, readings, promised, shared)
        pools = [pool for pool, _ in short]
        worst = HOST_POOL if HOST_POOL in pools else next(iter(pools), "")
        names = [each.name for each in loading if pools_of(each.costs, shared).intersection(pools)]
        return FitChecked(key, "; ".join(text for _, text in short), worst, next(filter(None, names), ""))

    async def _perform(self, effect: Slow) -> Event | None:
        outside = self._outside
        match effect:
            case FindKeeper(key, engine):
                return self._explain_found(key, await outside.keepers.find(key, engine))
            case FetchArtifact(key, artifact, companions):
                return await self._fetch(key, artifact, companions)
            case EnsureEngine(key, engine, spec, version, architecture):
                program = await outside.engines.ensure(engine, spec, self._follow(key, "engine"), version)
                if architecture:
                    await outside.engines.require_architecture(engine, program, architecture)
                return EngineReady(key, program)
            case KeepPort(key):
                return PortKept(key, outside.keepers.keep_port(key))
            case CheckFit(key, costs, loading):
                return await self._check_fit(key, costs, loading)
            case StartKeeper(key, assignment, kept_port=kept_port):
                self.progress.pop(key, None)
                adapter = outside.adapters[assignment.instance.spec.engine]
                port = outside.choose_port()
                group = await choose_group(assignment, outside.choose_port, kept_port)
                cores = observe_cpu_cores(Path("/"))
                launch = render_launch(adapter, effect, self._members / key, port, group, cores)
                attempt = assignment.instance.spec.attempt
                return KeeperStarted(key, await outside.keepers.start(key, attempt, port, launch))
            case Probe(key, assignment, process):
                if member_of(assignment).role is MemberRole.DONOR:
                    return Probed(key, process.identity, await explain_not_listening(process.port))
                adapter = outside.adapters[assignment.instance.spec.engine]
                if assignment.member != assignment.instance.spec.members[0].name:
                    return Probed(key, process.identity, await adapter.explain_unwell(process.port))
                unready = await adapter.explain_unready(assignment.instance, process.port, assignment.key)
                return Probed(key, process.identity, unready)
            case Examine(key, assignment, process):
                adapter = outside.adapters[assignment.instance.spec.engine]
                finding, words = await examine(adapter, outside.facts, assignment, process)
                return Examined(key, process.identity, assignment.suspect_since, finding, words)
            case StopKeeper(key, grace_seconds):
                await outside.keepers.stop(key, grace_seconds)
                return None
            case ReleaseKeeper(key):
                await outside.keepers.release(key)
                return KeeperReleased(key)

    async def _fetch(
        self, key: str, weights: ResolvedArtifact, companions: tuple[ResolvedArtifact, ...]
    ) -> ArtifactReady:
        """One file after the other, told as one transfer."""
        wanted = (weights, *companions)
        total_bytes, done_bytes = sum(each.size_bytes for each in wanted), 0
        follow = self._follow(key, "model")
        paths: list[Path] = []
        for each in wanted:
            tell = follow if len(wanted) == 1 else _within(follow, done_bytes, total_bytes)
            paths.append(await self._outside.artifacts.fetch(each, tell))
            done_bytes += each.size_bytes
        return ArtifactReady(key, paths[0], tuple(paths[1:]))

    def _explain_found(self, key: str, found: EngineProcess | EngineExit | None) -> Event:
        match found:
            case EngineProcess():
                logger.info("instance id '%s' is adopted: its engine runs on as process %d", key, found.pid)
                return KeeperFound(key, found)
            case EngineExit():
                return KeeperMissed(key, found.identity, *self._explain(key, found))
            case None:
                return KeeperMissed(key, "", None, "")

    def _explain(self, key: str, ended: EngineExit) -> tuple[FailureCause | None, str]:
        member = self._observe_member(key)
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


def _within(follow: OnTransfer, before_bytes: int, total_bytes: int) -> OnTransfer:
    """Progress of one of several files, as progress of them all."""

    def tell(transfer: Transfer) -> None:
        done_bytes = min(total_bytes, before_bytes + transfer.done_bytes)
        follow(Transfer(done_bytes, total_bytes, transfer.bytes_per_second))

    return tell


def missing_bytes(progress: Progress) -> int:
    return progress.total_bytes - progress.done_bytes


def fail(effect: Slow, error: AgentError) -> Event | None:
    """The event with which a failed effect ends."""
    key = effect.instance_id
    match effect:
        case FindKeeper():
            return KeeperMissed(key, "", error.cause, error.message)
        case FetchArtifact():
            return ArtifactFailed(key, error.cause, error.message, error.retry_after_seconds)
        case EnsureEngine():
            return EngineFailed(key, error.cause, error.message, error.retry_after_seconds)
        case KeepPort():
            return PortMissed(key, error.cause, error.message)
        case CheckFit():
            return FitChecked(key, error.message)
        case StartKeeper():
            return KeeperFailed(key, error.cause, error.message)
        case Probe(_, _, process):
            return Probed(key, process.identity, error.message)
        case Examine(_, assignment, process):
            return Examined(key, process.identity, assignment.suspect_since, Finding.COMPUTES, error.message)
        case StopKeeper():
            logger.error("instance id '%s' could not be asked to stop: %s", key, error.message)
            return None
        case ReleaseKeeper():
            logger.error("the keeper of instance id '%s' could not be released: %s", key, error.message)
            return KeeperReleased(key)
