"""HTTP as every fetcher here needs it: bounded waits, bounded redirects, credentials that stay at home.

Redirects are followed by hand: httpx keeps an `Authorization` head on some of them, and a mirror's password must never
reach the host of a file. A failure is either `Transient` (worth another try, after a pause) or an AgentError.
"""

import asyncio
import email.utils
import ipaddress
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

import httpx
from covey_api.reasons import FailureCause

from covey_agent.artifacts.clients import make_client, read_netrc, read_trust
from covey_agent.artifacts.index import IndexSettings, Login, origin_of, split_login
from covey_agent.artifacts.pace import Pace
from covey_agent.artifacts.pauses import LONGEST_SECONDS, Pauses
from covey_agent.artifacts.trouble import note_trouble
from covey_agent.ports import AgentError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Indexes send to a mirror and from there to a store: two hops are usual.
_MAX_REDIRECTS = 5
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
# Bodies that are fetched whole by one agent at a time: two sets, and an engine. The next ones wait for their turn.
_MAX_BODIES = 8
# Of these for parts of files that have a connection already: the others are for files that have none.
_MORE_BODIES = 3
# Pages and headers have connections of their own: bodies hold theirs for hours, and these are waited for.
_MAX_CONNECTIONS = 8


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited for an index, and how often it is asked."""

    connect_seconds: float = 10.0
    stall_seconds: float = 60.0
    """A connection that brings next to nothing for this long is given up and made again."""
    tries: int = 6
    """In a row without progress."""
    backoff_seconds: float = 1.0
    """Before the second try; doubles from there."""
    longest_pause_seconds: float = 120.0
    """An index that asks for a longer pause (`Retry-After`) is given up, and nobody here asks it before."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Whom a request goes to: in the words of messages, and with what proof."""

    says: str
    """Whose word size and digest are: `as ... says`."""
    check: str
    """What a person looks at when its answers make no sense."""
    login: str
    """What a person does when it refuses."""
    missing: str
    """What is wrong when it has no such thing."""
    token: str = field(default="", repr=False)
    """A bearer token: for the host that is asked first, never for one that it redirects to."""
    scheme: str = "Bearer"
    """Of the token; `Basic` where it is a login."""
    is_anonymous: bool = False
    """Nothing but the token is shown: no login out of an index's URL or ~/.netrc, wherever it leads."""


INDEX = Origin(
    says="as the index says",
    check="Check the index's URL.",
    login="Put them in the index URL or in ~/.netrc of the user who runs the agent.",
    missing="there is no such project or file. Change the source.",
)
SERVER = Origin(
    says="as the server said before, or the Model's `sha256` asks",
    check="Check the source.",
    login="Put them in ~/.netrc of the user who runs the agent.",
    missing="there is no such file. Change the source.",
)


class Transient(Exception):
    """Another try may do."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_seconds = retry_after_seconds


class Unauthorized(AgentError):
    """Who asked must say who it is, as `challenge` (`WWW-Authenticate`) asks."""

    def __init__(self, message: str, challenge: str) -> None:
        super().__init__(FailureCause.ARTIFACT_UNAVAILABLE, message)
        self.challenge = challenge


class Backoff:
    """Counts tries without progress and waits between them."""

    def __init__(self, patience: Patience, what: str) -> None:
        self._patience = patience
        self._what = what
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    async def pause(self, failure: Transient) -> None:
        """Wait before the next try. AgentError(ArtifactUnavailable) when there is none left."""
        self._failures += 1
        note_trouble(failure.message)
        asked = failure.retry_after_seconds
        if self._failures >= self._patience.tries:
            raise unavailable(
                f"{self._what}: {failure.message} ({self._failures} tries). Check the network and the server."
            )
        if asked is not None and asked > self._patience.longest_pause_seconds:
            words = f"{self._what}: {failure.message}; it asks to come back in {asked:.0f} s."
            raise AgentError(FailureCause.ARTIFACT_UNAVAILABLE, words, min(asked, LONGEST_SECONDS))
        doubling = self._patience.backoff_seconds * 2 ** (self._failures - 1)
        pause_seconds = min(max(asked or 0.0, doubling), self._patience.longest_pause_seconds)
        logger.info("%s: %s; next try in %.0f s", self._what, failure.message, pause_seconds)
        await asyncio.sleep(pause_seconds)


async def persist(patience: Patience, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """The result of the first try that isn't `Transient`."""
    backoff = Backoff(patience, what)
    while True:
        try:
            return await attempt()
        except Transient as failure:
            await backoff.pause(failure)


def unavailable(message: str) -> AgentError:
    return AgentError(FailureCause.ARTIFACT_UNAVAILABLE, message)


def corrupt(message: str) -> AgentError:
    return AgentError(FailureCause.ARTIFACT_CORRUPT, message)


class Web:
    """HTTP to the index and the hosts its files are on."""

    def __init__(self, settings: IndexSettings, patience: Patience) -> None:
        self.settings = settings
        self.patience = patience
        self.pace = Pace()
        """For bodies that are fetched whole."""
        self.is_offline = False
        """Nobody is asked anything."""
        self._pauses = Pauses()
        self._netrc = read_netrc(settings)
        # They log every URL whole, and what an index redirects to may be signed.
        for library in ("httpx", "httpcore"):
            logging.getLogger(library).setLevel(logging.WARNING)
        trust = read_trust(settings)
        timeout = httpx.Timeout(patience.stall_seconds, connect=patience.connect_seconds)
        self._pages = make_client(trust, timeout, _MAX_CONNECTIONS)
        self._bodies = make_client(trust, timeout, _MAX_BODIES)
        self._turns = asyncio.Semaphore(_MAX_BODIES)
        self.more_bodies = _MORE_BODIES
        """Connections that bodies may have beside the first of each: who takes one gives it back."""

    async def close(self) -> None:
        await self._pages.aclose()
        await self._bodies.aclose()

    @asynccontextmanager
    async def open(
        self, url: str, headers: Mapping[str, str], origin: Origin = INDEX
    ) -> AsyncGenerator[httpx.Response]:
        """The answer to a GET, its body unread: 200, 206 or 416. What fails, also in the body, is put in words."""
        async with self._open(self._pages, url, headers, origin) as response:
            yield response

    @asynccontextmanager
    async def open_body(
        self, url: str, headers: Mapping[str, str], origin: Origin = INDEX, *, is_one_more: bool = False
    ) -> AsyncGenerator[httpx.Response]:
        """The same, of a body that is fetched whole: when it is its turn, however long that takes.

        `is_one_more`: the server sends others of this file, so a refusal is of this request and no word about others.
        """
        async with self._turns, self._open(self._bodies, url, headers, origin, is_one_more=is_one_more) as response:
            yield response

    @asynccontextmanager
    async def _open(
        self,
        client: httpx.AsyncClient,
        url: str,
        headers: Mapping[str, str],
        origin: Origin,
        *,
        is_one_more: bool = False,
    ) -> AsyncGenerator[httpx.Response]:
        if self.is_offline:
            words = f"{_place(url, origin)} isn't asked, since this Node is offline (`spec.offline`)"
            raise unavailable(f"{words}. Let another node fetch it, or bring it into the cache.")
        first = url
        for hop in range(_MAX_REDIRECTS + 1):
            place = _place(url, origin)
            if left_seconds := self._pauses.left_seconds(origin_of(url)):
                words = f"{place} isn't asked for another {left_seconds:.0f} s: its server asked for that pause."
                raise AgentError(FailureCause.ARTIFACT_UNAVAILABLE, words, left_seconds)
            proof = {"Authorization": f"{origin.scheme} {origin.token}"} if _is_trusted(origin, first, url) else {}
            auth = None if proof or origin.is_anonymous else self._auth(url)
            try:
                async with client.stream("GET", url, headers={**headers, **proof}, auth=auth) as response:
                    if response.status_code not in _REDIRECTS:
                        self._check(response, url, origin, is_redirected=hop > 0, is_one_more=is_one_more)
                        yield response
                        return
                    url = _next_url(response, url, place, origin)
            except httpx.TimeoutException as error:
                raise Transient(f"{place} sent nothing for too long ({type(error).__name__})") from error
            except httpx.TransportError as error:
                raise Transient(f"{place} can't be reached or broke off: {error or type(error).__name__}") from error
        raise unavailable(f"{_place(url, origin)}: more than {_MAX_REDIRECTS} redirects. {origin.check}")

    async def read(
        self, url: str, headers: Mapping[str, str], limit_bytes: int, origin: Origin = INDEX
    ) -> tuple[httpx.Response, bytes]:
        """An answer with its body, which must not be longer than the limit."""
        async with self.open(url, headers, origin) as response:
            body = bytearray()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > limit_bytes:
                    raise unavailable(
                        f"{_place(url, origin)} answers with more than {limit_bytes} bytes. {origin.check}"
                    )
            return response, bytes(body)

    def _check(
        self, response: httpx.Response, url: str, origin: Origin, *, is_redirected: bool, is_one_more: bool
    ) -> None:
        if origin.token and not is_redirected and not _is_trusted(origin, url, url):
            withheld = (
                "The token is not shown without TLS, since anybody between could read it: give an https:// address."
            )
            origin = replace(origin, login=f"{withheld} {origin.check}")
        try:
            _check_status(response, _place(url, origin), origin, is_redirected=is_redirected)
        except Transient as busy:
            asked = busy.retry_after_seconds
            if asked is not None and asked > self.patience.longest_pause_seconds and not is_one_more:
                self._pauses.note(origin_of(url), asked)
            raise

    def _auth(self, url: str) -> httpx.BasicAuth | None:
        login = self.settings.logins.get(origin_of(url)) or self.find_netrc_login(_host(url))
        return httpx.BasicAuth(login.user, login.password) if login else None

    def find_netrc_login(self, host: str) -> Login | None:
        """Only of a host that is named: a `default` entry would go to every host that a redirect leads to."""
        found = self._netrc.hosts.get(host) if self._netrc is not None else None
        return Login(found[0], found[2] or "") if found else None


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _is_trusted(origin: Origin, first: str, url: str) -> bool:
    """Whether the token may be shown there. Over plain HTTP to this machine only: anybody between could read it."""
    is_private = urlsplit(url).scheme == "https" or is_loopback(_host(url))
    return bool(origin.token) and is_private and origin_of(url) == origin_of(first)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _place(url: str, origin: Origin) -> str:
    """The URL as it may be shown: neither credentials nor query, which may be a signature."""
    cure = "UV_DEFAULT_INDEX, UV_INDEX_URL, PIP_INDEX_URL and pip.conf" if origin is INDEX else "where it leads"
    try:
        parts = urlsplit(url)
        # Brackets, ports, letters and hosts that a request would stumble over, after its first try or all of them.
        _ = (parts.port, httpx.URL(url), (parts.hostname or "").encode("idna"))
    except (ValueError, httpx.InvalidURL) as error:
        raise unavailable(
            f"URL must be http:// or https:// with a host; it can't be read as one. Check {cure}."
        ) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise unavailable(f"URL must be http:// or https:// with a host; got scheme '{parts.scheme}'. Check {cure}.")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _next_url(response: httpx.Response, url: str, place: str, origin: Origin) -> str:
    location = response.headers.get("location", "")
    try:
        target, _ = split_login(urljoin(url, location))
    except ValueError as error:
        raise unavailable(f"{place} redirects to what is no URL. {origin.check}") from error
    if not location or (urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https"):
        raise unavailable(f"{place} redirects to nowhere or away from https. {origin.check}")
    return target


def _check_status(response: httpx.Response, place: str, origin: Origin, *, is_redirected: bool) -> None:
    status = response.status_code
    if status in (200, 206, 416):
        return
    if status in _TRANSIENT:
        raise Transient(f"{place} answers {status}", _retry_after_seconds(response))
    if status in (401, 403) and is_redirected:
        # A signed address that ran out: whoever redirected there signs another one when asked again.
        raise Transient(f"{place}, to which it was redirected, answers {status}")
    if status in (401, 403):
        code = response.headers.get("x-error-code", "")
        shown = f" ({code})" if code.isalnum() and len(code) < 40 else ""
        raise Unauthorized(
            f"{place} answers {status}{shown}: credentials are missing or refused. {origin.login}",
            response.headers.get("www-authenticate", "") if status == 401 else "",
        )
    if status in (404, 410):
        raise unavailable(f"{place} answers {status}: {origin.missing}")
    raise unavailable(f"{place} answers {status}. {origin.check}")


def _retry_after_seconds(response: httpx.Response) -> float | None:
    value = response.headers.get("retry-after", "").strip()
    if (seconds := parse_count(value)) is not None:
        return float(seconds)
    at = _parse_date(value)
    # By the clock of who asks for it: this machine's may be hours off.
    now = _parse_date(response.headers.get("date", ""))
    return None if at is None else max(0.0, at - (time.time() if now is None else now))


def _parse_date(text: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def parse_count(text: str) -> int | None:
    """A number of bytes or seconds in a head: digits as anybody writes them, and not thousands of them."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
