"""A store whose writes are counted. It decides nothing, and is the same in both modes."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from covey_api.kinds import Kind, ObjectKey
from covey_api.meta import Status

from covey_controller.metrics.figures import ControllerMetrics, Verb
from covey_controller.ports import CreatedT, Event, HeldT, Lease, Store


class MeasuredStore:
    """`Store` of the ports, over another one."""

    def __init__(self, store: Store, metrics: ControllerMetrics) -> None:
        self._store = store
        self._metrics = metrics

    @property
    def writes_at_once(self) -> int:
        return self._store.writes_at_once

    async def acquire_lease(self, holder: str) -> Lease:
        return await self._store.acquire_lease(holder)

    async def raise_term(self, above: int) -> Lease:
        return await self._store.raise_term(above)

    async def list_objects(self) -> Mapping[ObjectKey, Kind]:
        return await self._store.list_objects()

    async def wait_changed(self, timeout_seconds: float) -> bool:
        return await self._store.wait_changed(timeout_seconds)

    async def create(self, instance: CreatedT) -> CreatedT:
        with self._counted(instance.key, Verb.CREATE):
            return await self._store.create(instance)

    async def update(self, item: HeldT) -> HeldT:
        with self._counted(item.key, Verb.UPDATE):
            return await self._store.update(item)

    async def delete(self, key: ObjectKey, uid: str) -> None:
        with self._counted(key, Verb.DELETE):
            await self._store.delete(key, uid)

    async def write_status(self, key: ObjectKey, status: Status, events: tuple[Event, ...] = ()) -> None:
        with self._counted(key, Verb.STATUS):
            await self._store.write_status(key, status, events)

    @contextmanager
    def _counted(self, key: ObjectKey, verb: Verb) -> Generator[None]:
        try:
            yield
        except Exception as error:
            self._metrics.record_write(key.kind, verb, error)
            raise
        self._metrics.record_write(key.kind, verb, None)
