"""The control API in Kubernetes mode: what only the controller knows, on TCP, by the API server's word on who may.

Objects are the API server's: every call that would read or write them says so.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from covey_controller.audit import Act, audited
from covey_controller.control_api.access import ControlAccess, Endpoint
from covey_controller.control_api.app import PREFIX
from covey_controller.control_api.routes import KnowledgeRoutes, key_of
from covey_controller.ports import Access
from covey_controller.serving.answers import ApiError, ApiReason, error_renderers
from covey_controller.serving.gate import gate_by_lead
from covey_controller.serving.listener import serve
from covey_controller.serving.tls import ServerTls, bind_tcp, observe_names
from covey_controller.trust import Trust

_ANY_METHOD = ["GET", "POST", "PUT", "PATCH", "DELETE"]
# Calls of the files mode's control API that kubectl answers here.
_OBJECT_PATHS = ("objects", "watch", "apply", "delete", "events", "source", "keys")


@dataclass(frozen=True, slots=True)
class ControlAddress:
    host: str
    port: int
    names: tuple[str, ...]
    """Further names by which the API is dialled."""


def build_cluster_app(routes: KnowledgeRoutes, access: ControlAccess) -> Starlette:
    one = "{plural}/{namespace}/{name}"

    def read(path: str, endpoint: Endpoint) -> Route:
        return Route(f"{PREFIX}/{path}", access.guard(endpoint, _read_access))

    def write(path: str, endpoint: Endpoint, wanted: Access, method: str = "POST", act: Act | None = None) -> Route:
        guarded = access.guard(endpoint, lambda _: wanted)
        return Route(f"{PREFIX}/{path}", guarded if act is None else audited(act, guarded), methods=[method])

    elsewhere = [
        Route(f"{PREFIX}/{path}{rest}", _refuse_objects, methods=_ANY_METHOD)
        for path in _OBJECT_PATHS
        for rest in ("", "/{rest:path}")
    ]
    return Starlette(
        routes=[
            Route("/readyz", routes.readyz),
            read(f"why/{one}", routes.why),
            read(f"progress/{one}", routes.progress),
            Route(f"{PREFIX}/logs/{one}", access.guard(routes.logs, _tell_access)),
            Route(f"{PREFIX}/capture/{one}", access.guard(routes.capture, _tell_access)),
            read("gateways", routes.gateways),
            write(
                "gateways/{name}",
                routes.delete_gateway,
                Access("delete", "gateways"),
                "DELETE",
                act=Act.REMOVE_GATEWAY,
            ),
            write("plan", routes.plan, Access("get", "placements")),
            write("tokens", routes.create_token, Access("create", "jointokens"), act=Act.CREATE_TOKEN),
            write(
                "authority/rotate", routes.rotate_authority, Access("update", "authorities"), act=Act.ROTATE_AUTHORITY
            ),
            *elsewhere,
        ],
        exception_handlers=error_renderers(),
    )


async def serve_cluster_control(
    app: Starlette,
    trust: Trust,
    address: ControlAddress,
    folder: Path,
    *,
    is_leading: Callable[[], bool],
    elsewhere: Callable[[], str | None],
    on_listening: Callable[[int], None],
) -> None:
    """Until cancelled. `on_listening` gets the port. ListenFailed says why it can't listen."""
    bound = await bind_tcp(address.host, address.port, "--control-listen")
    try:
        names = (*observe_names(address.host), *address.names)
        tls = ServerTls(trust, names, folder / "control.pem", asks_certificate=False)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(tls.watch())
            await serve(
                gate_by_lead(app, is_leading),
                bound,
                closing=asyncio.Event(),
                on_listening=lambda: on_listening(int(bound.getsockname()[1])),
                tls=tls.context,
                elsewhere=elsewhere,
                is_leading=is_leading,
            )
            watching.cancel()
    finally:
        bound.close()


def _read_access(request: Request) -> Access:
    """In the namespace of what is read, whatever the path calls it: Nodes are everybody's."""
    if "plural" not in request.path_params:
        return Access("get", "placements")
    return Access("get", "placements", key_of(request).namespace)


def _tell_access(request: Request) -> Access:
    """As of pods' logs: who may read objects may not therefore read what programs print."""
    return Access("get", "instancelogs", key_of(request).namespace)


async def _refuse_objects(request: Request) -> Response:
    raise ApiError(
        409,
        ApiReason.USE_KUBERNETES_API,
        f"'{request.method} {request.url.path}': this fleet's objects are in Kubernetes; read and write them at its "
        "API server, with kubectl or with `covey` and a kubeconfig. Nothing was changed.",
    )
