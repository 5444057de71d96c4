"""Routes of the fleet API: each admits its caller, reads a bounded body, and hands it to the board.

What flows down is whole state in streams of JSON lines, so a lost connection costs nothing but the time to dial again.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import contextmanager
from email.utils import formatdate
from typing import TypeVar

from covey_api.messages import (
    FLEET_PREFIX,
    MAX_BODY_BYTES,
    MAX_BOOT,
    AskAnswer,
    Assignments,
    Cancel,
    CancelAnswer,
    Demand,
    JoinRequest,
    Report,
    Wanted,
)
from covey_api.meta import Message
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from covey_controller.denials import Denials
from covey_controller.fleet_api.admission import Admission
from covey_controller.fleet_api.gateway_claims import GatewayClaims
from covey_controller.fleet_api.pods import Pods
from covey_controller.name_claims import NameTaken
from covey_controller.ports import Board
from covey_controller.serving.answers import ApiError, ApiReason, error_renderers, read_message, render_message
from covey_controller.serving.lines import LineStream, render_snapshots
from covey_controller.serving.protocol import Peer
from covey_controller.tokens import Tokens
from covey_controller.trust import Trust

# A signing request of 16 KiB with its JSON; this body is read from anybody.
MAX_JOIN_BYTES = 64 * 1024

T = TypeVar("T", bound=Message)


class FleetRoutes:
    def __init__(
        self,
        board: Board,
        trust: Trust,
        tokens: Tokens,
        denials: Denials,
        pods: Pods | None,
        closing: asyncio.Event,
    ) -> None:
        self._board = board
        self._gateways = GatewayClaims(time.monotonic)
        self._trust = trust
        self._admission = Admission(trust, tokens, denials, pods, board.may_be_there)
        self._denials = denials
        self._closing = closing

    async def authority(self, _: Request) -> Response:
        """The bundle, for anybody: a joiner checks it against its token before it trusts it.

        With this clock's time: whose own is so wrong that no certificate seems valid learns it here.
        """
        return PlainTextResponse(
            self._trust.current.bundle_pem,
            headers={"date": formatdate(usegmt=True)},
            media_type="application/x-pem-file",
        )

    async def join(self, request: Request) -> Response:
        wish = await read_message(request, JoinRequest, MAX_JOIN_BYTES)
        return render_message(await self._admission.join(request, wish))

    async def renew(self, request: Request) -> Response:
        peer = self._admission.admit(request)
        wish = await self._read(request, JoinRequest, MAX_JOIN_BYTES)
        return render_message(await self._admission.renew(peer, wish))

    async def assignments(self, request: Request) -> Response:
        peer = self._admission.admit_agent(request)
        with _refusing_rivals():
            snapshots = self._board.watch_assignments(peer.name, request.query_params.get("boot", ""))
        return self._stream(peer, self._add_refused(snapshots))

    async def _add_refused(self, snapshots: AsyncIterator[Assignments | None]) -> AsyncIterator[Assignments | None]:
        """With each snapshot whom agents must refuse; with a keep-alive too, when these are others now."""
        last: Assignments | None = None
        try:
            async for snapshot in snapshots:
                gateways, nodes = self._denials.refused_gateways, self._denials.refused_nodes
                if last is not None and (last.refused_gateways, last.refused_nodes) != (gateways, nodes):
                    snapshot = snapshot or last
                if snapshot is not None:
                    refused = {"refused_gateways": gateways, "refused_nodes": nodes}
                    snapshot = last = snapshot.model_copy(update=refused)
                yield snapshot
        finally:
            if isinstance(snapshots, AsyncGenerator):
                await snapshots.aclose()

    async def report(self, request: Request) -> Response:
        peer = self._admission.admit_agent(request)
        report = await self._read(request, Report, MAX_BODY_BYTES)
        with _refusing_rivals():
            return render_message(self._board.on_report(peer.name, report))

    async def wanted(self, request: Request) -> Response:
        peer = self._admission.admit_agent(request)
        wanted = await self._read(request, Wanted, MAX_BODY_BYTES)
        return render_message(self._board.on_wanted(peer.name, wanted))

    async def answer(self, request: Request) -> Response:
        peer = self._admission.admit_agent(request)
        answer = await self._read(request, AskAnswer, MAX_BODY_BYTES)
        if answer.id != request.path_params["ask"]:
            raise ApiError(400, ApiReason.INVALID_BODY, "`id` must be the id of the ask in the path")
        self._board.on_answer(peer.name, answer)
        return Response(status_code=204)

    async def endpoints(self, request: Request) -> Response:
        peer = self._admission.admit_gateway(request)
        with _refusing_rivals():
            snapshots = self._gateways.follow(peer.name, _read_boot(request), self._board.watch_endpoints(peer.name))
        return self._stream(peer, snapshots)

    async def demand(self, request: Request) -> Response:
        peer = self._admission.admit_gateway(request)
        demand = await self._read(request, Demand, MAX_BODY_BYTES)
        if demand.gateway != peer.name:
            raise ApiError(
                403,
                ApiReason.FORBIDDEN,
                f"`gateway` must be '{peer.name}' as the certificate says; got '{demand.gateway[:64]}'",
            )
        with _refusing_rivals():
            self._gateways.hear(peer.name, demand.boot)
        return render_message(self._board.on_demand(peer.name, demand))

    async def cancel(self, request: Request) -> Response:
        peer = self._admission.admit_gateway(request)
        cancel = await self._read(request, Cancel, MAX_BODY_BYTES)
        return render_message(CancelAnswer(gateways=self._board.on_cancel(peer.name, cancel)))

    async def _read(self, request: Request, kind: type[T], max_bytes: int) -> T:
        """The body of a peer that is still admitted when it has come whole: it may have been removed meanwhile."""
        message = await read_message(request, kind, max_bytes)
        self._admission.admit(request)
        return message

    def _stream(self, peer: Peer, snapshots: AsyncIterator[Message | None]) -> Response:
        return LineStream(render_snapshots(snapshots), self._closing.wait, lambda: self._denials.wait_denied(peer))


@contextmanager
def _refusing_rivals() -> Generator[None]:
    try:
        yield
    except NameTaken as taken:
        reason = ApiReason.NODE_NAME_TAKEN if taken.kind == "node" else ApiReason.GATEWAY_NAME_TAKEN
        raise ApiError(409, reason, str(taken)) from None


def _read_boot(request: Request) -> str:
    """Which process it is; it is kept, so it is bounded."""
    return request.query_params.get("boot", "")[:MAX_BOOT]


def build_fleet_app(
    board: Board, trust: Trust, tokens: Tokens, denials: Denials, pods: Pods | None, closing: asyncio.Event
) -> Starlette:
    routes = FleetRoutes(board, trust, tokens, denials, pods, closing)
    return Starlette(
        routes=[
            Route(f"{FLEET_PREFIX}/authority", routes.authority),
            Route(f"{FLEET_PREFIX}/join", routes.join, methods=["POST"]),
            Route(f"{FLEET_PREFIX}/renew", routes.renew, methods=["POST"]),
            Route(f"{FLEET_PREFIX}/nodes/{{node}}/assignments", routes.assignments),
            Route(f"{FLEET_PREFIX}/nodes/{{node}}/report", routes.report, methods=["POST"]),
            Route(f"{FLEET_PREFIX}/nodes/{{node}}/wanted", routes.wanted, methods=["POST"]),
            Route(f"{FLEET_PREFIX}/nodes/{{node}}/asks/{{ask}}", routes.answer, methods=["PUT"]),
            Route(f"{FLEET_PREFIX}/endpoints", routes.endpoints),
            Route(f"{FLEET_PREFIX}/demand", routes.demand, methods=["POST"]),
            Route(f"{FLEET_PREFIX}/cancel", routes.cancel, methods=["POST"]),
        ],
        exception_handlers=error_renderers(),
    )
