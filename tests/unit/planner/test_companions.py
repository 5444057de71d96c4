"""Projectors and draft models: what their headers say, what they take beside a model, and what a choice makes of it."""

from dataclasses import replace

import pytest
from covey_api.companion import CompanionRole
from covey_api.engines import HOST_POOL, Compute, EngineName, KvCacheType, Lane
from covey_api.instance import EngineOptions
from covey_api.model import Geometry
from covey_api.reasons import ReadyReason, RefusalReason
from covey_planner.choice import choose, explain_nodes
from covey_planner.fit import mlx
from covey_planner.fit.companions import projector_formulas, with_companions
from covey_planner.fit.estimate import cost_formulas
from covey_planner.geometry.gguf import HeaderInvalid, parse_gguf_geometry
from covey_planner.types import CompanionView, NodeView, Refusal, VariantView
from kit.builders import artifact, geometry, lane
from kit.gguf import Typed, build, text, u32
from kit.gguf_projectors import build_projector
from kit.planning import GIB, MIB, large_geometry, node, variant, wish

CPU = lane(digest="0" * 64)
CARD = lane(compute=Compute.CUDA, pool="CUDA0", digest="0" * 64)
OPTIONS = EngineOptions(context_tokens=2048, slots=2)


def projector(
    kind: str = "gemma3", embedding: int = 64, feed_forward: int = 128, side: int = 224, patch: int = 14
) -> Geometry:
    made = build_projector(kind, embedding=embedding, feed_forward=feed_forward, side=side, patch=patch)
    return parse_gguf_geometry(made.header, made.file_bytes)


def beside(role: CompanionRole = CompanionRole.DRAFT, found: Geometry | None = None) -> CompanionView:
    return CompanionView(role, found or geometry(), artifact())


def large(*companions: CompanionView) -> VariantView:
    return variant(geometry=large_geometry(), companions=companions)


def test_header_of_a_projector_tells_its_tower_and_how_much_it_reads_at_a_time() -> None:
    made = build_projector(layers=3, side=896)
    found = parse_gguf_geometry(made.header, made.file_bytes)
    assert (found.architecture, found.layer_count, found.context_tokens) == ("clip", 3, 64 * 64 + 1)
    assert (found.embedding_length, found.feed_forward_length, found.weights_bytes) == (64, 128, made.tensor_bytes)
    assert found.kv_head_counts == ()


@pytest.mark.parametrize(
    ("more", "patches"),
    [
        ({}, 46 * 46 * 4),
        ({"vision.spatial_merge_size": u32(4)}, 46 * 46 * 16),
        ({"vision.projector.scale_factor": u32(3)}, 46 * 46 * 9),
    ],
)
def test_a_kind_that_reads_images_of_any_size_counts_the_most_that_is_let_in(
    more: dict[str, Typed], patches: int
) -> None:
    for kind in ("qwen2vl_merger", "something-new"):
        made = build_projector(kind, more=more)
        found = parse_gguf_geometry(made.header, made.file_bytes)
        assert (found.context_tokens, found.has_gate) == (patches, True)


def test_a_projector_without_towers_or_with_odd_numbers_is_refused_by_its_key() -> None:
    made = build({"general.architecture": text("clip")}, [])
    with pytest.raises(HeaderInvalid, match="must have tensors"):
        parse_gguf_geometry(made.header, made.file_bytes)
    made = build_projector(more={"vision.patch_size": u32(0)})
    with pytest.raises(HeaderInvalid, match=r"clip\.vision\.patch_size"):
        parse_gguf_geometry(made.header, made.file_bytes)


# What llama-server 10434 printed of its buffer for these (`reserve_compute_meta`), in MiB.
@pytest.mark.parametrize(
    ("found", "printed"),
    [
        (projector("idefics3", 768, 3072, 512, 16), 21.00),
        (projector("idefics3", 1152, 4304, 378), 21.58),
        (projector("gemma3", 1152, 4304, 896), 121.25),
        (projector("mlp", 1024, 4096, 336), 17.05),
    ],
    ids=["siglip at 512", "siglip at 378", "siglip at 896", "clip at 336"],
)
def test_one_pass_of_a_projector_is_what_the_engine_prints_and_little_more(found: Geometry, printed: float) -> None:
    device, host = (each.costs(2048) for each in projector_formulas(found, CARD, OPTIONS))
    assert printed * MIB <= device.compute_bytes <= 1.15 * printed * MIB
    assert device.weights_bytes == found.weights_bytes
    assert (host.weights_bytes, host.compute_bytes, host.floor_bytes) == (0, 0, 2 * 96 * MIB)
    (whole,) = (each.costs(2048) for each in projector_formulas(found, CPU, OPTIONS))
    assert whole.total_bytes > device.total_bytes + host.total_bytes


@pytest.mark.parametrize("on", [CPU, CARD], ids=["processor", "card"])
def test_companions_are_counted_in_the_pool_that_they_fill(on: Lane) -> None:
    alone = cost_formulas(large_geometry(), on, OPTIONS, 0)
    both = with_companions(
        alone, [(CompanionRole.DRAFT, geometry()), (CompanionRole.PROJECTOR, projector())], on, OPTIONS
    )
    for before, after in zip(alone, both, strict=True):
        for window in (2048, 8192):
            costs = after.costs(window)
            assert costs.companion_bytes > 0
            assert costs.total_bytes == after.total_bytes(window) == before.total_bytes(window) + costs.companion_bytes
    at = {window: both[0].costs(window).companion_bytes for window in (2048, 8192)}
    assert at[8192] - at[2048] >= 6144 * 2 * 30 * 3 * 128 * 2, "the draft model's cache grows with the window"
    assert both[-1].pool == HOST_POOL
    assert len(both) == (1 if on is CPU else 2)


def test_what_earlier_loads_took_scales_companions_too() -> None:
    plain = cost_formulas(geometry(), CPU, OPTIONS, 0, 120)
    (formula,) = with_companions(plain, [(CompanionRole.DRAFT, geometry())], CPU, OPTIONS, 120)
    (same,) = with_companions(plain, [(CompanionRole.DRAFT, geometry())], CPU, OPTIONS)
    assert formula.companion_bytes(2048) > 1.15 * same.companion_bytes(2048)


def test_a_draft_model_leaves_less_for_the_window_and_is_stamped() -> None:
    here = [node(memory=12 * GIB)]
    (alone,) = choose(wish(variants=(large(),)), here, 1).chosen
    (both,) = choose(wish(variants=(large(beside()),)), here, 1).chosen
    assert both.options.context_tokens < alone.options.context_tokens
    assert [each.role for each in both.companions] == [CompanionRole.DRAFT]
    assert both.costs[0].total_bytes <= 11 * GIB
    assert both.costs[0].companion_bytes > geometry().weights_bytes


def test_a_projector_stamps_how_many_tokens_an_image_becomes() -> None:
    (chosen,) = choose(wish(variants=(large(beside(CompanionRole.PROJECTOR, projector())),)), [node()], 1).chosen
    assert chosen.options.image_tokens == 2048
    (plain,) = choose(wish(variants=(large(),)), [node()], 1).chosen
    assert plain.options.image_tokens == 0


def test_a_model_that_fits_only_without_its_companion_is_refused_with_its_bytes() -> None:
    huge = beside(found=large_geometry(weights_bytes=9 * GIB))
    asked = wish(variants=(large(huge),), context_tokens=4096)
    assert choose(wish(variants=(large(),), context_tokens=4096), [node(memory=10 * GIB)], 1).chosen
    (refusal,) = explain_nodes(asked, [node(memory=10 * GIB)])
    assert isinstance(refusal, Refusal)
    assert refusal.reason is RefusalReason.INSUFFICIENT_MEMORY
    assert "companions " in refusal.message


def test_agent_of_a_version_that_knows_no_companions_is_given_none_and_says_so() -> None:
    """It would start the model alone, and be Ready."""
    old = replace(node("a", memory=64 * GIB), lanes=(lane(digest="0" * 64, companions=()),))
    new = node("b")
    seeing = wish(variants=(large(beside(CompanionRole.PROJECTOR, projector())),))
    assert choose(wish(variants=(large(),)), [old], 1).chosen, "what it knows it gets"
    assert [each.node for each in choose(seeing, [old, new], 2).chosen] == ["b", "b"]
    (refusal,) = explain_nodes(seeing, [old])
    assert isinstance(refusal, Refusal)
    assert refusal.reason is RefusalReason.NO_USABLE_ENGINE
    assert refusal.message == "its agent is of a version that starts no LlamaServer with a projector; upgrade it"
    decision = choose(seeing, [old], 1)
    assert (decision.chosen, decision.closest) == ((), refusal)


def test_devices_of_an_agent_that_knows_only_one_kind_of_companion_share_no_model_with_another() -> None:
    def cards(*companions: str) -> NodeView:
        lanes = tuple(
            lane(compute=Compute.CUDA, pool=f"CUDA{index}", digest="0" * 64, companions=companions) for index in (0, 1)
        )
        return replace(node(), lanes=lanes, pools=(*node().pools, *pools))

    pools = tuple(replace(node().pools[0], name=f"CUDA{index}", total_bytes=9 * GIB) for index in (0, 1))
    drafting = wish(variants=(large(beside()),), context_tokens=8192)
    both = wish(variants=(large(beside(), beside(CompanionRole.PROJECTOR, projector())),), context_tokens=8192)
    assert choose(drafting, [cards("Draft")], 1).chosen
    assert choose(both, [cards("Draft", "Projector")], 1).chosen
    assert not choose(both, [cards("Draft")], 1).chosen


def test_of_several_devices_the_first_has_the_companions() -> None:
    cards = replace(
        node(),
        lanes=tuple(lane(compute=Compute.CUDA, pool=f"CUDA{index}", digest="0" * 64) for index in (0, 1)),
        pools=(
            *node().pools,
            *(replace(node().pools[0], name=f"CUDA{index}", total_bytes=9 * GIB) for index in (0, 1)),
        ),
    )
    (chosen,) = choose(wish(variants=(large(beside()),), context_tokens=8192), [cards], 1).chosen
    found = {costs.pool: costs for costs in chosen.costs}
    assert found["CUDA0"].layers
    assert found["CUDA1"].layers
    assert found["CUDA0"].companion_bytes > 0
    assert found["CUDA1"].companion_bytes == 0


def test_a_variant_waits_for_the_header_of_its_companion_and_says_why_there_is_none() -> None:
    unread = CompanionView(CompanionRole.DRAFT, None, None)
    pending = choose(wish(variants=(large(unread),)), [node()], 1).pending
    assert pending is not None
    assert pending.reason == ReadyReason.GEOMETRY_PENDING
    bad = replace(unread, error="no such file")
    pending = choose(wish(variants=(large(bad),)), [node()], 1).pending
    assert pending is not None
    assert pending.reason == ReadyReason.GEOMETRY_UNAVAILABLE
    assert pending.message == "header of variant 'gguf-q4-1': its draft: no such file"
    other = variant("plain", geometry=geometry())
    (chosen,) = choose(wish(variants=(large(bad), other)), [node()], 1).chosen
    assert chosen.variant == "plain"


def test_kv_cache_of_a_draft_is_f16_whatever_the_models_is() -> None:
    small = OPTIONS.model_copy(update={"kv_cache_type": KvCacheType.Q4_0})
    at = [
        with_companions(cost_formulas(geometry(), CPU, options, 0), [(CompanionRole.DRAFT, geometry())], CPU, options)[
            0
        ].companion_bytes(2048)
        for options in (OPTIONS, small)
    ]
    assert at[0] == at[1]


def test_a_draft_of_mlx_is_counted_without_a_second_process_and_takes_the_only_slot() -> None:
    def macs(*companions: str) -> NodeView:
        metal = lane(engine=EngineName.MLX, compute=Compute.METAL, digest="0" * 64, companions=companions)
        return replace(node(), lanes=(metal,))

    plain = variant("mlx", engines=(EngineName.MLX,))
    asked = wish(variants=(replace(plain, companions=(beside(),)),), slots=4, context_tokens=2048)
    (chosen,) = choose(asked, [macs("Draft")], 1).chosen
    assert (chosen.options.slots, [each.role for each in chosen.companions]) == (1, [CompanionRole.DRAFT])
    (alone,) = choose(wish(variants=(plain,), slots=4, context_tokens=2048), [macs("Draft")], 1).chosen
    assert alone.options.slots == 4
    (costs,) = chosen.costs
    own = mlx.weights_bytes(geometry(), macs().lanes[0]) + mlx.kv_bytes_per_cell(geometry(), chosen.options) * 2048
    assert own < costs.companion_bytes < own + mlx.process_bytes(geometry()) + mlx.graph_bytes(geometry(), OPTIONS)
    assert not choose(asked, [macs()], 1).chosen, "an agent of before would leave it out"
