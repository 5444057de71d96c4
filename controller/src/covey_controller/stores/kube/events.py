"""Events that `kubectl describe` shows: core/v1, one object for each (object, reason, message), counted.

They are written beside the reconciler, never in its way: a bounded queue, and what can't be written is dropped. The
API server forgets them after an hour.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from covey_api.meta import API_VERSION, DEFAULT_NAMESPACE

from covey_controller.ports import Event
from covey_controller.stores.kube.client import MERGE_PATCH, JsonObject, KubeClient
from covey_controller.stores.kube.errors import KubeAway, KubeError
from covey_controller.stores.kube.objects import FIELD_OWNER

log = logging.getLogger(__name__)

# A turn of a large fleet says a few hundred things at once; more than this is a storm that nobody reads.
MAX_WAITING = 1_000
# Counts that are known without asking; for others the stored Event is read first.
MAX_REMEMBERED = 2_000
# The API server's own limit.
MAX_MESSAGE_BYTES = 1_024
AWAY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    event: Event
    uid: str
    seen: datetime


class EventRecorder:
    """Records events; `run` must run."""

    def __init__(self, client: KubeClient, utc_now: Callable[[], datetime]) -> None:
        self._client = client
        self._utc_now = utc_now
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(MAX_WAITING)
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._said = False

    def record(self, event: Event, uid: str) -> None:
        """Write it soon; dropped when too many wait."""
        try:
            self._queue.put_nowait(_Waiting(event, uid, self._utc_now()))
        except asyncio.QueueFull:
            log.debug("dropped event of %s: %s", event.key, event.reason)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            waiting = await self._queue.get()
            try:
                await self._write(waiting)
                self._said = False
            except (KubeError, ValueError) as error:
                if not self._said:
                    log.warning("an event of %s can't be recorded: %s", waiting.event.key, error)
                self._said = True
                if isinstance(error, KubeAway):
                    await asyncio.sleep(AWAY_SECONDS)

    async def _write(self, waiting: _Waiting) -> None:
        """1. Known: counted. 2. New: made. 3. Made before this process began: read, then counted."""
        key = waiting.event.key
        name = event_name(waiting.event, waiting.uid)
        folder = f"/api/v1/namespaces/{key.namespace or DEFAULT_NAMESPACE}/events"
        count = self._counts.get(name)
        if count is not None and await self._count(f"{folder}/{name}", count + 1, waiting.seen):
            self._remember(name, count + 1)
            return
        try:
            await self._client.request("POST", folder, body=render_event(waiting.event, waiting.uid, waiting.seen))
            self._remember(name, 1)
        except KubeError as error:
            if not error.is_conflict:
                raise
            stored = await self._client.request("GET", f"{folder}/{name}")
            count = int(stored.get("count") or 1) + 1
            await self._count(f"{folder}/{name}", count, waiting.seen)
            self._remember(name, count)

    async def _count(self, path: str, count: int, seen: datetime) -> bool:
        """False if the Event is gone."""
        body = {"count": count, "lastTimestamp": _stamp(seen)}
        try:
            await self._client.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        except KubeError as error:
            if error.is_missing:
                return False
            raise
        return True

    def _remember(self, name: str, count: int) -> None:
        self._counts[name] = count
        self._counts.move_to_end(name)
        if len(self._counts) > MAX_REMEMBERED:
            self._counts.popitem(last=False)


def event_name(event: Event, uid: str) -> str:
    """The same for the same (object, reason, message): whoever leads counts on."""
    digest = hashlib.sha256("\0".join((uid, event.reason, event.message)).encode()).hexdigest()[:16]
    return f"{event.key.name}.{digest}"


def render_event(event: Event, uid: str, seen: datetime) -> JsonObject:
    """The body of a new one. Those of an object without a namespace are in `default`, as all of Kubernetes' are."""
    key = event.key
    namespace = key.namespace or DEFAULT_NAMESPACE
    involved = {"apiVersion": API_VERSION, "kind": key.kind, "name": key.name, "uid": uid}
    if key.namespace:
        involved["namespace"] = key.namespace
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event_name(event, uid), "namespace": namespace},
        "involvedObject": involved,
        "reason": event.reason,
        "message": event.message.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore"),
        "type": "Warning" if event.warning else "Normal",
        "count": 1,
        "firstTimestamp": _stamp(seen),
        "lastTimestamp": _stamp(seen),
        "source": {"component": FIELD_OWNER},
        "reportingComponent": FIELD_OWNER,
        "reportingInstance": FIELD_OWNER,
    }


def _stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
