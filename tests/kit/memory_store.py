"""`Store` of the controller's ports in memory, with fault knobs and a count of writes."""

import asyncio
from collections.abc import Mapping
from itertools import count

from covey_api.instance import Instance
from covey_api.kinds import Kind, ObjectKey
from covey_api.meta import Status
from covey_controller.ports import Conflict, CreatedT, Event, HeldT, Lease, Refused


class MemoryStore:
    def __init__(self, *objects: Kind, writes_at_once: int = 1) -> None:
        self.writes_at_once = writes_at_once
        self.objects: dict[ObjectKey, Kind] = {item.key: item for item in objects}
        self.writes: list[str] = []
        self.events: list[Event] = []
        self.fail: list[Exception] = []
        """Raised by the next writes, one each."""
        self.forbidden: set[ObjectKey] = set()
        """Objects that somebody's rule forbids to make or change."""
        self.lease = Lease(0, "", asyncio.Event())
        self._changed = asyncio.Event()
        self._versions = count(1)

    def put(self, *items: Kind) -> None:
        """What a person writes."""
        for item in items:
            self.objects[item.key] = item
        self._changed.set()

    def remove(self, key: ObjectKey) -> None:
        del self.objects[key]
        self._changed.set()

    def instances(self) -> list[Instance]:
        return sorted((o for o in self.objects.values() if isinstance(o, Instance)), key=lambda i: i.metadata.name)

    async def acquire_lease(self, holder: str) -> Lease:
        self.lease = Lease(self.lease.term + 1, holder, asyncio.Event())
        return self.lease

    async def raise_term(self, above: int) -> Lease:
        self.lease.lost.set()
        self.lease = Lease(max(above, self.lease.term) + 1, self.lease.holder, asyncio.Event())
        return self.lease

    async def list_objects(self) -> Mapping[ObjectKey, Kind]:
        self._changed.clear()
        return dict(self.objects)

    async def wait_changed(self, timeout_seconds: float) -> bool:
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._changed.wait()
        except TimeoutError:
            return False

    async def create(self, instance: CreatedT) -> CreatedT:
        self._write(f"create {instance.key}")
        self._require_allowed(instance.key)
        if instance.key in self.objects:
            raise Conflict(f"{instance.key} exists")
        version = str(next(self._versions))
        changes = {"uid": f"uid-{version}", "resource_version": version}
        made = instance.model_copy(update={"metadata": instance.metadata.model_copy(update=changes)})
        self.objects[made.key] = made
        return made

    async def update(self, item: HeldT) -> HeldT:
        self._write(f"update {item.key}")
        self._require_allowed(item.key)
        if self.objects[item.key].metadata.resource_version != item.metadata.resource_version:
            raise Conflict(f"{item.key} has changed")
        metadata = item.metadata.model_copy(update={"resource_version": str(next(self._versions))})
        made = item.model_copy(update={"metadata": metadata})
        self.objects[made.key] = made
        return made

    async def delete(self, key: ObjectKey, uid: str) -> None:
        self._write(f"delete {key}")
        if self.objects[key].metadata.uid != uid:
            raise Conflict(f"{key} is another object")
        del self.objects[key]

    async def write_status(self, key: ObjectKey, status: Status, events: tuple[Event, ...] = ()) -> None:
        self._write(f"status {key}")
        self._require_allowed(key)
        self.events += events
        if (item := self.objects.get(key)) is not None:
            self.objects[key] = item.model_copy(update={"status": status})

    def _require_allowed(self, key: ObjectKey) -> None:
        if key in self.forbidden:
            raise Refused(f"'{key}' is forbidden by a rule")

    def _write(self, what: str) -> None:
        self.writes.append(what)
        if self.fail:
            raise self.fail.pop(0)
