"""A plan while it is being made: what was decided so far, which the next decision must see.

The one mutable value of this package. It never leaves `plan()`. Decisions about Instances go through `create`, `drain`
and `end_instance`, so that later steps of the same plan count them as if they had happened.
"""

from bisect import insort
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from covey_api.access_key import AccessKey
from covey_api.engines import EngineName
from covey_api.fleet import Fleet
from covey_api.instance import Instance, InstanceGoal
from covey_api.kinds import Kind, ObjectKey
from covey_api.meta import Condition, Status
from covey_api.model import Model, ResolvedArtifact
from covey_api.node import Node
from covey_api.placement import Failure, Placement
from covey_api.reasons import EventReason
from covey_planner.choice import Roster
from covey_planner.choice.links import LinkKind, Links, classify_link
from covey_planner.types import Chosen, Decision, NodeState, NodeView

from covey_controller.reconcile.conditions import MadeCondition
from covey_controller.reconcile.fleet import observe_instance, reservations, view_node
from covey_controller.reconcile.holding import held_bytes
from covey_controller.reconcile.index import Indexed
from covey_controller.reconcile.outcomes import Action, CreateInstance, DeleteObject, Note, StatusWrite, UpdateInstance
from covey_controller.reconcile.sights import NodeSight, Sight
from covey_controller.reconcile.world import (
    ArtifactKey,
    Asked,
    Backoff,
    Doubt,
    Drain,
    Load,
    LoadKey,
    OpenAsk,
    RestingPlacement,
    Revised,
    Scaled,
    Search,
    Serving,
    Spending,
    Spot,
    World,
    Yield,
)


@dataclass(slots=True)
class Progressing:
    """What was decided about one Placement, for its status."""

    revision: str | None = None
    wanted: int = 0
    decision: Decision | None = None
    """The planner's answer, where replicas were looked for and not all found a place."""
    failures: tuple[Failure, ...] = ()
    makes_room: str = ""
    """What a replica without a place waits for, in words."""


@dataclass(slots=True)
class Draft:
    """Everything is keyed and sorted, so that no step's result depends on the order of the input."""

    world: World
    now: float
    indexed: Indexed
    fleet: Fleet | None
    models: dict[ObjectKey, Model]
    placements: Mapping[ObjectKey, Placement]
    keys: tuple[AccessKey, ...]
    nodes: dict[str, NodeSight]
    sights: dict[ObjectKey, Sight]
    complete: bool
    watching_since: float
    drains: dict[str, Drain]
    lost: dict[str, float]
    unreachable: set[str]
    absent: dict[str, float]
    failed: dict[str, int]
    backoffs: dict[Spot, Backoff]
    asks: dict[str, OpenAsk]
    searches: dict[ArtifactKey, Search]
    strays: dict[str, float]
    ended: dict[str, Instance]
    """As `Memory`'s."""
    retries: dict[ObjectKey, str]
    heard: Mapping[str, float]
    doubts: Mapping[str, Doubt]
    loads: dict[LoadKey, Load]
    asked: dict[ObjectKey, Asked] = field(default_factory=dict[ObjectKey, Asked])
    """Models without an endpoint that clients ask for."""
    in_flight: dict[str, int] = field(default_factory=dict[str, int])
    """By instanceId: requests of all gateways, where there are any."""
    scaled: dict[ObjectKey, Scaled] = field(default_factory=dict[ObjectKey, Scaled])
    serving: dict[str, Serving] = field(default_factory=dict[str, Serving])
    yields: dict[str, Yield] = field(default_factory=dict[str, Yield])
    """As `Memory`'s, of this plan."""
    revisions: dict[ObjectKey, Revised] = field(default_factory=dict[ObjectKey, Revised])
    """As `Memory`'s, of this plan."""
    resting_nodes: dict[str, tuple[object, ...]] = field(default_factory=dict[str, tuple[object, ...]])
    """As `Memory`'s, of this plan."""
    resting_models: dict[ObjectKey, Model] = field(default_factory=dict[ObjectKey, Model])
    """As `Memory`'s, of this plan."""
    resting_placements: dict[ObjectKey, RestingPlacement] = field(default_factory=dict[ObjectKey, RestingPlacement])
    """As `Memory`'s, of this plan."""
    resting: set[ObjectKey] = field(default_factory=set[ObjectKey])
    """Placements of which this plan has nothing to do, to write or to note."""
    resting_ids: set[str] = field(default_factory=set[str])
    """instanceIds of theirs."""
    fleet_seen: tuple[object, ...] | None = None
    """All that a refusal depends on beside the Placement and its Model, as this plan began."""
    has_reserved: bool = False
    """Whether this plan has put something on a node since."""
    promised: list[tuple[ObjectKey, Chosen]] = field(default_factory=list[tuple[ObjectKey, Chosen]])
    """Places that are kept free for Placements while others leave them."""
    stray_instances: dict[str, Instance] = field(default_factory=dict[str, Instance])
    awaiting: set[str] = field(default_factory=set[str])
    """Nodes with members of groups that only other nodes, which aren't there yet, can tell of: nothing of theirs is
    stopped by leaving it out."""
    unclaimed: dict[str, list[Instance]] = field(default_factory=dict[str, list[Instance]])
    """By node: Instances of which it has a member that no other node tells of (yet): that holds its memory."""
    forsaken: dict[str, list[tuple[str, Instance]]] = field(default_factory=dict[str, list[tuple[str, Instance]]])
    """By node: members, each with its Instance, of groups that nobody tells of: they are stopped."""
    unsealed: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """By node: what it reports that this controller did not seal, as `namespace/name`."""
    kept: tuple[tuple[ResolvedArtifact, ...], tuple[ResolvedArtifact, ...]] | None = None
    """What stores keep, and what is beyond their bounds; None: nobody asked yet."""
    progressing: dict[ObjectKey, Progressing] = field(default_factory=dict[ObjectKey, Progressing])
    actions: list[Action] = field(default_factory=list[Action])
    notes: list[Note] = field(default_factory=list[Note])
    statuses: list[StatusWrite] = field(default_factory=list[StatusWrite])
    spending: dict[str, Spending] = field(default_factory=dict[str, Spending])
    deadlines: list[float] = field(default_factory=list[float])
    used_answers: list[str] = field(default_factory=list[str])
    used_ids: int = 0
    made_conditions: dict[MadeCondition, Condition] = field(default_factory=dict[MadeCondition, Condition])
    """What is said of many objects in the same words is made once."""
    _roster: Roster | None = None
    _creations: dict[ObjectKey, int] = field(default_factory=dict[ObjectKey, int])
    """Where in `actions` each Instance is created."""
    _offered: frozenset[EngineName] | None = None
    _held: frozenset[str] | None = None
    _is_held_known: bool = False
    _of_placement: dict[ObjectKey, list[ObjectKey]] | None = None

    def note(self, key: ObjectKey, reason: EventReason, message: str, *, warning: bool = False) -> None:
        self.notes.append(Note(key, reason.value, message, warning))

    def wake_at(self, when: float) -> None:
        """Plan again then, although nothing may have changed."""
        if when > self.now:
            self.deadlines.append(when)

    def next_id(self) -> str | None:
        """A fresh instanceId; None when this plan has used all it was given (the next one goes on at once)."""
        if self.used_ids == len(self.world.fresh_ids):
            self.deadlines.append(self.now)
            return None
        self.used_ids += 1
        return self.world.fresh_ids[self.used_ids - 1]

    @property
    def is_out_of_ids(self) -> bool:
        """Whether something may have been left to the next plan for want of an id."""
        return self.used_ids == len(self.world.fresh_ids)

    def instances(self) -> Iterable[Instance]:
        """All that hold memory: known ones, and strays that only nodes know."""
        yield from (sight.instance for sight in self.sights.values())
        yield from self.stray_instances.values()

    def sights_of(self, placement: ObjectKey) -> list[Sight]:
        """Its Instances by name."""
        if self._of_placement is None:
            self._of_placement = {}
            for key in sorted(self.sights):
                self._of_placement.setdefault(_owner(self.sights[key].instance), []).append(key)
        return [self.sights[key] for key in self._of_placement.get(placement, ())]

    def offered_engines(self) -> frozenset[EngineName]:
        """Of which some node has a lane."""
        if self._offered is None:
            reports = (node.report for node in self.nodes.values() if node.report is not None)
            self._offered = frozenset(lane.engine for report in reports for lane in report.lanes or ())
        return self._offered

    def held_digests(self) -> frozenset[str] | None:
        """Of files that some node has. None while no node is offline: nobody asks then."""
        if not self._is_held_known:
            self._is_held_known = True
            if any(node.node is not None and node.node.spec.offline for node in self.nodes.values()):
                here = (node.report for node in self.nodes.values() if node.state is NodeState.READY)
                self._held = frozenset(digest for report in here if report for digest in report.blobs or ())
        return self._held

    def roster(self) -> Roster:
        """Nodes for the planner, with what has been reserved up to now."""
        if self._roster is None:
            held = reservations(self.instances())
            selected = {key: None for each in self.placements.values() for key in each.spec.nodes.selector}
            views = (
                view_node(sight, (*held.get(name, ()), *self.unclaimed.get(name, ())), self.fleet)
                for name, sight in self.nodes.items()
            )
            self._roster = Roster(views, selected, self._links())
        return self._roster

    def _links(self) -> Links:
        """No kind of link is reported yet; a tunnel shows by its address."""
        addresses = {name: sight.report.address for name, sight in self.nodes.items() if sight.report}
        return lambda one, other: classify_link(LinkKind.UNKNOWN, addresses.get(one, ""), addresses.get(other, ""))

    @contextmanager
    def without(self, *gone: Instance) -> Generator[Roster]:
        """The same, as they would be without these Instances; only until the end of the block."""
        roster = self.roster()
        try:
            for instance in gone:
                self._reserve(instance, -1)
            yield roster
        finally:
            for instance in gone:
                self._reserve(instance, 1)

    def nominate(self, key: ObjectKey, chosen: Chosen) -> None:
        """Keep a place free for this Placement for the rest of this plan, although what is there still has to leave."""
        self.promised.append((key, chosen))
        self._promise(chosen, 1)
        self.has_reserved = True

    @contextmanager
    def without_promises(self, keys: Collection[ObjectKey]) -> Generator[None]:
        """As it would be if these Placements had been promised no place; only until the end of the block."""
        lifted = [chosen for key, chosen in self.promised if key in keys]
        try:
            for chosen in lifted:
                self._promise(chosen, -1)
            yield
        finally:
            for chosen in lifted:
                self._promise(chosen, 1)

    def _promise(self, chosen: Chosen, sign: int) -> None:
        for node, parts in chosen.places:
            taken: dict[str, int] = {}
            for costs in parts:
                taken[costs.pool] = taken.get(costs.pool, 0) + sign * costs.total_bytes
            if self._roster is not None and (view := self._roster.view(node)) is not None:
                _hold(self._roster, view, taken)

    def create(self, instance: Instance, reason: EventReason, message: str) -> None:
        self._creations[instance.key] = len(self.actions)
        self.has_reserved = True
        self.actions.append(CreateInstance(instance))
        self._put(instance)
        self.note(instance.key, reason, message)

    def update(self, instance: Instance) -> None:
        """Replace its spec; one that this plan creates is created that way."""
        index = self._creations.get(instance.key)
        if index is None:
            self.actions.append(UpdateInstance(instance))
        else:
            self.actions[index] = CreateInstance(instance)
        self._put(instance)

    def drain(self, sight: Sight, why: str) -> None:
        """Goal Drain, once: it never goes back to Run."""
        spec = sight.instance.spec
        if spec.goal is InstanceGoal.DRAIN:
            return
        changed = spec.model_copy(update={"goal": InstanceGoal.DRAIN, "term": max(spec.term, self.world.term)})
        self.update(sight.instance.model_copy(update={"spec": changed}))
        self.note(sight.instance.key, EventReason.DRAIN_STARTED, why)

    def end_instance(self, sight: Sight, why: str) -> None:
        """Delete it, and free what it held."""
        self.actions.append(DeleteObject(sight.instance.key, sight.instance.metadata.uid))
        del self.sights[sight.instance.key]
        if self._of_placement is not None:
            self._of_placement[_owner(sight.instance)].remove(sight.instance.key)
        self._reserve(sight.instance, -1)
        self.note(sight.instance.key, EventReason.DELETED, why)

    def follow(self, action: Action) -> None:
        """Count an action of another plan as done. Only for looking at what that plan saw next: nothing is decided."""
        match action:
            case CreateInstance(instance) | UpdateInstance(instance):
                self._put(instance)
            case DeleteObject(key, _) if (sight := self.sights.pop(key, None)) is not None:
                self._of_placement = None
                self._reserve(sight.instance, -1)
            case _:
                pass

    def write_status(self, item: Kind, stored: Status, status: Status) -> None:
        """Write it if it differs from what is stored."""
        if status is not stored and status != stored:
            self.statuses.append(StatusWrite(item.key, status))

    def _put(self, instance: Instance) -> None:
        if instance.key not in self.sights:
            self._reserve(instance, 1)
            if self._of_placement is not None:
                insort(self._of_placement.setdefault(_owner(instance), []), instance.key)
        self.sights[instance.key] = observe_instance(instance, self.nodes)

    def _reserve(self, instance: Instance, sign: int) -> None:
        """Count what an Instance holds, or count it no more."""
        if self._roster is None:
            return
        for node in dict.fromkeys(member.node for member in instance.spec.members):
            if (view := self._roster.view(node)) is not None:
                held = held_bytes(view, instance.spec)
                _hold(self._roster, view, {pool: sign * count for pool, count in held.items()})


def _hold(roster: Roster, view: NodeView, taken: Mapping[str, int]) -> None:
    """So many more bytes of each pool are spoken for."""
    pools = tuple(
        replace(pool, reserved_bytes=pool.reserved_bytes + taken[pool.name]) if taken.get(pool.name) else pool
        for pool in view.pools
    )
    roster.refill(replace(view, pools=pools))


def _owner(instance: Instance) -> ObjectKey:
    key = instance.key
    return ObjectKey("Placement", key.namespace, instance.spec.placement)


def node_key(name: str) -> ObjectKey:
    return ObjectKey(Node.__name__, "", name)
