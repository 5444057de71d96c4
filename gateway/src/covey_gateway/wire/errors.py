"""One refusal or failure as every wire format can say it. Each format renders it in its own envelope."""

from collections.abc import Mapping
from dataclasses import dataclass

from covey_api.reasons import ErrorCode


@dataclass(frozen=True, slots=True)
class ApiError:
    status: int
    code: ErrorCode
    message: str
    param: str | None = None
    """The field of the request that is wrong."""
    retry_after_seconds: int | None = None
    loading: Mapping[str, object] | None = None
    """How far a model that isn't ready is."""
    allow: str | None = None
    """Methods, for 405."""


def invalid_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, ErrorCode.INVALID_REQUEST, message, param)
