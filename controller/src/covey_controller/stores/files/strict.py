"""A document against the CRD of its kind, as the API server takes it with `fieldValidation=Strict`.

Order, as there: nulls dropped and defaults filled in, then the schema with unknown fields refused, then the CEL rules,
also where a pattern or a bound of a number didn't hold, but not where a type, a length or a choice didn't. Entries of a
list with keys that are there twice are told whatever else is wrong. Rejected:
pydantic's own errors, whose words and paths no API server speaks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, cast

from covey_api.kinds import Kind
from covey_api.schema import JsonSchema, render_schema
from jsonschema import Draft202012Validator, ValidationError

from covey_controller.stores.files.cel_rules import find_broken_rules
from covey_controller.stores.files.list_keys import find_repeated
from covey_controller.stores.files.metadata import (
    MAX_ANNOTATION_BYTES,
    count_annotation_bytes,
    render_metadata_schema,
)
from covey_controller.stores.files.problems import END, Problem, render_problems

# Keywords after which the API server still evaluates rules; after all others a rule might meet what it can't read.
_RULES_HOLD_STILL = frozenset({"pattern", "minimum", "maximum", "minLength", "minItems"})


class _Validator(Protocol):
    def iter_errors(self, instance: Any) -> Iterable[ValidationError]: ...


@dataclass(frozen=True, slots=True)
class _Checker:
    schema: JsonSchema
    validator: _Validator
    ruled: JsonSchema
    """What rules speak of: everything but status."""


def check_document(document: dict[str, Any], kind: type[Kind]) -> tuple[dict[str, Any], tuple[Problem, ...]]:
    """The document with defaults filled in, and everything that is wrong with it."""
    checker = _make_checker(kind)
    filled: dict[str, Any] = fill_defaults(document, checker.schema)
    errors = [*checker.validator.iter_errors(filled)]
    oversize = tuple(_find_oversize(filled))
    problems = (*_find_problems(errors), *oversize, *find_repeated(filled, checker.schema))
    is_shaped = not oversize and all(map(_lets_rules_run, errors))
    return filled, (*problems, *(find_broken_rules(filled, checker.ruled) if is_shaped else ()))


def find_misfits(document: Any, schema: JsonSchema) -> tuple[Problem, ...]:
    """What is wrong with a document that is of no kind, in the same words. `schema`: structural."""
    return tuple(_find_problems(_make_validator(schema).iter_errors(document)))


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


def _find_problems(errors: Iterable[ValidationError]) -> Iterator[Problem]:
    seen: set[Problem] = set()
    for error in errors:
        if error.validator == "enum" and not isinstance(error.instance, str):
            continue  # a value of the wrong type is one problem, not also a wrong choice
        for problem in render_problems(error):
            if problem not in seen:
                seen.add(problem)
                yield problem


def _lets_rules_run(error: ValidationError) -> bool:
    """Would the API server still evaluate rules? What metadata holds, but for types, is to it a matter of form."""
    path = [*error.absolute_path]
    is_form = len(path) > 1 and path[0] == "metadata" and path[1] != "name"
    return error.validator in _RULES_HOLD_STILL or (
        is_form and (error.validator in ("maxLength", "required") or error.instance is None)
    )


def _find_oversize(document: dict[str, Any]) -> Iterator[Problem]:
    count = count_annotation_bytes(document)
    if count > MAX_ANNOTATION_BYTES:
        message = f"`metadata.annotations` must be at most {MAX_ANNOTATION_BYTES} bytes together; got {count} bytes"
        yield Problem(("metadata", "annotations"), f"{count} bytes", message)


@cache  # one entry per kind
def _make_checker(kind: type[Kind]) -> _Checker:
    schema = render_schema(kind)
    properties: dict[str, JsonSchema] = schema["properties"]
    metadata = render_metadata_schema(properties["metadata"]["properties"]["name"], namespaced=kind.NAMESPACED)
    # The values of a document's status are not looked at, for status is the controller's; its fields must exist.
    checked = properties | {"metadata": metadata, "status": _keep_fields(properties["status"])}
    ruled = {name: child for name, child in properties.items() if name != "status"}
    whole: JsonSchema = schema | {"properties": checked}
    return _Checker(whole, _make_validator(whole), schema | {"properties": ruled})


def _make_validator(schema: JsonSchema) -> _Validator:
    return Draft202012Validator(_make_strict(schema))


def _keep_fields(schema: JsonSchema) -> JsonSchema:
    """Which fields there are, and nothing of what they must be."""
    kept: JsonSchema = {}
    if "properties" in schema:
        kept["properties"] = {name: _keep_fields(child) for name, child in schema["properties"].items()}
    if "items" in schema:
        kept["items"] = _keep_fields(schema["items"])
    return kept


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
