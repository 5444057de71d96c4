"""Reports to the controller: what changed, and everything when it may have been lost.

A report follows each change of a member within 50 ms, and the last report after `REPORT_SECONDS` at the latest. What
did not change since the last answered report is left out; the first report, the one after a failed call, and the one
after `resend` are full.
"""

import asyncio
import logging
from dataclasses import dataclass

from covey_api.messages import REPORT_SECONDS, MemberReport, Progress, Report, ReportAnswer
from covey_fleet_client.errors import FleetError

from covey_agent.ports import Artifacts, Facts, Fleet
from covey_agent.runtime import Runtime
from covey_agent.supervisor.state import MemberState
from covey_agent.surveys import Survey
from covey_agent.whereabouts import Whereabouts

logger = logging.getLogger(__name__)

# One change seldom comes alone (keeper started, first probe, …): their reports are one.
DEBOUNCE_SECONDS = 0.05
MAX_MESSAGE = 1024


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


class Reporter:
    """`changed` is set by whoever sees something worth a report."""

    def __init__(
        self,
        this: Self,
        runtime: Runtime,
        survey: Survey,
        artifacts: Artifacts,
        facts: Facts,
        changed: asyncio.Event,
    ) -> None:
        self._this = this
        self._runtime = runtime
        self._survey = survey
        self._artifacts = artifacts
        self._facts = facts
        self._changed = changed
        self._sequence = 0
        self._answered: Report | None = None
        """All that the controller has been told; None: it may have lost it."""

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
                except FleetError as error:
                    self._answered = None
                    if error.message != complaint:
                        logger.warning("the report did not reach the controller: %s", error.message)
                    complaint = error.message
            await self._wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(DEBOUNCE_SECONDS)
        self._changed.clear()

    async def _report(self, fleet: Fleet) -> None:
        self._sequence += 1
        current = self._observe()
        report = self._fill_up(current) if self._answered is None else leave_out(current, self._answered)
        answer = await fleet.post(f"nodes/{self._this.node}/report", report, ReportAnswer)
        self._answered = None if answer.resend else current
        if answer.resend:
            self._changed.set()

    def _observe(self) -> Report:
        return Report(
            boot_id=self._this.boot_id,
            sequence=self._sequence,
            version=self._this.version,
            full=False,
            applied=self._runtime.state.order,
            address=self._this.whereabouts.address,
            machine=self._this.machine,
            facts=self._survey.facts,
            lanes=self._survey.lanes,
            readings=self._facts.observe_readings(),
            blobs=self._artifacts.digests(),
            members=self._render_members(is_full=False),
        )

    def _fill_up(self, current: Report) -> Report:
        return current.model_copy(update={"full": True, "members": self._render_members(is_full=True)})

    def _render_members(self, *, is_full: bool) -> tuple[MemberReport, ...]:
        """Every member, by instance id; strays with their Instance always, since nobody else knows it."""
        progress = self._runtime.progress
        return tuple(
            render_member(member, progress.get(key), is_whole=is_full or not member.assigned)
            for key, member in self._runtime.state.members.items()
        )


def leave_out(current: Report, answered: Report) -> Report:
    """The report without what the controller has."""
    return current.model_copy(
        update={
            "facts": None if current.facts == answered.facts else current.facts,
            "lanes": None if current.lanes == answered.lanes else current.lanes,
            "blobs": None if current.blobs == answered.blobs else current.blobs,
            "members": None if current.members == answered.members else current.members,
        }
    )


def render_member(member: MemberState, progress: Progress | None, *, is_whole: bool) -> MemberReport:
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
        front_port=keeper.front_port if keeper else 0,
        pid=keeper.pid if keeper else 0,
        cause=failure.cause if failure else None,
        message=failure.message[:MAX_MESSAGE] if failure else "",
        restarts=member.restarts,
        progress=progress,
        instance=instance if is_whole else None,
        seal=member.assignment.seal if is_whole else "",
    )
