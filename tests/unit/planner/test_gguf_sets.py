"""Models over several files: one geometry, and every way in which a set can be incomplete."""

import pytest
from covey_planner.geometry.gguf import (
    GgufHeader,
    HeaderInvalid,
    parse_gguf_geometry,
    parse_gguf_header,
    parse_gguf_set,
)
from covey_planner.geometry.shards import list_shards
from hypothesis import given
from hypothesis import strategies as st
from kit.gguf import GgufFile, Shape, Typed, build_model, build_set, i32

SHAPE = Shape(layers=6)


def split(count: int, **first: Typed) -> list[GgufFile]:
    return build_set(SHAPE, count, **first)


def headers(files: list[GgufFile]) -> list[GgufHeader]:
    return [parse_gguf_header(file.header, file.file_bytes) for file in files]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_set_has_the_geometry_of_the_whole(count: int) -> None:
    whole = build_model(SHAPE)
    assert parse_gguf_set(headers(split(count))) == parse_gguf_geometry(whole.header, whole.file_bytes)


def test_missing_file_is_counted() -> None:
    found = headers(split(3))
    with pytest.raises(HeaderInvalid, match=r"`split.count` says that the model has 3 files; got 2 of them"):
        parse_gguf_set(found[:2])
    first = split(3)[0]
    with pytest.raises(HeaderInvalid, match=r"`split.count` says that the model has 3 files; got 1 of them"):
        parse_gguf_geometry(first.header, first.file_bytes)


def test_wrong_order_and_strange_files_are_named() -> None:
    first, second, third = headers(split(3))
    with pytest.raises(HeaderInvalid, match=r"file 2 must say `split.no` 1 and `split.count` 3; got `split.no` 2 and"):
        parse_gguf_set([first, third, second])
    with pytest.raises(HeaderInvalid, match=r"file 2 must say `split.no` 1 .* got `split.no` 0 and `split.count` 1"):
        parse_gguf_set([first, headers([build_model(SHAPE)])[0], third])


def test_number_of_tensors_must_be_that_of_all_files() -> None:
    with pytest.raises(HeaderInvalid, match=r"`split.tensors.count` must be the number of all tensors, \d+; got 5"):
        parse_gguf_set(headers(split(2, **{"split.tensors.count": i32(5)})))


def test_cut_off_file_of_a_set_is_refused() -> None:
    last = split(3)[2]
    with pytest.raises(HeaderInvalid, match="cut off"):
        parse_gguf_header(last.header, last.file_bytes - 1)


def test_names_of_a_set_come_from_any_of_them() -> None:
    expected = ("m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf")
    assert list_shards("m-00002-of-00003.gguf") == expected
    assert list_shards("m.gguf") == ("m.gguf",)
    assert list_shards("m-1-of-3.gguf") == ("m-1-of-3.gguf",)


@pytest.mark.parametrize("name", ["m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-00001-of-99999.gguf"])
def test_impossible_number_in_a_name_is_refused(name: str) -> None:
    with pytest.raises(HeaderInvalid, match="must be one of 1 to 1024 files and number 1 to their count"):
        list_shards(name)


@given(st.text(max_size=40))
def test_any_name_is_part_of_its_own_set_or_refused(name: str) -> None:
    assert name in list_shards(name)
