"""What a plan consists of, and the closed union of outcomes that statuses are made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from covey_api.instance import Instance
from covey_api.kinds import ObjectKey
from covey_api.messages import Assignments, Endpoints
from covey_api.meta import Status
from covey_api.node import Node
from covey_api.placement import Placement
from covey_api.reasons import AccessKeyReason, FleetReason, ModelReason, NodeReason, ReadyReason

from covey_controller.reconcile.world import Memory, Spending


@dataclass(frozen=True, slots=True)
class CreateInstance:
    """Precondition: the name is free."""

    instance: Instance

    @property
    def key(self) -> ObjectKey:
        return self.instance.key


@dataclass(frozen=True, slots=True)
class UpdateInstance:
    """Only `goal`, `attempt` and `term` differ. Precondition: the resourceVersion that was seen."""

    instance: Instance

    @property
    def key(self) -> ObjectKey:
        return self.instance.key


@dataclass(frozen=True, slots=True)
class HoldObject:
    """The object with our finalizer, which it lacks. Precondition: the resourceVersion that was seen."""

    item: Placement | Instance | Node

    @property
    def key(self) -> ObjectKey:
        return self.item.key


@dataclass(frozen=True, slots=True)
class CreateNode:
    """A Node with an empty spec, for an agent that reported and has none. Precondition: the name is free."""

    node: Node

    @property
    def key(self) -> ObjectKey:
        return self.node.key


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """An Instance whose members ended, or a Node or Placement whose deletion was carried out. Precondition: the uid."""

    key: ObjectKey
    uid: str


Reason = ReadyReason | ModelReason | NodeReason | FleetReason | AccessKeyReason
Action = CreateInstance | UpdateInstance | HoldObject | CreateNode | DeleteObject


@dataclass(frozen=True, slots=True)
class Note:
    """Why something was decided, in words for people: an event on the object, and a line in the log."""

    key: ObjectKey
    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class StatusWrite:
    """A status that differs from the stored one."""

    key: ObjectKey
    status: Status


@dataclass(frozen=True, slots=True)
class Done:
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """It goes on by itself. `warns`: after something failed, which is told as a Warning also if it is mended soon."""

    reason: Reason
    message: str
    warns: bool = False


@dataclass(frozen=True, slots=True)
class Stalled:
    """It goes on when somebody changes something, or the breaker tries again."""

    reason: Reason
    message: str


Outcome = Done | Waiting | Stalled


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now. Actions first, in order; then what is published; then statuses and notes."""

    actions: tuple[Action, ...]
    assignments: Mapping[str, Assignments]
    """By node; term and serial are the board's to set."""
    endpoints: Endpoints | None
    """None: gateways keep the table they have (the fleet has not been seen whole yet)."""
    endpoints_unacted: Endpoints | None
    """What gateways get in its place when an action fails. None: they keep what they have."""
    statuses: tuple[StatusWrite, ...]
    notes: tuple[Note, ...]
    memory: Memory
    used_answers: tuple[str, ...]
    """Ids of answers that this plan took in."""
    wake_at: float
    """When something is due although nothing changes."""
    spending: Mapping[str, Spending] = field(default_factory=dict[str, Spending])
    """By hash, of keys with a limit of the day."""
