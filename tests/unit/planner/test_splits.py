"""One model over several devices of one machine: where it fits on none alone, and nothing is summed."""

from dataclasses import replace
from typing import Any

import pytest
from covey_api.engines import Compute, EngineName
from covey_planner.choice import Roster, choose, explain_nodes, nodes, search
from covey_planner.types import Barred, Chosen, NodeView, Pool, Refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.builders import lane
from kit.planning import GIB, MIB, large_geometry, node, variant, wish

LARGE = wish(variants=(variant(geometry=large_geometry()),), context_tokens=8192)


def cards(*gib: float, name: str = "a", compute: Compute = Compute.CUDA, digest: str = "0" * 64) -> NodeView:
    """A machine with so many devices; its processor is no lane."""
    pools = [f"CUDA{index}" for index in range(len(gib))]
    return node(
        name,
        lanes=tuple(lane(compute=compute, pool=pool, digest=digest) for pool in pools),
        pools=(
            Pool("Host", 32 * GIB, GIB, 0),
            *(Pool(pool, int(size * GIB), 0, 0) for pool, size in zip(pools, gib, strict=True)),
        ),
    )


def layers(chosen: Chosen) -> dict[str, int]:
    return {costs.pool: costs.layers for costs in chosen.costs if costs.layers}


def test_a_model_that_fits_on_no_device_alone_is_shared_among_as_few_as_it_fits_on() -> None:
    (chosen,) = choose(LARGE, [cards(8, 8, 8)], 1).chosen
    assert layers(chosen) == {"CUDA0": 17, "CUDA1": 15}, "the last one has the output too"
    assert [costs.pool for costs in chosen.costs] == ["CUDA0", "CUDA1", "Host"]
    assert sum(costs.weights_bytes for costs in chosen.costs) >= large_geometry().weights_bytes
    (chosen,) = choose(LARGE, [cards(4.5, 4.5, 4.5)], 1).chosen
    assert len(layers(chosen)) == 3


def test_a_model_that_fits_on_one_device_is_not_shared() -> None:
    (chosen,) = choose(LARGE, [cards(8, 8), cards(8, 24, name="b")], 1).chosen
    assert (chosen.node, chosen.lane.pool, layers(chosen)) == ("b", "CUDA1", {})


def with_processor(machine: NodeView, memory: float = 64) -> NodeView:
    """As an agent reports it: its processor is always a lane too."""
    return replace(
        machine,
        lanes=(*machine.lanes, lane(digest=machine.lanes[0].digest)),
        pools=(Pool("Host", int(memory * GIB), GIB, 0), *machine.pools[1:]),
    )


def test_devices_together_come_before_the_processor_and_one_device_before_both() -> None:
    machine = with_processor(cards(8, 8))
    (chosen,) = choose(LARGE, [machine], 1).chosen
    assert (chosen.lane.compute, set(layers(chosen))) == (Compute.CUDA, {"CUDA0", "CUDA1"})
    assert explain_nodes(LARGE, [machine]) == (chosen,)
    (chosen,) = choose(LARGE, [machine, with_processor(cards(24, 8, name="b"))], 1).chosen
    assert (chosen.node, chosen.lane.pool, layers(chosen)) == ("b", "CUDA0", {})
    (chosen,) = choose(LARGE, [with_processor(cards(4, 0.5)), node("b", memory=64 * GIB)], 1).chosen
    assert chosen.lane.compute is Compute.CPU, "which takes what the devices together can't"


def test_of_machines_that_share_alike_the_one_with_the_file_is_chosen() -> None:
    asked = wish(variants=LARGE.variants, context_tokens=8192)
    machines = [with_processor(cards(8, 8, name=name)) for name in "abc"]
    artifact = asked.variants[0].artifact
    assert artifact
    machines[1] = replace(machines[1], cached=frozenset({artifact.digest}))
    assert [each.node for each in choose(asked, machines, 3).chosen] == ["b", "a", "c"]


def test_shares_are_in_proportion_to_what_each_device_has() -> None:
    (chosen,) = choose(LARGE, [cards(9, 5)], 1).chosen
    found = layers(chosen)
    assert sum(found.values()) == 32
    assert found["CUDA0"] > found["CUDA1"] > 0


def test_two_replicas_on_one_machine_count_for_each_other() -> None:
    assert len(choose(LARGE, [cards(8, 8)], 2).chosen) == 1
    first, second = choose(LARGE, [cards(8, 8, 8, 8)], 2).chosen
    assert not layers(first).keys() & layers(second).keys()


def test_devices_of_another_kind_or_build_or_that_failed_are_not_mixed_in() -> None:
    machine = cards(8, 8)
    for change in ({"compute": Compute.VULKAN}, {"digest": "1" * 64}):
        lanes = (machine.lanes[0], machine.lanes[1].model_copy(update=change))
        assert not choose(LARGE, [replace(machine, lanes=lanes)], 1).chosen
    barred = wish(
        variants=LARGE.variants, context_tokens=8192, failed=frozenset({Barred("a", EngineName.LLAMA_SERVER, "CUDA1")})
    )
    (chosen,) = choose(barred, [cards(8, 8, 8)], 1).chosen
    assert layers(chosen).keys() == {"CUDA0", "CUDA2"}


def test_memory_of_one_device_makes_up_for_no_other() -> None:
    """Together they would have more than enough."""
    (refusal,) = explain_nodes(LARGE, [cards(9, 0.4)])
    assert isinstance(refusal, Refusal)
    assert "and it does not fit shared among the node's devices" in refusal.message
    machine = cards(8, 8)
    assert choose(LARGE, [machine], 1).chosen
    assert not choose(LARGE, [replace(machine, pools=(Pool("Host", GIB, GIB, 0), *machine.pools[1:]))], 1).chosen


def test_a_window_that_is_not_wished_grows_until_the_fullest_device_is_full() -> None:
    asked = wish(variants=LARGE.variants, min_context_tokens=8192)
    (chosen,) = choose(asked, [cards(8, 8)], 1).chosen
    window = chosen.options.context_tokens
    assert window > 8192
    wider = wish(variants=LARGE.variants, context_tokens=window + 1024)
    assert not choose(wider, [cards(8, 8)], 1).chosen


@settings(max_examples=60)
@given(st.lists(st.integers(300, 12_000), min_size=1, max_size=5), st.integers(1, 8), st.integers(1, 3))
def test_no_device_is_promised_more_than_it_has_and_all_layers_are_somewhere(
    sizes: list[int], window: int, count: int
) -> None:
    asked = wish(variants=LARGE.variants, context_tokens=window * 2048)
    machine = cards(*(size * MIB / GIB for size in sizes))
    found = choose(asked, [machine], count).chosen
    for pool in machine.pools:
        taken = sum(costs.total_bytes for chosen in found for costs in chosen.costs if costs.pool == pool.name)
        assert taken <= pool.unreserved_bytes
    for chosen in found:
        assert sum(layers(chosen).values()) in (0, large_geometry().layer_count)
    explained = explain_nodes(asked, [machine])
    assert isinstance(explained[0], Chosen) is bool(found), "the text says the same"


def test_nodes_whose_devices_together_are_too_full_are_not_asked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full fleet each has other bytes left; of the last one the model fits the devices."""
    asked: list[str] = []

    def count(question: Any, machine: NodeView, *rest: Any) -> Any:
        asked.append(machine.name)
        return nodes.offer_split(question, machine, *rest)

    monkeypatch.setattr(search, "offer_split", count)
    full = [with_processor(cards(2 + index / 64, 2, name=f"n{index:02}")) for index in range(40)]
    (chosen,) = choose(LARGE, Roster(full), 1).chosen
    assert (chosen.lane.compute, asked) == (Compute.CPU, [])
    over = with_processor(cards(8, 8, 1, name="z"))
    third = over.pools[3]
    over = replace(over, pools=(*over.pools[:3], replace(third, reserved_bytes=third.total_bytes + 64 * GIB)))
    (chosen,) = choose(LARGE, Roster([*full, over]), 1).chosen
    assert (chosen.node, set(layers(chosen)), asked) == ("z", {"CUDA0", "CUDA1"}, ["z"])
