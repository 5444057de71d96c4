"""A document against the CRD of its kind, as the API server takes it with `fieldValidation=Strict`.

Order, as there: nulls dropped and defaults filled in, then the schema with unknown fields refused, then the CEL rules
if the schema held. Rejected: pydantic's own errors, whose words and paths no API server speaks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, cast

from covey_api.kinds import Kind
from covey_api.schema import JsonSchema, render_schema
from jsonschema import Draft202012Validator, ValidationError

from covey_controller.stores.files.cel_rules import find_broken_rules
from covey_controller.stores.files.metadata import render_metadata_schema
from covey_controller.stores.files.problems import END, Problem, render_problems


class _Validator(Protocol):
    def iter_errors(self, instance: Any) -> Iterable[ValidationError]: ...


@dataclass(frozen=True, slots=True)
class _Checker:
    schema: JsonSchema
    validator: _Validator


def check_document(document: dict[str, Any], kind: type[Kind]) -> tuple[dict[str, Any], tuple[Problem, ...]]:
    """The document with defaults filled in, and everything that is wrong with it."""
    checker = _make_checker(kind)
    filled: dict[str, Any] = fill_defaults(document, checker.schema)
    problems = tuple(_find_problems(filled, checker.validator))
    return filled, problems or tuple(find_broken_rules(filled, checker.schema))


def fill_defaults(value: Any, schema: JsonSchema) -> Any:
    """A copy in which a null or missing field has its default; a null without one is left out, as not given."""
    if isinstance(value, list):
        return [fill_defaults(entry, schema.get("items", {})) for entry in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    properties: dict[str, JsonSchema] = schema.get("properties", {})
    others: JsonSchema | None = schema.get("additionalProperties")
    filled: dict[str, Any] = {}
    for name, field in fields.items():
        below = properties.get(name, others)
        if field is not None or below is None:
            filled[name] = field if below is None else fill_defaults(field, below)
    for name, below in properties.items():
        if name not in filled and "default" in below:
            filled[name] = fill_defaults(below["default"], below)
    return filled


def _find_problems(document: dict[str, Any], validator: _Validator) -> Iterator[Problem]:
    seen: set[Problem] = set()
    for error in validator.iter_errors(document):
        if error.validator == "enum" and not isinstance(error.instance, str):
            continue  # a value of the wrong type is one problem, not also a wrong choice
        for problem in render_problems(error):
            if problem not in seen:
                seen.add(problem)
                yield problem


@cache  # one entry per kind
def _make_checker(kind: type[Kind]) -> _Checker:
    schema = render_schema(kind)
    properties: dict[str, JsonSchema] = schema["properties"]
    metadata = render_metadata_schema(properties["metadata"]["properties"]["name"])
    # What a document says of status is not looked at: status is the controller's.
    schema = schema | {
        "properties": properties | {"metadata": metadata, "status": {}},
        "required": ["metadata", *schema.get("required", [])],
    }
    return _Checker(schema, Draft202012Validator(_make_strict(schema)))


def _make_strict(schema: JsonSchema) -> JsonSchema:
    """The same schema with unknown fields refused, and with `$` at the end of a pattern as RE2 reads it."""
    strict = dict(schema)
    if strict.get("pattern", "").endswith("$"):
        strict["pattern"] = strict["pattern"].removesuffix("$") + END
    if "properties" in strict:
        strict["properties"] = {name: _make_strict(child) for name, child in strict["properties"].items()}
        strict["additionalProperties"] = False
    elif "additionalProperties" in strict:
        strict["additionalProperties"] = _make_strict(strict["additionalProperties"])
    for keyword in ("items", "propertyNames"):
        if keyword in strict:
            strict[keyword] = _make_strict(strict[keyword])
    return strict
