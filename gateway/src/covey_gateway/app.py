"""Everything that isn't hot, as a FastAPI app on the same port: the list of models, health, and 404 for the rest.

It answers from the same table as the relay. Its errors have OpenAI's envelope, whoever raises them.
"""

from collections.abc import Mapping
from typing import Any

from covey_api.messages import ModelState, ServedModel
from covey_api.reasons import ErrorCode
from fastapi import FastAPI, Request, Response

from covey_gateway.routing.refusals import refuse_method, refuse_path, refuse_unknown
from covey_gateway.routing.table import Caller
from covey_gateway.traffic import Traffic
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.openai.errors import render_envelope


def build_app(traffic: Traffic) -> FastAPI:
    # The relay's calls aren't in FastAPI's hands, so a page made from it would describe half of the API.
    app = FastAPI(openapi_url=None, redirect_slashes=False)

    async def list_models(request: Request) -> dict[str, Any]:
        names = traffic.table.names_for(_caller(request))
        return {"object": "list", "data": [_render_model(traffic, name, model) for name, model in names.items()]}

    async def read_model(request: Request, name: str) -> Any:
        caller = _caller(request)
        model = traffic.table.resolve(caller, name)
        if model is None:
            return _render_error(refuse_unknown(name, traffic.table.names_for(caller)))
        return _render_model(traffic, name, model)

    async def is_alive() -> dict[str, str]:
        return {"status": "ok"}

    async def is_ready() -> Response:
        if traffic.is_ready:
            return Response(b'{"status":"ok"}', media_type="application/json")
        if traffic.has_table:
            message = "there is no access key, and this gateway serves nobody without: `covey key create` makes one"
        else:
            message = "no routing table was applied yet: the controller was not reached, and none is on disk"
        return _render_error(ApiError(503, ErrorCode.UPSTREAM_UNAVAILABLE, message, retry_after_seconds=1))

    app.add_api_route("/v1/models", list_models)
    app.add_api_route("/v1/models/{name:path}", read_model)
    app.add_api_route("/healthz", is_alive)
    app.add_api_route("/readyz", is_ready)
    app.add_exception_handler(404, _explain_path)
    app.add_exception_handler(405, _explain_method)
    app.add_exception_handler(Exception, _explain_bug)
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
    return _render_error(refuse_path(request.url.path))


async def _explain_method(request: Request, error: Exception) -> Response:
    headers: Mapping[str, str] = getattr(error, "headers", None) or {}
    return _render_error(refuse_method(request.method, request.url.path, headers.get("Allow", "GET")))


async def _explain_bug(request: Request, error: Exception) -> Response:
    message = f"the gateway failed at {request.url.path}; its log has the cause"
    return _render_error(ApiError(500, ErrorCode.INVALID_REQUEST, message))


def _render_error(error: ApiError) -> Response:
    headers: dict[str, str] = {}
    if error.retry_after_seconds is not None:
        headers["retry-after"] = str(error.retry_after_seconds)
    if error.allow is not None:
        headers["allow"] = error.allow
    return Response(render_envelope(error), error.status, headers, media_type="application/json")
