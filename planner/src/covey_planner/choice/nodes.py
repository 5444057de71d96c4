"""One node against one wish: the best offer it can make for one more replica, or why it can make none.

Both the choice and the explanation go through `evaluate_node`, so the text about a node is never another opinion.

Between offers that are equal in everything else (way, replicas, artifact, engine) memory decides: the widest window
first, and of the nodes that all give the whole window the one with the least memory left over (best fit), so that the
large blocks stay for models that fit nowhere else. Nothing of it moves what runs: it orders offers for new replicas.

- Most memory left first: each small model cuts into the largest block, and a large model that comes later fits nowhere.
- Best fit whatever the window: a window is stamped once, so the replica would stay narrow beside an empty node. Who
  wants to keep a block says how much is enough (`spec.context.tokens`, or the Model's `spec.contextTokens`).
- The node that runs the fewest models: it takes an empty machine for each small model, which is what best fit avoids;
  models on one node do share its processors. Who minds says so with `spec.nodes`.
- Windows are not computed to be compared: where the widest does not fit, it grows with the memory that is left.
- The fewest bytes left in any pool: what is scarce is the lane's own pool, and nodes could not be kept in order by it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from covey_api.engines import Compute, Lane, LaneState
from covey_api.reasons import RefusalReason

from covey_planner.choice.splits import find_split, shared_lanes
from covey_planner.choice.taints import find_untolerated
from covey_planner.choice.ways import Question, Way
from covey_planner.fit.estimate import CELL_STEP, CostFormula
from covey_planner.types import NodeState, NodeView, Pool

# Among lanes of one engine: accelerators first.
COMPUTE_ORDER = {Compute.CUDA: 0, Compute.ROCM: 1, Compute.METAL: 2, Compute.VULKAN: 3, Compute.CPU: 4}

# (way, on the processor, over several devices, compute, replicas here, not cached, not installed, narrower than could
# be, bytes left in the widest window or minus the bytes left at the least, name): the smallest is preferred.
OfferOrder = tuple[int, bool, bool, int, int, bool, bool, bool, int, str]


@dataclass(frozen=True, slots=True)
class Taken:
    """What this decision has put on one node so far."""

    replicas: int = 0
    least: Mapping[str, int] = field(default_factory=dict[str, int])
    """Bytes by pool, each replica at its least window."""
    most: Mapping[str, int] = field(default_factory=dict[str, int])
    """The same at its widest."""

    def with_offer(self, offer: "Offer") -> "Taken":
        return Taken(self.replicas + 1, _add(self.least, offer.least), _add(self.most, offer.most))


NOTHING_TAKEN = Taken()


@dataclass(frozen=True, slots=True)
class Offer:
    """The best place for one more replica on one node."""

    order: OfferOrder
    node: NodeView
    way: Way
    lane: Lane
    least: tuple[tuple[str, int], ...]
    """(pool, bytes) that the replica takes at its least window."""
    most: tuple[tuple[str, int], ...]
    """The same at its widest."""
    split: tuple[CostFormula, ...] = ()
    """What it takes of each pool, where several devices share it; `lane` is the first one's."""


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a node takes no replica. Where memory is the reason: of which way, on which lane, and how much is missing."""

    reason: RefusalReason
    node: NodeView
    short_bytes: int = 0
    way: Way | None = None
    lane: Lane | None = None
    pool: str = ""
    taken: Mapping[str, int] | None = None


def evaluate_node(question: Question, node: NodeView, taken: Taken) -> Offer | Miss:
    """The node's answer when this decision has already put `taken` on it.

    1. The operator's and the Placement's filters: cordon, taints, selector, include, exclude.
    2. Whether the node is known well enough: not silent, facts there.
    3. Ways in their order: the first whose least window fits, on the best lane of one device, else over several
       devices, else on the processor.
    4. Else the reason that came nearest to a fit.
    """
    reason = filter_node(question, node, node.name)  # 1, 2
    if reason is not None:
        return Miss(reason, node)
    nearest: Miss | None = None
    for way in question.ways:  # 3
        best: Offer | None = None
        for lane in node.lanes:
            if not way.runs_on(lane) or question.wish.is_barred(node.name, lane):
                continue
            if way.span.refusal:
                nearest = nearest or Miss(RefusalReason.CONTEXT_TOO_SMALL, node, 0, way, lane)
                continue
            if not way.comes_to(node):
                nearest = nearest or Miss(RefusalReason.OFFLINE, node, 0, way, lane)
                continue
            price = question.price(way, lane)
            pool, left = _tightest(node, price.least, taken.least)
            if left >= 0:
                offer = _offer(question, node, way, lane, taken)
                best = offer if best is None or offer.order < best.order else best
            elif nearest is None or not 0 < nearest.short_bytes <= -left:
                reason = _memory_reason(question, way, lane, pool, -left)
                nearest = Miss(reason, node, -left, way, lane, pool, taken.least)
        if wants_split(way, best):
            split = offer_split(question, node, way, taken)
            best = split if best is None or (split is not None and split.order < best.order) else best
        if best is not None:
            return best
    return nearest or _no_lane(question, node)  # 4


def find_pool(node: NodeView, name: str) -> Pool | None:
    for pool in node.pools:
        if pool.name == name:
            return pool
    return None


def filter_node(question: Question, node: NodeView, name: str) -> RefusalReason | None:
    """Why the node is not asked for memory at all. Without a name: what holds for all nodes of its class."""
    wish = question.wish
    if not node.schedulable:
        return RefusalReason.CORDONED
    if node.taints and find_untolerated(node.taints, wish.tolerations) is not None:
        return RefusalReason.TAINTED
    if wish.exclude and name in wish.exclude:
        return RefusalReason.EXCLUDED
    if wish.include and name not in wish.include:
        return RefusalReason.NOT_SELECTED
    if wish.selector and any(node.labels.get(key) != value for key, value in wish.selector.items()):
        return RefusalReason.NOT_SELECTED
    if node.state is not NodeState.READY:
        is_silent = node.state is NodeState.UNKNOWN
        return RefusalReason.NODE_UNKNOWN if is_silent else RefusalReason.FACTS_PENDING
    return question.blocked[0] if question.blocked else None


def order_offer(
    way: Way,
    lane: Lane,
    name: str,
    left: int,
    *,
    replicas: int,
    is_cached: bool,
    is_narrower: bool,
    is_split: bool = False,
) -> OfferOrder:
    """`left`: in the lane's own pool, at the widest window, or at the least where that is all that fits."""
    is_installed = lane.state is LaneState.INSTALLED
    memory = -left if is_narrower else left
    kind = (lane.compute is Compute.CPU, is_split, COMPUTE_ORDER[lane.compute])
    return (way.rank, *kind, replicas, not is_cached, not is_installed, is_narrower, memory, name)


def wants_split(way: Way, best: "Offer | None") -> bool:
    """Whether devices together would be better than the best so far: one device is, but no processor."""
    return best is None or best.order >= (way.rank, False, True)


def _offer(question: Question, node: NodeView, way: Way, lane: Lane, taken: Taken) -> Offer:
    """Of a way whose least window fits."""
    price = question.price(way, lane)
    _, left_at_most = _tightest(node, price.most, taken.most)
    is_narrower = left_at_most < 0
    costs, holds = (price.least, taken.least) if is_narrower else (price.most, taken.most)
    _, left = _tightest(node, costs[:1], holds)  # the lane's own pool comes first
    order = order_offer(
        way,
        lane,
        node.name,
        left,
        replicas=taken.replicas + question.wish.placed.get(node.name, 0),
        is_cached=way.digest in node.cached,
        is_narrower=is_narrower,
    )
    return Offer(order, node, way, lane, price.least, price.most)


def offer_split(question: Question, node: NodeView, way: Way, taken: Taken) -> Offer | None:
    """Over several devices of the node; None: it doesn't fit so either."""
    found = find_split(question, node, way, taken.least) if shared_lanes(node, way) else None
    if found is None:
        return None
    lane, formulas = found
    least = tuple((formula.pool, formula.total_bytes(way.span.least)) for formula in formulas)
    most = tuple((formula.pool, formula.total_bytes(way.span.most)) for formula in formulas)
    _, left = _tightest(node, most, taken.most)
    is_narrower = left < 0
    if is_narrower:
        _, left = _tightest(node, least, taken.least)
    order = order_offer(
        way,
        lane,
        node.name,
        left,
        replicas=taken.replicas + question.wish.placed.get(node.name, 0),
        is_cached=way.digest in node.cached,
        is_narrower=is_narrower,
        is_split=True,
    )
    return Offer(order, node, way, lane, least, most, formulas)


def _add(taken: Mapping[str, int], more: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    added = dict(taken)
    for pool, count in more:
        added[pool] = added.get(pool, 0) + count
    return added


def _memory_reason(question: Question, way: Way, lane: Lane, pool: str, short_bytes: int) -> RefusalReason:
    """Too little even for the smallest window, or only for the one that is asked for."""
    least, smallest = way.span.least, min(CELL_STEP, way.span.least)
    formula = next(formula for formula in question.price(way, lane).formulas if formula.pool == pool)
    saved = formula.total_bytes(least) - formula.total_bytes(smallest)
    return RefusalReason.CONTEXT_TOO_SMALL if short_bytes <= saved else RefusalReason.INSUFFICIENT_MEMORY


def _no_lane(question: Question, node: NodeView) -> Miss:
    usable = any(way.runs_on(lane) for way in question.ways for lane in node.lanes)
    return Miss(RefusalReason.RECENT_FAILURE if usable else RefusalReason.NO_USABLE_ENGINE, node)


def _tightest(node: NodeView, least: tuple[tuple[str, int], ...], taken: Mapping[str, int]) -> tuple[str, int]:
    """The pool with the fewest bytes left after the replica, and how many; negative: it does not fit."""
    tightest, fewest = "", 0
    for name, needed in least:
        left = -needed
        for pool in node.pools:
            if pool.name == name:
                left += pool.total_bytes - pool.reserve_bytes - pool.reserved_bytes - taken.get(name, 0)
                break
        if not tightest or left < fewest:
            tightest, fewest = name, left
    return tightest, fewest
