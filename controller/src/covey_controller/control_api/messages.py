"""Bodies that the control API takes. Unknown fields are ignored, as in every message between our own parts."""

from typing import Annotated

from covey_api.messages import CertificateRole
from covey_api.meta import DEFAULT_NAMESPACE, Message, Name
from pydantic import Field


class ApplyBody(Message):
    text: str
    """YAML documents."""
    name: Annotated[str, Field(max_length=1024)] = "request"
    """What errors call the text: the file it was read from."""


class DocumentsBody(Message):
    text: str = ""
    """YAML documents; `plan` takes none too: what is about to happen anyway."""
    name: Annotated[str, Field(max_length=1024)] = "request"


class KeyBody(Message):
    kind: str
    namespace: str = ""
    name: str


class DeleteBody(Message):
    keys: Annotated[tuple[KeyBody, ...], Field(min_length=1, max_length=1000)]


class TokenBody(Message):
    role: CertificateRole
    uses: int = 1
    ttl_seconds: int = 3600


class AccessKeyBody(Message):
    name: Name
    namespace: Name = DEFAULT_NAMESPACE
    expiry: Annotated[str, Field(max_length=20)] | None = None
    """UTC, `2027-01-31T00:00:00Z`; the source checks its form."""
