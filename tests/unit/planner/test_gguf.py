"""Geometry from headers: what is read, what is refused and in which words."""

import struct
import time

import pytest
from covey_api.instance import EngineOptions
from covey_api.model import Geometry
from covey_planner.fit.estimate import estimate_costs
from covey_planner.geometry.gguf import HeaderIncomplete, HeaderInvalid, parse_gguf_geometry
from covey_planner.geometry.reader import MAX_HEADER_BYTES, MIN_PREFIX_BYTES
from kit.builders import lane
from kit.gguf import GgufFile, Shape, TensorSpec, Typed, array, build, build_model, f32, integers, text, texts, u32
from kit.gguf_families import build_deepseek2, build_granite_hybrid, build_lfm2, build_mamba, build_mamba2


def parse(file: GgufFile) -> Geometry:
    return parse_gguf_geometry(file.header, file.file_bytes)


def refusal(file: GgufFile) -> str:
    with pytest.raises(HeaderInvalid) as caught:
        parse(file)
    return str(caught.value)


def test_llama_header_gives_every_number_that_memory_depends_on() -> None:
    file = build_model(Shape(layers=6, context=8192, embedding=512, feed_forward=1024, heads=8, kv_heads=2, tied=False))
    found = parse(file)
    assert (found.architecture, found.layer_count, found.context_tokens) == ("llama", 6, 8192)
    assert (found.embedding_length, found.feed_forward_length, found.head_count) == (512, 1024, 8)
    assert found.kv_head_counts == (2,) * 6
    assert (found.key_length, found.value_length) == (64, 64)
    assert found.vocabulary_size == 1024
    assert found.weights_bytes == file.tensor_bytes
    assert found.token_embedding_bytes == 1024 * 512 // 32 * 34
    assert (found.sliding_window_tokens, found.sliding_layers, found.experts_used) == (0, (), 0)


def test_heads_may_differ_per_layer_and_layers_may_keep_no_cache() -> None:
    assert parse(build_model(Shape(layers=3, kv_heads=(4, 0, 2)))).kv_head_counts == (4, 0, 2)


def test_missing_kv_heads_are_as_many_as_heads() -> None:
    metadata = minimal() | {"llama.attention.head_count": u32(12)}
    assert parse(build(metadata, tensors())).kv_head_counts == (12, 12)


def test_gemma3_slides_in_five_of_six_layers() -> None:
    found = parse(build_model(Shape("gemma3", layers=12, head_length=64, sliding_window=512)))
    assert found.sliding_window_tokens == 512
    assert found.sliding_layers == (0, 1, 2, 3, 4, 6, 7, 8, 9, 10)
    assert (found.key_length, found.value_length) == (64, 64)


def test_pattern_in_the_header_beats_the_known_one() -> None:
    shape = Shape("gemma3", layers=4, head_length=64, sliding_window=512)
    pattern = array(7, [b"\x01", b"\x00", b"\x01", b"\x00"])
    assert parse(build_model(shape, **{"attention.sliding_window_pattern": pattern})).sliding_layers == (0, 2)
    every_other = build_model(shape, **{"attention.sliding_window_pattern": u32(2)})
    assert parse(every_other).sliding_layers == (0, 2)


def test_sliding_window_of_an_unknown_architecture_counts_as_full_attention() -> None:
    found = parse(build_model(Shape("llama", sliding_window=512)))
    assert (found.sliding_window_tokens, found.sliding_layers) == (0, ())


def test_longer_heads_of_sliding_layers_count_for_all() -> None:
    found = parse(build_model(Shape(head_length=64), **{"attention.key_length_swa": u32(128)}))
    assert (found.key_length, found.value_length) == (128, 64)


def test_experts_count_by_what_one_token_passes_through() -> None:
    found = parse(build_model(Shape("qwen3moe", feed_forward=96, head_length=32, experts=16, experts_used=4)))
    assert (found.experts_used, found.feed_forward_length) == (4, 4 * 96)


def test_tied_embedding_is_kept_twice_where_matrices_are_laid_out_anew() -> None:
    tied, untied = parse(build_model(Shape(type="Q4_0"))), parse(build_model(Shape(type="Q4_0", tied=False)))
    assert tied.repack_bytes == tied.token_embedding_bytes
    assert untied.repack_bytes == 0


def test_quantised_rows_grow_when_laid_out_anew() -> None:
    found = parse(build_model(Shape(type="Q8_0", tied=False)))
    matrices = found.weights_bytes - found.token_embedding_bytes - 4 * 256 * (2 * 4 + 1)
    assert found.repack_bytes == matrices // 34 * 4


def test_vocabulary_is_counted_without_reading_its_words() -> None:
    file = build_model(Shape(vocabulary=200_000, embedding=32, heads=1, kv_heads=1))
    start = time.process_time()
    assert parse(file).vocabulary_size == 200_000
    assert time.process_time() - start < 2


def test_too_short_a_prefix_says_how_much_to_read_next() -> None:
    file = build_model(Shape(vocabulary=40_000))
    lengths = [4]
    found: Geometry | None = None
    while found is None and len(lengths) < 10:
        try:
            found = parse_gguf_geometry(memoryview(file.header)[: lengths[-1]], file.file_bytes)
        except HeaderIncomplete as incomplete:
            lengths.append(incomplete.at_least_bytes)
    assert found == parse(file)
    assert lengths == sorted(set(lengths))
    assert lengths[-1] <= min(file.file_bytes, MAX_HEADER_BYTES)


@pytest.mark.parametrize("length", [0, 3, 4, 8, 23, 24])
def test_first_read_is_worth_a_request(length: int) -> None:
    file = build_model(Shape(vocabulary=40_000))
    with pytest.raises(HeaderIncomplete) as caught:
        parse_gguf_geometry(file.header[:length], file.file_bytes)
    assert caught.value.at_least_bytes == MIN_PREFIX_BYTES


def test_file_that_was_cut_off_is_refused() -> None:
    file = build_model(Shape())
    with pytest.raises(
        HeaderInvalid, match=rf"must have {file.file_bytes} bytes for all its tensors; got \d+: cut off"
    ):
        parse_gguf_geometry(file.header, file.file_bytes - 1)


def test_file_that_ends_inside_its_header_is_refused() -> None:
    file = build_model(Shape())
    with pytest.raises(HeaderInvalid, match="must end within the first 600 bytes"):
        parse_gguf_geometry(file.header[:600], 600)


def minimal() -> dict[str, Typed]:
    """The keys without which nothing can be said; two layers."""
    return {
        "general.architecture": text("llama"),
        "llama.block_count": u32(2),
        "llama.context_length": u32(2048),
        "llama.embedding_length": u32(64),
        "llama.feed_forward_length": u32(128),
        "llama.attention.head_count": u32(4),
    }


def tensors() -> list[TensorSpec]:
    return [TensorSpec("token_embd.weight", (64, 100), "F16"), TensorSpec("blk.0.attn_q.weight", (64, 64), "F16")]


def test_smallest_header_is_enough() -> None:
    found = parse(build(minimal(), tensors()))
    assert (found.vocabulary_size, found.weights_bytes, found.parameter_count) == (100, 20_992, 10_496)


@pytest.mark.parametrize("key", sorted(minimal().keys() - {"llama.feed_forward_length"}))
def test_missing_key_is_named(key: str) -> None:
    metadata = minimal()
    del metadata[key]
    assert f"`{key}` must be in the header" in refusal(build(metadata, tensors()))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("llama.block_count", text("two"), "`llama.block_count` must be an integer; got a text (at byte "),
        ("llama.block_count", f32(2.0), "must be an integer; got a float"),
        ("llama.block_count", texts(["a"]), "must be an integer; got an array"),
        ("llama.block_count", u32(0), "`llama.block_count` must be between 1 and 4096; got 0"),
        ("llama.block_count", u32(2**32 - 1), "must be between 1 and 4096; got 4294967295"),
        ("llama.context_length", u32(2**31), "`llama.context_length` must be between 1 and 1073741824"),
        ("llama.attention.head_count", u32(0), "must be in the header and at least 1"),
        ("llama.attention.head_count_kv", integers((1, 2, 3)), "must have one entry per layer (2); got 3"),
        ("llama.attention.head_count_kv", integers((1, -1)), "must be between 0 and 4096; got -1"),
        ("llama.attention.head_count_kv", texts(["a", "b"]), "must be an array of integers"),
        ("general.architecture", u32(1), "`general.architecture` must be a text; got an integer"),
        ("general.architecture", text("x" * 65), "must have 1 to 64 characters; got 65"),
        ("general.architecture", text("x" * 2000), "must be at most 1024 bytes long; got 2000"),
        ("general.alignment", u32(0), "`general.alignment` must be between 1 and 65536; got 0"),
        ("split.count", u32(3), "`split.count` says that the model has 3 files; got 1 of them"),
        ("llama.ssm.state_size", u32(16), "keeps recurrent state (`llama.ssm.*`)"),
    ],
)
def test_wrong_value_is_named_with_what_must_hold(key: str, value: Typed, words: str) -> None:
    assert words in refusal(build(minimal() | {key: value}, tensors()))


@pytest.mark.parametrize(
    ("position", "packed", "words"),
    [
        (0, b"GGML", "must begin with 'GGUF'; it begins with something else (at byte 0)"),
        (4, struct.pack("<I", 1), "version must be 2 or 3, little-endian; got 1 (at byte 4)"),
        (4, struct.pack(">I", 3), "version must be 2 or 3, little-endian; got 50331648"),
        (8, struct.pack("<Q", 2**63), "must have at most 65536 tensors; got 9223372036854775808"),
        (16, struct.pack("<Q", 2**40), "must have at most 4096 keys; got 1099511627776"),
        (24, struct.pack("<Q", 2**62), "key 0 must be at most 1024 bytes long; got 4611686018427387904"),
    ],
)
def test_absurd_numbers_are_refused_at_once(position: int, packed: bytes, words: str) -> None:
    file = build(minimal(), tensors())
    broken = file.header[:position] + packed + file.header[position + len(packed) :]
    assert words in refusal(GgufFile(broken, file.file_bytes, 0))


def test_array_that_claims_more_than_the_file_holds_is_refused_before_it_is_walked() -> None:
    claims = build(minimal() | {"tokenizer.ggml.tokens": texts([])}, tensors())
    marker = struct.pack("<IQ", 8, 0)
    broken = claims.header.replace(marker, struct.pack("<IQ", 8, 2**22))
    assert "`tokenizer.ggml.tokens` must end within the first" in refusal(GgufFile(broken, claims.file_bytes, 0))
    beyond = claims.header.replace(marker, struct.pack("<IQ", 8, 2**22 + 1))
    assert "must not bring the header's texts above 4194304" in refusal(GgufFile(beyond, 2**40, 0))
    numbers = claims.header.replace(marker, struct.pack("<IQ", 5, 2**61))
    assert "must end within the file's" in refusal(GgufFile(numbers, claims.file_bytes, 0))


def test_text_that_runs_beyond_the_file_is_named_by_its_array() -> None:
    file = build(minimal() | {"tokenizer.ggml.tokens": texts(["word"])}, tensors())
    broken = file.header.replace(struct.pack("<Q", 4) + b"word", struct.pack("<Q", 2**50) + b"word")
    assert "`tokenizer.ggml.tokens` must end within the file's" in refusal(GgufFile(broken, file.file_bytes, 0))


def test_most_texts_that_a_header_may_have_take_bounded_time() -> None:
    empty = build(minimal() | {"tokenizer.ggml.tokens": texts([])}, tensors())
    cut = empty.header.index(struct.pack("<IQ", 8, 0))
    words = 2**22
    header = empty.header[:cut] + struct.pack("<IQ", 8, words) + bytes(8 * words) + empty.header[cut + 12 :]
    start = time.process_time()
    assert parse_gguf_geometry(header, len(header) + 2**20).vocabulary_size == words
    assert time.process_time() - start < 20


def test_nested_arrays_and_unknown_value_types_are_refused() -> None:
    nested = array(9, [])
    assert "`a` must be an array of numbers or texts; got type 9" in refusal(
        build(minimal() | {"a": nested}, tensors())
    )
    file = build(minimal() | {"a": u32(7)}, tensors())
    broken = file.header.replace(b"a" + struct.pack("<II", 4, 7), b"a" + struct.pack("<II", 77, 7))
    assert "`a` must have a known value type (0 to 12); got type 77" in refusal(GgufFile(broken, file.file_bytes, 0))


def test_key_that_is_given_twice_is_refused() -> None:
    file = build(minimal() | {"b": u32(1), "c": u32(1)}, tensors())
    twice = file.header.replace(b"\x01" + bytes(7) + b"c", b"\x01" + bytes(7) + b"b")
    assert "`b` must be given once" in refusal(GgufFile(twice, file.file_bytes, 0))


def test_unknown_tensor_type_is_named() -> None:
    file = build(minimal(), tensors())
    name = b"blk.0.attn_q.weight"
    at = file.header.index(name) + len(name) + 4 + 16
    broken = file.header[:at] + struct.pack("<I", 99) + file.header[at + 4 :]
    assert "tensor 'blk.0.attn_q.weight' must have a known ggml type; got type 99" in refusal(
        GgufFile(broken, file.file_bytes, 0)
    )


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((2**60, 2**60), "must have 1 to 281474976710656 elements"),
        ((0, 4), "must have 1 to 281474976710656 elements"),
        ((33, 4), "must have rows of whole Q8_0 blocks (32); got 33"),
        ((), "must have 1 to 4 dimensions; got 0"),
        ((32,) * 5, "must have 1 to 4 dimensions; got 5"),
    ],
)
def test_absurd_tensor_shapes_are_refused(shape: tuple[int, ...], words: str) -> None:
    file = build(minimal(), [TensorSpec("blk.0.attn_q.weight", shape, "Q8_0")])
    assert words in refusal(GgufFile(file.header, 2**62, 0))


def test_tensors_that_overlap_cannot_claim_more_than_the_file() -> None:
    file = build(minimal(), tensors())
    assert file.tensor_bytes == 20_992
    second = file.header.rindex(struct.pack("<Q", 12_800))
    overlapping = file.header[:second] + bytes(8) + file.header[second + 8 :]
    short = len(file.header) + 12_800
    assert "cut off" in refusal(GgufFile(overlapping, short, 0))


def test_header_beyond_the_limit_is_refused() -> None:
    file = build(minimal() | {"filler": array(0, [])}, tensors())
    claim = b"filler" + struct.pack("<IIQ", 9, 0, MAX_HEADER_BYTES)
    broken = file.header.replace(b"filler" + struct.pack("<IIQ", 9, 0, 0), claim)
    assert "must end within the first 67108864 bytes" in refusal(GgufFile(broken, 2**40, 0))


@pytest.mark.parametrize(
    ("made", "states", "rolling"),
    [
        (build_mamba(layers=2, embedding=64, state=16, vocabulary=512), 16 * 128, 3 * 128),
        (build_mamba2(layers=2, embedding=64, state=32, vocabulary=512), 32 * 128, 3 * (128 + 2 * 32)),
    ],
)
def test_whole_recurrent_model_keeps_a_state_per_slot_and_no_cache(made: GgufFile, states: int, rolling: int) -> None:
    found = parse_gguf_geometry(made.header, made.file_bytes)
    assert not any(found.kv_head_counts)
    assert found.recurrent_bytes == 2 * 4 * (states + rolling)
    assert found.recurrent_layer_bytes == 4 * (states + 2 * rolling)


def test_hybrid_keeps_a_cache_where_it_attends_and_a_state_elsewhere() -> None:
    made = build_granite_hybrid(layers=8, embedding=128, vocabulary=512)
    found = parse_gguf_geometry(made.header, made.file_bytes)
    assert found.kv_head_counts == (0, 0, 0, 4, 0, 0, 0, 4)
    assert found.recurrent_bytes == 6 * 4 * (128 * 256 + 3 * (256 + 2 * 128))
    convolution = build_lfm2(embedding=128, vocabulary=512)
    assert parse_gguf_geometry(convolution.header, convolution.file_bytes).recurrent_bytes == 5 * 4 * 2 * 128


def test_latent_vector_is_its_own_value_for_builds_that_know() -> None:
    made = build_deepseek2(layers=2, embedding=128, vocabulary=512)
    found = parse_gguf_geometry(made.header, made.file_bytes)
    assert found.latent_attention
    options = EngineOptions(context_tokens=256, slots=1)
    (new,), (old,) = (estimate_costs(found, lane(digest=digest), options, 0) for digest in ("a" * 64, ""))
    assert new.kv_cache_bytes == 2 * 256 * 2 * 576
    assert old.kv_cache_bytes == 2 * 256 * 2 * (576 + 512)
