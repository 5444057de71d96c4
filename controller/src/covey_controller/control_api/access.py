"""Who may call the control API where Kubernetes decides: a token is reviewed, then a SubjectAccessReview for the call.

The token comes in `X-Covey-Token` or as a bearer: through the API server's proxy only the first arrives. What was
allowed is remembered for a moment: a person who loses a right, or whose token is revoked, keeps it for at most that
long. Refusals are not remembered: whoever is granted a right has it at once.
"""

import hashlib
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from covey_controller.audit import name_caller
from covey_controller.ports import Access, Caller, Reviewer, ReviewUnavailable
from covey_controller.serving.answers import ApiError, ApiReason, host_of, unavailable
from covey_controller.serving.refusals import SlowRefusals

AUDIENCE = "covey-control"
TOKEN_HEADER = "x-covey-token"  # noqa: S105 - a header's name
# A command makes a few calls within a second or two; the API server's own authorizer remembers as long.
REMEMBER_SECONDS = 10.0
# Calls by different people, or for different namespaces, within that time; beyond it the oldest is asked for again.
MAX_REMEMBERED = 1024
# Tokens of people's identity providers with many groups; nothing longer is sent on.
MAX_TOKEN_LENGTH = 32_768
_BEARER = "bearer "

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Endpoint = Callable[[Request], Awaitable[Response]]


class ControlAccess:
    """`clock`: monotonic seconds."""

    def __init__(self, reviewer: Reviewer, clock: Callable[[], float]) -> None:
        self._reviewer = reviewer
        self._clock = clock
        self._refusals = SlowRefusals()
        self._callers: dict[bytes, tuple[float, Caller]] = {}
        self._allowed: dict[Hashable, tuple[float, bool]] = {}

    def guard(self, endpoint: Endpoint, access_of: Callable[[Request], Access]) -> Endpoint:
        """The endpoint, for callers that may do what this call is."""

        async def guarded(request: Request) -> Response:
            await self._require(request, access_of(request))
            return await endpoint(request)

        return guarded

    async def _require(self, request: Request, access: Access) -> None:
        """ApiError 401 for who isn't known, 403 for who may not, 429 and 503 for later."""
        try:
            caller = await self._identify(_parse_token(request), host_of(request))
            name_caller(request, caller.user)
            if not await self._is_allowed(caller, access):
                place = f" in namespace '{access.namespace}'" if access.namespace else " in all namespaces"
                raise ApiError(
                    403,
                    ApiReason.FORBIDDEN,
                    f"'{caller.user}' must be allowed to '{access.verb}' '{access.resource}.covey.dev'{place}; "
                    "ask whoever gives rights in this cluster",
                )
        except ReviewUnavailable as error:
            raise unavailable(f"the API server can't be asked who may call this: {error}") from None

    async def _identify(self, token: str, host: str) -> Caller:
        digest = hashlib.sha256(token.encode(errors="replace")).digest()
        if (known := _recall(self._callers, digest, self._clock())) is not None:
            return known
        self._refusals.require_room(host)
        is_token = 0 < len(token) <= MAX_TOKEN_LENGTH
        caller = await self._reviewer.review_token(token, AUDIENCE) if is_token else None
        if caller is None:
            await self._refusals.delay(host)
            raise ApiError(
                401,
                ApiReason.NO_TOKEN,
                f"the call needs a token for audience '{AUDIENCE}' in 'X-Covey-Token' or as a bearer, such as "
                f"`kubectl create token covey-cli --audience {AUDIENCE}` makes; got "
                f"{'one that the API server refuses' if token else 'none'}",
            )
        _remember(self._callers, digest, caller, self._clock())
        return caller

    async def _is_allowed(self, caller: Caller, access: Access) -> bool:
        key = (caller.user, caller.uid, caller.groups, tuple(sorted(caller.extra.items())), access)
        if _recall(self._allowed, key, self._clock()) is not None:
            return True
        is_allowed = await self._reviewer.review_access(caller, access)
        if is_allowed:
            _remember(self._allowed, key, True, self._clock())
        return is_allowed


def _recall(memory: dict[K, tuple[float, V]], key: K, now: float) -> V | None:
    until, value = memory.get(key, (0.0, None))
    return value if now < until else None


def _remember(memory: dict[K, tuple[float, V]], key: K, value: V, now: float) -> None:
    memory.pop(key, None)
    memory[key] = (now + REMEMBER_SECONDS, value)
    while len(memory) > MAX_REMEMBERED:
        del memory[next(iter(memory))]


def _parse_token(request: Request) -> str:
    if token := request.headers.get(TOKEN_HEADER, "").strip():
        return token
    value = request.headers.get("authorization", "")
    return value[len(_BEARER) :].strip() if value.lower().startswith(_BEARER) else ""
