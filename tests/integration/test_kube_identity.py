"""The fleet's identity in a Secret of a real API server: made once, finished after a cut, never made a second time."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import pytest
from covey_controller.credentials import Credentials, open_credentials
from covey_controller.ports import Vault
from covey_controller.stores.kube.client import KubeClient
from covey_controller.stores.kube.credentials import KubeconfigLogin
from covey_controller.stores.kube.identity import QUIET_SECONDS, wait_for_identity
from covey_controller.stores.kube.vault import KubeVault
from kit.kube import running_kube_store, until
from testbed.kube.controlplane import ControlPlane

pytestmark = pytest.mark.integration

NAMESPACE = "default"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/covey-controller"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/covey-controller"


@pytest.fixture
def plane(control_plane: ControlPlane) -> ControlPlane:
    control_plane.clear(NAMESPACE)
    return control_plane


class PowerCut(BaseException):
    """The process is gone: nothing of it runs after this."""


@dataclass
class CutVault:
    """A vault whose process ends before its write number `left`. Each write is one call, so nothing is between them."""

    vault: Vault
    left: int

    async def read(self, name: str) -> bytes | None:
        return await self.vault.read(name)

    async def replace(self, name: str, content: bytes, *, seen: bytes | None) -> None:
        self.left -= 1
        if self.left < 0:
            raise PowerCut
        await self.vault.replace(name, content, seen=seen)


@contextlib.asynccontextmanager
async def logged_in(plane: ControlPlane) -> AsyncGenerator[KubeClient]:
    async with KubeClient(KubeconfigLogin(plane.kubeconfig)) as client:
        yield client


async def start(client: KubeClient) -> Credentials:
    """As a controller starts."""
    vault = KubeVault(client, NAMESPACE)
    await wait_for_identity(client, vault, NAMESPACE)
    return await open_credentials(vault)


async def lead(plane: ControlPlane) -> None:
    """Once, so that its Lease is there."""
    async with running_kube_store(plane):
        pass


def test_first_start_that_is_killed_before_any_of_its_writes_is_finished_by_the_next_one(plane: ControlPlane) -> None:
    async def scenario() -> int:
        async with logged_in(plane) as client:
            vault = KubeVault(client, NAMESPACE)
            for cuts in range(20):
                with contextlib.suppress(Exception):
                    await client.request("DELETE", SECRET)
                is_cut = False
                try:
                    await open_credentials(CutVault(vault, cuts))
                except PowerCut:
                    is_cut = True
                first, second = await open_credentials(vault), await open_credentials(vault)
                assert first.fleet_id == second.fleet_id
                assert first.trust.current.bundle == second.trust.current.bundle
                if not is_cut:
                    return cuts
        raise AssertionError("a first start must end within 20 writes")

    assert asyncio.run(scenario()) >= 3


def test_identity_is_made_where_there_is_none_and_finished_where_a_start_was_cut_off(plane: ControlPlane) -> None:
    async def scenario() -> None:
        async with logged_in(plane) as client:
            with pytest.raises(PowerCut):
                await open_credentials(CutVault(KubeVault(client, NAMESPACE), 1))
            async with asyncio.timeout(60):
                made, too = await asyncio.gather(start(client), start(client))
            assert made.fleet_id == too.fleet_id

    asyncio.run(scenario())


def test_controller_that_starts_without_the_secret_waits_for_one_that_runs(
    plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with logged_in(plane) as client, asyncio.TaskGroup() as group:
            runs = await start(client)
            await lead(plane)
            await client.request("DELETE", SECRET)
            starting = group.create_task(start(client))
            await asyncio.sleep(QUIET_SECONDS + 2.0)
            assert not starting.done(), "a fleet is here: its Lease says so"
            watching = group.create_task(runs.watch())
            async with asyncio.timeout(60):
                started = await starting
            assert started.fleet_id == runs.fleet_id
            assert started.trust.current.bundle == runs.trust.current.bundle
            watching.cancel()

    asyncio.run(scenario())
    assert caplog.text.count("put it back from a backup") == 1
    assert "delete lease/covey-controller configmap/covey-authority" in caplog.text


def test_controller_that_starts_on_an_emptied_store_takes_the_identity_of_one_that_runs(plane: ControlPlane) -> None:
    async def scenario() -> None:
        async with logged_in(plane) as client, asyncio.TaskGroup() as group:
            runs = await start(client)
            await lead(plane)
            watching = group.create_task(runs.watch())
            for path in (LEASE, SECRET):
                await client.request("DELETE", path)
            async with asyncio.timeout(60):
                started = await start(client)
            assert started.fleet_id == runs.fleet_id
            assert started.trust.current.bundle == runs.trust.current.bundle
            watching.cancel()

    asyncio.run(scenario())


def test_controller_that_finds_another_identity_keeps_its_own_and_does_not_lead(
    plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with logged_in(plane) as client, asyncio.TaskGroup() as group:
            runs = await start(client)
            authority = runs.trust.current.bundle
            await client.request("DELETE", SECRET)
            other = await open_credentials(KubeVault(client, NAMESPACE))
            watching = group.create_task(runs.watch())
            await until(lambda: "isn't this fleet's any more" in caplog.text)
            with pytest.raises(ValueError, match="isn't this fleet's any more"):
                await runs.reload()
            assert runs.trust.current.bundle == authority
            await other.reload()
            assert (await open_credentials(KubeVault(client, NAMESPACE))).fleet_id == other.fleet_id
            watching.cancel()

    asyncio.run(scenario())
