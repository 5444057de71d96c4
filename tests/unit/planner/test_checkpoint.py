"""Geometry of `config.json` with safetensors: what is read, and every lie that is refused, with its field."""

import json
import struct
from dataclasses import replace

import pytest
from covey_planner.geometry.checkpoint import parse_checkpoint
from covey_planner.geometry.gguf import parse_gguf_geometry
from covey_planner.geometry.reader import GeometryUnmeasured, HeaderIncomplete, HeaderInvalid
from covey_planner.geometry.safetensors import (
    MAX_DIRECTORY_BYTES,
    Directory,
    merge_directories,
    parse_directory,
    parse_index,
)
from kit.checkpoints import Checkpoint, build_checkpoint, directory, tensor_shapes
from kit.gguf import Shape, build_model

SHAPE = Shape(layers=3, embedding=256, heads=8, kv_heads=2, vocabulary=1024)


def tensors_of(checkpoint: Checkpoint) -> Directory:
    return merge_directories([parse_directory(header, size) for header, size in checkpoint.files])


def refusal(checkpoint: Checkpoint) -> str:
    with pytest.raises(HeaderInvalid) as caught:
        parse_checkpoint(checkpoint.config_text, tensors_of(checkpoint))
    return str(caught.value)


@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        Shape("qwen2", layers=2, kv_heads=4, tied=False),
        Shape("qwen3", layers=2, head_length=64),
        Shape("gemma3", layers=12, head_length=64, sliding_window=512),
        Shape("qwen3moe", layers=2, feed_forward=96, head_length=32, experts=4, experts_used=2),
    ],
    ids=lambda shape: shape.architecture,
)
@pytest.mark.parametrize("files", [1, 3])
def test_same_model_has_the_same_geometry_in_both_formats(shape: Shape, files: int) -> None:
    checkpoint = build_checkpoint(shape, files=files)
    found = parse_checkpoint(checkpoint.config_text, tensors_of(checkpoint))
    made = build_model(shape)
    gguf = parse_gguf_geometry(made.header, made.file_bytes)
    names = (
        *("layer_count", "context_tokens", "embedding_length", "feed_forward_length", "head_count", "vocabulary_size"),
        *("kv_head_counts", "key_length", "value_length", "sliding_window_tokens", "sliding_layers", "experts_used"),
    )
    assert {name: getattr(found, name) for name in names} == {name: getattr(gguf, name) for name in names}
    assert found.weights_bytes == sum(size - len(header) for header, size in checkpoint.files)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 4}, "`num_hidden_layers` must be 3, as many as the tensors have; got 4"),
        ({"vocab_size": 1000}, "`vocab_size` must be 1024, as the embedding has rows; got 1000"),
        ({"hidden_size": 128, "head_dim": 32}, "`hidden_size` must be 256, as the embedding is wide; got 128"),
        (
            {"num_key_value_heads": 1},
            "`num_key_value_heads` must be 64 rows by heads of 32, as tensor 'model.layers.0.",
        ),
        ({"head_dim": 64}, "`num_key_value_heads` must be 64 rows by heads of 64, as tensor"),
        ({"tie_word_embeddings": False}, "`tie_word_embeddings` must be true, as the tensors have no output matrix"),
        ({"num_hidden_layers": "3"}, "`num_hidden_layers` must be an integer between 1 and 4096; got '3'"),
        ({"num_hidden_layers": True}, "`num_hidden_layers` must be an integer between 1 and 4096; got true"),
        ({"num_hidden_layers": 3.0}, "`num_hidden_layers` must be an integer between 1 and 4096; got 3.0"),
        ({"num_hidden_layers": 10**30}, "must be an integer between 1 and 4096; got a number beyond 64 bits"),
        ({"num_hidden_layers": None}, "`num_hidden_layers` must be an integer between 1 and 4096; got nothing"),
        ({"hidden_size": -1}, "`hidden_size` must be an integer between 1 and 1048576; got -1"),
        ({"max_position_embeddings": None}, "`max_position_embeddings` must be an integer"),
        (
            {"num_key_value_heads": [2, 2]},
            "must be a list of one entry per layer (3); got a list of 2",
        ),
        ({"layer_types": ["full_attention"]}, "`layer_types` must have one entry per layer (3); got 1"),
        ({"layer_types": [1, 2, 3]}, "`layer_types` must be a list of at most 3 texts; got a list of 3"),
        (
            {"layer_types": ["linear_attention"] * 3},
            "keeps recurrent state (`layer_types`), whose memory was",
        ),
        ({"state_size": 16}, "keeps recurrent state (`state_size`)"),
        ({"model_type": ""}, "`model_type` must be in the config"),
        ({"model_type": 7}, "`model_type` must be a text; got 7"),
        ({"text_config": [1]}, "`text_config` must be an object; got a list of 1"),
        ({"text_config": {"model_type": "llama"}}, "`text_config.num_hidden_layers` must be an integer"),
        ({"quantization": {"bits": 64}}, "`quantization.bits` must be an integer between 1 and 16; got 64"),
    ],
)
def test_config_that_lies_is_refused_with_its_field(changes: dict[str, object], words: str) -> None:
    checkpoint = build_checkpoint(SHAPE)
    assert words in refusal(replace(checkpoint, config=checkpoint.config | changes))


def test_packed_weights_count_as_stored_and_parameters_as_meant() -> None:
    shapes = tensor_shapes(SHAPE)
    packed = {name: (*shape[:-1], shape[-1] // 8) if len(shape) == 2 else shape for name, shape in shapes.items()}
    config = build_checkpoint(SHAPE, quantization={"bits": 4, "group_size": 64}).config
    header, size = directory(packed, "U32")
    found = parse_checkpoint(json.dumps(config).encode(), parse_directory(header, size))
    assert found.weights_bytes == size - len(header)
    assert found.parameter_count == found.weights_bytes // 4 * 8


MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 96}


def compressed(family: str, rows: int = 576, layers: int = 3, **changes: object) -> tuple[bytes, Directory]:
    """A model whose first `layers` layers have the projection of a latent vector in the place of keys and values."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in tensor_shapes(SHAPE).items():
        if not name.endswith(("k_proj.weight", "v_proj.weight")):
            shapes[name] = shape
        elif name.endswith("k_proj.weight") and int(name.split(".")[2]) < layers:
            shapes[name.replace("k_proj", "kv_a_proj_with_mqa")] = (rows, SHAPE.embedding)
    config = build_checkpoint(SHAPE).config | {"model_type": family} | MLA | changes
    return json.dumps(config).encode(), parse_directory(*directory(shapes))


def test_latent_vector_is_a_key_and_a_value_at_once() -> None:
    found = parse_checkpoint(*compressed("deepseek_v3"))
    assert found.latent_attention
    assert (found.kv_head_counts, found.key_length, found.value_length) == ((1, 1, 1), 576, 512)


@pytest.mark.parametrize("family", ["deepseek_v2", "minicpm3", "never-seen"])
def test_where_an_engine_makes_every_heads_keys_anew_they_all_count(family: str) -> None:
    found = parse_checkpoint(*compressed(family))
    assert not found.latent_attention
    assert (found.kv_head_counts, found.key_length, found.value_length) == ((8, 8, 8), 192, 96)


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_keys_that_no_tensor_bears_out_make_the_cache_no_smaller(family: str) -> None:
    plain = build_checkpoint(SHAPE)
    honest = parse_checkpoint(plain.config_text, tensors_of(plain))
    lying = build_checkpoint(SHAPE, model_type=family, kv_lora_rank=1, num_kv_shared_layers=3)
    found = parse_checkpoint(lying.config_text, tensors_of(lying))
    assert (found.kv_head_counts, found.key_length) == (honest.kv_head_counts, honest.key_length)
    lying = replace(lying, config=lying.config | {"num_key_value_heads": 1})
    assert "`num_key_value_heads` must be 64 rows" in refusal(lying)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": 640}, "`kv_lora_rank` must be 640 with `qk_rope_head_dim` (64), as tensor 'model.layers.0."),
        ({"layers": 0, "kv_lora_rank": 1}, ""),
        ({"layers": 2}, "`kv_lora_rank` must be of every layer, and layer 2 has no 'kv_a_proj_with_mqa'; got 512"),
        ({"kv_lora_rank": None}, "`kv_lora_rank` must be an integer"),
    ],
)
def test_latent_vector_that_the_tensors_do_not_have_is_refused(changes: dict[str, object], words: str) -> None:
    config, tensors = compressed("deepseek_v3", **changes)  # pyright: ignore[reportArgumentType]  # by name
    if not words:
        assert not parse_checkpoint(config, tensors).latent_attention
        return
    with pytest.raises(HeaderInvalid) as caught:
        parse_checkpoint(config, tensors)
    assert words in str(caught.value)


def test_latent_vectors_in_some_layers_alone_are_unmeasured_and_no_lie() -> None:
    config, tensors = compressed("kimi_linear", layers=2)
    with pytest.raises(GeometryUnmeasured, match=r"layer 2 has no 'kv_a_proj_with_mqa'; got 512; give `spec.geometry`"):
        parse_checkpoint(config, tensors)
    with pytest.raises(HeaderInvalid) as caught:
        parse_checkpoint(*compressed("kimi_linear", layers=2, kv_lora_rank=256))
    assert type(caught.value) is HeaderInvalid, "the layers that have them are held against the config all the same"
    with pytest.raises(HeaderInvalid) as caught:
        parse_checkpoint(*compressed("deepseek_v3", layers=2))
    assert type(caught.value) is HeaderInvalid, "every layer of this family has one"


@pytest.mark.parametrize("changes", [{"num_hidden_layers": 4}, {"vocab_size": 1000}, {"hidden_size": 128}])
def test_config_of_an_unmeasured_family_that_lies_is_no_sound_header(changes: dict[str, object]) -> None:
    checkpoint = build_checkpoint(SHAPE, model_type="never-seen", state_size=16)
    with pytest.raises(GeometryUnmeasured):
        parse_checkpoint(checkpoint.config_text, tensors_of(checkpoint))
    lying = replace(checkpoint, config=checkpoint.config | changes)
    with pytest.raises(HeaderInvalid) as caught:
        parse_checkpoint(lying.config_text, tensors_of(lying))
    assert type(caught.value) is HeaderInvalid
    assert next(iter(changes)) in str(caught.value)


def test_layer_with_keys_is_no_layer_without_cache() -> None:
    lying = build_checkpoint(SHAPE, model_type="lfm2", conv_L_cache=3, layer_types=["conv"] * 3)
    assert "`layer_types` must count layer 0 as attention, as it has tensor 'model.layers.0.self_attn.k_" in refusal(
        lying
    )
    assert "`model_type` must count layer 0 as attention" in refusal(
        build_checkpoint(SHAPE, model_type="mamba", state_size=16, conv_kernel=4)
    )


def test_shared_keys_count_less_only_where_a_family_shares_them() -> None:
    sharing = build_checkpoint(SHAPE, model_type="gemma4_text", head_dim=32, global_head_dim=32, num_kv_shared_layers=1)
    assert parse_checkpoint(sharing.config_text, tensors_of(sharing)).kv_head_counts == (2, 2, 0)
    every = replace(sharing, config=sharing.config | {"num_kv_shared_layers": 3})
    assert "`num_kv_shared_layers` must be an integer between 0 and 2; got 3" in refusal(every)


@pytest.mark.parametrize("name", ["self_attn.qkv_proj", "attn.Wqkv", "self_attention.query_key_value", "attn.c_attn"])
def test_fewer_kv_heads_than_a_fused_projection_has_are_refused(name: str) -> None:
    shapes = {
        key.replace("self_attn.q_proj", name): ((8 + 2 * 2) * 32, 256) if "q_proj" in key else shape
        for key, shape in tensor_shapes(SHAPE).items()
        if not key.endswith(("k_proj.weight", "v_proj.weight"))
    }
    tensors = parse_directory(*directory(shapes))
    plain = build_checkpoint(SHAPE)
    assert parse_checkpoint(plain.config_text, tensors).kv_head_counts == (2, 2, 2)
    with pytest.raises(HeaderInvalid, match="`num_key_value_heads` must be enough for 384 rows of queries, keys and"):
        parse_checkpoint(json.dumps(plain.config | {"num_key_value_heads": 1}).encode(), tensors)


def test_tower_beside_the_language_model_weighs_and_has_no_layers() -> None:
    header, size = directory(tensor_shapes(SHAPE) | {"vision_tower.layers.40.k_proj.weight": (7, 7)})
    config = build_checkpoint(SHAPE).config
    nested = json.dumps({"architectures": [], "text_config": config}).encode()
    found = parse_checkpoint(nested, parse_directory(header, size))
    assert (found.layer_count, found.weights_bytes) == (3, size - len(header))


def test_spare_heads_may_follow_the_layers() -> None:
    more = build_checkpoint(Shape(layers=4))
    config = json.dumps(more.config | {"num_hidden_layers": 3, "num_nextn_predict_layers": 1}).encode()
    assert parse_checkpoint(config, tensors_of(more)).kv_head_counts == (2, 2, 2)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a": ' + b"[" * 100_000, b"9" * 10_000])
def test_config_that_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(HeaderInvalid, match=r"`config.json` must be"):
        parse_checkpoint(text, tensors_of(build_checkpoint(SHAPE)))


def entry(**changes: object) -> bytes:
    found = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} | changes
    text = json.dumps({"a": found}).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("header", "file_bytes", "words"),
    [
        (b"", 4, "must begin with the 8 bytes of its directory's length; it has 4"),
        (
            struct.pack("<Q", 2**40),
            2**50,
            f"must be 2 to {MAX_DIRECTORY_BYTES} bytes long; got 1099511627776",
        ),
        (struct.pack("<Q", 500), 400, "the directory must be 2 to 392 bytes long; got 500"),
        (entry(dtype="F7"), 1000, "`a.dtype` must be one of BF16, BOOL"),
        (entry(dtype=3), 1000, "`a.dtype` must be a text; got 3"),
        (entry(shape=[2**40, 2**40]), 1000, "`a.shape` must be of at most"),
        (entry(shape=[-4]), 1000, "`a.shape` must be an integer between 0 and"),
        (entry(shape=[5]), 1000, "`a.data_offsets` must be 20 bytes apart, as F32 [5] is; got 16"),
        (entry(data_offsets=[16, 0]), 1000, "`a.data_offsets` must be two ascending offsets within the file's"),
        (entry(data_offsets=[0, 2**60]), 1000, "`a.data_offsets` must be two ascending offsets"),
        (entry(data_offsets=[0]), 1000, "`a.data_offsets` must be two ascending offsets"),
    ],
)
def test_directory_that_lies_is_refused_with_its_field(header: bytes, file_bytes: int, words: str) -> None:
    with pytest.raises(HeaderInvalid) as caught:
        parse_directory(header, file_bytes)
    assert words in str(caught.value)


def test_file_that_was_cut_off_is_refused() -> None:
    header, size = build_checkpoint(SHAPE).files[0]
    with pytest.raises(HeaderInvalid, match="within the file's"):
        parse_directory(header, size - 1)


def test_too_short_a_prefix_says_how_much_to_read() -> None:
    header, size = build_checkpoint(SHAPE).files[0]
    with pytest.raises(HeaderIncomplete) as caught:
        parse_directory(header[:100], size)
    assert caught.value.at_least_bytes == len(header)


def test_index_names_the_files_beside_it() -> None:
    assert parse_index(b'{"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"}}') == (
        "1.safetensors",
        "2.safetensors",
    )


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", "a.bin", "a\n.safetensors"])
def test_index_names_no_file_elsewhere(name: str) -> None:
    with pytest.raises(HeaderInvalid, match="must name files beside the index"):
        parse_index(json.dumps({"weight_map": {"a": name}}).encode())


def test_tensor_in_two_files_is_refused() -> None:
    header, size = build_checkpoint(SHAPE).files[0]
    twice = parse_directory(header, size)
    with pytest.raises(HeaderInvalid, match="must be in one file; it is in several"):
        merge_directories([twice, twice])
