"""Keeps the mirror: a whole list at first and every minute, and watch events in between.

The list is what is trusted: it finds what a watch missed, and its age is what readiness reports; liveness, that lists
are tried. The watch is what is quick. One that ended, or that did not show what a list has, is begun anew.

While the API server is away, or the kinds are not installed, the mirror stays as it was: nothing is concluded from an
answer that didn't come.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping

from covey_api.kinds import Kind, ObjectKey
from covey_api.registry import KINDS

from covey_controller.stores.kube.client import JsonObject, KubeClient
from covey_controller.stores.kube.credentials import InvalidLogin, Login
from covey_controller.stores.kube.errors import KubeAway, KubeError, no_api_server
from covey_controller.stores.kube.mirror import Change, KindMirror
from covey_controller.stores.kube.objects import Sighting, collection_path, parse_page, sight_object
from covey_controller.stores.kube.watch import KopfWatch

log = logging.getLogger(__name__)

LIST_SECONDS = 60.0
# Of one answer: below a megabyte for what Covey stores.
PAGE_OBJECTS = 500
# After a failure; doubling. The API server is back within seconds when it is restarted.
FIRST_RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 10.0
# kopf lists anew when its watch was cut off: what went meanwhile is found by a list of ours, once for all kinds.
SETTLE_SECONDS = 1.0
# A watch shows within milliseconds what was written before a list; a loaded machine needs longer.
WATCH_GRACE_SECONDS = 20.0
LOOK_SECONDS = 1.0
EXPIRED = 410


class Sync:
    """The mirror of all kinds, and the tasks that keep it."""

    def __init__(
        self,
        client: KubeClient,
        login: Login,
        on_change: Callable[[Change], None],
        *,
        list_seconds: float = LIST_SECONDS,
    ) -> None:
        self._client = client
        self._login = login
        self._on_change = on_change
        self._list_seconds = list_seconds
        self.mirrors: Mapping[type[Kind], KindMirror] = {kind: KindMirror(kind) for kind in KINDS.values()}
        self.listed = asyncio.Event()
        """Set once every kind has been listed whole."""
        self._listed_at = -math.inf
        self._tried_at = time.monotonic()
        self._listing = asyncio.Lock()
        self._objects: Mapping[ObjectKey, Kind] | None = None
        self._relist = asyncio.Event()
        self._said = ""
        self._watched = dict.fromkeys(self.mirrors, 0)
        self._behind_since: float | None = None
        self._newest = dict.fromkeys(self.mirrors, 0)
        self._missing: set[type[Kind]] = set()
        """Kinds that weren't served when they were listed last."""
        self._is_kind_back = False
        """One of them is served now: kopf watches those alone that it found at its start."""
        self.watch_restarts = 0
        """How often the watch of all kinds was begun anew."""

    @property
    def is_synced(self) -> bool:
        """Whether the last list is recent: two may fail."""
        return self.synced_age_seconds < 3 * self._list_seconds

    @property
    def synced_age_seconds(self) -> float:
        """Since the last whole list of every kind began; infinite before the first."""
        return time.monotonic() - self._listed_at

    @property
    def tried_age_seconds(self) -> float:
        """Since a whole list came to its end last, well or not; each of its calls has a deadline."""
        return time.monotonic() - self._tried_at

    @property
    def objects(self) -> Mapping[ObjectKey, Kind]:
        """All objects, in a mapping that is replaced and never changed."""
        if self._objects is None:
            self._objects = {
                key: entry.object for mirror in self.mirrors.values() for key, entry in mirror.entries.items()
            }
        return self._objects

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._list_for_ever())
            group.create_task(self._watch_for_ever())

    async def list_anew(self) -> None:
        """List every kind whole, now. KubeError if that fails: then nothing is known to be as it was."""
        async with self._listing:
            began = time.monotonic()
            await self._list_all()
            self._listed_at = began
        self.listed.set()

    def observe(self, kind: type[Kind], raw: JsonObject) -> None:
        """What the API server answered to a write of ours."""
        self._tell(self.mirrors[kind].observe(sight_object(kind, raw)))

    def observe_gone(self, kind: type[Kind], raw: JsonObject) -> None:
        """An object that a write of ours removed, or didn't find."""
        self._tell(self.mirrors[kind].observe_gone(sight_object(kind, raw)))

    def observe_missing(self, key: ObjectKey, uid: str) -> None:
        """An object that a write of ours did not find any more."""
        kind = KINDS[key.kind]
        entry = self.mirrors[kind].entries.get(key)
        if entry is not None and entry.uid == uid:
            self._tell(self.mirrors[kind].observe_gone(Sighting(key, uid, entry.version, {})))

    async def _list_for_ever(self) -> None:
        retry_seconds = FIRST_RETRY_SECONDS
        while True:
            self._relist.clear()
            try:
                await self.list_anew()
            except (KubeError, InvalidLogin) as error:
                self._tried_at = time.monotonic()
                self._say(error)
                await asyncio.sleep(retry_seconds)
                retry_seconds = min(MAX_RETRY_SECONDS, retry_seconds * 2)
                continue
            self._tried_at = time.monotonic()
            if self._said:
                log.info("the API server's objects are listed again")
            self._said, retry_seconds = "", FIRST_RETRY_SECONDS
            await self._rest()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(self._list_seconds):
                await self._relist.wait()
        except TimeoutError:
            return
        await asyncio.sleep(SETTLE_SECONDS)

    async def _list_all(self) -> None:
        """Every kind that can be listed; then the first failure, if there was one."""
        failures: list[KubeError] = []
        for kind in self.mirrors:
            try:
                await self._list_kind(kind)
            except KubeAway:
                raise
            except KubeError as error:
                failures.append(error)
                if error.is_missing:
                    self._missing.add(kind)
        if failures:
            raise failures[0]

    async def _list_kind(self, kind: type[Kind]) -> None:
        mirror = self.mirrors[kind]
        mark = mirror.begin_list()
        version, sightings = await self._pages(kind)
        if kind in self._missing:
            self._missing.remove(kind)
            self._is_kind_back = True
        if version < self._watched[kind]:
            self._watched[kind] = 0
        self._newest[kind] = max((each.version for each in sightings), default=0)
        for change in mirror.end_list(mark, version, sightings):
            self._tell(change)

    async def _pages(self, kind: type[Kind]) -> tuple[int, list[Sighting]]:
        """All objects at one version. Begun anew, once, when the pages took so long that the version expired."""
        for is_last in (False, True):
            try:
                return await self._follow_pages(kind)
            except KubeError as error:
                if error.status != EXPIRED or is_last:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _follow_pages(self, kind: type[Kind]) -> tuple[int, list[Sighting]]:
        sightings: list[Sighting] = []
        query = {"limit": str(PAGE_OBJECTS)}
        while True:
            path = collection_path(kind)
            content = await self._client.read(path, query)
            try:
                page = parse_page(kind, content)
            except ValueError as error:
                raise no_api_server(f"GET {path}", content) from error
            sightings += page.sightings
            if not page.following:
                return page.version, sightings
            query["continue"] = page.following

    async def _watch_for_ever(self) -> None:
        retry_seconds = FIRST_RETRY_SECONDS
        while True:
            await self.listed.wait()
            began = time.monotonic()
            watch = KopfWatch(self._login, tuple(self.mirrors), self._on_event)
            self._watched = dict.fromkeys(self._watched, 0)
            self._behind_since, self._is_kind_back = None, False
            watch.start()
            try:
                why = await self._until_useless(watch)
            finally:
                await watch.stop()
            self.watch_restarts += 1
            log.debug("watching anew: %s", why)
            if time.monotonic() - began > self._list_seconds:
                retry_seconds = FIRST_RETRY_SECONDS
            await asyncio.sleep(retry_seconds)
            retry_seconds = min(MAX_RETRY_SECONDS, retry_seconds * 2)
            self._relist.set()

    async def _until_useless(self, watch: KopfWatch) -> str:
        """Until the watch ended, or shows less than lists do; why, in words."""
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await watch.ended.wait()
                return f"it ended: {watch.error!r}"
            except TimeoutError:
                pass
            if self._is_kind_back:
                return "a kind is served again"
            behind = [kind.PLURAL for kind, newest in self._newest.items() if newest > self._watched[kind]]
            now = time.monotonic()
            self._behind_since = (self._behind_since or now) if behind else None
            if self._behind_since is not None and now - self._behind_since > WATCH_GRACE_SECONDS:
                return f"it did not show the newest of {', '.join(behind)}"

    def _on_event(self, kind: type[Kind], event: str | None, raw: JsonObject) -> None:
        sighting = sight_object(kind, raw)
        self._watched[kind] = max(self._watched[kind], sighting.version)
        mirror = self.mirrors[kind]
        self._tell(mirror.observe_gone(sighting) if event == "DELETED" else mirror.observe(sighting))
        if event is None:
            self._relist.set()

    def _tell(self, change: Change | None) -> None:
        if change is None:
            return
        self._objects = None
        before = change.before.fault if change.before else ""
        if change.after is not None and change.after.fault and change.after.fault != before:
            log.warning("%s can't be read whole by this version, %s", change.key, change.after.fault)
        self._on_change(change)

    def _say(self, error: KubeError | InvalidLogin) -> None:
        """Each kind of failure once, until things go well again."""
        is_missing = isinstance(error, KubeError) and error.is_missing
        kind = "missing" if is_missing else type(error).__name__
        if kind == self._said:
            return
        self._said = kind
        if is_missing:
            log.error(
                "Covey's kinds must be installed (`kubectl apply -f manifests/crds`); waiting for them: %s", error
            )
        else:
            log.error("the API server's objects can't be listed, going on with what is known: %s", error)
