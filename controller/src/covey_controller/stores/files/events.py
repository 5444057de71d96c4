"""Events of objects in the store: counted instead of repeated, and bounded."""

import sqlite3
from dataclasses import dataclass

from covey_api.kinds import ObjectKey

from covey_controller.ports import Event
from covey_controller.stores.files.database import Database

# What `describe` shows of one object; older ones are dropped.
MAX_EVENTS_PER_OBJECT = 32
# Of objects that are gone, events stay until so many newer ones came.
MAX_EVENTS = 2_000


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event with how often it came, and when first and last (UTC)."""

    event: Event
    count: int
    first_seen: str
    last_seen: str


def list_events(database: Database, key: ObjectKey) -> tuple[RecordedEvent, ...]:
    """Events of an object, the one that came last at the end."""
    rows = database.rows(
        "SELECT reason, message, warning, count, first_seen, last_seen FROM events "
        "WHERE kind=? AND namespace=? AND name=? ORDER BY sequence",
        (key.kind, key.namespace, key.name),
    )
    return tuple(
        RecordedEvent(Event(key, str(reason), str(message), bool(warning)), int(str(count)), str(first), str(last))
        for reason, message, warning, count, first, last in rows
    )


def record_event(connection: sqlite3.Connection, event: Event, now: str) -> None:
    """Count an event that came before, add one that didn't, drop the oldest beyond the bounds."""
    key = event.key
    (sequence,) = connection.execute("SELECT coalesce(max(sequence), 0) + 1 FROM events").fetchone()
    connection.execute(
        "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?) ON CONFLICT (kind, namespace, name, reason, message) "
        "DO UPDATE SET count = count + 1, last_seen = excluded.last_seen, sequence = excluded.sequence",
        (key.kind, key.namespace, key.name, event.reason, event.message, event.warning, now, now, sequence),
    )
    # Each has a number of its own, so no more than that many are there.
    if sequence > MAX_EVENTS_PER_OBJECT:
        connection.execute(
            "DELETE FROM events WHERE kind=? AND namespace=? AND name=? AND sequence NOT IN "
            "(SELECT sequence FROM events WHERE kind=? AND namespace=? AND name=? ORDER BY sequence DESC LIMIT ?)",
            (*[key.kind, key.namespace, key.name] * 2, MAX_EVENTS_PER_OBJECT),
        )
    if sequence > MAX_EVENTS:
        connection.execute(
            "DELETE FROM events WHERE sequence <= "
            "(SELECT sequence FROM events ORDER BY sequence DESC LIMIT 1 OFFSET ?)",
            (MAX_EVENTS,),
        )
