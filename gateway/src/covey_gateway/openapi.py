"""The OpenAPI document of everything that this gateway answers, and a page of it that needs no other server.

Calls with bodies come from the lists by which their fields are taken (`wire/documented`), the others are here. What a
500 would be is left out: it is a bug.
"""

import html
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec

from covey_gateway.wire.documented import CALLS, Documented
from covey_gateway.wire.formats import Format, choose_format

_ANY: dict[str, Any] = {"type": "object"}
_TEXT = {"type": "string"}
_CODE = {"code": _TEXT, "param": {"type": ["string", "null"]}}

_ENVELOPES: Mapping[str, dict[str, Any]] = {
    "openai": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {"message": _TEXT, "type": _TEXT, **_CODE},
            }
        },
    },
    "anthropic": {
        "type": "object",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"message": _TEXT, "type": _TEXT, **_CODE},
            },
        },
    },
    "ollama": {"type": "object", "required": ["error", "code"], "properties": {"error": _TEXT, **_CODE}},
}
_STATUSES: Mapping[int, str] = {
    400: "the request is wrong, or doesn't fit the model or its window",
    401: "a key is needed, unknown or expired",
    403: "on loopback: not from this machine",
    404: "no such model or path",
    408: "the request came too slowly",
    410: "cancelled by its id",
    413: "the body is too long",
    429: "a limit of the key was hit, or the engine has no room; `retry-after`",
    431: "the head is too long",
    501: "no engine here does this",
    502: "the engine failed",
    503: "the model is on its way, unavailable, or full; `retry-after` where waiting helps",
    504: "a deadline of the Placement was missed; the message names it",
}
# Without a body and an engine.
_FEW = (400, 401, 403, 404, 408, 413, 431, 503)

_REQUEST_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"},
}
_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}

# Method, path, summary, parameters, statuses of success.
_COLD: tuple[tuple[str, str, str, tuple[dict[str, Any], ...], tuple[int, ...]], ...] = (
    ("get", "/v1/models", "The models that are declared", (), (200,)),
    ("get", "/v1/models/{name}", "One of them", (_NAME,), (200,)),
    ("post", "/v1/cancel/{id}", "End a request by its `x-request-id`", (_REQUEST_ID,), (200, 202)),
    ("get", "/healthz", "Whether this process runs", (), (200,)),
    ("get", "/readyz", "Whether it can serve", (), (200,)),
    ("get", "/openapi.json", "This document", (), (200,)),
    *(
        ("get", root + path, summary, (), (200,))
        for root in ("", "/ollama")
        for path, summary in (
            ("/api/tags", "Ollama's list of models"),
            ("/api/ps", "Ollama's list of those that are ready"),
            ("/api/version", "The version of Ollama's API that is spoken"),
        )
    ),
)

_FIGURES: dict[str, Any] = {
    "summary": "Figures, on loopback and without a key",
    "responses": {
        "200": {
            "description": "OpenMetrics to who asks for it",
            "content": {
                kind: {"schema": {"type": "string"}} for kind in ("text/plain", "application/openmetrics-text")
            },
        }
    },
}


@cache
def render_document() -> bytes:
    paths: dict[str, Any] = {path: {"post": _render_call(path, call)} for path, call in CALLS.items()}
    for method, path, summary, parameters, good in _COLD:
        responses: dict[str, Any] = {str(status): _answer(_ANY, summary) for status in good}
        operation: dict[str, Any] = {"summary": summary, "responses": responses | _errors(_format_of(path), _FEW)}
        if parameters:
            operation["parameters"] = list(parameters)
        paths.setdefault(path, {})[method] = operation
    paths["/metrics"] = {"get": _FIGURES | {"responses": _FIGURES["responses"] | _errors(_format_of("/metrics"), _FEW)}}
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Covey's gateway",
            "version": version("covey-gateway"),
            "description": "What SDKs of OpenAI, Anthropic and Ollama speak. Other fields are refused by name.",
        },
        "paths": paths,
        "components": {
            "schemas": {f"Error-{name}": schema for name, schema in _ENVELOPES.items()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(document)


def _format_of(path: str) -> Format:
    return choose_format(path.encode())


def _render_call(path: str, call: Documented) -> dict[str, Any]:
    form = _format_of(path)
    body = {
        "type": "object",
        "properties": call.properties,
        "required": list(call.required),
        "additionalProperties": False,
    }
    good = _answer(_ANY, call.summary)
    if call.streams:
        good["content"][form.stream_type.partition(b";")[0].decode()] = {}
    refused = "; ".join(f"`{name}`: {why}" for name, why in sorted(call.refused.items()))
    return {
        "summary": call.summary,
        "description": f"Refused by name: {refused}." if refused else "",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": good} | _errors(form, tuple(_STATUSES)),
    }


def _answer(schema: dict[str, Any], words: str) -> dict[str, Any]:
    return {"description": words, "content": {"application/json": {"schema": schema}}}


def _errors(form: Format, statuses: tuple[int, ...]) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/Error-{form.name}"}
    return {str(status): _answer(schema, _STATUSES[status]) for status in statuses}


@cache
def render_page() -> bytes:
    """All calls as plain HTML, without a script: it is read where nothing else may be reached."""
    document = msgspec.json.decode(render_document())
    rows: list[str] = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            fields = ", ".join(f"<code>{html.escape(name)}</code>" for name in _fields_of(operation))
            rows.append(
                f"<h2><code>{method.upper()} {html.escape(path)}</code></h2><p>{html.escape(operation['summary'])}</p>"
                + (f"<p>{fields}</p>" if fields else "")
                + f"<p><small>{html.escape(operation.get('description', ''))}</small></p>"
            )
    style = "body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}h2{font-size:1em}"
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Covey\'s gateway</title><style>{style}</style>'
    link = '<p>As a document for programs: <a href="openapi.json">openapi.json</a>.</p>'
    return f"{head}<h1>Covey's gateway</h1>{link}{''.join(rows)}</html>".encode()


def _fields_of(operation: Mapping[str, Any]) -> list[str]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return list(content.get("schema", {}).get("properties", {}))
