"""Routes of the control API. They parse, ask the explainer or the source, and render; they decide nothing."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict

from covey_api.kinds import Kind, ObjectKey
from covey_api.messages import MAX_BODY_BYTES, Order
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from covey_controller.control_api.edits import apply_text, create_access_key, delete_keys
from covey_controller.control_api.messages import AccessKeyBody, ApplyBody, DeleteBody, TokenBody
from covey_controller.control_api.objects import list_objects, parse_key, parse_plural, watch_objects
from covey_controller.ports import Explainer, GatewaySession, Source
from covey_controller.serving.answers import ApiError, ApiReason, error_renderers, read_message
from covey_controller.serving.lines import LineStream
from covey_controller.tokens import Tokens

PREFIX = "/api/v1"


class ControlRoutes:
    def __init__(
        self,
        explainer: Explainer,
        source: Source,
        tokens: Tokens,
        is_ready: Callable[[], bool],
        closing: asyncio.Event,
    ) -> None:
        self._explainer = explainer
        self._source = source
        self._tokens = tokens
        self._is_ready = is_ready
        self._closing = closing

    async def readyz(self, _: Request) -> Response:
        self._require_ready()
        return JSONResponse({})

    async def objects(self, request: Request) -> Response:
        self._require_ready()
        kind = parse_plural(request.path_params["plural"])
        found = list_objects(self._explainer, (kind.__name__,), request.query_params.get("namespace"))
        return JSONResponse({"items": [one.to_wire() for one in found.values()]})

    async def object(self, request: Request) -> Response:
        return JSONResponse(self._find(_key_of(request)).to_wire())

    async def watch(self, request: Request) -> Response:
        self._require_ready()
        kinds = {parse_plural(plural).__name__ for plural in request.query_params.getlist("plural")}
        if not kinds:
            raise ApiError(400, ApiReason.BAD_REQUEST, "`plural` must name at least one kind: '/watch?plural=models'")
        return LineStream(watch_objects(self._explainer, kinds), self._closing.wait)

    async def apply(self, request: Request) -> Response:
        body = await read_message(request, ApplyBody, MAX_BODY_BYTES)
        return JSONResponse(await apply_text(self._source, body.text, body.name, body.author))

    async def delete(self, request: Request) -> Response:
        body = await read_message(request, DeleteBody, MAX_BODY_BYTES)
        keys = tuple(parse_key(key.kind, key.namespace, key.name) for key in body.keys)
        return JSONResponse(await delete_keys(self._source, keys, body.author))

    async def why(self, request: Request) -> Response:
        key = _key_of(request)
        self._find(key)
        text, data = self._explainer.explain(key)
        return JSONResponse({"text": text, "data": data})

    async def events(self, request: Request) -> Response:
        key = _key_of(request)
        self._find(key)
        events = self._explainer.events(key)
        items = [{"reason": one.reason, "message": one.message, "warning": one.warning} for one in events]
        return JSONResponse({"items": items})

    async def progress(self, request: Request) -> Response:
        key = _key_of(request)
        self._find(key)
        return JSONResponse(self._explainer.progress(key))

    async def source(self, _: Request) -> Response:
        return JSONResponse(asdict(self._source.source_state()))

    async def refresh_source(self, _: Request) -> Response:
        self._source.refresh_source()
        return JSONResponse({}, 202)

    async def gateways(self, _: Request) -> Response:
        newest = self._explainer.table_order()
        items = [
            {
                "name": session.name,
                "address": session.demand.address if session.demand is not None else "",
                "connected": session.connected,
                "current": session.connected and newest is not None and _applied(session) == newest,
            }
            for session in self._explainer.gateways()
        ]
        return JSONResponse({"items": items})

    async def create_token(self, request: Request) -> Response:
        body = await read_message(request, TokenBody, MAX_BODY_BYTES)
        try:
            token = self._tokens.mint(body.role, body.uses, body.ttl_seconds, time.time())
        except ValueError as error:
            raise ApiError(400, ApiReason.INVALID_BODY, str(error)) from None
        return JSONResponse({"token": token})

    async def create_key(self, request: Request) -> Response:
        self._require_ready()
        body = await read_message(request, AccessKeyBody, MAX_BODY_BYTES)
        return JSONResponse({"key": await create_access_key(self._source, self._explainer, body)})

    async def delete_key(self, request: Request) -> Response:
        key = parse_key("AccessKey", request.path_params["namespace"], request.path_params["name"])
        return JSONResponse(await delete_keys(self._source, (key,)))

    def _require_ready(self) -> None:
        """An empty list before the store was listed would be a lie."""
        if not self._is_ready():
            raise ApiError(
                503,
                ApiReason.NOT_READY,
                "the controller doesn't lead yet, or is still listing its store; try again in a second",
                headers={"retry-after": "1"},
            )

    def _find(self, key: ObjectKey) -> Kind:
        self._require_ready()
        try:
            return self._explainer.objects()[key]
        except KeyError:
            place = f" in namespace '{key.namespace}'" if key.namespace else ""
            raise ApiError(404, ApiReason.NOT_FOUND, f"there is no {key.kind} '{key.name}'{place}") from None


def _key_of(request: Request) -> ObjectKey:
    path = request.path_params
    return parse_key(path["plural"], path["namespace"], path["name"])


def build_control_app(
    explainer: Explainer, source: Source, tokens: Tokens, is_ready: Callable[[], bool], closing: asyncio.Event
) -> Starlette:
    routes = ControlRoutes(explainer, source, tokens, is_ready, closing)
    one = "{plural}/{namespace}/{name}"
    return Starlette(
        routes=[
            Route("/readyz", routes.readyz),
            Route(f"{PREFIX}/objects/{{plural}}", routes.objects),
            Route(f"{PREFIX}/objects/{one}", routes.object),
            Route(f"{PREFIX}/watch", routes.watch),
            Route(f"{PREFIX}/apply", routes.apply, methods=["POST"]),
            Route(f"{PREFIX}/delete", routes.delete, methods=["POST"]),
            Route(f"{PREFIX}/why/{one}", routes.why),
            Route(f"{PREFIX}/events/{one}", routes.events),
            Route(f"{PREFIX}/progress/{one}", routes.progress),
            Route(f"{PREFIX}/source", routes.source),
            Route(f"{PREFIX}/source/refresh", routes.refresh_source, methods=["POST"]),
            Route(f"{PREFIX}/gateways", routes.gateways),
            Route(f"{PREFIX}/tokens", routes.create_token, methods=["POST"]),
            Route(f"{PREFIX}/keys", routes.create_key, methods=["POST"]),
            Route(f"{PREFIX}/keys/{{namespace}}/{{name}}", routes.delete_key, methods=["DELETE"]),
        ],
        exception_handlers=error_renderers(),
    )


def _applied(session: GatewaySession) -> Order | None:
    return session.demand.applied if session.demand is not None else None
