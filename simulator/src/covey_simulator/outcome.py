"""What a scenario came to: what holds at its end, and the whole as data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from covey_api.kinds import ObjectKey
from covey_api.meta import ConditionStatus
from covey_api.placement import Placement

from covey_simulator.accounts import Accounts, Entry, ModelAccount, Shortage, count_wished
from covey_simulator.scenario import Scenario
from covey_simulator.settled import find_condition, find_serving, is_reached, why_not_settled
from covey_simulator.source import ScenarioSource
from covey_simulator.world import World


@dataclass(frozen=True, slots=True)
class Served:
    """One Placement at the end."""

    key: ObjectKey
    wished: int
    serving: int
    nodes: tuple[str, ...]
    """Where it serves; a node for each replica."""
    is_ready: bool
    """By the controller: as many as are wished serve."""
    reason: str
    message: str
    shortages: Sequence[Shortage]


@dataclass(frozen=True, slots=True)
class Away:
    """A machine that nobody reaches at the end, and instances that run on it all the same."""

    node: str
    is_on: bool
    instances: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    scenario: Scenario
    start_seconds: float
    """Until the fleet had settled for the first time, or nobody waited any longer."""
    start_unsettled: str
    """What was still to happen then; empty: nothing."""
    seconds: float
    """From then to the end."""
    unsettled: str
    """What was still to happen at the end; empty: nothing."""
    violations: tuple[str, ...]
    entries: Sequence[Entry]
    placements: Sequence[Served]
    away: Sequence[Away]
    models: dict[str, ModelAccount]

    @property
    def holds(self) -> bool:
        """Settled, every Placement served in full, no rule broken."""
        is_served = all(each.is_ready and each.serving >= each.wished for each in self.placements)
        return not self.unsettled and not self.violations and is_served


def conclude(scenario: Scenario, world: World, source: ScenarioSource, accounts: Accounts) -> Outcome:
    placements = dict(source.placements)
    wished = count_wished(placements)
    return Outcome(
        scenario=scenario,
        start_seconds=accounts.began_at,
        start_unsettled=accounts.unsettled,
        seconds=accounts.now() if accounts.ended_at is None else accounts.ended_at,
        unsettled=why_not_settled(world, placements),
        violations=tuple(world.story.violations),
        entries=tuple(accounts.entries),
        placements=[_judge(world, accounts, key, wished[key]) for key in placements],
        away=_find_away(world),
        models=dict(sorted(accounts.models.items())),
    )


def _judge(world: World, accounts: Accounts, key: ObjectKey, wished: int) -> Served:
    stored = world.controller.history.objects.get(key) if world.controller else None
    ready = find_condition(stored, "Ready") if isinstance(stored, Placement) else None
    serving = find_serving(world, key)
    return Served(
        key=key,
        wished=wished,
        serving=len(serving),
        nodes=tuple(sorted(machine.name for machine, _ in serving)),
        is_ready=ready is not None and ready.status is ConditionStatus.TRUE,
        reason=ready.reason if ready else "",
        message=ready.message if ready else "no controller has judged it",
        shortages=tuple(accounts.shortages.get(key, ())),
    )


def _find_away(world: World) -> list[Away]:
    away: list[Away] = []
    for name, machine in sorted(world.machines.items()):
        if not is_reached(world, machine):
            running = [each for each in machine.keepers.values() if each.engine.is_alive]
            away.append(Away(name, machine.is_on, tuple(sorted(each.instance.metadata.name for each in running))))
    return away


def render_data(outcome: Outcome) -> dict[str, Any]:
    """For programs; fields only ever come to it."""
    return {
        "holds": outcome.holds,
        "settled": not outcome.unsettled,
        "unsettled": outcome.unsettled,
        "violations": list(outcome.violations),
        "seed": outcome.scenario.seed,
        "startSeconds": round(outcome.start_seconds, 1),
        "startUnsettled": outcome.start_unsettled,
        "seconds": round(outcome.seconds, 1),
        "assumed": outcome.scenario.pace.to_wire(),
        "timeline": [
            {"atSeconds": round(each.at, 1), "who": each.who, "reason": each.reason, "message": each.message}
            for each in outcome.entries
        ],
        "placements": [_render_served(each) for each in outcome.placements],
        "away": [
            {"node": each.node, "hasPower": each.is_on, "instances": list(each.instances)} for each in outcome.away
        ],
        "requests": [
            {
                "model": model,
                "asked": account.asked,
                "answered": account.answered,
                "lost": {name: count for name, count in sorted(account.outcomes.items()) if name != "200"},
            }
            for model, account in outcome.models.items()
        ],
    }


def _render_served(each: Served) -> dict[str, Any]:
    return {
        "namespace": each.key.namespace,
        "name": each.key.name,
        "wished": each.wished,
        "serving": each.serving,
        "nodes": list(each.nodes),
        "ready": each.is_ready,
        "reason": each.reason,
        "message": each.message,
        "short": [
            {
                "replicas": one.most,
                "fromSeconds": round(one.since, 1),
                "untilSeconds": None if one.until is None else round(one.until, 1),
            }
            for one in each.shortages
        ],
    }
