"""AccessKey: a client's hashed key. The key itself is shown once, by `covey key create`, and stored nowhere."""

from typing import Annotated, ClassVar

from pydantic import Field

from covey_api.kinds import Column, Kind
from covey_api.meta import Message, Status

KEY_PREFIX = "sk-covey-"
KEY_HASH_PATTERN = r"^sha256:[0-9a-f]{64}$"
EXPIRY_PATTERN = r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$"


class AccessKeySpec(Message):
    """The hash of the key and how long it is valid."""

    hash: Annotated[str, Field(pattern=KEY_HASH_PATTERN, max_length=71)]
    """`sha256:` and the hex digest of the whole key."""
    expiry: Annotated[str, Field(pattern=EXPIRY_PATTERN, max_length=20)] | None = None
    """UTC, e.g. `2027-01-31T00:00:00Z`; refused from then on. When absent: never."""


class AccessKeyStatus(Status):
    """What is known of the key."""


class AccessKey(Kind):
    """A client's hashed key with its expiry."""

    PLURAL: ClassVar[str] = "accesskeys"
    SINGULAR: ClassVar[str] = "accesskey"
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ("ak",)
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("Expiry", ".spec.expiry"),
        Column("Age", ".metadata.creationTimestamp", "date"),
    )

    kind: str = "AccessKey"
    spec: AccessKeySpec
    status: AccessKeyStatus = AccessKeyStatus()
