"""One refusal or failure as every wire format can say it. Each format renders it in its own envelope."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TypeVar

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
    limit: str = ""
    """Which limit of the key was hit, for 429."""
    quotes_engine: bool = False
    """The message has words of the engine's, which may repeat what it was asked."""

    @property
    def log_words(self) -> str:
        """What may be written down of it."""
        return "the engine's words went to the client" if self.quotes_engine else self.message


_T = TypeVar("_T")


class Refused(Exception):
    """What is wrong with a request, found deep inside of it."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


def ensure(found: _T | ApiError) -> _T:
    """The value; Refused when it is none."""
    if isinstance(found, ApiError):
        raise Refused(found)
    return found


def refusing(parse: Callable[[bytes], _T | ApiError]) -> Callable[[bytes], _T | ApiError]:
    """A parser whose Refused is its answer."""

    @wraps(parse)
    def parse_or_refuse(body: bytes) -> _T | ApiError:
        try:
            return parse(body)
        except Refused as refused:
            return refused.error

    return parse_or_refuse


def invalid_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, ErrorCode.INVALID_REQUEST, message, param)
