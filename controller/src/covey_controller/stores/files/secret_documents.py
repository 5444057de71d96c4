"""`v1/Secret` documents of a source: encrypted ones are opened, all others are refused.

Values live in memory, for as long as the set they came with is in force. They are in no row, log, event, error, `get`
or export: whatever prints a `SecretDocument` prints its name. Messages here name fields and never values.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from typing import Any, cast

from covey_api.kinds import ObjectKey
from covey_api.meta import DEFAULT_NAMESPACE

from covey_controller.stores.files.age_keys import KEY_FILE_VARIABLE, AgeKeys, CannotOpen
from covey_controller.stores.files.problems import Problem
from covey_controller.stores.files.rest import SecretDocument
from covey_controller.stores.files.sops import Path, is_sops_document, open_document

KIND = "Secret"
AGE_ENDING = ".age"
# As the API server bounds a Secret.
MAX_SECRET_BYTES = 1 << 20
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_FIELDS = frozenset({"apiVersion", "kind", "metadata", "type", "immutable", "data", "stringData"})
_METADATA = frozenset({"name", "namespace", "labels", "annotations", "creationTimestamp"})
_NEEDS_KEY = (
    "it is encrypted, and no age key was given: start with `--age-key-file FILE`, or name the file in the environment "
    f"variable {KEY_FILE_VARIABLE}"
)
PLAIN = (
    "`kind` must not be 'Secret': a secret must not be in the source in plain text. Remove the document, replace the "
    "secret if others could read it here, and encrypt its document: `sops encrypt --encrypted-regex "
    "'^(data|stringData)$'`, or age with the name 'NAME.yaml.age'"
)


def is_secret(value: Any, file: str) -> bool:
    """Whether a document is, or may hide, a Secret: SOPS can encrypt `kind` itself, age does."""
    if file.endswith(AGE_ENDING):
        return True
    document = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return document.get("kind") == KIND or is_sops_document(document)


def open_age_file(content: bytes, keys: AgeKeys | None) -> bytes:
    """CannotOpen if there is no key, or none that fits."""
    if keys is None:
        raise CannotOpen(_NEEDS_KEY)
    return keys.open(content)


def parse_secret(value: Any, keys: AgeKeys | None, file: str, line: int) -> SecretDocument | tuple[Problem, ...]:
    """A Secret with its values, or why it is refused. In an age file everything was encrypted."""
    if not isinstance(value, dict):
        return (_refuse("an encrypted document must be a mapping"),)
    document = cast("dict[str, Any]", value)
    if file.endswith(AGE_ENDING):
        raw = {"sha256": hashlib.sha256(repr(document).encode()).hexdigest()}
        return _check(document, None, raw, file, line)
    if not is_sops_document(document):
        return (Problem(("kind",), "'Secret'", PLAIN),)
    if keys is None:
        return (_refuse(_NEEDS_KEY),)
    try:
        plain, encrypted = open_document(document, keys)
    except CannotOpen as error:
        return (_refuse(str(error)),)
    return _check(plain, encrypted, document, file, line)


def _check(
    plain: dict[str, Any], encrypted: frozenset[Path] | None, raw: dict[str, Any], file: str, line: int
) -> SecretDocument | tuple[Problem, ...]:
    """`encrypted`: paths of the values that were; None: all were."""
    problems = tuple(_find_problems(plain, encrypted))
    if problems:
        return problems
    metadata = cast("dict[str, Any]", plain["metadata"])
    try:
        values = _decode(plain)
    except binascii.Error:
        return (_refuse("a value of `data` must be base64; write plain text under `stringData` instead"),)
    if sum(map(len, values.values())) > MAX_SECRET_BYTES:
        return (_refuse(f"its values together must be at most {MAX_SECRET_BYTES} bytes"),)
    key = ObjectKey(KIND, metadata.get("namespace") or DEFAULT_NAMESPACE, metadata["name"])
    return SecretDocument(key, values, raw, file, line)


def _find_problems(plain: dict[str, Any], encrypted: frozenset[Path] | None) -> Iterator[Problem]:
    if plain.get("kind") != KIND or plain.get("apiVersion") != "v1":
        yield _refuse(
            "only documents with `apiVersion: v1` and `kind: Secret` may be encrypted: others are stored as read"
        )
        return
    for name in sorted(plain.keys() - _FIELDS):
        yield Problem((), "", f"a Secret has no field `{name[:80]}`")
    metadata = plain.get("metadata")
    fields = cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}
    for unknown in sorted(fields.keys() - _METADATA):
        # Names of fields aren't under SOPS' MAC: a misspelt `namespace` would be another secret.
        yield Problem(("metadata",), "", f"`metadata` of a Secret has no field `{unknown[:80]}`")
    name, namespace = fields.get("name"), fields.get("namespace") or DEFAULT_NAMESPACE
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield Problem(("metadata", "name"), "", "`metadata.name` must be lowercase letters, digits, '-' and '.'")
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        yield Problem(("metadata", "namespace"), "", "`metadata.namespace` must be lowercase letters, digits and '-'")
    for field_name in ("data", "stringData"):
        values = plain.get(field_name)
        if values is not None and not isinstance(values, dict):
            yield Problem((field_name,), "", f"`{field_name}` must be a mapping")
            continue
        for key, value in (cast("dict[str, Any]", values) if values else {}).items():
            shown = key if _KEY.fullmatch(key) else "…"
            if shown != key:
                yield Problem((field_name,), "", f"keys of `{field_name}` must be letters, digits, '-', '_' and '.'")
            elif not isinstance(value, str):
                yield Problem((field_name,), "", f"`{field_name}.{shown}` must be a string (put it in quotes)")
            elif value and encrypted is not None and (field_name, key) not in encrypted:
                message = f"`{field_name}.{shown}` must be encrypted: it is in plain text. Replace that secret"
                yield Problem((field_name,), "", message)


def _decode(plain: dict[str, Any]) -> dict[str, bytes]:
    encoded = cast("dict[str, str]", plain.get("data") or {})
    texts = cast("dict[str, str]", plain.get("stringData") or {})
    values = {key: base64.b64decode("".join(value.split()), validate=True) for key, value in encoded.items()}
    return values | {key: value.encode() for key, value in texts.items()}


def _refuse(words: str) -> Problem:
    return Problem((), "", f"Secret refused: {words}")
