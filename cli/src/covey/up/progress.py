"""What `covey up --wait` shows while placements become ready: bars on a terminal, lines elsewhere."""

import asyncio
from dataclasses import dataclass

import click
from rich.console import Console

from covey.bars import Bars
from covey.control import Control
from covey.errors import CommandError
from covey.jsonpath import find_values
from covey.ports import JsonObject

POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where one placement stands."""

    name: str
    namespace: str
    model: str
    ready: bool
    stalled: bool
    reason: str
    message: str


def parse_outcome(item: JsonObject) -> Outcome:
    """The outcome in a Placement's conditions; one that nobody has looked at yet is neither ready nor stalled."""
    metadata = item["metadata"]
    seen = item.get("status", {}).get("observedGeneration", -1) >= metadata.get("generation", 0)
    conditions = {condition["type"]: condition for condition in find_values(item, ".status.conditions")}
    ready = conditions.get("Ready", {})
    return Outcome(
        name=metadata["name"],
        namespace=metadata.get("namespace", ""),
        model=item["spec"]["modelRef"]["name"],
        ready=seen and ready.get("status") == "True",
        stalled=seen and conditions.get("Stalled", {}).get("status") == "True",
        reason=ready.get("reason", "Pending"),
        message=ready.get("message", ""),
    )


class Display(Bars):
    """One bar a placement."""

    def update(self, outcome: Outcome, progress: JsonObject) -> None:
        step = str(progress.get("step", "")) or outcome.reason
        counts = (int(progress.get(name, 0)) for name in ("doneBytes", "totalBytes", "bytesPerSecond"))
        self.show(outcome.name, f"{outcome.name}: {step}", *counts)


async def wait_until_settled(control: Control, console: Console) -> list[Outcome]:
    """Every placement as it is once each is ready or stalled, and the gateway routes by what this controller has seen.

    Until then a status may be what the controller of an earlier run wrote. Shows progress and each source error.
    """
    told: set[str] = set()
    with Display(console) as display:
        while True:
            try:
                outcomes = await asyncio.to_thread(_observe, control, display, told)
            except CommandError:  # the controller is being started again: its parent says so
                outcomes = None
            if outcomes is not None and all(outcome.ready or outcome.stalled for outcome in outcomes):
                return outcomes
            await asyncio.sleep(POLL_SECONDS)


def _observe(control: Control, display: Display, told: set[str]) -> list[Outcome] | None:
    source = control.get_source()
    for error in source.get("errors", ()):
        line = f"{error['file']}:{error['line']}: {error['message']}"
        if line not in told:
            told.add(line)
            click.echo(line, err=True)
    is_routed = any(gateway["current"] for gateway in control.list_gateways())
    outcomes = [parse_outcome(item) for item in control.list_objects("placements")]
    for outcome in outcomes:
        if not outcome.ready and not outcome.stalled:
            display.update(outcome, control.get_progress("placements", outcome.namespace, outcome.name))
    is_read = outcomes or source["applied"] or source.get("errors")
    return outcomes if is_routed and is_read else None
