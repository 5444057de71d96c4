"""Scalars mean what kubectl's conversion to JSON makes of them; the values here are its own."""

import math
from typing import Any

import pytest
from covey_controller.stores.files.yaml_scalars import parse_plain, parse_scalar
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 8),
        ("0o17", 15),
        ("08", 8),
        ("0x1F", 31),
        ("0b11", 3),
        ("1_000", 1000),
        ("0_7", 7),
        ("-0x10", -16),
        ("+5", 5),
        ("1e3", 1000),
        ("1.0", 1),
        ("1.", 1),
        ("1.50", 1.5),
        (".5", 0.5),
        (".5_0", 0.5),
        ("09.5", 9.5),
        ("5e-1", 0.5),
        ("-0.0", 0),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("y", True),
        ("on", True),
        ("No", False),
        ("~", None),
        ("", None),
        ("null", None),
    ],
)
def test_plain_scalars_become_json_values(text: str, value: object) -> None:
    parsed = parse_plain(text)
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    "text",
    [
        "12:30:45",
        "2027-01-31",
        "2027-01-31T00:00:00Z",
        "1e400",
        "123abc",
        "-",
        "+",
        ".",
        "..5",
        "0x",
        "0b2",
        "0o8",
        "_1",
        "yEs",
        "nULL",
        "LlamaServer",
        "1.2.3",
        "=",
        "<<",
    ],
)
def test_dates_times_and_the_like_stay_text(text: str) -> None:
    assert parse_plain(text) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".nan", "number must be finite; got '.nan'"),
        ("-.inf", "number must be finite"),
        ("9223372036854775808", "number must fit 64 bits; got 9223372036854775808"),
        ("1e21", "number must fit 64 bits"),
        ("9" * 5000, "number must fit 64 bits; got 999999999999999999999999…"),
    ],
)
def test_numbers_that_json_or_64_bits_cannot_hold_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        parse_plain(text)


def test_quotes_make_text_of_anything() -> None:
    assert parse_scalar("1", None, plain=False) == "1"
    assert parse_scalar("yes", "!", plain=False) == "yes"


@pytest.mark.parametrize(
    ("text", "tag", "value"),
    [("5", "str", "5"), ("3", "int", 3), ("3", "float", 3), ("yes", "bool", True), ("~", "null", None)],
)
def test_standard_tags_are_kept(text: str, tag: str, value: Any) -> None:
    assert parse_scalar(text, f"tag:yaml.org,2002:{tag}", plain=False) == value


@pytest.mark.parametrize(
    ("text", "tag", "message"),
    [
        ("x", "tag:yaml.org,2002:int", "value must be what its tag '!!int' says; got 'x'"),
        ("1", "tag:yaml.org,2002:bool", "value must be what its tag '!!bool' says; got '1'"),
        ("x", "!foo", "tag must be one of '!!str'.*; got '!foo'"),
        ("x", "tag:yaml.org,2002:python/name:os.system", "tag must be one of"),
    ],
)
def test_other_tags_and_values_that_belie_their_tag_are_refused(text: str, tag: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_scalar(text, tag, plain=False)


@given(st.text(alphabet="0123456789abcdefxo+-._eE ~yn", max_size=12))
def test_a_plain_scalar_is_a_finite_json_value_or_refused_in_words(text: str) -> None:
    try:
        value = parse_plain(text)
    except ValueError as error:
        message = str(error)
    else:
        message = ""
        assert not isinstance(value, float) or math.isfinite(value)
        assert type(value) is not int or -(2**63) <= value < 2**63
    assert not message or "must" in message
