"""What the planner knows of engines: slots, costs of MLX, and headers that no node can read."""

from dataclasses import replace

import pytest
from covey_api.engines import Compute, EngineName, KvCacheType
from covey_api.instance import Costs
from covey_api.reasons import ReadyReason
from covey_planner.choice.ways import pending_geometry, slots_of
from covey_planner.fit.estimate import estimate_costs
from covey_planner.fit.options import stamp_options
from kit.builders import geometry, lane
from kit.planning import variant, wish

MIB = 2**20
MLX = lane(engine=EngineName.MLX, digest="0" * 64)


def costs_of(window: int, slots: int, kv_cache_type: KvCacheType = KvCacheType.F16, bytes_each: int = 2) -> Costs:
    known = geometry(weights_bytes=bytes_each * 134_515_008)
    options = stamp_options(known, cpu_cores=2, context_tokens=window, slots=slots, kv_cache_type=kv_cache_type)
    (costs,) = estimate_costs(known, MLX, options, 0)
    return costs


def test_llama_cpp_has_one_slot_and_the_others_what_is_wished() -> None:
    assert [slots_of(engine, 4) for engine in EngineName] == [4, 1, 4, 4]


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
