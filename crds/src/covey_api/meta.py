"""Base classes and the metadata every object carries.

Python names are snake_case, wire names camelCase. `None` means *not given*; defaults live in the types here and nowhere
else, so that both stores fill in the same ones.
"""

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

GROUP = "covey.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

# A DNS label, short enough that `<placement>-<ordinal>` is one too.
NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
MAX_NAME_LENGTH = 53
Name = Annotated[str, Field(pattern=NAME_PATTERN, min_length=1, max_length=MAX_NAME_LENGTH)]
# What a label value or selector value may be, as in Kubernetes.
LABEL_VALUE_PATTERN = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE_PATTERN, max_length=63)]
# What a label's key may be, as in Kubernetes: a name, perhaps with a domain before it.
LABEL_KEY_PATTERN = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LabelKey = Annotated[str, Field(pattern=LABEL_KEY_PATTERN, max_length=128)]
SHA256_PATTERN = r"^[0-9a-f]{64}$"
Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN, min_length=64, max_length=64)]

DEFAULT_NAMESPACE = "default"
RETRY_ANNOTATION = "covey.dev/retry"
# Of a Placement: another value makes another revision, so its replicas are made anew, each at the best place of then.
RESTART_ANNOTATION = "covey.dev/restart"
# Holds a Placement, Instance or Node until what runs by it was drained. Everything in the group's names is ours.
DRAIN_FINALIZER = "covey.dev/drain"


# Frozen models refuse to be set otherwise.
_set = object.__setattr__


class Document(BaseModel):
    """What people write: unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Message(BaseModel):
    """What our own parts write (status, stored objects, wire messages): unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    def to_wire(self) -> dict[str, Any]:
        """JSON-ready dict with camelCase keys; fields that are None are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def to_json(self) -> str:
        """The same as text."""
        return self.model_dump_json(by_alias=True, exclude_none=True)

    def changed(self, **fields: Any) -> Self:
        """A copy with these fields; itself where all of them are as they are already. Nothing is validated."""
        own = self.__dict__
        changes = {name: value for name, value in fields.items() if own[name] is not value and own[name] != value}
        if not changes:
            return self
        # As pydantic's own copy, which also looks for extra and private fields: no Message has any.
        made = self.__class__.__new__(self.__class__)
        _set(made, "__dict__", own | changes)
        _set(made, "__pydantic_fields_set__", self.__pydantic_fields_set__ | changes.keys())
        _set(made, "__pydantic_extra__", None)
        _set(made, "__pydantic_private__", None)
        return made

    def __eq__(self, other: object) -> bool:
        """By type and fields. Nothing else is in a Message, and most that are compared are the very same."""
        if self is other:
            return True
        if not isinstance(other, Message):
            return NotImplemented
        return type(self) is type(other) and self.__dict__ == other.__dict__


class ObjectMeta(Message):
    """The part of Kubernetes' ObjectMeta that Covey reads or writes."""

    name: str
    namespace: str = ""
    """Empty for cluster-scoped kinds."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] = ()


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Message):
    """One entry of `status.conditions`, a list-map keyed by `type`, as kstatus reads it."""

    type: Annotated[str, Field(max_length=64)]
    """What it speaks of, such as `Ready`."""
    status: ConditionStatus
    """`True`, `False` or `Unknown`."""
    reason: Annotated[str, Field(max_length=64)]
    """Why, in one word for machines; docs/reference/errors.md has a section for each."""
    message: Annotated[str, Field(max_length=4096)] = ""
    """Why, in words for people: what was found, what must hold, what to do."""
    observed_generation: int = 0
    """`metadata.generation` of the spec that it speaks of."""
    last_transition_time: Annotated[str, Field(max_length=40)] = ""
    """When `status` last changed, in UTC."""


class Status(Message):
    """What every kind's status begins with."""

    observed_generation: int = -1
    """`metadata.generation` that this status speaks of; minus one until a controller has looked."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    """`Ready` always; `Reconciling` and `Stalled` only while true; others as the kind has them."""
