"""What must hold for months: outages that restart nobody, and a Secret that doesn't grow."""

import asyncio
from pathlib import Path

import pytest
from covey_api.messages import CertificateRole
from covey_controller.denials import JOINING_SECONDS, Denials
from covey_controller.stores.kube.client import KubeClient
from covey_controller.stores.kube.credentials import KubeconfigLogin
from covey_controller.stores.kube.sync import Sync
from covey_controller.stores.kube.vault import KubeVault
from covey_controller.vault import DENIALS
from kit.kube import until
from kit.tcp_proxy import running_proxy
from testbed.kube.controlplane import ControlPlane

pytestmark = pytest.mark.integration

LONG_SECONDS = 60.0


def test_lists_that_fail_count_as_tried_so_an_outage_restarts_nobody(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with running_proxy(control_plane.port) as proxy:
            path = tmp_path / "proxied.kubeconfig"
            path.write_text(control_plane.kubeconfig.read_text().replace(f":{control_plane.port}", f":{proxy.port}"))
            async with KubeClient(KubeconfigLogin(path)) as client:
                sync = Sync(client, KubeconfigLogin(path), lambda _: None, list_seconds=5.0)
                running = asyncio.create_task(sync.run())
                await until(lambda: sync.is_synced, LONG_SECONDS)
                proxy.is_open = False
                proxy.cut()
                await until(lambda: not sync.is_synced, LONG_SECONDS)
                ages = [sync.tried_age_seconds]

                def was_tried_again() -> bool:
                    ages.append(sync.tried_age_seconds)
                    return ages[-1] < ages[-2]

                for _ in range(2):
                    await until(was_tried_again, LONG_SECONDS)
                assert sync.synced_age_seconds > sync.tried_age_seconds
                assert not sync.is_synced
                proxy.is_open = True
                await until(lambda: sync.is_synced, LONG_SECONDS)
                running.cancel()
                await asyncio.wait([running])

    asyncio.run(scenario())


def test_the_secret_does_not_grow_with_every_pod_that_ever_joined(control_plane: ControlPlane) -> None:
    """Each rollout of the gateways brings pods of other names."""

    async def scenario() -> list[int]:
        sizes: list[int] = []
        async with KubeClient(KubeconfigLogin(control_plane.kubeconfig)) as client:
            vault = KubeVault(client, "default", name="rollouts")
            denials = Denials(vault)
            for number in range(12):
                now = 1_800_000_000 + number * (JOINING_SECONDS + 1)
                living = {f"gateway-{number:03d}-{each}" for each in range(3)}
                for name in sorted(living):
                    await denials.record_issue(
                        CertificateRole.GATEWAY, name, now, is_pod=True, may_be_there=living.__contains__
                    )
                sizes.append(len(await vault.read(DENIALS) or b""))
        return sizes

    sizes = asyncio.run(scenario())
    assert len(set(sizes[1:])) == 1, sizes
