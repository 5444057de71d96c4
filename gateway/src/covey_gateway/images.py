"""Images by URL, fetched here so that no engine ever does: an engine stands where clients can't reach.

A host must be on the list that whoever runs the gateway gave (`--image-host`; none: nothing is fetched). Then its name
is looked up once, every address of it must be a public one, and the connection goes to the very address that was
looked at, so a name that means something else a moment later (rebinding) leads nowhere. Redirects are not followed:
each would be another request of somebody else's choosing. What comes must begin as an image, whatever it is called: a
page or a secret is nothing to describe. Time, bytes and number are bounded.

aiohttp was the alternative; it would be loaded into every gateway for this, and looks names up by itself.
"""

import asyncio
import base64
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable
from functools import cached_property
from typing import Any, Protocol

import httptools
from covey_api.reasons import ErrorCode

from covey_gateway.wire.errors import ApiError, invalid_request
from covey_gateway.wire.media import Pictured, find_images, parse_url, recognize_image
from covey_gateway.wire.request import Request

# All images of a request together: who sends a URL waits no longer before anything begins.
FETCH_SECONDS = 10.0
# Providers take 20 MB of one.
MAX_IMAGE_BYTES = 20 * 1024 * 1024
# A server's head.
_MAX_HEAD_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024

_log = logging.getLogger(__name__)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class NoImage(Exception):
    """Why there is no image; the words are fit for the client."""


class Asker(Protocol):
    """The request that images are for."""

    def take_images(self, found: Request | ApiError) -> None: ...

    def reserve(self, count: int) -> bool:
        """Room for that many bytes more."""
        ...


def is_public(address: Address) -> bool:
    """Whether it is anybody's on the internet. IPv4 addresses within IPv6 ones count as what they are."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        # ISATAP: an IPv4 address behind any prefix.
        if any(address in network for network in _NOBODYS) or int(address) >> 32 & 0xFDFFFFFF == 0x00005EFE:
            return False
    return address.is_global and not address.is_multicast


_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
# Local translation, IPv4 in IPv6 of old, and site-local: not every Python knows that none of them is anybody's.
_NOBODYS = tuple(map(ipaddress.IPv6Network, ("64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96", "fec0::/10")))


async def look_up(host: str, port: int) -> list[Any]:
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


class Images:
    """`spawn` starts a task in the process's TaskGroup.

    `hosts`: `example.com`, `example.com:8443`, `*.example.com` (all below it), `*`.
    """

    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        hosts: Iterable[str] = (),
        guard: Callable[[Address], bool] = is_public,
    ) -> None:
        self._spawn = spawn
        self._hosts = tuple(host.lower().rstrip(".") for host in hosts)
        self._guard = guard

    def gather(self, request: Request, asker: Asker) -> asyncio.Task[None] | None:
        """Tell the asker at once where nothing is to be fetched, else later, unless the task is cancelled."""
        pictured = find_images(request)
        if isinstance(pictured, ApiError):
            asker.take_images(pictured)
        elif not pictured.urls:
            asker.take_images(pictured.fill({}))
        else:
            return self._spawn(self._gather(pictured, asker))
        return None

    async def _gather(self, pictured: Pictured, asker: Asker) -> None:
        try:
            asker.take_images(await self._fill(pictured, asker))
        except Exception:
            # This task shares the process's TaskGroup: a bug met by one request must not end all others.
            _log.exception("the images of a request could not be fetched")
            message = "the gateway failed at fetching images; its log has the cause"
            asker.take_images(ApiError(500, ErrorCode.INVALID_REQUEST, message))

    async def _fill(self, pictured: Pictured, asker: Asker) -> Request | ApiError:
        error: ApiError | None = None
        fetched: dict[str, asyncio.Task[str]] = {}
        try:
            async with asyncio.timeout(FETCH_SECONDS), asyncio.TaskGroup() as tasks:
                fetched = {url: tasks.create_task(self._fetch(url, asker)) for url in pictured.urls}
        except* TimeoutError:
            message = f"the images didn't come within {FETCH_SECONDS:.0f} s; send them as data URLs"
            error = invalid_request(message, "messages")
        except* NoImage as group:
            error = invalid_request(str(group.exceptions[0]), "messages")
        except* _Full:
            message = "the gateway holds as many images and bodies as it may; try again"
            error = ApiError(503, ErrorCode.OVERLOADED, message, retry_after_seconds=1)
        return error or pictured.fill({url: task.result() for url, task in fetched.items()})

    async def _fetch(self, url: str, asker: Asker) -> str:
        """The image as a data URL. NoImage says why not, and which."""
        try:
            content = await self._read(url, asker)
            kind = recognize_image(content)
            if kind is None:
                raise NoImage("what is there must be a PNG, JPEG, GIF, WebP or BMP image")
        except NoImage as error:
            raise NoImage(f"the image at '{url[:200]}' can't be had: {error}. Send it as a data URL") from None
        return f"data:{kind};base64,{base64.b64encode(content).decode()}"

    async def _read(self, url: str, asker: Asker) -> bytes:
        parts = parse_url(url)
        if parts is None or parts.hostname is None:
            raise NoImage("it is no URL of http or https")
        host, is_safe = parts.hostname.rstrip("."), parts.scheme == "https"
        port = parts.port or (443 if is_safe else 80)
        if not self._is_listed(host, port):
            raise NoImage(f"this gateway fetches no images from '{host[:100]}', port {port} (`--image-host`)")
        address = await self._look_up(host, port)
        target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        head = (
            f"GET {target} HTTP/1.1\r\nhost: {parts.netloc}\r\nuser-agent: covey\r\naccept: image/*\r\n"
            "accept-encoding: identity\r\nconnection: close\r\n\r\n"
        )
        try:
            tls, name = (self._tls, host) if is_safe else (None, None)
            reader, writer = await asyncio.open_connection(address, port, ssl=tls, server_hostname=name)
            try:
                writer.write(head.encode())
                return await _read_answer(reader, asker)
            finally:
                writer.transport.abort()
        except (OSError, ssl.SSLError) as error:
            raise NoImage(f"its server isn't reached: {error.__class__.__name__}") from None

    def _is_listed(self, host: str, port: int) -> bool:
        """`HOST:PORT` is for that port, the others for the web's own."""
        if f"{host}:{port}" in self._hosts:
            return True
        return port in (80, 443) and any(
            listed in ("*", host) or (listed.startswith("*.") and host.endswith(listed[1:])) for listed in self._hosts
        )

    async def _look_up(self, host: str, port: int) -> str:
        """One address, where all that the name has are public ones."""
        try:
            found = await look_up(host, port)
        except (OSError, UnicodeError):
            raise NoImage("its host isn't known") from None
        addresses = [ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found]
        if not addresses or not all(self._guard(address) for address in addresses):
            raise NoImage("its host must have public addresses only")
        return str(addresses[0])

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Loaded with the first image: a gateway that fetches none has no use for it."""
        return ssl.create_default_context()


class _Full(Exception):
    """There is no room for more bytes."""


class _Answer:
    """What an httptools parser tells of one answer."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.is_whole = False
        self.has_head = False
        self.is_encoded = False
        self.has_end = False
        """Whether it says itself where it ends; else it ends with the connection."""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-encoding" and value.lower() != b"identity":
            self.is_encoded = True
        elif name.lower() in (b"content-length", b"transfer-encoding"):
            self.has_end = True

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, piece: bytes) -> None:
        self.content += piece

    def on_message_complete(self) -> None:
        self.is_whole = True


async def _read_answer(reader: asyncio.StreamReader, asker: Asker) -> bytes:
    answer = _Answer()
    parser = httptools.HttpResponseParser(answer)
    head_bytes = 0
    while not answer.is_whole and (piece := await reader.read(_READ_BYTES)):
        before = len(answer.content)
        try:
            parser.feed_data(piece)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            raise NoImage("its server answers in something that is no HTTP") from None
        if not answer.has_head and (head_bytes := head_bytes + len(piece)) > _MAX_HEAD_BYTES:
            raise NoImage("its server's head is too long")
        if answer.has_head and (status := parser.get_status_code()) != 200:
            words = "redirects are not followed" if 300 <= status < 400 else "it must be there"
            raise NoImage(f"its server answered {status}; {words}")
        if answer.is_encoded:
            raise NoImage("its server compressed it, unasked")
        if len(answer.content) > MAX_IMAGE_BYTES:
            raise NoImage(f"it must have at most {MAX_IMAGE_BYTES} bytes")
        # Twice: as it came, and in base64 with its request.
        if (grown := len(answer.content) - before) and not asker.reserve(3 * grown):
            raise _Full
    if not answer.is_whole and (answer.has_end or not answer.has_head):
        raise NoImage("its server ended before it did")
    return bytes(answer.content)
