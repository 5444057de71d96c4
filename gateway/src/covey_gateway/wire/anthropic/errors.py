"""Anthropic's error envelope."""

import msgspec
from covey_api.reasons import ErrorCode

from covey_gateway.wire.errors import ApiError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    410: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def render_envelope(error: ApiError) -> bytes:
    """`{"type": "error", "error": {"type", "message"}}`, and what every format here tells besides.

    The request's id is in the answer's head, where the SDKs read it; the field is there for clients that require it.
    """
    message = error.message
    # Agents look for these words, and compact their history then: for nothing where `max_tokens` is what doesn't fit.
    if error.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED and error.param == "messages":
        message = f"prompt is too long: {message}"
    detail: dict[str, object] = {
        "type": _TYPES.get(error.status, "api_error"),
        "message": message,
        "code": error.code.value,
        "param": error.param,
    }
    if error.loading is not None:
        detail["loading"] = error.loading
    return msgspec.json.encode({"type": "error", "error": detail, "request_id": None})


def render_error_event(error: ApiError) -> bytes:
    return b"event: error\ndata: %b\n\n" % render_envelope(error)
