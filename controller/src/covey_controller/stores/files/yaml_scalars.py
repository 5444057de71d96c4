"""What one YAML scalar means, as the YAML-to-JSON conversion of kubectl takes it.

Owns the resolution of plain scalars: YAML 1.1 booleans and number forms, dates that stay strings, no sexagesimals. A
document must mean the same in both modes, and PyYAML's own resolver differs in just these points.
"""

import math
import re
from typing import TypeAlias

JsonScalar: TypeAlias = str | int | float | bool | None

_TAG_PREFIX = "tag:yaml.org,2002:"
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
}
_NOT_FINITE = frozenset(
    sign + word
    for sign, words in (
        ("", (".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF")),
        ("+", (".inf", ".Inf", ".INF")),
        ("-", (".inf", ".Inf", ".INF")),
    )
    for word in words
)
_INTEGER = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_INT64 = range(-(2**63), 2**63)
# 64 binary digits, a sign and a prefix; longer numerals can't fit 64 bits and would cost time to convert.
_MAX_NUMERAL_LENGTH = 70


def parse_scalar(text: str, tag: str | None, *, plain: bool) -> JsonScalar:
    """The JSON value of a scalar. ValueError says what must hold."""
    if tag in (None, "!"):
        return parse_plain(text) if plain else text
    if tag == f"{_TAG_PREFIX}str":
        return text
    kinds = {"int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),)}
    shown = tag.replace(_TAG_PREFIX, "!!")
    wanted = kinds.get(shown.removeprefix("!!"))
    if wanted is None:
        raise ValueError(f"tag must be one of '!!str', '!!int', '!!float', '!!bool', '!!null'; got '{shown}'")
    value = parse_plain(text)
    if type(value) not in wanted:
        raise ValueError(f"value must be what its tag '{shown}' says; got '{text}'")
    return value


def parse_plain(text: str) -> JsonScalar:
    """The JSON value of an untagged, unquoted scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if text in _NOT_FINITE:
        raise ValueError(f"number must be finite; got '{text}'")
    if text[0] not in "+-.0123456789":
        return text
    numeral = text.replace("_", "")
    if _INTEGER.fullmatch(numeral):
        return _parse_integer(numeral)
    if _FLOAT.fullmatch(numeral):
        return _parse_float(numeral)
    return text


def _parse_integer(numeral: str) -> int:
    digits = numeral.lstrip("+-").lower()
    if len(digits) <= _MAX_NUMERAL_LENGTH:
        base = {"0x": 16, "0b": 2, "0o": 8}.get(digits[:2], 8 if digits[0] == "0" else 10)
        value = int(digits, base) * (-1 if numeral[0] == "-" else 1)
        if value in _INT64:
            return value
    raise ValueError(f"number must fit 64 bits; got {numeral[:24]}{'…' if len(numeral) > 24 else ''}")


def _parse_float(numeral: str) -> JsonScalar:
    value = float(numeral)
    if math.isinf(value):
        return numeral
    if not value.is_integer():
        return value
    # JSON knows one kind of number: `2.0` is the integer 2.
    if int(value) in _INT64:
        return int(value)
    raise ValueError(f"number must fit 64 bits; got {numeral[:24]}{'…' if len(numeral) > 24 else ''}")
