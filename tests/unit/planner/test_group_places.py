"""Places over several nodes: when one is taken, and what is stamped on each member."""

from dataclasses import replace

import pytest
from covey_api.engines import Compute, EngineName, KvCacheType, Lane
from covey_api.instance import MemberRole
from covey_planner.choice import choose
from covey_planner.fit.split import layer_weights, output_bytes
from covey_planner.types import Barred, Chosen, NodeState, NodeView, ShapeKind, Spread, Wish
from kit.builders import lane
from kit.planning import GIB, large_geometry, large_variant, node, wish

HUGE = large_variant(geometry=large_geometry(weights_bytes=40 * GIB, layer_count=64, kv_head_counts=(8,) * 64))
AUTO, ASKED = Spread(2, 4, is_asked=False), Spread(2, 4, is_asked=True)
ABLE = (lane(roles=(MemberRole.DRIVER.value, MemberRole.DONOR.value)),)


def able(name: str, gib: int, **changes: object) -> NodeView:
    return replace(node(name, memory=gib * GIB), lanes=ABLE, **changes)  # pyright: ignore[reportArgumentType]


def place(spread: Spread | None, *nodes: NodeView) -> Chosen | None:
    asked = replace(wish(variants=(HUGE,), context_tokens=8192), spread=spread)
    return next(iter(choose(asked, nodes, 1).chosen), None)


def nodes_of(chosen: Chosen | None) -> list[str]:
    return [name for name, _ in chosen.places] if chosen else []


def test_one_node_is_enough_unless_several_are_asked_for() -> None:
    fleet = [able("a", 64), able("b", 64)]
    assert nodes_of(place(AUTO, *fleet)) == ["a"]
    assert nodes_of(place(ASKED, *fleet)) == ["a", "b"]
    assert nodes_of(place(None, *fleet)) == ["a"]


def test_what_fits_on_none_alone_goes_over_the_fewest_where_that_is_allowed() -> None:
    fleet = [able("a", 33), able("b", 25), able("c", 17)]
    assert place(None, *fleet) is None
    assert nodes_of(place(AUTO, *fleet)) == ["a", "b"]
    assert nodes_of(place(Spread(3, 4, is_asked=False), *fleet)) == ["a", "b", "c"]


def test_members_hold_all_layers_and_no_more_than_is_unreserved() -> None:
    fleet = {each.name: each for each in (able("a", 33), able("b", 25), able("c", 17))}
    chosen = place(Spread(3, 3, is_asked=True), *fleet.values())
    assert chosen is not None
    assert not chosen.options.repack
    assert sum(costs.layers for _, parts in chosen.places for costs in parts) == 64
    for name, parts in chosen.places:
        (pool,) = fleet[name].pools
        assert 0 < sum(costs.total_bytes for costs in parts) <= pool.unreserved_bytes


@pytest.mark.parametrize(
    "other",
    [
        able("b", 64, schedulable=False),
        replace(able("b", 64), lanes=(lane(),)),
        replace(able("b", 64), lanes=(lane(roles=ABLE[0].roles, version="another"),)),
        replace(able("b", 64), lanes=(lane(roles=ABLE[0].roles, digest="ab"),)),
        replace(able("b", 64), lanes=(lane(roles=ABLE[0].roles, compute=Compute.CUDA, pool="CUDA0"),)),
    ],
    ids=["cordoned", "agent of an older version", "another version", "another build", "no such pool"],
)
def test_nodes_that_cannot_be_members_make_no_group(other: NodeView) -> None:
    assert place(ASKED, able("a", 64), other) is None


def test_a_device_in_the_machines_own_memory_is_no_members_and_its_processor_is() -> None:
    device = lane(roles=ABLE[0].roles, compute=Compute.METAL)
    fleet = [replace(able(name, 33), lanes=(device, *ABLE)) for name in "ab"]
    chosen = place(ASKED, *fleet)
    assert chosen is not None
    assert chosen.lane.compute is Compute.CPU
    assert place(ASKED, *(replace(each, lanes=(device,)) for each in fleet)) is None


def test_the_last_donor_has_the_output_and_the_driver_the_embeddings() -> None:
    assert HUGE.geometry is not None
    layers = layer_weights(HUGE.geometry)
    chosen = place(Spread(3, 3, is_asked=True), able("a", 33), able("b", 25), able("c", 17))
    assert chosen is not None
    held = [costs for _, (costs,) in chosen.places]
    # Layers differ: each member is counted an average one more than it has.
    beside = [costs.weights_bytes - -(-layers * (costs.layers + 1) // 64) for costs in held]
    assert beside == [HUGE.geometry.token_embedding_bytes, 0, output_bytes(HUGE.geometry)]


def test_a_donor_needs_no_file_and_the_driver_does() -> None:
    """An offline node gets files from others alone, and no other has this one."""

    def seats(spread: Spread, *nodes: NodeView) -> list[str]:
        asked = wish(variants=(replace(HUGE, is_held=False),), context_tokens=8192)
        return nodes_of(next(iter(choose(replace(asked, spread=spread), nodes, 1).chosen), None))

    offline = [able(name, gib, is_offline=True) for name, gib in (("a", 40), ("b", 33))]
    other, locked = able("c", 30), Spread(2, 2, is_asked=True, lock=("a", "c"))
    assert seats(ASKED, offline[0], other) == ["c", "a"]
    assert seats(ASKED, *offline) == []
    assert seats(locked, offline[0], other) == []
    assert seats(replace(locked, lock=("c", "a")), offline[0], other) == ["c", "a"]


def test_what_a_run_of_layers_keeps_is_counted_by_its_own_layers() -> None:
    """Every sixth layer sees the whole window, as of Gemma 3: a run that has more of these keeps more than its part."""
    sliding = tuple(layer for layer in range(62) if layer % 6 != 5)
    geometry = large_geometry(
        **{"architecture": "gemma3", "weights_bytes": 30 * GIB, "layer_count": 62, "kv_head_counts": (16,) * 62},
        **{"sliding_window_tokens": 1024, "sliding_layers": sliding, "context_tokens": 131_072},
    )
    asked = wish(variants=(large_variant(geometry=geometry),), context_tokens=131_072)
    fleet = [able("a", 60), able("b", 30), able("c", 30)]
    (chosen,) = choose(replace(asked, spread=Spread(3, 3, is_asked=True)), fleet, 1).chosen
    parts = [costs for _, (costs,) in chosen.places]
    first, alike = 0, chosen.options
    for costs in parts:
        run = range(first, first + costs.layers)
        first += costs.layers
        cell = 16 * 2 * geometry.key_length * 2
        full = sum(layer not in sliding for layer in run)
        cells = full * alike.context_tokens + (len(run) - full) * (1024 + alike.micro_batch_tokens)
        assert costs.kv_cache_bytes == alike.slots * cell * cells
    assert first == 62


def test_why_there_is_no_group_is_said() -> None:
    asked = replace(wish(variants=(HUGE,), context_tokens=8192), spread=Spread(2, 2, is_asked=True))
    decision = choose(asked, [able("a", 64)], 1)
    assert decision.closest is not None
    assert decision.closest.message.startswith("no 2 nodes hold model")


@pytest.mark.parametrize(
    ("state", "expected"),
    [(NodeState.FACTS_PENDING, []), (NodeState.UNKNOWN, ["b", "c"]), (NodeState.READY, ["a"])],
)
def test_what_may_fit_on_one_node_waits_for_the_facts_that_are_on_their_way(
    state: NodeState, expected: list[str]
) -> None:
    asked = replace(wish(variants=(HUGE,), context_tokens=8192), spread=AUTO)
    decision = choose(asked, [able("a", 64, state=state), able("b", 33), able("c", 33)], 1)
    assert [name for chosen in decision.chosen for name in nodes_of(chosen)] == expected
    assert (decision.pending is not None) == (not expected)


def test_a_locked_group_says_whose_build_differs_and_who_cannot_get_the_files() -> None:
    locked = Spread(2, 2, is_asked=True, lock=("a", "b"))

    def words(*nodes: NodeView) -> str:
        asked = wish(variants=(replace(HUGE, is_held=False),), context_tokens=8192)
        closest = choose(replace(asked, spread=locked), nodes, 1).closest
        assert closest is not None
        return closest.message

    other = replace(able("b", 33), lanes=(lane(roles=ABLE[0].roles, version="another"),))
    assert "they differ: 'a' has LlamaServer " in words(able("a", 33), other)
    assert "'b' has LlamaServer another" in words(able("a", 33), other)
    offline = able("a", 33, is_offline=True)
    assert "waits for 'a' (it is offline, and no node has the files yet)" in words(offline, able("b", 33))
    assert "together they don't hold model" in words(able("a", 20), able("b", 20))


def test_where_a_group_would_do_it_is_said_why_there_is_none() -> None:
    asked = replace(wish(variants=(HUGE,), context_tokens=8192), spread=AUTO)
    other = replace(able("b", 33), lanes=(lane(roles=ABLE[0].roles, digest="ab"),))
    closest = choose(asked, [able("a", 33), other], 1).closest
    assert closest is not None
    assert closest.short_bytes > 0
    assert "; no 2 to 4 nodes hold model 'smollm2' together as `Rpc`: each must be free" in closest.message


def test_what_was_placed_counts_for_the_next_one() -> None:
    fleet = [able("a", 33), able("b", 25)]
    asked = replace(wish(variants=(HUGE,), context_tokens=8192), spread=AUTO)
    assert len(choose(asked, fleet, 2).chosen) == 1


RANK = lane(engine=EngineName.MLX, digest="0" * 64, roles=(MemberRole.RANK.value,))


def replace_lane(**changes: object) -> Lane:
    return RANK.model_copy(update=changes)


PIPELINE, TENSOR = (Spread(2, 4, is_asked=True, kind=kind) for kind in (ShapeKind.PIPELINE, ShapeKind.TENSOR))


def ranker(name: str, gib: int, **changes: object) -> NodeView:
    return replace(node(name, memory=gib * GIB), lanes=(RANK,), **changes)  # pyright: ignore[reportArgumentType]


def mlx_wish(spread: Spread, model_type: str = "qwen3_moe", **changes: object) -> Wish:
    geometry = large_geometry(
        weights_bytes=40 * GIB,
        layer_count=64,
        kv_head_counts=(8,) * 64,
        model_type=model_type,
        feed_forward_length=4096,
    )
    asked = wish(variants=(replace(large_variant(geometry=geometry), engines=(EngineName.MLX,)),), context_tokens=8192)
    return replace(asked, spread=spread, **changes)  # pyright: ignore[reportArgumentType]


def test_ranks_of_a_pipeline_share_the_layers_by_memory_and_rank_0_has_the_most() -> None:
    fleet = {each.name: each for each in (ranker("a", 55), ranker("b", 40), ranker("c", 30))}
    (chosen,) = choose(mlx_wish(PIPELINE), tuple(fleet.values()), 1).chosen
    assert (nodes_of(chosen), chosen.kind, chosen.lane.engine) == (["a", "b"], ShapeKind.PIPELINE, EngineName.MLX)
    first, second = (costs for _, (costs,) in chosen.places)
    assert first.layers > second.layers > 0
    assert first.layers + second.layers == 64
    assert first.host_cache_bytes == second.host_cache_bytes == chosen.options.host_cache_mib == 0
    for name, parts in chosen.places:
        (pool,) = fleet[name].pools
        assert sum(costs.total_bytes for costs in parts) <= pool.unreserved_bytes


def test_every_rank_needs_the_files() -> None:
    fleet = (ranker("a", 55), ranker("b", 45, is_offline=True))
    asked = mlx_wish(PIPELINE)
    assert choose(asked, fleet, 1).chosen
    assert not choose(replace(asked, variants=(replace(asked.variants[0], is_held=False),)), fleet, 1).chosen


def test_every_rank_has_the_embeddings_and_the_output_beside_its_layers() -> None:
    asked = mlx_wish(PIPELINE)
    (chosen,) = choose(asked, (ranker("a", 55), ranker("b", 45)), 1).chosen
    geometry = asked.variants[0].geometry
    assert geometry is not None
    whole = geometry.token_embedding_bytes + output_bytes(geometry)
    for _, (costs,) in chosen.places:
        assert costs.weights_bytes == -(-layer_weights(geometry) * (costs.layers + 1) // 64) + whole


def test_ranks_of_a_model_that_is_cut_across_its_layers_hold_equal_parts() -> None:
    (chosen,) = choose(mlx_wish(TENSOR), (ranker("a", 55), ranker("b", 45)), 1).chosen
    assert (nodes_of(chosen), chosen.kind) == (["a", "b"], ShapeKind.TENSOR)
    first, second = (costs for _, (costs,) in chosen.places)
    assert first == second
    assert first.layers == 0
    (alone,) = choose(mlx_wish(PIPELINE), (ranker("a", 80), ranker("b", 80)), 1).chosen
    assert first.kv_cache_bytes == sum(costs.kv_cache_bytes for _, (costs,) in alone.places) // 2


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (mlx_wish(PIPELINE, "llama"), "of a kind that mlx-lm has as a pipeline"),
        (mlx_wish(TENSOR, "mamba"), "cut across its layers"),
        (mlx_wish(replace(TENSOR, least=3)), "heads and feed-forward must divide"),
        (mlx_wish(PIPELINE, kv_cache_type=KvCacheType.Q8_0), "the cache must be F16"),
    ],
    ids=["no pipeline", "no such kind", "heads", "quantised cache"],
)
def test_models_that_no_ring_runs_are_refused_before_anything_is_fetched(asked: Wish, words: str) -> None:
    decision = choose(asked, [ranker(name, 64) for name in "abc"], 1)
    assert decision.chosen == ()
    assert decision.closest is not None
    assert words in decision.closest.message


@pytest.mark.parametrize(
    "other",
    [
        replace(ranker("b", 64), lanes=(replace_lane(roles=()),)),
        replace(ranker("b", 64), lanes=(replace_lane(digest="1" * 64),)),
        replace(ranker("b", 64), lanes=(replace_lane(compute=Compute.METAL),)),
        replace(ranker("b", 64), lanes=(replace_lane(digest="", version=""),)),
    ],
    ids=["agent of an older version", "another build", "another compute", "unknown build"],
)
def test_nodes_that_cannot_be_ranks_make_no_ring(other: NodeView) -> None:
    assert choose(mlx_wish(PIPELINE), (ranker("a", 64), other), 1).chosen == ()


def test_a_ring_is_never_formed_unasked() -> None:
    fleet = (ranker("a", 55), ranker("b", 45))
    assert choose(mlx_wish(AUTO), fleet, 1).chosen == ()


LOCKED = Spread(2, 2, is_asked=True, lock=("c", "a"))


def test_a_locked_topology_has_those_nodes_in_that_order_and_still_obeys_memory() -> None:
    fleet = [able("a", 33), able("b", 64), able("c", 25)]
    chosen = place(LOCKED, *fleet)
    assert nodes_of(chosen) == ["c", "a"]
    assert place(LOCKED, able("a", 20), able("b", 64), able("c", 20)) is None
    ring = mlx_wish(replace(PIPELINE, least=2, most=2, lock=("c", "a")))
    (ranks,) = choose(ring, [ranker("a", 80), ranker("b", 80), ranker("c", 60)], 1).chosen
    assert nodes_of(ranks) == ["c", "a"]


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ((able("c", 64), able("b", 64)), "it waits for 'a' (it has not joined)"),
        ((able("a", 64, state=NodeState.UNKNOWN), able("b", 64), able("c", 64)), "it waits for 'a' (NodeUnknown)"),
        ((able("a", 64, schedulable=False), able("b", 64), able("c", 64)), "it waits for 'a' (Cordoned)"),
        ((replace(able("a", 64), lanes=(lane(),)), able("b", 64), able("c", 64)), "it offers no engine of the model"),
        ((able("a", 9), able("b", 64), able("c", 9)), "together they don't hold model 'smollm2' as `Rpc`"),
    ],
    ids=["not there", "silent", "cordoned", "no role", "memory"],
)
def test_a_locked_topology_falls_back_to_nothing_and_says_for_whom_it_waits(
    nodes: tuple[NodeView, ...], words: str
) -> None:
    asked = replace(wish(variants=(HUGE,), context_tokens=8192), spread=LOCKED)
    decision = choose(asked, nodes, 1)
    assert decision.chosen == ()
    assert decision.closest is not None
    assert words in decision.closest.message, decision.closest.message


def test_a_locked_topology_waits_for_a_node_on_which_it_failed() -> None:
    fleet = [able("a", 64), able("b", 64), able("c", 64)]
    asked = replace(wish(variants=(HUGE,), context_tokens=8192), spread=LOCKED)
    failed = frozenset({Barred("a", EngineName.LLAMA_SERVER)})
    decision = choose(replace(asked, failed=failed), fleet, 1)
    assert decision.chosen == ()
    assert decision.closest is not None
    assert "it waits for 'a' (the last attempt failed there)" in decision.closest.message
