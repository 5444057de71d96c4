"""Client of the control API (docs/concepts/architecture.md has the calls), on the machine's own Unix socket or a URL.

Synchronous: a command does one thing after another. `covey up` uses it through a thread for its few calls.
"""

import json
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import httpx
from covey_api.meta import DEFAULT_NAMESPACE

from covey.documents import Documents
from covey.errors import CommandError, ExitCode
from covey.paths import control_socket, is_kept_up
from covey.ports import JsonObject, Questions

# The controller answers from memory; a write validates and fsyncs one set.
CALL_TIMEOUT_SECONDS = 30.0
# Who asks while the controller starts waits for it: five seconds in all.
STARTING_TRIES = 11
STARTING_PAUSE_SECONDS = 0.5
# A watch has a line every 5 s; three missing ones mean that the controller is gone.
WATCH_SILENCE_SECONDS = 15.0
TOKEN_HEADER = "X-Covey-Token"  # noqa: S105 - the name of a header
TOKEN_VARIABLE = "COVEY_CONTROL_TOKEN"  # noqa: S105 - the name of a variable


class NotRunning(CommandError):
    """No controller answers where it was looked for."""


class ControlApi(Questions, ABC):
    """One controller in files mode, however it is reached. `place`: where, in words."""

    def __init__(self, http: httpx.Client, place: str) -> None:
        self._http = http
        self._place = place

    @abstractmethod
    def explain_absence(self, error: Exception) -> str:
        """What to do when nobody answers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def is_ready(self) -> bool:
        """True once the controller leads and has listed its store."""
        try:
            return self._http.get("/readyz", timeout=2.0).status_code == HTTPStatus.OK
        except httpx.TransportError:
            return False

    def is_there(self) -> bool:
        """True if a controller listens, whether it leads yet or not."""
        try:
            self._http.get("/readyz", timeout=2.0)
        except httpx.ConnectError:
            return False
        except httpx.TransportError:
            return True  # it took the connection, and is slow or just ending
        return True

    def list_objects(self, plural: str, namespace: str | None = None) -> list[JsonObject]:
        params = {"namespace": namespace} if namespace else {}
        return cast(list[JsonObject], self.call("GET", f"/api/v1/objects/{plural}", params=params)["items"])

    def get_object(self, plural: str, namespace: str, name: str) -> JsonObject:
        return self.call("GET", f"/api/v1/objects/{plural}/{namespace or '-'}/{name}")

    def list_events(self, plural: str, namespace: str, name: str) -> list[JsonObject]:
        path = f"/api/v1/events/{plural}/{namespace or '-'}/{name}"
        return cast(list[JsonObject], self.call("GET", path)["items"])

    def apply_documents(self, documents: Documents, namespace: str, author: str = "") -> list[JsonObject]:
        _require_default(namespace)
        with _placing_errors(documents):
            answer = self.call(
                "POST", "/api/v1/apply", {"text": documents.joined, "name": documents.name, "author": author}
            )
        return cast(list[JsonObject], answer["results"])

    def check_documents(self, documents: Documents, namespace: str) -> list[JsonObject]:
        _require_default(namespace)
        with _placing_errors(documents):
            answer = self.call("POST", "/api/v1/check", {"text": documents.joined, "name": documents.name})
        return cast(list[JsonObject], answer["items"])

    def delete_keys(self, keys: list[JsonObject], author: str = "") -> list[JsonObject]:
        return cast(list[JsonObject], self.call("POST", "/api/v1/delete", {"keys": keys, "author": author})["results"])

    def create_key(self, name: str, namespace: str, limits: JsonObject) -> str:
        return str(self.call("POST", "/api/v1/keys", {"name": name, "namespace": namespace} | limits)["key"])

    def watch_objects(self, plurals: list[str], namespace: str | None) -> Iterator[JsonObject]:
        """Of all namespaces: the controller's watch knows no filter, so it is made here."""
        with (
            self._reporting_absence(),
            self._http.stream(
                "GET", "/api/v1/watch", params={"plural": plurals}, timeout=WATCH_SILENCE_SECONDS
            ) as response,
        ):
            if response.is_error:
                response.read()
                raise error_of(response)
            for line in response.iter_lines():
                change = cast(JsonObject, json.loads(line))
                found = change["object"]["metadata"].get("namespace", "") if "object" in change else ""
                if namespace is None or found in ("", namespace):
                    yield change

    def call(
        self, method: str, path: str, body: JsonObject | None = None, params: dict[str, str] | None = None
    ) -> JsonObject:
        tries_left = STARTING_TRIES
        while True:
            with self._reporting_absence():
                response = self._http.request(method, path, json=body, params=params)
            tries_left -= 1
            # A controller that has just begun refuses before it does anything: the same call is right a moment later.
            is_starting = response.status_code == HTTPStatus.SERVICE_UNAVAILABLE and "retry-after" in response.headers
            if not is_starting or not tries_left:
                break
            time.sleep(STARTING_PAUSE_SECONDS)
        if response.is_error:
            raise error_of(response)
        return cast(JsonObject, response.json()) if response.content else {}

    @contextmanager
    def _reporting_absence(self) -> Generator[None]:
        try:
            yield
        except httpx.TimeoutException as error:
            raise CommandError(
                f"the controller behind '{self._place}' did not answer in time", ExitCode.TIMED_OUT
            ) from error
        except httpx.TransportError as error:
            raise NotRunning(self.explain_absence(error)) from error


class Control(ControlApi):
    """The controller of a state folder."""

    def __init__(self, state: Path) -> None:
        self.state = state
        path = str(control_socket(state))
        transport = httpx.HTTPTransport(uds=path)
        super().__init__(httpx.Client(transport=transport, base_url="http://covey", timeout=CALL_TIMEOUT_SECONDS), path)

    def is_ready(self) -> bool:
        return self._is_listening() and super().is_ready()

    def _is_listening(self) -> bool:
        """Asked first while it is waited for: the client leaves a socket open of each connection that is refused."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(2.0)
            try:
                probe.connect(self._place)
            except OSError:
                return False
        return True

    def explain_absence(self, error: Exception) -> str:
        if is_kept_up(self.state):
            return (
                f"the controller of the Covey with the state folder '{self.state}' doesn't answer: 'covey up' is "
                f"starting it. Try again in some seconds; else see '{self.state / 'log' / 'controller.log'}'."
            )
        return (
            f"no Covey is running with the state folder '{self.state}' (nothing answers on its control socket). "
            "Start one with 'covey up DIR', or name another with --state (COVEY_STATE), --url (COVEY_URL) or --context."
        )


class RemoteControl(ControlApi):
    """The controller behind an address. Its token comes from the environment, the authority from SSL_CERT_FILE."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            words = f"--url must be 'https://HOST:PORT' or 'http://HOST:PORT'; got '{url}'"
            raise CommandError(words, ExitCode.WRONG_USE)
        token = os.environ.get(TOKEN_VARIABLE, "")
        headers = {TOKEN_HEADER: token} if token else {}
        super().__init__(httpx.Client(base_url=url, headers=headers, timeout=CALL_TIMEOUT_SECONDS), url)

    def explain_absence(self, error: Exception) -> str:
        return (
            f"no controller answers at '{self._place}': {error}. The address must be the control API's; SSL_CERT_FILE "
            f"must name the fleet's authority, and {TOKEN_VARIABLE} must hold a token where one is needed."
        )


class InvalidDocuments(CommandError):
    """Documents that were refused, with every error: `{file, line, field, found, message}`."""

    def __init__(self, errors: list[JsonObject]) -> None:
        super().__init__("\n".join(f"{each['file']}:{each['line']}: {each['message']}" for each in errors))
        self.errors = errors


@contextmanager
def _placing_errors(documents: Documents) -> Generator[None]:
    """The controller saw one text; people wrote files."""
    try:
        yield
    except InvalidDocuments as invalid:
        placed = [
            dict(zip(("file", "line"), documents.place(int(each["line"])), strict=True))
            if each["file"] == documents.name
            else {}
            for each in invalid.errors
        ]
        errors = [each | place for each, place in zip(invalid.errors, placed, strict=True)]
        raise InvalidDocuments(errors) from None


def _require_default(namespace: str) -> None:
    if namespace != DEFAULT_NAMESPACE:
        words = "without Kubernetes a document itself says its namespace: write `metadata.namespace` in it"
        raise CommandError(f"{words} instead of giving '{namespace}'", ExitCode.WRONG_USE)


def error_of(response: httpx.Response) -> CommandError:
    """The control API's refusal in words."""
    code = ExitCode.NOTHING_MATCHED if response.status_code == HTTPStatus.NOT_FOUND else ExitCode.FAILED
    try:
        error = cast(JsonObject, response.json()["error"])
    except (ValueError, KeyError, TypeError):
        return CommandError(f"the controller answered {response.status_code}: {response.text[:300]}", code)
    if errors := error.get("errors"):
        return InvalidDocuments(list(errors))
    return CommandError(str(error.get("message", error)), code)
