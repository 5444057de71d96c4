"""The estimator against what the real engine reported, and the rules that no measurement shows."""

import pytest
from covey_api.engines import Compute, KvCacheType
from covey_api.instance import EngineOptions
from covey_planner.fit.companions import draft_formulas
from covey_planner.fit.estimate import cost_formulas, estimate_costs
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.builders import geometry, lane
from kit.measured import DOCUMENT, FIXTURE, LANE, MIB, Load, parse_loads, render_table, replace_table

LOADS = parse_loads(FIXTURE.read_text())
# The engine prints its buffers to a hundredth of a MiB, and there are up to three of a kind.
PRINTED_BYTES = MIB // 100 * 3
OPTIONS = EngineOptions(context_tokens=2048, slots=4)


def load_name(load: Load) -> str:
    options = load.options
    return f"{load.model}-{options.context_tokens}x{options.slots}-{options.kv_cache_type}"


@pytest.mark.parametrize("load", LOADS, ids=load_name)
def test_every_component_is_at_most_15_percent_above_what_the_engine_reported(load: Load) -> None:
    costs = load.estimate()
    for estimated, reported in (
        (costs.weights_bytes, load.weights_bytes),
        (costs.kv_cache_bytes, load.kv_cache_bytes),
        (costs.compute_bytes, load.compute_bytes),
    ):
        assert reported - PRINTED_BYTES <= estimated <= 1.15 * reported


@pytest.mark.parametrize("load", LOADS, ids=load_name)
def test_total_covers_the_peak_and_little_more(load: Load) -> None:
    total = load.estimate().total_bytes
    assert load.peak_bytes <= total <= 1.15 * load.peak_bytes + 64 * MIB


def test_twenty_loads_of_real_models_cover_windows_slots_and_cache_types() -> None:
    """No two alike, from the smallest window to each model's own."""
    real = [load for load in LOADS if "made up" not in load.model and " and " not in load.model]
    chats = [load for load in real if any(load.geometry.kv_head_counts)]
    alike = {
        (each.model, each.options.context_tokens, each.options.slots, each.options.kv_cache_type) for each in chats
    }
    assert len(alike) == len(chats) >= 20
    for model in {each.model for each in chats}:
        own = [each for each in chats if each.model == model]
        windows = {each.options.context_tokens for each in own}
        assert {512, own[0].geometry.context_tokens} <= windows
        assert {1, 2, 4, 8} <= {each.options.slots for each in own}
        for kind in KvCacheType:
            assert sum(each.options.kv_cache_type is kind for each in own) >= 2


def test_documented_table_is_what_the_estimator_says_now() -> None:
    document = DOCUMENT.read_text()
    assert document == replace_table(document, render_table(LOADS)), "run tools/estimator_table.py"


# The engine's own words for its Vulkan backend, window 2048 x 4 slots, all layers on the device: MiB on the device
# (weights, KV cache, compute) and on the host (weights, compute with output).
@pytest.mark.parametrize(
    ("model", "device", "host"),
    [
        ("SmolLM2-135M-Instruct.Q4_1", (92.10, 180.00, 13.26), (28.69, 5.01)),
        ("llama, 0.2 B, F16 (made up)", (258.57, 256.00, 22.51), (62.50, 6.50)),
        ("qwen3moe, 0.4 B, Q8_0 (made up)", (382.78, 128.00, 44.01), (33.20, 6.50)),
    ],
)
def test_accelerator_holds_the_layers_and_the_host_the_embedding(
    model: str, device: tuple[float, float, float], host: tuple[float, float]
) -> None:
    found = next(load.geometry for load in LOADS if load.model == model)
    vulkan = LANE.model_copy(update={"compute": Compute.VULKAN, "pool": "Vulkan0"})
    on_device, on_host = estimate_costs(found, vulkan, OPTIONS, 0)
    assert (on_device.pool, on_host.pool) == ("Vulkan0", "Host")
    for estimated, reported in (
        (on_device.weights_bytes, device[0]),
        (on_device.kv_cache_bytes, device[1]),
        (on_device.compute_bytes, device[2]),
        (on_host.weights_bytes, host[0]),
        (on_host.compute_bytes, host[1]),
    ):
        # Bounds are looser here: laying matrices out for the CPU is reserved and not used, and buffers are small.
        assert reported * MIB - PRINTED_BYTES <= estimated <= 1.15 * reported * MIB + 8 * MIB
    assert on_host.kv_cache_bytes == 0


def test_draft_model_adds_its_weights_cache_and_vocabulary_and_no_second_process() -> None:
    """The engine's own words and the kernel's for SmolLM2 that drafts for itself (`-md`), 2048 x 2, F16."""
    found = next(load.geometry for load in LOADS if load.model == "SmolLM2-135M-Instruct.Q4_1")
    options = EngineOptions(context_tokens=2048, slots=2, kv_cache_type=KvCacheType.Q8_0, host_cache_mib=100)
    (costs,) = estimate_costs(found, LANE, options.model_copy(update={"kv_cache_type": KvCacheType.F16}), 0)
    (draft,) = (formula.costs(2048) for formula in draft_formulas(found, LANE, options))
    for estimated, reported in (
        (draft.weights_bytes, 124.16),
        (draft.kv_cache_bytes, 90.0),
        (draft.compute_bytes, 15.89),
    ):
        assert reported * MIB - PRINTED_BYTES <= estimated <= 1.15 * reported * MIB
    assert draft.host_cache_bytes == 0
    peak, both = 533.9 * MIB, costs.total_bytes - costs.host_cache_bytes + draft.total_bytes
    assert peak <= both <= 1.15 * peak + 64 * MIB


def test_unified_accelerator_takes_everything_of_the_host_pool() -> None:
    metal = lane(compute=Compute.METAL, pool="Host", digest="0" * 64)
    (costs,) = estimate_costs(geometry(), metal, OPTIONS, 0)
    (on_cpu,) = estimate_costs(geometry(), LANE, OPTIONS, 0)
    assert costs.pool == "Host"
    assert costs.total_bytes == on_cpu.total_bytes + 256 * MIB


def test_every_stamped_option_that_costs_memory_is_counted() -> None:
    sliding = geometry(sliding_window_tokens=512, sliding_layers=tuple(range(20)))
    plain = estimate_costs(sliding, LANE, OPTIONS, 0)[0]
    cached = estimate_costs(sliding, LANE, OPTIONS.model_copy(update={"host_cache_mib": 100}), 0)[0]
    assert cached.host_cache_bytes == cached.total_bytes - plain.total_bytes == 100 * MIB
    kept = estimate_costs(sliding, LANE, OPTIONS.model_copy(update={"context_checkpoints": 3}), 0)[0]
    assert kept.checkpoint_bytes == kept.total_bytes - plain.total_bytes == 3 * 4 * 20 * 3 * 128 * 2 * 768
    roomy = estimate_costs(sliding, LANE, OPTIONS, 5 * MIB)[0]
    assert roomy.workspace_bytes == roomy.total_bytes - plain.total_bytes == 5 * MIB


def test_each_slot_has_its_own_window() -> None:
    one, four = (estimate_costs(geometry(), LANE, OPTIONS.model_copy(update={"slots": n}), 0)[0] for n in (1, 4))
    assert four.kv_cache_bytes == 4 * one.kv_cache_bytes == 4 * 2048 * 30 * 3 * (64 + 64) * 2


def test_sliding_layers_keep_no_more_than_their_window_and_a_micro_batch() -> None:
    sliding = geometry(sliding_window_tokens=512, sliding_layers=tuple(range(30)))
    short, long = (
        estimate_costs(sliding, LANE, OPTIONS.model_copy(update={"context_tokens": n}), 0)[0] for n in (512, 8192)
    )
    assert short.kv_cache_bytes == 4 * 512 * 30 * 3 * 256
    assert long.kv_cache_bytes == 4 * (512 + 512) * 30 * 3 * 256


def test_layers_without_kv_heads_cost_no_cache() -> None:
    half = geometry(kv_head_counts=(3, 0) * 15)
    assert estimate_costs(half, LANE, OPTIONS, 0)[0].kv_cache_bytes * 2 == (
        estimate_costs(geometry(), LANE, OPTIONS, 0)[0].kv_cache_bytes
    )


def test_build_that_the_operator_brought_is_counted_as_an_older_one() -> None:
    known, brought = (estimate_costs(geometry(), lane(digest=d), OPTIONS, 0)[0] for d in ("0" * 64, ""))
    assert brought.compute_bytes - known.compute_bytes >= (512 - 4) * 49_152 * 4


@settings(deadline=None)
@given(
    window=st.integers(1, 1 << 20),
    more=st.integers(0, 1 << 16),
    slots=st.integers(1, 64),
    sliding=st.integers(0, 4096),
    kv_type=st.sampled_from(KvCacheType),
    compute=st.sampled_from(Compute),
    pool=st.sampled_from(["Host", "Vulkan0"]),
)
def test_costs_never_fall_with_the_window_and_sum_up(
    window: int, more: int, slots: int, sliding: int, kv_type: KvCacheType, compute: Compute, pool: str
) -> None:
    shape = geometry(sliding_window_tokens=sliding, sliding_layers=(0, 1, 2) if sliding else ())
    options = EngineOptions(context_tokens=window, slots=slots, kv_cache_type=kv_type, context_checkpoints=1)
    for formula in cost_formulas(shape, lane(compute=compute, pool=pool), options, 0):
        assert formula.total_bytes(window) <= formula.total_bytes(window + more)
        assert formula.total_bytes(window) == formula.costs(window).total_bytes
