"""What the API server holds of one kind, put together from lists, watch events and our own writes. Pure.

Sightings may come late, twice and in any order. Three things make the end the server's truth all the same:

| sighting | known already | what follows |
|---|---|---|
| an object | this uid, at this version or a later one | nothing: never back in `resourceVersion` |
| an object | another uid of that name, at a later version | nothing: the name was taken anew since |
| an object | nothing, and a whole list as new as it was without it | nothing: it was deleted before that list |
| an object or its deletion | the uid's deletion, since the last list began | nothing: never back from the dead |
| a whole list | objects that it lacks, at versions not after the list's | they are gone, whatever the watch missed |
| a whole list | an object otherwise, not newer than the list | as the list has it: the other is of another history |
| a whole list | versions after the list's own, seen before it began | the server's history is another one: begin anew |

The last rows are an etcd that was lost, or put back from a backup: its versions count from lower numbers, and pass the
old ones some time later.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from covey_api.kinds import Kind, ObjectKey

from covey_controller.stores.kube.objects import Sighting, parse_object


@dataclass(frozen=True, slots=True)
class Entry:
    """One object at its latest version."""

    uid: str
    version: int
    object: Kind
    fault: str = ""
    """What of it can't be read, in words."""


@dataclass(frozen=True, slots=True)
class ListMark:
    """What was known when a list began."""

    highest: int
    deleted: frozenset[str]


@dataclass(frozen=True, slots=True)
class Change:
    """One object that is not what it was."""

    key: ObjectKey
    before: Entry | None
    after: Entry | None

    @property
    def is_wish(self) -> bool:
        """Whether more than status changed, which only the reconciler writes."""
        if self.before is None or self.after is None:
            return True
        return self.before.uid != self.after.uid or _wish(self.before.object) != _wish(self.after.object)


class KindMirror:
    """All objects of one kind."""

    def __init__(self, kind: type[Kind]) -> None:
        self._kind = kind
        self.entries: dict[ObjectKey, Entry] = {}
        self._deleted: set[str] = set()
        """uids whose deletion was seen after the last whole list began; older ones fall to the third row."""
        self._highest = 0
        self._listed = 0
        """Version of the last whole list."""

    def observe(self, sighting: Sighting) -> Change | None:
        """An object as it was at some time; None if nothing follows from it."""
        if sighting.key not in self.entries and sighting.version <= self._listed:
            return None
        return self._put(sighting)

    def observe_gone(self, sighting: Sighting) -> Change | None:
        """An object that was deleted."""
        self._highest = max(self._highest, sighting.version)
        self._deleted.add(sighting.uid)
        entry = self.entries.get(sighting.key)
        if entry is None or entry.uid != sighting.uid:
            return None
        del self.entries[sighting.key]
        return Change(sighting.key, entry, None)

    def begin_list(self) -> ListMark:
        """Before the first page is asked for."""
        return ListMark(self._highest, frozenset(self._deleted))

    def end_list(self, mark: ListMark, version: int, sightings: Iterable[Sighting]) -> list[Change]:
        """A whole list, at one version, that began at the mark. What changed by it."""
        is_other_history = version < mark.highest
        if is_other_history:
            self._deleted.clear()
            self._highest = version
        else:
            self._deleted -= mark.deleted
        listed = {sighting.key: sighting for sighting in sightings}
        changes: list[Change] = []
        for key, entry in list(self.entries.items()):
            found = listed.get(key)
            is_gone = is_other_history or entry.version <= version
            if is_gone and (found is None or (is_other_history and found.uid != entry.uid)):
                del self.entries[key]
                changes.append(Change(key, entry, None))
        for sighting in listed.values():
            if (change := self._put(sighting, listed=math.inf if is_other_history else version)) is not None:
                changes.append(change)
        self._listed = version
        self._highest = max(self._highest, version)
        return changes

    def _put(self, sighting: Sighting, *, listed: float = 0.0) -> Change | None:
        """`listed`: the version of the whole list that this is of; what was known up to there gives way to it."""
        self._highest = max(self._highest, sighting.version)
        entry = self.entries.get(sighting.key)
        if sighting.uid in self._deleted:
            return None
        if entry is not None:
            if (entry.uid, entry.version) == (sighting.uid, sighting.version):
                return self._look_again(entry, sighting)
            if sighting.version <= entry.version and entry.version > listed:
                return None
            if sighting.uid != entry.uid:
                self._deleted.add(entry.uid)
        parsed, fault = parse_object(self._kind, sighting.raw)
        made = Entry(sighting.uid, sighting.version, parsed, fault)
        self.entries[sighting.key] = made
        return Change(sighting.key, entry, made)

    def _look_again(self, entry: Entry, sighting: Sighting) -> Change | None:
        """At a version that is known. While kinds are upgraded an API server shows objects without the new fields, at
        the version that has them; a list, which is of nothing but versions, would never find that out."""
        if sighting.is_of_list:
            return None
        parsed, fault = parse_object(self._kind, sighting.raw)
        if parsed == entry.object:
            return None
        made = self.entries[sighting.key] = Entry(sighting.uid, sighting.version, parsed, fault)
        return Change(sighting.key, entry, made)


def _wish(item: Kind) -> tuple[object, ...]:
    metadata = item.metadata
    return (
        metadata.generation,
        metadata.labels,
        metadata.annotations,
        metadata.deletion_timestamp,
        metadata.finalizers,
    )
