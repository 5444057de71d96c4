"""The agent's place in its fleet: joins, follows the stream of assignments, reports, answers. Tries for ever.

No failure here touches a member: without a controller everything runs on as it was last wished.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

from covey_api.messages import Assignments, CertificateRole
from covey_fleet_client.backoff import Backoff
from covey_fleet_client.client import FleetClient
from covey_fleet_client.errors import FleetError, FleetErrorKind
from covey_fleet_client.files import describe_refusal
from covey_fleet_client.identity import Identity, load_identity
from covey_fleet_client.join import Admission, ensure_admitted
from covey_fleet_client.tasks import flatten_errors, run_apart
from pydantic import ValidationError

from covey_agent.asks import Asks
from covey_agent.keeping import Keeping
from covey_agent.peers.directory import FleetDirectory
from covey_agent.ports import Fleet
from covey_agent.refused import RefusedFile
from covey_agent.reports import Reporter
from covey_agent.runtime import Runtime

logger = logging.getLogger(__name__)


class Membership:
    """`jitter`: a random number in [0, 1)."""

    def __init__(
        self,
        node: str,
        runtime: Runtime,
        reporter: Reporter,
        asks: Asks,
        refused: RefusedFile,
        jitter: Callable[[], float],
        directory: FleetDirectory,
        keeping: Keeping,
    ) -> None:
        self._node = node
        self._runtime = runtime
        self._reporter = reporter
        self._asks = asks
        self._refused = refused
        self._jitter = jitter
        self._directory = directory
        self._keeping = keeping

    async def run(self, folder: Path, controller_url: str, admission: Admission) -> None:
        """Until cancelled. `folder` holds the identity.

        A fleet that doesn't know this certificate may have been made anew: then the token, if it is a new one or a
        pod's, joins again.
        """
        backoff, is_refused = Backoff(), False
        while True:
            joined = await self._join(folder, controller_url, admission, is_refused=is_refused)
            refusals = await run_apart(self._take_part(joined, controller_url))
            is_refused = any(error.kind is FleetErrorKind.DENIED for error in refusals)
            for error in refusals:
                logger.warning("node '%s' has no place in this fleet: %s", self._node, error.message)
                self._reporter.on_standing(error.message)
            await asyncio.sleep(backoff.next_delay_seconds(self._jitter()))

    async def _take_part(self, joined: Identity, controller_url: str) -> list[FleetError]:
        """Serve by this certificate; why the controller doesn't take it."""
        refusals: list[FleetError] = []
        try:
            async with FleetClient(joined, controller_url) as fleet, asyncio.TaskGroup() as group:
                group.create_task(fleet.watch_certificate())
                group.create_task(self.serve(fleet))
        except* FleetError as errors:
            refusals = flatten_errors(errors)
        return refusals

    async def serve(self, fleet: Fleet) -> None:
        """Follow, report and answer, until cancelled; FleetError when the controller doesn't take this certificate."""
        with self._directory.reached_by(fleet):
            await self._serve(fleet)

    async def _serve(self, fleet: Fleet) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(fleet))
            group.create_task(self._reporter.run(fleet))
            group.create_task(self._asks.run(fleet))

    async def _join(self, folder: Path, controller_url: str, admission: Admission, *, is_refused: bool) -> Identity:
        backoff, complaint = Backoff(), ""
        while True:
            try:
                identity = load_identity(folder)
                return await ensure_admitted(
                    identity, controller_url, CertificateRole.AGENT, self._node, admission, is_refused=is_refused
                )
            except (FleetError, OSError) as error:
                words = describe_refusal(error) if isinstance(error, OSError) else error.message
                if words != complaint:
                    logger.warning("node '%s' could not join the fleet yet: %s", self._node, words)
                complaint = words
            await asyncio.sleep(backoff.next_delay_seconds(self._jitter()))

    async def _follow(self, fleet: Fleet) -> None:
        backoff, complaint = Backoff(), ""
        while True:
            try:
                async with aclosing(
                    fleet.stream(f"nodes/{self._node}/assignments?boot={self._reporter.boot_id}")
                ) as lines:
                    async for line in lines:
                        await self._receive(line)
                        backoff.reset()
                        complaint = ""
            except FleetError as error:
                if error.kind in (FleetErrorKind.DENIED, FleetErrorKind.INVALID):
                    raise
                if error.message != complaint:
                    logger.warning("no assignments, everything runs on as last assigned: %s", error.message)
                complaint = error.message
            await asyncio.sleep(backoff.next_delay_seconds(self._jitter()))

    async def _receive(self, line: bytes) -> None:
        try:
            assignments = Assignments.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            logger.error("a snapshot of assignments must parse; it was ignored: `%s` %s", where, first["msg"])
            return
        if assignments.node != self._node:
            logger.error("a snapshot for node '%s' came to node '%s'; it was ignored", assignments.node, self._node)
            return
        self._refused.write(assignments.refused_gateways, assignments.refused_nodes)
        await self._runtime.receive(assignments)
        self._asks.receive(assignments.asks)
        if assignments.complete and assignments.kept is not None:
            self._keeping.receive(assignments.kept)
