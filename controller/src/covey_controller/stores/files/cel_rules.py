"""Runs the CRD's own CEL rules, as the API server does: at creation, and those that compare (`oldSelf`) at changes.

The library's `size(text)` counts bytes where Kubernetes counts characters, and can't be replaced under its own
name; rules are compiled with `length` in its place, which is Python's.
"""

import importlib.machinery
import importlib.util
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Protocol, cast

from covey_api.meta import Message
from covey_api.schema import RULES, JsonSchema

from covey_controller.stores.files.problems import Problem, render_broken_rule
from covey_controller.stores.files.yaml_events import Path

_TRANSITION = re.compile(r"\boldSelf\b")
_SIZE = re.compile(r"(?<![.\w])size\(")


class _Program(Protocol):
    def execute(self, context: object) -> object: ...


class _Context(Protocol):
    def add_function(self, name: str, function: Callable[[Any], object]) -> None: ...

    def add_variable(self, name: str, value: object) -> None: ...


class _CelModule(Protocol):
    # The library's own name.
    Context: Callable[[], _Context]

    def compile(self, expression: str) -> _Program: ...


def find_broken_rules(value: Any, schema: JsonSchema, path: Path = ()) -> Iterator[Problem]:
    """Every rule of the schema that a valid value breaks, with the rule's own message."""
    rules: list[dict[str, str]] = schema.get(RULES, [])
    for rule in rules:
        if not _TRANSITION.search(rule["rule"]) and not _is_kept(rule["rule"], value):
            yield render_broken_rule(path, value, rule["message"])
    if "properties" in schema:
        properties: dict[str, JsonSchema] = schema["properties"]
        for name, child in properties.items():
            if name in value:
                yield from find_broken_rules(value[name], child, (*path, name))
    if "additionalProperties" in schema:
        for name, entry in value.items():
            yield from find_broken_rules(entry, schema["additionalProperties"], (*path, name))
    if "items" in schema:
        for index, entry in enumerate(value):
            yield from find_broken_rules(entry, schema["items"], (*path, index))


def find_broken_transitions(before: Message, after: Message) -> tuple[str, ...]:
    """Messages of a type's own rules that a change of a value breaks; only Instances have such rules."""
    schema = cast("JsonSchema", type(after).model_config.get("json_schema_extra") or {})
    rules: list[dict[str, str]] = schema.get(RULES, [])
    old, new = before.to_wire(), after.to_wire()
    return tuple(
        rule["message"] for rule in rules if _TRANSITION.search(rule["rule"]) and not _is_kept(rule["rule"], new, old)
    )


def _is_kept(rule: str, value: Any, old: Any = None) -> bool:
    context = _load_cel().Context()
    context.add_function("length", len)
    context.add_variable("self", value)
    context.add_variable("oldSelf", old)
    try:
        return compile_rule(rule).execute(context) is True
    except (KeyError, TypeError, RuntimeError, ValueError):
        return False  # the API server, too, refuses what a rule can't be evaluated on


@cache  # as many entries as there are rules in the CRDs
def compile_rule(rule: str) -> _Program:
    """The compiled rule. ValueError if it is no CEL."""
    return _load_cel().compile(_SIZE.sub("length(", rule))


@cache
def _load_cel() -> _CelModule:
    """The library's extension module without its package, whose `__init__` imports a command line (30 MB, 0.5 s)."""
    package = importlib.util.find_spec("cel")
    locations = package.submodule_search_locations if package else None
    spec = importlib.machinery.PathFinder.find_spec("cel.cel", locations)
    if spec is None or spec.loader is None:
        raise ImportError("common-expression-language must be installed; `uv sync` installs it")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast("_CelModule", module)
