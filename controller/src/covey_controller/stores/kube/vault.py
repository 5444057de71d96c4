"""`Vault` in one Secret: the controller's small secret documents, shared by its replicas. Nothing is cached here.

A document is replaced only if it is still what was read, by the Secret's `resourceVersion`. Another document of the
same Secret that changes in between is no conflict: the write is tried again.
"""

import base64
import binascii
import re

from covey_controller.ports import Conflict, VaultUnavailable
from covey_controller.stores.kube.client import MERGE_PATCH, JsonObject, KubeClient
from covey_controller.stores.kube.errors import KubeError

SECRET_NAME = "covey-controller"  # noqa: S105 - the object's name
# Each failed try means that somebody else's write succeeded; five replicas that write at once are more than there are.
MAX_TRIES = 8
_DOCUMENT_NAME = re.compile(r"[-._a-zA-Z0-9]{1,253}")


class KubeVault:
    """Documents in Secret `covey-controller` of the controller's namespace; it is made when first written."""

    def __init__(self, client: KubeClient, namespace: str, *, name: str = SECRET_NAME) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._folder = f"/api/v1/namespaces/{namespace}/secrets"

    async def read(self, name: str) -> bytes | None:
        """The document; None if there is none."""
        try:
            secret = await self._get()
        except KubeError as error:
            raise VaultUnavailable(str(error)) from error
        return None if secret is None else self._document(secret, name)

    async def replace(self, name: str, content: bytes, *, seen: bytes | None) -> None:
        """Write it whole. Conflict if it is not what was `seen` (None: there must be none)."""
        if not _DOCUMENT_NAME.fullmatch(name):
            raise ValueError(f"a document's name must be a key of a Secret; got '{name}'")
        try:
            await self._replace(name, content, seen)
        except KubeError as error:
            raise VaultUnavailable(str(error)) from error

    async def _replace(self, name: str, content: bytes, seen: bytes | None) -> None:
        for _ in range(MAX_TRIES):
            secret = await self._get()
            if (None if secret is None else self._document(secret, name)) != seen:
                raise Conflict(f"'{name}' in {self._words} isn't what was read any more")
            try:
                await self._write(secret, name, content)
                return
            except KubeError as error:
                # Deleted or written in between: look again.
                if not error.is_conflict and not (error.is_missing and secret is not None):
                    raise
        raise Conflict(f"{self._words} is written by others all the time")

    @property
    def _words(self) -> str:
        return f"Secret '{self._namespace}/{self._name}'"

    async def _get(self) -> JsonObject | None:
        try:
            return await self._client.request("GET", f"{self._folder}/{self._name}")
        except KubeError as error:
            if error.is_missing:
                return None
            raise

    async def _write(self, secret: JsonObject | None, name: str, content: bytes) -> None:
        entry = {name: base64.b64encode(content).decode()}
        if secret is None:
            body: JsonObject = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": self._name}, "data": entry}
            await self._client.request("POST", self._folder, body=body)
            return
        version = secret["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "data": entry}
        await self._client.request("PATCH", f"{self._folder}/{self._name}", body=body, content_type=MERGE_PATCH)

    def _document(self, secret: JsonObject, name: str) -> bytes | None:
        documents: dict[str, str] = secret.get("data") or {}
        text = documents.get(name)
        if text is None:
            return None
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise ValueError(f"'{name}' in {self._words} must be base64") from error
