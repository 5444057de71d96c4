"""Documents as people write them, parsed whole or refused whole, with file and line of every error.

Owns what the API server does at its door with `fieldValidation=Strict`: which kinds there are, what metadata may say,
the kind's schema, defaults and rules. It reads no files: bytes come in, so that a folder, a commit and a request are
the same. Both modes must accept and refuse the same documents at the same field; what only this door refuses is what
Kubernetes keeps elsewhere (Secrets), or lets only the controller write (Instances).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from covey_api.kinds import Kind, ObjectKey
from covey_api.meta import API_VERSION, DEFAULT_NAMESPACE
from covey_api.registry import KINDS, WRITABLE_KINDS

from covey_controller.ports import InvalidSet, SourceError
from covey_controller.stores.files.age_keys import AgeKeys, CannotOpen
from covey_controller.stores.files.problems import Problem, quote_all, render_field, render_path, show, suggest
from covey_controller.stores.files.rest import SecretDocument
from covey_controller.stores.files.secret_documents import AGE_ENDING, is_secret, open_age_file, parse_secret
from covey_controller.stores.files.strict import check_document
from covey_controller.stores.files.yaml_positions import YamlFile, YamlNode, parse_yaml

# More errors than a person reads at a time help nobody; the next attempt shows the rest.
MAX_ERRORS = 50
_KIND_NAMES = tuple(name for name in KINDS if name in WRITABLE_KINDS)
# Metadata that people write; the rest is the server's.
_WRITTEN_METADATA = ("name", "namespace", "labels", "annotations")


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """One object of a set and where it is written."""

    key: ObjectKey
    object: Kind
    """With defaults filled in; without status and without metadata that the server owns."""
    raw: dict[str, Any]
    """As written."""
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class _Item:
    """One document, or one entry of a `List`, with its place."""

    file: str
    node: YamlNode


def parse_documents(files: Mapping[str, bytes]) -> tuple[ParsedDocument, ...]:
    """Every object in the files, in order of file name and line. InvalidSet has every error found, at most 50.

    Without keys, so every Secret is one of the errors.
    """
    return tuple(one for one in parse_with_secrets(files, None) if isinstance(one, ParsedDocument))


def parse_with_secrets(files: Mapping[str, bytes], keys: AgeKeys | None) -> tuple[ParsedDocument | SecretDocument, ...]:
    """As `parse_documents`, with the Secrets that these keys open."""
    errors: list[SourceError] = []
    parsed: dict[ObjectKey, ParsedDocument | SecretDocument] = {}
    for item in _read_items(files, keys, errors):
        document = _parse_item(item, keys, errors)
        if document is None:
            continue
        first = parsed.setdefault(document.key, document)
        if first is not document:
            errors.append(_refuse_twice(first, document))
    if errors:
        errors.sort(key=lambda error: (error.file, error.line))
        raise InvalidSet(tuple(errors[:MAX_ERRORS]))
    return tuple(parsed.values())


def parse_objects(text: str, name: str) -> tuple[Kind, ...]:
    """The objects of one text, with defaults, by the same rules. InvalidSet as above."""
    return tuple(document.object for document in parse_documents({name: text.encode()}))


def _read_items(files: Mapping[str, bytes], keys: AgeKeys | None, errors: list[SourceError]) -> Iterator[_Item]:
    """Documents in order, until there are enough errors to show."""
    for file in sorted(files):
        source = _read_file(file, files[file], keys, errors)
        for node in source.documents:
            for item in _expand(_Item(file, node)):
                if len(errors) >= MAX_ERRORS:
                    return
                yield item


def _read_file(file: str, content: bytes, keys: AgeKeys | None, errors: list[SourceError]) -> YamlFile:
    if not file.endswith(AGE_ENDING):
        source = parse_yaml(content)
        errors.extend(SourceError(file, it.line, render_path(it.path), it.found, it.message) for it in source.problems)
        return source
    try:
        source = parse_yaml(open_age_file(content, keys))
    except CannotOpen as error:
        errors.append(SourceError(file, 1, "", "", f"'{file}' can't be opened: {error}"))
        return YamlFile((), ())
    # What is wrong in it is told by its line alone: the words could hold what is secret.
    lines = dict.fromkeys(it.line for it in source.problems)
    errors.extend(SourceError(file, 1, "", "", f"line {line} in '{file}', decrypted, must be YAML") for line in lines)
    return source


def _expand(item: _Item) -> Iterator[_Item]:
    """The entries of a `v1` List, as kubectl takes them; any other document as it is."""
    fields = item.node.fields
    is_list = [fields[name].value for name in ("apiVersion", "kind") if name in fields] == ["v1", "List"]
    entries = fields.get("items")
    if not is_list or entries is None or not isinstance(entries.value, list):
        yield item
        return
    for entry in entries.entries:
        yield from _expand(_Item(item.file, entry))


def _parse_item(item: _Item, keys: AgeKeys | None, errors: list[SourceError]) -> ParsedDocument | SecretDocument | None:
    document: Any = item.node.value
    if is_secret(document, item.file):
        secret = parse_secret(document, keys, item.file, item.node.line)
        if isinstance(secret, SecretDocument):
            return secret
        errors.extend(_place(item, problem) for problem in secret)
        return None
    problem = _check_type(document)
    if problem:
        errors.append(_place(item, problem))
        return None
    kind = KINDS[document["kind"]]
    filled, problems = check_document(document, kind)
    if problems:
        errors.extend(_place(item, problem) for problem in problems)
        return None
    parsed = _make_object(filled, kind)
    return ParsedDocument(parsed.key, parsed, document, item.file, item.node.line)


def _place(item: _Item, problem: Problem) -> SourceError:
    line = item.node.line_of(problem.path, key=problem.at_key)
    return SourceError(item.file, line, render_field(problem.path), problem.found, problem.message)


def _check_type(value: Any) -> Problem | None:
    """Is it an object of a kind that people may write?

    1. No mapping: not an object at all.
    2. `apiVersion` missing or unknown.
    3. An Instance: known, but the controller's.
    4. `kind` missing or unknown.
    """
    if not isinstance(value, dict):  # 1
        message = "a document must be a mapping with `apiVersion`, `kind` and `metadata`"
        return Problem((), show(value), f"{message}; got {show(value)}")
    document = cast("dict[str, Any]", value)
    api_version, kind = document.get("apiVersion"), document.get("kind")
    if api_version != API_VERSION:  # 2
        return _refuse_choice("apiVersion", api_version, (API_VERSION,))
    if kind == "Instance":  # 3
        message = "`kind` must not be 'Instance': the controller writes Instances. Write a Placement instead"
        return Problem(("kind",), "'Instance'", message)
    if kind not in _KIND_NAMES:  # 4
        return _refuse_choice("kind", kind, _KIND_NAMES)
    return None


def _refuse_choice(field: str, value: Any, choices: tuple[str, ...]) -> Problem:
    if value is None:
        return Problem((field,), "", f"`{field}` must be given: {quote_all(choices)}")
    hint = suggest(value, choices) if isinstance(value, str) else ""
    rule = f"must be one of {quote_all(choices)}" if len(choices) > 1 else f"must be {quote_all(choices)}"
    return Problem((field,), show(value), f"`{field}` {rule}; got {show(value)}{hint}")


def _make_object(document: dict[str, Any], kind: type[Kind]) -> Kind:
    metadata = {name: document["metadata"][name] for name in _WRITTEN_METADATA if name in document["metadata"]}
    metadata["namespace"] = (metadata.get("namespace") or DEFAULT_NAMESPACE) if kind.NAMESPACED else ""
    return kind.model_validate({**document, "metadata": metadata, "status": {}})


def _refuse_twice(first: ParsedDocument | SecretDocument, second: ParsedDocument | SecretDocument) -> SourceError:
    key = second.key
    name = f"{key.namespace}/{key.name}" if key.namespace else key.name
    message = (
        f"{key.kind} '{name}' must be given once; got it at {first.file}:{first.line} and {second.file}:{second.line}"
    )
    return SourceError(second.file, second.line, "metadata.name", f"'{key.name}'", message)
