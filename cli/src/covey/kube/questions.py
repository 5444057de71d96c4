"""What only the controller knows, asked through the API server's service proxy.

The API server takes `Authorization` for itself and tells nobody behind its proxy who called. So a token is asked for
that the controller can have reviewed: of a ServiceAccount, for the controller's audience alone, for minutes. Two
accounts, because whoever may ask for a token gets all that its account may: reading is one right, letting machines
into the fleet another (ADR 15).
"""

from http import HTTPStatus
from typing import cast

from covey.control import TOKEN_HEADER, error_of
from covey.errors import CommandError
from covey.kube.api import KubeApi
from covey.kube.refusals import explain_forbidden, place, refusal_of, shorten, status_of
from covey.ports import JsonObject, Questions

DEFAULT_NAMESPACE = "covey-system"
CONTROLLER = "covey-controller"
GATEWAY = "covey-gateway"
AUDIENCE = "covey-control"
READER = "covey-cli"
OPERATOR = "covey-cli-operator"
# The shortest that the API server issues; a command asks within seconds.
TOKEN_SECONDS = 600
_OPERATING = ("/api/v1/tokens", "/api/v1/gateways/")


class ServiceFinder:
    """Where Covey's Services are."""

    def __init__(self, api: KubeApi, namespace: str | None) -> None:
        self._api = api
        self._given = namespace

    def find(self, component: str, scheme: str, port: str) -> str:
        """Path of a Service's proxy, in the given namespace, else in that of the only labelled Service."""
        namespace = self._given or self._search(component)
        return f"/api/v1/namespaces/{namespace}/services/{scheme}:{component}:{port}/proxy"

    def _search(self, component: str) -> str:
        """Who may not list Services in the whole cluster is taken to mean the usual namespace."""
        params = {"labelSelector": f"app.kubernetes.io/name={component}"}
        response = self._api.send("GET", "/api/v1/services", params=params)
        if response.status_code == HTTPStatus.FORBIDDEN:
            return DEFAULT_NAMESPACE
        if response.is_error:
            raise refusal_of(response, self._api.context)
        items = cast("list[JsonObject]", response.json()["items"])
        found = sorted({str(item["metadata"]["namespace"]) for item in items})
        if len(found) > 1:
            raise CommandError(
                f"'{component}' is in several namespaces of {place(self._api.context)}: {', '.join(found)}. "
                "Say which with --fleet-namespace or COVEY_FLEET_NAMESPACE."
            )
        if not found:
            raise CommandError(
                f"no Service labelled 'app.kubernetes.io/name={component}' is in {place(self._api.context)}: Covey "
                "must be installed there, or --fleet-namespace must name where it is."
            )
        return found[0]


class KubeQuestions(Questions):
    """The controller of a cluster. Nothing is looked up before the first question."""

    def __init__(self, api: KubeApi, services: ServiceFinder) -> None:
        self._api = api
        self._services = services
        self._path = ""
        self._tokens: dict[str, str] = {}

    def get_source(self) -> JsonObject:
        raise CommandError("there is no source in Kubernetes: the objects themselves are what is wished")

    def call(
        self, method: str, path: str, body: JsonObject | None = None, params: dict[str, str] | None = None
    ) -> JsonObject:
        if not self._path:
            self._path = self._services.find(CONTROLLER, "https", "control")
        account = OPERATOR if path.startswith(_OPERATING) else READER
        headers = {TOKEN_HEADER: self._token(account)}
        response = self._api.send(method, self._path + path, body, params=params, headers=headers)
        if not response.is_error:
            return cast(JsonObject, response.json()) if response.content else {}
        if status_of(response):
            raise self._explain(response.status_code, str(status_of(response).get("message", "")))
        raise error_of(response)

    def _token(self, account: str) -> str:
        if account not in self._tokens:
            namespace = self._path.split("/")[4]
            wish = {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"audiences": [AUDIENCE], "expirationSeconds": TOKEN_SECONDS},
            }
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
            response = self._api.send("POST", path, wish)
            if response.is_error:
                status = status_of(response)
                raise self._explain(response.status_code, str(status.get("message") or response.text))
            self._tokens[account] = str(response.json()["status"]["token"])
        return self._tokens[account]

    def _explain(self, code: int, message: str) -> CommandError:
        """1. A right is missing. 2. It is not installed there. 3. Nobody answers. 4. As it says."""
        namespace = self._path.split("/")[4]
        where = f"in namespace '{namespace}' of {place(self._api.context)}"
        match code:
            case HTTPStatus.FORBIDDEN:
                return CommandError(
                    f"this is asked of the controller, {where}: {explain_forbidden(shorten(message))} The Roles "
                    f"'{READER}-user' (to ask) and '{OPERATOR}-user' (beside it, to make join tokens and remove "
                    "gateways) are there for it."
                )
            case HTTPStatus.SERVICE_UNAVAILABLE if "endpoints" in message:
                return CommandError(
                    f"the controller is installed {where}, and none of its replicas is ready: {shorten(message)}. "
                    f"See `kubectl -n {namespace} get pods`."
                )
            case HTTPStatus.NOT_FOUND:
                # The API server says so too of a Service that is there, as long as it has no Endpoints at all.
                return CommandError(
                    f"the controller must be installed {where}, with a replica that is ready: {shorten(message)}. "
                    f"See `kubectl -n {namespace} get services,pods`; --fleet-namespace names another."
                )
            case HTTPStatus.SERVICE_UNAVAILABLE:
                return CommandError(
                    f"no controller answers {where}: {shorten(message)}. See `kubectl -n {namespace} get pods`."
                )
            case _:
                return CommandError(f"the controller can't be asked {where}: {shorten(message)}")
