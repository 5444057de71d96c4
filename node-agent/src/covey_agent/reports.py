"""Reports to the controller: what changed, and everything when it may have been lost.

A report follows each change of a member within 50 ms, and the last report after `REPORT_SECONDS` at the latest. What
did not change since the last answered report is left out; the first report, the one after a failed call, and the one
after `resend` are full.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from covey_api.engines import Lane, UnusableEngine
from covey_api.messages import (
    REPORT_SECONDS,
    MemberReport,
    Progress,
    Report,
    ReportAnswer,
    UnkeptArtifact,
)
from covey_api.node import NodeFacts
from covey_fleet_client.beats import next_beat
from covey_fleet_client.errors import FleetError, FleetErrorKind

from covey_agent.loading import Loads
from covey_agent.ports import Artifacts, Facts, Fleet
from covey_agent.runtime import Runtime
from covey_agent.supervisor.state import MemberState
from covey_agent.surveys import Survey
from covey_agent.whereabouts import Whereabouts

logger = logging.getLogger(__name__)

# One change seldom comes alone (keeper started, first probe, …): their reports are one.
DEBOUNCE_SECONDS = 0.05
MAX_MESSAGE = 1024
# Peaks move by pages while an engine warms up, and each change of a report is a plan's work.
_USED_STEP_BYTES = 2**20
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Self:
    """What the agent says of itself in each report."""

    node: str
    boot_id: str
    """Random per agent process."""
    version: str
    machine: str
    """As `observe_machine` says."""
    whereabouts: Whereabouts
    blobs_port: Callable[[], int]
    """Where other nodes get blobs; 0: nowhere."""


class _Told(NamedTuple):
    """What a report holds beside its readings."""

    facts: NodeFacts | None
    lanes: tuple[Lane, ...] | None
    blobs: tuple[str, ...]
    members: tuple[MemberReport, ...]
    unusable: tuple[UnusableEngine, ...] | None
    unkept: tuple[UnkeptArtifact, ...]


class Reporter:
    """`changed` is set by whoever sees something worth a report. `observe_unkept`: what is kept for the fleet, and
    isn't here. `read_output`: the last that a member's engine printed."""

    def __init__(
        self,
        this: Self,
        runtime: Runtime,
        survey: Survey,
        artifacts: Artifacts,
        facts: Facts,
        changed: asyncio.Event,
        observe_unkept: Callable[[], tuple[UnkeptArtifact, ...]] = tuple,
        on_standing: Callable[[str], None] = lambda words: None,
        read_output: Callable[[str], str] = lambda key: "",
    ) -> None:
        self._observe_unkept = observe_unkept
        self._this = this
        self.on_standing = on_standing
        """Told why the controller doesn't take this node; empty: it took a report."""
        self._runtime = runtime
        self._survey = survey
        self._artifacts = artifacts
        self._facts = facts
        self._changed = changed
        self._sequence = 0
        self._answered: _Told | None = None
        """All that the controller has been told; None: it may have lost it."""
        self._rendered: dict[str, tuple[MemberState, Progress | None, MemberReport]] = {}
        """By instance id: what was said last of each member without its Instance, and from what."""
        self._used: dict[str, int] = {}
        """By instance id: the most memory that its engine had."""
        self._loads = Loads(facts, read_output)

    @property
    def boot_id(self) -> str:
        return self._this.boot_id

    async def run(self, fleet: Fleet) -> None:
        """Report until cancelled."""
        self._answered = None
        complaint = ""
        while True:
            if not self._runtime.is_finding:
                try:
                    await self._report(fleet)
                    complaint = ""
                    self.on_standing("")
                except FleetError as error:
                    self._answered = None
                    if error.message != complaint:
                        logger.warning("the report did not reach the controller: %s", error.message)
                    complaint = error.message
                    if error.kind in (FleetErrorKind.DENIED, FleetErrorKind.REFUSED):
                        self.on_standing(error.message)
            await self._wait()

    async def _wait(self) -> None:
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(next_beat(now, REPORT_SECONDS, self._this.machine)):
                await self._changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(DEBOUNCE_SECONDS)
        self._changed.clear()

    async def _report(self, fleet: Fleet) -> None:
        self._sequence += 1
        told = self._observe()
        report = self._render(told)
        answer = await fleet.post(f"nodes/{self._this.node}/report", report, ReportAnswer)
        self._answered = None if answer.resend else told
        if answer.resend:
            self._changed.set()

    def _observe(self) -> _Told:
        survey, members = self._survey, self._render_members(is_full=False)
        return _Told(
            survey.facts, survey.lanes, self._artifacts.digests(), members, survey.unusable, self._observe_unkept()
        )

    def _render(self, told: _Told) -> Report:
        """All of it, or without what the controller has."""
        before = self._answered
        return Report(
            boot_id=self._this.boot_id,
            sequence=self._sequence,
            version=self._this.version,
            full=before is None,
            applied=self._runtime.state.order,
            address=self._this.whereabouts.address,
            machine=self._this.machine,
            facts=told.facts if before is None else _news(told.facts, before.facts),
            lanes=told.lanes if before is None else _news(told.lanes, before.lanes),
            readings=self._facts.observe_readings(),
            blobs=told.blobs if before is None else _news(told.blobs, before.blobs),
            members=self._render_members(is_full=True) if before is None else _news(told.members, before.members),
            blobs_port=self._this.blobs_port(),
            unusable=told.unusable if before is None else _news(told.unusable, before.unusable),
            unkept=told.unkept if before is None else _news(told.unkept, before.unkept),
        )

    def _render_members(self, *, is_full: bool) -> tuple[MemberReport, ...]:
        """Every member, by instance id; strays with their Instance always, since nobody else knows it."""
        members = self._runtime.state.members
        progress = self._observe_progress(members)
        self._used = {key: self._observe_used(key, member) for key, member in members.items()}
        if is_full:
            return tuple(
                render_member(member, progress.get(key), is_whole=True, used_bytes=self._used[key])
                for key, member in members.items()
            )
        self._rendered = {key: self._render_again(key, member, progress.get(key)) for key, member in members.items()}
        return tuple(report for _, _, report in self._rendered.values())

    def _observe_progress(self, members: Mapping[str, MemberState]) -> dict[str, Progress | None]:
        """Of what is fetched, or else of what loads."""
        now = asyncio.get_running_loop().time()
        self._loads.forget(frozenset(members))
        loads = {key: self._loads.observe(member, now) for key, member in members.items()}
        return {key: self._runtime.progress.get(key) or load for key, load in loads.items()}

    def _render_again(
        self, key: str, member: MemberState, progress: Progress | None
    ) -> tuple[MemberState, Progress | None, MemberReport]:
        """As it was rendered last, while the member is the very same value."""
        last, used = self._rendered.get(key), self._used[key]
        if last is not None and last[0] is member and last[1] is progress and last[2].used_bytes == used:
            return last
        return member, progress, render_member(member, progress, is_whole=not member.assigned, used_bytes=used)

    def _observe_used(self, key: str, member: MemberState) -> int:
        """In whole MiB, and never less than before of the same engine: a report follows each change."""
        keeper = member.keeper
        if keeper is None or keeper.attempt != member.spec.attempt:
            return 0
        last = self._rendered.get(key)
        before = last[2].used_bytes if last is not None and last[2].pid == keeper.pid else 0
        return max(before, self._facts.observe_used_bytes(keeper.pid) // _USED_STEP_BYTES * _USED_STEP_BYTES)


def _news(current: T, answered: T) -> T | None:
    return None if current is answered or current == answered else current


def render_member(
    member: MemberState, progress: Progress | None, *, is_whole: bool, used_bytes: int = 0
) -> MemberReport:
    instance, failure = member.assignment.instance, member.failure
    # An engine of an earlier attempt, which is being stopped, is not this attempt's to route to.
    keeper = member.keeper if member.keeper and member.keeper.attempt == member.spec.attempt else None
    return MemberReport(
        instance_id=member.instance_id,
        namespace=instance.metadata.namespace,
        name=instance.metadata.name,
        member=member.assignment.member,
        attempt=member.spec.attempt,
        phase=member.phase,
        port=keeper.port if keeper else 0,
        front_port=keeper.front_port if keeper else member.kept_port,
        pid=keeper.pid if keeper else 0,
        used_bytes=used_bytes,
        cause=failure.cause if failure else None,
        message=failure.message[:MAX_MESSAGE] if failure else "",
        pool=failure.pool if failure else "",
        restarts=member.restarts,
        progress=progress,
        instance=instance if is_whole else None,
        seal=member.assignment.seal if is_whole else "",
    )
