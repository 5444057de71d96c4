"""Nodes that could hold together what none can alone: the planner's shape, from what is known of the fleet."""

from covey_planner.choice.links import LinkKind, Links, classify_link
from covey_planner.choice.shapes import Shape, choose_shape
from covey_planner.types import Decision, Wish

from covey_controller.reconcile.draft import Draft


def find_shape(draft: Draft, wish: Wish, decision: Decision) -> Shape | None:
    """None where a node alone will do, or where memory is not what is missing."""
    closest = decision.closest
    if decision.chosen or closest is None or closest.short_bytes == 0:
        return None
    return choose_shape(wish, tuple(draft.roster()), _links(draft))


def _links(draft: Draft) -> Links:
    """No kind of link is reported yet; a tunnel shows by its address."""
    addresses = {name: sight.report.address for name, sight in draft.nodes.items() if sight.report}
    return lambda one, other: classify_link(LinkKind.UNKNOWN, addresses.get(one, ""), addresses.get(other, ""))
