"""Shapes of several nodes: shares of layers, links, builds, and that nothing is promised that isn't there."""

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from covey_api.engines import Compute, EngineName
from covey_api.instance import MemberRole
from covey_planner.choice import choose
from covey_planner.choice.links import LinkKind, classify_link
from covey_planner.choice.shapes import Shape, choose_shape
from covey_planner.choice.shares import can_divide, share_layers
from covey_planner.fit.limits import limit_pools
from covey_planner.text.shape import render_shape
from covey_planner.types import NodeView, Pool, ShapeKind, Spread, VariantView
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.builders import lane
from kit.planning import GIB, large_geometry, large_variant, node, variant, wish

HUGE = large_variant(geometry=large_geometry(weights_bytes=40 * GIB, layer_count=64, kv_head_counts=(8,) * 64))
ASKED = wish(variants=(HUGE,), context_tokens=8192)


def of_kind(model_type: str) -> VariantView:
    assert HUGE.geometry is not None
    return replace(HUGE, geometry=HUGE.geometry.model_copy(update={"model_type": model_type}))


def ethernet(_one: str, _other: str) -> LinkKind:
    return LinkKind.ETHERNET


def shape_of(*nodes: NodeView, kind: ShapeKind = ShapeKind.RPC) -> Shape | None:
    return choose_shape(ASKED, nodes, ethernet, (kind,))


def names(shape: Shape | None) -> list[str]:
    assert shape is not None
    return [member.node for member in shape.members]


@settings(deadline=None)
@given(st.integers(1, 128), st.lists(st.integers(0, 64 * GIB), min_size=1, max_size=6), st.integers(1, 4 * GIB))
def test_shares_hold_all_layers_and_nobody_gets_more_than_fits(layers: int, usable: list[int], per_layer: int) -> None:
    shares = share_layers(layers, usable, per_layer)
    capacity = [each // per_layer for each in usable]
    if shares is None:
        assert sum(capacity) < layers or layers < len(usable) or min(capacity) < 1
        return
    assert sum(shares) == layers
    assert all(1 <= share <= most for share, most in zip(shares, capacity, strict=True))


@pytest.mark.parametrize(
    ("layers", "usable", "expected"),
    [
        (32, (16, 16), (16, 16)),
        (32, (24, 8), (24, 8)),
        (33, (20, 20), (17, 16)),
        (10, (4, 40), (1, 9)),
        (40, (20, 20), (20, 20)),
        (41, (20, 20), None),
        (2, (20, 20, 20), None),
    ],
)
def test_shares_are_in_proportion_to_usable_memory(
    layers: int, usable: tuple[int, ...], expected: tuple[int, ...] | None
) -> None:
    assert share_layers(layers, usable, 1) == expected


def test_link_in_a_tunnel_is_one_whatever_else_it_is() -> None:
    assert classify_link(LinkKind.THUNDERBOLT, "169.254.1.1", "169.254.1.2") is LinkKind.THUNDERBOLT
    assert classify_link(LinkKind.ETHERNET, "10.0.0.1", "100.64.0.7") is LinkKind.VPN
    assert classify_link(LinkKind.ETHERNET, "fd7a:115c:a1e0::1") is LinkKind.VPN
    assert classify_link(LinkKind.WIFI, "100.128.0.1", "mac.local", "") is LinkKind.WIFI
    assert LinkKind.THUNDERBOLT < LinkKind.ETHERNET < LinkKind.WIFI < LinkKind.UNKNOWN < LinkKind.VPN


def test_fewest_nodes_that_hold_it_together_are_chosen_and_share_by_their_memory() -> None:
    fleet = [node("a", memory=33 * GIB), node("b", memory=25 * GIB), node("c", memory=17 * GIB)]
    assert not choose(ASKED, fleet, 1).chosen
    shape = shape_of(*fleet)
    assert shape is not None
    assert names(shape) == ["a", "b"]
    driver, donor = shape.members
    assert (driver.role, donor.role) == ("Driver", "Donor")
    assert (driver.first_layer, donor.last_layer, donor.first_layer) == (0, 63, driver.last_layer + 1)
    assert driver.last_layer + 1 > 64 - donor.first_layer, "who has more memory has more layers"
    assert all(member.total_bytes <= member.usable_bytes for member in shape.members)


def test_better_link_beats_more_memory_and_a_tunnel_comes_last() -> None:
    fleet = [node(name, memory=size * GIB) for name, size in (("a", 40), ("b", 34), ("c", 33), ("d", 32))]
    fast = {frozenset("cd"): LinkKind.THUNDERBOLT, frozenset("ab"): LinkKind.VPN}
    shape = choose_shape(ASKED, fleet, lambda one, other: fast.get(frozenset((one, other)), LinkKind.ETHERNET))
    assert shape is not None
    assert (names(shape), shape.link) == (["c", "d"], LinkKind.THUNDERBOLT)
    shape = choose_shape(ASKED, fleet[:2], lambda _one, _other: LinkKind.VPN)
    assert shape is not None
    assert shape.link is LinkKind.VPN


def test_a_node_that_only_its_own_machine_reaches_takes_no_part_with_others() -> None:
    assert classify_link(LinkKind.ETHERNET, "127.0.0.2", "10.0.0.1") is LinkKind.NONE
    assert classify_link(LinkKind.ETHERNET, "100.64.0.7", "::1") is LinkKind.NONE
    assert classify_link(LinkKind.ETHERNET, "127.0.0.2", "127.0.0.3") is LinkKind.ETHERNET
    assert classify_link(LinkKind.ETHERNET, "127.0.0.2", "") is LinkKind.ETHERNET
    at = {"a": "127.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
    fleet = [node("a", memory=64 * GIB), node("b", memory=33 * GIB), node("c", memory=33 * GIB)]
    shape = choose_shape(ASKED, fleet, lambda one, other: classify_link(LinkKind.UNKNOWN, at[one], at[other]))
    assert names(shape) == ["b", "c"]


def test_builds_of_an_engine_are_never_mixed() -> None:
    other = (lane(digest="0" * 64, version="10000"),)
    assert shape_of(node("a", memory=33 * GIB), node("b", memory=33 * GIB, lanes=other)) is None
    third = node("c", memory=25 * GIB, lanes=other)
    assert names(shape_of(node("a", memory=33 * GIB), node("b", memory=33 * GIB, lanes=other), third)) == ["b", "c"]


def test_ranks_of_mlx_compute_alike_and_llama_servers_donors_may_differ() -> None:
    def fleet(engine: EngineName) -> list[NodeView]:
        lanes = {
            compute: (lane(engine=engine, compute=compute, digest="0" * 64),)
            for compute in (Compute.METAL, Compute.CPU)
        }
        return [
            node("a", memory=54 * GIB, lanes=lanes[Compute.METAL]),
            node("b", memory=54 * GIB, lanes=lanes[Compute.CPU]),
            node("c", memory=50 * GIB, lanes=lanes[Compute.METAL]),
        ]

    for engine, kind, expected in (
        (EngineName.MLX, ShapeKind.PIPELINE, ["a", "c"]),
        (EngineName.LLAMA_SERVER, ShapeKind.RPC, ["a", "b"]),
    ):
        asked = replace(ASKED, variants=(replace(of_kind("qwen3_moe"), engines=(engine,)),))
        shape = choose_shape(asked, fleet(engine), ethernet)
        assert (names(shape), shape.kind if shape else None) == (expected, kind)


def test_what_a_device_can_fill_of_the_hosts_memory_bounds_its_part() -> None:
    device = lane(compute=Compute.ROCM, digest="0" * 64, limit_bytes=30 * GIB)
    pools = (Pool("Host", 64 * GIB, GIB, 0), *limit_pools((device,)))
    fleet = [node(name, pools=pools, lanes=(device,)) for name in "ab"]
    shape = shape_of(*fleet)
    assert shape is not None
    assert [member.usable_bytes for member in shape.members] == [30 * GIB] * 2


def test_tensor_needs_a_number_of_nodes_that_divides_width_and_heads() -> None:
    assert can_divide(2, 4096, (8, 0, 8))
    assert not can_divide(3, 4096, (8,))
    assert not can_divide(2, 4096, (8, 1))
    assert not can_divide(2, 4096, (0,))
    three = [node(name, memory=22 * GIB) for name in "abc"]
    assert shape_of(*three, kind=ShapeKind.PIPELINE) is not None
    assert shape_of(*three, kind=ShapeKind.TENSOR) is None, "eight heads are not for three"
    four = [node(name, memory=22 * GIB) for name in "abcd"]
    shape = shape_of(*four, kind=ShapeKind.TENSOR)
    assert shape is not None
    assert {(m.role, m.first_layer, m.last_layer) for m in shape.members} == {("Rank", 0, 63)}
    assert len({member.total_bytes for member in shape.members}) == 1


def test_who_may_not_run_it_takes_no_part() -> None:
    for barred in (node("b", memory=64 * GIB, schedulable=False), node("b", memory=64 * GIB, lanes=())):
        assert shape_of(node("a", memory=33 * GIB), barred) is None
    pools = (Pool("Host", GIB, GIB, 0), Pool("CUDA0", 64 * GIB, 0, 0))
    starved = node("b", pools=pools, lanes=(lane(compute=Compute.CUDA, pool="CUDA0", digest="0" * 64),))
    assert shape_of(node("a", memory=33 * GIB), starved) is None, "its process needs memory of the machine too"
    assert choose_shape(wish(variants=(variant(geometry=None, artifact=None),)), [node()], ethernet) is None


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(4, 40), min_size=2, max_size=6),
    st.sampled_from(ShapeKind),
    st.randoms(use_true_random=False),
    st.none() | st.integers(256, 32_768),
)
def test_shape_is_the_same_for_every_order_of_nodes_and_over_commits_none(
    sizes: list[int], kind: ShapeKind, random: Random, tokens: int | None
) -> None:
    fleet = [node(f"n{index}", memory=size * GIB) for index, size in enumerate(sizes)]
    asked = replace(ASKED, context_tokens=tokens)
    shape = choose_shape(asked, fleet, ethernet, (kind,))
    shuffled = list(fleet)
    random.shuffle(shuffled)
    assert choose_shape(asked, shuffled, ethernet, (kind,)) == shape
    if shape is None:
        return
    assert all(member.total_bytes <= member.usable_bytes for member in shape.members)
    if kind is not ShapeKind.TENSOR:
        assert shape.members[0].first_layer == 0
        assert shape.members[-1].last_layer == 63
        for one, other in zip(shape.members, shape.members[1:], strict=False):
            assert other.first_layer == one.last_layer + 1
    for fewer in range(2, len(shape.members)):
        assert all(choose_shape(asked, some, ethernet, (kind,)) is None for some in combinations(fleet, fewer))


@pytest.mark.parametrize(
    ("spread", "words"),
    [
        (None, "{type: Auto}"),
        (Spread(2, 4, is_asked=False), "{type: Auto}"),
        (Spread(2, 2, is_asked=False), "{type: Auto, maxNodes: 3}"),
        (Spread(4, 4, is_asked=True), "{type: Auto, minNodes: 3}"),
    ],
)
def test_the_wish_that_makes_a_shape_names_the_number_of_nodes_where_another_is_asked_for(
    spread: Spread | None, words: str
) -> None:
    roles = (lane(roles=(MemberRole.DRIVER.value, MemberRole.DONOR.value)),)
    shape = shape_of(*(replace(node(name, memory=25 * GIB), lanes=roles) for name in "abc"))
    assert names(shape) == ["a", "b", "c"]
    assert shape is not None
    assert f"where its Placement says `shape: {words}`" in "\n".join(render_shape(shape, spread))
