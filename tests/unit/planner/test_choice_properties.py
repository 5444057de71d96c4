"""What holds for every fleet: the choice is total and deterministic, and never promises a byte twice."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from random import Random

from covey_api.companion import CompanionRole
from covey_api.engines import ArtifactFormat, Compute, EngineName, KvCacheType, LaneState
from covey_api.instance import Costs
from covey_api.node import Taint
from covey_api.placement import Toleration
from covey_planner.choice import Roster, choose, explain_nodes
from covey_planner.choice.nodes import NOTHING_TAKEN, Miss, Offer, evaluate_node
from covey_planner.choice.refusals import explain_miss, nearness
from covey_planner.choice.ways import Question, pending_geometry
from covey_planner.fit.estimate import CostFormula
from covey_planner.text import render_refusals
from covey_planner.types import Barred, Chosen, CompanionView, Decision, NodeState, NodeView, Pool, VariantView, Wish
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.builders import artifact, geometry, lane
from kit.planning import GIB, MIB, large_variant, node, variant, wish

# Fleets are slow to make up; no deadline, since the machine may be busy.
FLEETS = settings(max_examples=40, deadline=None)
NUMBERS = settings(deadline=None)
MEMORY = st.integers(0, 96 * GIB)
# Devices that hold the larger models only together.
SMALL = st.integers(GIB, 8 * GIB)
NAMES = tuple("abcdefgh")


@st.composite
def node_views(draw: st.DrawFn, name: str) -> NodeView:
    """Any node: of any state, with some lanes, with pools that may be over-reserved or missing."""
    pools = [Pool("Host", draw(MEMORY), draw(st.integers(0, 2 * GIB)), draw(st.integers(0, 32 * GIB)))]
    lanes = [lane(digest=draw(st.sampled_from(["", "0" * 64])), state=draw(st.sampled_from(LaneState)))]
    if draw(st.booleans()):
        lanes.append(lane(compute=Compute.VULKAN, pool="Vulkan0"))
        pools.append(Pool("Vulkan0", draw(MEMORY), 0, draw(st.integers(0, 8 * GIB))))
        if draw(st.booleans()):
            lanes.append(lane(compute=Compute.VULKAN, pool="Vulkan1"))
            pools.append(Pool("Vulkan1", draw(SMALL), 0, 0))
            pools[1] = replace(pools[1], total_bytes=draw(SMALL), reserved_bytes=0)
    if draw(st.booleans()):
        lanes.append(lane(engine=EngineName.MLX, digest="1" * 64))
    roles = draw(st.sampled_from([(), (), tuple(CompanionRole)]))
    lacks = draw(st.sampled_from([(), (), ("llama",)]))
    flags = draw(st.sampled_from([(), (), ("--reranking",)]))
    versions = draw(st.sampled_from([(), (), ("7",)]))
    changes = {"companions": roles, "lacks": lacks, "lacks_features": flags, "versions": versions}
    lanes = [each.model_copy(update=changes) for each in lanes]
    return NodeView(
        name=name,
        state=draw(st.sampled_from([NodeState.READY, NodeState.READY, NodeState.UNKNOWN, NodeState.FACTS_PENDING])),
        schedulable=draw(st.sampled_from([True, True, True, False])),
        labels=draw(st.sampled_from([{}, {"zone": "z1"}])),
        lanes=tuple(lanes[draw(st.sampled_from([0, 0, 1])) : draw(st.sampled_from([0, 1, 2, 4, 4]))]),
        pools=tuple(pools[: draw(st.sampled_from([0, 1, 2, 3, 3]))]),
        cpu_cores=draw(st.integers(0, 256)),
        cached=draw(st.sampled_from([frozenset[str](), frozenset({artifact().digest})])),
        taints=draw(st.sampled_from([(), (), (Taint(key="owner", value="ann"),)])),
        is_offline=draw(st.sampled_from([False, False, True])),
    )


@st.composite
def fleets(draw: st.DrawFn) -> list[NodeView]:
    return [draw(node_views(name)) for name in NAMES[: draw(st.integers(0, len(NAMES)))]]


@st.composite
def uniform_fleets(draw: st.DrawFn) -> list[NodeView]:
    """Many nodes of few kinds, so that classes have more than one; each has a label and files of its own."""
    kinds = [draw(node_views("kind")) for _ in range(draw(st.integers(1, 3)))]
    views: list[NodeView] = []
    for name in NAMES:
        kind = draw(st.sampled_from(kinds))
        taken = draw(st.sampled_from([0, 0, GIB, 5 * GIB]))
        pools = tuple(replace(pool, reserved_bytes=pool.reserved_bytes + taken) for pool in kind.pools)
        cached = draw(st.sampled_from([kind.cached, frozenset({artifact().digest}), frozenset({"c" * 64})]))
        views.append(replace(kind, name=name, pools=pools, cached=cached, labels={**kind.labels, "host": name}))
    return views


def variants() -> st.SearchStrategy[tuple[VariantView, ...]]:
    sliding = geometry(sliding_window_tokens=1024, sliding_layers=tuple(range(0, 30, 2)), context_tokens=40_000)
    draft = CompanionView(CompanionRole.DRAFT, geometry(), artifact())
    known = [
        large_variant("large"),
        variant("small"),
        variant("sliding", geometry=sliding),
        large_variant("drafted", companions=(draft,)),
        variant("mlx", format=ArtifactFormat.MLX, engines=(EngineName.MLX,)),
        variant("both", engines=(EngineName.MLX, EngineName.LLAMA_SERVER)),
    ]
    broken = variant("broken", geometry=None, artifact=None, error="gone")
    unread = variant("unread", geometry=None, artifact=None)
    known += [replace(each, name=f"{each.name}-unheld", is_held=False) for each in known[:4]]
    lists = st.lists(st.sampled_from([*known, *known, broken, unread]), max_size=3, unique_by=lambda view: view.name)
    return lists.map(tuple)


def barred() -> st.SearchStrategy[Barred]:
    pools = st.sampled_from(["", "Host", "Vulkan0", "Vulkan1"])
    engines = st.sampled_from([EngineName.LLAMA_SERVER, EngineName.LLAMA_SERVER, EngineName.MLX])
    return st.builds(Barred, st.sampled_from(NAMES), engines, pools)


@st.composite
def wishes(draw: st.DrawFn) -> Wish:
    window = st.none() | st.integers(256, 200_000)
    return wish(
        variants=draw(variants()),
        engines=draw(st.sampled_from([(), (EngineName.LLAMA_SERVER,), (EngineName.MLX, EngineName.LLAMA_SERVER)])),
        computes=draw(st.sampled_from([(), (), (Compute.VULKAN,), (Compute.CPU, Compute.CUDA)])),
        tolerations=draw(st.sampled_from([(), (Toleration(key="owner", value="ann"),)])),
        selector=draw(st.sampled_from([{}, {}, {"zone": "z1"}])),
        exclude=frozenset(draw(st.sets(st.sampled_from(NAMES), max_size=2))),
        failed=frozenset(draw(st.sets(barred(), max_size=3))),
        context_tokens=draw(window),
        min_context_tokens=draw(window),
        model_context_tokens=draw(window),
        slots=draw(st.integers(1, 64)),
        kv_cache_type=draw(st.sampled_from(KvCacheType)),
        workspace_bytes=draw(st.sampled_from([0, 100 * MIB])),
        placed=draw(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3), max_size=3)),
    )


def geometry_of(asked: Wish, chosen: Chosen) -> VariantView:
    return next(view for view in asked.variants if view.name == chosen.variant)


def assert_no_pool_is_over_committed(nodes: list[NodeView], decision: Decision) -> None:
    for view in nodes:
        for pool in view.pools:
            taken = sum(
                costs.total_bytes
                for chosen in decision.chosen
                if chosen.node == view.name
                for costs in chosen.costs
                if costs.pool == pool.name
            )
            assert taken == 0 or taken <= pool.unreserved_bytes


@FLEETS
@given(wishes(), fleets(), st.integers(0, 6), st.randoms(use_true_random=False))
def test_choice_is_total_and_the_same_for_every_order_of_nodes(
    asked: Wish, nodes: list[NodeView], count: int, random: Random
) -> None:
    decision = choose(asked, nodes, count)
    shuffled = list(nodes)
    random.shuffle(shuffled)
    assert choose(asked, shuffled, count) == decision
    assert explain_nodes(asked, shuffled) == explain_nodes(asked, nodes)
    assert len(decision.chosen) <= count
    short = len(decision.chosen) < count
    assert short == bool(decision.pending or decision.counts)
    assert bool(render_refusals(decision)) == short


@FLEETS
@given(wishes(), fleets(), st.integers(0, 6))
def test_no_pool_is_ever_over_committed(asked: Wish, nodes: list[NodeView], count: int) -> None:
    decision = choose(asked, nodes, count)
    assert_no_pool_is_over_committed(nodes, decision)
    for answer in explain_nodes(asked, nodes):
        if isinstance(answer, Chosen):
            assert_no_pool_is_over_committed(nodes, Decision((answer,), None, (), None))


@FLEETS
@given(wishes(), fleets(), st.integers(0, 6))
def test_window_keeps_every_bound(asked: Wish, nodes: list[NodeView], count: int) -> None:
    for chosen in choose(asked, nodes, count).chosen:
        window = chosen.options.context_tokens
        known = geometry_of(asked, chosen).geometry
        assert known is not None
        bound = min(known.context_tokens, asked.model_context_tokens or known.context_tokens)
        assert window <= bound
        if asked.context_tokens is not None and asked.min_context_tokens is not None:
            assert min(asked.min_context_tokens, asked.context_tokens) <= window <= asked.context_tokens
        elif asked.context_tokens is not None:
            assert window == asked.context_tokens
        else:
            assert window % 256 == 0 or window == bound < 256
            assert window >= (asked.min_context_tokens or min(2048, bound // 256 * 256 or bound))


@NUMBERS
@given(st.integers(0, 64 * GIB), st.integers(0, 16 * GIB), st.integers(1, 32), st.sampled_from(KvCacheType))
def test_more_memory_never_leaves_less_context(memory: int, more: int, slots: int, kv_type: KvCacheType) -> None:
    asked = wish(variants=(large_variant(),), slots=slots, kv_cache_type=kv_type)
    poor, rich = (choose(asked, [node(memory=total)], 1).chosen for total in (memory, memory + more))
    assert len(poor) <= len(rich)
    if poor:
        assert poor[0].options.context_tokens <= rich[0].options.context_tokens


@NUMBERS
@given(st.integers(8 * GIB, 64 * GIB), st.integers(1, 16))
def test_window_is_the_largest_that_fits(memory: int, slots: int) -> None:
    asked = wish(variants=(large_variant(),), slots=slots)
    for chosen in choose(asked, [node(memory=memory)], 1).chosen:
        window = chosen.options.context_tokens
        if window < 131_072:
            assert not choose(replace(asked, context_tokens=window + 256), [node(memory=memory)], 1).chosen


@FLEETS
@given(wishes(), fleets())
def test_every_node_is_explained_as_the_choice_decides(asked: Wish, nodes: list[NodeView]) -> None:
    answers = explain_nodes(asked, nodes)
    assert [answer.node for answer in answers] == sorted(view.name for view in nodes)
    decision = choose(asked, nodes, 1)
    fitting = {answer.node for answer in answers if isinstance(answer, Chosen)}
    if decision.chosen:
        assert decision.chosen[0] in answers
    elif decision.pending is None or decision.counts:
        assert not fitting
        assert sum(count for _, count in decision.counts) == len(nodes)
        assert decision.closest is None or decision.closest in answers


@FLEETS
@given(st.lists(st.integers(2, 200), min_size=1, max_size=6), st.none() | st.integers(256, 131_072))
def test_the_widest_window_decides_and_then_the_tightest_fit(sizes: list[int], tokens: int | None) -> None:
    nodes = [node(NAMES[index], memory=size * GIB) for index, size in enumerate(sizes)]
    asked = wish(variants=(large_variant(),), context_tokens=tokens)
    alone = [chosen for view in nodes for chosen in choose(asked, [view], 1).chosen]
    chosen = choose(asked, nodes, 1).chosen
    assert bool(chosen) == bool(alone)
    if chosen:
        windows = {each.node: each.options.context_tokens for each in alone}
        widest = max(windows.values())
        assert windows[chosen[0].node] == widest
        memory = {view.name: view.pools[0].total_bytes for view in nodes}
        equal = [memory[name] for name, window in windows.items() if window == widest]
        assert memory[chosen[0].node] == (min(equal) if widest == (tokens or 131_072) else max(equal))


@FLEETS
@given(wishes(), fleets(), st.integers(1, 4))
def test_spread_never_puts_a_second_replica_where_an_equal_node_has_none(
    asked: Wish, nodes: list[NodeView], count: int
) -> None:
    chosen = choose(replace(asked, placed={}), nodes, count).chosen
    names = [each.node for each in chosen]
    for index, each in enumerate(chosen):
        if each.node in names[:index]:
            idle = [
                other
                for other in explain_nodes(asked, [view for view in nodes if view.name not in names[: index + 1]])
                if isinstance(other, Chosen)
                and (other.variant, other.lane.engine, other.lane.compute)
                == (each.variant, each.lane.engine, each.lane.compute)
            ]
            assert idle == []


def place_one_by_one(asked: Wish, nodes: list[NodeView], count: int) -> tuple[list[Offer], list[Miss]]:
    """What the choice must come to, by asking every node for every replica."""
    question, taken = Question(asked), dict.fromkeys((view.name for view in nodes), NOTHING_TAKEN)
    placed: list[Offer] = []
    while True:
        outcomes = [evaluate_node(question, view, taken[view.name]) for view in nodes]
        offers = [outcome for outcome in outcomes if isinstance(outcome, Offer)]
        if len(placed) == count or not offers:
            return placed, [outcome for outcome in outcomes if isinstance(outcome, Miss)]
        best = min(offers, key=lambda offer: offer.order)
        placed.append(best)
        taken[best.node.name] = taken[best.node.name].with_offer(best)


def layers(parts: Iterable[Costs] | Iterable[CostFormula]) -> list[tuple[str, int]]:
    """Which device holds how many."""
    return [(each.pool, each.layers) for each in parts if each.layers]


@settings(max_examples=150, deadline=None)
@given(wishes(), fleets() | uniform_fleets(), st.integers(1, 4))
def test_classes_of_nodes_come_to_what_asking_every_node_comes_to(
    asked: Wish, nodes: list[NodeView], count: int
) -> None:
    decision = choose(asked, nodes, count)
    if pending_geometry(asked):
        assert decision.chosen == ()
        return
    placed, misses = place_one_by_one(asked, nodes, count)
    assert [(each.node, each.variant, each.lane, layers(each.costs)) for each in decision.chosen] == [
        (offer.node.name, offer.way.variant, offer.lane, layers(offer.split)) for offer in placed
    ]
    if len(placed) < count:
        reasons = Counter(miss.reason for miss in misses)
        assert decision.counts == tuple(sorted(reasons.items()))
        closest = min(misses, key=nearness, default=None)
        assert decision.closest == (explain_miss(Question(asked), closest) if closest else None)


@settings(max_examples=100, deadline=None)
@given(st.lists(wishes(), min_size=1, max_size=4), uniform_fleets(), st.data())
def test_roster_that_changed_answers_as_one_that_is_made_anew(
    asked: list[Wish], nodes: list[NodeView], data: st.DataObject
) -> None:
    roster = Roster(nodes)
    current = {view.name: view for view in nodes}
    for each in asked:
        assert choose(each, roster, 2) == choose(each, list(current.values()), 2)
        changed = data.draw(st.sampled_from(nodes)), data.draw(uniform_fleets())
        view = replace(data.draw(st.sampled_from(changed[1])), name=changed[0].name)
        current[view.name] = view
        roster.put(view)
    assert list(roster) == [current[name] for name in sorted(current)]
    assert choose(asked[0], roster, 2) == choose(asked[0], list(current.values()), 2)
