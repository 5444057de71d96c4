"""HTTP/1.1 over TLS as fleet calls need it: small calls on connections that are kept, and endless answers.

It knows connections, nothing of the fleet. An agent and a gateway do little else at rest, and of what they did, most
was the client's: a call took 3.0 ms of CPU with httpx and 1.3 ms with aiohttp (a call every 100 ms, one machine). A
client of our own took 0.9 ms: not worth its two hundred lines.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

CONNECT_SECONDS = 5.0
# One or two streams and a few calls at once; more would mean that answers are not awaited.
MAX_CONNECTIONS = 10
# Below the controller's own keep-alive time, so that a call never meets a connection that is just being closed.
KEEPALIVE_SECONDS = 10.0


class DialFailed(Exception):
    """No connection: the cause is the OSError or TLS error of the dial."""


class Broken(Exception):
    """The connection ended, or what came over it is no HTTP; the words say which."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Whom to dial."""

    host: str
    """Without brackets."""
    port: int

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Answer:
    """One answer as it arrives."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.reason = response.reason or ""
        self.date = response.headers.get("date", "")
        """What time it is to the other end, as HTTP tells it; empty: it doesn't say."""
        self._response = response

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The body's bytes as they come, to its end. Broken when the connection ends before."""
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except aiohttp.ClientError as error:
            raise Broken("the connection ended before the answer did") from error


class HttpClient:
    """One origin; one event loop. Calls raise DialFailed, Broken, OSError; deadlines are the caller's."""

    def __init__(self, origin: Origin, context: ssl.SSLContext) -> None:
        self.origin = origin
        self._context = context
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        """Break all connections off. The client can be used again."""
        session, self._session = self._session, None
        if session is not None and session.connector is not None:
            await session.connector.close(abort_ssl=True)
            await session.close()
            await asyncio.sleep(0)  # a turn of the loop, in which the sockets are closed

    @asynccontextmanager
    async def ask(
        self, method: str, path: str, *, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Answer]:
        """The answer with its head; the connection is kept when the answer was read to its end."""
        url = f"https://{self.origin.authority}{path}"
        try:
            response = await self._open_session().request(
                method, url, data=content or None, headers=headers, allow_redirects=False
            )
        except TimeoutError:
            raise
        except aiohttp.ClientConnectorCertificateError as error:
            raise DialFailed from error.certificate_error
        except aiohttp.ClientConnectorError as error:
            raise DialFailed from error.os_error
        except aiohttp.ClientError as error:
            raise Broken(_words(error)) from error
        async with response:
            yield Answer(response)

    def _open_session(self) -> aiohttp.ClientSession:
        """Made at the first call: it belongs to the loop that is running then."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=MAX_CONNECTIONS, keepalive_timeout=KEEPALIVE_SECONDS, ssl=self._context
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("Accept-Encoding", "User-Agent"),
            )
        return self._session


def _words(error: aiohttp.ClientError) -> str:
    return str(error) or type(error).__name__
