"""Models that fit on no node alone: which nodes could hold one together, who holds what, and over which link.

A shape that agents run becomes a place where its Placement asks for one (`choice.groups`). Else it is what `covey why`
and `covey plan` show, so that somebody who lacks memory on every machine knows whether the machines together would do.

1. Nodes that pass every filter, with a lane of the engine; never two builds of it together, and MLX among nodes of one
   compute only.
2. The fewest nodes; of these the best of their worst link; then the most usable memory; ties by name.
3. The largest window at which it fits.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from covey_api.engines import HOST_POOL, Compute, EngineName, KvCacheType, Lane
from covey_api.instance import MemberRole

from covey_planner.choice.links import LinkKind, Links
from covey_planner.choice.nodes import COMPUTE_ORDER, filter_node
from covey_planner.choice.parts import member_formula, own_bytes, run_of
from covey_planner.choice.shares import can_divide, fixed_bytes, layer_bytes, share_layers
from covey_planner.choice.ways import Question, Way, pending_geometry
from covey_planner.fit.estimate import CELL_STEP, CostFormula
from covey_planner.fit.limits import limit_name
from covey_planner.fit.ranks import RING_FAMILIES
from covey_planner.fit.split import run_formula
from covey_planner.types import NodeView, ShapeKind, Wish

# What one model is spread over at most: more links than this cost more than they bring.
MAX_MEMBERS = 4
# Of one build, the nodes with the most memory: others could only make a shape of more nodes.
MAX_CANDIDATES = 12
# How often layers are shared anew where a run keeps more than an average one.
_SHARINGS = 4

# Engines whose ranks must all compute alike; llama.cpp's may differ.
_ALIKE = frozenset({EngineName.MLX})
SHAPES: Mapping[EngineName, tuple[ShapeKind, ...]] = {
    EngineName.LLAMA_SERVER: (ShapeKind.RPC,),
    EngineName.MLX: (ShapeKind.PIPELINE, ShapeKind.TENSOR),
    EngineName.VLLM: (ShapeKind.TENSOR, ShapeKind.PIPELINE),
}


@dataclass(frozen=True, slots=True)
class ShapeMember:
    """One node's part."""

    node: str
    role: str
    """`Driver`, `Donor` or `Rank`."""
    lane: Lane
    first_layer: int
    last_layer: int
    total_bytes: int
    """What it would take of the lane's pool."""
    usable_bytes: int
    """What is unreserved there."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Nodes that could run one replica together."""

    kind: ShapeKind
    variant: str
    engine: EngineName
    layer_count: int
    window: int
    slots: int
    link: LinkKind
    """The worst between any two."""
    members: tuple[ShapeMember, ...]


@dataclass(frozen=True, slots=True)
class _Seat:
    view: NodeView
    lane: Lane
    usable: int


def choose_shape(
    wish: Wish,
    nodes: Sequence[NodeView],
    links: Links,
    kinds: Iterable[ShapeKind] = (),
    sizes: range = range(2, MAX_MEMBERS + 1),
    lock: Sequence[str] = (),
) -> Shape | None:
    """The best shape of several nodes for one replica; `kinds`: only these. `lock`: only these nodes, in this order.
    None: there is none."""
    if pending_geometry(wish):
        return None
    question = Question(wish)
    for way in question.ways:
        if way.span.refusal:
            continue
        allowed = tuple(kinds) or SHAPES.get(way.engine, ())
        found = [shape for kind in allowed for shape in _shapes(question, way, kind, nodes, links, sizes, lock)]
        if found:
            return min(found, key=_order)
    return None


def can_join(lane: Lane) -> bool:
    """Whether its agent runs drivers and donors, and they compute there.

    An accelerator in the machine's own memory has no pool whose name says which device has the layers: such a node
    takes part with its processor.
    """
    has_place = lane.pool != HOST_POOL or lane.compute is Compute.CPU
    return has_place and {MemberRole.DRIVER.value, MemberRole.DONOR.value} <= set(lane.roles)


def can_rank(lane: Lane) -> bool:
    """Whether its agent runs ranks, and tells of which build: those of another one would wait for other steps."""
    return MemberRole.RANK.value in lane.roles and bool(lane.digest or lane.version)


def _shapes(
    question: Question,
    way: Way,
    kind: ShapeKind,
    nodes: Sequence[NodeView],
    links: Links,
    sizes: range,
    lock: Sequence[str],
) -> Iterator[Shape]:
    """Those of the fewest nodes."""
    for size in sizes:
        found = [
            shape
            for build in _builds(question, way, nodes, lock)
            for seats in combinations(build, size)
            if (seated := _with_driver_first(way, kind, seats, is_locked=bool(lock)))
            and (shape := _shape(question, way, kind, seated, links)) is not None
        ]
        if found:
            yield from found
            return


def _with_driver_first(way: Way, kind: ShapeKind, seats: Sequence[_Seat], *, is_locked: bool) -> Sequence[_Seat]:
    """Who gets the files at all comes first, as the driver alone needs them; every rank does. Empty: none can be."""
    having = [way.comes_to(seat.view) for seat in seats]
    if all(having):
        return seats
    if kind is not ShapeKind.RPC or not any(having) or (is_locked and not having[0]):
        return ()
    first = seats[having.index(True)]
    return (first, *(seat for seat in seats if seat is not first))


def _builds(question: Question, way: Way, nodes: Sequence[NodeView], lock: Sequence[str]) -> list[list[_Seat]]:
    """Seats by build of the engine, each with the most memory first, or in the order of the lock."""
    builds: dict[tuple[str, str, str], list[_Seat]] = {}
    for view in sorted(nodes, key=lambda each: each.name):
        if lock and view.name not in lock:
            continue
        if filter_node(question, view, view.name) is not None:
            continue
        wish = question.wish
        lanes = [lane for lane in view.lanes if way.runs_on(lane) and not wish.is_barred(view.name, lane)]
        if not lanes:
            continue
        lane = min(lanes, key=lambda each: (COMPUTE_ORDER[each.compute], each.pool))
        free = {pool.name: pool.unreserved_bytes for pool in view.pools}
        usable = free.get(lane.pool, 0)
        if lane.limit_bytes:
            usable = min(usable, free.get(limit_name(lane), 0))
        compute = lane.compute.value if lane.engine in _ALIKE else ""
        builds.setdefault((lane.version, lane.digest, compute), []).append(_Seat(view, lane, usable))
    if lock:
        return [sorted(seats, key=lambda seat: lock.index(seat.view.name)) for _, seats in sorted(builds.items())]
    return [
        sorted(seats, key=lambda seat: (-seat.usable, way.digest not in seat.view.cached, seat.view.name))[
            :MAX_CANDIDATES
        ]
        for _, seats in sorted(builds.items())
    ]


def _shape(question: Question, way: Way, kind: ShapeKind, seats: Sequence[_Seat], links: Links) -> Shape | None:
    geometry, span = way.geometry, way.span
    if kind is ShapeKind.TENSOR and not can_divide(len(seats), geometry.embedding_length, geometry.kv_head_counts):
        return None
    if way.engine is EngineName.MLX and not _is_for_ring(question, way, kind, len(seats)):
        return None
    if _shares(question, way, kind, seats, span.least) is None:
        return None
    worst = max(links(one.view.name, other.view.name) for one, other in combinations(seats, 2))
    if worst is LinkKind.NONE:
        return None
    low, high = 0, (span.most - span.least) // CELL_STEP
    while low < high:
        middle = (low + high + 1) // 2
        if _shares(question, way, kind, seats, span.least + middle * CELL_STEP) is None:
            high = middle - 1
        else:
            low = middle
    window = span.least + low * CELL_STEP
    shares = _shares(question, way, kind, seats, window)
    if shares is None:
        return None
    members = tuple(_members(question, way, kind, seats, shares, window))
    return Shape(kind, way.variant, way.engine, geometry.layer_count, window, question.wish.slots, worst, members)


def _shares(
    question: Question, way: Way, kind: ShapeKind, seats: Sequence[_Seat], window: int
) -> tuple[int, ...] | None:
    """Layers of each seat; of a tensor shape all of them, in part. None: it does not fit."""
    layers = way.geometry.layer_count
    if not all(_has_host_room(question, way, seat, window) for seat in seats):
        return None
    wholes = [question.price(way, seat.lane).formulas[0] for seat in seats]
    formulas = [member_formula(way, kind, each) for each in wholes]
    rest = [
        seat.usable - fixed_bytes(formulas[index], window) - own_bytes(way, kind, wholes[index], index, len(seats))
        for index, seat in enumerate(seats)
    ]
    per_layer = max(layer_bytes(each, window, layers) for each in formulas)
    if kind is ShapeKind.TENSOR:
        part = -(-per_layer * layers // len(seats))
        return (layers,) * len(seats) if min(rest) >= part else None
    # Layers differ: each is counted one more than it has. What its own run keeps is known when there is one; who then
    # has too much is given less.
    room = [each - per_layer for each in rest]
    for _ in range(_SHARINGS):
        shares = share_layers(layers, room, per_layer)
        if shares is None:
            return None
        over = [
            _run_bytes(way, kind, formulas[index], shares, index, window)
            + own_bytes(way, kind, wholes[index], index, len(seats))
            - seat.usable
            for index, seat in enumerate(seats)
        ]
        if max(over) <= 0:
            return shares
        room = [each - max(0, more) for each, more in zip(room, over, strict=True)]
    return None


def _run_bytes(way: Way, kind: ShapeKind, formula: CostFormula, shares: Sequence[int], index: int, window: int) -> int:
    """Of one member that has a run of layers, without what is its own beside them."""
    return run_formula(way.geometry, formula, run_of(way, kind, shares, index)).total_bytes(window)


def _is_for_ring(question: Question, way: Way, kind: ShapeKind, count: int) -> bool:
    """Whether mlx-lm has the model's kind in this form, and can cut it so. A quantised cache it has in no batch."""
    is_known = way.architecture in RING_FAMILIES[kind]
    is_even = kind is not ShapeKind.TENSOR or way.geometry.feed_forward_length % count == 0
    return is_known and is_even and question.wish.kv_cache_type is KvCacheType.F16


def _has_host_room(question: Question, way: Way, seat: _Seat, window: int) -> bool:
    """Whether what a device's engine takes of the machine's own memory is there."""
    return all(
        formula.total_bytes(window) <= sum(p.unreserved_bytes for p in seat.view.pools if p.name == formula.pool)
        for formula in question.price(way, seat.lane).formulas[1:]
        if not formula.is_limit
    )


def _members(
    question: Question, way: Way, kind: ShapeKind, seats: Sequence[_Seat], shares: Sequence[int], window: int
) -> Iterator[ShapeMember]:
    layers = way.geometry.layer_count
    for index, (seat, share) in enumerate(zip(seats, shares, strict=True)):
        whole = question.price(way, seat.lane).formulas[0]
        formula = member_formula(way, kind, whole)
        own = own_bytes(way, kind, whole, index, len(seats))
        if kind is ShapeKind.TENSOR:
            first = 0
            part = -(-layer_bytes(formula, window, layers) * layers // len(seats))
            total = part + fixed_bytes(formula, window) + own
        else:
            first = run_of(way, kind, shares, index).start
            total = _run_bytes(way, kind, formula, shares, index, window) + own
        role = "Rank" if kind is not ShapeKind.RPC else "Donor" if index else "Driver"
        yield ShapeMember(seat.view.name, role, seat.lane, first, first + share - 1, total, seat.usable)


def _order(shape: Shape) -> tuple[int, int, int, tuple[str, ...]]:
    names = tuple(member.node for member in shape.members)
    return (len(names), shape.link, -sum(member.usable_bytes for member in shape.members), names)
