"""The API server's refusals in words that a person can act on. Pure."""

import re
from http import HTTPStatus
from typing import Any, cast

import httpx

from covey.errors import CommandError, ExitCode
from covey.kube.context import Context

# A server may quote the value that it refuses, however long that is.
MAX_WORDS = 500
_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)
_READING = frozenset({"get", "list", "watch"})
_OPERATED = frozenset({"models", "placements", "placements/scale"})


def shorten(words: str) -> str:
    """One line, its middle left out when it is long."""
    line = " ".join(words.split())
    half = MAX_WORDS // 2
    return line if len(line) <= MAX_WORDS else f"{line[:half]} … {line[-half:]}"


def status_of(response: httpx.Response) -> dict[str, Any]:
    """The Kubernetes `Status` of a refusal; empty when the body is none."""
    try:
        body: Any = response.json()
    except ValueError:
        return {}
    found = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    return found if found.get("kind") == "Status" else {}


class Refusal(CommandError):
    """A call that was answered with `status`."""

    def __init__(self, status: int, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message, code)
        self.status = status

    @property
    def is_final(self) -> bool:
        """Whether no second try changes it: not logged in, not allowed, not there."""
        return self.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)


def refusal_of(response: httpx.Response, context: Context) -> Refusal:
    """In this order:

    1. The API server refuses the credentials. 2. Not allowed. 3. The kinds are not installed. 4. There is no such
    object. 5. kubectl could not log in, or found nobody. 6. As it says.
    """
    status, code = status_of(response), response.status_code
    message = shorten(str(status.get("message") or response.text or response.reason_phrase))
    match code:
        case HTTPStatus.UNAUTHORIZED:  # 1
            return Refusal(code, explain_login(context, "it does not accept the credentials (Unauthorized)"))
        case HTTPStatus.FORBIDDEN:  # 2
            return Refusal(code, explain_forbidden(message))
        case HTTPStatus.NOT_FOUND if not status:  # 3
            words = f"Covey's kinds are not installed in {place(context)}; whoever administers it installs them"
            return Refusal(code, f"{words}: `kubectl apply --server-side -f manifests/crds`, or all with the chart.")
        case HTTPStatus.NOT_FOUND:  # 4
            return Refusal(code, message, ExitCode.NOTHING_MATCHED)
        case _ if not status and code >= HTTPStatus.INTERNAL_SERVER_ERROR:  # 5
            is_login = "credentials" in message or "exec" in message
            said = explain_login(context, message) if is_login else f"{place(context)} can't be reached: {message}"
            return Refusal(code, said)
        case _:  # 6
            return Refusal(code, f"{place(context)} answered {code}: {message}")


def place(context: Context) -> str:
    return f"the cluster of context '{context.name}' ({context.server})"


def explain_login(context: Context, why: str) -> str:
    return (
        f"could not log in to {place(context)}: {why}. Log in again as that cluster wants it; "
        f"`kubectl {' '.join((*context.flags, 'auth', 'whoami'))}` must answer first."
    )


def explain_forbidden(message: str) -> str:
    """Which right is missing, and what grants it."""
    match = _FORBIDDEN.search(message)
    if match is None:
        return f"{message}. Whoever administers the cluster can grant it"
    group = f".{match['group']}" if match["group"] else ""
    where = f" in namespace '{match['namespace']}'" if match["namespace"] else " in the whole cluster"
    words = f"user '{match['user']}' must be allowed to {match['verb']} {match['resource']}{group}{where}, and isn't."
    if match["group"] != "covey.dev":
        return f"{words} Whoever administers the cluster grants it with a Role and a RoleBinding in that namespace."
    role = _role_for(match["verb"], match["resource"])
    binding = f"rolebinding -n {match['namespace']}" if match["namespace"] else "clusterrolebinding"
    command = f"kubectl create {binding} {role} --clusterrole={role} --user={match['user']}"
    return f"{words} Whoever administers the cluster grants it: `{command}`."


def _role_for(verb: str, resource: str) -> str:
    """The least of the ClusterRoles in manifests/ that grants it."""
    if verb in _READING and resource != "accesskeys":
        return "covey-view"
    return "covey-operate" if resource in _OPERATED else "covey-admin"
