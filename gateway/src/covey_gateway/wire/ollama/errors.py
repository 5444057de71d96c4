"""Ollama's errors: one object with a text. What every format here tells besides follows it."""

import msgspec

from covey_gateway.wire.errors import ApiError


def render_envelope(error: ApiError) -> bytes:
    content: dict[str, object] = {"error": error.message, "code": error.code.value}
    if error.param is not None:
        content["param"] = error.param
    if error.loading is not None:
        content["loading"] = error.loading
    return msgspec.json.encode(content)


def render_error_line(error: ApiError) -> bytes:
    """The last line of a stream that broke."""
    return render_envelope(error) + b"\n"
