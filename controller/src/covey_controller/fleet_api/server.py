"""The fleet API on its TCP socket: TLS 1.2 or newer with the fleet's own authority as the only trust.

The controller's certificate is made at each start for the names by which this machine is known, and for those it is
given: where several controllers stand behind one name, each must be vouched for under it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from covey_controller.denials import Denials
from covey_controller.fleet_api.app import build_fleet_app
from covey_controller.fleet_api.pods import Pods
from covey_controller.fleet_api.reflex import build_beat_reflex
from covey_controller.ports import Board
from covey_controller.serving.gate import gate_by_lead
from covey_controller.serving.listener import serve
from covey_controller.serving.tls import ServerTls, bind_tcp, observe_names, render_url
from covey_controller.tokens import Tokens
from covey_controller.trust import Trust


@dataclass(frozen=True, slots=True)
class Replicas:
    """What there is beside this process where several controllers serve one fleet."""

    pods: Pods | None = None
    """Whose tokens let pods join; None outside Kubernetes."""
    names: tuple[str, ...] = ()
    """Further names by which agents and gateways dial."""
    elsewhere: Callable[[], str | None] | None = None
    """`HOST:PORT` of the leader's fleet API; None to answer here."""
    is_leading: Callable[[], bool] | None = None
    """While it says no, every call is answered 503; None: nobody else could lead."""


ALONE = Replicas()


async def serve_fleet(
    board: Board,
    trust: Trust,
    tokens: Tokens,
    denials: Denials,
    *,
    folder: Path,
    host: str,
    port: int,
    on_listening: Callable[[str], None],
    replicas: Replicas = ALONE,
) -> None:
    """Until cancelled, then done within two seconds. `on_listening` gets the URL at which this machine reaches it.

    `folder` is `controller/` of the state folder; the server's key and certificate go there. Port 0 takes a free one.
    """
    bound = await bind_tcp(host, port, "--fleet-listen")
    closing = asyncio.Event()
    is_leading = replicas.is_leading or (lambda: True)
    try:
        tls = ServerTls(trust, (*observe_names(host), *replicas.names), folder / "server.pem", asks_certificate=True)
        url = render_url(bound)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(tls.watch())
            app = build_fleet_app(board, trust, tokens, denials, replicas.pods, closing)
            await serve(
                gate_by_lead(app, is_leading),
                bound,
                closing=closing,
                on_listening=lambda: on_listening(url),
                tls=tls.context,
                elsewhere=replicas.elsewhere,
                is_leading=is_leading,
                reflex=build_beat_reflex(board, denials, is_leading),
            )
            watching.cancel()
    finally:
        bound.close()
