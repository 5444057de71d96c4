"""Routes of what only the controller knows, in both modes: why, plan, progress, gateways, tokens, the authority."""

import time
from collections.abc import Callable

from covey_api.kinds import Kind, ObjectKey
from covey_api.messages import MAX_BODY_BYTES, Order
from cryptography.hazmat.primitives.hashes import SHA256
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from covey_controller.control_api.edits import explain_refusals
from covey_controller.control_api.messages import DocumentsBody, TokenBody
from covey_controller.control_api.objects import parse_key
from covey_controller.ports import Conflict, Explainer, GatewaySession, VaultUnavailable
from covey_controller.serving.answers import ApiError, ApiReason, read_message, unavailable
from covey_controller.stores.files.documents import parse_objects
from covey_controller.tokens import Tokens
from covey_controller.trust import Trust


class KnowledgeRoutes:
    def __init__(self, explainer: Explainer, tokens: Tokens, trust: Trust, is_ready: Callable[[], bool]) -> None:
        self.explainer = explainer
        self._tokens = tokens
        self._trust = trust
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
        text, data = await self.explainer.forecast(await _read_documents(request))
        return JSONResponse({"text": text, "data": data})

    async def progress(self, request: Request) -> Response:
        key = key_of(request)
        self.find(key)
        return JSONResponse(self.explainer.progress(key))

    async def gateways(self, _: Request) -> Response:
        newest = self.explainer.table_order()
        items = [
            {
                "name": session.name,
                "address": session.demand.address if session.demand is not None else "",
                "connected": session.connected,
                "current": session.connected and newest is not None and _applied(session) == newest,
            }
            for session in self.explainer.gateways()
        ]
        return JSONResponse({"items": items})

    async def create_token(self, request: Request) -> Response:
        body = await read_message(request, TokenBody, MAX_BODY_BYTES)
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
        return parse_objects(body.text, body.name)


def key_of(request: Request) -> ObjectKey:
    path = request.path_params
    return parse_key(path["plural"], path["namespace"], path["name"])


def _applied(session: GatewaySession) -> Order | None:
    return session.demand.applied if session.demand is not None else None
