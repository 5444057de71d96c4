"""Answers and bodies of both APIs: one error shape, bounded bodies with a deadline, messages parsed at the edge.

Errors are `{"error": {"reason", "message", "errors": […]}}`, also for what the framework itself refuses.
"""

import asyncio
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ExceptionHandler

# A body of the largest size passes in this time on 4 Mbit/s; who is slower holds memory for nothing.
BODY_SECONDS = 10.0
# Enough for a person to see what is wrong; a document with a thousand mistakes has one cause.
_MAX_SHOWN_ERRORS = 5

Body = TypeVar("Body", bound=BaseModel)


class ApiReason(StrEnum):
    """`error.reason` of both APIs, beside `TokenRefusal`."""

    INVALID_BODY = "InvalidBody"
    """It isn't the JSON that the call takes; the message names the field."""
    BODY_TOO_LARGE = "BodyTooLarge"
    """It is longer than the call takes."""
    BODY_TOO_SLOW = "BodyTooSlow"
    """It did not arrive within its deadline."""
    NO_CERTIFICATE = "NoCertificate"
    """The call needs a client certificate of this fleet."""
    CERTIFICATE_DENIED = "CertificateDenied"
    """The certificate was refused by an operator, or its node or gateway was removed."""
    FORBIDDEN = "Forbidden"
    """The certificate is of another role or name."""
    NODE_NAME_TAKEN = "NodeNameTaken"
    """Another machine is heard under this node's name."""
    GATEWAY_NAME_TAKEN = "GatewayNameTaken"
    """Another process is heard under this gateway's name."""
    INVALID_NAME = "InvalidName"
    """Not a name that a node or gateway may have."""
    INVALID_SIGNING_REQUEST = "InvalidSigningRequest"
    """The certificate signing request can't be used."""
    TOO_MANY_JOINS = "TooManyJoins"
    """Too many refused tokens at once; the same call may succeed a second later."""
    NOT_FOUND = "NotFound"
    """No such path, kind or object."""
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    """The path takes other methods; the `Allow` head lists them."""
    ALREADY_EXISTS = "AlreadyExists"
    """An object of that name is there already."""
    INVALID_SET = "InvalidSet"
    """The source would not be valid with it; `errors` has each thing wrong, and nothing was changed."""
    SOURCE_NOT_WRITABLE = "SourceNotWritable"
    """The source's files can't be written; the message says which."""
    NOT_READY = "NotReady"
    """The controller doesn't lead yet, or hasn't listed its store."""
    POD_TOKEN_UNKNOWN = "PodTokenUnknown"  # noqa: S105 - a reason
    """The API server doesn't know the token, or it is for another audience."""
    POD_NOT_ALLOWED = "PodNotAllowed"
    """Pods of this ServiceAccount or namespace may not have the role."""
    POD_NAME_DIFFERS = "PodNameDiffers"
    """The token is bound to another node or pod than the name says, or to none."""
    UNAVAILABLE = "Unavailable"
    """What the answer depends on can't be read or written now; the same call may succeed later."""
    NO_TOKEN = "NoToken"  # noqa: S105 - a reason
    """The call needs a token that the API server takes for this controller."""
    USE_KUBERNETES_API = "UseKubernetesApi"
    """In Kubernetes mode objects are read and written at the API server."""
    BAD_REQUEST = "BadRequest"
    """The request can't be taken as it is."""


class ApiError(Exception):
    """An answer that says no."""

    def __init__(
        self,
        status: int,
        reason: StrEnum,
        message: str,
        errors: list[dict[str, Any]] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.errors = errors
        self.headers = headers


def unavailable(words: str) -> ApiError:
    return ApiError(503, ApiReason.UNAVAILABLE, f"{words}; try again in a second", headers={"retry-after": "1"})


def render_error(error: ApiError) -> JSONResponse:
    content: dict[str, Any] = {"reason": error.reason, "message": error.message}
    if error.errors is not None:
        content["errors"] = error.errors
    return JSONResponse({"error": content}, error.status, error.headers)


def error_renderers() -> dict[Any, ExceptionHandler]:
    """For `Starlette(exception_handlers=…)`."""
    return {ApiError: _render_exception, HTTPException: _render_exception}


def host_of(request: Request) -> str:
    """Address of the peer; empty on a Unix socket."""
    return request.client.host if request.client is not None else ""


def render_message(message: BaseModel, status: int = 200) -> Response:
    content = message.model_dump_json(by_alias=True, exclude_none=True)
    return Response(content, status, media_type="application/json")


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body. ApiError 413 beyond the limit (unread, when its length is announced), 408 when slow."""
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit_bytes:
        raise _too_large(limit_bytes)
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                content += chunk
                if len(content) > limit_bytes:
                    raise _too_large(limit_bytes)
    except TimeoutError:
        raise ApiError(
            408,
            ApiReason.BODY_TOO_SLOW,
            f"the body must arrive within {BODY_SECONDS:.0f} s",
            headers={"connection": "close"},
        ) from None
    except ClientDisconnect:
        raise ApiError(400, ApiReason.BAD_REQUEST, "the connection ended within the body") from None
    return bytes(content)


async def read_message(request: Request, message: type[Body], limit_bytes: int) -> Body:
    """The body as a message; ApiError 400 names the field, never the value: bodies may hold secrets."""
    content = await read_body(request, limit_bytes)
    try:
        return message.model_validate_json(content)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)[:_MAX_SHOWN_ERRORS]
        words = "; ".join(f"`{'.'.join(str(part) for part in one['loc']) or 'body'}`: {one['msg']}" for one in found)
        raise ApiError(
            400, ApiReason.INVALID_BODY, f"the body must be a {message.__name__} in JSON; found {words}"
        ) from None


def _too_large(limit_bytes: int) -> ApiError:
    return ApiError(413, ApiReason.BODY_TOO_LARGE, f"the body must be at most {limit_bytes} bytes long")


async def _render_exception(request: Request, error: Exception) -> Response:
    match error:
        case ApiError():
            return render_error(error)
        case HTTPException():
            return render_error(_explain_http_exception(request, error))
        case _:
            raise error


def _explain_http_exception(request: Request, error: HTTPException) -> ApiError:
    reason = {404: ApiReason.NOT_FOUND, 405: ApiReason.METHOD_NOT_ALLOWED}.get(error.status_code, ApiReason.BAD_REQUEST)
    message = f"'{request.method} {request.url.path}': {error.detail}"
    return ApiError(error.status_code, reason, message, headers=dict(error.headers) if error.headers else None)
