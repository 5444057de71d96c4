"""The choice: filters, preferences, windows, and what is said where nothing fits."""

from dataclasses import replace

import pytest
from covey_api.engines import Compute, EngineName, KvCacheType, LaneState
from covey_api.node import Taint
from covey_api.placement import Toleration, TolerationOperator
from covey_api.reasons import RefusalReason
from covey_planner.choice import choose, explain_nodes
from covey_planner.fit.limits import limit_pools
from covey_planner.text import render_refusals
from covey_planner.types import Barred, Chosen, Decision, NodeState, NodeView, Pool, Refusal, Wish
from kit.builders import artifact, geometry, lane
from kit.planning import GIB, MIB, large_geometry, large_variant, node, taken_bytes, variant, wish

GPU = Pool("Cuda0", 64 * GIB, 0, 0)


def nodes_of(decision: Decision) -> list[str]:
    return [chosen.node for chosen in decision.chosen]


def closest(decision: Decision) -> Refusal:
    assert decision.closest is not None
    return decision.closest


def test_choice_stamps_everything_that_an_instance_needs() -> None:
    decision = choose(wish(workspace_bytes=7 * MIB), [node()], 1)
    (chosen,) = decision.chosen
    assert (chosen.node, chosen.variant, chosen.lane.compute) == ("a", "gguf-q4-1", Compute.CPU)
    assert chosen.artifact == artifact()
    assert (chosen.options.context_tokens, chosen.options.slots, chosen.options.threads) == (8192, 4, 4)
    (costs,) = chosen.costs
    assert (costs.pool, costs.workspace_bytes) == ("Host", 7 * MIB)
    assert costs.kv_cache_bytes == 4 * 8192 * 30 * 3 * 256
    assert (decision.pending, decision.counts, decision.closest) == (None, (), None)


def test_nothing_is_chosen_when_nothing_is_asked_for() -> None:
    assert choose(wish(), [node()], 0) == Decision((), None, (), None)
    assert choose(wish(), [node()], -1) == Decision((), None, (), None)


@pytest.mark.parametrize(
    ("refused", "asked", "reason", "words"),
    [
        (node(schedulable=False), wish(), RefusalReason.CORDONED, "`spec.unschedulable` of the Node is true"),
        (
            node(taints=(Taint(key="owner", value="ann"), Taint(key="gpu"))),
            wish(tolerations=(Toleration(key="gpu"), Toleration(key="owner", value="bob"))),
            RefusalReason.TAINTED,
            "`spec.taints` of the Node has 'owner=ann:NoSchedule', which `spec.nodes.tolerations` does not tolerate",
        ),
        (node(), wish(exclude=frozenset({"a"})), RefusalReason.EXCLUDED, "`spec.nodes.exclude` names it"),
        (node(), wish(include=frozenset({"b"})), RefusalReason.NOT_SELECTED, "`spec.nodes.include` does not name it"),
        (
            node(labels={"disk": "slow"}),
            wish(selector={"disk": "fast", "zone": "z1"}),
            RefusalReason.NOT_SELECTED,
            "`spec.nodes.selector` asks for labels that it lacks: disk=fast, zone=z1",
        ),
        (node(state=NodeState.UNKNOWN), wish(), RefusalReason.NODE_UNKNOWN, "it is silent"),
        (node(state=NodeState.FACTS_PENDING), wish(), RefusalReason.FACTS_PENDING, "it has not reported its facts yet"),
        (
            node(lanes=()),
            wish(),
            RefusalReason.NO_USABLE_ENGINE,
            "it offers no lane; the model needs LlamaServer",
        ),
        (
            node(),
            wish(computes=(Compute.CUDA, Compute.METAL)),
            RefusalReason.NO_USABLE_ENGINE,
            "it offers LlamaServer/Cpu; the model needs LlamaServer on Cuda or Metal (`spec.nodes.computes`)",
        ),
        (
            node(is_offline=True),
            wish(variants=(variant(is_held=False),)),
            RefusalReason.OFFLINE,
            "`spec.offline` of the Node is true, and no node has the files of variant 'gguf-q4-1'",
        ),
        (
            node(lanes=(lane(lacks=("gemma", "llama")),)),
            wish(),
            RefusalReason.NO_USABLE_ENGINE,
            "its LlamaServer 10434 has no code for architecture 'llama'; give it a newer build",
        ),
        (
            node(),
            wish(failed=frozenset({Barred("a", EngineName.LLAMA_SERVER)})),
            RefusalReason.RECENT_FAILURE,
            "this revision failed on it with LlamaServer; annotate `covey.dev/retry` to try it again",
        ),
        (
            node(),
            wish(failed=frozenset({Barred("a", EngineName.LLAMA_SERVER, "Host")})),
            RefusalReason.RECENT_FAILURE,
            "this revision failed on it with LlamaServer in pool 'Host'; annotate `covey.dev/retry` to try it again",
        ),
        (
            node(pools=(Pool("Gpu", GIB, 0, 0),)),
            wish(),
            RefusalReason.INSUFFICIENT_MEMORY,
            "it has no memory pool 'Host', which LlamaServer/Cpu fills",
        ),
        (
            node(),
            wish(context_tokens=9000),
            RefusalReason.CONTEXT_TOO_SMALL,
            "`spec.context.tokens` must be at most 8192 (the model's own window); got 9000",
        ),
        (
            node(),
            wish(context_tokens=8192, model_context_tokens=4096),
            RefusalReason.CONTEXT_TOO_SMALL,
            "`spec.context.tokens` must be at most 4096 (`spec.contextTokens` of model 'smollm2'); got 8192",
        ),
        (
            node(),
            wish(min_context_tokens=5000, model_context_tokens=5000),
            RefusalReason.CONTEXT_TOO_SMALL,
            "`spec.context.minTokens` must be at most 4864 (`spec.contextTokens` of model 'smollm2', "
            "whole steps of 256); got 5000",
        ),
    ],
)
def test_every_filter_refuses_with_its_reason(
    refused: NodeView, asked: Wish, reason: RefusalReason, words: str
) -> None:
    decision = choose(asked, [refused], 1)
    assert decision.chosen == ()
    assert decision.counts == ((reason, 1),)
    assert (closest(decision).reason, closest(decision).message) == (reason, words)
    assert explain_nodes(asked, [refused]) == (decision.closest,)


def test_a_build_that_lacks_another_architecture_or_tells_nothing_is_taken() -> None:
    for lacks in ((), ("gemma",)):
        assert len(choose(wish(), [node(lanes=(lane(lacks=lacks),))], 1).chosen) == 1


def test_an_offline_node_takes_what_some_node_has_and_leaves_the_rest_to_others() -> None:
    here, there = variant("here"), variant("there", is_held=False)
    offline = node("a", is_offline=True)
    assert [each.variant for each in choose(wish(variants=(there, here)), [offline], 1).chosen] == ["here"]
    (chosen,) = choose(wish(variants=(there, here)), [offline, node("b", memory=8 * GIB)], 1).chosen
    assert (chosen.node, chosen.variant) == ("b", "there")


def test_a_node_whose_build_lacks_the_architecture_is_told_apart_from_its_like() -> None:
    older = node("a", lanes=(lane(lacks=("llama",)),))
    assert [each.node for each in choose(wish(), [older, node("b")], 1).chosen] == ["b"]


def test_refusal_for_want_of_memory_bars_lanes_of_one_pool_and_another_failure_the_engine() -> None:
    pools = (Pool("Host", 8 * GIB, GIB, 0), Pool("Cuda0", 8 * GIB, 0, 0), Pool("Cuda1", 8 * GIB, 0, 0))
    cards = tuple(lane(compute=Compute.CUDA, pool=pool) for pool in ("Cuda0", "Cuda1"))
    here = node(lanes=(*cards, lane()), pools=pools)
    for failed, pool in ((("Cuda0",), "Cuda1"), (("Cuda0", "Cuda1"), "Host"), (("Host",), "Cuda0"), (("",), None)):
        asked = wish(failed=frozenset(Barred("a", EngineName.LLAMA_SERVER, each) for each in failed))
        assert [chosen.lane.pool for chosen in choose(asked, [here], 1).chosen] == ([pool] if pool else [])


def test_taint_is_tolerated_by_its_key_and_value_or_by_its_key_alone() -> None:
    tainted = node(taints=(Taint(key="owner", value="ann"),))
    exists = Toleration(key="owner", operator=TolerationOperator.EXISTS)
    for toleration, is_placed in (
        (exists, True),
        (Toleration(key="owner", value="ann"), True),
        (Toleration(key="owner", value="bob"), False),
        (Toleration(key="owner"), False),
        (Toleration(key="other", operator=TolerationOperator.EXISTS), False),
    ):
        assert bool(choose(wish(tolerations=(toleration,)), [tainted], 1).chosen) is is_placed
    assert nodes_of(choose(wish(tolerations=(exists,)), [tainted, node("b", memory=8 * GIB)], 1)) == ["b"], (
        "a toleration draws nothing"
    )


def test_memory_is_refused_with_every_byte() -> None:
    refused = choose(wish(variants=(large_variant(),)), [node(memory=6 * GIB, reserved=512 * MIB)], 1)
    found = closest(refused)
    assert found.reason == RefusalReason.INSUFFICIENT_MEMORY
    assert found.short_bytes > 0
    assert found.message.startswith("a window of 2048 tokens x 4 slots needs ")
    assert "of 6.0 GiB (6442450944 bytes) are unreserved (1.0 GiB reserve, 512.0 MiB reserved)" in found.message
    assert f"({found.short_bytes} bytes) short" in found.message
    assert "Lower `spec.concurrency`, choose a smaller variant, or add memory" in found.message


def test_window_that_does_not_fit_is_refused_with_the_one_that_would() -> None:
    asked = wish(variants=(large_variant(),), context_tokens=65_536)
    found = closest(choose(asked, [node(memory=12 * GIB)], 1))
    assert found.reason == RefusalReason.CONTEXT_TOO_SMALL
    tokens = int(found.message.split("a window of ")[2].split(" tokens would fit")[0])
    assert "Set `spec.context.tokens` to at most that" in found.message
    fitting = choose(replace(asked, context_tokens=tokens), [node(memory=12 * GIB)], 1)
    assert fitting.chosen
    assert not choose(replace(asked, context_tokens=tokens + 256), [node(memory=12 * GIB)], 1).chosen


def test_wished_window_is_stamped_exactly() -> None:
    (chosen,) = choose(wish(context_tokens=3001), [node()], 1).chosen
    assert chosen.options.context_tokens == 3001
    assert chosen.costs[0].kv_cache_bytes == 4 * 3072 * 30 * 3 * 256


def test_wished_window_beside_a_least_one_is_the_most_that_is_stamped() -> None:
    asked = wish(variants=(large_variant(),), context_tokens=30_000, min_context_tokens=8_000)
    windows = {
        memory: [each.options.context_tokens for each in choose(asked, [node(memory=memory * GIB)], 1).chosen]
        for memory in (8, 12, 64)
    }
    (between,) = windows[12]
    assert (windows[8], windows[64]) == ([], [30_000])
    assert 8_000 <= between < 30_000
    assert between % 256 == 0
    refusal = closest(choose(asked, [node(memory=8 * GIB)], 1))
    assert "Set `spec.context.minTokens` to at most that" in refusal.message
    too_much = wish(context_tokens=16_384, min_context_tokens=256)
    assert "`spec.context.tokens` must be at most 8192" in closest(choose(too_much, [node()], 1)).message


def test_window_is_bounded_by_model_cap_and_memory_in_whole_steps() -> None:
    asked = wish(variants=(large_variant(),))
    assert choose(asked, [node(memory=200 * GIB)], 1).chosen[0].options.context_tokens == 131_072
    capped = replace(asked, model_context_tokens=10_000)
    assert choose(capped, [node(memory=200 * GIB)], 1).chosen[0].options.context_tokens == 9984
    (chosen,) = choose(asked, [node(memory=20 * GIB)], 1).chosen
    window = chosen.options.context_tokens
    assert 2048 < window < 131_072
    assert window % 256 == 0
    per_step = 256 * 4 * 32 * 8 * 256 * 2 + 256 * 512 * 2
    left = 19 * GIB - taken_bytes((chosen,), "a")
    assert 0 <= left < per_step


def test_model_with_a_tiny_window_is_placed_with_it() -> None:
    tiny = variant(geometry=geometry(context_tokens=100))
    assert choose(wish(variants=(tiny,)), [node()], 1).chosen[0].options.context_tokens == 100


def test_least_window_is_refused_unless_the_wish_allows_less() -> None:
    asked = wish(variants=(large_variant(),), slots=64)
    tight = [node(memory=15 * GIB)]
    found = closest(choose(asked, tight, 1))
    assert found.reason == RefusalReason.CONTEXT_TOO_SMALL
    assert "Set `spec.context.minTokens` to at most that" in found.message
    (chosen,) = choose(replace(asked, min_context_tokens=256), tight, 1).chosen
    assert 256 <= chosen.options.context_tokens < 2048


def test_replicas_on_one_node_share_the_ceiling_at_which_all_fit() -> None:
    asked = wish(variants=(large_variant(),), model_context_tokens=65_536)
    lone = choose(asked, [node(memory=64 * GIB)], 1).chosen
    three = choose(asked, [node(memory=64 * GIB)], 3).chosen
    assert len({chosen.options.context_tokens for chosen in three}) == 1
    assert len(three) == 3
    assert three[0].options.context_tokens < lone[0].options.context_tokens
    assert taken_bytes(three, "a") <= 63 * GIB


def test_replicas_spread_before_they_share() -> None:
    nodes = [node("a"), node("b"), node("c", memory=32 * GIB, reserved=20 * GIB)]
    assert nodes_of(choose(wish(), nodes, 4)) == ["c", "a", "b", "c"]


def test_instances_that_run_already_count_when_replicas_spread() -> None:
    cached = node("a", cached=frozenset({artifact().digest}), memory=64 * GIB)
    assert nodes_of(choose(wish(), [cached, node("b")], 1)) == ["a"]
    assert nodes_of(choose(wish(placed={"a": 1}), [cached, node("b")], 1)) == ["b"]


def test_preferences_go_lane_then_artifact_then_engine_then_memory_then_name() -> None:
    gpu = (lane(compute=Compute.CUDA, pool="Cuda0"), lane())
    roomy = (Pool("Host", 64 * GIB, 0, 0), Pool("Cuda0", 64 * GIB, 0, 0))
    cached = frozenset({artifact().digest})
    installable = (lane(state=LaneState.INSTALLABLE),)
    ordered = [
        node("f-gpu", lanes=gpu, pools=roomy),
        node("e-cached", cached=cached),
        node("b-plain"),
        node("c-plain"),
        node("a-large", memory=64 * GIB),
        node("a-narrow", memory=1700 * MIB),
        node("a-installable", lanes=installable, memory=16 * GIB),
    ]
    remaining = list(reversed(ordered))
    for expected in ordered:
        (name,) = nodes_of(choose(wish(), remaining, 1))
        assert name == expected.name
        remaining = [view for view in remaining if view.name != name]


def test_small_model_leaves_the_largest_block_to_a_large_one() -> None:
    nodes = [node("big", memory=64 * GIB), node("small", memory=8 * GIB), node("medium", memory=32 * GIB)]
    assert nodes_of(choose(wish(), nodes, 1)) == ["small"]
    large = variant("large", geometry=large_geometry(weights_bytes=60 * GIB))
    assert nodes_of(choose(wish(variants=(large,)), nodes, 1)) == ["big"]


def test_roomier_node_is_taken_for_a_wider_window_and_not_beyond_it() -> None:
    asked = wish(variants=(large_variant(),))
    nodes = [node("a", memory=16 * GIB), node("b", memory=32 * GIB), node("c", memory=200 * GIB)]
    (chosen,) = choose(asked, nodes, 1).chosen
    assert (chosen.node, chosen.options.context_tokens) == ("c", 131_072)
    assert nodes_of(choose(asked, nodes[:2], 1)) == ["b"]
    assert nodes_of(choose(replace(asked, context_tokens=2048), nodes, 1)) == ["a"]


def test_each_replica_takes_the_best_variant_that_its_node_can_run() -> None:
    asked = wish(variants=(large_variant("large"), variant("small")), context_tokens=2048)
    roomy = node(lanes=(lane(compute=Compute.CUDA, pool="Cuda0"),), pools=(Pool("Host", 8 * GIB, 0, 0), GPU))
    needed = taken_bytes(choose(asked, [roomy], 1).chosen, "a", "Cuda0")
    gpu = replace(roomy, name="gpu", pools=(Pool("Host", 8 * GIB, 0, 0), replace(GPU, total_bytes=needed)))
    nodes = [node("tiny", memory=3 * GIB), node("cpu", memory=9 * GIB), gpu]
    found = [(c.node, c.lane.compute, c.variant) for c in choose(asked, nodes, 3).chosen]
    assert found == [("gpu", Compute.CUDA, "large"), ("cpu", Compute.CPU, "large"), ("tiny", Compute.CPU, "small")]
    other_order = replace(asked, variants=(variant("small"), large_variant("large")))
    assert {c.variant for c in choose(other_order, nodes, 3).chosen} == {"small"}


def test_accelerator_without_room_falls_back_to_the_cpu() -> None:
    lanes = (lane(compute=Compute.CUDA, pool="Cuda0"), lane())
    full = node(lanes=lanes, pools=(Pool("Host", 16 * GIB, GIB, 0), Pool("Cuda0", GIB, 0, GIB)))
    (chosen,) = choose(wish(), [full], 1).chosen
    assert chosen.lane.compute == Compute.CPU


def test_what_must_not_run_on_a_processor_waits_for_room_on_a_device() -> None:
    full = node(
        lanes=(lane(compute=Compute.CUDA, pool="Cuda0"), lane()),
        pools=(Pool("Host", 64 * GIB, 0, 0), replace(GPU, reserved_bytes=GPU.total_bytes)),
    )
    assert choose(wish(), [full], 1).chosen[0].lane.compute is Compute.CPU
    found = closest(choose(wish(computes=(Compute.CUDA,)), [full], 1))
    assert found.reason is RefusalReason.INSUFFICIENT_MEMORY
    assert "in pool 'Cuda0'" in found.message


def test_a_device_fills_no_more_of_the_host_than_its_driver_allows() -> None:
    """Beside another lane of the same node, and with the window that is left."""
    halo = lane(compute=Compute.ROCM, limit_bytes=7 * GIB)
    asked = wish(variants=(large_variant(),), computes=(Compute.ROCM,))
    pools = (Pool("Host", 64 * GIB, 0, 0), *limit_pools((halo,)))
    found = closest(choose(asked, [node(lanes=(halo,), pools=(pools[0], replace(pools[1], total_bytes=GIB)))], 1))
    assert found.reason is RefusalReason.INSUFFICIENT_MEMORY
    assert "in what Rocm can fill of pool 'Host' (weights" in found.message
    (narrow,) = choose(asked, [node(lanes=(halo,), pools=pools)], 1).chosen
    (wide,) = choose(asked, [node(lanes=(halo.changed(limit_bytes=0),), pools=pools[:1])], 1).chosen
    assert narrow.options.context_tokens < wide.options.context_tokens
    assert [each.pool for each in narrow.costs] == ["Host"]
    on_device = narrow.costs[0].total_bytes - narrow.costs[0].floor_bytes
    assert 6 * GIB < on_device <= 7 * GIB + large_geometry().token_embedding_bytes


def test_pools_are_never_summed() -> None:
    lanes = (lane(compute=Compute.CUDA, pool="Cuda0"),)
    asked = wish(variants=(large_variant(),))
    split = node(lanes=lanes, pools=(Pool("Host", 64 * GIB, 0, 0), Pool("Cuda0", 4 * GIB, 0, 0)))
    found = closest(choose(asked, [split], 1))
    assert found.reason == RefusalReason.INSUFFICIENT_MEMORY
    assert "in pool 'Cuda0'" in found.message


def test_first_variant_that_fits_is_taken() -> None:
    large, small = large_variant("large"), variant("small")
    asked = wish(variants=(large, small))
    assert [c.variant for c in choose(asked, [node(memory=32 * GIB)], 1).chosen] == ["large"]
    assert [c.variant for c in choose(asked, [node(memory=4 * GIB)], 1).chosen] == ["small"]


def test_replicas_of_different_variants_on_one_node_fit_together() -> None:
    asked = wish(variants=(large_variant("large"), variant("small")))
    chosen = choose(asked, [node(memory=9 * GIB)], 3).chosen
    assert [entry.variant for entry in chosen] == ["large", "small", "small"]
    assert taken_bytes(chosen, "a") <= 8 * GIB


def test_only_as_many_as_fit_are_chosen_and_the_rest_is_explained() -> None:
    nodes = [node("a", memory=9 * GIB), node("b", memory=4 * GIB), node("c", schedulable=False)]
    decision = choose(wish(variants=(large_variant(),)), nodes, 3)
    assert nodes_of(decision) == ["a"]
    assert decision.counts == ((RefusalReason.CORDONED, 1), (RefusalReason.INSUFFICIENT_MEMORY, 2))
    assert closest(decision).node == "b"
    assert render_refusals(decision).startswith(
        "1 node Cordoned, 2 nodes InsufficientMemory; closest is node 'b': InsufficientMemory: a window of 2048 tokens"
    )


def test_closest_refusal_is_the_one_with_the_fewest_missing_bytes() -> None:
    nodes = [node("a", memory=3 * GIB), node("b", memory=5 * GIB), node("c", memory=4 * GIB), node("d", lanes=())]
    assert closest(choose(wish(variants=(large_variant(),)), nodes, 1)).node == "b"


def test_variant_that_is_still_read_makes_the_choice_wait() -> None:
    unread = variant("other", geometry=None, artifact=None)
    decision = choose(wish(variants=(variant(), unread)), [node()], 1)
    assert decision.chosen == ()
    assert decision.pending is not None
    assert (decision.pending.reason, decision.pending.message) == (
        "GeometryPending",
        "the header of variant 'other' is being read",
    )


def test_variant_that_cannot_be_read_is_passed_over() -> None:
    broken = variant("broken", geometry=None, artifact=None, error="no such file")
    assert [c.variant for c in choose(wish(variants=(broken, variant())), [node()], 1).chosen] == ["gguf-q4-1"]
    decision = choose(wish(variants=(broken,)), [node()], 1)
    assert decision.pending is not None
    assert decision.pending.reason == "GeometryUnavailable"
    assert decision.pending.message == "header of variant 'broken': no such file"
    (answer,) = explain_nodes(wish(variants=(broken,)), [node()])
    assert isinstance(answer, Refusal)
    assert (answer.reason, answer.message) == (
        RefusalReason.NO_USABLE_ENGINE,
        "header of variant 'broken': no such file",
    )


def test_facts_that_are_still_arriving_are_another_answer_than_no_room() -> None:
    nodes = [node("a", state=NodeState.FACTS_PENDING), node("b", memory=2 * GIB)]
    decision = choose(wish(variants=(large_variant(),)), nodes, 1)
    assert decision.pending is not None
    assert (decision.pending.reason, decision.pending.message) == ("FactsPending", "facts have not arrived from 'a'")
    assert decision.counts == ((RefusalReason.FACTS_PENDING, 1), (RefusalReason.INSUFFICIENT_MEMORY, 1))
    nobody = choose(wish(), [], 1)
    assert nobody.pending is not None
    assert (nobody.pending.reason, nobody.pending.message) == ("FactsPending", "no node has joined yet")
    cordoned = choose(wish(), [node(state=NodeState.FACTS_PENDING, schedulable=False)], 1)
    assert cordoned.pending is None


def test_engines_of_the_placement_beat_the_variants_own() -> None:
    assert choose(wish(engines=(EngineName.LLAMA_SERVER,)), [node()], 1).chosen
    none = variant(engines=())
    decision = choose(wish(variants=(none,), engines=(EngineName.LLAMA_SERVER,)), [node()], 1)
    assert closest(decision).reason == RefusalReason.NO_USABLE_ENGINE
    assert "no variant of model 'smollm2' runs on `spec.engines` (LlamaServer)" in closest(decision).message


def test_quantised_cache_leaves_a_longer_window() -> None:
    asked = wish(variants=(large_variant(),))
    windows = [
        choose(replace(asked, kv_cache_type=kv_type), [node(memory=20 * GIB)], 1).chosen[0].options.context_tokens
        for kv_type in (KvCacheType.F16, KvCacheType.Q8_0, KvCacheType.Q4_0)
    ]
    assert windows == sorted(set(windows))


def test_each_node_is_explained_as_the_choice_would_decide() -> None:
    nodes = [node("b"), node("a", schedulable=False), node("c", memory=2 * GIB)]
    asked = wish(variants=(large_variant(geometry=large_geometry(weights_bytes=4 * GIB)),))
    answers = explain_nodes(asked, nodes)
    assert [answer.node for answer in answers] == ["a", "b", "c"]
    assert [isinstance(answer, Chosen) for answer in answers] == [False, True, False]
    assert answers[1] == choose(asked, nodes, 1).chosen[0]
