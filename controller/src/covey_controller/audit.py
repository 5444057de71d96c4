"""One line in the controller's log for each administrative act: what was done to what, by whom, and how it ended.

An act changes what the fleet is or who may reach it: documents, keys, tokens, removed gateways, the authority, and
whoever joins. Objects that people write at Kubernetes' API server are in that server's own audit log; here are the
calls that only the controller knows. Never in a line: a key, a token, a document's text.

A line is `audit` and a JSON object, so that a name can't break out of it. Rejected: a file of its own (the log is what
is collected already), and events on objects (what was deleted has none).
"""

import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum

from covey_api.kinds import ObjectKey
from starlette.requests import Request
from starlette.responses import Response

from covey_controller.serving.answers import ApiError, ApiReason, host_of

Endpoint = Callable[[Request], Awaitable[Response]]

# Of a set of thousands of documents the first are named, and how many there are.
_MAX_NAMED = 50
# Nobody knows who that was, and anybody could fill the log with it; wrong tokens are made slow instead.
_UNKNOWN_CALLER = ApiReason.NO_TOKEN
_OWN_USER = "this machine's user"

_log = logging.getLogger("covey.controller.audit")


class Act(StrEnum):
    APPLY = "Apply"
    DELETE = "Delete"
    CREATE_KEY = "CreateKey"
    DELETE_KEY = "DeleteKey"
    CREATE_TOKEN = "CreateToken"  # noqa: S105 - the name of an act
    REMOVE_GATEWAY = "RemoveGateway"
    ROTATE_AUTHORITY = "RotateAuthority"
    JOIN = "Join"


def audited(act: Act, endpoint: Endpoint) -> Endpoint:
    """The endpoint, with a line for each call that somebody known makes."""

    async def told(request: Request) -> Response:
        outcome = "Failed"
        try:
            answer = await endpoint(request)
            outcome = "Done"
        except ApiError as error:
            outcome = str(error.reason)
            raise
        finally:
            if outcome != _UNKNOWN_CALLER:
                by = getattr(request.state, "audit_by", "") or _OWN_USER
                record_act(act, getattr(request.state, "audit_what", ()), by, host_of(request), outcome)
        return answer

    return told


def spell_key(key: ObjectKey) -> str:
    return "/".join(part for part in (key.kind.lower(), key.namespace, key.name) if part)


def name_target(request: Request, *what: str) -> None:
    """What the act is done to, as far as it is known by now."""
    request.state.audit_what = what


def name_caller(request: Request, by: str) -> None:
    """Nothing: whoever may use this machine's socket."""
    request.state.audit_by = by


def record_act(act: Act, what: Iterable[str], by: str, address: str, outcome: str) -> None:
    """`outcome`: `Done`, or the reason of the refusal."""
    names = list(what)
    more = {"more": len(names) - _MAX_NAMED} if len(names) > _MAX_NAMED else {}
    at = {"address": address} if address else {}
    line = {"act": act.value, "what": names[:_MAX_NAMED], **more, "by": by, **at, "outcome": outcome}
    _log.info("audit %s", json.dumps(line, ensure_ascii=True))
