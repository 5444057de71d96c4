"""Ollama's `options` as chat fields."""

from dataclasses import dataclass
from typing import Any

import msgspec
from covey_api.reasons import ErrorCode

from covey_gateway.wire.body import Fields, check_kinds, decode_object, drop_nothing, read_value, refuse_field
from covey_gateway.wire.errors import ApiError, invalid_request
from covey_gateway.wire.ollama.fields import IGNORED_OPTIONS, OPTIONS, REFUSED_OPTIONS

_READ = frozenset(("num_predict", "num_ctx"))
_KNOWN = frozenset((*OPTIONS, *IGNORED_OPTIONS, *_READ))
_DECODED = frozenset((*_KNOWN, *REFUSED_OPTIONS))
_KINDS = {name: kind for name, (_, kind) in OPTIONS.items()}


@dataclass(frozen=True, slots=True)
class Options:
    fields: dict[str, Any]
    max_tokens: int | None
    window_tokens: int


def read_options(fields: Fields) -> Options | ApiError:
    raw = fields.get("options")
    options = {} if raw is None else decode_object(bytes(raw), _DECODED)
    if isinstance(options, ApiError):
        return options
    drop_nothing(options, REFUSED_OPTIONS)
    for name in options:
        if name not in _KNOWN:
            error = refuse_field(name, REFUSED_OPTIONS, _KNOWN, "options")
            return ApiError(400, ErrorCode.UNSUPPORTED_FIELD, error.message, f"options.{error.param}")
    if (error := check_kinds(options, _KINDS)) is not None:
        return error
    most, window = _read_whole(options, "num_predict"), _read_whole(options, "num_ctx")
    if isinstance(most, ApiError) or isinstance(window, ApiError):
        return most if isinstance(most, ApiError) else invalid_request("`num_ctx` must be a whole number", "options")
    sent: dict[str, Any] = {OPTIONS[name][0]: value for name, value in options.items() if name in OPTIONS}
    # -1 and -2 are "until it ends" and "until the window is full": what no limit means here.
    return Options(sent, most if most is not None and most > 0 else None, window or 0)


def _read_whole(options: dict[str, msgspec.Raw], name: str) -> int | ApiError | None:
    value = read_value(options, name)
    if value is None or isinstance(value, ApiError) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    return invalid_request(f"`options.{name}` must be a whole number", "options")
