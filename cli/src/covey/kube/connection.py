"""A cluster as a `Connection`: proxy, objects, questions and the gateway behind the API server."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from covey.connection import Connection, GatewayAddress
from covey.kube.api import KubeApi
from covey.kube.context import Context
from covey.kube.objects import KubeControl
from covey.kube.proxy import running_proxy
from covey.kube.questions import GATEWAY, KubeQuestions, ServiceFinder


@dataclass(frozen=True, slots=True)
class ClusterConnection(Connection):
    """A fleet in a cluster."""

    services: ServiceFinder
    socket: Path

    def find_gateway(self) -> GatewayAddress:
        """The gateway's Service, through the API server: no tunnel to keep."""
        return GatewayAddress(f"http://localhost{self.services.find(GATEWAY, 'http', 'http')}", self.socket)


@contextmanager
def open_cluster(context: Context, fleet_namespace: str | None) -> Generator[ClusterConnection]:
    """During the block. CommandError when kubectl is missing or doesn't start."""
    with running_proxy(context) as proxy, proxy.open_client() as http:
        api = KubeApi(http, proxy, context)
        services = ServiceFinder(api, fleet_namespace)
        questions = KubeQuestions(api, services)
        yield ClusterConnection(KubeControl(api), questions, context.namespace, services, proxy.path)
