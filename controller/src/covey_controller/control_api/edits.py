"""Changes through the source: documents applied and deleted, and access keys, of which only the hash is written."""

import hashlib
import json
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from covey_api.access_key import KEY_PREFIX, AccessKey, AccessKeySpec
from covey_api.kinds import ObjectKey
from covey_api.meta import API_VERSION

from covey_controller.control_api.messages import AccessKeyBody
from covey_controller.ports import Applied, Explainer, InvalidSet, Source
from covey_controller.serving.answers import ApiError, ApiReason

# 256 bits: nobody guesses it, so an unsalted fast hash of it is enough.
_KEY_BYTES = 32


async def apply_text(source: Source, text: str, name: str, author: str = "") -> dict[str, Any]:
    with explain_refusals():
        return render_applied(await source.apply_documents(text, name, author))


async def delete_keys(source: Source, keys: tuple[ObjectKey, ...], author: str = "") -> dict[str, Any]:
    with explain_refusals():
        try:
            return render_applied(await source.delete_documents(keys, author))
        except KeyError as missing:
            message = f"nothing was changed: the source holds no {missing.args[0]}"
            raise ApiError(404, ApiReason.NOT_FOUND, message) from None


async def create_access_key(source: Source, explainer: Explainer, body: AccessKeyBody) -> str:
    """The new key, shown this once. ApiError 409 if the name is taken: a key in use is never replaced silently."""
    key = ObjectKey(AccessKey.__name__, body.namespace, body.name)
    if key in explainer.objects():
        raise ApiError(
            409,
            ApiReason.ALREADY_EXISTS,
            f"access key '{body.name}' exists in namespace '{body.namespace}'; choose another name or delete it first",
        )
    text = KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    await apply_text(source, _render_document(body, f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"), str(key))
    return text


# Of a key, as far as who makes one says it.
_SPEC_FIELDS = tuple(
    field.alias for name, field in AccessKeySpec.model_fields.items() if name != "hash" and field.alias is not None
)


def render_applied(applied: tuple[Applied, ...]) -> dict[str, Any]:
    return {
        "results": [
            {"kind": one.key.kind, "namespace": one.key.namespace, "name": one.key.name, "outcome": one.outcome}
            for one in applied
        ]
    }


def _render_document(body: AccessKeyBody, key_hash: str) -> str:
    """YAML in the layout that a person would write. Values are JSON strings: YAML reads them as nothing but strings."""
    lines = [
        f"apiVersion: {API_VERSION}",
        f"kind: {AccessKey.__name__}",
        "metadata:",
        f"  name: {json.dumps(body.name)}",
        f"  namespace: {json.dumps(body.namespace)}",
        "spec:",
        f"  hash: {json.dumps(key_hash)}",
    ]
    limits = body.to_wire()
    lines += [f"  {name}: {json.dumps(limits[name])}" for name in _SPEC_FIELDS if name in limits]
    return "\n".join(lines) + "\n"


@contextmanager
def explain_refusals() -> Generator[None]:
    """ApiError in the place of InvalidSet or OSError."""
    try:
        yield
    except InvalidSet as invalid:
        errors = [asdict(error) for error in invalid.errors]
        raise ApiError(422, ApiReason.INVALID_SET, f"nothing was changed: {invalid}", errors) from None
    except OSError as error:
        raise ApiError(
            409,
            ApiReason.SOURCE_NOT_WRITABLE,
            f"the source can't be written: {error.strerror} ('{error.filename}'). Change its files directly.",
        ) from None
