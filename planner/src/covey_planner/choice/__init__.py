"""Which node takes a replica, in which lane, with which window, and why every other one does not."""

from covey_planner.choice.decide import choose, explain_nodes
from covey_planner.choice.roster import Roster

__all__ = ["Roster", "choose", "explain_nodes"]
