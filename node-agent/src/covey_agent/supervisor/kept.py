"""What an agent keeps on disk (`agent/assignments.json`): wishes, and what must outlive the agent about each member."""

from covey_api.messages import MemberAssignment, MemberGoal, Order
from covey_api.meta import Message
from covey_api.node import NodeSpec
from covey_api.reasons import FailureCause


class KeptMember(Message):
    assignment: MemberAssignment
    goal: MemberGoal
    assigned: bool = True
    """False: no complete snapshot names it any more (a stray)."""
    engine: str = ""
    """Identity of the engine that runs as far as this agent knows."""
    ready: bool = False
    """That engine has generated a token."""
    is_rekeyed: bool = False
    """That engine was started with another key than the assignment's."""
    failed: FailureCause | None = None
    message: str = ""
    pool: str = ""
    """Of memory that was short."""
    restarts: int = 0
    restarted_at: tuple[float, ...] = ()
    """Latest restarts, in seconds of the monotonic clock of `bootId`."""


class Kept(Message):
    order: Order | None = None
    """The newest snapshot accepted: an older one is refused, also by the next process."""
    spec: NodeSpec = NodeSpec()
    boot_id: str = ""
    members: tuple[KeptMember, ...] = ()
