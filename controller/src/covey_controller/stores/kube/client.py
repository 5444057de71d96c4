"""Calls of the API server: few, small, asynchronous, each with a deadline. It knows HTTP and no Covey object.

No redirect is followed: no API server answers with one, and a secret that is written must not go where it points.

The files of the login are looked at again every few seconds, and at once when a call is refused as unauthorized: tokens
of pods expire, and the kubelet replaces them. What can be repeated without harm is repeated a few times: any call that
the server turned away before it began (429), and reads that met a server that is starting or busy.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import urlencode

import aiohttp

from covey_controller.stores.kube.credentials import Credentials, InvalidLogin, Login, build_tls
from covey_controller.stores.kube.errors import KubeAway, no_api_server, parse_refusal
from covey_controller.stores.kube.sockets import Sockets, connect_with

JsonObject = dict[str, Any]

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

# The API server's own limit for a request is 60 s; one that takes longer than this is as good as away.
CALL_SECONDS = 15.0
CONNECT_SECONDS = 5.0
# All tries of a call with their pauses: below what the reconciler grants the store (30 s).
CALL_WITH_RETRIES_SECONDS = 25.0
MAX_TRIES = 4
FIRST_PAUSE_SECONDS = 0.1
# The API server asks for one second; whoever asks for more than this is away.
MAX_PAUSE_SECONDS = 5.0
# Files are read again so often; a token is replaced many minutes before it expires.
LOGIN_SECONDS = 10.0
# Half of it at most is the reconciler's writes; the rest is for the lease, for reviews of tokens, and for lists.
MAX_CONNECTIONS = 16
_REPEATABLE: frozenset[int] = frozenset({HTTPStatus.TOO_MANY_REQUESTS})
_NO_STATUS = 0
_REPEATABLE_READS = _REPEATABLE | {
    _NO_STATUS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}


@dataclass(frozen=True, slots=True)
class _Session:
    """One login, as read: what calls are made with until the files change."""

    credentials: Credentials
    tls: ssl.SSLContext
    read_at: float


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    path: str
    target: str
    """The path with its query."""
    content: bytes | None
    content_type: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def headers(self, token: str) -> dict[str, str]:
        headers = {"Accept": JSON, "Content-Type": self.content_type, "User-Agent": "covey-controller"}
        return headers | {"Authorization": f"Bearer {token}"} if token else headers


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    content: bytes = b""
    retry_after_seconds: float = 0.0
    away: KubeAway | None = None
    """Why there is no answer."""

    @property
    def is_good(self) -> bool:
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES


class KubeClient:
    """An API server, logged in. Close it, or use it as an async context."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self._session: _Session | None = None
        self._reading = asyncio.Lock()
        self._http: aiohttp.ClientSession | None = None
        self._sockets = Sockets()

    async def __aenter__(self) -> "KubeClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """For good."""
        if self._http is not None:
            await self._http.close()
        await self._sockets.close()

    async def read_credentials(self) -> tuple[Credentials, ssl.SSLContext]:
        """What to log in with now. InvalidLogin if the files don't say."""
        session = await self._current_session()
        return session.credentials, session.tls

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
    ) -> JsonObject:
        """One call and its answer. KubeError if it is refused, KubeAway if the server can't be asked now."""
        content = None if body is None else json.dumps(body).encode()
        call = _Call(method, path, _render_target(path, query), content, content_type)
        return _parse_answer(call, await self._ask(call))

    async def read(self, path: str, query: Mapping[str, str]) -> bytes:
        """What a GET answers, as it came. Errors as of `request`."""
        answer = await self._ask(_Call("GET", path, _render_target(path, query), None, JSON))
        return answer.content

    async def _ask(self, call: _Call) -> _Answer:
        try:
            async with asyncio.timeout(CALL_WITH_RETRIES_SECONDS):
                return await self._try_often(call)
        except TimeoutError as error:
            words = f"no answer within {CALL_WITH_RETRIES_SECONDS:.0f} s"
            raise KubeAway(str(call), _NO_STATUS, "Timeout", words) from error

    async def _try_often(self, call: _Call) -> _Answer:
        pause_seconds = FIRST_PAUSE_SECONDS
        for tries_left in reversed(range(MAX_TRIES)):
            answer = await self._try_once(call)
            if answer.is_good:
                return answer
            if not tries_left or answer.status not in (_REPEATABLE_READS if call.method == "GET" else _REPEATABLE):
                raise answer.away or parse_refusal(str(call), answer.status, answer.content)
            await asyncio.sleep(min(MAX_PAUSE_SECONDS, max(pause_seconds, answer.retry_after_seconds)))
            pause_seconds *= 2
        raise AssertionError("the last try returns or raises")

    async def _try_once(self, call: _Call) -> _Answer:
        """The answer; once more with fresh credentials after a 401."""
        session = await self._current_session()
        answer = await self._send(session, call)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            fresh = await self._current_session(newer_than=session)
            if fresh.credentials != session.credentials:
                return await self._send(fresh, call)
        return answer

    async def _send(self, session: _Session, call: _Call) -> _Answer:
        url, headers = f"{session.credentials.server}{call.target}", call.headers(session.credentials.token)
        try:
            async with self._open().request(
                call.method, url, data=call.content, headers=headers, ssl=session.tls, allow_redirects=False
            ) as got:
                return _Answer(got.status, await got.read(), _parse_seconds(got.headers.get("Retry-After", "")))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            words = f"'{session.credentials.server}' can't be reached: {error or type(error).__name__}"
            return _Answer(_NO_STATUS, away=KubeAway(str(call), _NO_STATUS, "Unreachable", words))

    def _open(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=connect_with(self._sockets, limit=MAX_CONNECTIONS),
                timeout=aiohttp.ClientTimeout(total=CALL_SECONDS, connect=CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._http

    async def _current_session(self, newer_than: _Session | None = None) -> _Session:
        """The login as its files are now, or were `LOGIN_SECONDS` ago; never `newer_than` itself."""
        async with self._reading:
            held = self._session
            if held is not None and held is not newer_than and time.monotonic() < held.read_at + LOGIN_SECONDS:
                return held
            self._session = await asyncio.to_thread(_read_session, self.login, held)
            return self._session


def _read_session(login: Login, held: _Session | None) -> _Session:
    """The files as they are now. While they can't be read, what was read before: the call says if it has expired."""
    try:
        credentials = login.read()
        is_same_tls = held is not None and _tls_part(held.credentials) == _tls_part(credentials)
        tls = held.tls if held is not None and is_same_tls else build_tls(credentials)
    except InvalidLogin:
        if held is None:
            raise
        credentials, tls = held.credentials, held.tls
    return _Session(credentials, tls, time.monotonic())


def _render_target(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _parse_answer(call: _Call, answer: _Answer) -> JsonObject:
    """KubeAway for what no API server says: something else answers at its address."""
    if not answer.content:
        return {}
    try:
        parsed: object = json.loads(answer.content)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise no_api_server(str(call), answer.content)
    return cast("JsonObject", parsed)


def _tls_part(credentials: Credentials) -> tuple[str, str, str]:
    return credentials.authority, credentials.certificate, credentials.key


def _parse_seconds(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0
