"""Decides when the source is read and what of it runs. Pure: it is told what happened, and when.

It knows nothing of files, clocks or storage. The rules, in the order they are applied:

1. A source that changed is read once it has rested `REST_SECONDS`.
2. A set with an error changes nothing; what ran goes on.
3. Objects added or changed count at once.
4. Objects that vanished count after `VANISH_SECONDS` of rest, looked at once more then: thus a rename, an editor that
   removes a file before it writes it, and a slow checkout stop nothing.
5. A source without any object deletes nothing, unless that was allowed.
6. What people asked for by name (an apply, a delete) counts at once, and only that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from covey_api.kinds import Kind, ObjectKey

from covey_controller.ports import InvalidSet, SourceError

# Longer than an editor's or `git checkout`'s pauses between two writes, short enough that people don't wait for it.
REST_SECONDS = 0.5
# A removal stops engines; a file that is moved by hand or replaced by a slow tool is back within this.
VANISH_SECONDS = 2.0


class Written(Protocol):
    """One validated document of a set, as the parser returns it."""

    @property
    def key(self) -> ObjectKey: ...
    @property
    def raw(self) -> dict[str, Any]:
        """As written, before any default."""
        ...

    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int:
        """First line of the document that isn't a comment; from 1."""
        ...


class Document(Written, Protocol):
    """A document that is an object."""

    @property
    def object(self) -> Kind: ...


@dataclass(frozen=True, slots=True)
class SecretDocument:
    """A `v1/Secret` that was opened. What prints it prints where it is, and none of its values."""

    key: ObjectKey
    values: Mapping[str, bytes] = field(repr=False)
    raw: dict[str, Any] = field(repr=False)
    """As written: still encrypted, or a digest where the whole file was."""
    file: str
    line: int


ParseDocuments = Callable[[Mapping[str, bytes]], Sequence[Document | SecretDocument]]
"""Validates a whole set, files by path. InvalidSet carries every error in it."""


@dataclass(frozen=True, slots=True)
class ReadSet:
    """One state of the source: its documents, or why there are none."""

    digest: str
    documents: tuple[Document, ...] = ()
    errors: tuple[SourceError, ...] = ()
    is_missing: bool = False
    secrets: tuple[SecretDocument, ...] = ()

    @property
    def written(self) -> tuple[Written, ...]:
        return (*self.documents, *self.secrets)

    @property
    def keys(self) -> frozenset[ObjectKey]:
        return frozenset(document.key for document in self.written)


def parse_set(
    digest: str,
    files: Mapping[str, bytes],
    parse: ParseDocuments,
    errors: tuple[SourceError, ...] = (),
    is_missing: bool = False,
) -> ReadSet:
    """The set that these files are. Errors met while reading them are kept beside the parser's own."""
    try:
        written = tuple(parse(files))
    except InvalidSet as invalid:
        return ReadSet(digest, errors=(*errors, *invalid.errors), is_missing=is_missing)
    if errors:
        return ReadSet(digest, errors=errors, is_missing=is_missing)
    secrets = tuple(one for one in written if isinstance(one, SecretDocument))
    documents = tuple(one for one in written if not isinstance(one, SecretDocument))
    return ReadSet(digest, documents, is_missing=is_missing, secrets=secrets)


@dataclass(frozen=True, slots=True)
class Stirred:
    """Something in the source changed."""


@dataclass(frozen=True, slots=True)
class SetRead:
    """The rested source was read."""

    read: ReadSet


@dataclass(frozen=True, slots=True)
class SetWritten:
    """We wrote this set into the rested source ourselves, because somebody asked."""

    read: ReadSet
    deleted: frozenset[ObjectKey]
    """What was asked to go."""


Event = Stirred | SetRead | SetWritten


@dataclass(frozen=True, slots=True)
class Choice:
    """What must run now: the documents, and of what ran before, `kept`."""

    documents: tuple[Document, ...]
    kept: frozenset[ObjectKey]
    digest: str
    """Of the set that is in force with this; empty while something vanished is still kept."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Where the source stands."""

    allow_empty: bool
    running: frozenset[ObjectKey]
    """Objects in force, and Secrets, that have or had a document."""
    stirred_at: float
    """When the source changed last."""
    unrest_since: float
    """When it last began to change after having been read."""
    read: ReadSet | None = None
    """What was read since it changed last; None when that is still to do."""
    kept: frozenset[ObjectKey] = field(default=frozenset())
    """What runs although the set read doesn't hold it."""
    secrets: Mapping[ObjectKey, SecretDocument] = field(default_factory=dict[ObjectKey, SecretDocument])
    """What can be read of the Secrets in force. In memory only, so a process that starts on an invalid set has none."""

    @property
    def due_at(self) -> float | None:
        """When the source must be read next; None when nothing is to be read until it changes."""
        if self.read is None:
            return self.stirred_at + REST_SECONDS
        is_settled = self.read.errors or not self.kept or self.is_kept_empty
        return None if is_settled else self.stirred_at + VANISH_SECONDS

    @property
    def is_kept_empty(self) -> bool:
        """True while an empty source keeps what ran."""
        return self.read is not None and bool(self.kept) and _deletes_nothing(self, self.read)


def step(rest: Rest, event: Event, now: float) -> tuple[Rest, Choice | None]:
    """What follows from one event; a Choice when something is to be put in force."""
    match event:
        case Stirred():
            return _stir(rest, now), None
        case SetRead(read):
            if rest.read is not None and rest.read.digest != read.digest:
                # It changed unnoticed: nothing vanishes on a rest that wasn't one.
                return _stir(rest, now), None
            gone = now >= rest.stirred_at + VANISH_SECONDS
            return _choose(rest, read, read_vanish=gone, deleted=frozenset())
        case SetWritten(read, deleted):
            return _choose(rest, read, read_vanish=False, deleted=deleted)


def _stir(rest: Rest, now: float) -> Rest:
    return replace(rest, stirred_at=now, read=None, unrest_since=now if rest.read else rest.unrest_since)


def _deletes_nothing(rest: Rest, read: ReadSet) -> bool:
    return not read.documents and not rest.allow_empty


def _choose(
    rest: Rest, read: ReadSet, *, read_vanish: bool, deleted: frozenset[ObjectKey]
) -> tuple[Rest, Choice | None]:
    if read.errors:
        return replace(rest, read=read), None
    vanished = rest.running - read.keys - deleted
    kept = vanished if _deletes_nothing(rest, read) or not read_vanish else frozenset[ObjectKey]()
    secrets = {key: secret for key, secret in rest.secrets.items() if key in kept}
    secrets |= {secret.key: secret for secret in read.secrets}
    after = replace(rest, read=read, kept=kept, running=read.keys | kept, secrets=secrets)
    return after, Choice(read.documents, kept, "" if kept else read.digest)
