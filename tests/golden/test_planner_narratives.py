"""The planner's decisions in words, as people read them in `covey why` and in status."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from conftest import Golden
from covey_api.engines import EngineName, KvCacheType
from covey_api.instance import Costs, EngineOptions, Instance, InstanceGoal, Member, MemberRole
from covey_api.node import Taint
from covey_api.placement import Toleration
from covey_planner.choice import choose, explain_nodes
from covey_planner.choice.links import LinkKind
from covey_planner.choice.shapes import choose_shape
from covey_planner.text import WhyPlacement, render_refusals, render_why, why_data
from covey_planner.types import Barred, Chosen, NodeState, NodeView, Pool, ShapeKind, Wish
from kit.builders import geometry, instance, lane
from kit.planning import GIB, MIB, large_geometry, large_variant, node, variant, wish

FLEET = (
    node("attic", memory=8 * GIB, cached=frozenset({"b" * 64})),
    node("barn", memory=16 * GIB, reserved=6 * GIB),
    node("cellar", memory=64 * GIB, schedulable=False),
    node("den", state=NodeState.UNKNOWN),
    node("eaves", state=NodeState.FACTS_PENDING),
    node("foyer", lanes=()),
    node("garage", memory=32 * GIB),
)
TAINT = Taint(key="owner", value="ann")


def stamp(name: str, chosen: Chosen, goal: InstanceGoal = InstanceGoal.RUN) -> Instance:
    """The Instance that a choice becomes."""
    return instance(
        name,
        goal=goal,
        variant=chosen.variant,
        engine=chosen.lane.engine,
        compute=chosen.lane.compute,
        options=chosen.options,
        members=(Member(node=chosen.node, costs=chosen.costs),),
    )


def reserved(view: NodeView, instances: tuple[Instance, ...]) -> NodeView:
    """The view with what these Instances hold."""
    held = {
        pool.name: sum(
            member.bytes_in(pool.name) for one in instances for member in one.spec.members if member.node == view.name
        )
        for pool in view.pools
    }
    pools = tuple(
        Pool(pool.name, pool.total_bytes, pool.reserve_bytes, pool.reserved_bytes + held[pool.name])
        for pool in view.pools
    )
    return NodeView(
        view.name,
        view.state,
        view.schedulable,
        view.labels,
        view.lanes,
        pools,
        view.cpu_cores,
        view.cached,
        view.taints,
    )


def why(asked: Wish, replicas: int, fleet: tuple[NodeView, ...] = FLEET) -> WhyPlacement:
    """The state after the choice was carried out."""
    decision = choose(asked, fleet, replicas)
    instances = tuple(stamp(f"{asked.placement}-{index}", chosen) for index, chosen in enumerate(decision.chosen))
    nodes = tuple(reserved(view, instances) for view in fleet)
    asked = replace(asked, placed=Counter(chosen.node for chosen in decision.chosen))
    return WhyPlacement(asked, replicas, instances, nodes, explain_nodes(asked, nodes), decision.pending)


def test_one_small_model_on_one_node(golden: Golden) -> None:
    alone = (node("here", memory=24 * GIB),)
    golden("why/one-small-model.txt", render_why(why(wish(), 1, alone)))
    golden("why/one-small-model.json", json.dumps(why_data(why(wish(), 1, alone)), indent=2) + "\n")


def test_two_large_replicas_in_a_mixed_fleet(golden: Golden) -> None:
    asked = wish(placement="large", model="large", variants=(large_variant(),), workspace_bytes=256 * MIB)
    golden("why/two-large-replicas.txt", render_why(why(asked, 2)))


def test_window_bounded_by_the_models_cap(golden: Golden) -> None:
    asked = wish(model_context_tokens=5000, kv_cache_type=KvCacheType.Q8_0)
    golden("why/bounded-by-cap.txt", render_why(why(asked, 1, (node("here"),))))


def test_wished_window_that_fits_nowhere(golden: Golden) -> None:
    asked = wish(placement="long", model="large", variants=(large_variant(),), context_tokens=131_072)
    golden("why/wished-window-fits-nowhere.txt", render_why(why(asked, 1)))
    golden("refusals/wished-window-fits-nowhere.txt", render_refusals(choose(asked, FLEET, 1)) + "\n")


def test_instance_of_an_older_wish_drains(golden: Golden) -> None:
    (chosen,) = choose(wish(), (node("here"),), 1).chosen
    older = stamp("smollm2-0", chosen, InstanceGoal.DRAIN)
    changed = wish(context_tokens=4096)
    nodes = (reserved(node("here"), (older,)),)
    text = render_why(WhyPlacement(changed, 1, (older,), nodes, explain_nodes(changed, nodes)))
    golden("why/older-wish-drains.txt", text)


def test_tainted_nodes_name_their_taint_unless_it_is_tolerated(golden: Golden) -> None:
    fleet = (node("attic", taints=(TAINT,)), node("barn", taints=(Taint(key="dusty"),)), node("cellar"))
    golden("why/tainted.txt", render_why(why(wish(tolerations=(Toleration(key="dusty"),)), 1, fleet)))
    golden("refusals/tainted.txt", render_refusals(choose(wish(), fleet[:2], 1)) + "\n")


def test_header_that_is_still_read(golden: Golden) -> None:
    asked = wish(variants=(variant(geometry=None, artifact=None),))
    golden("why/header-pending.txt", render_why(why(asked, 1, (node("here"),))))


def test_no_node_at_all(golden: Golden) -> None:
    golden("why/no-node.txt", render_why(why(wish(min_context_tokens=4096), 2, ())))


def test_sliding_model_keeps_checkpoints(golden: Golden) -> None:
    sliding = geometry(
        architecture="gemma3",
        sliding_window_tokens=512,
        sliding_layers=tuple(layer for layer in range(30) if layer % 6 < 5),
        context_tokens=32_768,
    )
    golden("why/sliding-model.txt", render_why(why(wish(variants=(variant(geometry=sliding),)), 1, (node("here"),))))


def test_revision_that_failed_and_a_node_that_lost_its_pool(golden: Golden) -> None:
    asked = wish(failed=frozenset({Barred("barn", EngineName.LLAMA_SERVER)}))
    lost = stamp("smollm2-0", choose(asked, (node("attic"),), 1).chosen[0])
    nodes = (node("attic", pools=()), node("barn"))
    text = render_why(WhyPlacement(asked, 1, (lost,), nodes, explain_nodes(asked, nodes)))
    golden("why/failed-and-lost.txt", text)


def test_stamped_options_are_shown_as_they_are(golden: Golden) -> None:
    one = instance("smollm2-0", node="here", options=EngineOptions(context_tokens=2048, slots=2))
    nodes = (reserved(node("here"), (one,)),)
    golden("why/stamped.txt", render_why(WhyPlacement(wish(slots=2), 1, (one,), nodes, explain_nodes(wish(), nodes))))


def test_model_that_fits_on_no_node_alone_names_those_that_could_hold_it_together(golden: Golden) -> None:
    huge = large_variant(geometry=large_geometry(weights_bytes=40 * GIB, layer_count=64, kv_head_counts=(8,) * 64))
    asked = wish(placement="huge", model="huge", variants=(huge,), context_tokens=8192)
    fleet = (node("attic", memory=33 * GIB), node("barn", memory=25 * GIB), node("den", memory=17 * GIB))
    for kind, link in ((ShapeKind.RPC, LinkKind.UNKNOWN), (ShapeKind.PIPELINE, LinkKind.THUNDERBOLT)):
        shape = choose_shape(asked, fleet, lambda _one, _other, link=link: link, (kind,))
        told = WhyPlacement(asked, 1, (), fleet, explain_nodes(asked, fleet), None, shape)
        golden(f"why/together-{kind.lower()}.txt", render_why(told))
        golden(f"why/together-{kind.lower()}.json", json.dumps(why_data(told)["shape"], indent=2) + "\n")
    four = tuple(node(name, memory=22 * GIB) for name in ("attic", "barn", "den", "eaves"))
    shape = choose_shape(asked, four, lambda _one, _other: LinkKind.VPN, (ShapeKind.TENSOR,))
    golden(
        "why/together-tensor.txt", render_why(WhyPlacement(asked, 1, (), four, explain_nodes(asked, four), None, shape))
    )


def test_nodes_that_could_hold_it_as_a_ring_are_named_with_the_wish_that_makes_one(golden: Golden) -> None:
    geometry = large_geometry(weights_bytes=40 * GIB, layer_count=64, kv_head_counts=(8,) * 64, model_type="qwen3_moe")
    huge = large_variant(name="mlx-8bit", geometry=geometry, engines=(EngineName.MLX,))
    asked = wish(placement="huge", model="huge", variants=(huge,), context_tokens=8192)
    able = (lane(engine=EngineName.MLX, digest="0" * 64, roles=(MemberRole.RANK.value,)),)
    fleet = (node("attic", memory=50 * GIB, lanes=able), node("barn", memory=45 * GIB, lanes=able))
    for kind in (ShapeKind.PIPELINE, ShapeKind.TENSOR):
        shape = choose_shape(asked, fleet, lambda _one, _other: LinkKind.UNKNOWN, (kind,))
        told = WhyPlacement(asked, 1, (), fleet, explain_nodes(asked, fleet), None, shape)
        golden(f"why/ring-{kind.lower()}.txt", render_why(told))


@pytest.mark.parametrize("kind", ["rpc", "pipeline"])
def test_every_member_of_one_that_runs_on_several_nodes_is_shown_with_its_part(golden: Golden, kind: str) -> None:
    first, other = (MemberRole.DRIVER, MemberRole.DONOR) if kind == "rpc" else (MemberRole.RANK,) * 2
    members = tuple(
        Member(name=str(index), node=name, role=role, costs=(Costs(weights_bytes=layers * MIB, layers=layers),))
        for index, (name, role, layers) in enumerate((("attic", first, 20), ("barn", other, 10)))
    )
    options = EngineOptions(context_tokens=2048, slots=2, repack=kind != "rpc")
    one = instance("smollm2-0", options=options, members=members)
    nodes = tuple(reserved(node(name), (one,)) for name in ("attic", "barn"))
    text = render_why(WhyPlacement(wish(slots=2), 1, (one,), nodes, explain_nodes(wish(), nodes)))
    golden(f"why/members-{kind}.txt", text)
