"""Places over several nodes: when one is taken, and what is stamped on each member."""

from dataclasses import replace

import pytest
from covey_api.engines import Compute
from covey_api.instance import MemberRole
from covey_planner.choice import choose
from covey_planner.fit.split import layer_weights, output_bytes
from covey_planner.types import Chosen, NodeView, Spread
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
    beside = [costs.weights_bytes - -(-layers * costs.layers // 64) for costs in held]
    assert beside == [HUGE.geometry.token_embedding_bytes, 0, output_bytes(HUGE.geometry)]


def test_why_there_is_no_group_is_said() -> None:
    asked = replace(wish(variants=(HUGE,), context_tokens=8192), spread=Spread(2, 2, is_asked=True))
    decision = choose(asked, [able("a", 64)], 1)
    assert decision.closest is not None
    assert decision.closest.message.startswith("no 2 nodes hold model")


def test_what_was_placed_counts_for_the_next_one() -> None:
    fleet = [able("a", 33), able("b", 25)]
    asked = replace(wish(variants=(HUGE,), context_tokens=8192), spread=AUTO)
    assert len(choose(asked, fleet, 2).chosen) == 1
