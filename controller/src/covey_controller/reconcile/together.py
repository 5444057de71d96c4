"""Nodes that could hold together what none can alone: the planner's shape, from what is known of the fleet.

One that would be run comes before one that is better and that nobody runs.
"""

from covey_planner.choice.groups import find_runnable
from covey_planner.choice.shapes import Shape, choose_shape
from covey_planner.types import Decision, Wish

from covey_controller.reconcile.draft import Draft


def find_shape(draft: Draft, wish: Wish, decision: Decision) -> Shape | None:
    """None where a node alone will do, or where memory is not what is missing."""
    closest = decision.closest
    if decision.chosen or closest is None or closest.short_bytes == 0:
        return None
    roster = draft.roster()
    nodes = tuple(roster)
    return find_runnable(wish, nodes, roster.links) or choose_shape(wish, nodes, roster.links)
