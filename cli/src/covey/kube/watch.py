"""Watching kinds at the API server, for as long as somebody reads: lists, then follows; never loses a change for good.

| what comes | what follows |
|---|---|
| a bookmark | the place to go on from moves; it is a sign of life |
| the stream ends, or is silent for `SILENCE_SECONDS` | watch again from the same place |
| 410, as a status or as an event | list again; what vanished meanwhile is told as deleted |
| the server is away | try again, for `AWAY_SECONDS` in all |

One thread a kind, because each watch is a stream of its own; they meet in one bounded queue.
"""

import queue
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import cast

import httpx
from covey_api.kinds import Kind

from covey.errors import CommandError
from covey.kube.api import KubeApi, parse_lines, path_of
from covey.kube.refusals import Refusal, refusal_of
from covey.ports import JsonObject

# The API server sends a bookmark about once a minute.
SILENCE_SECONDS = 90.0
AWAY_SECONDS = 60.0
RETRY_SECONDS = 1.0
# A reader that is slower than this many changes holds up the stream, not the memory.
MAX_WAITING = 1000

Key = tuple[str, str]


class Gone(Exception):
    """The server no longer knows the place to go on from."""


class KindWatch:
    """One kind in one namespace or in all."""

    def __init__(self, api: KubeApi, kind: type[Kind], namespace: str | None) -> None:
        self._api = api
        self._path = path_of(kind, namespace)
        self._known: dict[Key, JsonObject] = {}
        self._version = ""

    def follow(self) -> Iterator[JsonObject]:
        """Changes for ever. CommandError when the server refuses, or is away for too long."""
        away_since: float | None = None
        while True:
            try:
                if not self._version:
                    yield from self._list()
                for change in self._watch():
                    away_since = None
                    yield change
            except Gone:
                self._version = ""
            except (httpx.TransportError, CommandError) as error:
                away_since = time.monotonic() if away_since is None else away_since
                is_final = isinstance(error, Refusal) and error.is_final
                if is_final or time.monotonic() - away_since > AWAY_SECONDS:
                    raise
                time.sleep(RETRY_SECONDS)

    def _list(self) -> Iterator[JsonObject]:
        items, version = self._api.list_all(self._path)
        current = {key_of(item): item for item in items}
        known, self._known, self._version = self._known, current, version
        for key, item in known.items():
            if key not in current:
                yield {"type": "DELETED", "object": item}
        for key, item in current.items():
            if key not in known:
                yield {"type": "ADDED", "object": item}
            elif version_of(known[key]) != version_of(item):
                yield {"type": "MODIFIED", "object": item}

    def _watch(self) -> Iterator[JsonObject]:
        params = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": self._version}
        try:
            with self._api.stream(self._path, params, SILENCE_SECONDS) as response:
                if response.status_code == HTTPStatus.GONE:
                    raise Gone
                if response.is_error:
                    response.read()
                    raise refusal_of(response, self._api.context)
                for event in parse_lines(response):
                    yield self._take(event)
        except httpx.ReadTimeout:
            return

    def _take(self, event: JsonObject) -> JsonObject:
        item = cast(JsonObject, event["object"])
        if event["type"] == "ERROR":
            if item.get("code") == HTTPStatus.GONE:
                raise Gone
            raise CommandError(f"the watch ended: {item.get('message', item)}")
        self._version = version_of(item)
        if event["type"] == "BOOKMARK":
            return {}
        if event["type"] == "DELETED":
            self._known.pop(key_of(item), None)
        else:
            self._known[key_of(item)] = item
        return {"type": event["type"], "object": item}


def watch_kinds(api: KubeApi, kinds: list[type[Kind]], namespace: str | None) -> Iterator[JsonObject]:
    """Changes of all these kinds as they come. CommandError of the first that fails."""
    if len(kinds) == 1:
        yield from KindWatch(api, kinds[0], namespace).follow()
        return
    changes: queue.Queue[JsonObject | Exception] = queue.Queue(MAX_WAITING)

    def copy(watch: KindWatch) -> None:
        try:
            for change in watch.follow():
                changes.put(change)
        except Exception as error:
            changes.put(error)

    for kind in kinds:
        # They end with the process: a watch has no end of its own, and nothing of it must be kept.
        threading.Thread(target=copy, args=(KindWatch(api, kind, namespace),), daemon=True).start()
    while True:
        change = changes.get()
        if isinstance(change, Exception):
            raise change
        yield change


def key_of(item: JsonObject) -> Key:
    return str(item["metadata"].get("namespace", "")), str(item["metadata"]["name"])


def version_of(item: JsonObject) -> str:
    return str(item["metadata"].get("resourceVersion", ""))
