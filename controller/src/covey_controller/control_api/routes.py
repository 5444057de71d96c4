"""Routes of what only the controller knows, in both modes: why, plan, logs, gateways, tokens, the authority."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from covey_api.kinds import Kind, ObjectKey
from covey_api.messages import MAX_BODY_BYTES, AskKind, CertificateRole, Order
from cryptography.hazmat.primitives.hashes import SHA256
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from covey_controller.audit import name_target
from covey_controller.board import FORGET_SECONDS
from covey_controller.control_api.edits import explain_refusals
from covey_controller.control_api.messages import DocumentsBody, TokenBody
from covey_controller.control_api.objects import parse_key
from covey_controller.control_api.telling import tell
from covey_controller.denials import Denials
from covey_controller.ports import Asker, Conflict, Explainer, GatewaySession, VaultUnavailable
from covey_controller.serving.answers import ApiError, ApiReason, read_message, unavailable
from covey_controller.stores.files.documents import parse_objects
from covey_controller.tokens import Tokens
from covey_controller.trust import Trust


class KnowledgeRoutes:
    def __init__(
        self,
        explainer: Explainer,
        asker: Asker,
        tokens: Tokens,
        trust: Trust,
        denials: Denials,
        is_ready: Callable[[], bool],
    ) -> None:
        self.explainer = explainer
        self._asker = asker
        self._tokens = tokens
        self._trust = trust
        self._denials = denials
        self._is_ready = is_ready

    async def readyz(self, _: Request) -> Response:
        self.require_ready()
        return JSONResponse({})

    async def why(self, request: Request) -> Response:
        key = key_of(request)
        self.find(key)
        text, data = self.explainer.explain(key)
        return JSONResponse({"text": text, "data": data})

    async def check(self, request: Request) -> Response:
        """Documents with their defaults, refused as an apply would refuse them."""
        documents = await _read_documents(request)
        return JSONResponse({"items": [one.to_wire() for one in documents]})

    async def plan(self, request: Request) -> Response:
        """What documents would come to; nothing is written."""
        self.require_ready()
        if self.explainer.is_busy:
            raise unavailable("plans are made one at a time, and as many as may wait do")
        text, data = await self.explainer.forecast(await _read_documents(request))
        return JSONResponse({"text": text, "data": data})

    async def progress(self, request: Request) -> Response:
        key = key_of(request)
        self.find(key)
        return JSONResponse(self.explainer.progress(key))

    async def logs(self, request: Request) -> Response:
        return await self._tell(AskKind.LOGS, request)

    async def capture(self, request: Request) -> Response:
        return await self._tell(AskKind.CAPTURE, request)

    async def _tell(self, kind: AskKind, request: Request) -> Response:
        item = self.find(key_of(request))
        return JSONResponse({"items": await tell(self.explainer, self._asker, kind, item)})

    async def gateways(self, _: Request) -> Response:
        """All that a certificate lets in, those that are connected first; whoever was removed isn't one.

        Without pods that have not been heard of for a while: one that is gone never comes back under its name, and each
        rollout would leave its own here until their certificates expire. Rejected: to refuse them then. One that lives
        and can't reach the controller would be cut off from the engines that it serves from.
        """
        newest = self.explainer.table_order()
        sessions = {session.name: session for session in self.explainer.gateways()}
        connected = {name for name, session in sessions.items() if session.connected}
        issued = self._denials.observe_issued(CertificateRole.GATEWAY, connected)
        if self.explainer.watched_seconds() > FORGET_SECONDS:
            is_pod = partial(self._denials.is_pod, CertificateRole.GATEWAY)
            issued = {name: date for name, date in issued.items() if name in sessions or not is_pod(name)}
        items = [_render_gateway(name, date, sessions.get(name), newest) for name, date in issued.items()]
        return JSONResponse({"items": sorted(items, key=lambda item: (not item["connected"], item["name"]))})

    async def delete_gateway(self, request: Request) -> Response:
        """Refuse its certificates: its stream ends, keepers hear of it, and only a new join lets it in again."""
        name = request.path_params["name"]
        name_target(request, f"gateway/{name[:64]}")
        connected = (session.name for session in self.explainer.gateways() if session.connected)
        if name not in self._denials.observe_issued(CertificateRole.GATEWAY, connected):
            raise ApiError(404, ApiReason.NOT_FOUND, f"no gateway '{name[:64]}' has a certificate of this fleet")
        try:
            await self._denials.deny(CertificateRole.GATEWAY, name, time.time())
        except (VaultUnavailable, Conflict) as error:
            raise unavailable(f"gateway '{name}' can't be removed now: {error}") from None
        return JSONResponse({})

    async def create_token(self, request: Request) -> Response:
        body = await read_message(request, TokenBody, MAX_BODY_BYTES)
        name_target(request, f"token/{body.role}", f"uses/{body.uses}", f"ttlSeconds/{body.ttl_seconds}")
        try:
            token = await self._tokens.mint(body.role, body.uses, body.ttl_seconds, time.time())
        except ValueError as error:
            raise ApiError(400, ApiReason.INVALID_BODY, str(error)) from None
        except VaultUnavailable as error:
            raise unavailable(f"no token can be made now: {error}") from None
        return JSONResponse({"token": token})

    async def rotate_authority(self, _: Request) -> Response:
        try:
            step = await self._trust.rotate(time.time())
        except (VaultUnavailable, Conflict) as error:
            raise unavailable(f"the authority can't be replaced now: {error}") from None
        signing, *others = (each.fingerprint(SHA256()).hex() for each in self._trust.current.bundle)
        return JSONResponse({"step": step, "signing": signing, "trusted": others})

    def require_ready(self) -> None:
        """An empty list before the store was listed would be a lie."""
        if not self._is_ready():
            raise ApiError(
                503,
                ApiReason.NOT_READY,
                "the controller doesn't lead yet, or is still listing its store; try again in a second",
                headers={"retry-after": "1"},
            )

    def find(self, key: ObjectKey) -> Kind:
        self.require_ready()
        try:
            return self.explainer.objects()[key]
        except KeyError:
            place = f" in namespace '{key.namespace}'" if key.namespace else ""
            raise ApiError(404, ApiReason.NOT_FOUND, f"there is no {key.kind} '{key.name}'{place}") from None


async def _read_documents(request: Request) -> tuple[Kind, ...]:
    body = await read_message(request, DocumentsBody, MAX_BODY_BYTES)
    with explain_refusals():
        # In a thread: megabytes of documents must not cost the leader its lease.
        return await asyncio.to_thread(parse_objects, body.text, body.name)


def key_of(request: Request) -> ObjectKey:
    path = request.path_params
    return parse_key(path["plural"], path["namespace"], path["name"])


def _render_gateway(name: str, issued: int, session: GatewaySession | None, newest: Order | None) -> dict[str, Any]:
    demand = session.demand if session is not None else None
    is_connected = session is not None and session.connected
    return {
        "name": name,
        "address": demand.address if demand is not None else "",
        "connected": is_connected,
        "current": is_connected and newest is not None and demand is not None and demand.applied == newest,
        "certificateIssued": datetime.fromtimestamp(issued, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if issued else "",
    }
