"""What the planner knows of engines: slots, costs of MLX, and headers that no node can read."""

from dataclasses import replace
from typing import Any

import pytest
from covey_api.engines import Compute, EngineName, KvCacheType, Task
from covey_api.instance import Costs, EngineOptions
from covey_api.reasons import ReadyReason, RefusalReason
from covey_planner.choice import choose, explain_nodes
from covey_planner.choice.ways import pending_geometry, slots_of
from covey_planner.fit.estimate import estimate_costs
from covey_planner.fit.options import stamp_options
from covey_planner.types import Refusal
from kit.builders import geometry, lane
from kit.planning import GIB, node, variant, wish

MIB = 2**20
MLX = lane(engine=EngineName.MLX, digest="0" * 64)


def costs_of(window: int, slots: int, kv_cache_type: KvCacheType = KvCacheType.F16, bytes_each: int = 2) -> Costs:
    known = geometry(weights_bytes=bytes_each * 134_515_008)
    options = stamp_options(known, cpu_cores=2, context_tokens=window, slots=slots, kv_cache_type=kv_cache_type)
    (costs,) = estimate_costs(known, MLX, options, 0)
    return costs


def test_llama_cpp_has_one_slot_and_the_others_what_is_wished() -> None:
    assert [slots_of(engine, 4) for engine in EngineName] == [4, 1, 4, 4]
    assert [slots_of(engine, 4, drafts=True) for engine in EngineName] == [4, 1, 1, 4]


def test_caches_of_mlx_have_the_type_of_the_checkpoint() -> None:
    narrow, wide = costs_of(1024, 2), costs_of(1024, 2, bytes_each=4)
    # 30 layers of 3 heads with 64 + 64 elements.
    assert narrow.kv_cache_bytes == 2 * 1024 * 30 * 3 * 128 * 2
    assert wide.kv_cache_bytes == 2 * narrow.kv_cache_bytes


def test_caches_in_blocks_take_a_scale_and_a_bias_of_each() -> None:
    ratios = [costs_of(1024, 1, kind).kv_cache_bytes / costs_of(1024, 1).kv_cache_bytes for kind in KvCacheType]
    assert ratios == pytest.approx([1.0, 8.5 / 16, 4.5 / 16])


def test_what_was_measured_on_a_processor_is_within_what_is_reserved() -> None:
    """SmolLM2 in 32 bits, 2 slots of 1024: the process's peak after a dozen requests."""
    assert costs_of(1024, 2, bytes_each=4).total_bytes >= 719 * MIB


def test_metal_fuses_attention_and_holds_no_scores() -> None:
    known = geometry()
    options = stamp_options(known, cpu_cores=8, context_tokens=8192, slots=4, kv_cache_type=KvCacheType.F16)
    (on_metal,) = estimate_costs(known, MLX.model_copy(update={"compute": Compute.METAL}), options, 0)
    (on_cpu,) = estimate_costs(known, MLX, options, 0)
    assert on_metal.compute_bytes < on_cpu.compute_bytes


def test_a_header_that_no_node_can_read_is_not_waited_for_where_another_is_known() -> None:
    unread = replace(variant("mlx"), geometry=None, artifact=None, is_offered=False)
    assert pending_geometry(wish(variants=(unread, variant("gguf")))) is None
    pending = pending_geometry(wish(variants=(unread,)))
    assert pending is not None
    assert pending.reason == ReadyReason.GEOMETRY_PENDING
    offered = replace(unread, is_offered=True)
    assert pending_geometry(wish(variants=(offered, variant("gguf")))) is not None


VLLM = lane(engine=EngineName.VLLM)


def test_vllm_is_priced_as_itself_and_its_cache_in_whole_gib() -> None:
    """The one load that the reference measured: a model of 270 MB, one GiB of cache, three to four GB in all."""
    known = geometry(weights_bytes=270_000_000)
    (costs,) = estimate_costs(known, VLLM, EngineOptions(context_tokens=2048, slots=4), 0)
    assert costs.pool == "Host"
    assert costs.kv_cache_bytes == GIB
    assert 4_000_000_000 <= costs.total_bytes <= 4_400_000_000
    (wide,) = estimate_costs(known, VLLM, EngineOptions(context_tokens=8192, slots=16), 0)
    assert wide.kv_cache_bytes == 3 * GIB, "8192 x 16 cells of 23040 bytes are 2.8"
    assert wide.compute_bytes - costs.compute_bytes > 6144 * 4 * geometry().embedding_length, "a step reads a window"
    (narrow,) = estimate_costs(
        known, VLLM, EngineOptions(context_tokens=8192, slots=16, kv_cache_type=KvCacheType.Q8_0), 0
    )
    assert narrow.kv_cache_bytes == 2 * GIB


def test_mlx_on_metal_counts_more_than_its_weights() -> None:
    known, options = geometry(weights_bytes=GIB), EngineOptions(context_tokens=2048, slots=1)
    (on_metal,) = estimate_costs(known, MLX.model_copy(update={"compute": Compute.METAL}), options, 0)
    (on_cpu,) = estimate_costs(known, MLX, options, 0)
    assert (on_cpu.weights_bytes, on_metal.weights_bytes) == (GIB, -(-GIB * 130 // 100))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_cache_type": KvCacheType.Q4_0}, "Vllm keeps keys and values as F16 or Q8_0, not as Q4_0"),
        ({"task": Task.RERANK, "engine": EngineName.MLX}, "Mlx does Chat, not Rerank"),
        ({"task": Task.EMBEDDING, "engine": EngineName.LLAMA_CPP}, "LlamaCpp does Chat, not Embedding"),
    ],
)
def test_engine_that_can_not_do_what_is_asked_is_refused_before_anything_is_fetched(
    changes: dict[str, Any], words: str
) -> None:
    engine = changes.pop("engine", EngineName.VLLM)
    lanes = (lane(engine=engine), lane(digest="0" * 64))
    asked = wish(variants=(variant(engines=(engine,)),), **changes)
    (refusal,) = explain_nodes(asked, [node(lanes=lanes)])
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, words in refusal.message) == (RefusalReason.NO_USABLE_ENGINE, True)
    both = wish(variants=(variant(engines=(engine, EngineName.LLAMA_SERVER)),), **changes)
    (chosen,) = choose(both, [node(lanes=lanes)], 1).chosen
    assert chosen.lane.engine is EngineName.LLAMA_SERVER
    (refusal,) = explain_nodes(both, [node(lanes=lanes[:1])])
    assert isinstance(refusal, Refusal)
    assert words in refusal.message
