"""Quantities in documents, bytes inside, words for people."""

import pytest
from covey_api.units import format_bytes, parse_quantity
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("512", 512),
        ("1k", 1000),
        ("1Ki", 1024),
        ("16Gi", 16 * 2**30),
        ("1.5Gi", 3 * 2**29),
        ("0.001k", 1),
        ("0.999", 0),
        ("2P", 2 * 10**15),
    ],
)
def test_quantity_is_parsed_to_whole_bytes(text: str, count: int) -> None:
    assert parse_quantity(text) == count


@pytest.mark.parametrize(
    "text", ["", "Gi", "-1", "+1", "1.Gi", ".5", "1 Gi", "1gi", "1KI", "1e3", "1GiB", "1" * 16, "0.0005"]
)
def test_text_that_is_no_quantity_is_refused_with_what_must_hold(text: str) -> None:
    with pytest.raises(ValueError, match="quantity must be digits with an optional suffix"):
        parse_quantity(text)


@given(st.integers(0, 10**15 - 1), st.sampled_from(["", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi"]))
def test_whole_quantities_are_exact(number: int, suffix: str) -> None:
    base = 1024 if suffix.endswith("i") else 1000
    power = " kMGTP".index(suffix[:1].replace("K", "k") or " ")
    assert parse_quantity(f"{number}{suffix}") == number * base**power


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (791_674_880, "755.0 MiB"),
        (2**30 * 21 + 2**29, "21.5 GiB"),
        (2**50, "1024.0 TiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_bytes_are_written_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text
