"""What each of the two doors says to a document: the API server's, and files mode's.

Both answers become one shape, so that they compare: accepted or not, at which fields, with which words of rules. What
is rewritten here is spelling only; a difference in meaning stays one.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any, cast

import httpx
from covey_api.kinds import Kind
from covey_api.meta import DEFAULT_NAMESPACE
from covey_api.schema import RULES, JsonSchema, render_schema
from covey_controller.ports import InvalidSet
from covey_controller.stores.files.documents import parse_documents
from covey_controller.stores.files.problems import render_field, render_path
from covey_controller.stores.files.strict import check_document
from covey_controller.stores.files.yaml_positions import parse_yaml

API_PATH = "/apis/covey.dev/v1alpha1"
# The API server says beside real errors that rules were skipped; it is no error of its own.
_SKIPPED = "<nil>"
# The scale subresource stumbles over what the schema has refused already.
_ACCESSOR = "accessor error"
_UNKNOWN = re.compile(r'unknown field "((?:[^"\\]|\\.)*)"')
_DECODING = re.compile(r"of type v1\.(ObjectMeta)|field (ObjectMeta(?:\.[A-Za-z0-9]+)+) of type|parsing time")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One door's answer."""

    accepted: bool
    fields: frozenset[str] = frozenset()
    rules: frozenset[str] = frozenset()
    """Messages of the rules that were broken."""
    is_whole: bool = True
    """False: the door stops at the first kind of error, and there may be more."""
    text: str = ""


class ApiDoor:
    """Asks a real API server, with a dry run."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def ask(self, kind: type[Kind], document: Mapping[str, Any]) -> Verdict:
        answer = self._client.post(
            f"{API_PATH}{_namespace_path(kind, document)}/{kind.PLURAL}",
            params={"dryRun": "All", "fieldValidation": "Strict"},
            content=json.dumps(document),
            headers={"content-type": "application/json"},
        )
        if answer.status_code == HTTPStatus.CREATED:
            return Verdict(True)
        status = answer.json()
        causes: list[dict[str, str]] = [
            cause for cause in status.get("details", {}).get("causes", []) if _ACCESSOR not in cause["message"]
        ]
        if answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY and causes:
            fields = frozenset(_spell(cause["field"]) for cause in causes if cause["field"] != _SKIPPED)
            messages = [cause["message"] for cause in causes]
            rules = frozenset(rule for rule in find_messages(kind) if any(rule in it for it in messages))
            return Verdict(False, fields, rules, text=status["message"])
        return Verdict(False, _decoding_fields(status["message"]), is_whole=False, text=status["message"])


def ask_files(kind: type[Kind], document: Mapping[str, Any]) -> Verdict:
    """Files mode's answer to the same bytes. An Instance is no document there; its schema is asked all the same."""
    data = json.dumps(document).encode()
    source = parse_yaml(data)
    if kind.__name__ == "Instance":
        if source.problems:
            found = [(render_path(problem.path), problem.message) for problem in source.problems]
        else:
            _, problems = check_document(source.documents[0].value, kind)
            found = [(render_field(problem.path), problem.message) for problem in problems]
    else:
        try:
            parse_documents({"f.json": data})
        except InvalidSet as invalid:
            found = [(error.field, error.message) for error in invalid.errors]
        else:
            found = []
    if not found:
        return Verdict(True)
    rules = frozenset(
        rule
        for rule in find_messages(kind)
        if any(rule in message for field, message in found if field.startswith("spec"))
    )
    text = "; ".join(message for _, message in found)
    return Verdict(False, frozenset(_spell(field) for field, _ in found), rules, not source.problems, text)


def find_difference(api: Verdict, files: Verdict) -> str:
    """In words, or nothing where both say the same."""
    if api.accepted != files.accepted:
        return f"the API server {_answer(api)}, files mode {_answer(files)}"
    missed: set[str] = set()
    if files.is_whole:  # a decoder names what is in a mapping where text must be, files mode the text's field
        missed |= {field for field in api.fields if not _is_covered(field, files.fields)}
    if api.is_whole:
        missed |= {field for field in files.fields if not _is_covered(field, api.fields)}
    if missed:
        return f"at other fields: the API server {_answer(api)}, files mode {_answer(files)}"
    if api.is_whole and files.is_whole and api.rules != files.rules:
        return f"with other rules: the API server {_answer(api)}, files mode {_answer(files)}"
    return ""


def _is_covered(field: str, others: frozenset[str]) -> bool:
    return field in others or any(field.startswith((f"{above}.", f"{above}[")) for above in others)


@cache  # one entry per kind
def find_messages(kind: type[Kind]) -> frozenset[str]:
    """Every rule's message."""
    return frozenset(_messages_below(render_schema(kind)))


def _messages_below(node: JsonSchema) -> list[str]:
    below = [*node.get("properties", {}).values(), node.get("items"), node.get("additionalProperties")]
    found: list[str] = [rule["message"] for rule in node.get(RULES, [])]
    return found + [message for child in below if child for message in _messages_below(child)]


def _namespace_path(kind: type[Kind], document: Mapping[str, Any]) -> str:
    """The namespace that kubectl would name in its URL."""
    metadata: Any = document.get("metadata")
    given: Any = cast("dict[str, Any]", metadata).get("namespace") if isinstance(metadata, dict) else None
    namespace = given if isinstance(given, str) and given else DEFAULT_NAMESPACE
    return f"/namespaces/{namespace}" if kind.NAMESPACED else ""


def _decoding_fields(message: str) -> frozenset[str]:
    """The fields in the words of the decoder, which has no list of them."""
    fields = {_spell(json.loads(f'"{name}"')) for name in _UNKNOWN.findall(message)}
    for whole, field in _DECODING.findall(message):
        if whole or field:
            fields.add((field or whole).replace("ObjectMeta", "metadata"))
    return frozenset(fields)


def _spell(field: str) -> str:
    """`spec[é]` and `spec.é` alike; no dot in front; owners as one, for the API server gives them no index."""
    dotted = re.sub(r"\[([^\[\]]*)\]", lambda it: it[0] if it[1].isdigit() else f".{it[1]}", field).removeprefix(".")
    return re.sub(r"^(metadata\.ownerReferences)\..*", r"\1", dotted)


def _answer(verdict: Verdict) -> str:
    if verdict.accepted:
        return "accepts it"
    return f"refuses it at {sorted(verdict.fields)} ({verdict.text[:300]})"
