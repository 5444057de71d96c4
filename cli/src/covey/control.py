"""Client of the control API on the machine's own Unix socket (docs/concepts/architecture.md has the calls).

Synchronous: a command does one thing after another. `covey up` uses it through a thread for its few calls.
"""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import httpx

from covey.errors import CommandError, ExitCode
from covey.paths import control_socket

JsonObject = dict[str, Any]

# The controller answers from memory; a write validates and fsyncs one set.
CALL_TIMEOUT_SECONDS = 30.0
# A watch has a line every 5 s; three missing ones mean that the controller is gone.
WATCH_SILENCE_SECONDS = 15.0


class NotRunning(CommandError):
    """No controller answers on the state folder's socket."""


class Control:
    """One connection to the controller of a state folder."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._socket = control_socket(state)
        transport = httpx.HTTPTransport(uds=str(self._socket))
        self._http = httpx.Client(transport=transport, base_url="http://covey", timeout=CALL_TIMEOUT_SECONDS)

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

    def list_objects(self, plural: str, namespace: str | None = None) -> list[JsonObject]:
        params = {"namespace": namespace} if namespace else {}
        return self._items(f"/api/v1/objects/{plural}", params)

    def get_object(self, plural: str, namespace: str, name: str) -> JsonObject:
        return self._call("GET", f"/api/v1/objects/{plural}/{namespace or '-'}/{name}")

    def list_events(self, plural: str, namespace: str, name: str) -> list[JsonObject]:
        return self._items(f"/api/v1/events/{plural}/{namespace or '-'}/{name}")

    def get_progress(self, plural: str, namespace: str, name: str) -> JsonObject:
        return self._call("GET", f"/api/v1/progress/{plural}/{namespace or '-'}/{name}")

    def explain(self, plural: str, namespace: str, name: str) -> JsonObject:
        return self._call("GET", f"/api/v1/why/{plural}/{namespace or '-'}/{name}")

    def get_source(self) -> JsonObject:
        return self._call("GET", "/api/v1/source")

    def list_gateways(self) -> list[JsonObject]:
        return self._items("/api/v1/gateways")

    def apply_text(self, text: str, name: str, author: str = "") -> list[JsonObject]:
        return self._results(self._call("POST", "/api/v1/apply", {"text": text, "name": name, "author": author}))

    def delete_keys(self, keys: list[JsonObject], author: str = "") -> list[JsonObject]:
        return self._results(self._call("POST", "/api/v1/delete", {"keys": keys, "author": author}))

    def create_token(self, role: str, uses: int, ttl_seconds: int) -> str:
        return str(
            self._call("POST", "/api/v1/tokens", {"role": role, "uses": uses, "ttlSeconds": ttl_seconds})["token"]
        )

    def create_key(self, name: str, namespace: str, expiry: str | None) -> str:
        body = {"name": name, "namespace": namespace} | ({"expiry": expiry} if expiry else {})
        return str(self._call("POST", "/api/v1/keys", body)["key"])

    def delete_key(self, name: str, namespace: str) -> None:
        self._call("DELETE", f"/api/v1/keys/{namespace}/{name}")

    def watch(self, plurals: list[str]) -> Iterator[JsonObject]:
        """Changes of these kinds, beginning with what there is; empty dicts are signs of life."""
        with (
            self._reporting_absence(),
            self._http.stream(
                "GET", "/api/v1/watch", params={"plural": plurals}, timeout=WATCH_SILENCE_SECONDS
            ) as response,
        ):
            if response.is_error:
                response.read()
                raise _error_of(response)
            for line in response.iter_lines():
                yield json.loads(line)

    def _items(self, path: str, params: dict[str, str] | None = None) -> list[JsonObject]:
        return cast(list[JsonObject], self._call("GET", path, params=params)["items"])

    def _results(self, answer: JsonObject) -> list[JsonObject]:
        return cast(list[JsonObject], answer["results"])

    def _call(
        self, method: str, path: str, body: JsonObject | None = None, params: dict[str, str] | None = None
    ) -> JsonObject:
        with self._reporting_absence():
            response = self._http.request(method, path, json=body, params=params)
        if response.is_error:
            raise _error_of(response)
        return cast(JsonObject, response.json()) if response.content else {}

    @contextmanager
    def _reporting_absence(self) -> Generator[None]:
        try:
            yield
        except httpx.TimeoutException as error:
            raise CommandError(
                f"the controller behind '{self._socket}' did not answer in time", ExitCode.TIMED_OUT
            ) from error
        except httpx.TransportError as error:
            raise NotRunning(
                f"no Covey is running with the state folder '{self.state}' (nothing answers on its control socket). "
                "Start one with 'covey up DIR', or name another folder with --state or COVEY_STATE."
            ) from error


def _error_of(response: httpx.Response) -> CommandError:
    code = ExitCode.NOTHING_MATCHED if response.status_code == HTTPStatus.NOT_FOUND else ExitCode.FAILED
    try:
        error = cast(JsonObject, response.json()["error"])
    except (ValueError, KeyError):
        return CommandError(f"the controller answered {response.status_code}: {response.text[:300]}", code)
    lines = [f"{item['file']}:{item['line']}: {item['message']}" for item in error.get("errors", ())]
    return CommandError("\n".join(lines) or str(error.get("message", error)), code)
