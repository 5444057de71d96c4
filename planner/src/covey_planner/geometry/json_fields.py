"""Typed, bounded access to a JSON document that nobody vouches for; what is wrong is named by its path.

Python's own parser is used: it runs in time linear in the text, the text is bounded by the caller, and what it raises
on hostile input (too deep, too long a number, no UTF-8) is one refusal here.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from covey_planner.geometry.reader import HeaderInvalid

# Longest text of a document that is quoted in a refusal.
_MAX_QUOTE = 40


def parse_object(text: bytes, name: str, max_bytes: int) -> "Fields":
    """The document, which must be an object of at most `max_bytes`."""
    if len(text) > max_bytes:
        raise HeaderInvalid(f"{name} must be at most {max_bytes} bytes long; got {len(text)}")
    try:
        found: object = json.loads(text)
    except json.JSONDecodeError as error:
        raise HeaderInvalid(f"{name} must be JSON; {error.msg} at byte {error.pos}") from None
    except (ValueError, RecursionError) as error:  # no UTF-8, a number of thousands of digits, brackets without end
        raise HeaderInvalid(f"{name} must be JSON; {type(error).__name__} while it was read") from None
    if not isinstance(found, dict):
        raise HeaderInvalid(f"{name} must be a JSON object; got {_describe(found)}")
    return Fields(cast("Mapping[str, object]", found), "")


class Fields:
    """The fields of one object; `path` is where it lies in its document."""

    __slots__ = ("_values", "path")

    def __init__(self, values: Mapping[str, object], path: str) -> None:
        self._values = values
        self.path = path

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def under(self, key: str) -> "Fields":
        """The object under `key`; empty where it is absent or null."""
        value = self._values.get(key)
        if value is None:
            return Fields({}, f"{self.path}{key}.")
        if not isinstance(value, dict):
            raise self.wrong(key, "an object", value)
        return Fields(cast("Mapping[str, object]", value), f"{self.path}{key}.")

    def child(self, key: str) -> "Fields | None":
        """The object under `key`; None where there is something else, or nothing."""
        value = self._values.get(key)
        is_object = isinstance(value, dict)
        return Fields(cast("Mapping[str, object]", value), f"{self.path}{key}.") if is_object else None

    def text(self, key: str, default: str | None = None) -> str:
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, "a text", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """An integer within `low` and `high`; `default` where it is absent or null, else it is required."""
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(key, f"an integer between {low} and {high}", value)
        return value

    def with_defaults(self, defaults: Mapping[str, object]) -> "Fields":
        """The same, with these where nothing is said."""
        said = {key: value for key, value in self._values.items() if value is not None}
        return Fields({**self._values, **{key: each for key, each in defaults.items() if key not in said}}, self.path)

    def largest(self, keys: tuple[str, ...], low: int, high: int, default: int) -> int:
        """Of the first of `keys` that is there: an integer, or the largest of a list of one per layer."""
        key = next((each for each in keys if each in self), "")
        entries = self._list(key)
        if entries:
            return max(Fields({key: entry}, self.path).integer(key, low, high) for entry in entries)
        return self.integer(key, low, high) if key else default

    def first_integer(self, keys: tuple[str, ...], low: int, high: int, default: int | None = None) -> int:
        """Of the first of `keys` that is there: families call the same thing by several names."""
        for key in keys:
            if key in self:
                return self.integer(key, low, high)
        return self.integer(keys[0], low, high, default)

    def per_layer(self, key: str, layers: int, low: int, high: int, default: int) -> tuple[int, ...]:
        """One integer per layer, from a list or from one number for all."""
        entries = self._list(key)
        if entries is None:
            return (self.integer(key, low, high, default),) * layers
        if len(entries) != layers:
            raise self.wrong(key, f"a list of one entry per layer ({layers})", entries)
        return tuple(Fields({key: entry}, self.path).integer(key, low, high) for entry in entries)

    def texts(self, key: str, most: int) -> tuple[str, ...]:
        """Texts of a list; none where it is absent."""
        if self._values.get(key) is None:
            return ()
        entries = self._list(key)
        if entries is None or len(entries) > most or not all(isinstance(each, str) for each in entries):
            raise self.wrong(key, f"a list of at most {most} texts", self._values[key])
        return tuple(str(each) for each in entries)

    def integers(self, key: str, most: int, high: int) -> tuple[int, ...]:
        """Integers of a list, each from 0 to `high`."""
        entries = self._list(key)
        if entries is None or len(entries) > most:
            raise self.wrong(key, f"a list of at most {most} integers", self._values.get(key))
        return tuple(Fields({key: entry}, self.path).integer(key, 0, high) for entry in entries)

    def _list(self, key: str) -> list[object] | None:
        value = self._values.get(key)
        return cast("list[object]", value) if isinstance(value, list) else None

    def wrong(self, key: str, wanted: str, value: object) -> HeaderInvalid:
        return HeaderInvalid(f"`{self.path}{key}` must be {wanted}; got {_describe(value)}")


def _describe(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value) if abs(value) < 1 << 64 else "a number beyond 64 bits"
        case str():
            return f"'{value[:_MAX_QUOTE]}'" if value.isprintable() else "a text"
        case list():
            return f"a list of {len(cast('list[object]', value))}"
        case _:
            return "an object"
