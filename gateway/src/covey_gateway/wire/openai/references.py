"""References in JSON schemas that would hang or end an engine, told without following each way.

llama.cpp makes a grammar of a schema: it copies the schema once for each different `$ref`, goes down into each by
recursion, and then follows every way on which one rule begins with another. Forty definitions that each name the next
one twice, in three thousand bytes, hold the one loop that decodes for all clients for ever; a chain of thousands ends
the process by its stack; of those that lead nowhere each error has the whole schema in it. Pure.
"""

from typing import Any, cast
from urllib.parse import unquote

# Tools of a large agent have a few hundred, over all of them.
MAX_REFERENCES = 1024
# Schemas of people are about ten deep.
MAX_DEPTH = 128
# 2^16 ways take a tenth of a second.
MAX_WAYS = 2**16
# What begins as one of its parts does: of these every way is followed.
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_Objects = list[dict[str, Any]]


class _Wild(Exception):
    """In words."""


class _References:
    """Each value of the schema is looked at once, however many ways lead to it."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._depths: dict[int, int] = {}
        self._ways: dict[int, int] = {}
        self._open: set[int] = set()
        self._beginning: set[int] = set()

    def weigh(self, value: Any, around: _Objects) -> int:
        """How deep it is, with all that it refers to. `around`: what it is in, the outermost first."""
        if len(self._open) > MAX_DEPTH:
            raise _Wild(f"a schema must be nested at most {MAX_DEPTH} deep, with what its `$ref`s lead to")
        if not isinstance(value, dict | list):
            return 0
        key = id(cast("object", value))
        if key in self._depths or key in self._open:  # or it contains itself
            return self._depths.get(key, 0)
        self._open.add(key)
        if isinstance(value, list):
            deepest = max((self.weigh(each, around) for each in cast("list[Any]", value)), default=0)
        else:
            fields = cast("dict[str, Any]", value)
            inner = [*around, fields]
            deepest = max((self.weigh(each, inner) for each in fields.values()), default=0)
            if (found := self._follow(fields, inner)) is not None:
                deepest = max(deepest, self.weigh(found[0], found[1]))
            self._count_ways(fields, inner)
        self._open.remove(key)
        self._depths[key] = deepest + 1
        if deepest + 1 > MAX_DEPTH:
            raise _Wild(f"a schema must be nested at most {MAX_DEPTH} deep, with what its `$ref`s lead to")
        return deepest + 1

    def _count_ways(self, fields: dict[str, Any], around: _Objects) -> int:
        """On how many ways a rule can be reached from its beginning."""
        key = id(fields)
        if key in self._ways:
            return self._ways[key]
        if key in self._beginning:
            raise _Wild("a `$ref` must not lead back to where it begins, with nothing before it")
        if len(self._beginning) > MAX_DEPTH:
            raise _Wild(f"`$ref`s must lead to one another at most {MAX_DEPTH} times")
        self._beginning.add(key)
        ways = 1
        for name in _ALTERNATIVES:
            parts = fields.get(name)
            for part in cast("list[Any]", parts) if isinstance(parts, list) else ():
                if isinstance(part, dict):
                    ways += self._count_ways(cast("dict[str, Any]", part), [*around, cast("dict[str, Any]", part)])
        found = self._follow(fields, around)
        if found is not None and isinstance(found[0], dict):
            target = cast("dict[str, Any]", found[0])
            ways += self._count_ways(target, [*found[1], target])
        self._beginning.remove(key)
        if ways > MAX_WAYS:
            raise _Wild(f"`$ref`s must lead to at most {MAX_WAYS} alternatives; write what they lead to fewer times")
        self._ways[key] = ways
        return ways

    def _follow(self, fields: dict[str, Any], around: _Objects) -> tuple[Any, _Objects] | None:
        """Where its `$ref` leads, with what that is in; None without one, or with one to elsewhere."""
        reference = fields.get("$ref")
        if not isinstance(reference, str):
            return None
        self.seen.add(reference)
        if len(self.seen) > MAX_REFERENCES:
            raise _Wild(f"a schema must have at most {MAX_REFERENCES} different `$ref`s")
        if not reference.startswith("#/"):
            return None
        for index, root in enumerate(around):
            if (found := _find(root, reference[2:])) is not None:
                return found, around[: index + 1]
        raise _Wild(f"`$ref` must lead to a part of its schema; '{reference[:64]}' leads nowhere")


def find_wild_reference(schema: Any) -> str | None:
    """Why a `$ref` somewhere in this value can't be taken; None when all can."""
    try:
        _References().weigh(schema, [])
    except _Wild as wild:
        return str(wild)
    return None


def _find(root: dict[str, Any], pointer: str) -> Any:
    value: Any = root
    for part in pointer.split("/"):
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = cast("dict[str, Any]", value).get(name)
        elif isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 8:
            items = cast("list[Any]", value)
            value = items[int(name)] if int(name) < len(items) else None
        else:
            return None
    return value
