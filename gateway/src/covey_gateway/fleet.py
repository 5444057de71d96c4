"""The gateway's end of the fleet API: tables come down, demand goes up. Serving never waits for either.

A table is applied when its (term, serial) is above the highest this gateway has ever applied; that one is kept for the
next start (`kept_table`).
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Protocol, TypeVar

from covey_api.messages import (
    REPORT_SECONDS,
    Cancel,
    CancelAnswer,
    CertificateRole,
    Demand,
    DemandAnswer,
    Endpoints,
)
from covey_api.meta import Message
from covey_fleet_client.backoff import LONGEST_DELAY_SECONDS, Backoff
from covey_fleet_client.beats import next_beat
from covey_fleet_client.client import FleetClient
from covey_fleet_client.errors import FleetError, FleetErrorKind
from covey_fleet_client.identity import load_identity
from covey_fleet_client.join import Admission, ensure_admitted
from covey_fleet_client.tasks import flatten_errors, run_apart
from pydantic import ValidationError

from covey_gateway.cancels import NotPassedOn
from covey_gateway.failures import StartError
from covey_gateway.kept_table import KeptTable
from covey_gateway.routing.table import RoutingTable, parse_endpoints
from covey_gateway.traffic import Traffic

# Changes that come together are reported together; a drain waits no longer than a person notices.
_MIN_REPORT_SECONDS = 0.05
# How long a gateway that ends waits for a controller that may be ending too.
_LAST_REPORT_SECONDS = 1

_log = logging.getLogger(__name__)


Answer = TypeVar("Answer", bound=Message)


class Fleet(Protocol):
    """The controller, as `covey_fleet_client.FleetClient` reaches it. Both raise FleetError."""

    def stream(self, path: str) -> AsyncGenerator[bytes]:
        """Lines, until it breaks."""
        ...

    async def post(self, path: str, message: Message, answer: type[Answer]) -> Answer: ...


class FleetLink:
    """`apply` puts a table into force, `kept` keeps it; `address` is where clients reach this gateway.

    `machine`: as `observe_machine` says; None: no endpoint is on this machine. `share`: told how many gateways there
    are, each time that the controller says so. `pass_down`: each table that is put into
    force here, for the workers of this gateway.
    """

    def __init__(
        self,
        traffic: Traffic,
        apply: Callable[[RoutingTable], None],
        kept: KeptTable,
        controller_url: str,
        admission: Admission,
        name: str,
        address: str,
        machine: str | None,
        share: Callable[[int], None] = lambda _: None,
        pass_down: Callable[[Endpoints], None] = lambda _: None,
    ) -> None:
        self._share = share
        self._pass_down = pass_down
        self._traffic = traffic
        self._apply = apply
        self._kept = kept
        self._folder = kept.folder
        self._url = controller_url
        self._admission = admission
        self._is_refused = False
        self._name = name
        self._address = address
        self._machine = machine
        self._is_due = asyncio.Event()
        self._is_connected = False
        self._connected_fleet: Fleet | None = None
        self._leader_term: int | None = None
        """Of the leader that is connected, once it has answered."""
        traffic.name_gateway(name)
        traffic.watch_news(self._is_due.set)
        traffic.cancels.pass_on = self._pass_on

    async def run(self) -> None:
        """Join and stay connected, until cancelled. StartError when refused without ever having been in the fleet."""
        backoff = Backoff()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._kept.run())
            while True:
                await self._wait_after(await run_apart(self._follow(backoff)), backoff)

    async def _wait_after(self, error: FleetError, backoff: Backoff) -> None:
        if error.kind is FleetErrorKind.UNREACHABLE:
            delay_seconds = backoff.next_delay_seconds(random.random())  # noqa: S311  (jitter, no secret)
            level = logging.WARNING if self._is_connected or backoff.failures == 1 else logging.DEBUG
            _log.log(level, "the controller is not reached, serving goes on: %s", error.message)
        elif error.kind is FleetErrorKind.DENIED and not self._is_refused and self._may_join_anew():
            self._is_refused = True
            delay_seconds = backoff.next_delay_seconds(random.random())  # noqa: S311  (jitter, no secret)
            _log.warning("the controller refuses this certificate; joining anew: %s", error.message)
        elif not self._traffic.has_table and not self._was_in_the_fleet():
            raise StartError(error.message)
        else:
            delay_seconds = LONGEST_DELAY_SECONDS
            goes_on = "serving goes on" if self._traffic.has_table else "it waits to be let in"
            _log.error("the controller refuses this gateway, %s: %s", goes_on, error.message)
        self._is_connected = False
        await asyncio.sleep(delay_seconds)

    def _may_join_anew(self) -> bool:
        """A pod by its token; who was in the fleet, by a new one."""
        return self._admission.is_standing() or self._was_in_the_fleet()

    def _was_in_the_fleet(self) -> bool:
        """It may be let in again: it waits for that, also where it was removed before its first table came."""
        return load_identity(self._folder).certificate is not None

    async def _follow(self, backoff: Backoff) -> FleetError:
        """One connection, to its end: what weighs most of it, a refusal before a broken connection."""
        errors: list[FleetError] = []
        try:
            await self._connect(backoff)
        except* FleetError as group:
            errors = flatten_errors(group)
        return min(errors, key=lambda error: error.kind is FleetErrorKind.UNREACHABLE)

    async def _connect(self, backoff: Backoff) -> None:
        """Join and follow; ends by FleetError only."""
        identity = await ensure_admitted(
            load_identity(self._folder),
            self._url,
            CertificateRole.GATEWAY,
            self._name,
            self._admission,
            is_refused=self._is_refused,
        )
        async with FleetClient(identity, self._url) as client, asyncio.TaskGroup() as tasks:
            tasks.create_task(client.watch_certificate())
            tasks.create_task(self.serve(client, backoff))

    async def serve(self, fleet: Fleet, backoff: Backoff) -> None:
        """Follow tables and report demand over one connection; ends by FleetError only."""
        self._leader_term = None
        self._traffic.accounts.forget_told()
        self._connected_fleet = fleet
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch_endpoints(fleet, backoff))
                tasks.create_task(self._report_demand(fleet))
        finally:
            self._connected_fleet = None

    async def report_last(self) -> None:
        """What was served since the report before: nobody knows it once the process is gone."""
        if self._connected_fleet is None:
            return
        with suppress(FleetError, TimeoutError):
            async with asyncio.timeout(_LAST_REPORT_SECONDS):
                await self._connected_fleet.post("demand", self._observe_demand(), DemandAnswer)

    async def _pass_on(self, cancel: Cancel) -> int:
        if self._connected_fleet is None:
            raise NotPassedOn("the controller is not reached")
        try:
            return (await self._connected_fleet.post("cancel", cancel, CancelAnswer)).gateways
        except FleetError as error:
            raise NotPassedOn(error.message) from None

    async def _watch_endpoints(self, fleet: Fleet, backoff: Backoff) -> None:
        async with aclosing(fleet.stream(f"endpoints?boot={self._traffic.accounts.boot}")) as lines:
            async for line in lines:
                if not self._is_connected:
                    self._is_connected = True
                    self._is_refused = False
                    backoff.reset()
                    _log.info("the controller sends tables")
                try:
                    self._take(Endpoints.model_validate_json(line))
                except ValidationError as error:
                    _log.error("a table of the controller can't be read and is ignored: %s", error)

    def _take(self, snapshot: Endpoints) -> None:
        for cancel in snapshot.cancels:
            self._traffic.cancels.end(cancel)
        if not snapshot.order.is_after(self._traffic.table.order):
            return
        self._apply(parse_endpoints(snapshot, self._machine))
        self._pass_down(snapshot)
        self._kept.keep(snapshot)
        self._is_due.set()

    async def _report_demand(self, fleet: Fleet) -> None:
        """Every `REPORT_SECONDS`, and at once when a table was applied or a departed endpoint has become idle."""
        clock = asyncio.get_running_loop().time
        while True:
            self._is_due.clear()
            reported_at = clock()
            demand = self._observe_demand()
            answer = await fleet.post("demand", demand, DemandAnswer)
            if answer.gateways:
                self._share(answer.gateways)
            if answer.term != self._leader_term:
                self._leader_term = answer.term
                self._traffic.accounts.forget_told()
                self._is_due.set()
            else:
                self._traffic.accounts.confirm_usage(demand.usage, answer.spent)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_beat(reported_at, REPORT_SECONDS, self._machine or "")):
                    await self._is_due.wait()
            if (rest_seconds := reported_at + _MIN_REPORT_SECONDS - clock()) > 0:
                await asyncio.sleep(rest_seconds)

    def _observe_demand(self) -> Demand:
        table = self._traffic.table if self._traffic.has_table else None
        is_foreign = table is not None and table.order.term != self._leader_term
        return Demand(
            gateway=self._name,
            address=self._address,
            applied=self._traffic.observe_applied(),
            endpoints=self._traffic.observe_demand(),
            nodes=self._traffic.observe_nodes() if is_foreign else (),
            models=self._traffic.observe_models(),
            boot=self._traffic.accounts.boot,
            usage=self._traffic.accounts.observe_usage(),
        )
