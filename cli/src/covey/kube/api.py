"""Calls of the API server through the proxy: paths, pages, tries. Answers are JSON; refusals are CommandErrors."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import quote

import httpx
from covey_api.kinds import Kind
from covey_api.meta import API_VERSION

from covey.errors import CommandError, ExitCode
from covey.kube.context import Context
from covey.kube.proxy import Proxy
from covey.kube.refusals import place, refusal_of
from covey.ports import JsonObject

FIELD_MANAGER = "covey"
PAGE = 500
# A list whose pages expired is begun anew; a server that forgets faster than this is broken.
MAX_LISTINGS = 5
# A busy server says when to come again; after this many tries its refusal is told.
MAX_TRIES = 4
LONGEST_WAIT_SECONDS = 5.0
_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class KubeApi:
    """One cluster as one user."""

    def __init__(self, http: httpx.Client, proxy: Proxy, context: Context) -> None:
        self._http = http
        self._proxy = proxy
        self.context = context

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """The answer, whatever it is. Busy servers are asked again. CommandError when none comes."""
        content = json.dumps(body).encode() if body is not None else None
        sent = {"content-type": "application/json"} | dict(headers or {})
        for tried in range(1, MAX_TRIES + 1):
            try:
                response = self._http.request(method, path, content=content, params=params, headers=sent)
            except httpx.TimeoutException:
                words = f"{place(self.context)} did not answer in time"
                raise CommandError(words, ExitCode.TIMED_OUT) from None
            except httpx.TransportError as error:
                raise self.explain_break(error) from None
            wait = response.headers.get("retry-after", "")
            if response.status_code not in _BUSY or not wait.isdigit() or tried == MAX_TRIES:
                return response
            time.sleep(min(float(wait), LONGEST_WAIT_SECONDS))
        raise AssertionError("the last try returns")

    def call(self, method: str, path: str, body: Any = None, *, params: Mapping[str, str] | None = None) -> JsonObject:
        """The answer of a call that must go well."""
        response = self.send(method, path, body, params=params)
        if response.is_error:
            raise refusal_of(response, self.context)
        return cast(JsonObject, response.json())

    def list_all(self, path: str, params: Mapping[str, str] | None = None) -> tuple[list[JsonObject], str]:
        """Every item, and the resourceVersion to watch from."""
        for _ in range(MAX_LISTINGS):
            items: list[JsonObject] = []
            after = ""
            while True:
                asked = dict(params or {}) | {"limit": str(PAGE)} | ({"continue": after} if after else {})
                response = self.send("GET", path, params=asked)
                if response.status_code == HTTPStatus.GONE and after:
                    break
                if response.is_error:
                    raise refusal_of(response, self.context)
                answer = cast(JsonObject, response.json())
                items += cast("list[JsonObject]", answer["items"])
                after = str(answer["metadata"].get("continue", ""))
                if not after:
                    return items, str(answer["metadata"]["resourceVersion"])
        raise CommandError(f"{place(self.context)} forgets a list before it is read; try again")

    def stream(
        self, path: str, params: Mapping[str, str], silence_seconds: float
    ) -> AbstractContextManager[httpx.Response]:
        """A watch; reading it raises httpx.ReadTimeout after this long without a line."""
        timeout = httpx.Timeout(30.0, read=silence_seconds)
        return self._http.stream("GET", path, params=dict(params), timeout=timeout)

    def explain_break(self, error: httpx.TransportError) -> CommandError:
        said = "; ".join(self._proxy.last_lines) or str(error)
        return CommandError(f"the way to {place(self.context)} broke off: {said}")


def path_of(kind: type[Kind], namespace: str | None, name: str = "") -> str:
    """Path of a kind's objects or of one of them. `namespace` None: of all namespaces."""
    inside = f"namespaces/{_segment(namespace)}/" if kind.NAMESPACED and namespace else ""
    return f"/apis/{API_VERSION}/{inside}{kind.PLURAL}" + (f"/{_segment(name)}" if name else "")


def _segment(text: str) -> str:
    if text in (".", ".."):
        raise CommandError(f"nothing can be called '{text}'", ExitCode.WRONG_USE)
    return quote(text, safe="")


def parse_lines(response: httpx.Response) -> Iterator[JsonObject]:
    for line in response.iter_lines():
        if line:
            yield cast(JsonObject, json.loads(line))
