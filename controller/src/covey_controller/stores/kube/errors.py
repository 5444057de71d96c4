"""What a call to the API server can end with, other than well. Pure."""

from http import HTTPStatus

from pydantic import BaseModel, ValidationError

MAX_MESSAGE_CHARACTERS = 1_024


class KubeError(Exception):
    """The API server refused a call. `reason` is Kubernetes' own word for it (`AlreadyExists`, `Forbidden`, …)."""

    def __init__(self, call: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{call}: {status} {reason}: {message[:MAX_MESSAGE_CHARACTERS]}")
        self.call = call
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def is_missing(self) -> bool:
        """There is no such object, namespace or kind."""
        return self.status == HTTPStatus.NOT_FOUND

    @property
    def is_conflict(self) -> bool:
        """A precondition did not hold, or the object exists already."""
        return self.status == HTTPStatus.CONFLICT and not self.is_denied

    @property
    def is_denied(self) -> bool:
        """An admission policy (422 by default) or webhook (whatever status it chose) denied it: it stays denied."""
        return any(words in self.message for words in ("denied request", "denied the request"))

    @property
    def is_unknown_field(self) -> bool:
        """The kind, as it is installed, has no such field: 400 to a whole object, 500 to server-side apply."""
        return any(words in self.message for words in ("field not declared in schema", "unknown field"))

    @property
    def is_invalid(self) -> bool:
        """The object breaks its schema or a rule of its kind; so does a JSON patch whose test does not hold."""
        return self.status == HTTPStatus.UNPROCESSABLE_ENTITY and not self.is_denied

    @property
    def is_refusal(self) -> bool:
        """This object may not be written: an admission policy, a quota or a missing right says so."""
        return self.is_invalid or self.is_denied or self.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN)


class KubeAway(KubeError):
    """The API server could not be reached, did not answer in time, or is too busy: the same call may work later."""


class KindsOutdated(KubeError):
    """The installed kinds are an older version's than this controller."""

    def __init__(self, error: KubeError) -> None:
        super().__init__(error.call, error.status, error.reason, error.message)
        self.args = (
            "the kinds that are installed must be as new as this controller, and aren't: upgrade the CRDs first "
            "(`kubectl apply --server-side -f manifests/crds`, or `helm upgrade`). Engines and requests go on; what is "
            f"seen of them can't be written. {error}",
        )


class _Refusal(BaseModel):
    """The API server's `Status` object."""

    reason: str = ""
    message: str = ""


def no_api_server(call: str, content: bytes) -> KubeAway:
    """Something else answers at its address."""
    words = f"the answer must be an API server's JSON; it begins with {content[:40]!r}"
    return KubeAway(call, HTTPStatus.OK, "NoApiServer", words)


def parse_refusal(call: str, status: int, content: bytes) -> KubeError:
    """The error for an answer that is none of 2xx."""
    if status < HTTPStatus.BAD_REQUEST:
        return KubeAway(call, status, "NoApiServer", "the answer must be an API server's; it is a redirect")
    try:
        refusal = _Refusal.model_validate_json(content)
    except ValidationError:
        refusal = _Refusal(message=content.decode(errors="replace").strip())
    # What stands before an API server has numbers of its own, such as 520.
    known = {each.value: each.phrase for each in HTTPStatus}
    reason = refusal.reason or known.get(status, "Unknown").replace(" ", "")
    error = KubeError(call, status, reason, refusal.message)
    is_away = status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return KubeAway(call, status, reason, refusal.message) if is_away and not error.is_denied else error
