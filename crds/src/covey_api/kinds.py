"""What all kinds share: the base class, printer columns and CEL rules, from which `schema` makes the CRDs.

A document that a person writes is validated by the CRD's own schema (strictly: unknown fields are refused) and its CEL
rules in both modes *before* it is parsed here; therefore these types ignore unknown fields, and an object stored by a
neighbouring version still parses.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field
from pydantic.config import JsonDict

from covey_api.meta import API_VERSION, DEFAULT_NAMESPACE, MAX_NAME_LENGTH, Message, ObjectMeta


@dataclass(frozen=True, slots=True)
class Column:
    """One printer column: JSON path under the object; `wide` ones show with `-o wide` only."""

    name: str
    json_path: str
    type: Literal["string", "integer", "date"] = "string"
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Paths of the scale subresource."""

    spec_replicas: str = ".spec.replicas"
    status_replicas: str = ".status.replicas"
    selector: str = ".status.selector"


def cel(*rules: tuple[str, str]) -> JsonDict:
    """`json_schema_extra` that carries CEL rules: pairs of (rule, message)."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


class ObjectKey(NamedTuple):
    """Names one object: kind, namespace (empty if cluster-scoped), name. Sorts by them in this order."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.lower()}/{self.name}"


class Kind(Message):
    """One Covey object, whole."""

    PLURAL: ClassVar[str]
    SINGULAR: ClassVar[str]
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ()
    NAMESPACED: ClassVar[bool] = True
    MAX_NAME_LENGTH: ClassVar[int] = MAX_NAME_LENGTH
    ONLY_NAME: ClassVar[str] = ""
    """The one name that an object of this kind may have; empty for all kinds but Fleet."""
    COLUMNS: ClassVar[tuple[Column, ...]] = ()
    SCALE: ClassVar[Scale | None] = None

    api_version: str = API_VERSION
    kind: str = Field(default="")
    metadata: ObjectMeta

    @property
    def key(self) -> ObjectKey:
        """Identity of the object; an empty namespace of a namespaced kind is `default`."""
        namespace = (self.metadata.namespace or DEFAULT_NAMESPACE) if self.NAMESPACED else ""
        return ObjectKey(type(self).__name__, namespace, self.metadata.name)


class Unreadable(Kind):
    """A stored object that this version can't read: another version's. It is known to be there, and left alone."""

    @property
    def key(self) -> ObjectKey:
        """Identity of the object that is stored."""
        return ObjectKey(self.kind, self.metadata.namespace, self.metadata.name)
