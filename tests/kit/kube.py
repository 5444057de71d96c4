"""A kube store that runs on a real API server while a test looks at it, and the people who write there."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import yaml
from covey_api.kinds import ObjectKey
from covey_api.registry import KINDS
from covey_controller.ports import LeaderAddress
from covey_controller.stores.kube.client import APPLY_PATCH, JsonObject, KubeClient
from covey_controller.stores.kube.credentials import KubeconfigLogin
from covey_controller.stores.kube.objects import object_path, sight_object
from covey_controller.stores.kube.store import KubeStore
from testbed.kube.controlplane import ControlPlane

NAMESPACE = "default"
ADDRESS = LeaderAddress("127.0.0.1:52414", "127.0.0.1:52413")
SEEN_SECONDS = 20.0


@contextlib.asynccontextmanager
async def running_kube_store(
    plane: ControlPlane,
    *,
    namespace: str = NAMESPACE,
    holder: str = "test",
    leads: bool = True,
    kubeconfig: Path | None = None,
    address: LeaderAddress = ADDRESS,
) -> AsyncGenerator[KubeStore]:
    """A kube store that leads, unless told not to, and follows the API server."""
    async with KubeClient(KubeconfigLogin(kubeconfig or plane.kubeconfig)) as client:
        store = KubeStore(client, namespace, observe_address=lambda: address, authority="sha256:test")
        running = asyncio.create_task(store.run())
        try:
            if leads:
                await store.acquire_lease(holder)
            yield store
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def until(holds: Callable[[], bool], seconds: float = SEEN_SECONDS) -> None:
    """Wait until it holds. TimeoutError if it doesn't."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - anything may make it hold
            await asyncio.sleep(0.005)


class People:
    """Whoever writes objects at the API server. Returns when the store has seen what was written."""

    def __init__(self, plane: ControlPlane, store: KubeStore) -> None:
        self._plane = plane
        self._store = store

    async def apply(self, text: str, manager: str = "kubectl") -> None:
        """Server-side apply of YAML documents."""
        for document in yaml.safe_load_all(text):
            kind = KINDS[document["kind"]]
            metadata: dict[str, Any] = document["metadata"]
            if kind.NAMESPACED:
                metadata.setdefault("namespace", NAMESPACE)
            key = ObjectKey(kind.__name__, metadata.get("namespace", ""), metadata["name"])
            raw = await self._call("PATCH", key, document, APPLY_PATCH, {"fieldManager": manager})
            await self.until_seen(key, raw)

    async def delete(self, key: ObjectKey) -> None:
        raw = await self._call("DELETE", key)
        is_held = "finalizers" in raw.get("metadata", {})
        await until(lambda: self._is_leaving(key) if is_held else key not in self._store.sync.objects)

    async def read(self, key: ObjectKey) -> JsonObject:
        return await self._call("GET", key)

    async def patch(self, key: ObjectKey, body: JsonObject, subresource: str = "") -> JsonObject:
        """A merge patch."""
        return await self._call("PATCH", key, body, "application/merge-patch+json", subresource=subresource)

    def version(self, key: ObjectKey) -> int:
        """The version that the store knows; zero if it knows no such object."""
        entry = self._store.sync.mirrors[KINDS[key.kind]].entries.get(key)
        return entry.version if entry else 0

    async def until_seen(self, key: ObjectKey, raw: JsonObject) -> None:
        version = sight_object(KINDS[key.kind], raw).version
        await until(lambda: self.version(key) >= version)

    def _is_leaving(self, key: ObjectKey) -> bool:
        found = self._store.sync.objects.get(key)
        return found is None or found.metadata.deletion_timestamp is not None

    async def _call(
        self,
        method: str,
        key: ObjectKey,
        body: JsonObject | None = None,
        content_type: str = "application/json",
        query: dict[str, str] | None = None,
        subresource: str = "",
    ) -> JsonObject:
        def call() -> JsonObject:
            path = object_path(key) + (f"/{subresource}" if subresource else "")
            headers = {"content-type": content_type} if body else None
            with self._plane.client() as client:
                answer = client.request(method, path, json=body, params=query, headers=headers)
            assert answer.is_success, f"{method} {path}: {answer.text}"
            return answer.json()

        return await asyncio.to_thread(call)
