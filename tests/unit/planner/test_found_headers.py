"""Inputs that a reader once failed on or nearly did, for ever; and the rules that fuzzing checks, by hypothesis."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.checkpoints import build_checkpoint
from kit.gguf import Shape
from kit.header_readers import READERS, read_input

FOUND = sorted((Path(__file__).parent / "found").glob("*.bin"))
CHECKPOINT = build_checkpoint(Shape(layers=2, vocabulary=300, embedding=64, heads=2, kv_heads=1))
EXAMPLES = settings(max_examples=200, deadline=None)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_kept_input_is_answered(path: Path) -> None:
    read_input(path.read_bytes())


@EXAMPLES
@given(st.integers(0, len(READERS) - 1), st.binary(max_size=2048))
def test_any_bytes_are_answered_by_every_reader(reader: int, noise: bytes) -> None:
    read_input(bytes([reader]) + noise)


@EXAMPLES
@given(st.dictionaries(st.sampled_from([*CHECKPOINT.config, "layer_types", "quantization", "text_config"]), VALUES))
def test_config_with_any_values_is_read_or_refused(changes: dict[str, object]) -> None:
    read_input(b"\3" + json.dumps(CHECKPOINT.config | changes).encode())


@EXAMPLES
@given(st.sampled_from(["dtype", "shape", "data_offsets", "more"]), VALUES)
def test_directory_with_any_values_is_read_or_refused(key: str, value: object) -> None:
    entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} | {key: value}
    text = json.dumps({"a": entry}).encode()
    read_input(b"\2" + len(text).to_bytes(8, "little") + text)
