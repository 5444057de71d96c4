"""Layers that keep less than the others: of encoders, of families that share keys, spare heads, sliding ones."""

import pytest
from covey_api.engines import KvCacheType
from covey_api.instance import EngineOptions
from covey_api.model import Geometry
from covey_planner.fit.estimate import estimate_costs
from covey_planner.fit.options import stamp_options
from covey_planner.geometry.gguf import parse_gguf_geometry
from kit.builders import geometry
from kit.gguf import GgufFile, Shape, array, build_model, u32
from kit.gguf_families import build_deepseek2
from kit.measured import LANE

OPTIONS = EngineOptions(context_tokens=4096, slots=2)


def parse(file: GgufFile) -> Geometry:
    return parse_gguf_geometry(file.header, file.file_bytes)


def test_encoder_keeps_no_cache_and_its_embedding_once() -> None:
    found = parse(build_model(Shape("bert", layers=3, type="Q8_0")))
    assert found.kv_head_counts == (0, 0, 0)
    assert not found.has_gate
    assert parse(build_model(Shape("modern-bert", layers=3))).has_gate
    matrices = found.weights_bytes - found.token_embedding_bytes - 4 * 256 * (2 * 3 + 1)
    assert found.repack_bytes == matrices // 34 * 4
    assert estimate_costs(found, LANE, OPTIONS, 0)[0].kv_cache_bytes == 0


def test_encoder_may_answer_a_row_for_every_token_of_a_micro_batch() -> None:
    encoder, decoder = geometry(kv_head_counts=(0,) * 30), geometry()
    rows = 4 * 512 * (49_152 + 576)
    floors = [estimate_costs(each, LANE, OPTIONS, 0)[0].floor_bytes for each in (encoder, decoder)]
    assert floors[0] - floors[1] == rows


def test_layers_that_share_an_earlier_ones_keys_keep_none() -> None:
    shape = Shape("gemma4", layers=6, head_length=64, kv_heads=2, sliding_window=512)
    pattern = array(7, [b"\x01", b"\x01", b"\x00"] * 2)
    found = parse(
        build_model(shape, **{"attention.shared_kv_layers": u32(2), "attention.sliding_window_pattern": pattern})
    )
    assert found.kv_head_counts == (2, 2, 2, 2, 0, 0)
    assert found.sliding_layers == (0, 1, 3, 4)


def test_later_layers_of_gemma3n_share_without_saying_so() -> None:
    found = parse(build_model(Shape("gemma3n", layers=30, head_length=32, sliding_window=512)))
    assert found.kv_head_counts == (2,) * 20 + (0,) * 10


def test_heads_for_further_tokens_keep_no_cache_but_weigh() -> None:
    plain = build_model(Shape("glm4moe", layers=4))
    spare = parse(build_model(Shape("glm4moe", layers=4), nextn_predict_layers=u32(1)))
    assert spare.kv_head_counts == (2, 2, 2, 0)
    assert spare.weights_bytes == plain.tensor_bytes
    assert parse(build_model(Shape("granite-switch", layers=4), nextn_predict_layers=u32(1))).kv_head_counts == (2,) * 4


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3n"])
def test_keys_of_other_families_make_the_cache_no_smaller(family: str) -> None:
    shape = Shape(family, layers=24, head_length=32)
    plain = parse(build_model(shape))
    keys = {"attention.shared_kv_layers": u32(23), "nextn_predict_layers": u32(23), "attention.key_length_mla": u32(1)}
    found = parse(build_model(shape, **keys))
    assert found == plain
    assert not found.latent_attention


@pytest.mark.parametrize(("family", "period"), [("gemma2", 2), ("gemma3", 6), ("cohere2", 4)])
def test_header_makes_no_more_layers_slide_than_the_engine_does(family: str, period: int) -> None:
    shape = Shape(family, layers=12, head_length=32, sliding_window=64)
    every = array(7, [b"\x01"] * 12)
    usual = tuple(layer for layer in range(12) if layer % period < period - 1)
    for pattern in (every, u32(12)):
        found = parse(build_model(shape, **{"attention.sliding_window_pattern": pattern}))
        assert set(found.sliding_layers) <= set(usual)
    none = array(7, [b"\x00"] * 12)
    assert parse(build_model(shape, **{"attention.sliding_window_pattern": none})).sliding_layers == ()


def test_sliding_layers_may_have_shorter_heads() -> None:
    shape = Shape("gemma4", layers=4, head_length=512, kv_heads=2, sliding_window=1024)
    more = {
        "attention.key_length_swa": u32(256),
        "attention.value_length_swa": u32(128),
        "attention.sliding_window_pattern": array(7, [b"\x01", b"\x01", b"\x01", b"\x00"]),
    }
    found = parse(build_model(shape, **more))
    assert (found.key_length, found.sliding_key_length, found.sliding_value_length) == (512, 256, 128)
    cache = estimate_costs(found, LANE, OPTIONS, 0)[0].kv_cache_bytes
    assert cache == 2 * 2 * 2 * (4096 * (512 + 512) + 3 * (1024 + 512) * (256 + 128))


def test_latent_attention_is_not_laid_out_anew() -> None:
    found = parse(build_deepseek2(layers=2, embedding=128, vocabulary=512))
    options = stamp_options(found, cpu_cores=2, context_tokens=4096, slots=2, kv_cache_type=KvCacheType.F16)
    assert not options.repack
    kept, laid_out = (
        estimate_costs(found, LANE, options.model_copy(update={"repack": repack}), 0)[0] for repack in (False, True)
    )
    assert laid_out.weights_bytes - kept.weights_bytes == found.repack_bytes > 0
    llama = stamp_options(geometry(), cpu_cores=2, context_tokens=4096, slots=2, kv_cache_type=KvCacheType.F16)
    assert llama.repack
