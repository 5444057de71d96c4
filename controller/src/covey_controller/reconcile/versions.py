"""`VersionSkew` of a Node: its agent and this controller are of versions that were never meant to work together.

Neighbouring minor versions do, whichever is the newer. Beyond that the parts may not know each other's fields, and drop
what they don't know without a word: so it is said here, and nothing else is changed by it.
"""

import re

from covey_api.reasons import NodeReason

from covey_controller.reconcile.conditions import Claim, make_claim
from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.sights import NodeSight

TYPE = "VersionSkew"
_MINOR = re.compile(r"(\d{1,6})\.(\d{1,6})(\D.*)?")
_MAX_SHOWN = 64


def plan_version_condition(draft: Draft, sight: NodeSight) -> tuple[Claim, ...]:
    """Only while they are further apart. What a silent node said last stands."""
    node, own = sight.node, draft.world.version
    if node is None:
        return ()
    theirs = (sight.report.version if sight.report else node.status.version)[:_MAX_SHOWN]
    if not own or not theirs or _are_neighbours(own, theirs):
        return ()
    is_older = (_parse(theirs) or (0, 0)) < (_parse(own) or (0, 0))
    late = f"Upgrade the node '{node.metadata.name}'" if is_older else "Upgrade the controllers"
    message = (
        f"its agent is of version {theirs}, this controller of {own}: neighbouring minor versions work together, these "
        f"may not understand each other. {late}, one minor version at a time where you can"
    )
    return (make_claim(TYPE, is_true=True, reason=NodeReason.VERSIONS_APART, message=message),)


def _are_neighbours(one: str, other: str) -> bool:
    """A version that can't be read is nobody's neighbour but its own."""
    first, second = _parse(one), _parse(other)
    if first is None or second is None:
        return one == other
    return first[0] == second[0] and abs(first[1] - second[1]) <= 1


def _parse(version: str) -> tuple[int, int] | None:
    """Major and minor."""
    found = _MINOR.fullmatch(version)
    return (int(found[1]), int(found[2])) if found else None
