"""A controller's loop on any store, with agents and gateways that follow the board. For real and for virtual time."""

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Generic, TypeVar

from covey_api.messages import REPORT_SECONDS
from covey_controller.board import FleetBoard
from covey_controller.history import History
from covey_controller.loop import ReconcileLoop, Surroundings
from covey_controller.ports import Store

from kit.worlds import SEAL_OF, FakeAgent, FakeGateway

StoreT = TypeVar("StoreT", bound=Store)


@dataclass(slots=True)
class Control(Generic[StoreT]):
    """One controller with what surrounds it."""

    store: StoreT
    board: FleetBoard
    history: History
    loop: ReconcileLoop
    agents: dict[str, FakeAgent] = field(default_factory=dict[str, FakeAgent])

    async def wait_routed(self, count: int, seconds: float = 60.0) -> None:
        for _ in range(int(seconds / 0.05)):
            if len(self.routed()) == count:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{count} endpoints must be routed within {seconds} s; there are {self.routed()}")

    def routed(self) -> list[str]:
        table = self.board.published.endpoints
        return [endpoint.instance_id for endpoint in table.endpoints] if table else []


async def live_agent(agent: FakeAgent, board: FleetBoard) -> None:
    """Follows its stream, reports every `REPORT_SECONDS` and after each change."""
    changed = asyncio.Event()

    async def follow() -> None:
        async for assignments in board.watch_assignments(agent.name):
            if assignments is None:
                continue
            agent.follow(assignments)
            for ask in assignments.asks:
                board.on_answer(agent.name, agent.answer(ask))
            changed.set()

    async def report() -> None:
        latest = None
        for sequence in itertools.count(1):
            board.on_report(agent.name, agent.report().model_copy(update={"sequence": sequence}))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_SECONDS):
                    await changed.wait()
            changed.clear()
            latest = board.published.assignments.get(agent.name) or latest
            if latest is not None:
                agent.follow(latest)

    async with asyncio.TaskGroup() as group:
        group.create_task(follow())
        group.create_task(report())


async def live_gateway(gateway: FakeGateway, board: FleetBoard) -> None:
    async for table in board.watch_endpoints(gateway.name):
        if table is not None:
            gateway.follow(table)
        board.on_demand(gateway.name, gateway.demand())


async def do_nothing(*_: object) -> None:
    """Nothing is behind a vault here."""


@contextlib.asynccontextmanager
async def controller(store: StoreT, *agents: FakeAgent) -> AsyncGenerator[Control[StoreT]]:
    clock = asyncio.get_running_loop().time
    board, history = FleetBoard(clock), History()
    surroundings = Surroundings(
        holder="me",
        engine_key=lambda instance_id: f"key-{instance_id}",
        seal_of=SEAL_OF,
        mint_id=lambda: secrets.token_hex(8),
        utc_now=lambda: datetime.fromtimestamp(clock(), UTC),
        deny_agent=do_nothing,
        prepare=do_nothing,
        stopwatch=lambda: 0.0,
    )
    loop = ReconcileLoop(store, board, history, surroundings)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop.run()), group.create_task(live_gateway(FakeGateway(), board))]
        tasks += [group.create_task(live_agent(agent, board)) for agent in agents]
        try:
            yield Control(store, board, history, loop, {agent.name: agent for agent in agents})
        finally:
            for task in tasks:
                task.cancel()
