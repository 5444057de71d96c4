"""What the store keeps: desired objects in force, Instances, Nodes, status, events, the term; with their metadata.

Metadata is as in Kubernetes: `uid` once per object, `resourceVersion` with every write, `generation` with every change
of `spec`. All objects are in memory too, in a mapping that is replaced and never changed: reading needs no lock and no
disk. Everything here runs in the store's one thread; nothing here waits.

A write is refused when this process doesn't lead any more: its lock or the file is gone, or another term is stored.
So is an object that breaks the schema of its kind, as an API server refuses it: a row that can't be read again is
damage, for which the next start would put the whole store aside.
"""

import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from covey_api.instance import Instance
from covey_api.kinds import Kind, ObjectKey
from covey_api.meta import Message, Status
from covey_api.registry import KINDS
from pydantic import ValidationError

from covey_controller.ports import MAX_TERM, Conflict, Event, HeldT, LeaseLost, Refused
from covey_controller.stores.files.cel_rules import find_broken_transitions
from covey_controller.stores.files.database import Database, StoreDamaged
from covey_controller.stores.files.events import RecordedEvent, list_events, record_event
from covey_controller.stores.files.rest import Choice
from covey_controller.stores.files.stored_metadata import (
    AnyObject,
    ObjectT,
    changed_object,
    held,
    known,
    new_object,
    without_document,
)
from covey_controller.stores.files.writing import FileChange
from covey_controller.utc import render_utc

_LOST = "this process doesn't lead any more: its lock file or its store was taken away"


@dataclass(frozen=True, slots=True)
class Row:
    object: AnyObject
    documented: bool
    """True while the object is in force because of a document."""


class Records:
    """The rows of one store. `is_leading` says whether this process may still write."""

    def __init__(
        self,
        database: Database,
        is_leading: Callable[[], bool],
        utc_now: Callable[[], datetime],
        mint_uid: Callable[[], str],
    ) -> None:
        self._database = database
        self.is_leading = is_leading
        self._utc_now = utc_now
        self._mint_uid = mint_uid
        facts = {str(name): str(value) for name, value in database.rows("SELECT name, value FROM facts")}
        try:
            self.term = int(facts.get("term", "0"))
            self._version = int(facts.get("resourceVersion", "0"))
        except ValueError as error:
            raise StoreDamaged(str(error)) from error
        self.applied = facts.get("applied", "")
        self._rows: Mapping[ObjectKey, Row] = self._load()
        self.objects: Mapping[ObjectKey, Kind] = {key: row.object for key, row in self._rows.items()}

    @property
    def documented(self) -> frozenset[ObjectKey]:
        """Objects in force because of a document."""
        return frozenset(key for key, row in self._rows.items() if row.documented)

    def raise_term(self, above: int) -> int:
        """Store and return a term above `above` and every term stored here."""
        term = max(self.term, above) + 1
        if term > MAX_TERM:
            raise ValueError(f"term must be at most {MAX_TERM}; somebody reported {above}. Find out who, and remove it")
        if not self.is_leading():
            raise LeaseLost(_LOST)
        with self._database.transaction(durable=True) as connection:
            _put_fact(connection, "term", str(term))
        self.term = term
        return term

    def put_in_force(self, choice: Choice) -> bool:
        """Make the documents of a choice the desired objects. True if any object changed."""
        wanted = {document.key: known(document.object) for document in choice.documents}
        puts: dict[ObjectKey, Row] = {}
        drops: list[ObjectKey] = []
        for key, wish in wanted.items():
            row = self._rows.get(key)
            wished = self._new(wish) if row is None else changed_object(row.object, wish, self._next_version())
            if row != Row(wished, documented=True):
                puts[key] = Row(wished, documented=True)
        for key, row in self._rows.items():
            if row.documented and key not in wanted and key not in choice.kept:
                self._take_document(key, row.object, None, puts, drops)
        applied = choice.digest or self.applied
        if puts or drops or applied != self.applied or self.unfinished_write():
            self._commit(puts, drops, applied=applied)
        return bool(puts or drops)

    def create(self, created: ObjectT) -> ObjectT:
        """Store a new object with new metadata and no status, as Kubernetes does. Conflict if the name is taken."""
        if created.key in self._rows:
            raise Conflict(f"'{created.key}' exists already")
        stored = self._new(created)
        _require_readable(stored)
        self._commit({created.key: Row(stored, documented=False)})
        return stored

    def update(self, item: HeldT) -> HeldT:
        """Replace an Instance's labels, annotations and spec. Conflict as the port says."""
        stored = self._get(item.key, item.metadata.uid)
        if stored.metadata.resource_version != item.metadata.resource_version:
            raise Conflict(
                f"'{item.key}' has changed: its resourceVersion is {stored.metadata.resource_version}, "
                f"the change was made to {item.metadata.resource_version}"
            )
        if not isinstance(item, Instance) or not isinstance(stored, Instance):
            return item
        if faults := find_broken_transitions(stored.spec, item.spec):
            raise Conflict(f"'{item.key}': {'; '.join(faults)}")
        changed = changed_object(stored, item, self._next_version())
        if changed != stored:
            _require_readable(changed)
            self._commit({item.key: Row(changed, documented=False)})
        return item.model_copy(update={"metadata": changed.metadata, "spec": changed.spec, "status": changed.status})

    def delete(self, key: ObjectKey, uid: str) -> None:
        """Remove an object that no document asks for. One that is gone already is no conflict."""
        if key in self._rows:
            self._get(key, uid)
            if self._rows[key].documented:
                raise Conflict(f"'{key}' is still in the source")
            self._commit({}, [key])

    def mark_deleted(self, keys: Sequence[ObjectKey]) -> bool:
        """Ask for the deletion of Nodes: each is drained, then `delete` removes it. True if anything changed."""
        puts: dict[ObjectKey, Row] = {}
        drops: list[ObjectKey] = []
        for key in keys:
            row = self._rows.get(key)
            if row is not None and row.object.metadata.deletion_timestamp is None:
                self._take_document(key, row.object, self._now(), puts, drops)
        if puts or drops:
            self._commit(puts, drops)
        return bool(puts or drops)

    def write_status(self, key: ObjectKey, status: Status, events: Sequence[Event]) -> None:
        """Replace an object's status and record events; nothing when the object is gone or nothing changed."""
        row = self._rows.get(key)
        if row is None:
            return
        present = row.object.status
        if type(status) is not type(present):
            raise TypeError(f"status of '{key}' must be a {type(present).__name__}; got a {type(status).__name__}")
        puts: dict[ObjectKey, Row] = {}
        if status != present:
            metadata = row.object.metadata.model_copy(update={"resource_version": self._next_version()})
            changed = row.object.model_copy(update={"status": status, "metadata": metadata})
            _require_readable(changed, "status", status)  # all else of it is as it was stored
            puts[key] = replace(row, object=changed)
        if puts or events:
            self._commit(puts, events=events, durable=False)

    def events(self, key: ObjectKey) -> tuple[RecordedEvent, ...]:
        return list_events(self._database, key)

    def begin_write(self, changes: Sequence[FileChange]) -> None:
        """Remember an edit of the source until it is done."""
        with self._transaction(durable=True) as connection:
            connection.execute("DELETE FROM writes")
            connection.executemany(
                "INSERT INTO writes VALUES (?, ?, ?)",
                [(change.path, change.before, change.after) for change in changes],
            )

    def end_write(self) -> None:
        with self._transaction(durable=True) as connection:
            connection.execute("DELETE FROM writes")

    def unfinished_write(self) -> tuple[FileChange, ...]:
        rows = self._database.rows("SELECT path, before, after FROM writes ORDER BY path")
        return tuple(
            FileChange(
                str(path),
                before if isinstance(before, bytes) else None,
                after if isinstance(after, bytes) else None,
            )
            for path, before, after in rows
        )

    def close(self) -> None:
        self._database.close()

    def _load(self) -> dict[ObjectKey, Row]:
        rows: dict[ObjectKey, Row] = {}
        for kind, namespace, name, documented, body in self._database.rows(
            "SELECT kind, namespace, name, documented, body FROM objects ORDER BY kind, namespace, name"
        ):
            try:
                parsed = KINDS[str(kind)].model_validate_json(str(body))
            except (KeyError, ValidationError) as error:
                raise StoreDamaged(f"{kind} '{name}' can't be read: {error}") from error
            rows[ObjectKey(str(kind), str(namespace), str(name))] = Row(held(known(parsed)), bool(documented))
        return rows

    def _get(self, key: ObjectKey, uid: str) -> AnyObject:
        row = self._rows.get(key)
        if row is None:
            raise Conflict(f"'{key}' doesn't exist any more")
        if row.object.metadata.uid != uid:
            raise Conflict(f"'{key}' was made again: its uid is {row.object.metadata.uid}, not {uid}")
        return row.object

    def _new(self, wish: ObjectT) -> ObjectT:
        return new_object(wish, self._mint_uid(), self._next_version(), self._now())

    def _take_document(
        self,
        key: ObjectKey,
        stored: AnyObject,
        deletion: str | None,
        puts: dict[ObjectKey, Row],
        drops: list[ObjectKey],
    ) -> None:
        remains = without_document(stored, self._next_version(), deletion)
        if remains is None:
            drops.append(key)
        else:
            puts[key] = Row(remains, documented=False)

    def _next_version(self) -> str:
        """A version that no object had. Numbers that no write used are skipped, as in Kubernetes."""
        self._version += 1
        return str(self._version)

    def _now(self) -> str:
        return render_utc(self._utc_now())

    @contextmanager
    def _transaction(self, *, durable: bool) -> Generator[sqlite3.Connection]:
        """A transaction of the leader's. LeaseLost if this process isn't it."""
        if not self.is_leading():
            raise LeaseLost(_LOST)
        with self._database.transaction(durable=durable) as connection:
            found = connection.execute("SELECT value FROM facts WHERE name='term'").fetchone()
            if found is None or int(found[0]) != self.term:
                raise LeaseLost(f"this process led in term {self.term}; the store is in another one now")
            yield connection

    def _commit(
        self,
        puts: Mapping[ObjectKey, Row],
        drops: Sequence[ObjectKey] = (),
        *,
        events: Sequence[Event] = (),
        applied: str | None = None,
        durable: bool = True,
    ) -> None:
        """Write rows, then show them. `applied` is the set in force with them, and ends an edit of the source."""
        with self._transaction(durable=durable) as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)",
                [
                    (key.kind, key.namespace, key.name, row.documented, row.object.to_json())
                    for key, row in puts.items()
                ],
            )
            for key in drops:
                where = (key.kind, key.namespace, key.name)
                connection.execute("DELETE FROM objects WHERE kind=? AND namespace=? AND name=?", where)
            for event in events:
                record_event(connection, event, self._now())
            _put_fact(connection, "resourceVersion", str(self._version))
            if applied is not None:
                _put_fact(connection, "applied", applied)
                connection.execute("DELETE FROM writes")
        rows, objects = {**self._rows, **puts}, {**self.objects, **{key: row.object for key, row in puts.items()}}
        for key in drops:
            del rows[key], objects[key]
        self._rows, self.objects = rows, objects
        self.applied = self.applied if applied is None else applied


def _require_readable(item: AnyObject, path: str = "", part: Message | None = None) -> None:
    """Copies with changes are not validated when they are made. `part` of it, at `path`, or all of it. Refused."""
    checked = part or item
    try:
        type(checked).model_validate_json(checked.to_json())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, ((path,) if path else ()) + first["loc"]))
        raise Refused(f"'{item.key}' can't be written: `{field}`: {first['msg']}") from None


def _put_fact(connection: sqlite3.Connection, name: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))
