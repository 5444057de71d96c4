"""The composition of Kubernetes mode: one replica of several, of which one leads.

It decides nothing. Imported only when asked for: kopf and aiohttp are an extra.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from covey_fleet_client.backoff import Backoff
from covey_fleet_client.machine import observe_machine

from covey_controller.addresses import render_address
from covey_controller.board import FleetBoard
from covey_controller.control_api.access import ControlAccess
from covey_controller.control_api.cluster import ControlAddress, build_cluster_app, serve_cluster_control
from covey_controller.control_api.routes import KnowledgeRoutes
from covey_controller.credentials import Credentials, open_credentials
from covey_controller.explain import HistoryExplainer
from covey_controller.fleet_api.pods import Pods
from covey_controller.fleet_api.server import Replicas, serve_fleet
from covey_controller.history import History
from covey_controller.kube_options import KubeOptions
from covey_controller.loop import ReconcileLoop
from covey_controller.metrics.figures import ControllerMetrics, ControllerView, WatchView
from covey_controller.metrics.measured_store import MeasuredStore
from covey_controller.metrics.observing import observe_controller
from covey_controller.metrics.server import serve_metrics
from covey_controller.ports import LeaderAddress, VaultUnavailable
from covey_controller.probes import STALE_SECONDS, serve_probes
from covey_controller.serving.tls import is_wildcard, observe_addresses
from covey_controller.stores.kube.client import KubeClient
from covey_controller.stores.kube.credentials import InClusterLogin, KubeconfigLogin
from covey_controller.stores.kube.identity import wait_for_identity
from covey_controller.stores.kube.publishing import publish_authority
from covey_controller.stores.kube.reviews import KubeReviewer
from covey_controller.stores.kube.store import KubeStore
from covey_controller.stores.kube.vault import KubeVault

log = logging.getLogger(__name__)


async def run_kube(options: KubeOptions, host: str, port: int, metrics: tuple[str, int] | None, folder: Path) -> None:
    """Until cancelled. OSError, ValueError or ListenFailed when it can't start. `folder` is this process's own."""
    login = KubeconfigLogin(options.kubeconfig) if options.kubeconfig is not None else InClusterLogin()
    async with KubeClient(login) as client:
        namespace = options.namespace or (await client.read_credentials())[0].namespace
        if not namespace:
            raise ValueError("`--namespace` must name the controller's namespace; the kubeconfig's context names none")
        replica = Replica(options, client, namespace, folder)
        async with asyncio.TaskGroup() as group:
            if options.probe is not None:
                group.create_task(serve_probes(*options.probe, replica.is_ready, replica.is_alive))
            if metrics is not None:
                group.create_task(serve_metrics(*metrics, replica.metrics.registry))
            group.create_task(replica.run(host, port))


class Replica:
    """This process, from the vault's first answer on."""

    def __init__(self, options: KubeOptions, client: KubeClient, namespace: str, folder: Path) -> None:
        self._options = options
        self._client = client
        self._namespace = namespace
        self._folder = folder
        self._store: KubeStore | None = None
        self._view: Callable[[], ControllerView] = ControllerView
        self.metrics = ControllerMetrics(lambda: self._view())
        # Where it listens, once it does.
        self._fleet_port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._control_port: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def is_ready(self) -> bool:
        """It could lead."""
        return self._store is not None and self._store.is_synced

    def is_alive(self) -> bool:
        """Its lists come to an end, if only with a failure. Before the first one, that it answers is enough."""
        return self._store is None or self._store.tried_age_seconds < STALE_SECONDS

    async def run(self, host: str, port: int) -> None:
        credentials = await self._open_credentials()
        advertised = self._options.advertise or choose_advertised(host)
        store = KubeStore(
            self._client,
            self._namespace,
            observe_address=lambda: self._observe_address(advertised),
            authority=credentials.fleet_id,
        )
        self._store = store
        board, history = FleetBoard(asyncio.get_running_loop().time, observe_machine()), History()
        surroundings = credentials.surround(self.metrics.record_turn)
        loop = ReconcileLoop(MeasuredStore(store, self.metrics), board, history, surroundings)
        self._view = lambda: observe_controller(loop, board, history, observe_watch(store))
        names = (*self._options.fleet_names, advertised)
        fleet = Listening(loop, names, lambda: self._elsewhere(store, advertised, "fleet"))
        control = Listening(loop, names, lambda: self._elsewhere(store, advertised, "control"))
        async with asyncio.TaskGroup() as group:
            group.create_task(store.run())
            group.create_task(credentials.watch())
            group.create_task(self._serve_fleet(board, credentials, fleet, host, port))
            group.create_task(self._serve_control(history, board, credentials, control))
            group.create_task(self._publish(credentials, loop))
            # The lease says where both APIs listen.
            await self._fleet_port
            await self._control_port
            group.create_task(loop.run())

    async def _open_credentials(self) -> Credentials:
        """Waits for the API server: a cluster that starts has none for a while."""
        backoff, complaint, vault = Backoff(), "", KubeVault(self._client, self._namespace)
        while True:
            try:
                await wait_for_identity(self._client, vault, self._namespace)
                return await open_credentials(vault)
            except VaultUnavailable as error:
                if str(error) != complaint:
                    log.warning("the controller's Secret can't be used yet: %s", error)
                complaint = str(error)
            await asyncio.sleep(backoff.next_delay_seconds(random.random()))  # noqa: S311  (jitter, no secret)

    async def _serve_fleet(
        self, board: FleetBoard, credentials: Credentials, listening: "Listening", host: str, port: int
    ) -> None:
        await serve_fleet(
            board,
            credentials.trust,
            credentials.tokens,
            credentials.denials,
            folder=self._folder,
            host=host,
            port=port,
            on_listening=self._on_fleet_listening,
            replicas=Replicas(
                pods=Pods(KubeReviewer(self._client), self._pod_namespaces),
                names=listening.names,
                elsewhere=listening.elsewhere,
                is_leading=listening.is_leading,
            ),
        )

    async def _serve_control(
        self, history: History, board: FleetBoard, credentials: Credentials, listening: "Listening"
    ) -> None:
        routes = KnowledgeRoutes(
            HistoryExplainer(history, board),
            board,
            credentials.tokens,
            credentials.trust,
            credentials.denials,
            listening.is_ready,
        )
        access = ControlAccess(KubeReviewer(self._client), time.monotonic)
        await serve_cluster_control(
            build_cluster_app(routes, access),
            credentials.trust,
            ControlAddress(*self._options.control, listening.names),
            self._folder,
            is_leading=listening.is_leading,
            elsewhere=listening.elsewhere,
            on_listening=self._on_control_listening,
        )

    async def _publish(self, credentials: Credentials, loop: ReconcileLoop) -> None:
        await publish_authority(self._client, self._pod_namespaces, credentials.trust, lambda: loop.holds_lease)

    @property
    def _pod_namespaces(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self._namespace, *self._options.agent_namespaces)))

    def _observe_address(self, host: str) -> LeaderAddress:
        ports = self._fleet_port.result(), self._control_port.result()
        return LeaderAddress(*(render_address(host, port) for port in ports))

    def _elsewhere(self, store: KubeStore, advertised: str, api: Literal["fleet", "control"]) -> str | None:
        """Where the leader answers; None when that is nobody, or here: a container that starts again in its pod has
        the address of the leader that it was, and would pass each connection on to itself without an end."""
        leader = store.leader_address()
        address = (getattr(leader, api) or None) if leader is not None else None
        port = self._fleet_port if api == "fleet" else self._control_port
        is_here = port.done() and address == render_address(advertised, port.result())
        return None if is_here else address

    def _on_fleet_listening(self, url: str) -> None:
        log.info("fleet API on %s", url)
        self._fleet_port.set_result(int(url.rpartition(":")[2]))

    def _on_control_listening(self, port: int) -> None:
        log.info("control API on port %d", port)
        self._control_port.set_result(port)


@dataclass(frozen=True, slots=True)
class Listening:
    """How one API knows whether it is this process's to answer."""

    loop: ReconcileLoop
    names: tuple[str, ...]
    elsewhere: Callable[[], str | None]

    def is_leading(self) -> bool:
        return self.loop.holds_lease

    def is_ready(self) -> bool:
        return self.loop.is_leading


def observe_watch(store: KubeStore) -> WatchView:
    return WatchView(store.synced_age_seconds, store.sync.watch_restarts)


def choose_advertised(host: str) -> str:
    """The host that is listened on; where that is all of them, this machine's address as others see it, or loopback."""
    if not is_wildcard(host):
        return host
    return next(iter(observe_addresses()), "127.0.0.1")
