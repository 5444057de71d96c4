"""Which file of a signed folder a model's file is."""

import pytest
from covey_agent.trust.verify import Refused, compare, list_signed

A, B = "a" * 64, "b" * 64


def signed(**files: str) -> dict[str, set[str]]:
    subjects = [{"name": name, "digest": {"sha256": digest}} for name, digest in files.items()]
    return list_signed({"predicateType": "https://slsa.dev/provenance/v1", "subject": subjects})


def test_a_file_is_that_of_its_path_and_no_other_of_its_name() -> None:
    listed = signed(**{"Q4/m.gguf": A, "./Q8/m.gguf": B})
    compare({"Q4/m.gguf": A}, listed)
    compare({"Q8/m.gguf": B}, listed)
    with pytest.raises(Refused, match=f"'Q4/m.gguf' must have sha256 {A} as signed; it has {B}"):
        compare({"Q4/m.gguf": B}, listed)
    for digest in (A, B):
        with pytest.raises(Refused, match=r"several of that name: 'Q4/m\.gguf', 'Q8/m\.gguf'"):
            compare({"m.gguf": digest}, listed)


def test_a_name_does_where_it_stands_for_one_file() -> None:
    compare({"Q4/m.gguf": A}, signed(**{"m.gguf": A, "config.json": B}))
    compare({"m.gguf": A}, signed(**{"Q4/m.gguf": A, "config.json": B}))
    compare({"config.json": A}, signed(**{"config.json": A, "onnx/config.json": B}))
    compare({"m.gguf": A}, signed(**{"Q4/m.gguf": A, "copy/m.gguf": A}))
    compare({"Q4/m.gguf": A}, signed(**{".": A}))
    with pytest.raises(Refused, match="no such file"):
        compare({"m.gguf": A, "config.json": B}, signed(**{".": A}))
