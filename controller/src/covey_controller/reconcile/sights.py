"""What a plan sees of nodes and of what they run, as values: made by `fleet`, and kept for the next plan.

Nearly all of it is the same from plan to plan. Who keeps it may compare objects by identity alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from covey_api.instance import Instance, MemberPhase
from covey_api.kinds import ObjectKey
from covey_api.messages import MemberReport, Report
from covey_api.node import Node
from covey_planner.types import NodeState


@dataclass(frozen=True, slots=True)
class AgentView:
    """What one agent reported, merged over this boot of it."""

    node: str
    seen: float
    report: Report | None = None
    disconnected: float | None = None
    """Since when its stream is broken; None while it is open, or was never opened."""
    rival: float | None = None
    """When another machine last reported under this name; what that one said is not in `report`."""


@dataclass(frozen=True, slots=True)
class NodeSight:
    """One node with its agent, as it looks now."""

    name: str
    node: Node | None
    agent: AgentView | None
    state: NodeState
    unknown_since: float
    """When silence makes it Unknown, or made it so."""

    @property
    def report(self) -> Report | None:
        return self.agent.report if self.agent else None


@dataclass(frozen=True, slots=True)
class MemberSight:
    """One member of an Instance, as its node reported it last."""

    name: str
    node: NodeSight | None
    phase: MemberPhase
    report: MemberReport | None
    """Of the current attempt; None when the node has said nothing of it in this leadership."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One Instance, as it looks now."""

    instance: Instance
    members: tuple[MemberSight, ...]
    phase: MemberPhase
    """The worst of its members'."""
    is_confirmed: bool
    """Every member's node is there to say so."""
    id: str
    """The Instance's."""

    @property
    def unknown_since(self) -> float:
        """When the first of its nodes became Unknown; infinity while none is."""
        since = [m.node.unknown_since for m in self.members if m.node and m.node.state is NodeState.UNKNOWN]
        return min(since, default=float("inf"))


@dataclass(frozen=True, slots=True)
class FleetSight:
    """A whole fleet, as one plan saw it."""

    watching_since: float
    nodes: Mapping[str, NodeSight]
    sights: Mapping[ObjectKey, Sight]
