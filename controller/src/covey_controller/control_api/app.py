"""Routes of the control API. They parse, ask the explainer or the source, and render; they decide nothing."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict

from covey_api.kinds import ObjectKey
from covey_api.messages import MAX_BODY_BYTES
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from covey_controller.audit import Act, audited, name_caller, name_target, spell_key
from covey_controller.control_api.edits import apply_text, create_access_key, delete_keys
from covey_controller.control_api.messages import AccessKeyBody, ApplyBody, DeleteBody
from covey_controller.control_api.objects import list_objects, parse_key, parse_plural, watch_objects
from covey_controller.control_api.routes import KnowledgeRoutes, key_of
from covey_controller.denials import Denials
from covey_controller.ports import Asker, Explainer, Source, ToldEvent
from covey_controller.serving.answers import ApiError, ApiReason, error_renderers, read_message
from covey_controller.serving.lines import LineStream
from covey_controller.tokens import Tokens
from covey_controller.trust import Trust

PREFIX = "/api/v1"


class ControlRoutes(KnowledgeRoutes):
    def __init__(
        self,
        explainer: Explainer,
        asker: Asker,
        source: Source,
        tokens: Tokens,
        trust: Trust,
        denials: Denials,
        is_ready: Callable[[], bool],
        closing: asyncio.Event,
    ) -> None:
        super().__init__(explainer, asker, tokens, trust, denials, is_ready)
        self._source = source
        self._closing = closing

    async def objects(self, request: Request) -> Response:
        self.require_ready()
        kind = parse_plural(request.path_params["plural"])
        found = list_objects(self.explainer, (kind.__name__,), request.query_params.get("namespace"))
        return JSONResponse({"items": [one.to_wire() for one in found.values()]})

    async def object(self, request: Request) -> Response:
        return JSONResponse(self.find(key_of(request)).to_wire())

    async def watch(self, request: Request) -> Response:
        self.require_ready()
        kinds = {parse_plural(plural).__name__ for plural in request.query_params.getlist("plural")}
        if not kinds:
            raise ApiError(400, ApiReason.BAD_REQUEST, "`plural` must name at least one kind: '/watch?plural=models'")
        return LineStream(watch_objects(self.explainer, kinds), self._closing.wait)

    async def apply(self, request: Request) -> Response:
        body = await read_message(request, ApplyBody, MAX_BODY_BYTES)
        name_caller(request, body.author)
        name_target(request, body.name)
        applied = await apply_text(self._source, body.text, body.name, body.author)
        keys = [ObjectKey(one["kind"], one["namespace"], one["name"]) for one in applied["results"]]
        name_target(request, *map(spell_key, keys))
        return JSONResponse(applied)

    async def delete(self, request: Request) -> Response:
        body = await read_message(request, DeleteBody, MAX_BODY_BYTES)
        keys = tuple(parse_key(key.kind, key.namespace, key.name) for key in body.keys)
        name_caller(request, body.author)
        name_target(request, *map(spell_key, keys))
        return JSONResponse(await delete_keys(self._source, keys, body.author))

    async def events(self, request: Request) -> Response:
        key = key_of(request)
        self.find(key)
        return JSONResponse({"items": [_render_event(told) for told in self.explainer.events(key)]})

    async def source(self, _: Request) -> Response:
        return JSONResponse(asdict(self._source.source_state()))

    async def refresh_source(self, _: Request) -> Response:
        self._source.refresh_source()
        return JSONResponse({}, 202)

    async def create_key(self, request: Request) -> Response:
        self.require_ready()
        body = await read_message(request, AccessKeyBody, MAX_BODY_BYTES)
        name_target(request, spell_key(ObjectKey("AccessKey", body.namespace, body.name)))
        return JSONResponse({"key": await create_access_key(self._source, self.explainer, body)})

    async def delete_key(self, request: Request) -> Response:
        key = parse_key("AccessKey", request.path_params["namespace"], request.path_params["name"])
        name_target(request, spell_key(key))
        return JSONResponse(await delete_keys(self._source, (key,)))


def _render_event(told: ToldEvent) -> dict[str, object]:
    event = told.event
    return {"reason": event.reason, "message": event.message, "warning": event.warning, "seen": told.seen}


def build_control_app(
    explainer: Explainer,
    asker: Asker,
    source: Source,
    tokens: Tokens,
    trust: Trust,
    denials: Denials,
    is_ready: Callable[[], bool],
    closing: asyncio.Event,
) -> Starlette:
    routes = ControlRoutes(explainer, asker, source, tokens, trust, denials, is_ready, closing)
    one = "{plural}/{namespace}/{name}"
    return Starlette(
        routes=[
            Route("/readyz", routes.readyz),
            Route(f"{PREFIX}/objects/{{plural}}", routes.objects),
            Route(f"{PREFIX}/objects/{one}", routes.object),
            Route(f"{PREFIX}/watch", routes.watch),
            Route(f"{PREFIX}/apply", audited(Act.APPLY, routes.apply), methods=["POST"]),
            Route(f"{PREFIX}/delete", audited(Act.DELETE, routes.delete), methods=["POST"]),
            Route(f"{PREFIX}/check", routes.check, methods=["POST"]),
            Route(f"{PREFIX}/plan", routes.plan, methods=["POST"]),
            Route(f"{PREFIX}/why/{one}", routes.why),
            Route(f"{PREFIX}/events/{one}", routes.events),
            Route(f"{PREFIX}/progress/{one}", routes.progress),
            Route(f"{PREFIX}/logs/{one}", routes.logs),
            Route(f"{PREFIX}/capture/{one}", routes.capture),
            Route(f"{PREFIX}/source", routes.source),
            Route(f"{PREFIX}/source/refresh", routes.refresh_source, methods=["POST"]),
            Route(f"{PREFIX}/gateways", routes.gateways),
            Route(
                f"{PREFIX}/gateways/{{name}}", audited(Act.REMOVE_GATEWAY, routes.delete_gateway), methods=["DELETE"]
            ),
            Route(f"{PREFIX}/tokens", audited(Act.CREATE_TOKEN, routes.create_token), methods=["POST"]),
            Route(
                f"{PREFIX}/authority/rotate", audited(Act.ROTATE_AUTHORITY, routes.rotate_authority), methods=["POST"]
            ),
            Route(f"{PREFIX}/keys", audited(Act.CREATE_KEY, routes.create_key), methods=["POST"]),
            Route(
                f"{PREFIX}/keys/{{namespace}}/{{name}}", audited(Act.DELETE_KEY, routes.delete_key), methods=["DELETE"]
            ),
        ],
        exception_handlers=error_renderers(),
    )
