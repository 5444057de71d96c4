"""kopf's watch on a real API server: what is left of it when it ends, and what it survives."""

import asyncio
import gc
import json
import threading
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest
from covey_api.kinds import Kind
from covey_api.registry import KINDS
from covey_controller.stores.kube.client import JsonObject, KubeClient
from covey_controller.stores.kube.credentials import KubeconfigLogin
from covey_controller.stores.kube.errors import KubeAway
from covey_controller.stores.kube.watch import KopfWatch
from kit.kube import until
from kit.tcp_proxy import TcpProxy, running_proxy
from testbed.kube.controlplane import ControlPlane

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def no_connection_is_left_to_the_garbage_collector() -> Generator[None]:
    """It would warn of it, which fails whichever test runs then."""
    yield
    gc.collect()


@pytest.fixture
def plane(control_plane: ControlPlane) -> ControlPlane:
    control_plane.clear("default")
    return control_plane


def proxied_kubeconfig(plane: ControlPlane, proxy: TcpProxy, folder: Path) -> Path:
    path = folder / "proxied.kubeconfig"
    path.write_text(plane.kubeconfig.read_text().replace(f":{plane.port}", f":{proxy.port}"))
    return path


def count_sockets(port: int) -> int:
    """Connections of this process to the port."""
    found = psutil.Process().net_connections("tcp4")
    return sum(bool(each.raddr) and each.raddr.port == port for each in found)


class Seen:
    """What a watch has delivered."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def deliver(self, _kind: type[Kind], _event: str | None, raw: JsonObject) -> None:
        self.names.append(raw["metadata"]["name"])


FAULTS = ("none", "cut", "closed", "silent")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("is_watching", [True, False], ids=["watching", "starting"])
def test_watch_that_ends_leaves_no_socket_and_no_thread_whatever_the_network_does(
    plane: ControlPlane, tmp_path: Path, fault: str, is_watching: bool
) -> None:
    before = threading.enumerate()

    async def scenario() -> None:
        async with running_proxy(plane.port) as proxy:
            login = KubeconfigLogin(proxied_kubeconfig(plane, proxy, tmp_path))
            for number in range(5):
                watch = KopfWatch(login, tuple(KINDS.values()), Seen().deliver)
                watch.start()
                if is_watching:
                    await until(lambda: count_sockets(proxy.port) >= len(KINDS))
                else:
                    await asyncio.sleep(0.05 * number)
                proxy.is_open = fault != "closed"
                proxy.delay_seconds = 3600.0 if fault == "silent" else 0.0
                if fault in ("cut", "closed"):
                    proxy.cut()
                await asyncio.sleep(0.05)
                await watch.stop()
                assert watch.ended.is_set()
                assert count_sockets(proxy.port) == 0
                assert not [each for each in threading.enumerate() if each.name == "kopf" and each not in before]
                proxy.is_open, proxy.delay_seconds = True, 0.0

    asyncio.run(scenario())


def test_watch_that_was_stopped_hands_nothing_on_any_more(plane: ControlPlane) -> None:
    async def scenario() -> None:
        seen = Seen()
        plane.kubectl("create", "-f", "-", text=json.dumps(node("before")))
        watch = KopfWatch(KubeconfigLogin(plane.kubeconfig), tuple(KINDS.values()), seen.deliver)
        watch.start()
        await until(lambda: "before" in seen.names)
        plane.kubectl("create", "-f", "-", text=json.dumps(node("after")))
        await watch.stop()
        held = list(seen.names)
        await asyncio.sleep(0.2)
        assert seen.names == held

    asyncio.run(scenario())


def node(name: str) -> JsonObject:
    return {"apiVersion": "covey.dev/v1alpha1", "kind": "Node", "metadata": {"name": name}, "spec": {}}


@pytest.mark.parametrize("fault", ["refused", "unreadable"])
def test_watch_that_can_not_log_in_ends_by_itself(plane: ControlPlane, tmp_path: Path, fault: str) -> None:
    """It would be silent for ever otherwise, and nobody would begin another one."""

    async def scenario() -> None:
        path = plane.write_kubeconfig(tmp_path / "wrong.kubeconfig", "nobody's")
        if fault == "unreadable":
            path.write_text("{}")
        watch = KopfWatch(KubeconfigLogin(path), tuple(KINDS.values()), Seen().deliver)
        watch.start()
        async with asyncio.timeout(30):
            await watch.ended.wait()
        assert watch.error is not None
        assert count_sockets(plane.port) == 0

    asyncio.run(scenario())


def test_client_that_is_closed_in_the_midst_of_calls_leaves_no_socket(plane: ControlPlane, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_proxy(plane.port) as proxy:
            client = KubeClient(KubeconfigLogin(proxied_kubeconfig(plane, proxy, tmp_path)))
            assert (await client.request("GET", "/version"))["major"]
            proxy.delay_seconds = 3600.0
            calls = [asyncio.ensure_future(client.request("GET", "/api")) for _ in range(4)]
            await asyncio.sleep(0.3)
            assert count_sockets(proxy.port) > 0
            await client.close()
            assert count_sockets(proxy.port) == 0
            ends = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(end, KubeAway | RuntimeError) for end in ends), ends

    asyncio.run(scenario())
