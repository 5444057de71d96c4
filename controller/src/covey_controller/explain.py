"""`Explainer` of the ports: what the control API shows, from what the loop saw and said last."""

import asyncio
from collections.abc import Mapping
from typing import Any

from covey_api.kinds import Kind, ObjectKey
from covey_api.messages import Order

from covey_controller.board import FleetBoard
from covey_controller.history import History
from covey_controller.ports import GatewaySession, ToldEvent
from covey_controller.reconcile.forecast import forecast
from covey_controller.reconcile.forecast_text import render_forecast
from covey_controller.reconcile.why import explain, observe_progress, progress_data
from covey_controller.reconcile.world import World

# The one that is made, and those that wait for it.
MAX_FORECASTS = 8


class HistoryExplainer:
    """Reads `History` and the board; changes neither."""

    def __init__(self, history: History, board: FleetBoard) -> None:
        self._history = history
        self._board = board
        # One at a time: each costs as much as many turns of the loop.
        self._foreseeing = asyncio.Lock()
        self._forecasts = 0

    def explain(self, key: ObjectKey) -> tuple[str, dict[str, Any]]:
        """Text for people and the same as data. KeyError if there is no such object."""
        world = self._history.world
        if world is None:
            raise KeyError(key)
        return explain(world, self._history.now, key)

    async def forecast(self, documents: tuple[Kind, ...]) -> tuple[str, dict[str, Any]]:
        """In a thread, because a large fleet takes seconds: the world is a value, so nothing is shared."""
        self._forecasts += 1
        try:
            async with self._foreseeing:
                world, now = self._history.world, self._history.now
                if world is None:
                    return "the fleet has not been looked at yet\n", {}
                return await asyncio.to_thread(_foresee, world, now, documents)
        finally:
            self._forecasts -= 1

    @property
    def is_busy(self) -> bool:
        """Whether as many forecasts are asked for as may wait: who tries again and again would fill the line."""
        return self._forecasts >= MAX_FORECASTS

    def objects(self) -> Mapping[ObjectKey, Kind]:
        """All objects as the loop saw them last, status included."""
        return self._history.objects

    async def wait_objects_changed(self, timeout_seconds: float) -> bool:
        return await self._history.wait_changed(timeout_seconds)

    def events(self, key: ObjectKey) -> tuple[ToldEvent, ...]:
        """Since this process leads; the store keeps those before."""
        return self._history.events(key)

    def gateways(self) -> tuple[GatewaySession, ...]:
        self._board.forget_gateways()
        sessions = self._board.observed.gateways
        return tuple(sessions[name] for name in sorted(sessions))

    def watched_seconds(self) -> float:
        """For how long gateways could have been heard by this leader."""
        world = self._history.world
        return asyncio.get_running_loop().time() - world.led_since if world is not None else 0.0

    def table_order(self) -> Order | None:
        table = self._board.published.endpoints
        return table.order if table is not None else None

    def progress(self, key: ObjectKey) -> dict[str, Any]:
        """Live progress; empty when there is none. Never stored."""
        world = self._history.world
        progress = observe_progress(world, self._history.now, key) if world else None
        return progress_data(progress) if progress else {}


def _foresee(world: World, now: float, documents: tuple[Kind, ...]) -> tuple[str, dict[str, Any]]:
    """The words too: each Instance's reason asks nodes again."""
    return render_forecast(forecast(world, now, documents), world.objects, documents)
