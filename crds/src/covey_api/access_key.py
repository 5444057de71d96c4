"""AccessKey: a client's hashed key. The key itself is shown once, by `covey key create`, and stored nowhere."""

from typing import Annotated, ClassVar

from pydantic import Field

from covey_api.kinds import Column, Kind
from covey_api.meta import Message, Name, Status

KEY_PREFIX = "sk-covey-"
KEY_HASH_PATTERN = r"^sha256:[0-9a-f]{64}$"
EXPIRY_PATTERN = r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$"

RequestsPerMinute = Annotated[int, Field(ge=1, le=1_000_000)]
TokensPerMinute = Annotated[int, Field(ge=1, le=2_000_000_000)]
TokensPerDay = Annotated[int, Field(ge=1, le=1_000_000_000_000)]
Concurrency = Annotated[int, Field(ge=1, le=100_000)]
KeyPriority = Annotated[int, Field(ge=-1_000_000, le=1_000_000)]


class KeyLimits(Message):
    """What a key may ask for. Of several gateways each has its share of a limit."""

    models: Annotated[tuple[Name, ...], Field(min_length=1, max_length=256)] | None = None
    """Names of Models that the key may ask for, by any of their names. When absent: all of its namespace."""
    requests_per_minute: RequestsPerMinute | None = None
    """Requests that may begin within a minute; the next one is answered 429. When absent: any number."""
    tokens_per_minute: TokensPerMinute | None = None
    """Tokens of prompts and answers, as engines counted them, after which requests are answered 429 until a minute has
    fewer."""
    tokens_per_day: TokensPerDay | None = None
    """The same, of a day in UTC, over all gateways."""
    concurrency: Concurrency | None = None
    """Requests that may be under way at a time, waiting ones included."""
    priority: KeyPriority = 0
    """Whose requests go first where they wait in a gateway, for a model or before an engine: higher ones. Where as many
    wait as may, one of the lowest priority is refused in the place of a higher one. Requests without a key have 0."""


class AccessKeySpec(KeyLimits):
    """The hash of the key, how long it is valid, and what it may ask for."""

    hash: Annotated[str, Field(pattern=KEY_HASH_PATTERN, max_length=71)]
    """`sha256:` and the hex digest of the whole key."""
    expiry: Annotated[str, Field(pattern=EXPIRY_PATTERN, max_length=20)] | None = None
    """UTC, e.g. `2027-01-31T00:00:00Z`; refused from then on. When absent: never."""


MAX_TOTAL = 2**53 - 1
Total = Annotated[int, Field(ge=0, le=MAX_TOTAL)]


class KeyCounts(Message):
    """What a key's requests came to."""

    requests: Total = 0
    """That reached an engine."""
    estimated_requests: Total = 0
    """Of these: they ended early, so that their tokens are estimated."""
    prompt_tokens: Total = 0
    """Of the prompts, cached ones included."""
    cached_tokens: Total = 0
    """Of the prompts', what an engine had in its cache."""
    completion_tokens: Total = 0
    """That engines generated."""

    @property
    def tokens(self) -> int:
        """What limits count."""
        return self.prompt_tokens + self.completion_tokens


class CountedBoot(KeyCounts):
    """What of one gateway's count is in the sums already."""

    boot: Annotated[str, Field(max_length=128)]
    """The gateway's name and its process's random one."""


class KeyUsageStatus(Message):
    """What the key has used, as of `countedAt`."""

    total: KeyCounts = KeyCounts()
    """Since the key was made."""
    day: Annotated[str, Field(max_length=10)] = ""
    """In UTC; empty: it was never used."""
    today: KeyCounts = KeyCounts()
    """On that day."""
    counted_at: Annotated[str, Field(max_length=20)] = ""
    """When this was written: once a minute at most."""
    counted: Annotated[tuple[CountedBoot, ...], Field(max_length=64)] = ()
    """Gateways' counts as they were then, so that none counts twice."""
    hash: Annotated[str, Field(max_length=71)] = ""
    """Of the key that was counted: another one's counts begin anew."""

    def counted_of(self, hash_: str) -> tuple[CountedBoot, ...]:
        """Of this hash, so none after `spec.hash` was edited; what doesn't say whose it is would else count twice."""
        return self.counted if self.hash in ("", hash_) else ()


class AccessKeyStatus(Status):
    """What is known of the key."""

    usage: KeyUsageStatus = KeyUsageStatus()
    """What the key has used."""


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
