"""Bodies that the control API takes. Unknown fields are ignored, as in every message between our own parts."""

from typing import Annotated

from covey_api.access_key import KeyLimits
from covey_api.messages import CertificateRole
from covey_api.meta import DEFAULT_NAMESPACE, Message, Name
from pydantic import Field

from covey_controller.stores.git.author import AUTHOR_PATTERN, MAX_AUTHOR_LENGTH

Author = Annotated[str, Field(max_length=MAX_AUTHOR_LENGTH, pattern=AUTHOR_PATTERN)]
"""`Name <email>` of who asks: the author of the commit, where the source is a repository."""


class ApplyBody(Message):
    text: str
    """YAML documents."""
    name: Annotated[str, Field(max_length=1024)] = "request"
    """What errors call the text: the file it was read from."""
    author: Author = ""


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
    author: Author = ""


class TokenBody(Message):
    role: CertificateRole
    uses: int = 1
    ttl_seconds: int = 3600


class AccessKeyBody(KeyLimits):
    name: Name
    namespace: Name = DEFAULT_NAMESPACE
    expiry: Annotated[str, Field(max_length=20)] | None = None
    """UTC, `2027-01-31T00:00:00Z`; the source checks its form."""
