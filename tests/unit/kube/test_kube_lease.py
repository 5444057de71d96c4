"""The holder of the Lease and an API server that answers late. How others see the Lease: `test_kube_lease_record`."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from covey_controller.ports import LeaderAddress
from covey_controller.stores.kube import lease as lease_module
from covey_controller.stores.kube.client import JsonObject, KubeClient
from covey_controller.stores.kube.credentials import KubeconfigLogin
from covey_controller.stores.kube.errors import KubeError
from covey_controller.stores.kube.lease import LeaseHolder
from kit.kube import until


class LateServer(KubeClient):
    """Holds one Lease; `late` holds back the answer to a change that was made."""

    def __init__(self) -> None:
        super().__init__(KubeconfigLogin(Path(os.devnull)))  # never dialled
        self.stored: JsonObject = {}
        self.late: asyncio.Event | None = None
        self.changes = 0

    async def request(self, method: str, path: str, *, body: Any = None, **_: object) -> JsonObject:
        if method == "GET":
            if not self.stored:
                raise KubeError(path, 404, "NotFound", "")
            return self.stored
        metadata = self.stored.get("metadata", {})
        if method == "PATCH" and body["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            raise KubeError(path, 409, "Conflict", "")
        version = str(int(metadata.get("resourceVersion", "0")) + 1)
        made = self.stored = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
        self.changes += 1
        late, self.late = self.late, None
        if late is not None:
            await late.wait()
        return made


def test_late_answer_to_a_renewal_costs_the_next_holding_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The renewal hangs until the holding is given up; the same process takes the Lease again, and then it answers."""
    now = 100.0
    monkeypatch.setattr(lease_module, "observe_seconds", lambda: now)
    monkeypatch.setattr(lease_module, "RENEW_SECONDS", 0.01)

    async def scenario() -> None:
        nonlocal now
        server = LateServer()
        holder = LeaseHolder(server, "default", lambda: LeaderAddress("a:1", "a:2"))
        assert await holder.look("me")
        first = await holder.take("me", 0)
        assert first is not None
        late = server.late = asyncio.Event()
        keeping = asyncio.create_task(holder.keep())
        await until(lambda: server.changes == 2)
        now += 11
        assert holder.current() is None
        assert await holder.look("me")
        second = await holder.take("me", 0)
        assert second is not None
        assert second.term == first.term + 1
        late.set()
        changes = server.changes
        await until(lambda: server.changes >= changes + 3)
        assert not second.lost.is_set()
        assert holder.current() is second
        keeping.cancel()

    asyncio.run(scenario())
