"""Everything that isn't hot, as a Starlette app on the same port: lists of models, health, and 404 for the rest.

It answers from the same table as the relay. Its errors have the envelope of the path's format, whoever raises them.
FastAPI in its place validates nothing here (no call has a body), and took a fifth of the gateway's start.
"""

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from covey_api.messages import Cancel, ModelState, ServedModel
from covey_api.reasons import ErrorCode
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from covey_gateway.cancels import NotPassedOn
from covey_gateway.routing.access import is_operator
from covey_gateway.routing.refusals import (
    refuse_declared,
    refuse_figures,
    refuse_media_call,
    refuse_method,
    refuse_no_request,
    refuse_path,
)
from covey_gateway.routing.table import Caller
from covey_gateway.traffic import Traffic
from covey_gateway.wire.anthropic.models import render_model, render_page
from covey_gateway.wire.errors import ApiError, invalid_request
from covey_gateway.wire.formats import ANTHROPIC, choose_format
from covey_gateway.wire.head import is_request_id
from covey_gateway.wire.ollama.catalog import VERSION, render_running, render_tags

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_MEDIA_PATHS = ("/v1/audio/{rest:path}", "/v1/images/{rest:path}", "/v1/videos", "/v1/realtime")
_CHANGES = ("/api/create", "/api/push", "/api/copy", "/api/delete", "/api/blobs/{digest}")


def build_app(traffic: Traffic) -> Starlette:
    async def list_models(request: Request) -> Response:
        names = traffic.table.names_for(_caller(request))
        if "anthropic-version" in request.headers:
            return JSONResponse(render_page(traffic.list_models(_caller(request))))
        listed = [_render_model(traffic, name, model) for name, model in names.items()]
        return JSONResponse({"object": "list", "data": listed})

    async def read_model(request: Request) -> Response:
        caller, name = _caller(request), str(request.path_params["name"])
        model = traffic.resolve(caller, name)
        if isinstance(model, ApiError):
            return _render_error(request, model)
        if "anthropic-version" in request.headers:
            return JSONResponse(render_model(traffic.render_listing(name, model)))
        return JSONResponse(_render_model(traffic, name, model))

    async def is_alive(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def is_ready(request: Request) -> Response:
        if traffic.is_ready:
            return JSONResponse({"status": "ok"})
        if traffic.has_table:
            message = "there is no access key, and this gateway serves nobody without: `covey key create` makes one"
        else:
            message = "no routing table was applied yet: the controller was not reached, and none is on disk"
        return _render_error(request, ApiError(503, ErrorCode.UPSTREAM_UNAVAILABLE, message, retry_after_seconds=1))

    async def show_figures(request: Request) -> Response:
        """To who is at this machine: figures name models of all namespaces."""
        if not is_operator(traffic.policy, _caller(request)):
            return _render_error(request, refuse_figures())
        exposition = await asyncio.to_thread(import_module, "covey_gateway.exposition")
        return exposition.render_figures(traffic.ledger.figures, request.headers.get("accept", ""))

    async def list_tags(request: Request) -> Response:
        return JSONResponse(render_tags(traffic.list_models(_caller(request))))

    async def list_running(request: Request) -> Response:
        return JSONResponse(render_running(traffic.list_models(_caller(request))))

    async def cancel(request: Request) -> Response:
        """1. It is here, at whatever worker. 2. Other gateways are told. 3. There are none, or they can't be told."""
        caller, id_ = _caller(request), str(request.path_params["id"])
        if not is_request_id(id_):
            return _render_error(request, invalid_request("a request's id has 1 to 128 of `A-Z a-z 0-9 . _ : -`"))
        wish = Cancel(id=id_, key=caller.key)
        by_operator = is_operator(traffic.policy, caller)
        ended = traffic.cancels.end(wish, by_operator=by_operator)
        ended += await traffic.cancels.end_elsewhere(wish, by_operator)
        try:
            told = 0 if ended else await traffic.cancels.pass_on(wish)
        except NotPassedOn as error:
            message = f"no request of yours with the id '{id_}' is at this gateway, and others can't be asked: {error}"
            return _render_error(request, ApiError(503, ErrorCode.UPSTREAM_UNAVAILABLE, message, retry_after_seconds=1))
        if not ended and not told:
            return _render_error(request, refuse_no_request(id_))
        content = {"id": id_, "object": "request.cancellation", "cancelled": ended, "gateways_told": told}
        return JSONResponse(content, 200 if ended else 202)

    async def tell_version(_: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def document(_: Request) -> Response:
        from covey_gateway.openapi import render_document  # it is large, and most gateways are never asked

        return Response(render_document(), media_type="application/json")

    async def show_document(_: Request) -> Response:
        from covey_gateway.openapi import render_page

        return Response(render_page(), media_type="text/html")

    async def tell_running(_: Request) -> Response:
        return Response("Ollama is running", media_type="text/plain")

    routes = [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", read_model, methods=["GET"]),
        *(Route(path, _explain_media, methods=_METHODS) for path in _MEDIA_PATHS),
        Route("/v1/cancel/{id:path}", cancel, methods=["POST"]),
        Route("/healthz", is_alive, methods=["GET"]),
        Route("/readyz", is_ready, methods=["GET"]),
        Route("/metrics", show_figures, methods=["GET"]),
        Route("/openapi.json", document, methods=["GET"]),
        Route("/docs", show_document, methods=["GET"]),
    ]
    for root in ("", "/ollama"):
        routes += [
            Route(f"{root}/api/tags", list_tags, methods=["GET"]),
            Route(f"{root}/api/ps", list_running, methods=["GET"]),
            Route(f"{root}/api/version", tell_version, methods=["GET"]),
            Route(root or "/", tell_running, methods=["GET"]),
            *(Route(f"{root}{path}", _explain_change, methods=_METHODS) for path in _CHANGES),
        ]
    explained = {404: _explain_path, 405: _explain_method, Exception: _explain_bug}
    app = Starlette(routes=routes, exception_handlers=explained)
    app.router.redirect_slashes = False
    return app


def _caller(request: Request) -> Caller:
    caller: Caller = request.scope["state"]["caller"]
    return caller


def _render_model(traffic: Traffic, name: str, model: ServedModel) -> dict[str, Any]:
    """OpenAI's model object; what Covey adds is under `covey`."""
    targets = traffic.table.targets.get((model.namespace, model.name), ())
    added: dict[str, Any] = {
        "ready": bool(targets),
        "state": ModelState.READY if targets else model.state,
        "reason": model.reason,
        "message": model.message,
        "aliases": model.aliases,
        "tasks": model.tasks,
        "replicas": model.replicas,
        "readyReplicas": len(targets),
        "contextTokens": max((target.context_tokens or 0 for target in targets), default=0) or None,
        "loading": model.progress.to_wire() if model.progress else None,
    }
    return {"id": name, "object": "model", "created": model.created, "owned_by": model.namespace, "covey": added}


async def _explain_path(request: Request, error: Exception) -> Response:
    return _render_error(request, refuse_path(request.url.path))


async def _explain_method(request: Request, error: Exception) -> Response:
    headers: Mapping[str, str] = getattr(error, "headers", None) or {}
    return _render_error(request, refuse_method(request.method, request.url.path, headers.get("Allow", "GET")))


async def _explain_bug(request: Request, error: Exception) -> Response:
    message = f"the gateway failed at {request.url.path}; its log has the cause"
    return _render_error(request, ApiError(500, ErrorCode.INVALID_REQUEST, message))


async def _explain_media(request: Request) -> Response:
    return _render_error(request, refuse_media_call(request.url.path))


async def _explain_change(request: Request) -> Response:
    return _render_error(request, refuse_declared(request.url.path))


def _render_error(request: Request, error: ApiError) -> Response:
    headers: dict[str, str] = {}
    if error.retry_after_seconds is not None:
        headers["retry-after"] = str(error.retry_after_seconds)
    if error.allow is not None:
        headers["allow"] = error.allow
    form = choose_format(request.url.path.encode())
    if "anthropic-version" in request.headers:
        form = ANTHROPIC
    return Response(form.render_envelope(error), error.status, headers, media_type="application/json")
