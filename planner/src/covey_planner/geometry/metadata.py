"""The key-value part of a GGUF header: which values are kept, and typed access that names what is wrong.

Numbers and short arrays of numbers are kept, texts only where the geometry needs one; vocabularies, merges and chat
templates are stepped over.
"""

import struct
from dataclasses import dataclass

from covey_planner.geometry.reader import HeaderInvalid, Reader, at

# Real headers have under a hundred keys.
MAX_KEYS = 4096
# All texts in all arrays of one header, which bounds the time; the largest known one has 0.8 million with its merges.
MAX_ARRAY_TEXTS = 1 << 22
# Longest array that is kept: one number per layer. `Geometry` allows as many layers.
MAX_LAYERS = 4096
# Longest text value that is stepped over; chat templates reach some 100 KiB.
MAX_TEXT_BYTES = 4 * 1024 * 1024

_TEXT, _ARRAY = 8, 9
_BOOLEAN = 7
_LAYOUTS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_NAMES = {6: "a float", 7: "a bool", 8: "a text", 9: "an array", 12: "a float"}
_INTEGERS = frozenset({0, 1, 2, 3, 4, 5, 10, 11})
# Texts that are kept; every other one is stepped over.
_KEPT_TEXTS = frozenset({"general.architecture", "clip.projector_type"})

Number = int | float | bool


@dataclass(frozen=True, slots=True)
class Value:
    """One value as stored. `content` is None where it was stepped over; `count` is an array's length."""

    type: int
    offset: int
    content: Number | str | tuple[Number, ...] | None
    element_type: int = 0
    count: int = 0


class Metadata:
    """The values of one header, by key."""

    def __init__(self, values: dict[str, Value]) -> None:
        self._values = values

    def has_prefix(self, prefix: str) -> bool:
        return any(key.startswith(prefix) for key in self._values)

    def count_of(self, key: str) -> int | None:
        """Length of an array; None if the key is absent or no array."""
        value = self._values.get(key)
        return value.count if value is not None and value.type == _ARRAY else None

    def text(self, key: str) -> str:
        value = self._required(key)
        if not isinstance(value.content, str):
            raise HeaderInvalid(f"`{key}` must be a text; got {_describe(value)}{at(value.offset)}")
        return value.content

    def text_or(self, key: str, default: str) -> str:
        return self.text(key) if key in self._values else default

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """An integer within `low` and `high`; `default` where the key is absent, else it is required."""
        if default is not None and key not in self._values:
            return default
        value = self._required(key)
        if value.type not in _INTEGERS or not isinstance(value.content, int):
            raise HeaderInvalid(f"`{key}` must be an integer; got {_describe(value)}{at(value.offset)}")
        return _checked(key, value, value.content, low, high)

    def per_layer(self, key: str, layers: int, low: int, high: int) -> tuple[int, ...] | None:
        """One integer per layer, from an array or from one number for all; None where the key is absent."""
        value = self._values.get(key)
        if value is None:
            return None
        if value.type != _ARRAY:
            return (self.integer(key, low, high),) * layers
        if value.element_type not in _INTEGERS | {_BOOLEAN}:
            raise HeaderInvalid(f"`{key}` must be an array of integers; got {_describe(value)}{at(value.offset)}")
        if value.count != layers or not isinstance(value.content, tuple):
            raise HeaderInvalid(
                f"`{key}` must have one entry per layer ({layers}); got {value.count}{at(value.offset)}"
            )

        return tuple(_checked(key, value, int(entry), low, high) for entry in value.content)

    def is_array(self, key: str) -> bool:
        value = self._values.get(key)
        return value is not None and value.type == _ARRAY

    def _required(self, key: str) -> Value:
        value = self._values.get(key)
        if value is None:
            raise HeaderInvalid(f"`{key}` must be in the header; it is missing")
        return value


def parse_metadata(reader: Reader, count: int) -> Metadata:
    """The next `count` key-value pairs."""
    if count > MAX_KEYS:
        raise HeaderInvalid(f"the header must have at most {MAX_KEYS} keys; got {count}{at(reader.position)}")
    values: dict[str, Value] = {}
    texts_left = MAX_ARRAY_TEXTS
    for index in range(count):
        start = reader.position
        key = reader.text(f"key {index}")
        if key in values:
            raise HeaderInvalid(f"`{key}` must be given once; it is there twice{at(start)}")
        value = _parse_value(reader, key, texts_left)
        if value.element_type == _TEXT:
            texts_left -= value.count
        values[key] = value
    return Metadata(values)


def _parse_value(reader: Reader, key: str, texts_left: int) -> Value:
    field = f"`{key}`"
    start = reader.position
    number = reader.u32(field)
    if number == _ARRAY:
        return _parse_array(reader, key, texts_left)
    offset = reader.position
    if number == _TEXT:
        if key in _KEPT_TEXTS:
            return Value(number, offset, reader.text(field))
        length = reader.u64(field)
        if length > MAX_TEXT_BYTES:
            raise HeaderInvalid(f"{field} must be at most {MAX_TEXT_BYTES} bytes long; got {length}{at(offset)}")
        reader.skip(length, field)
        return Value(number, offset, None)
    layout = _LAYOUTS.get(number)
    if layout is None:
        raise HeaderInvalid(f"{field} must have a known value type (0 to 12); got type {number}{at(start)}")
    return Value(number, offset, reader.values(struct.Struct(f"<{layout}"), field)[0])


def _parse_array(reader: Reader, key: str, texts_left: int) -> Value:
    field = f"`{key}`"
    offset = reader.position
    element_type = reader.u32(field)
    count = reader.u64(field)
    if element_type == _TEXT:
        if count > texts_left:
            raise HeaderInvalid(
                f"{field} must not bring the header's texts above {MAX_ARRAY_TEXTS}; got {count}{at(offset)}"
            )
        reader.skip_texts(count, field)
        return Value(_ARRAY, offset, None, element_type, count)
    layout = _LAYOUTS.get(element_type)
    if layout is None:
        raise HeaderInvalid(f"{field} must be an array of numbers or texts; got type {element_type}{at(offset)}")
    if count > MAX_LAYERS:
        reader.skip_array(count, struct.calcsize(f"<{layout}"), field)
        return Value(_ARRAY, offset, None, element_type, count)
    content = reader.values(struct.Struct(f"<{count}{layout}"), field)
    return Value(_ARRAY, offset, content, element_type, count)


def _checked(key: str, value: Value, number: int, low: int, high: int) -> int:
    if not low <= number <= high:
        raise HeaderInvalid(f"`{key}` must be between {low} and {high}; got {number}{at(value.offset)}")
    return number


def _describe(value: Value) -> str:
    return _NAMES.get(value.type, "an integer")
